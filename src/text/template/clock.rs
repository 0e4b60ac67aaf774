use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment as templates print it, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    seconds: u64,
}

/// A moment's place in the calendar.
struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
}

impl Moment {
    /// This moment by the machine's clock.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { seconds: since.as_secs() }
    }

    /// Seconds since 1970 began, UTC; at most those of the year 9999 count.
    pub fn from_unix(seconds: u64) -> Self {
        Self { seconds: seconds.min(253_402_300_799) }
    }

    /// The moment by a format of C's `strftime`. The names are English.
    ///
    /// # Errors
    /// A letter that is not known here.
    pub(super) fn format(self, format: &str) -> Result<String, String> {
        let date = self.date();
        let (hour, minute, second) = (self.seconds / 3600 % 24, self.seconds / 60 % 60, self.seconds % 60);
        let weekday = (self.seconds / 86_400 % 7) as usize;
        let name = |names: &'static [&'static str], at: usize| names.get(at).copied().unwrap_or_default();
        let short = |name: &'static str| name.get(..3).unwrap_or(name);
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            let mut letter = chars.next();
            let bare = letter == Some('-');
            if bare {
                letter = chars.next();
            }
            let two = |out: &mut String, number: u64| {
                if bare { write!(out, "{number}") } else { write!(out, "{number:02}") }
            };
            let written = match letter {
                Some('Y') => write!(out, "{}", date.year),
                Some('y') => two(&mut out, date.year % 100),
                Some('m') => two(&mut out, date.month as u64 + 1),
                Some('d') => two(&mut out, date.day),
                Some('e') => write!(out, "{:>width$}", date.day, width = if bare { 0 } else { 2 }),
                Some('j') if bare => write!(out, "{}", date.day_of_year),
                Some('j') => write!(out, "{:03}", date.day_of_year),
                Some('B') => out.write_str(name(&MONTHS, date.month)),
                Some('b' | 'h') => out.write_str(short(name(&MONTHS, date.month))),
                Some('A') => out.write_str(name(&DAYS, weekday)),
                Some('a') => out.write_str(short(name(&DAYS, weekday))),
                Some('H') => two(&mut out, hour),
                Some('I') => two(&mut out, (hour + 11) % 12 + 1),
                Some('M') => two(&mut out, minute),
                Some('S') => two(&mut out, second),
                Some('p') => out.write_str(if hour < 12 { "AM" } else { "PM" }),
                Some('F') => write!(out, "{}-{:02}-{:02}", date.year, date.month + 1, date.day),
                Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
                Some('Z') => out.write_str("UTC"),
                Some('z') => out.write_str("+0000"),
                Some('%') => out.write_char('%'),
                Some(other) => return Err(format!("strftime_now: %{other} is not supported")),
                None => return Err("strftime_now: the format ends in %".to_owned()),
            };
            written.map_err(|error| error.to_string())?;
        }
        Ok(out)
    }

    fn date(self) -> Date {
        let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let mut rest = self.seconds / 86_400;
        let mut year = 1970;
        // Whole periods of 400 years first, so that the loop is short.
        year += rest / 146_097 * 400;
        rest %= 146_097;
        loop {
            let days = if leap(year) { 366 } else { 365 };
            if rest < days {
                break;
            }
            rest -= days;
            year += 1;
        }
        let day_of_year = rest + 1;
        let february = if leap(year) { 29 } else { 28 };
        let mut month = 0;
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if rest < days {
                break;
            }
            rest -= days;
            month += 1;
        }
        Date { year, month, day: rest + 1, day_of_year }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01 00:00:00 Thursday 001 12 AM"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday 060 12 AM"),
            (1_732_891_445, "2024-11-29 14:44:05 Friday 334 02 PM"),
            (4_107_542_399, "2100-02-28 23:59:59 Sunday 059 11 PM"),
            (253_402_300_799, "9999-12-31 23:59:59 Friday 365 11 PM"),
        ];
        for (seconds, wanted) in cases {
            assert_eq!(Moment::from_unix(seconds).format("%F %T %A %j %I %p").unwrap(), wanted);
        }
        assert_eq!(
            Moment::from_unix(1_725_148_800).format("%d %b %Y|%-d %B %y|%e%%").unwrap(),
            "01 Sep 2024|1 September 24| 1%"
        );
    }

    #[test]
    fn an_unknown_letter_is_named() {
        assert!(Moment::default().format("%Q").unwrap_err().contains("%Q"));
        assert!(Moment::default().format("100%").is_err());
    }
}

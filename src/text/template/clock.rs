use std::fmt::Write;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// A moment as templates print it: date and time of day where the machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    local: DateTime,
    /// Seconds since 1970 began, UTC.
    unix: i64,
}

impl Moment {
    /// This moment by the machine's clock, in its time zone.
    pub fn now() -> Self {
        Self::of(&ZonedDateTime::now())
    }

    /// Seconds since 1970 began, in UTC; at most those of the year 9999 count.
    pub fn from_unix(seconds: u64) -> Self {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).min(253_402_207_200);
        Self::of(&Timestamp::from_second(seconds).unwrap_or_default().to_zoned_datetime(TimeZone::UTC))
    }

    /// A date, or a date and a time (`2024-11-29T14:44:05`), where the machine stands.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = || "a date (2024-11-29) or a date and a time (2024-11-29T14:44:05) is wanted".to_owned();
        let local: DateTime = text.parse().map_err(|_| wanted())?;
        let zoned = local.to_zoned_datetime(TimeZone::system()).map_err(|_| wanted())?;
        Ok(Self { local, ..Self::of(&zoned) })
    }

    fn of(zoned: &ZonedDateTime) -> Self {
        Self { local: zoned.datetime(), unix: zoned.timestamp().as_second() }
    }

    /// The moment by a format of C's `strftime`, as Python's `datetime.now().strftime` gives it on Linux: English
    /// names, no time zone, and what is no conversion stays as it is.
    ///
    /// # Errors
    /// A result of more than a few pages.
    pub(in crate::text) fn format(self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = format;
        while let Some((before, after)) = rest.split_once('%') {
            out.push_str(before);
            let flag = after.chars().next().filter(|char| matches!(char, '-' | '_' | '0' | '^' | '#'));
            let body = after.get(usize::from(flag.is_some())..).unwrap_or_default();
            let Some(letter) = body.chars().next() else {
                out.push('%');
                rest = after;
                continue;
            };
            rest = body.get(letter.len_utf8()..).unwrap_or_default();
            match self.field(letter, flag) {
                Some(text) if flag == Some('^') => out.push_str(&text.to_uppercase()),
                Some(text) => out.push_str(&text),
                None => {
                    out.push('%');
                    out.extend(flag);
                    out.push(letter);
                }
            }
            if out.len() > 1 << 20 {
                return Err("strftime_now: the date is longer than 1 MiB".to_owned());
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    /// One conversion.
    fn field(self, letter: char, flag: Option<char>) -> Option<String> {
        let at = self.local;
        let (date, year, month, day) = (at.date(), i64::from(at.year()), i64::from(at.month()), i64::from(at.day()));
        let (hour, minute, second) = (i64::from(at.hour()), i64::from(at.minute()), i64::from(at.second()));
        let day_of_year = i64::from(date.day_of_year());
        let weekday = i64::from(date.weekday().to_sunday_zero_offset());
        let number = |number: i64, width: usize, fill: char| match (flag, fill) {
            (Some('-'), _) => number.to_string(),
            (Some('_'), _) | (None | Some('^' | '#'), ' ') => format!("{number:>width$}"),
            _ => format!("{number:0>width$}"),
        };
        let name = |names: &[&str], index: i64| {
            names.get(usize::try_from(index).unwrap_or(0)).copied().unwrap_or_default().to_owned()
        };
        let short = |name: String| name.get(..3).unwrap_or_default().to_owned();
        let again = |format: &str| self.format(format).ok();
        let mut out = String::new();
        // Writing into a string cannot fail.
        let _ = match letter {
            'Y' => write!(out, "{year}"),
            'C' => write!(out, "{}", number(year / 100, 2, '0')),
            'y' => write!(out, "{}", number(year % 100, 2, '0')),
            'm' => write!(out, "{}", number(month, 2, '0')),
            'd' => write!(out, "{}", number(day, 2, '0')),
            'e' => write!(out, "{}", number(day, 2, ' ')),
            'j' => write!(out, "{}", number(day_of_year, 3, '0')),
            'B' => write!(out, "{}", name(&MONTHS, month - 1)),
            'b' | 'h' => write!(out, "{}", short(name(&MONTHS, month - 1))),
            'A' => write!(out, "{}", name(&DAYS, weekday)),
            'a' => write!(out, "{}", short(name(&DAYS, weekday))),
            'H' => write!(out, "{}", number(hour, 2, '0')),
            'k' => write!(out, "{}", number(hour, 2, ' ')),
            'I' => write!(out, "{}", number((hour + 11) % 12 + 1, 2, '0')),
            'l' => write!(out, "{}", number((hour + 11) % 12 + 1, 2, ' ')),
            'M' => write!(out, "{}", number(minute, 2, '0')),
            'S' => write!(out, "{}", number(second, 2, '0')),
            'f' => write!(out, "{:06}", at.subsec_nanosecond() / 1000),
            'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            'P' => write!(out, "{}", if hour < 12 { "am" } else { "pm" }),
            's' => write!(out, "{}", self.unix),
            'u' => write!(out, "{}", if weekday == 0 { 7 } else { weekday }),
            'w' => write!(out, "{weekday}"),
            'U' => write!(out, "{}", number((day_of_year + 6 - weekday) / 7, 2, '0')),
            'W' => write!(out, "{}", number((day_of_year + 6 - (weekday + 6) % 7) / 7, 2, '0')),
            'V' => write!(out, "{}", number(i64::from(date.iso_week_date().week()), 2, '0')),
            'G' => write!(out, "{}", date.iso_week_date().year()),
            'g' => write!(out, "{}", number(i64::from(date.iso_week_date().year()) % 100, 2, '0')),
            'F' => return again("%Y-%m-%d"),
            'T' | 'X' => return again("%H:%M:%S"),
            'D' | 'x' => return again("%m/%d/%y"),
            'R' => return again("%H:%M"),
            'r' => return again("%I:%M:%S %p"),
            'c' => return again("%a %b %e %H:%M:%S %Y"),
            'n' => writeln!(out),
            't' => write!(out, "\t"),
            '%' => write!(out, "%"),
            // `datetime.now()` knows no time zone.
            'Z' | 'z' => Ok(()),
            _ => return None,
        };
        Some(out)
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
        ];
        for (seconds, wanted) in cases {
            assert_eq!(Moment::from_unix(seconds).format("%F %T %A %j %I %p").unwrap(), wanted);
        }
        assert_eq!(
            Moment::from_unix(1_725_148_800).format("%d %b %Y|%-d %B %y|%e%%").unwrap(),
            "01 Sep 2024|1 September 24| 1%"
        );
        assert_eq!(
            Moment::from_unix(1_732_891_445).format("%c|%D|%R|%U %W %V %G %u %w|%s|%^a|%Z%z|%f").unwrap(),
            "Fri Nov 29 14:44:05 2024|11/29/24|14:44|47 48 48 2024 5 5|1732891445|FRI||000000"
        );
    }

    #[test]
    fn what_is_no_conversion_stays() {
        assert_eq!(Moment::from_unix(0).format("%Q 100%").unwrap(), "%Q 100%");
    }

    #[test]
    fn a_moment_can_be_given() {
        assert_eq!(Moment::parse("2024-02-29").unwrap().format("%d %b %Y %H").unwrap(), "29 Feb 2024 00");
        assert_eq!(Moment::parse("2024-11-29T14:44:05").unwrap().format("%F %T").unwrap(), "2024-11-29 14:44:05");
        for wrong in ["", "2024-02-30", "today", "29.2.2024"] {
            assert!(Moment::parse(wrong).unwrap_err().contains("2024-11-29"));
        }
        assert!(Moment::now().unix > 1_700_000_000);
    }
}

//! What to write instead of an amount that has no unit or the wrong one, and the unit of computing.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::units::{Bytes, Rate, UnitError};

/// Floating-point operations a second. Prints in TFLOP/s, parses only with a unit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Flops(pub f64);

const FLOPS_UNITS: [(&str, f64); 3] = [("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)];
const WANTED_FLOPS: &str = "operations a second with their unit, such as `59.5 TFLOP/s` (GFLOP/s, TFLOP/s, PFLOP/s)";

impl FromStr for Flops {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        FLOPS_UNITS
            .iter()
            .find_map(|(unit, factor)| {
                let number = text.trim().strip_suffix(unit)?.trim_end();
                let number: f64 = number.starts_with(|c: char| c.is_ascii_digit()).then(|| number.parse().ok())??;
                (number > 0.0 && number.is_finite()).then_some(Self(number * factor))
            })
            .ok_or_else(|| UnitError { found: text.to_owned(), wanted: WANTED_FLOPS })
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1} TFLOP/s", self.0 / 1e12))
    }
}

/// An amount that a key may hold: how it parses, what to say and how to mend a text that is none.
pub(super) trait Amount: FromStr<Err = UnitError> {
    /// The smallest and largest amount that makes sense for hardware, and both in words.
    const RANGE: (f64, f64, &'static str);
    /// An amount as a file may have it.
    const EXAMPLE: &'static str;
    fn size(&self) -> f64;
    /// The amount that `found` may have meant, in words that a file may have; a wish for another number where none is
    /// near.
    fn meant(found: &str) -> String;

    /// What to write instead. It never is what was found, nor something else that is refused.
    fn fix(found: &str) -> String {
        let fix = Self::meant(found);
        let right =
            |text: &str| text.parse::<Self>().is_ok_and(|amount| amount.size() > 0.0 && amount.size() >= Self::RANGE.0);
        match fix.split('`').nth(1) {
            Some(first)
                if first == found.trim()
                    || (first.starts_with(|c: char| c.is_ascii_digit() || c == '.') && !right(first)) =>
            {
                format!("write what it really has, such as `{}`", Self::EXAMPLE)
            }
            _ => fix,
        }
    }
}

impl Amount for Bytes {
    const RANGE: (f64, f64, &'static str) = (0.0, 1.1259e15, "at most 1024 TiB");
    const EXAMPLE: &'static str = "20 GiB";

    fn size(&self) -> f64 {
        self.0 as f64
    }

    fn meant(found: &str) -> String {
        fix_bytes(found, "")
    }
}

impl Amount for Rate {
    const RANGE: (f64, f64, &'static str) = (1e5, 1e14, "from 0.1 MB/s to 100 TB/s");
    const EXAMPLE: &'static str = "12.1 GB/s";

    fn size(&self) -> f64 {
        self.0
    }

    fn meant(found: &str) -> String {
        if found.contains("GT/s") {
            return "give the PCIe `generation` and `lanes` instead, or a measured rate such as `12.1 GB/s`".to_owned();
        }
        fix_bytes(found, "/s")
    }
}

impl Amount for Flops {
    const RANGE: (f64, f64, &'static str) = (1e9, 1e18, "from 1 GFLOP/s to 1000 PFLOP/s");
    const EXAMPLE: &'static str = "59.5 TFLOP/s";

    fn size(&self) -> f64 {
        self.0
    }

    fn meant(found: &str) -> String {
        match number(found) {
            Some((number, rest)) => {
                let known = FLOPS_UNITS.iter().find(|(unit, _)| {
                    let unit = unit.trim_end_matches("/s");
                    [unit, &format!("{unit}S"), &format!("{unit}/S")]
                        .iter()
                        .any(|known| known.eq_ignore_ascii_case(rest))
                });
                format!("write `{number} {}`, if that is meant", known.map_or("TFLOP/s", |(unit, _)| unit))
            }
            None => "write a number and its unit, such as `59.5 TFLOP/s`".to_owned(),
        }
    }
}

/// The number at the start of a text, and what follows it. One comma is read as a decimal point, spaces and underscores
/// between digits are passed over.
fn number(text: &str) -> Option<(String, &str)> {
    let text = text.trim();
    let within = |(at, c): (usize, char)| {
        let next_is_digit = || text.get(at + 1..).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        !(c.is_ascii_digit() || c == '.' || ([',', '_', ' '].contains(&c) && next_is_digit()))
    };
    let end = text.char_indices().find(|place| within(*place)).map_or(text.len(), |(at, _)| at);
    let (number, rest) = text.split_at_checked(end)?;
    let number: String = number.chars().filter(|c| ![' ', '_'].contains(c)).collect();
    let number = if number.matches(',').count() == 1 && !number.contains('.') {
        number.replace(',', ".")
    } else {
        number.replace(',', "")
    };
    number.parse::<f64>().is_ok().then_some((number, rest.trim()))
}

fn fix_bytes(found: &str, per: &str) -> String {
    const UNITS: [&str; 8] = ["KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"];
    let Some((number, rest)) = number(found) else {
        let example = if per.is_empty() { "20 GiB" } else { "12.1 GB/s" };
        return format!("write a number that is not negative and its unit, such as `{example}`");
    };
    let unit = rest.strip_suffix("/s").or_else(|| rest.strip_suffix("ps")).unwrap_or(rest).trim_end();
    if unit.is_empty() {
        return format!("write `{number} GB{per}`, if that is meant");
    }
    if let (Some(prefix), Ok(bits)) =
        (unit.strip_suffix('b').filter(|p| ["k", "M", "G", "T"].contains(p)), number.parse::<f64>())
    {
        return format!("write `{} {prefix}B{per}`: a byte is 8 bits", bits / 8.0);
    }
    if let Some(known) = UNITS.iter().find(|known| known.eq_ignore_ascii_case(unit)) {
        return format!("write `{number} {known}{per}`, if that is meant");
    }
    match unit.chars().next().map(|c| c.to_ascii_uppercase()) {
        Some(prefix @ ('M' | 'G' | 'T')) if unit.len() == 1 && per.is_empty() => {
            format!("write `{number} {prefix}iB` (powers of 1024) or `{number} {prefix}B` (powers of 1000)")
        }
        Some(prefix @ ('M' | 'G' | 'T')) if unit.len() == 1 => {
            format!("write `{number} {prefix}B{per}`, if that is meant")
        }
        _ => format!("write `{number} GB{per}` or another of the units, whichever is meant"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_names_the_unit_that_was_probably_meant() {
        for (found, wanted) in [
            ("20", "write `20 GB`, if that is meant"),
            ("20G", "write `20 GiB` (powers of 1024) or `20 GB` (powers of 1000)"),
            ("20 gib", "write `20 GiB`, if that is meant"),
            ("20 GiB/s", "write `20 GiB`, if that is meant"),
            ("-1 GiB", "write a number that is not negative and its unit, such as `20 GiB`"),
            ("1,5 GiB", "write `1.5 GiB`, if that is meant"),
            ("1,024,000 kB", "write `1024000 kB`, if that is meant"),
            ("1 500 MB", "write `1500 MB`, if that is meant"),
            ("1e30 TB", "write `1 GB` or another of the units, whichever is meant"),
            ("99999999999999999 TB", "write what it really has, such as `20 GiB`"),
            ("20 parsec", "write `20 GB` or another of the units, whichever is meant"),
        ] {
            assert_eq!(Bytes::fix(found), wanted, "{found}");
        }
        for (found, wanted) in [
            ("12.1", "write `12.1 GB/s`, if that is meant"),
            ("12.1 GB", "write `12.1 GB/s`, if that is meant"),
            ("96 Gb/s", "write `12 GB/s`: a byte is 8 bits"),
            ("8 GT/s", "give the PCIe `generation` and `lanes` instead, or a measured rate such as `12.1 GB/s`"),
            ("0 GB/s", "write what it really has, such as `12.1 GB/s`"),
            ("0", "write what it really has, such as `12.1 GB/s`"),
            ("0,0 gb/s", "write what it really has, such as `12.1 GB/s`"),
            ("12,1 GB/s", "write `12.1 GB/s`, if that is meant"),
            ("fast", "write a number that is not negative and its unit, such as `12.1 GB/s`"),
        ] {
            assert_eq!(Rate::fix(found), wanted, "{found}");
        }
    }

    #[test]
    fn advice_is_never_what_was_found_and_is_never_refused() {
        fn check<A: Amount>(seen: &mut usize) {
            for number in ["0", "0.0", "1", "1,5", "007", "1e9", "1_000", "99999999999999999999", ".5", "-3", "", "nan"]
            {
                for unit in ["", "B", "GB", "gib", "G", "Gb", "GB/s", "gb/s", "Gbps", "GT/s", "TFLOPS", "GFLOP/s", "x"]
                {
                    for found in [format!("{number} {unit}"), format!("{number}{unit}")] {
                        let fix = A::fix(&found);
                        let advice = fix.split('`').nth(1).unwrap();
                        assert_ne!(advice, found.trim(), "{fix}");
                        if advice.starts_with(|c: char| c.is_ascii_digit()) {
                            assert!(advice.parse::<A>().is_ok(), "{found}: {fix}");
                            *seen += 1;
                        }
                    }
                }
            }
        }
        let mut seen = 0;
        check::<Bytes>(&mut seen);
        check::<Rate>(&mut seen);
        check::<Flops>(&mut seen);
        println!("{seen} times an amount was advised");
        assert!(seen > 300);
    }

    #[test]
    fn computing_has_its_unit() {
        assert_eq!("59.5 TFLOP/s".parse(), Ok(Flops(59.5e12)));
        assert_eq!(Flops(59.5e12).to_string(), "59.5 TFLOP/s");
        for bad in ["59.5", "59.5 TFLOPS", "0 TFLOP/s", "-1 TFLOP/s", "inf TFLOP/s", "TFLOP/s"] {
            assert!(bad.parse::<Flops>().is_err(), "{bad}");
        }
    }
}

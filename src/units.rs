//! Amounts with units: bytes, transfer rates, and the ids that modules exchange.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// An amount of memory in bytes. Prints with a binary unit (`20.0 GiB`), parses only with a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Bytes(pub u64);

/// A transfer rate in bytes per second. Prints in decimal GB/s, parses only with a unit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Rate(pub f64);

/// A card's place in the rig, counted from 0 in the order of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CardId(pub u32);

/// A layer of the model, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LayerId(pub u32);

/// An expert of one layer, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ExpertId(pub u32);

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// A text that is not an amount with a unit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{found}` is not {wanted}")]
pub struct UnitError {
    /// The text as it was written.
    pub found: String,
    /// What is allowed, with an example.
    pub wanted: &'static str,
}

const BYTE_UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

const WANTED_BYTES: &str =
    "an amount of memory with its unit, such as `20 GiB` (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)";
const WANTED_RATE: &str =
    "a rate with its unit, such as `12.1 GB/s` (B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s)";

fn amount(text: &str) -> Option<(f64, u64)> {
    let text = text.trim();
    let (unit, factor) = BYTE_UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = text.strip_suffix(unit)?.trim_end();
    if number.is_empty() || !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some((number, *factor))
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError { found: text.to_owned(), wanted: WANTED_BYTES };
        let (number, factor) = amount(text).ok_or_else(wrong)?;
        let bytes = number * factor as f64;
        if bytes >= 9.0e18 {
            return Err(wrong());
        }
        Ok(Self(bytes.round() as u64))
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError { found: text.to_owned(), wanted: WANTED_RATE };
        let (number, factor) = text.trim().strip_suffix("/s").and_then(amount).ok_or_else(wrong)?;
        if number == 0.0 {
            return Err(wrong());
        }
        Ok(Self(number * factor as f64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let text = match n {
            0..1_024 => format!("{n} B"),
            1_024..1_048_576 => format!("{:.1} KiB", n as f64 / 1_024.0),
            1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
            _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
        };
        f.pad(&text)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0 < 1e9 { format!("{:.1} MB/s", self.0 / 1e6) } else { format!("{:.1} GB/s", self.0 / 1e9) };
        f.pad(&text)
    }
}

impl Bytes {
    /// The amount as a `usize`, for lengths of memory that exists.
    pub fn len(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Whether the amount is zero.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self(0), |a, b| a + b)
    }
}

impl fmt::Display for CardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "card {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_need_their_unit() {
        assert_eq!("20 GiB".parse(), Ok(Bytes(20 << 30)));
        assert_eq!("20GB".parse(), Ok(Bytes(20_000_000_000)));
        assert_eq!("1.5 MiB".parse(), Ok(Bytes(1_572_864)));
        assert_eq!("7 B".parse(), Ok(Bytes(7)));
        for bad in ["20", "GiB", "-1 GiB", "20 gib", "20 GiB/s", "1e30 TB", "nan B", "inf B", ""] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
        assert_eq!("12.1 GB/s".parse(), Ok(Rate(12.1e9)));
        for bad in ["12.1", "12.1 GB", "0 GB/s", "-3 GB/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn amounts_print_with_a_unit() {
        assert_eq!(Bytes(20 << 30).to_string(), "20.00 GiB");
        assert_eq!(Bytes(103_680).to_string(), "101.2 KiB");
        assert_eq!(Rate(12.1e9).to_string(), "12.1 GB/s");
    }
}

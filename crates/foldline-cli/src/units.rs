//! Ages and sizes, as users write and read them.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A span of time: `90m`, `12h`, `30d`, `8w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgeArg(pub(crate) Duration);

/// A number of bytes: `1000`, `500MB`, `2GB`, `512KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeArg(pub(crate) u64);

/// A number of bytes like [`SizeArg`]; a number without a unit is in megabytes of 2^20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MegabytesArg(pub(crate) u64);

/// A number of tokens: `200000`, `32k`, `1M`, `1.05M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokensArg(pub(crate) u64);

/// A span of time like [`AgeArg`]; a number without a unit is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecondsArg(pub(crate) Duration);

impl FromStr for MegabytesArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let has_unit = !split_unit(text).1.is_empty();
        let size: SizeArg = if has_unit { text.parse()? } else { format!("{}MiB", text.trim()).parse()? };
        Ok(Self(size.0))
    }
}

impl FromStr for SecondsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let has_unit = !split_unit(text).1.is_empty();
        let age: AgeArg = if has_unit { text.parse()? } else { format!("{}s", text.trim()).parse()? };
        Ok(Self(age.0))
    }
}

impl FromStr for TokensArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("\"{text}\" is not a number of tokens; write it as 200000, 32k or 1M");
        let text = text.trim();
        let (number, zeros) = match text.char_indices().last().filter(|(_, unit)| unit.is_ascii_alphabetic()) {
            Some((at, 'k' | 'K')) => (&text[..at], 3),
            Some((at, 'm' | 'M')) => (&text[..at], 6),
            Some(_) => return Err(invalid()),
            None => (text, 0),
        };
        let (whole, fraction) = number.trim_end().split_once('.').unwrap_or((number.trim_end(), ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > zeros {
            return Err(invalid());
        }
        let zeros = "0".repeat(zeros - fraction.len());
        format!("{whole}{fraction}{zeros}").parse().map(Self).map_err(|_| invalid())
    }
}

impl FromStr for AgeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let seconds = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            _ => return Err("write an age as a number and s, m, h, d or w, such as 30d".into()),
        };
        let number: u64 = number.parse().map_err(|_| "an age begins with a whole number, such as 30d".to_owned())?;
        number.checked_mul(seconds).map(Duration::from_secs).map(AgeArg).ok_or_else(|| "that is too long".to_owned())
    }
}

impl FromStr for SizeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            _ => return Err("write a size as a number and KB, MB, GB or TB, such as 500MB".into()),
        };
        let number: u64 = number.parse().map_err(|_| "a size begins with a whole number, such as 500MB".to_owned())?;
        number.checked_mul(factor).map(SizeArg).ok_or_else(|| "that is too large".to_owned())
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    (number, unit.trim())
}

/// Formats a number of bytes with a suitable unit.
pub(crate) fn format_bytes(number: u64) -> String {
    indicatif::DecimalBytes(number).to_string()
}

/// Formats an amount of money: with cents, or with two significant digits below a dollar.
pub(crate) fn format_dollars(amount: f64) -> String {
    let decimals = if amount >= 0.095 || amount <= 0.0 { 2 } else { (1.0 - amount.log10().floor()).min(8.0) as usize };
    format!("${amount:.decimals$}")
}

/// Formats the age of a time, in milliseconds since 1970, in the largest unit that fits.
pub(crate) fn format_age(at: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(u64::try_from(at).unwrap_or(0)));
    if age < Duration::from_secs(60) { "just now".to_owned() } else { format!("{} ago", indicatif::HumanDuration(age)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_are_parsed() {
        assert_eq!("30d".parse(), Ok(AgeArg(Duration::from_secs(30 * 86_400))));
        assert_eq!(" 12 h ".parse(), Ok(AgeArg(Duration::from_secs(12 * 3600))));
        assert_eq!("2GB".parse(), Ok(SizeArg(2_000_000_000)));
        assert_eq!("512KiB".parse(), Ok(SizeArg(512 * 1024)));
        assert_eq!("1000".parse(), Ok(SizeArg(1000)));
    }

    #[test]
    fn token_counts_are_parsed() {
        for (text, tokens) in
            [("200000", 200_000), ("32k", 32_000), ("1M", 1_000_000), ("1.05M", 1_050_000), (" 8 K ", 8_000)]
        {
            assert_eq!(text.parse(), Ok(TokensArg(tokens)), "{text}");
        }
        for invalid in ["", "k", "1.5", "0.0001k", "-1", "32MB", "1e6", "99999999999999999999", "32 kk"] {
            assert!(invalid.parse::<TokensArg>().unwrap_err().contains("32k"), "{invalid}");
        }
    }

    #[test]
    fn numbers_without_units_are_megabytes_and_seconds() {
        assert_eq!("3".parse(), Ok(MegabytesArg(3 << 20)));
        assert_eq!("64MB".parse(), Ok(MegabytesArg(64_000_000)));
        assert_eq!("90".parse(), Ok(SecondsArg(Duration::from_secs(90))));
        assert_eq!("10m".parse(), Ok(SecondsArg(Duration::from_secs(600))));
        assert!("".parse::<MegabytesArg>().is_err() && "-1".parse::<SecondsArg>().is_err());
    }

    #[test]
    fn dollars_are_formatted_in_cents_or_finer() {
        for (amount, expected) in
            [(0.0, "$0.00"), (12.345, "$12.35"), (0.5, "$0.50"), (0.012_34, "$0.012"), (0.000_056_7, "$0.000057")]
        {
            assert_eq!(format_dollars(amount), expected);
        }
    }

    #[test]
    fn invalid_ages_and_sizes_are_rejected() {
        for invalid in ["", "30", "d", "-3d", "3 parsecs", "99999999999999999999d", "18446744073709551615w"] {
            assert!(invalid.parse::<AgeArg>().is_err(), "{invalid:?}");
        }
        for invalid in ["", "GB", "1.5GB", "12 florins", "99999999999999999999", "18446744073709551615TB"] {
            assert!(invalid.parse::<SizeArg>().is_err(), "{invalid:?}");
        }
        assert!("3 parsecs".parse::<AgeArg>().unwrap_err().contains("30d"));
    }
}

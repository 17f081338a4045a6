//! A share of all sessions, chosen by a hash of what identifies a session.
//!
//! Must not happen here: the choice depends on time, a process, a machine or other sessions.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A share of the sessions, in hundredths of a percent.
///
/// ```
/// use foldline_server::proxy::SessionShare;
///
/// let share: SessionShare = "12.5%".parse()?;
/// assert_eq!(share.to_string(), "12.5%");
/// // The same on every machine, and a larger share contains a smaller one.
/// assert_eq!(share.contains(b"session-1"), share.contains(b"session-1"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionShare(u32);

/// The whole, in hundredths of a percent.
const WHOLE: u32 = 10_000;
/// Seed of the hash, so that the choice is independent of others.
const HASH_SEED: u64 = 0xab5e_55ed;

impl SessionShare {
    /// Returns true if no session is in the share.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if a session is in the share.
    pub fn contains(self, session: &[u8]) -> bool {
        let hash = u128::from(xxh3_64_with_seed(session, HASH_SEED));
        (hash * u128::from(WHOLE)) >> 64 < u128::from(self.0)
    }
}

impl FromStr for SessionShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            || format!("\"{text}\" is not a share of the sessions; write a percentage from 0% to 100%, such as 20%");
        let number = text.trim().strip_suffix('%').ok_or_else(invalid)?.trim_end();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 2 {
            return Err(invalid());
        }
        let hundredths = format!("{whole}{fraction:0<2}").parse().map_err(|_| invalid())?;
        if hundredths > WHOLE { Err(invalid()) } else { Ok(Self(hundredths)) }
    }
}

impl fmt::Display for SessionShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> SessionShare {
        text.parse().unwrap()
    }

    #[test]
    fn percentages_are_parsed() {
        for (text, shown) in [("20%", "20%"), ("0.5 %", "0.5%"), ("0%", "0%"), ("100%", "100%"), ("33.33%", "33.33%")] {
            assert_eq!(share(text).to_string(), shown);
        }
        for text in ["", "20", "%", "101%", "-1%", "1.234%", "a%", "0.2", ".5%"] {
            assert!(text.parse::<SessionShare>().unwrap_err().contains("such as 20%"), "{text}");
        }
        assert!(share("0%").is_empty() && !share("0.01%").is_empty());
    }

    /// Replicas, also of later versions, must agree on the choice.
    #[test]
    fn choice_is_even_and_larger_shares_contain_smaller() {
        let names: Vec<String> = (0..10_000).map(|number| format!("session-{number}")).collect();
        let chosen = |text: &str| -> Vec<&String> {
            names.iter().filter(|name| share(text).contains(name.as_bytes())).collect()
        };
        let (fifth, half) = (chosen("20%"), chosen("50%"));
        assert!((1_900..2_100).contains(&fifth.len()) && (4_850..5_150).contains(&half.len()));
        assert!(fifth.iter().all(|name| half.contains(name)));
        assert_eq!((chosen("0%").len(), chosen("100%").len()), (0, names.len()));
        assert_eq!(
            fifth.iter().take(3).map(|name| name.as_str()).collect::<Vec<_>>(),
            ["session-8", "session-13", "session-17"]
        );
    }
}

//! Redaction of secrets in text before it is indexed or quoted. The original stays exact: this is for copies that
//! outlive it or leave its scope.
//!
//! Known formats are always redacted; a value after a name such as `password=` is redacted if it is long enough.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// The replacement for a secret.
pub(crate) const REDACTED: &str = "[secret]";

/// One expression for all formats, so that the text is scanned once. Repetitions are short and word boundaries ASCII:
/// otherwise the scan would be many times slower.
static SECRET_PATTERNS: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        // Keys with a prefix of their issuer.
        r"(?-u:\b)sk-[A-Za-z0-9_-]{16,}",
        r"(?-u:\b)gh[pousr]_[A-Za-z0-9]{20,}",
        r"(?-u:\b)github_pat_[A-Za-z0-9_]{20,}",
        r"(?-u:\b)glpat-[A-Za-z0-9_-]{16,}",
        r"(?-u:\b)xox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"(?-u:\b)(?:AKIA|ASIA)[0-9A-Z]{16}(?-u:\b)",
        r"(?-u:\b)AIza[0-9A-Za-z_-]{30,}",
        r"(?-u:\b)npm_[A-Za-z0-9]{30,}",
        // JSON Web Tokens.
        r"(?-u:\b)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
        // Private keys, up to their end marker or as far as the text looks like one.
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        // A password in a URL.
        r"://[^/\s:@]+:[^/\s@]{3,}@",
        // A value after a telling name.
        r#"(?i:password|passwd|secret|token|api_?key|access_?key|authorization)["']?\s{0,3}[:=]\s{0,3}["']?(?:Bearer |Basic )?[A-Za-z0-9+/_.~-]{16,}"#,
    ];
    Regex::new(&patterns.join("|")).expect("the patterns are constant and tested")
});

/// Returns the text with its secrets redacted.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    SECRET_PATTERNS.replace_all(text, REDACTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples are assembled here, so that no secret scanner reports this file.
    #[test]
    fn known_secret_formats_are_redacted() {
        let long = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
        for secret in [
            format!("sk-{long}"),
            format!("ghp_{long}"),
            format!("AKIA{}", "ABCDEFGH12345678"),
            format!("xoxb-{long}"),
            format!("eyJ{long}.{long}.{long}"),
            format!("-----BEGIN RSA PRIVATE KEY-----\n{long}\n-----END RSA PRIVATE KEY-----"),
            format!("postgres://app:{long}@db.example.com/x"),
            format!("Authorization: Bearer {long}"),
            format!(r#""api_key": "{long}""#),
        ] {
            let text = format!("before {secret} after");
            let masked = redact(&text);
            assert!(masked.contains(REDACTED) && !masked.contains(long), "{masked}");
            assert!(masked.starts_with("before ") && masked.ends_with(" after"), "{masked}");
        }
    }

    #[test]
    fn ordinary_text_is_not_redacted() {
        for text in [
            "the token counter counts tokens: 4096",
            "fn password(&self) -> &str",
            "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            "https://example.com:8080/path@version",
            "let secret = secrets.next();",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}

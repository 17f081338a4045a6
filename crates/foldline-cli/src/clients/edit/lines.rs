//! Edits of files with one setting per line: `.env` files, and the top level of YAML files.

use anyhow::{Result, bail};

/// The form of a line with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineSyntax {
    /// `KEY=value`, optionally after `export`.
    Env,
    /// `key: value`, not indented.
    Yaml,
}

impl LineSyntax {
    /// Returns the value that a line gives to a key.
    fn value<'t>(self, line: &'t str, key: &str) -> Option<&'t str> {
        let (line, separator) = match self {
            LineSyntax::Env => (line.trim_start().trim_start_matches("export "), '='),
            LineSyntax::Yaml => (line, ':'),
        };
        let value = line.strip_prefix(key)?.trim_start_matches([' ', '\t']).strip_prefix(separator)?;
        Some(value.trim())
    }

    fn line(self, key: &str, value: &str) -> String {
        match self {
            LineSyntax::Env => format!("{key}={value}"),
            LineSyntax::Yaml => format!("{key}: {value}"),
        }
    }
}

/// Returns the value of a key, if the file has it.
pub(crate) fn get(syntax: LineSyntax, text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| syntax.value(line, key)).map(str::to_owned)
}

/// Sets a key, in its line or in a new one at the end.
pub(crate) fn set(syntax: LineSyntax, text: &str, key: &str, value: &str) -> Result<String> {
    match get(syntax, text, key).as_deref() {
        Some("") if syntax == LineSyntax::Yaml => bail!("{key} has a value of several lines; edit it by hand"),
        Some(_) => Ok(map_line(syntax, text, key, Some(value))),
        None => {
            let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            Ok(format!("{text}{separator}{}\n", syntax.line(key, value)))
        }
    }
}

/// Removes the line of a key.
pub(crate) fn remove(syntax: LineSyntax, text: &str, key: &str) -> String {
    map_line(syntax, text, key, None)
}

/// Replaces or removes the first line of a key.
fn map_line(syntax: LineSyntax, text: &str, key: &str, value: Option<&str>) -> String {
    let mut found = false;
    let lines = text.split_inclusive('\n').map(|line| match syntax.value(line, key) {
        Some(_) if !found => {
            found = true;
            let end = &line[line.trim_end_matches(['\r', '\n']).len()..];
            value.map_or(String::new(), |value| syntax.line(key, value) + end)
        }
        _ => line.to_owned(),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_set_and_removed() {
        let text = "# mine\nA=1\nexport URL = old # no\nB=2";
        assert_eq!(get(LineSyntax::Env, text, "URL").as_deref(), Some("old # no"));
        let set_again = set(LineSyntax::Env, text, "URL", "new").unwrap();
        assert_eq!(set_again, "# mine\nA=1\nURL=new\nB=2");
        assert_eq!(remove(LineSyntax::Env, &set_again, "URL"), "# mine\nA=1\nB=2");
        assert_eq!(set(LineSyntax::Env, "B=2", "URL", "x").unwrap(), "B=2\nURL=x\n");
        assert_eq!(get(LineSyntax::Env, "URLS=1", "URL"), None);
    }

    #[test]
    fn yaml_blocks_are_refused() {
        assert_eq!(set(LineSyntax::Yaml, "model: a\n", "base", "http://x").unwrap(), "model: a\nbase: http://x\n");
        assert_eq!(get(LineSyntax::Yaml, "x:\n  base: 1\n", "base"), None, "an indented key is another one");
        assert!(set(LineSyntax::Yaml, "set-env:\n  - A=1\n", "set-env", "[]").is_err());
    }
}

//! Edits of clients' settings files that leave everything else in them as it is.

pub(crate) mod json;
pub(crate) mod lines;

use anyhow::{Context, Result};

use crate::clients::edit::lines::LineSyntax;

/// The format of a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// JSON, with comments and trailing commas.
    Json,
    /// TOML; only keys of the top level are edited.
    Toml,
    /// YAML; only keys of the top level with values of one line are edited.
    Yaml,
    /// Lines `KEY=value`.
    Env,
}

impl FileFormat {
    /// Returns a text as a value of the format.
    pub(crate) fn quoted(self, text: &str) -> String {
        match self {
            FileFormat::Json | FileFormat::Toml => serde_json::Value::from(text).to_string(),
            FileFormat::Yaml | FileFormat::Env => text.to_owned(),
        }
    }

    /// Returns the value of a key in the format's own notation.
    pub(crate) fn get(self, text: &str, key: &[String]) -> Result<Option<String>> {
        match self {
            FileFormat::Json => json::get(text, key),
            FileFormat::Toml => {
                let document: toml_edit::DocumentMut = text.parse()?;
                Ok(document
                    .get(&key[0])
                    .and_then(|item| item.as_value())
                    .map(|value| value.to_string().trim().to_owned()))
            }
            FileFormat::Yaml => Ok(lines::get(LineSyntax::Yaml, text, &key[0])),
            FileFormat::Env => Ok(lines::get(LineSyntax::Env, text, &key[0])),
        }
    }

    /// Sets a key to a value in the format's own notation. Returns the text and the number of objects created for it.
    pub(crate) fn set(self, text: &str, key: &[String], value: &str) -> Result<(String, usize)> {
        match self {
            FileFormat::Json => json::set(text, key, value),
            FileFormat::Toml => {
                let mut document: toml_edit::DocumentMut = text.parse()?;
                let value: toml_edit::Value = value.parse().context("the value is not valid TOML")?;
                document[key[0].as_str()] = toml_edit::value(value);
                Ok((document.to_string(), 0))
            }
            FileFormat::Yaml => Ok((lines::set(LineSyntax::Yaml, text, &key[0], value)?, 0)),
            FileFormat::Env => Ok((lines::set(LineSyntax::Env, text, &key[0], value)?, 0)),
        }
    }

    /// Removes a key, and up to `parents` objects above it that are empty then.
    pub(crate) fn remove(self, text: &str, key: &[String], parents: usize) -> Result<String> {
        match self {
            FileFormat::Json => json::remove(text, key, parents),
            FileFormat::Toml => {
                let mut document: toml_edit::DocumentMut = text.parse()?;
                document.remove(&key[0]);
                Ok(document.to_string())
            }
            FileFormat::Yaml => Ok(lines::remove(LineSyntax::Yaml, text, &key[0])),
            FileFormat::Env => Ok(lines::remove(LineSyntax::Env, text, &key[0])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_keys_are_edited_above_tables() {
        let text = "# mine\nmodel = \"a\" # kept\n\n[profiles.x]\nmodel = \"b\"\n";
        let key = ["openai_base_url".to_owned()];
        let (edited, _) = FileFormat::Toml.set(text, &key, "\"http://x\"").unwrap();
        assert_eq!(
            edited,
            "# mine\nmodel = \"a\" # kept\nopenai_base_url = \"http://x\"\n\n[profiles.x]\nmodel = \"b\"\n"
        );
        assert_eq!(FileFormat::Toml.get(&edited, &key).unwrap().as_deref(), Some("\"http://x\""));
        assert_eq!(FileFormat::Toml.remove(&edited, &key, 0).unwrap(), text);
        assert!(FileFormat::Toml.set("a = b = c", &key, "\"x\"").is_err());
    }
}

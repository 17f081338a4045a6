//! Where an archive is: the path of a file, or a URL.

use std::path::Path;

/// Returns the scheme of a URL, and the URL. Without this check it would become a folder that is named like its scheme.
pub(crate) fn url_scheme(path: &Path) -> Option<(&str, &str)> {
    let url = path.to_str()?;
    let (scheme, _) = url.split_once("://")?;
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (!scheme.is_empty() && scheme.chars().all(is_scheme)).then_some((scheme, url))
}

/// Returns a path or URL for messages: a URL without credentials and options.
pub(crate) fn describe(path: &Path) -> String {
    let Some((scheme, url)) = url_scheme(path) else { return path.display().to_string() };
    let rest = url.get(scheme.len() + 3..).unwrap_or_default();
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    format!("{scheme}://{}", rest.split_once('?').map_or(rest, |(rest, _)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_no_credentials() {
        for (path, shown) in [
            ("postgres://user:secret@a:5432,b/db?sslmode=require", "postgres://a:5432,b/db"),
            ("postgres://user:se/c?r@t@host/db", "postgres://host/db"),
            ("postgres://host/db?password=secret", "postgres://host/db"),
            ("a/folder/archive.db", "a/folder/archive.db"),
        ] {
            assert_eq!(describe(Path::new(path)), shown);
        }
    }
}

//! The setting of an object store: where it is, and which packs go to it.

use std::fmt;
use std::path::Path;

use crate::location;

/// An object store for the large packs of an archive in PostgreSQL (cargo feature `objects`).
#[derive(Clone)]
pub struct ObjectStorage {
    /// The URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///folder`.
    pub url: String,
    /// Packs of at least this many bytes, compressed, are stored as objects; smaller ones in the database.
    pub min_bytes: u64,
    /// Names and values of variables with keys, region and endpoint of the store, such as `AWS_REGION`. Unknown names
    /// are ignored.
    pub variables: Vec<(String, String)>,
}

impl ObjectStorage {
    /// The default of `min_bytes`. A put costs about as much as storing this many bytes in a managed database for a
    /// month.
    pub const DEFAULT_MIN_BYTES: u64 = 64_000;

    /// Returns the settings of a store at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), min_bytes: Self::DEFAULT_MIN_BYTES, variables: Vec::new() }
    }

    /// Returns the name of the store for messages: its URL without credentials and options.
    pub fn location(&self) -> String {
        location::describe(Path::new(&self.url))
    }
}

impl fmt::Debug for ObjectStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStorage")
            .field("location", &self.location())
            .field("min_bytes", &self.min_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_printed() {
        let variables = vec![("AWS_SECRET_ACCESS_KEY".to_owned(), "secret".to_owned())];
        let storage = ObjectStorage { variables, ..ObjectStorage::new("s3://bucket/prefix?sig=secret") };
        let printed = format!("{storage:?}");
        assert!(!printed.contains("secret") && printed.contains("s3://bucket/prefix"), "{printed}");
    }
}

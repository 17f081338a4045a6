//! The visible part of an object whose text may be cut.

/// The visible keys of an object and the first bytes of their values.
pub(crate) struct ObjectPreview {
    fields: Vec<(String, Vec<u8>)>,
}

impl ObjectPreview {
    pub(crate) fn new(fields: Vec<(String, Vec<u8>)>) -> Self {
        Self { fields }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.fields.iter().any(|(name, _)| name == key)
    }

    /// Returns the value of a short string field.
    pub(crate) fn text(&self, key: &str) -> &str {
        let value = self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_slice());
        let text = value.and_then(|value| value.strip_prefix(b"\"")?.strip_suffix(b"\""));
        text.and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default()
    }
}

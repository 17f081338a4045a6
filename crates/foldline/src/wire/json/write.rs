//! Writes small pieces of JSON: an object with changed fields, a quoted text.
//!
//! Only for parts of streams and answers. A request body is never rewritten; it is spliced.

use crate::wire::json::scan::JsonObject;

/// A change to a field.
#[derive(Clone, Debug)]
pub(crate) enum FieldChange {
    /// Sets the value to this JSON text; adds the field if it is missing.
    Set(String),
    /// Removes the field.
    Remove,
}

/// Returns an object as JSON text with some fields changed and all others unchanged.
pub(crate) fn with_changed_fields(object: &JsonObject<'_>, changes: &[(&str, FieldChange)]) -> String {
    let mut json = String::with_capacity(object.value.raw().len() + 32);
    json.push('{');
    let mut write = |key: &str, value: &str| {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&quoted(key));
        json.push(':');
        json.push_str(value);
    };
    for field in object.fields() {
        match changes.iter().find(|(key, _)| *key == field.key) {
            Some((key, FieldChange::Set(value))) => write(key, value),
            Some((_, FieldChange::Remove)) => {}
            None => write(&field.key, field.value.raw()),
        }
    }
    for (key, change) in changes.iter().filter(|(key, _)| object.get(key).is_none()) {
        if let FieldChange::Set(value) = change {
            write(key, value);
        }
    }
    json.push('}');
    json
}

/// Returns a JSON array of JSON texts.
pub(crate) fn json_array<'a>(elements: impl IntoIterator<Item = &'a str>) -> String {
    let mut json = String::from("[");
    for element in elements {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(element);
    }
    json.push(']');
    json
}

/// Returns a text as a JSON string, including quotes.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("serializing a string cannot fail")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::scan;

    #[test]
    fn fields_are_set_removed_and_added_others_are_kept() {
        let document = scan::parse_document(r#"{ "a": 1.50, "b":"\u00e9" , "c":[ ], "a":2}"#).unwrap();
        let changes = [
            ("b", FieldChange::Remove),
            ("c", FieldChange::Set("{}".into())),
            ("d\"", FieldChange::Set(quoted("x\n"))),
        ];
        assert_eq!(with_changed_fields(&document.object(), &changes), r#"{"a":1.50,"c":{},"a":2,"d\"":"x\n"}"#);
        let empty = scan::parse_document("{}").unwrap();
        assert_eq!(with_changed_fields(&empty.object(), &[("a", FieldChange::Remove)]), "{}");
    }
}

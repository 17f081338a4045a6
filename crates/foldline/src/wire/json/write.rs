//! Writes small pieces of JSON: an object with some of its fields changed, a text in quotes.
//!
//! Only for what streams and answers are put together from. A request body is never written anew;
//! it is spliced.

use crate::wire::json::scan::JsonObject;

/// What becomes of a field.
#[derive(Clone, Debug)]
pub(crate) enum FieldChange {
    /// It gets this JSON text for its value, and is added when it is not there.
    Set(String),
    /// It goes.
    Remove,
}

/// An object as JSON text with some fields changed and all others as they were.
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

/// A list of JSON texts.
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

/// A text as a JSON string, quotes and all.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
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

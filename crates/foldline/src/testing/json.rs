//! JSON with the formatting quirks of real clients.

use std::borrow::Cow;

pub(crate) type JsonFields = Vec<(&'static str, SampleJson)>;

pub(crate) enum SampleJson {
    /// Text that is already JSON.
    Raw(String),
    Text(Cow<'static, str>),
    List(Vec<SampleJson>),
    Object(JsonFields),
}

impl SampleJson {
    pub(crate) fn raw(text: &str) -> Self {
        SampleJson::Raw(text.to_owned())
    }

    pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        SampleJson::Text(text.into())
    }
}

/// Source of formatting quirks. Zero gives plain JSON, so that shrinking leads to it.
pub(crate) struct JsonQuirks(pub(crate) u64);

impl JsonQuirks {
    /// Returns a number below `among`, most often 0 (a xorshift step is random enough here).
    fn choose(&mut self, among: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % (among * 4) % (among + 2) % among
    }

    pub(crate) fn write(&mut self, json: &SampleJson) -> String {
        let mut out = String::new();
        self.write_value(json, &mut out);
        out
    }

    fn write_whitespace(&mut self, out: &mut String) {
        out.push_str(["", " ", "\n\t", "  \r\n"][self.choose(4) as usize]);
    }

    fn write_value(&mut self, json: &SampleJson, out: &mut String) {
        match json {
            SampleJson::Raw(text) => out.push_str(text),
            SampleJson::Text(text) => self.write_string(text, out),
            SampleJson::List(list) => self.write_group(['[', ']'], list.iter().map(|value| (None, value)), out),
            SampleJson::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().map(|(key, value)| (Some(*key), value)).collect();
                let unknown = SampleJson::raw("[{\"x\":-0.10e+2}]");
                if self.choose(6) == 5 {
                    fields.push((Some("x_unknown"), &unknown));
                }
                if self.choose(4) == 3 {
                    fields.reverse();
                }
                self.write_group(['{', '}'], fields.into_iter(), out);
            }
        }
    }

    fn write_group<'j>(
        &mut self,
        brackets: [char; 2],
        elements: impl Iterator<Item = (Option<&'static str>, &'j SampleJson)>,
        out: &mut String,
    ) {
        out.push(brackets[0]);
        for (at, (key, value)) in elements.enumerate() {
            if at > 0 {
                out.push(',');
            }
            self.write_whitespace(out);
            if let Some(key) = key {
                self.write_string(key, out);
                self.write_whitespace(out);
                out.push(':');
                self.write_whitespace(out);
            }
            self.write_value(value, out);
            self.write_whitespace(out);
        }
        out.push(brackets[1]);
    }

    fn write_string(&mut self, text: &str, out: &mut String) {
        let plain = serde_json::to_string(text).expect("a string has a JSON form");
        match self.choose(5) {
            // Escapes as Python writes them.
            3 => {
                for character in plain.chars() {
                    if character.is_ascii() {
                        out.push(character);
                    } else {
                        let mut units = [0; 2];
                        for unit in character.encode_utf16(&mut units) {
                            out.push_str(&format!("\\u{unit:04x}"));
                        }
                    }
                }
            }
            // Escapes as PHP writes them.
            4 => out.push_str(&plain.replace('/', "\\/")),
            _ => out.push_str(&plain),
        }
    }
}

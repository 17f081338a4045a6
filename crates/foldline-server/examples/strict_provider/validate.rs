//! What a real provider would refuse: broken laws, thoughts that were altered or whose past was, prompts
//! that do not fit.

use std::collections::{HashMap, HashSet};

use foldline::laws;
use foldline::laws::LawProfile;
use foldline::wire::{Format, Request};
use foldline::{Meter, ModelTable};
use serde_json::{Value, json};

use crate::responses::ScriptedAnswer;

/// What the provider remembers in order to be strict.
pub(crate) struct RequestValidator {
    window: u64,
    /// Seals that were given out.
    issued_signatures: HashSet<String>,
    meters: HashMap<String, Meter>,
}

/// Why a request is refused.
pub(crate) struct RejectedRequest {
    pub(crate) message: String,
    /// The laws that it breaks; none when it only does not fit.
    pub(crate) violations: Vec<String>,
    pub(crate) is_overflow: bool,
    pub(crate) is_stream: bool,
    pub(crate) tokens: u64,
}

impl RejectedRequest {
    pub(crate) fn unreadable(why: &str) -> Self {
        Self { message: why.into(), violations: vec![why.into()], is_overflow: false, is_stream: false, tokens: 0 }
    }

    pub(crate) fn body(&self, format: Format) -> Value {
        let code = self.is_overflow.then_some("context_length_exceeded");
        match format {
            Format::Anthropic => {
                json!({ "type": "error", "error": { "type": "invalid_request_error", "message": self.message } })
            }
            Format::OpenAiChat | Format::OpenAiResponses => {
                json!({ "error": { "message": self.message, "type": "invalid_request_error", "param": null, "code": code } })
            }
        }
    }
}

impl RequestValidator {
    pub(crate) fn new(window: u64) -> Self {
        Self { window, issued_signatures: HashSet::new(), meters: HashMap::new() }
    }

    /// How many tokens a request has, unless it is refused.
    pub(crate) fn check(&mut self, request: &Request<'_>, body: &[u8]) -> Result<u64, RejectedRequest> {
        let streams = request.is_streaming();
        let profile = LawProfile::for_request(request);
        let mut broken: Vec<String> = laws::check(request, &profile).iter().map(ToString::to_string).collect();
        broken.extend(self.altered_reasoning(request.format(), &profile, body));
        let model = request.conversation().model.clone().unwrap_or_default();
        let meter = self.meters.entry(model.to_string());
        let meter = meter.or_insert_with(|| Meter::for_model(ModelTable::builtin(), Some(&model)));
        let tokens = meter.conversation(request.conversation());
        if !broken.is_empty() {
            let message = broken.join("; ");
            return Err(RejectedRequest {
                message,
                violations: broken,
                is_overflow: false,
                is_stream: streams,
                tokens,
            });
        }
        if tokens > self.window {
            let window = self.window;
            let message = match request.format() {
                Format::Anthropic => format!("prompt is too long: {tokens} tokens > {window} maximum"),
                Format::OpenAiChat => format!(
                    "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."
                ),
                Format::OpenAiResponses => "Your input exceeds the context window of this model.".to_owned(),
            };
            return Err(RejectedRequest {
                message,
                violations: Vec::new(),
                is_overflow: true,
                is_stream: streams,
                tokens,
            });
        }
        Ok(tokens)
    }

    /// Seals the thought of an answer, where the dialect has seals.
    pub(crate) fn sign(&mut self, request: &Request<'_>, body: &[u8], answer: &mut ScriptedAnswer) {
        let Some(thought) = &answer.reasoning else { return };
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
        let past = match LawProfile::for_request(request).signs_history() {
            true => history_hash(&body, usize::MAX, 0),
            false => String::new(),
        };
        answer.signature = reasoning_signature(thought, &past);
        self.issued_signatures.insert(answer.signature.clone());
    }

    /// Thoughts in a request that are not as they were given out, or, where history is signed, stand behind
    /// another history.
    fn altered_reasoning(&self, format: Format, profile: &LawProfile, body: &[u8]) -> Vec<String> {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
        let mut altered = Vec::new();
        match format {
            Format::OpenAiChat => {}
            Format::OpenAiResponses => {
                for (at, item) in as_list(&body["input"]).iter().enumerate().filter(|(_, it)| it["type"] == "reasoning")
                {
                    let sealed =
                        item["encrypted_content"].as_str().is_some_and(|it| self.issued_signatures.contains(it));
                    if !sealed {
                        altered.push(format!("input[{at}]: the encrypted content could not be verified"));
                    }
                }
            }
            Format::Anthropic => {
                for (at, message) in as_list(&body["messages"]).iter().enumerate() {
                    let thoughts = as_list(&message["content"]).iter().enumerate();
                    for (inner, block) in thoughts.filter(|(_, it)| it["type"] == "thinking") {
                        let thought = block["thinking"].as_str().unwrap_or_default();
                        let past = if profile.signs_history() { history_hash(&body, at, inner) } else { String::new() };
                        if block["signature"] != reasoning_signature(thought, &past) {
                            altered.push(format!(
                                "messages.{at}.content.{inner}: `thinking` blocks in the history were modified, or follow a history that was"
                            ));
                        }
                    }
                }
            }
        }
        altered
    }
}

fn reasoning_signature(thought: &str, past: &str) -> String {
    let hash = blake3::hash(format!("{}|{thought}|{past}", thought.len()).as_bytes());
    format!("sealed-{}", hash.to_hex())
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The hash of everything in front of a block: system, tools, messages. Thoughts are not part of it, since
/// they may be removed, nor are marks of the cache; a text alone is a list of one block.
fn history_hash(body: &Value, message: usize, block: usize) -> String {
    let mut hash = blake3::Hasher::new();
    let mut put = |value: &Value| {
        hash.update(without_cache_control(value).to_string().as_bytes());
    };
    put(&body["system"]);
    put(&body["tools"]);
    for (at, it) in as_list(&body["messages"]).iter().enumerate().take(message.saturating_add(1)) {
        let here = at == message;
        if here && block == 0 {
            break;
        }
        put(&it["role"]);
        match &it["content"] {
            Value::String(text) => put(&json!({ "type": "text", "text": text })),
            content => {
                let before = if here { block } else { usize::MAX };
                as_list(content).iter().take(before).filter(|it| it["type"] != "thinking").for_each(&mut put);
            }
        }
    }
    hash.finalize().to_hex().to_string()
}

fn without_cache_control(value: &Value) -> Value {
    let mut value = value.clone();
    match &mut value {
        Value::Object(fields) => {
            fields.remove("cache_control");
            fields.values_mut().for_each(|it| *it = without_cache_control(it));
        }
        Value::Array(items) => items.iter_mut().for_each(|it| *it = without_cache_control(it)),
        _ => {}
    }
    value
}

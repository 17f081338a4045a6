//! The checks of a real provider: violated laws, reasoning that was altered or whose history was, prompts that do not
//! fit.

use std::collections::{HashMap, HashSet};

use foldline::laws;
use foldline::laws::LawProfile;
use foldline::wire::{Format, Request};
use foldline::{Meter, ModelTable};
use serde_json::{Value, json};

use crate::responses::ScriptedAnswer;

/// The state that the checks need.
pub(crate) struct RequestValidator {
    window: u64,
    /// Signatures that were issued.
    issued_signatures: HashSet<String>,
    meters: HashMap<String, Meter>,
}

/// A refusal, with its reason.
pub(crate) struct RejectedRequest {
    pub(crate) message: String,
    /// Violated laws; none if the request only does not fit.
    pub(crate) violations: Vec<String>,
    pub(crate) is_overflow: bool,
    pub(crate) is_stream: bool,
    pub(crate) tokens: u64,
}

impl RejectedRequest {
    pub(crate) fn unreadable(reason: &str) -> Self {
        Self {
            message: reason.into(),
            violations: vec![reason.into()],
            is_overflow: false,
            is_stream: false,
            tokens: 0,
        }
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
            Format::Gemini => {
                json!({ "error": { "code": 400, "message": self.message, "status": "INVALID_ARGUMENT" } })
            }
            other => panic!("no script for {other:?}"),
        }
    }
}

impl RequestValidator {
    pub(crate) fn new(window: u64) -> Self {
        Self { window, issued_signatures: HashSet::new(), meters: HashMap::new() }
    }

    /// Returns the tokens of a request, unless it is refused.
    pub(crate) fn check(&mut self, request: &Request<'_>, body: &[u8]) -> Result<u64, RejectedRequest> {
        let is_stream = request.is_streaming();
        let profile = LawProfile::for_request(request);
        let mut violations: Vec<String> = laws::check(request, &profile).iter().map(ToString::to_string).collect();
        violations.extend(self.altered_reasoning(request.format(), &profile, body));
        let model = request.conversation().model.clone().unwrap_or_default();
        let meter = self.meters.entry(model.to_string());
        let meter = meter.or_insert_with(|| Meter::for_model(ModelTable::builtin(), Some(&model)));
        let tokens = meter.conversation(request.conversation());
        if !violations.is_empty() {
            let message = violations.join("; ");
            return Err(RejectedRequest { message, violations, is_overflow: false, is_stream, tokens });
        }
        if tokens > self.window {
            let window = self.window;
            let message = match request.format() {
                Format::Anthropic => format!("prompt is too long: {tokens} tokens > {window} maximum"),
                Format::OpenAiChat => format!(
                    "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."
                ),
                Format::OpenAiResponses => "Your input exceeds the context window of this model.".to_owned(),
                Format::Gemini => {
                    format!("The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window}).")
                }
                other => panic!("no script for {other:?}"),
            };
            return Err(RejectedRequest { message, violations: Vec::new(), is_overflow: true, is_stream, tokens });
        }
        Ok(tokens)
    }

    /// Signs the reasoning of a response, or its first call, if the dialect has signatures.
    pub(crate) fn sign(&mut self, request: &Request<'_>, body: &[u8], answer: &mut ScriptedAnswer) {
        if request.format() == Format::Gemini {
            let first = answer.calls.first();
            answer.signature = first.map(|call| call_signature(&call.name, &call.arguments)).unwrap_or_default();
            return;
        }
        let Some(reasoning) = &answer.reasoning else { return };
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
        let history = match LawProfile::for_request(request).signs_history() {
            true => history_hash(&body, usize::MAX, 0),
            false => String::new(),
        };
        answer.signature = reasoning_signature(reasoning, &history);
        self.issued_signatures.insert(answer.signature.clone());
    }

    /// Returns a message for each reasoning block or signed call that differs from the issued one or, if history is
    /// signed, follows a different history.
    fn altered_reasoning(&self, format: Format, profile: &LawProfile, body: &[u8]) -> Vec<String> {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
        let mut altered = Vec::new();
        match format {
            Format::OpenAiChat => {}
            Format::OpenAiResponses => {
                for (at, item) in
                    as_list(&body["input"]).iter().enumerate().filter(|(_, item)| item["type"] == "reasoning")
                {
                    let is_issued = item["encrypted_content"]
                        .as_str()
                        .is_some_and(|signature| self.issued_signatures.contains(signature));
                    if !is_issued {
                        altered.push(format!("input[{at}]: the encrypted content could not be verified"));
                    }
                }
            }
            Format::Anthropic => {
                for (at, message) in as_list(&body["messages"]).iter().enumerate() {
                    let blocks = as_list(&message["content"]).iter().enumerate();
                    for (inner, block) in blocks.filter(|(_, block)| block["type"] == "thinking") {
                        let reasoning = block["thinking"].as_str().unwrap_or_default();
                        let history =
                            if profile.signs_history() { history_hash(&body, at, inner) } else { String::new() };
                        if block["signature"] != reasoning_signature(reasoning, &history) {
                            altered.push(format!(
                                "messages.{at}.content.{inner}: `thinking` blocks in the history were modified, or follow a history that was"
                            ));
                        }
                    }
                }
            }
            Format::Gemini => {
                for (at, content) in as_list(&body["contents"]).iter().enumerate() {
                    let parts = as_list(&content["parts"]).iter().enumerate();
                    for (inner, part) in parts.filter(|(_, part)| part.get("thoughtSignature").is_some()) {
                        let call = &part["functionCall"];
                        let name = call["name"].as_str().unwrap_or_default();
                        if part["thoughtSignature"] != call_signature(name, &call["args"]) {
                            altered.push(format!("contents[{at}].parts[{inner}]: Corrupted thought signature."));
                        }
                    }
                }
            }
            other => panic!("no script for {other:?}"),
        }
        altered
    }
}

fn reasoning_signature(reasoning: &str, history: &str) -> String {
    let hash = blake3::hash(format!("{}|{reasoning}|{history}", reasoning.len()).as_bytes());
    format!("sealed-{}", hash.to_hex())
}

/// Returns the signature of a call. Its id is not part of it: clients replace ids.
fn call_signature(name: &str, arguments: &Value) -> String {
    reasoning_signature(&format!("{name} {arguments}"), "")
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Hashes everything before a block: system, tools, messages. Reasoning is not part of it, since it may be removed, nor
/// are cache marks; a string counts as a list of one block.
fn history_hash(body: &Value, message: usize, block: usize) -> String {
    let mut hash = blake3::Hasher::new();
    let mut update = |value: &Value| {
        hash.update(without_cache_control(value).to_string().as_bytes());
    };
    update(&body["system"]);
    update(&body["tools"]);
    for (at, entry) in as_list(&body["messages"]).iter().enumerate().take(message.saturating_add(1)) {
        let is_last = at == message;
        if is_last && block == 0 {
            break;
        }
        update(&entry["role"]);
        match &entry["content"] {
            Value::String(text) => update(&json!({ "type": "text", "text": text })),
            content => {
                let before = if is_last { block } else { usize::MAX };
                let blocks = as_list(content).iter().take(before);
                blocks.filter(|block| block["type"] != "thinking").for_each(&mut update);
            }
        }
    }
    hash.finalize().to_hex().to_string()
}

/// Returns a copy without cache marks.
pub(crate) fn without_cache_control(value: &Value) -> Value {
    let mut value = value.clone();
    match &mut value {
        Value::Object(fields) => {
            fields.remove("cache_control");
            fields.values_mut().for_each(|field| *field = without_cache_control(field));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_cache_control(item)),
        _ => {}
    }
    value
}

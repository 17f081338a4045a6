//! Error messages of every known server, and texts that only resemble them.

use crate::wire::response::overflow::{ContextOverflow, LearnedLimit, LimitScope, OverflowEvidence, RequestRejection};

fn classify(status: u16, message: &str) -> RequestRejection {
    let body = serde_json::json!({ "error": { "message": message, "type": "invalid_request_error" } });
    RequestRejection::from_body(status, body.to_string().as_bytes())
}

/// Formats an overflow in one line: limit, scope, sent, output.
fn describe(rejection: RequestRejection) -> String {
    let RequestRejection::Overflow(overflow) = rejection else { return format!("{rejection:?}") };
    let mut line = format!("{:?}", overflow.evidence);
    if let Some(limit) = overflow.limit_tokens {
        line += &format!(" limit {limit} {:?}", overflow.scope);
    }
    if let Some(sent) = overflow.prompt_tokens {
        line += &format!(" sent {sent:?}");
    }
    if let Some(output) = overflow.output_tokens {
        line += &format!(" output {output}");
    }
    line
}

#[test]
fn overflow_errors_of_every_provider_are_detected() {
    for (message, expected) in [
        // OpenAI and Azure
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130,204 tokens. Please reduce the length of the messages.",
            "Message limit 128000 Window sent Exact(130204)",
        ),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
            "Message limit 8192 Window sent Exact(8000) output 1000",
        ),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (7000 in the messages, 500 in the functions, and 1500 in the completion).",
            "Message limit 8192 Window sent Exact(7500) output 1500",
        ),
        (
            "This model's maximum context length is 4097 tokens, however you requested 5000 tokens (4500 in your prompt; 500 for the completion). Please reduce your prompt; or completion length.",
            "Message limit 4097 Window sent Exact(4500) output 500",
        ),
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300001 tokens. Please reduce the length of the messages.",
            "Message limit 272000 Input sent Exact(300001)",
        ),
        ("Your input exceeds the context window of this model. Please adjust your input and try again.", "Pattern"),
        // Anthropic
        ("prompt is too long: 215000 tokens > 200000 maximum", "Message limit 200000 Window sent Exact(215000)"),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
            "Message limit 200000 Window sent Exact(190000) output 20000",
        ),
        // Bedrock
        ("Input is too long for requested model.", "Pattern"),
        (
            "The model returned the following errors: prompt is too long: 201000 tokens > 200000 maximum",
            "Message limit 200000 Window sent Exact(201000)",
        ),
        ("Too many input tokens. Max input tokens: 300000, request input token count: 310000", "Pattern"),
        ("The number of input tokens exceeds maximum length", "Pattern"),
        // Gemini
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
            "Message limit 1048575 Input sent Exact(1200000)",
        ),
        // Mistral
        (
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            "Message limit 32768 Window sent Exact(40000)",
        ),
        // xAI
        (
            "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
            "Message limit 131072 Input sent Exact(140000)",
        ),
        // Groq
        ("Please reduce the length of the messages or completion.", "Pattern"),
        // Cerebras
        (
            "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
            "Message limit 8192 Window sent Exact(9000)",
        ),
        // OpenRouter
        (
            "This endpoint's maximum context length is 163840 tokens. However, you requested about 170000 tokens (150000 of text input, 10000 of tool input, 10000 in the output). Please reduce the length of either one.",
            "Message limit 163840 Window sent Estimated(160000) output 10000",
        ),
        // TGI and Together
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
            "Message limit 4096 Window sent Exact(4000) output 512",
        ),
        ("`inputs` must have less than 4095 tokens. Given: 5000", "Message limit 4095 Input sent Exact(5000)"),
        // Fireworks
        ("The prompt is too long: 140000, model maximum context length: 131071", "Message limit 131071 Window"),
        // Copilot
        ("prompt token count of 130000 exceeds the limit of 128000", "Message limit 128000 Input sent Exact(130000)"),
        // vLLM
        (
            "This model's maximum context length is 4096 tokens. However, you requested 100 output tokens and your prompt contains 4050 input tokens, for a total of 4150 tokens.",
            "Message limit 4096 Window sent Exact(4050) output 100",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 0 output tokens and your prompt contains at least 4097 input tokens, for a total of at least 4097 tokens.",
            "Message limit 4096 Window sent AtLeast(4097) output 0",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 16 output tokens and your prompt contains 90000 characters (more than 65536 characters, which is the upper bound for 4096 input tokens).",
            "Message limit 4096 Window output 16",
        ),
        (
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
            "Message limit 4096 Window sent Exact(5000)",
        ),
        (
            "Input length (5000) exceeds model's maximum context length (4096).",
            "Message limit 4096 Window sent Exact(5000)",
        ),
        // llama.cpp, as text only
        (
            "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
            "Message limit 8192 Window sent Exact(9000)",
        ),
        (
            "input (9000 tokens) is larger than the max context size (8192 tokens). skipping",
            "Message limit 8192 Window sent Exact(9000)",
        ),
        // Ollama
        ("the prompt is longer than the context length currently available to the model", "Pattern"),
        // LM Studio
        (
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 9000>= n_ctx: 4096).",
            "Message limit 4096 Window sent Exact(9000)",
        ),
        (
            "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
            "Message limit 4096 Window sent Exact(9000)",
        ),
        ("Context size has been exceeded.", "Pattern"),
        // SGLang
        (
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
            "Message limit 8192 Window sent Exact(9000)",
        ),
        (
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000 tokens: 8500 tokens from the input messages and 500 tokens for the completion.",
            "Message limit 8192 Window sent Exact(8500) output 500",
        ),
        (
            "Input length (9000 tokens) exceeds the maximum allowed length (7000 tokens). Use a shorter input or enable --allow-auto-truncate.",
            "Message limit 7000 Window sent Exact(9000)",
        ),
        // Kimi
        (
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
            "Message limit 262144 Window sent Exact(270000)",
        ),
        ("Your request exceeded model token limit: 8192", "Message limit 8192 Window"),
        ("model max length exceeded, max length:131072", "Message limit 131072 Window"),
        // GLM
        ("Prompt exceeds max length", "Pattern"),
        ("tokens in request more than max tokens allowed", "Pattern"),
        // MiniMax: the number is an error code
        ("invalid params, context window exceeds limit (2013)", "Pattern"),
        // DashScope
        ("Range of input length should be [1, 129024]", "Message limit 129024 Input"),
        // Novita, DeepInfra, Cloudflare
        ("input is longer than the model's context length", "Pattern"),
        ("requested input length 9000 exceeds maximum input length 8192", "Message limit 8192 Input sent Exact(9000)"),
        ("This request exceeded this model context window limit", "Pattern"),
        // mlx and others
        (
            "prompt has 9000 tokens, but the configured context size is 8192 tokens",
            "Message limit 8192 Window sent Exact(9000)",
        ),
        (
            "This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens.",
            "Message limit 8192 Window",
        ),
        ("context length exceeded", "Pattern"),
        // Gemini without the size of the prompt
        ("The input token count exceeds the maximum number of tokens allowed 1048576.", "Message limit 1048576 Input"),
        ("input token count exceeds the maximum number of input tokens", "Pattern"),
        // Bedrock
        ("too many total text bytes: 27000000 > 25000000", "Pattern"),
        ("Malformed input request: expected maxLength: 100000, actual: 120000, please reformat your input.", "Pattern"),
        ("prompt: length: 1..200000", "Pattern"),
        // Bedrock Mantle
        ("prompt tokens (215000) exceed model maximum (200000)", "Message limit 200000 Window sent Exact(215000)"),
        ("Input tokens exceed customer model maximum", "Pattern"),
        // vLLM behind other servers
        (
            "The engine prompt length 227861 exceeds the max_model_len 131072. Please reduce prompt.",
            "Message limit 131072 Window sent Exact(227861)",
        ),
        ("input and output tokens exceed your context limit", "Pattern"),
        // llama.cpp before it reported counts, and between
        (
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "Pattern",
        ),
        (
            "the request exceeds the available context size. try increasing the context size or enable context shift: n_ctx = 32768, n_keep = 0, n_prompt_tokens = 47676",
            "Message limit 32768 Window sent Exact(47676)",
        ),
        // llama-cpp-python
        ("Requested tokens (9437) exceed context window of 8192", "Message limit 8192 Window sent Exact(9437)"),
        // Ollama
        ("the input length exceeds the context length", "Pattern"),
        ("input length exceeds context window", "Pattern"),
        // Servers that reject without a code and not in English
        ("Prompt 超长", "Pattern"),
        ("输入长度超过最大长度", "Pattern"),
        ("token数量超过上限。对话历史+问题的字数太多，需要精简输入", "Pattern"),
        ("Token limit exceeded", "Pattern"),
    ] {
        assert_eq!(describe(classify(400, message)), expected, "{message}");
    }
}

#[test]
fn lookalike_errors_are_not_overflows() {
    for message in [
        "Request too large for model `llama-3.3-70b` in organization `org` on tokens per minute (TPM): Limit 12000, Requested 15000, please reduce your message size and try again.",
        "Rate limit reached: too many tokens",
        "Too many requests",
        "Throttling: Too many tokens, please wait before trying again.",
        "You exceeded your current quota (insufficient_quota): context length exceeded",
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
        "max_tokens must be less than or equal to 8192",
        "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens",
        "The maximum tokens you requested exceeds the model limit of 8192",
        "Invalid value: 'banana'",
        "tools.0.name: expected maxLength: 64, actual: 70",
        "当前 token 数量超过限制：每分钟 token 数，请稍后再试",
        "",
    ] {
        assert_eq!(classify(400, message), RequestRejection::Other, "{message}");
    }
    for status in [429, 500, 503, 529] {
        assert_eq!(classify(status, "prompt is too long: 215000 tokens > 200000 maximum"), RequestRejection::Other);
    }
    let excluded = br#"{"error":{"message":"Invalid 'input': string too long. too many tokens","code":"string_above_max_length"}}"#;
    assert_eq!(RequestRejection::from_body(400, excluded), RequestRejection::Other);
    let throttled = br#"{"__type":"ThrottlingException","message":"Too many tokens"}"#;
    assert_eq!(RequestRejection::from_body(400, throttled), RequestRejection::Other);
}

/// Some local servers report an overflow as a failure of their own. Only their whole messages count.
#[test]
fn server_error_with_a_known_message_is_an_overflow() {
    for (message, expected) in [
        (
            "the request exceeds the available context size. Try increasing context size or enable context shift",
            "Pattern",
        ),
        ("Context size has been exceeded.", "Pattern"),
        ("Requested tokens (9437) exceed context window of 8192", "Message limit 8192 Window sent Exact(9437)"),
        ("tool 'Context size has been exceeded.' failed", "Other"),
        ("too many tokens", "Other"),
    ] {
        assert_eq!(describe(classify(500, message)), expected, "{message}");
    }
}

#[test]
fn payload_size_error_is_not_an_overflow() {
    for (status, body) in [
        (413, r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#),
        (
            400,
            r#"{"error":{"code":400,"message":"Request payload size exceeds the limit: 20971520 bytes.","status":"INVALID_ARGUMENT"}}"#,
        ),
        (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
        (413, r#"{"message":"no idea"}"#),
    ] {
        assert_eq!(RequestRejection::from_body(status, body.as_bytes()), RequestRejection::PayloadTooLarge, "{body}");
    }
}

#[test]
fn error_code_takes_precedence_and_numbers_are_kept() {
    for (body, expected) in [
        (r#"{"error":{"message":"no","type":"invalid_request_error","code":"context_length_exceeded"}}"#, "Code"),
        (r#"{"error":{"message":"no","code":"model_max_prompt_tokens_exceeded"}}"#, "Code"),
        (r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#, "Code"),
        (
            r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"m","n_prompt_tokens":9000,"n_ctx":8192}}"#,
            "Code limit 8192 Window sent Exact(9000)",
        ),
        (
            r#"{"error":{"code":"context_length_exceeded","message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 272100 tokens."}}"#,
            "Code limit 272000 Input sent Exact(272100)",
        ),
    ] {
        assert_eq!(describe(RequestRejection::from_body(400, body.as_bytes())), expected, "{body}");
    }
}

#[test]
fn message_is_found_in_every_error_shape() {
    for body in [
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 215000 tokens \\u003e 200000 maximum\"}}"}}}"#,
        r#"{"error":"prompt is too long: 215000 tokens > 200000 maximum"}"#,
        r#"{"object":"error","message":"prompt is too long: 215000 tokens > 200000 maximum","code":400}"#,
        r#"{"detail":"prompt is too long: 215000 tokens > 200000 maximum"}"#,
        r#"{"message":"prompt is too long: 215000 tokens > 200000 maximum"}"#,
        "prompt is too long: 215000 tokens > 200000 maximum",
    ] {
        let line = describe(RequestRejection::from_body(400, body.as_bytes()));
        assert_eq!(line, "Message limit 200000 Window sent Exact(215000)", "{body}");
    }
}

/// A client can put any text into a value that the server echoes.
#[test]
fn sentence_inside_a_longer_text_is_not_strict() {
    const ECHO: &str =
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.";
    for text in [
        format!("Invalid value: '{ECHO}'. Supported values are: 'none', 'auto', and 'required'."),
        format!("Invalid value: {ECHO}"),
        format!("{ECHO} is not one of ['none', 'auto']"),
        format!("'{ECHO}' is not of type 'object'"),
        format!("tool {ECHO} not found"),
        format!("{ECHO}\n{ECHO}"),
        format!("[{{'loc': ('body', 'tool_choice'), 'input': '{ECHO}'}}]"),
        "the prompt is too long: 9000 tokens > 8192 maximum' is not a tool".to_owned(),
    ] {
        let line = describe(classify(400, &text));
        assert!(line.starts_with("Numbers limit 8192"), "{text}: {line}");
    }
    let listed = serde_json::json!({ "detail": [{ "type": "literal_error", "msg": "no", "input": ECHO }] }).to_string();
    assert!(describe(RequestRejection::from_body(422, listed.as_bytes())).starts_with("Numbers"), "{listed}");
}

#[test]
fn empty_400_or_413_is_an_unnumbered_overflow() {
    assert_eq!(describe(RequestRejection::from_body(400, b"")), "EmptyBody");
    assert_eq!(describe(RequestRejection::from_body(413, b" \n")), "EmptyBody");
    assert_eq!(RequestRejection::from_body(401, b""), RequestRejection::Other);
    assert_eq!(RequestRejection::from_body(500, b""), RequestRejection::Other);
}

#[test]
fn only_a_plausible_limit_is_learned() {
    let lesson = |message: &str| match classify(400, message) {
        RequestRejection::Overflow(overflow) => overflow.learned_limit(77),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        lesson("prompt is too long: 215000 tokens > 200000 maximum"),
        LearnedLimit::Stated { tokens: 200_000, bounds: LimitScope::Window }
    );
    assert_eq!(
        lesson("Range of input length should be [1, 129024]"),
        LearnedLimit::Stated { tokens: 129_024, bounds: LimitScope::Input }
    );
    assert_eq!(
        lesson("exceed context limit: 190000 + 20000 > 200000"),
        LearnedLimit::Stated { tokens: 200_000, bounds: LimitScope::Window },
        "the prompt alone would fit"
    );
    assert_eq!(
        lesson("context window exceeds limit (2013)"),
        LearnedLimit::BelowCount(77),
        "an error code is not a limit"
    );
    assert_eq!(
        lesson("prompt is too long: 300 tokens > 200 maximum"),
        LearnedLimit::BelowCount(77),
        "too small for a window"
    );
    assert_eq!(
        lesson("prompt is too long: 99000000 tokens > 88000000 maximum"),
        LearnedLimit::BelowCount(77),
        "too large"
    );
    assert_eq!(
        lesson("prompt is too long: 1000 tokens > 200000 maximum"),
        LearnedLimit::BelowCount(77),
        "it would have fit"
    );
    assert_eq!(
        lesson("prompt is too long: 215000 tokens > 99999999999999999999999 maximum"),
        LearnedLimit::BelowCount(77)
    );
    assert_eq!(
        ContextOverflow::without_numbers(OverflowEvidence::EmptyBody).learned_limit(77),
        LearnedLimit::BelowCount(77)
    );
}

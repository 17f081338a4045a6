//! For each law, a request that obeys it and one that breaks only this law.

use std::collections::BTreeSet;

use super::super::{Law, LawProfile, LawTopic, ServerKind, check};
use crate::wire::{Format, Request};
use Format::{Anthropic, OpenAiChat as Chat, OpenAiResponses as Responses};

struct LawExample {
    law: Law,
    profile: LawProfile,
    valid: String,
    invalid: String,
}

/// Creates an example with the laws of the model that the invalid request names.
fn example(law: Law, format: Format, valid: impl Into<String>, invalid: impl Into<String>) -> LawExample {
    let (valid, invalid) = (valid.into(), invalid.into());
    let request = Request::parse(format, invalid.as_bytes()).expect("an example is a request");
    LawExample { law, profile: LawProfile::for_request(&request), valid, invalid }
}

fn example_on_server(law: Law, server: ServerKind, valid: impl Into<String>, invalid: impl Into<String>) -> LawExample {
    let case = example(law, Chat, valid, invalid);
    LawExample { profile: case.profile.served_by(server), ..case }
}

fn responses_example_on_server(
    law: Law,
    server: ServerKind,
    valid: impl Into<String>,
    invalid: impl Into<String>,
) -> LawExample {
    let case = example(law, Responses, valid, invalid);
    LawExample { profile: case.profile.served_by(server), ..case }
}

/// The `tools` field, with its comma.
const SHELL_TOOL_FIELD: &str = r#""tools":[{"name":"sh","input_schema":{"type":"object"}}],"#;
const USER_PROMPT: &str = r#"{"role":"user","content":"go"}"#;

fn claude(messages: &[&str]) -> String {
    format!(r#"{{"model":"claude-sonnet-4-5","max_tokens":9,{SHELL_TOOL_FIELD}"messages":[{}]}}"#, messages.join(","))
}

fn claude_with(model: &str, fields: &str, messages: &[&str]) -> String {
    format!(r#"{{"model":"{model}",{fields}"max_tokens":9,"messages":[{}]}}"#, messages.join(","))
}

fn assistant_message(blocks: &str) -> String {
    format!(r#"{{"role":"assistant","content":[{blocks}]}}"#)
}

fn user_message(blocks: &str) -> String {
    format!(r#"{{"role":"user","content":[{blocks}]}}"#)
}

fn tool_use(id: &str) -> String {
    format!(r#"{{"type":"tool_use","id":"{id}","name":"sh","input":{{}}}}"#)
}

fn tool_result(id: &str) -> String {
    format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"ok"}}"#)
}

fn gpt(fields: &str, messages: &[&str]) -> String {
    format!(r#"{{"model":"gpt-5.2",{fields}"messages":[{}]}}"#, messages.join(","))
}

fn chat(messages: &[&str]) -> String {
    format!(r#"{{"messages":[{}]}}"#, messages.join(","))
}

fn calls(ids: &[&str]) -> String {
    let call =
        |id: &&str| format!(r#"{{"id":"{id}","type":"function","function":{{"name":"sh","arguments":"{{}}"}}}}"#);
    let calls: Vec<String> = ids.iter().map(call).collect();
    format!(r#"{{"role":"assistant","content":null,"tool_calls":[{}]}}"#, calls.join(","))
}

fn tool_message(id: &str) -> String {
    format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"ok"}}"#)
}

fn responses_body(items: &[&str]) -> String {
    format!(r#"{{"model":"gpt-5.5","store":false,"input":[{}]}}"#, items.join(","))
}

fn function_call(id: &str) -> String {
    format!(r#"{{"type":"function_call","call_id":"{id}","name":"sh","arguments":"{{}}"}}"#)
}

fn function_output(id: &str) -> String {
    format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"ok"}}"#)
}

fn pairing() -> Vec<LawExample> {
    let (a, b) = (tool_use("a"), tool_use("b"));
    let (ra, rb) = (tool_result("a"), tool_result("b"));
    let text_block = r#"{"type":"text","text":"hm"}"#;
    let both = claude(&[
        USER_PROMPT,
        &assistant_message(&format!("{a},{b}")),
        &user_message(&format!("{rb},{ra},{text_block}")),
    ]);
    let server_call = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    let server_result = r#"{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}"#;
    let long_id = "c".repeat(41);
    let set = |at: &str| at.replacen('{', r#"{"toolset_name":"computer","#, 1);
    let by_code = |at: &str| at.replacen('{', r#"{"caller":{"type":"code_execution_20250825"},"#, 1);
    let image = r#"{"type":"image","source":{"type":"url","url":"https://x.org/i.png"}}"#;
    vec![
        example(
            Law::CallAnswered,
            Anthropic,
            &both,
            claude(&[USER_PROMPT, &assistant_message(&format!("{a},{b}")), &user_message(&ra)]),
        ),
        // Adjacent messages of one role are one turn.
        example(
            Law::CallAnswered,
            Anthropic,
            claude(&[
                USER_PROMPT,
                &assistant_message(text_block),
                &assistant_message(&format!("{a},{b}")),
                &user_message(&ra),
                &user_message(&rb),
            ]),
            claude(&[USER_PROMPT, &assistant_message(&a), USER_PROMPT]),
        ),
        example(
            Law::CallAnswered,
            Chat,
            chat(&[&calls(&["a"]), &tool_message("a")]),
            chat(&[&calls(&["a"]), USER_PROMPT]),
        ),
        example(
            Law::CallAnswered,
            Responses,
            responses_body(&[&function_call("a"), USER_PROMPT, &function_output("a")]),
            responses_body(&[&function_call("a"), USER_PROMPT]),
        ),
        example(Law::ResultHasCall, Anthropic, &both, claude(&[&user_message(&ra)])),
        example(
            Law::ResultHasCall,
            Chat,
            chat(&[&calls(&["a"]), &tool_message("a")]),
            chat(&[USER_PROMPT, &tool_message("a")]),
        ),
        example(
            Law::ResultHasCall,
            Responses,
            responses_body(&[&function_call("a"), &function_output("a")]),
            responses_body(&[&function_output("a")]),
        ),
        example(
            Law::OneResult,
            Anthropic,
            &both,
            claude(&[USER_PROMPT, &assistant_message(&a), &user_message(&format!("{ra},{ra}"))]),
        ),
        example(
            Law::OneResult,
            Chat,
            chat(&[&calls(&["a", "b"]), &tool_message("b"), &tool_message("a")]),
            chat(&[&calls(&["a"]), &tool_message("a"), &tool_message("a")]),
        ),
        example(
            Law::OneResult,
            Responses,
            responses_body(&[&function_call("a"), &function_output("a"), &function_call("a"), &function_output("a")]),
            responses_body(&[&function_call("a"), &function_output("a"), &function_output("a")]),
        ),
        example(
            Law::ResultsFirst,
            Anthropic,
            &both,
            claude(&[USER_PROMPT, &assistant_message(&a), &user_message(&format!("{text_block},{ra}"))]),
        ),
        example(
            Law::ResultAfterCall,
            Responses,
            responses_body(&[&function_call("a"), &function_output("a")]),
            responses_body(&[&function_output("a"), &function_call("a")]),
        ),
        example(
            Law::CallIdUnique,
            Anthropic,
            &both,
            claude(&[
                USER_PROMPT,
                &assistant_message(&a),
                &user_message(&ra),
                &assistant_message(&a),
                &user_message(&ra),
            ]),
        ),
        // A server may restart its ids in each turn.
        example(
            Law::CallIdUnique,
            Chat,
            chat(&[&calls(&["a"]), &tool_message("a"), &calls(&["a"]), &tool_message("a")]),
            chat(&[&calls(&["a", "a"]), &tool_message("a")]),
        ),
        example(
            Law::CallIdCharacters,
            Anthropic,
            &both,
            claude(&[USER_PROMPT, &assistant_message(&tool_use("a:1")), &user_message(&tool_result("a:1"))]),
        ),
        example(
            Law::CallIdLength,
            Chat,
            gpt("", &[&calls(&[&long_id[1..]]), &tool_message(&long_id[1..])]),
            gpt("", &[&calls(&[&long_id]), &tool_message(&long_id)]),
        ),
        example(
            Law::CallIdLength,
            Responses,
            responses_body(&[&function_call(&long_id), &function_output(&long_id)]),
            responses_body(&[&function_call(&long_id.repeat(2)), &function_output(&long_id.repeat(2))]),
        ),
        example_on_server(
            Law::CallIdNineCharacters,
            ServerKind::Mistral,
            chat(&[USER_PROMPT, &calls(&["abcDEF123"]), &tool_message("abcDEF123")]),
            chat(&[USER_PROMPT, &calls(&["call_1234"]), &tool_message("call_1234")]),
        ),
        example_on_server(
            Law::CallIdSuffixUnique,
            ServerKind::Vllm,
            r#"{"model":"qwen3","messages":[]}"#.replace(
                "[]",
                &format!(
                    "[{},{}]",
                    calls(&["x123456789", "y123456789"]),
                    [tool_message("x123456789"), tool_message("y123456789")].join(",")
                ),
            ),
            r#"{"model":"devstral","messages":[]}"#.replace(
                "[]",
                &format!(
                    "[{},{}]",
                    calls(&["x123456789", "y123456789"]),
                    [tool_message("x123456789"), tool_message("y123456789")].join(",")
                ),
            ),
        )
        .without(&[Law::CallIdNineCharacters, Law::FirstIsUser]),
        example(Law::CallRole, Anthropic, &both, claude(&[&user_message(&format!("{text_block},{a}"))])),
        example(
            Law::ResultContent,
            Anthropic,
            claude(&[
                USER_PROMPT,
                &assistant_message(&a),
                &user_message(&ra.replace(r#""ok""#, &format!("[{image},{text_block}]"))),
            ]),
            claude(&[
                USER_PROMPT,
                &assistant_message(&a),
                &user_message(&ra.replace(r#""ok""#, r#"[{"type":"video"}]"#)),
            ]),
        ),
        example(
            Law::ResultContent,
            Chat,
            chat(&[&calls(&["a"]), r#"{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"x"}]}"#]),
            chat(&[
                &calls(&["a"]),
                r#"{"role":"tool","tool_call_id":"a","content":[{"type":"image_url","image_url":{"url":"u"}}]}"#,
            ]),
        ),
        example(
            Law::ResultContent,
            Chat,
            chat(&[&calls(&["a"]), r#"{"role":"tool","tool_call_id":"a","content":""}"#]),
            chat(&[&calls(&["a"]), r#"{"role":"tool","tool_call_id":"a"}"#]),
        ),
        example(
            Law::ResultContent,
            Responses,
            responses_body(&[
                &function_call("a"),
                &function_output("a").replace(r#""ok""#, r#"[{"type":"input_image","image_url":"u"}]"#),
            ]),
            responses_body(&[&function_call("a"), &function_output("a").replace(r#""ok""#, r#"[{"type":"video"}]"#)]),
        ),
        responses_example_on_server(
            Law::ResultTextOnly,
            ServerKind::LlamaCpp,
            responses_body(&[&function_call("a"), &function_output("a")]),
            responses_body(&[
                &function_call("a"),
                &function_output("a").replace(r#""ok""#, r#"[{"type":"input_image","image_url":"u"}]"#),
            ]),
        ),
        example(
            Law::ToolsetEchoed,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&set(&a)), &user_message(&set(&ra))]),
            claude(&[USER_PROMPT, &assistant_message(&set(&a)), &user_message(&ra)]),
        ),
        example(
            Law::ProgrammaticResult,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&by_code(&a)), &user_message(&ra)]),
            claude(&[USER_PROMPT, &assistant_message(&by_code(&a)), &user_message(&format!("{ra},{text_block}"))]),
        ),
        example(
            Law::ServerPair,
            Anthropic,
            claude(&[
                USER_PROMPT,
                &assistant_message(&format!("{server_call},{a}")),
                &user_message(&ra),
                &assistant_message(&format!("{server_result},{text_block}")),
                USER_PROMPT,
            ]),
            claude(&[
                USER_PROMPT,
                &assistant_message(&format!("{server_call},{text_block}")),
                USER_PROMPT,
                &assistant_message(text_block),
                USER_PROMPT,
            ]),
        ),
        example(
            Law::ServerPair,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&format!("{server_call},{server_result}")), USER_PROMPT]),
            claude(&[USER_PROMPT, &assistant_message(server_result), USER_PROMPT]),
        ),
        example(
            Law::ServerPending,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&format!("{server_call},{a}")), &user_message(&ra)]),
            claude(&[
                USER_PROMPT,
                &assistant_message(&format!("{server_call},{a}")),
                &user_message(&format!("{ra},{text_block}")),
            ]),
        ),
        example(
            Law::NoServerCallResult,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&format!("{server_call},{server_result}")), USER_PROMPT]),
            claude(&[
                USER_PROMPT,
                &assistant_message(&format!("{server_call},{server_result}")),
                &user_message(&tool_result("srvtoolu_1")),
            ]),
        ),
        example(
            Law::NoCallBeforeFallback,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&format!(r#"{{"type":"fallback"}},{a}"#)), &user_message(&ra)]),
            claude(&[USER_PROMPT, &assistant_message(&format!(r#"{a},{{"type":"fallback"}}"#)), &user_message(&ra)]),
        ),
        example(
            Law::ApprovalPair,
            Responses,
            responses_body(&[
                r#"{"type":"mcp_approval_request","id":"mcpr_1","name":"n","arguments":"{}","server_label":"s"}"#,
                r#"{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}"#,
            ]),
            responses_body(&[r#"{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}"#]),
        ),
        example(
            Law::ItemIdForm,
            Responses,
            responses_body(&[&function_call("a").replacen('{', r#"{"id":"fc_1","#, 1), &function_output("a")]),
            responses_body(&[&function_call("a").replacen('{', r#"{"id":"call_1","#, 1), &function_output("a")]),
        ),
        example(
            Law::ItemIdUnique,
            Responses,
            responses_body(&[
                r#"{"id":"msg_1","role":"user","content":"a"}"#,
                r#"{"id":"msg_2","role":"user","content":"a"}"#,
            ]),
            responses_body(&[
                r#"{"id":"msg_1","role":"user","content":"a"}"#,
                r#"{"id":"msg_1","role":"user","content":"a"}"#,
            ]),
        ),
    ]
}

fn roles() -> Vec<LawExample> {
    let hello = r#"{"role":"assistant","content":"hello"}"#;
    let rule = r#"{"role":"system","content":"be kind"}"#;
    let server_call = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    let opus = |messages: &[&str]| claude_with("claude-opus-4-8", "", messages);
    let tool_round = [calls(&["abcdefgh1"]), tool_message("abcdefgh1")].join(",");
    vec![
        example(Law::MessagesNotEmpty, Anthropic, claude(&[USER_PROMPT]), claude(&[])),
        example(Law::MessagesNotEmpty, Chat, chat(&[USER_PROMPT]), chat(&[])),
        example(Law::FirstIsUser, Anthropic, claude(&[USER_PROMPT, hello, USER_PROMPT]), claude(&[hello, USER_PROMPT])),
        example_on_server(
            Law::FirstIsUser,
            ServerKind::ChatTemplate,
            chat(&[rule, USER_PROMPT, hello, USER_PROMPT]),
            chat(&[rule, hello, USER_PROMPT]),
        ),
        example(
            Law::KnownRole,
            Anthropic,
            claude(&[USER_PROMPT]),
            claude(&[USER_PROMPT, r#"{"role":"developer","content":"x"}"#]),
        ),
        example(
            Law::KnownRole,
            Chat,
            chat(&[r#"{"role":"developer","content":"x"}"#]),
            chat(&[r#"{"role":"critic","content":"x"}"#]),
        ),
        example(
            Law::KnownRole,
            Responses,
            responses_body(&[USER_PROMPT]),
            responses_body(&[r#"{"role":"critic","content":"x"}"#]),
        ),
        example(
            Law::NoPrefill,
            Anthropic,
            opus(&[USER_PROMPT, &assistant_message(server_call)]),
            opus(&[USER_PROMPT, hello]),
        ),
        example(
            Law::NoPrefillWithThinking,
            Anthropic,
            claude(&[USER_PROMPT, hello]),
            claude_with(
                "claude-sonnet-4-5",
                r#""thinking":{"type":"enabled","budget_tokens":9},"#,
                &[USER_PROMPT, hello],
            ),
        ),
        example(
            Law::FinalTextTrimmed,
            Anthropic,
            claude(&[USER_PROMPT, hello]),
            claude(&[USER_PROMPT, &hello.replace("hello", "hello ")]),
        ),
        example(Law::NoSystemMessage, Anthropic, opus(&[USER_PROMPT, rule]), claude(&[USER_PROMPT, rule])),
        example(
            Law::SystemMessagePosition,
            Anthropic,
            opus(&[USER_PROMPT, rule, rule, hello, USER_PROMPT]),
            opus(&[USER_PROMPT, hello, rule]),
        ),
        example(
            Law::SystemMessagePosition,
            Anthropic,
            opus(&[USER_PROMPT, rule]),
            opus(&[USER_PROMPT, rule, USER_PROMPT]),
        ),
        example_on_server(
            Law::SystemFirst,
            ServerKind::ChatTemplate,
            chat(&[rule, USER_PROMPT]),
            chat(&[USER_PROMPT, rule, hello, USER_PROMPT]),
        ),
        example_on_server(
            Law::Alternation,
            ServerKind::ChatTemplate,
            chat(&[USER_PROMPT, &tool_round, hello, USER_PROMPT]),
            chat(&[USER_PROMPT, &tool_round, USER_PROMPT]),
        ),
        example_on_server(
            Law::HasUserText,
            ServerKind::ChatTemplate,
            chat(&[
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"?"}]}"#,
            ]),
            chat(&[r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}"#]),
        ),
        example_on_server(
            Law::LastRole,
            ServerKind::Mistral,
            chat(&[USER_PROMPT, r#"{"role":"assistant","content":"he","prefix":true}"#]),
            chat(&[USER_PROMPT, hello]),
        ),
        example_on_server(
            Law::NoUserAfterTool,
            ServerKind::Mistral,
            chat(&[USER_PROMPT, &tool_round, hello, USER_PROMPT]),
            chat(&[USER_PROMPT, &tool_round, USER_PROMPT]),
        ),
        example_on_server(
            Law::OneAssistantAtEnd,
            ServerKind::LlamaCpp,
            chat(&[USER_PROMPT, hello]),
            chat(&[USER_PROMPT, hello, hello]),
        ),
        responses_example_on_server(
            Law::NoPreviousResponse,
            ServerKind::LlamaCpp,
            responses_body(&[USER_PROMPT]),
            r#"{"previous_response_id":"resp_1","input":"go"}"#,
        ),
    ]
}

fn texts() -> Vec<LawExample> {
    let refusal = r#"{"role":"assistant","content":null,"refusal":"no"}"#;
    let result = |content: &str| format!(r#"{{"type":"tool_result","tool_use_id":"a","content":{content}}}"#);
    let many = |count: usize| {
        let ids: Vec<String> = (0..count).map(|at| format!("c{at}")).collect();
        let tools: Vec<String> = ids.iter().map(|id| tool_message(id)).collect();
        gpt("", &[&calls(&ids.iter().map(String::as_str).collect::<Vec<_>>()), &tools.join(",")])
    };
    let text_of_length = |count: usize| gpt("", &[&USER_PROMPT.replace("go", &"ä".repeat(count))]);
    vec![
        example(
            Law::HasContent,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message("")]),
            claude(&[&user_message("")]),
        ),
        example(
            Law::HasContent,
            Chat,
            chat(&[USER_PROMPT, refusal]),
            chat(&[USER_PROMPT, r#"{"role":"assistant","content":null}"#]),
        ),
        example(Law::HasContent, Chat, chat(&[USER_PROMPT]), chat(&[r#"{"role":"user"}"#])),
        example(Law::TextNotBlank, Anthropic, claude(&[USER_PROMPT]), claude(&[&USER_PROMPT.replace("go", " \\n")])),
        example(
            Law::TextNotBlank,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&tool_use("a")), &user_message(&result(r#""""#))]),
            claude(&[
                USER_PROMPT,
                &assistant_message(&tool_use("a")),
                &user_message(&result(r#"[{"type":"text","text":""}]"#)),
            ]),
        ),
        example(
            Law::TextNotBlank,
            Anthropic,
            claude_with("claude-3-haiku", r#""system":"","#, &[USER_PROMPT]),
            claude_with("claude-3-haiku", r#""system":[{"type":"text","text":""}],"#, &[USER_PROMPT]),
        ),
        example(Law::TextLength, Chat, text_of_length(1_048_576), text_of_length(1_048_577)),
        example(
            Law::TextLength,
            Responses,
            responses_body(&[&function_call("a"), &function_output("a").replace("ok", &"x".repeat(10_485_760))]),
            responses_body(&[&function_call("a"), &function_output("a").replace("ok", &"x".repeat(10_485_761))]),
        ),
        example(
            Law::CallsNotEmpty,
            Chat,
            chat(&[USER_PROMPT, r#"{"role":"assistant","content":"x"}"#]),
            chat(&[USER_PROMPT, r#"{"role":"assistant","content":"x","tool_calls":[ ]}"#]),
        ),
        example(Law::CallsPerMessage, Chat, many(128), many(129)),
    ]
}

fn reasoning() -> Vec<LawExample> {
    let thought = r#"{"type":"thinking","thinking":"hm","signature":"s"}"#;
    let text_block = r#"{"type":"text","text":"hm"}"#;
    let (a, ra) = (tool_use("a"), tool_result("a"));
    let manual = |messages: &[&str]| {
        let fields = format!(r#"{SHELL_TOOL_FIELD}"thinking":{{"type":"enabled","budget_tokens":9}},"#);
        claude_with("claude-sonnet-4-5", &fields, messages)
    };
    let mode =
        |model: &str, mode: &str| claude_with(model, &format!(r#""thinking":{{"type":"{mode}"}},"#), &[USER_PROMPT]);
    let with_edits = |edits: &str| {
        claude_with("claude-opus-4-8", &format!(r#""context_management":{{"edits":[{edits}]}},"#), &[USER_PROMPT])
    };
    let (clear, clear_tool_uses) = (r#"{"type":"clear_thinking_20251015"}"#, r#"{"type":"clear_tool_uses_20250919"}"#);
    let with_binding = |mode: &str| {
        let fields = format!(r#""thinking":{{"type":"{mode}","block_binding":{{}}}},"#);
        claude_with("claude-opus-4-8", &fields, &[USER_PROMPT])
    };
    let deepseek = |messages: &[&str]| format!(r#"{{"model":"deepseek-v4-pro","messages":[{}]}}"#, messages.join(","));
    let gemini =
        |messages: &[&str]| format!(r#"{{"model":"gemini-3-pro-preview","messages":[{}]}}"#, messages.join(","));
    let with_reasoning = |it: &str| it.replacen('{', r#"{"reasoning_content":"","#, 1);
    let with_signature =
        |it: &str| it.replacen(r#"{"id""#, r#"{"extra_content":{"google":{"thought_signature":"s"}},"id""#, 1);
    let item = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}"#;
    let local = |content: &str| {
        format!(r#"{{"input":[{{"type":"reasoning","summary":[],"content":[{content}]}},{USER_PROMPT}]}}"#)
    };
    vec![
        example(
            Law::ThinkingSigned,
            Anthropic,
            claude(&[USER_PROMPT, &assistant_message(&format!("{thought},{text_block}")), USER_PROMPT]),
            claude(&[
                USER_PROMPT,
                &assistant_message(&format!(r#"{{"type":"thinking","thinking":"hm"}},{text_block}"#)),
                USER_PROMPT,
            ]),
        ),
        example(
            Law::ThinkingFirst,
            Anthropic,
            manual(&[
                USER_PROMPT,
                &assistant_message(&format!("{thought},{a}")),
                &user_message(&ra),
                &assistant_message(&tool_use("b")),
                &user_message(&tool_result("b")),
            ]),
            manual(&[USER_PROMPT, &assistant_message(&a), &user_message(&ra)]),
        ),
        example(
            Law::ClearThinkingFirst,
            Anthropic,
            with_edits(&format!("{clear},{clear_tool_uses}")),
            with_edits(&format!("{clear_tool_uses},{clear}")),
        ),
        example(Law::BindingNeedsThinking, Anthropic, with_binding("adaptive"), with_binding("disabled")),
        example(
            Law::NoManualThinking,
            Anthropic,
            mode("claude-opus-4-8", "adaptive"),
            mode("claude-opus-4-8", "enabled"),
        ),
        example(
            Law::NoAdaptiveThinking,
            Anthropic,
            mode("claude-opus-4-5", "enabled"),
            mode("claude-opus-4-5", "adaptive"),
        ),
        example(
            Law::NoDisabledThinking,
            Anthropic,
            mode("claude-fable-5", "adaptive"),
            mode("claude-fable-5", "disabled"),
        ),
        example(
            Law::ReasoningReturned,
            Chat,
            deepseek(&[
                USER_PROMPT,
                &with_reasoning(&calls(&["a"])),
                &tool_message("a"),
                &with_reasoning(&calls(&["b"])),
                &tool_message("b"),
            ]),
            deepseek(&[
                USER_PROMPT,
                &with_reasoning(&calls(&["a"])),
                &tool_message("a"),
                &calls(&["b"]),
                &tool_message("b"),
            ]),
        ),
        example(
            Law::ThoughtSignature,
            Chat,
            gemini(&[
                USER_PROMPT,
                &calls(&["a"]),
                &tool_message("a"),
                USER_PROMPT,
                &with_signature(&calls(&["b"])),
                &tool_message("b"),
            ]),
            gemini(&[USER_PROMPT, &calls(&["a"]), &tool_message("a")]),
        ),
        example(
            Law::ReasoningFollowed,
            Responses,
            responses_body(&[item, &item.replace("rs_1", "rs_2"), &function_call("a"), &function_output("a")]),
            responses_body(&[item, USER_PROMPT]),
        ),
        example(
            Law::ReasoningEncrypted,
            Responses,
            responses_body(&[item, &function_call("a"), &function_output("a")]),
            responses_body(&[
                r#"{"type":"reasoning","id":"rs_1","summary":[]}"#,
                &function_call("a"),
                &function_output("a"),
            ]),
        ),
        example(
            Law::ReasoningSummary,
            Responses,
            responses_body(&[item, &function_call("a"), &function_output("a")]),
            responses_body(&[&item.replace(r#""summary":[],"#, ""), &function_call("a"), &function_output("a")]),
        ),
        example(
            Law::ReasoningWithoutContent,
            Responses,
            responses_body(&[&item.replacen('{', r#"{"content":[],"#, 1), &function_call("a"), &function_output("a")]),
            responses_body(&[
                &item.replacen('{', r#"{"content":[{"type":"reasoning_text","text":"x"}],"#, 1),
                &function_call("a"),
                &function_output("a"),
            ]),
        ),
        responses_example_on_server(
            Law::ReasoningWithContent,
            ServerKind::LlamaCpp,
            local(r#"{"type":"reasoning_text","text":"x"}"#),
            local(""),
        ),
        example(
            Law::CompactionEncrypted,
            Responses,
            responses_body(&[r#"{"type":"compaction","encrypted_content":"e"}"#, USER_PROMPT]),
            responses_body(&[r#"{"type":"compaction"}"#, USER_PROMPT]),
        ),
    ]
}

fn tools() -> Vec<LawExample> {
    let with_tools = |list: &str| claude_with("claude-sonnet-4-5", &format!(r#""tools":[{list}],"#), &[USER_PROMPT]);
    let tool_named = |name: &str| format!(r#"{{"name":"{name}","input_schema":{{}}}}"#);
    let function = |name: &str| format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#);
    let functions = |count: usize| {
        let list: Vec<String> = (0..count).map(|at| function(&format!("f{at}"))).collect();
        gpt(&format!(r#""tools":[{}],"#, list.join(",")), &[USER_PROMPT])
    };
    let choice = |name: &str| {
        let fields = format!(
            r#""tools":[{}],"tool_choice":{{"type":"function","function":{{"name":"{name}"}}}},"#,
            function("sh")
        );
        gpt(&fields, &[USER_PROMPT])
    };
    let strict = |schema: &str| {
        gpt(
            &format!(
                r#""tools":[{{"type":"function","function":{{"name":"f","strict":true,"parameters":{schema}}}}}],"#
            ),
            &[USER_PROMPT],
        )
    };
    let inner =
        r#"{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"additionalProperties":false}"#;
    let outer = |inner: &str| {
        format!(
            r#"{{"type":"object","properties":{{"l":{{"type":"array","items":{inner}}}}},"required":["l"],"additionalProperties":false}}"#
        )
    };
    let forced_choice = |model: &str, thinking: &str, choice: &str| {
        claude_with(
            model,
            &format!(r#"{SHELL_TOOL_FIELD}{thinking}"tool_choice":{{"type":"{choice}"}},"#),
            &[USER_PROMPT],
        )
    };
    let manual = r#""thinking":{"type":"enabled","budget_tokens":9},"#;
    let reference = |name: &str| {
        let content = format!(r#"[{{"type":"tool_reference","tool_name":"{name}"}}]"#);
        let result = tool_result("a").replace(r#""ok""#, &content);
        claude(&[USER_PROMPT, &assistant_message(&tool_use("a")), &user_message(&result)])
    };
    let tool_round = [assistant_message(&tool_use("a")), user_message(&tool_result("a"))].join(",");
    vec![
        example(Law::ReferenceDeclared, Anthropic, reference("sh"), reference("gone")),
        example(
            Law::NoForcedToolWithThinking,
            Anthropic,
            forced_choice("claude-opus-4-5", manual, "auto"),
            forced_choice("claude-opus-4-5", manual, "any"),
        ),
        example(
            Law::NoForcedTool,
            Anthropic,
            forced_choice("claude-opus-5-5", "", "none"),
            forced_choice("claude-opus-5-5", "", "tool"),
        ),
        example(
            Law::ToolsDeclared,
            Anthropic,
            claude(&[USER_PROMPT, &tool_round]),
            claude_with("claude-sonnet-4-5", "", &[USER_PROMPT, &tool_round]),
        ),
        example(Law::ToolName, Anthropic, with_tools(&tool_named("mcp__x-1")), with_tools(&tool_named("a.b"))),
        example(
            Law::ToolName,
            Anthropic,
            with_tools(&tool_named(&"f".repeat(128))),
            with_tools(&tool_named(&"f".repeat(129))),
        ),
        example(
            Law::ToolName,
            Chat,
            gpt(&format!(r#""tools":[{}],"#, function("f")), &[USER_PROMPT]),
            gpt(&format!(r#""tools":[{}],"#, function(&"f".repeat(65))), &[USER_PROMPT]),
        ),
        example(
            Law::ToolNameUnique,
            Anthropic,
            with_tools(&[tool_named("a"), tool_named("b")].join(",")),
            with_tools(&[tool_named("a"), tool_named("a")].join(",")),
        ),
        // An empty list alone is allowed: Claude Code requests titles with one.
        example(
            Law::ToolsDeclared,
            Anthropic,
            with_tools(""),
            claude_with("claude-sonnet-4-5", r#""tools":[],"#, &[USER_PROMPT, &tool_round]),
        ),
        example(
            Law::ToolsNotEmpty,
            Chat,
            gpt(r#""tools":null,"#, &[USER_PROMPT]),
            gpt(r#""tools":[],"#, &[USER_PROMPT]),
        ),
        example(
            Law::SomeToolLoaded,
            Anthropic,
            with_tools(&[tool_named("a"), tool_named("b").replacen('{', r#"{"defer_loading":true,"#, 1)].join(",")),
            with_tools(&tool_named("b").replacen('{', r#"{"defer_loading":true,"#, 1)),
        ),
        example(Law::ToolCount, Chat, functions(128), functions(129)),
        example(Law::ChoiceNeedsTools, Chat, choice("sh"), gpt(r#""tool_choice":"auto","#, &[USER_PROMPT])),
        example(Law::ChoiceDeclared, Chat, choice("sh"), choice("gone")),
        example_on_server(
            Law::ChoiceNeedsTools,
            ServerKind::Vllm,
            chat(&[USER_PROMPT]),
            format!(r#"{{"tool_choice":"auto","messages":[{USER_PROMPT}]}}"#),
        ),
        example(Law::StrictSchema, Chat, strict(&outer(inner)), strict(&outer(&inner.replace(r#"["x"]"#, "[]")))),
        example(
            Law::FunctionNamed,
            Responses,
            r#"{"tools":[{"type":"web_search"},{"type":"function","name":"f"}],"input":"go"}"#,
            r#"{"tools":[{"type":"function"}],"input":"go"}"#,
        ),
    ]
}

fn arguments() -> Vec<LawExample> {
    let object = |json: &str| {
        let call = tool_use("a").replace(r#""input":{}"#, &format!(r#""input":{json}"#));
        claude(&[USER_PROMPT, &assistant_message(&call), &user_message(&tool_result("a"))])
    };
    let text = |json: &str| chat(&[USER_PROMPT, &calls(&["a"]).replace(r#""{}""#, json), &tool_message("a")]);
    let custom = r#"{"role":"assistant","tool_calls":[{"id":"a","type":"custom","custom":{"name":"p","input":"x"}}]}"#;
    vec![
        example(Law::ArgumentsObject, Anthropic, object(r#"{"x":[1]}"#), object(r#""{}""#)),
        example_on_server(Law::ArgumentsObject, ServerKind::Vllm, text(r#""{\"x\":1}""#), text(r#""{\"x\":1""#)),
        example_on_server(Law::ArgumentsObject, ServerKind::ChatTemplate, text(r#""{}""#), text(r#""[]""#)),
        example(Law::ArgumentsString, Chat, text(r#""not JSON""#), text("{}")),
        example(
            Law::ArgumentsString,
            Responses,
            responses_body(&[&function_call("a"), &function_output("a")]),
            responses_body(&[&function_call("a").replace(r#""{}""#, "{}"), &function_output("a")]),
        ),
        example_on_server(
            Law::FunctionCallsOnly,
            ServerKind::Vllm,
            chat(&[USER_PROMPT, &calls(&["a"]), &tool_message("a")]),
            chat(&[USER_PROMPT, custom, &tool_message("a")]),
        ),
    ]
}

fn cache_breakpoints() -> Vec<LawExample> {
    let text = |field: &str| format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"{field}}}]}}"#);
    let five_minutes = r#","cache_control":{"type":"ephemeral"}"#;
    let one_hour = r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#;
    let system = |field: &str| format!(r#""system":[{{"type":"text","text":"x"{field}}}],"#);
    let top = r#""cache_control":{"type":"ephemeral"},"#;
    let with_breakpoints = |fields: &str, fields_per_message: &[&str]| {
        let messages: Vec<String> = fields_per_message.iter().map(|field| text(field)).collect();
        claude_with("claude-opus-4-8", fields, &messages.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let thought = |field: &str| {
        let thought =
            format!(r#"{{"type":"thinking","thinking":"x","signature":"s"{field}}},{{"type":"text","text":"y"}}"#);
        claude_with("claude-opus-4-8", "", &[USER_PROMPT, &assistant_message(&thought), USER_PROMPT])
    };
    let with_ttl = |ttl: &str| gpt(&format!(r#""prompt_cache_options":{{"ttl":"{ttl}"}},"#), &[USER_PROMPT]);
    vec![
        example(
            Law::CacheBreakpointCount,
            Anthropic,
            with_breakpoints(&format!("{top}{}", system(five_minutes)), &[five_minutes, five_minutes, ""]),
            with_breakpoints(
                &format!("{top}{}", system(five_minutes)),
                &[five_minutes, five_minutes, five_minutes, ""],
            ),
        ),
        // The word inside a text is not a breakpoint.
        example(
            Law::CacheBreakpointCount,
            Anthropic,
            with_breakpoints("", &[five_minutes, r#","cache_control":null"#, five_minutes, five_minutes, five_minutes])
                .replace(r#""x""#, r#""say \"cache_control\"""#),
            with_breakpoints("", &[five_minutes, five_minutes, five_minutes, five_minutes, five_minutes]),
        ),
        example(
            Law::CacheBreakpointOrder,
            Anthropic,
            with_breakpoints(&system(one_hour), &[one_hour, five_minutes]),
            with_breakpoints(&system(five_minutes), &[one_hour]),
        ),
        example(Law::CacheBreakpointPosition, Anthropic, thought(""), thought(five_minutes)),
        example(
            Law::CacheBreakpointPosition,
            Anthropic,
            with_breakpoints(top, &[five_minutes]),
            with_breakpoints(top, &[one_hour]),
        ),
        example(Law::CacheTtl, Chat, with_ttl("30m"), with_ttl("1h")),
    ]
}

fn media() -> Vec<LawExample> {
    let images = |count: usize, source: &str| {
        let block = format!(r#"{{"type":"image","source":{source}}}"#);
        claude(&[&user_message(&vec![block; count].join(","))])
    };
    let link = r#"{"type":"url","url":"https://x.org/i.png"}"#;
    let png = |width: u32| {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend([0, 0, 0, 1, 8, 2, 0, 0, 0, 0, 0, 0, 0]);
        let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        format!(r#"{{"type":"base64","media_type":"image/png","data":"{data}"}}"#)
    };
    let sized = |bytes: usize| images(1, &format!(r#"{{"type":"base64","data":"/9j/{}"}}"#, "A".repeat(bytes - 4)));
    let part = |part: &str| chat(&[&format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"}},{part}]}}"#)]);
    vec![
        example(Law::ImageCount, Anthropic, images(100, link), images(101, link)),
        example(Law::ImageBytes, Anthropic, sized(10 << 20), sized((10 << 20) + 1)),
        example(Law::ImagePixels, Anthropic, images(1, &png(8000)), images(1, &png(8001))),
        example(Law::ImageKind, Anthropic, images(1, &png(1)), images(1, r#"{"type":"base64","data":"QkA="}"#)),
        example_on_server(
            Law::PartKind,
            ServerKind::LlamaCpp,
            part(r#"{"type":"input_audio","input_audio":{}}"#),
            part(r#"{"type":"file","file":{"file_id":"f"}}"#),
        ),
    ]
}

fn gemini() -> Vec<LawExample> {
    let body = |fields: &str| {
        format!(r#"{{"cachedContent":"cachedContents/c",{fields}"contents":[{{"parts":[{{"text":"go"}}]}}]}}"#)
    };
    let tools = r#""tools":[{"functionDeclarations":[{"name":"sh"}]}],"#;
    vec![example(Law::CachedContentAlone, Format::Gemini, body(""), body(tools))]
}

fn api_versions() -> Vec<LawExample> {
    let body = |version: &str, fields: &str, user: &str, assistant: &str| {
        let fields = format!(r#""anthropic_version":"{version}",{fields}"#);
        let answer = assistant_message(&format!(r#"{{"type":"text","text":"x"}}{assistant}"#));
        claude_with("claude-sonnet-4-5", &fields, &[&user_message(user), &answer, USER_PROMPT])
    };
    let text = r#"{"type":"text","text":"x"}"#;
    let sampling = r#""temperature":0.5,"#;
    let document = r#",{"type":"document","source":{"type":"text","media_type":"text/plain","data":"x"}}"#;
    let cited = r#"{"type":"text","text":"x","citations":[{"type":"char_location"}]}"#;
    let case = |law, fields, user, assistant| {
        let valid = body("bedrock-2023-05-31", fields, user, assistant);
        let case = example(law, Anthropic, valid, body("2026-10-21", fields, user, assistant));
        let old = Request::parse(Anthropic, case.valid.as_bytes()).expect("an example is a request");
        assert_eq!(check(&old, &LawProfile::for_request(&old)), [], "the older version accepts it");
        LawExample { valid: body("2026-10-21", "", text, ""), ..case }
    };
    vec![
        case(Law::NoSamplingFields, sampling, text, ""),
        case(Law::NoAssistantDocument, "", text, document),
        case(Law::NoUserCitations, "", cited, ""),
    ]
}

impl LawExample {
    /// Removes laws that the example also breaks.
    fn without(mut self, laws: &[Law]) -> Self {
        self.profile = laws.iter().fold(self.profile, |profile, law| profile.without(*law));
        self
    }
}

fn all_examples() -> Vec<LawExample> {
    [
        pairing(),
        roles(),
        texts(),
        reasoning(),
        tools(),
        arguments(),
        cache_breakpoints(),
        media(),
        gemini(),
        api_versions(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn truncated(body: &str) -> String {
    body.chars().take(600).collect()
}

#[test]
fn invalid_example_breaks_exactly_its_law() {
    for LawExample { law, profile, invalid, .. } in all_examples() {
        let request = Request::parse(profile.format(), invalid.as_bytes()).unwrap();
        let broken: BTreeSet<Law> = check(&request, &profile).into_iter().map(|violation| violation.law).collect();
        assert_eq!(broken, BTreeSet::from([law]), "{}", truncated(&invalid));
    }
}

#[test]
fn valid_example_breaks_no_law() {
    for LawExample { law, profile, valid, .. } in all_examples() {
        let request = Request::parse(profile.format(), valid.as_bytes()).unwrap();
        // Checked with the laws of the model that it names.
        let profile = if law == Law::CallIdSuffixUnique || law == Law::NoSystemMessage {
            LawProfile::for_request(&request)
        } else {
            profile
        };
        assert_eq!(check(&request, &profile), [], "{law}: {}", truncated(&valid));
    }
}

#[test]
fn every_law_on_requests_has_an_example() {
    let shown: BTreeSet<Law> = all_examples().into_iter().map(|case| case.law).collect();
    // The large requests have separate tests.
    let tested_elsewhere = [Law::MessageCount, Law::BodySize];
    let missing: Vec<Law> = Law::all()
        .filter(|law| {
            law.topic() != LawTopic::RewrittenRequest && !shown.contains(law) && !tested_elsewhere.contains(law)
        })
        .collect();
    assert_eq!(missing, [] as [Law; 0]);
}

#[test]
fn too_large_request_is_a_violation() {
    let broken = |body: String| {
        let request = Request::parse(Anthropic, body.as_bytes()).unwrap();
        check(&request, &LawProfile::for_request(&request))
            .into_iter()
            .map(|violation| violation.law)
            .collect::<Vec<_>>()
    };
    assert_eq!(broken(claude(&vec![USER_PROMPT; 100_000])), []);
    assert_eq!(broken(claude(&vec![USER_PROMPT; 100_001])), [Law::MessageCount]);
    assert_eq!(broken(claude(&[&USER_PROMPT.replace("go", &"x".repeat(31 << 20))])), []);
    assert_eq!(broken(claude(&[&USER_PROMPT.replace("go", &"x".repeat(32 << 20))])), [Law::BodySize]);
}

/// Results of calls that the provider stores look like orphans.
#[test]
fn continuation_is_not_checked_for_pairs() {
    let thread = r#"{"model":"claude-opus-4-8","thread":{"type":"continue","previous_message_id":"msg_1"},"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"ok"}]}]}"#;
    let request = Request::parse(Anthropic, thread.as_bytes()).unwrap();
    assert_eq!(check(&request, &LawProfile::for_request(&request)), []);

    let items = format!(r#"{{"previous_response_id":"resp_1","input":[{}]}}"#, function_output("call_1"));
    let request = Request::parse(Responses, items.as_bytes()).unwrap();
    assert_eq!(check(&request, &LawProfile::for_request(&request)), []);
}

/// The client or the provider may have run the search; its output is in the result unchanged.
#[test]
fn tool_search_with_its_output_breaks_no_law() {
    let body = br#"{"input":[{"type":"message","role":"user","content":"go"},
        {"type":"tool_search_call","call_id":"call_1","execution":"client","arguments":{"query":"git"}},
        {"type":"tool_search_output","call_id":"call_1","tools":[{"type":"function","name":"git"}]}]}"#;
    let request = Request::parse(Responses, body).unwrap();
    assert_eq!(check(&request, &LawProfile::for_request(&request)), []);
}

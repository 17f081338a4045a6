//! For each law a request that keeps it and one that breaks it, and nothing else.

use std::collections::BTreeSet;

use super::super::{Law, Profile, Server, Topic, check};
use crate::wire::{Format, Request};
use Format::{Anthropic, OpenAiChat as Chat, OpenAiResponses as Responses};

struct Case {
    law: Law,
    profile: Profile,
    keeps: String,
    breaks: String,
}

/// A request that keeps a law and one that breaks it, for the model that they name.
fn case(law: Law, format: Format, keeps: impl Into<String>, breaks: impl Into<String>) -> Case {
    let (keeps, breaks) = (keeps.into(), breaks.into());
    let profile = Profile::of_request(&Request::parse(format, breaks.as_bytes()).expect("an example is a request"));
    Case { law, profile, keeps, breaks }
}

fn served(law: Law, server: Server, keeps: impl Into<String>, breaks: impl Into<String>) -> Case {
    let case = case(law, Chat, keeps, breaks);
    Case { profile: case.profile.served_by(server), ..case }
}

fn served_items(law: Law, server: Server, keeps: impl Into<String>, breaks: impl Into<String>) -> Case {
    let case = case(law, Responses, keeps, breaks);
    Case { profile: case.profile.served_by(server), ..case }
}

/// Fields beside the messages, with their comma.
const SH: &str = r#""tools":[{"name":"sh","input_schema":{"type":"object"}}],"#;
const ASK: &str = r#"{"role":"user","content":"go"}"#;

fn claude(messages: &[&str]) -> String {
    format!(r#"{{"model":"claude-sonnet-4-5","max_tokens":9,{SH}"messages":[{}]}}"#, messages.join(","))
}

fn claude_with(model: &str, fields: &str, messages: &[&str]) -> String {
    format!(r#"{{"model":"{model}",{fields}"max_tokens":9,"messages":[{}]}}"#, messages.join(","))
}

fn uses(blocks: &str) -> String {
    format!(r#"{{"role":"assistant","content":[{blocks}]}}"#)
}

fn answers(blocks: &str) -> String {
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

fn tool(id: &str) -> String {
    format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"ok"}}"#)
}

fn input(items: &[&str]) -> String {
    format!(r#"{{"model":"gpt-5.5","store":false,"input":[{}]}}"#, items.join(","))
}

fn function_call(id: &str) -> String {
    format!(r#"{{"type":"function_call","call_id":"{id}","name":"sh","arguments":"{{}}"}}"#)
}

fn output(id: &str) -> String {
    format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"ok"}}"#)
}

fn pairing() -> Vec<Case> {
    let (a, b) = (tool_use("a"), tool_use("b"));
    let (ra, rb) = (tool_result("a"), tool_result("b"));
    let said = r#"{"type":"text","text":"hm"}"#;
    let both = claude(&[ASK, &uses(&format!("{a},{b}")), &answers(&format!("{rb},{ra},{said}"))]);
    let searched = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    let found = r#"{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}"#;
    let long = "c".repeat(41);
    let set = |at: &str| at.replacen('{', r#"{"toolset_name":"computer","#, 1);
    let by_code = |at: &str| at.replacen('{', r#"{"caller":{"type":"code_execution_20250825"},"#, 1);
    let image = r#"{"type":"image","source":{"type":"url","url":"https://x.org/i.png"}}"#;
    vec![
        case(Law::CallAnswered, Anthropic, &both, claude(&[ASK, &uses(&format!("{a},{b}")), &answers(&ra)])),
        // Neighbours of one role are one turn.
        case(
            Law::CallAnswered,
            Anthropic,
            claude(&[ASK, &uses(said), &uses(&format!("{a},{b}")), &answers(&ra), &answers(&rb)]),
            claude(&[ASK, &uses(&a), ASK]),
        ),
        case(Law::CallAnswered, Chat, chat(&[&calls(&["a"]), &tool("a")]), chat(&[&calls(&["a"]), ASK])),
        case(
            Law::CallAnswered,
            Responses,
            input(&[&function_call("a"), ASK, &output("a")]),
            input(&[&function_call("a"), ASK]),
        ),
        case(Law::ResultHasCall, Anthropic, &both, claude(&[&answers(&ra)])),
        case(Law::ResultHasCall, Chat, chat(&[&calls(&["a"]), &tool("a")]), chat(&[ASK, &tool("a")])),
        case(Law::ResultHasCall, Responses, input(&[&function_call("a"), &output("a")]), input(&[&output("a")])),
        case(Law::OneResult, Anthropic, &both, claude(&[ASK, &uses(&a), &answers(&format!("{ra},{ra}"))])),
        case(
            Law::OneResult,
            Chat,
            chat(&[&calls(&["a", "b"]), &tool("b"), &tool("a")]),
            chat(&[&calls(&["a"]), &tool("a"), &tool("a")]),
        ),
        case(
            Law::OneResult,
            Responses,
            input(&[&function_call("a"), &output("a"), &function_call("a"), &output("a")]),
            input(&[&function_call("a"), &output("a"), &output("a")]),
        ),
        case(Law::ResultsFirst, Anthropic, &both, claude(&[ASK, &uses(&a), &answers(&format!("{said},{ra}"))])),
        case(
            Law::ResultBehindCall,
            Responses,
            input(&[&function_call("a"), &output("a")]),
            input(&[&output("a"), &function_call("a")]),
        ),
        case(Law::CallIdUnique, Anthropic, &both, claude(&[ASK, &uses(&a), &answers(&ra), &uses(&a), &answers(&ra)])),
        // A server may count its ids anew in each turn.
        case(
            Law::CallIdUnique,
            Chat,
            chat(&[&calls(&["a"]), &tool("a"), &calls(&["a"]), &tool("a")]),
            chat(&[&calls(&["a", "a"]), &tool("a")]),
        ),
        case(
            Law::CallIdLetters,
            Anthropic,
            &both,
            claude(&[ASK, &uses(&tool_use("a:1")), &answers(&tool_result("a:1"))]),
        ),
        case(
            Law::CallIdLength,
            Chat,
            gpt("", &[&calls(&[&long[1..]]), &tool(&long[1..])]),
            gpt("", &[&calls(&[&long]), &tool(&long)]),
        ),
        case(
            Law::CallIdLength,
            Responses,
            input(&[&function_call(&long), &output(&long)]),
            input(&[&function_call(&long.repeat(2)), &output(&long.repeat(2))]),
        ),
        served(
            Law::CallIdNine,
            Server::Mistral,
            chat(&[ASK, &calls(&["abcDEF123"]), &tool("abcDEF123")]),
            chat(&[ASK, &calls(&["call_1234"]), &tool("call_1234")]),
        ),
        served(
            Law::CallIdTail,
            Server::Vllm,
            r#"{"model":"qwen3","messages":[]}"#.replace(
                "[]",
                &format!(
                    "[{},{}]",
                    calls(&["x123456789", "y123456789"]),
                    [tool("x123456789"), tool("y123456789")].join(",")
                ),
            ),
            r#"{"model":"devstral","messages":[]}"#.replace(
                "[]",
                &format!(
                    "[{},{}]",
                    calls(&["x123456789", "y123456789"]),
                    [tool("x123456789"), tool("y123456789")].join(",")
                ),
            ),
        )
        .without(&[Law::CallIdNine, Law::FirstIsUser]),
        case(Law::CallSide, Anthropic, &both, claude(&[&answers(&format!("{said},{a}"))])),
        case(
            Law::ResultContent,
            Anthropic,
            claude(&[ASK, &uses(&a), &answers(&ra.replace(r#""ok""#, &format!("[{image},{said}]")))]),
            claude(&[ASK, &uses(&a), &answers(&ra.replace(r#""ok""#, r#"[{"type":"video"}]"#))]),
        ),
        case(
            Law::ResultContent,
            Chat,
            chat(&[&calls(&["a"]), r#"{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"x"}]}"#]),
            chat(&[
                &calls(&["a"]),
                r#"{"role":"tool","tool_call_id":"a","content":[{"type":"image_url","image_url":{"url":"u"}}]}"#,
            ]),
        ),
        case(
            Law::ResultContent,
            Chat,
            chat(&[&calls(&["a"]), r#"{"role":"tool","tool_call_id":"a","content":""}"#]),
            chat(&[&calls(&["a"]), r#"{"role":"tool","tool_call_id":"a"}"#]),
        ),
        case(
            Law::ResultContent,
            Responses,
            input(&[
                &function_call("a"),
                &output("a").replace(r#""ok""#, r#"[{"type":"input_image","image_url":"u"}]"#),
            ]),
            input(&[&function_call("a"), &output("a").replace(r#""ok""#, r#"[{"type":"video"}]"#)]),
        ),
        served_items(
            Law::ResultTextOnly,
            Server::LlamaCpp,
            input(&[&function_call("a"), &output("a")]),
            input(&[
                &function_call("a"),
                &output("a").replace(r#""ok""#, r#"[{"type":"input_image","image_url":"u"}]"#),
            ]),
        ),
        case(
            Law::ToolsetEchoed,
            Anthropic,
            claude(&[ASK, &uses(&set(&a)), &answers(&set(&ra))]),
            claude(&[ASK, &uses(&set(&a)), &answers(&ra)]),
        ),
        case(
            Law::ProgrammaticResult,
            Anthropic,
            claude(&[ASK, &uses(&by_code(&a)), &answers(&ra)]),
            claude(&[ASK, &uses(&by_code(&a)), &answers(&format!("{ra},{said}"))]),
        ),
        case(
            Law::ServerPair,
            Anthropic,
            claude(&[ASK, &uses(&format!("{searched},{a}")), &answers(&ra), &uses(&format!("{found},{said}")), ASK]),
            claude(&[ASK, &uses(&format!("{searched},{said}")), ASK, &uses(said), ASK]),
        ),
        case(
            Law::ServerPair,
            Anthropic,
            claude(&[ASK, &uses(&format!("{searched},{found}")), ASK]),
            claude(&[ASK, &uses(found), ASK]),
        ),
        case(
            Law::ServerPending,
            Anthropic,
            claude(&[ASK, &uses(&format!("{searched},{a}")), &answers(&ra)]),
            claude(&[ASK, &uses(&format!("{searched},{a}")), &answers(&format!("{ra},{said}"))]),
        ),
        case(
            Law::ServerCallUnanswered,
            Anthropic,
            claude(&[ASK, &uses(&format!("{searched},{found}")), ASK]),
            claude(&[ASK, &uses(&format!("{searched},{found}")), &answers(&tool_result("srvtoolu_1"))]),
        ),
        case(
            Law::NoCallBeforeFallback,
            Anthropic,
            claude(&[ASK, &uses(&format!(r#"{{"type":"fallback"}},{a}"#)), &answers(&ra)]),
            claude(&[ASK, &uses(&format!(r#"{a},{{"type":"fallback"}}"#)), &answers(&ra)]),
        ),
        case(
            Law::ApprovalPair,
            Responses,
            input(&[
                r#"{"type":"mcp_approval_request","id":"mcpr_1","name":"n","arguments":"{}","server_label":"s"}"#,
                r#"{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}"#,
            ]),
            input(&[r#"{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}"#]),
        ),
        case(
            Law::ItemIdForm,
            Responses,
            input(&[&function_call("a").replacen('{', r#"{"id":"fc_1","#, 1), &output("a")]),
            input(&[&function_call("a").replacen('{', r#"{"id":"call_1","#, 1), &output("a")]),
        ),
        case(
            Law::ItemIdUnique,
            Responses,
            input(&[r#"{"id":"msg_1","role":"user","content":"a"}"#, r#"{"id":"msg_2","role":"user","content":"a"}"#]),
            input(&[r#"{"id":"msg_1","role":"user","content":"a"}"#, r#"{"id":"msg_1","role":"user","content":"a"}"#]),
        ),
    ]
}

fn roles() -> Vec<Case> {
    let hello = r#"{"role":"assistant","content":"hello"}"#;
    let rule = r#"{"role":"system","content":"be kind"}"#;
    let searched = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    let newest = |messages: &[&str]| claude_with("claude-opus-4-8", "", messages);
    let tool_round = [calls(&["abcdefgh1"]), tool("abcdefgh1")].join(",");
    vec![
        case(Law::SomeMessage, Anthropic, claude(&[ASK]), claude(&[])),
        case(Law::SomeMessage, Chat, chat(&[ASK]), chat(&[])),
        case(Law::FirstIsUser, Anthropic, claude(&[ASK, hello, ASK]), claude(&[hello, ASK])),
        served(Law::FirstIsUser, Server::Local, chat(&[rule, ASK, hello, ASK]), chat(&[rule, hello, ASK])),
        case(Law::KnownRole, Anthropic, claude(&[ASK]), claude(&[ASK, r#"{"role":"developer","content":"x"}"#])),
        case(
            Law::KnownRole,
            Chat,
            chat(&[r#"{"role":"developer","content":"x"}"#]),
            chat(&[r#"{"role":"critic","content":"x"}"#]),
        ),
        case(Law::KnownRole, Responses, input(&[ASK]), input(&[r#"{"role":"critic","content":"x"}"#])),
        case(Law::NoPrefill, Anthropic, newest(&[ASK, &uses(searched)]), newest(&[ASK, hello])),
        case(
            Law::NoPrefillWithThinking,
            Anthropic,
            claude(&[ASK, hello]),
            claude_with("claude-sonnet-4-5", r#""thinking":{"type":"enabled","budget_tokens":9},"#, &[ASK, hello]),
        ),
        case(
            Law::FinalTextTrimmed,
            Anthropic,
            claude(&[ASK, hello]),
            claude(&[ASK, &hello.replace("hello", "hello ")]),
        ),
        case(Law::NoSystemInside, Anthropic, newest(&[ASK, rule]), claude(&[ASK, rule])),
        case(Law::SystemInsidePlace, Anthropic, newest(&[ASK, rule, rule, hello, ASK]), newest(&[ASK, hello, rule])),
        case(Law::SystemInsidePlace, Anthropic, newest(&[ASK, rule]), newest(&[ASK, rule, ASK])),
        served(Law::SystemFirst, Server::Local, chat(&[rule, ASK]), chat(&[ASK, rule, hello, ASK])),
        served(Law::Alternation, Server::Local, chat(&[ASK, &tool_round, hello, ASK]), chat(&[ASK, &tool_round, ASK])),
        served(
            Law::SomeUserText,
            Server::Local,
            chat(&[
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"?"}]}"#,
            ]),
            chat(&[r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}"#]),
        ),
        served(
            Law::LastRole,
            Server::Mistral,
            chat(&[ASK, r#"{"role":"assistant","content":"he","prefix":true}"#]),
            chat(&[ASK, hello]),
        ),
        served(
            Law::NoUserAfterTool,
            Server::Mistral,
            chat(&[ASK, &tool_round, hello, ASK]),
            chat(&[ASK, &tool_round, ASK]),
        ),
        served(Law::OneAssistantAtEnd, Server::LlamaCpp, chat(&[ASK, hello]), chat(&[ASK, hello, hello])),
        served_items(
            Law::NoPreviousResponse,
            Server::LlamaCpp,
            input(&[ASK]),
            r#"{"previous_response_id":"resp_1","input":"go"}"#,
        ),
    ]
}

fn texts() -> Vec<Case> {
    let refusal = r#"{"role":"assistant","content":null,"refusal":"no"}"#;
    let result = |content: &str| format!(r#"{{"type":"tool_result","tool_use_id":"a","content":{content}}}"#);
    let many = |count: usize| {
        let ids: Vec<String> = (0..count).map(|at| format!("c{at}")).collect();
        let tools: Vec<String> = ids.iter().map(|id| tool(id)).collect();
        gpt("", &[&calls(&ids.iter().map(String::as_str).collect::<Vec<_>>()), &tools.join(",")])
    };
    let long = |count: usize| gpt("", &[&ASK.replace("go", &"ä".repeat(count))]);
    vec![
        case(Law::HasContent, Anthropic, claude(&[ASK, &uses("")]), claude(&[&answers("")])),
        case(Law::HasContent, Chat, chat(&[ASK, refusal]), chat(&[ASK, r#"{"role":"assistant","content":null}"#])),
        case(Law::HasContent, Chat, chat(&[ASK]), chat(&[r#"{"role":"user"}"#])),
        case(Law::TextNotBlank, Anthropic, claude(&[ASK]), claude(&[&ASK.replace("go", " \\n")])),
        case(
            Law::TextNotBlank,
            Anthropic,
            claude(&[ASK, &uses(&tool_use("a")), &answers(&result(r#""""#))]),
            claude(&[ASK, &uses(&tool_use("a")), &answers(&result(r#"[{"type":"text","text":""}]"#))]),
        ),
        case(
            Law::TextNotBlank,
            Anthropic,
            claude_with("claude-3-haiku", r#""system":"","#, &[ASK]),
            claude_with("claude-3-haiku", r#""system":[{"type":"text","text":""}],"#, &[ASK]),
        ),
        case(Law::TextLength, Chat, long(1_048_576), long(1_048_577)),
        case(
            Law::TextLength,
            Responses,
            input(&[&function_call("a"), &output("a").replace("ok", &"x".repeat(10_485_760))]),
            input(&[&function_call("a"), &output("a").replace("ok", &"x".repeat(10_485_761))]),
        ),
        case(
            Law::CallsNotEmpty,
            Chat,
            chat(&[ASK, r#"{"role":"assistant","content":"x"}"#]),
            chat(&[ASK, r#"{"role":"assistant","content":"x","tool_calls":[ ]}"#]),
        ),
        case(Law::CallsPerMessage, Chat, many(128), many(129)),
    ]
}

fn reasoning() -> Vec<Case> {
    let thought = r#"{"type":"thinking","thinking":"hm","signature":"s"}"#;
    let said = r#"{"type":"text","text":"hm"}"#;
    let (a, ra) = (tool_use("a"), tool_result("a"));
    let manual = |messages: &[&str]| {
        let fields = format!(r#"{SH}"thinking":{{"type":"enabled","budget_tokens":9}},"#);
        claude_with("claude-sonnet-4-5", &fields, messages)
    };
    let mode = |model: &str, mode: &str| claude_with(model, &format!(r#""thinking":{{"type":"{mode}"}},"#), &[ASK]);
    let managed = |edits: &str| {
        claude_with("claude-opus-4-8", &format!(r#""context_management":{{"edits":[{edits}]}},"#), &[ASK])
    };
    let (clear, uses_gone) = (r#"{"type":"clear_thinking_20251015"}"#, r#"{"type":"clear_tool_uses_20250919"}"#);
    let bound = |mode: &str| {
        let fields = format!(r#""thinking":{{"type":"{mode}","block_binding":{{}}}},"#);
        claude_with("claude-opus-4-8", &fields, &[ASK])
    };
    let deepseek = |messages: &[&str]| format!(r#"{{"model":"deepseek-v4-pro","messages":[{}]}}"#, messages.join(","));
    let gemini =
        |messages: &[&str]| format!(r#"{{"model":"gemini-3-pro-preview","messages":[{}]}}"#, messages.join(","));
    let reasoned = |it: &str| it.replacen('{', r#"{"reasoning_content":"","#, 1);
    let signed = |it: &str| it.replacen(r#"{"id""#, r#"{"extra_content":{"google":{"thought_signature":"s"}},"id""#, 1);
    let item = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}"#;
    let local =
        |content: &str| format!(r#"{{"input":[{{"type":"reasoning","summary":[],"content":[{content}]}},{ASK}]}}"#);
    vec![
        case(
            Law::ThinkingSealed,
            Anthropic,
            claude(&[ASK, &uses(&format!("{thought},{said}")), ASK]),
            claude(&[ASK, &uses(&format!(r#"{{"type":"thinking","thinking":"hm"}},{said}"#)), ASK]),
        ),
        case(
            Law::ThinkingFirst,
            Anthropic,
            manual(&[
                ASK,
                &uses(&format!("{thought},{a}")),
                &answers(&ra),
                &uses(&tool_use("b")),
                &answers(&tool_result("b")),
            ]),
            manual(&[ASK, &uses(&a), &answers(&ra)]),
        ),
        case(
            Law::ClearThinkingFirst,
            Anthropic,
            managed(&format!("{clear},{uses_gone}")),
            managed(&format!("{uses_gone},{clear}")),
        ),
        case(Law::BindingNeedsThinking, Anthropic, bound("adaptive"), bound("disabled")),
        case(Law::NoManualThinking, Anthropic, mode("claude-opus-4-8", "adaptive"), mode("claude-opus-4-8", "enabled")),
        case(
            Law::NoAdaptiveThinking,
            Anthropic,
            mode("claude-opus-4-5", "enabled"),
            mode("claude-opus-4-5", "adaptive"),
        ),
        case(
            Law::NoDisabledThinking,
            Anthropic,
            mode("claude-fable-5", "adaptive"),
            mode("claude-fable-5", "disabled"),
        ),
        case(
            Law::ReasoningBack,
            Chat,
            deepseek(&[ASK, &reasoned(&calls(&["a"])), &tool("a"), &reasoned(&calls(&["b"])), &tool("b")]),
            deepseek(&[ASK, &reasoned(&calls(&["a"])), &tool("a"), &calls(&["b"]), &tool("b")]),
        ),
        case(
            Law::ThoughtSignature,
            Chat,
            gemini(&[ASK, &calls(&["a"]), &tool("a"), ASK, &signed(&calls(&["b"])), &tool("b")]),
            gemini(&[ASK, &calls(&["a"]), &tool("a")]),
        ),
        case(
            Law::ReasoningFollowed,
            Responses,
            input(&[item, &item.replace("rs_1", "rs_2"), &function_call("a"), &output("a")]),
            input(&[item, ASK]),
        ),
        case(
            Law::ReasoningSealed,
            Responses,
            input(&[item, &function_call("a"), &output("a")]),
            input(&[r#"{"type":"reasoning","id":"rs_1","summary":[]}"#, &function_call("a"), &output("a")]),
        ),
        case(
            Law::ReasoningSummary,
            Responses,
            input(&[item, &function_call("a"), &output("a")]),
            input(&[&item.replace(r#""summary":[],"#, ""), &function_call("a"), &output("a")]),
        ),
        case(
            Law::ReasoningWithoutContent,
            Responses,
            input(&[&item.replacen('{', r#"{"content":[],"#, 1), &function_call("a"), &output("a")]),
            input(&[
                &item.replacen('{', r#"{"content":[{"type":"reasoning_text","text":"x"}],"#, 1),
                &function_call("a"),
                &output("a"),
            ]),
        ),
        served_items(
            Law::ReasoningWithContent,
            Server::LlamaCpp,
            local(r#"{"type":"reasoning_text","text":"x"}"#),
            local(""),
        ),
        case(
            Law::CompactionSealed,
            Responses,
            input(&[r#"{"type":"compaction","encrypted_content":"e"}"#, ASK]),
            input(&[r#"{"type":"compaction"}"#, ASK]),
        ),
    ]
}

fn tools() -> Vec<Case> {
    let declared = |list: &str| claude_with("claude-sonnet-4-5", &format!(r#""tools":[{list}],"#), &[ASK]);
    let named = |name: &str| format!(r#"{{"name":"{name}","input_schema":{{}}}}"#);
    let function = |name: &str| format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#);
    let functions = |count: usize| {
        let list: Vec<String> = (0..count).map(|at| function(&format!("f{at}"))).collect();
        gpt(&format!(r#""tools":[{}],"#, list.join(",")), &[ASK])
    };
    let choice = |name: &str| {
        let fields = format!(
            r#""tools":[{}],"tool_choice":{{"type":"function","function":{{"name":"{name}"}}}},"#,
            function("sh")
        );
        gpt(&fields, &[ASK])
    };
    let strict = |schema: &str| {
        gpt(
            &format!(
                r#""tools":[{{"type":"function","function":{{"name":"f","strict":true,"parameters":{schema}}}}}],"#
            ),
            &[ASK],
        )
    };
    let inner =
        r#"{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"additionalProperties":false}"#;
    let outer = |inner: &str| {
        format!(
            r#"{{"type":"object","properties":{{"l":{{"type":"array","items":{inner}}}}},"required":["l"],"additionalProperties":false}}"#
        )
    };
    let forced = |model: &str, thinking: &str, choice: &str| {
        claude_with(model, &format!(r#"{SH}{thinking}"tool_choice":{{"type":"{choice}"}},"#), &[ASK])
    };
    let manual = r#""thinking":{"type":"enabled","budget_tokens":9},"#;
    let reference = |name: &str| {
        let content = format!(r#"[{{"type":"tool_reference","tool_name":"{name}"}}]"#);
        let result = tool_result("a").replace(r#""ok""#, &content);
        claude(&[ASK, &uses(&tool_use("a")), &answers(&result)])
    };
    let used = [uses(&tool_use("a")), answers(&tool_result("a"))].join(",");
    vec![
        case(Law::ReferenceDeclared, Anthropic, reference("sh"), reference("gone")),
        case(
            Law::NoForceWithThinking,
            Anthropic,
            forced("claude-opus-4-5", manual, "auto"),
            forced("claude-opus-4-5", manual, "any"),
        ),
        case(Law::NoForce, Anthropic, forced("claude-opus-5-5", "", "none"), forced("claude-opus-5-5", "", "tool")),
        case(Law::ToolsDeclared, Anthropic, claude(&[ASK, &used]), claude_with("claude-sonnet-4-5", "", &[ASK, &used])),
        case(Law::ToolName, Anthropic, declared(&named("mcp__x-1")), declared(&named("a.b"))),
        case(Law::ToolName, Anthropic, declared(&named(&"f".repeat(128))), declared(&named(&"f".repeat(129)))),
        case(
            Law::ToolName,
            Chat,
            gpt(&format!(r#""tools":[{}],"#, function("f")), &[ASK]),
            gpt(&format!(r#""tools":[{}],"#, function(&"f".repeat(65))), &[ASK]),
        ),
        case(
            Law::ToolNameUnique,
            Anthropic,
            declared(&[named("a"), named("b")].join(",")),
            declared(&[named("a"), named("a")].join(",")),
        ),
        // An empty list is no fault by itself: Claude Code asks for titles with one.
        case(
            Law::ToolsDeclared,
            Anthropic,
            declared(""),
            claude_with("claude-sonnet-4-5", r#""tools":[],"#, &[ASK, &used]),
        ),
        case(Law::ToolsNotEmpty, Chat, gpt(r#""tools":null,"#, &[ASK]), gpt(r#""tools":[],"#, &[ASK])),
        case(
            Law::SomeToolAtHand,
            Anthropic,
            declared(&[named("a"), named("b").replacen('{', r#"{"defer_loading":true,"#, 1)].join(",")),
            declared(&named("b").replacen('{', r#"{"defer_loading":true,"#, 1)),
        ),
        case(Law::ToolCount, Chat, functions(128), functions(129)),
        case(Law::ChoiceNeedsTools, Chat, choice("sh"), gpt(r#""tool_choice":"auto","#, &[ASK])),
        case(Law::ChoiceDeclared, Chat, choice("sh"), choice("gone")),
        served(
            Law::ChoiceNeedsTools,
            Server::Vllm,
            chat(&[ASK]),
            format!(r#"{{"tool_choice":"auto","messages":[{ASK}]}}"#),
        ),
        case(Law::StrictSchema, Chat, strict(&outer(inner)), strict(&outer(&inner.replace(r#"["x"]"#, "[]")))),
        case(
            Law::FunctionNamed,
            Responses,
            r#"{"tools":[{"type":"web_search"},{"type":"function","name":"f"}],"input":"go"}"#,
            r#"{"tools":[{"type":"function"}],"input":"go"}"#,
        ),
    ]
}

fn arguments() -> Vec<Case> {
    let object = |json: &str| {
        let call = tool_use("a").replace(r#""input":{}"#, &format!(r#""input":{json}"#));
        claude(&[ASK, &uses(&call), &answers(&tool_result("a"))])
    };
    let text = |json: &str| chat(&[ASK, &calls(&["a"]).replace(r#""{}""#, json), &tool("a")]);
    let custom = r#"{"role":"assistant","tool_calls":[{"id":"a","type":"custom","custom":{"name":"p","input":"x"}}]}"#;
    vec![
        case(Law::ArgumentsObject, Anthropic, object(r#"{"x":[1]}"#), object(r#""{}""#)),
        served(Law::ArgumentsObject, Server::Vllm, text(r#""{\"x\":1}""#), text(r#""{\"x\":1""#)),
        served(Law::ArgumentsObject, Server::Local, text(r#""{}""#), text(r#""[]""#)),
        case(Law::ArgumentsText, Chat, text(r#""not JSON""#), text("{}")),
        case(
            Law::ArgumentsText,
            Responses,
            input(&[&function_call("a"), &output("a")]),
            input(&[&function_call("a").replace(r#""{}""#, "{}"), &output("a")]),
        ),
        served(
            Law::FunctionCallsOnly,
            Server::Vllm,
            chat(&[ASK, &calls(&["a"]), &tool("a")]),
            chat(&[ASK, custom, &tool("a")]),
        ),
    ]
}

fn cache_marks() -> Vec<Case> {
    let text = |mark: &str| format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"{mark}}}]}}"#);
    let short = r#","cache_control":{"type":"ephemeral"}"#;
    let long = r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#;
    let system = |mark: &str| format!(r#""system":[{{"type":"text","text":"x"{mark}}}],"#);
    let top = r#""cache_control":{"type":"ephemeral"},"#;
    let marked = |fields: &str, marks: &[&str]| {
        let messages: Vec<String> = marks.iter().map(|mark| text(mark)).collect();
        claude_with("claude-opus-4-8", fields, &messages.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let thought = |mark: &str| {
        let thought =
            format!(r#"{{"type":"thinking","thinking":"x","signature":"s"{mark}}},{{"type":"text","text":"y"}}"#);
        claude_with("claude-opus-4-8", "", &[ASK, &uses(&thought), ASK])
    };
    let kept = |life: &str| gpt(&format!(r#""prompt_cache_options":{{"ttl":"{life}"}},"#), &[ASK]);
    vec![
        case(
            Law::CacheMarkCount,
            Anthropic,
            marked(&format!("{top}{}", system(short)), &[short, short, ""]),
            marked(&format!("{top}{}", system(short)), &[short, short, short, ""]),
        ),
        // The word inside a text is no mark.
        case(
            Law::CacheMarkCount,
            Anthropic,
            marked("", &[short, r#","cache_control":null"#, short, short, short])
                .replace(r#""x""#, r#""say \"cache_control\"""#),
            marked("", &[short, short, short, short, short]),
        ),
        case(Law::CacheMarkOrder, Anthropic, marked(&system(long), &[long, short]), marked(&system(short), &[long])),
        case(Law::CacheMarkPlace, Anthropic, thought(""), thought(short)),
        case(Law::CacheMarkPlace, Anthropic, marked(top, &[short]), marked(top, &[long])),
        case(Law::CacheLife, Chat, kept("30m"), kept("1h")),
    ]
}

fn media() -> Vec<Case> {
    let images = |count: usize, source: &str| {
        let block = format!(r#"{{"type":"image","source":{source}}}"#);
        claude(&[&answers(&vec![block; count].join(","))])
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
        case(Law::ImageCount, Anthropic, images(100, link), images(101, link)),
        case(Law::ImageBytes, Anthropic, sized(10 << 20), sized((10 << 20) + 1)),
        case(Law::ImagePixels, Anthropic, images(1, &png(8000)), images(1, &png(8001))),
        case(Law::ImageKind, Anthropic, images(1, &png(1)), images(1, r#"{"type":"base64","data":"QkA="}"#)),
        served(
            Law::PartKind,
            Server::LlamaCpp,
            part(r#"{"type":"input_audio","input_audio":{}}"#),
            part(r#"{"type":"file","file":{"file_id":"f"}}"#),
        ),
    ]
}

impl Case {
    /// The same case, judged without laws that it breaks on the way.
    fn without(mut self, laws: &[Law]) -> Self {
        self.profile = laws.iter().fold(self.profile, |profile, law| profile.without(*law));
        self
    }
}

fn all() -> Vec<Case> {
    [pairing(), roles(), texts(), reasoning(), tools(), arguments(), cache_marks(), media()]
        .into_iter()
        .flatten()
        .collect()
}

fn short(body: &str) -> String {
    body.chars().take(600).collect()
}

#[test]
fn a_request_that_breaks_one_law_is_found_to_break_that_law() {
    for Case { law, profile, breaks, .. } in all() {
        let request = Request::parse(profile.format(), breaks.as_bytes()).unwrap();
        let found: BTreeSet<Law> = check(&request, &profile).into_iter().map(|violation| violation.law).collect();
        assert_eq!(found, BTreeSet::from([law]), "{}", short(&breaks));
    }
}

#[test]
fn a_request_that_keeps_the_laws_is_found_to_break_none() {
    for Case { law, profile, keeps, .. } in all() {
        let request = Request::parse(profile.format(), keeps.as_bytes()).unwrap();
        // Judged for the model that it names itself.
        let profile =
            if law == Law::CallIdTail || law == Law::NoSystemInside { Profile::of_request(&request) } else { profile };
        assert_eq!(check(&request, &profile), [], "{law}: {}", short(&keeps));
    }
}

#[test]
fn every_law_on_requests_has_an_example() {
    let shown: BTreeSet<Law> = all().into_iter().map(|case| case.law).collect();
    // Tests of their own have the large ones.
    let apart = [Law::MessageCount, Law::BodySize];
    let unseen: Vec<Law> = Law::all()
        .filter(|law| law.topic() != Topic::Rewriting && !shown.contains(law) && !apart.contains(law))
        .collect();
    assert_eq!(unseen, [] as [Law; 0]);
}

#[test]
fn a_request_may_not_be_too_large() {
    let broken = |body: String| {
        let request = Request::parse(Anthropic, body.as_bytes()).unwrap();
        check(&request, &Profile::of_request(&request)).into_iter().map(|violation| violation.law).collect::<Vec<_>>()
    };
    assert_eq!(broken(claude(&vec![ASK; 100_000])), []);
    assert_eq!(broken(claude(&vec![ASK; 100_001])), [Law::MessageCount]);
    assert_eq!(broken(claude(&[&ASK.replace("go", &"x".repeat(31 << 20))])), []);
    assert_eq!(broken(claude(&[&ASK.replace("go", &"x".repeat(32 << 20))])), [Law::BodySize]);
}

/// Results of calls that the provider holds look like orphans, and the first message like a reply.
#[test]
fn a_continuation_is_not_judged_by_pairs() {
    let thread = r#"{"model":"claude-opus-4-8","thread":{"type":"continue","previous_message_id":"msg_1"},"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"ok"}]}]}"#;
    let request = Request::parse(Anthropic, thread.as_bytes()).unwrap();
    assert_eq!(check(&request, &Profile::of_request(&request)), []);

    let items = format!(r#"{{"previous_response_id":"resp_1","input":[{}]}}"#, output("call_1"));
    let request = Request::parse(Responses, items.as_bytes()).unwrap();
    assert_eq!(check(&request, &Profile::of_request(&request)), []);
}

/// The client or the provider may have run it; what it found stands in the result as it is.
#[test]
fn a_tool_search_with_its_output_breaks_no_law() {
    let body = br#"{"input":[{"type":"message","role":"user","content":"go"},
        {"type":"tool_search_call","call_id":"call_1","execution":"client","arguments":{"query":"git"}},
        {"type":"tool_search_output","call_id":"call_1","tools":[{"type":"function","name":"git"}]}]}"#;
    let request = Request::parse(Responses, body).unwrap();
    assert_eq!(check(&request, &Profile::of_request(&request)), []);
}

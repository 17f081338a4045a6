//! Comparison of a rewritten request with the client's: one scenario per law.

use super::super::{CutPoints, Law, LawProfile, LawTopic, RewriteContext, ThinkingTreatment, compare};
use crate::conversation::{PartId, Role};
use crate::wire::{Format, Request, RequestEdit};
use std::collections::BTreeSet;

const INJECTED_TOOL: &str = r#"{"name":"unfold","input_schema":{"type":"object"}}"#;

fn claude(model: &str, messages: &[&str]) -> String {
    let tools = r#""tools":[{"name":"sh","input_schema":{"type":"object"}}]"#;
    format!(
        r#"{{"model":"{model}","max_tokens":9,"thinking":{{"type":"adaptive"}},{tools},"messages":[{}]}}"#,
        messages.join(",")
    )
}

/// Returns a turn of thinking, a call and its result.
fn round(id: usize) -> String {
    format!(
        r#"{{"role":"assistant","content":[{{"type":"thinking","thinking":"hm {id}","signature":"s{id}"}},{{"type":"tool_use","id":"t{id}","name":"sh","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{id}","content":"out {id}"}}]}}"#
    )
}

/// Returns a session: message 0 is the user's, 1 and 2 are the first round, and so on.
fn session(model: &str) -> String {
    claude(model, &[r#"{"role":"user","content":"go"}"#, &round(1), &round(2), &round(3)])
}

fn broken_laws(
    body: &str,
    format: Format,
    edits: &[RequestEdit],
    configure: impl Fn(&mut RewriteContext<'_>),
) -> Vec<Law> {
    let client = Request::parse(format, body.as_bytes()).unwrap();
    let bytes = client.splice(edits).unwrap();
    let rewritten = Request::parse(format, &bytes).unwrap();
    let profile = LawProfile::for_request(&client);
    let mut rewrite = RewriteContext::new(&profile);
    configure(&mut rewrite);
    compare(&client, &rewritten, &rewrite).into_iter().map(|violation| violation.law).collect()
}

fn unchanged(_: &mut RewriteContext<'_>) {}

fn fold_edit(message: usize) -> RequestEdit {
    RequestEdit::Text { at: PartId::new(message, 0), text: "[folded]".into() }
}

fn drop_thinking(message: usize) -> RequestEdit {
    RequestEdit::DropPart(PartId::new(message, 0))
}

#[test]
fn old_result_may_be_folded_if_history_is_unsigned() {
    let body = session("claude-opus-4-8");
    assert_eq!(broken_laws(&body, Format::Anthropic, &[fold_edit(2)], unchanged), []);
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &[RequestEdit::DropMessage(1), RequestEdit::DropMessage(2)], unchanged),
        []
    );
}

#[test]
fn thinking_after_an_edit_is_dropped_if_history_is_signed() {
    let body = session("claude-fable-5-2");
    assert_eq!(broken_laws(&body, Format::Anthropic, &[fold_edit(2)], unchanged), [Law::ReasoningAfterEdit]);
    // Thinking that was produced after the fold is bound to it.
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &[fold_edit(2)], |rewrite| rewrite.thinking_valid_from = Some(3)),
        []
    );
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &[fold_edit(2)], |rewrite| rewrite.thinking =
            ThinkingTreatment::DropBlock),
        []
    );
    // Removed thinking must be declared, or the newest turn differs from the client's.
    let strip = [fold_edit(2), drop_thinking(3), drop_thinking(5)];
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &strip, |rewrite| rewrite.thinking = ThinkingTreatment::Stripped),
        []
    );
    assert_eq!(broken_laws(&body, Format::Anthropic, &strip, unchanged), [Law::NewestTurnKept]);
}

#[test]
fn kept_thinking_is_contiguous_if_history_is_signed() {
    let body = session("claude-opus-5-5");
    assert_eq!(broken_laws(&body, Format::Anthropic, &[drop_thinking(3)], unchanged), [Law::ReasoningContiguous]);
    assert_eq!(broken_laws(&body, Format::Anthropic, &[drop_thinking(1)], unchanged), []);
    assert_eq!(broken_laws(&session("claude-opus-4-8"), Format::Anthropic, &[drop_thinking(3)], unchanged), []);
}

#[test]
fn newest_turn_and_last_message_are_kept() {
    let body = session("claude-opus-4-8");
    let found = broken_laws(&body, Format::Anthropic, &[fold_edit(6)], unchanged);
    assert_eq!(found, [Law::LastMessageKept, Law::NewestTurnKept]);
    assert_eq!(broken_laws(&body, Format::Anthropic, &[drop_thinking(5)], unchanged), [Law::NewestTurnKept]);
}

#[test]
fn dropping_a_call_drops_its_result() {
    let found = broken_laws(&session("claude-opus-4-8"), Format::Anthropic, &[RequestEdit::DropMessage(1)], unchanged);
    assert_eq!(found, [Law::ResultHasCall]);
    let found = broken_laws(
        &session("claude-opus-4-8"),
        Format::Anthropic,
        &[fold_edit(2), RequestEdit::DropMessage(0)],
        unchanged,
    );
    assert_eq!(found, [Law::FirstIsUser]);
}

#[test]
fn fold_leaves_no_blank_text_and_arguments_stay_objects() {
    let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"x"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
    let text = |text: &str| RequestEdit::Text { at: PartId::new(2, 0), text: text.into() };
    let arguments = |json: &str| RequestEdit::Arguments { at: PartId::new(1, 1), arguments: json.into() };
    // The client's own empty text is not reported.
    assert_eq!(broken_laws(body, Format::OpenAiChat, &[text("[folded]")], unchanged), []);
    assert_eq!(broken_laws(body, Format::OpenAiChat, &[text("  ")], unchanged), [Law::TextNotBlank]);
    // It does not hide a new one.
    assert_eq!(broken_laws(body, Format::OpenAiChat, &[text("")], unchanged), [Law::TextNotBlank]);
    let emptied = RequestEdit::Text { at: PartId::new(0, 0), text: String::new() };
    assert_eq!(broken_laws(body, Format::OpenAiChat, &[emptied], unchanged), [Law::TextNotBlank]);
    assert_eq!(broken_laws(body, Format::OpenAiChat, &[arguments(r#"{"a":1}"#)], unchanged), []);
    assert_eq!(broken_laws(body, Format::OpenAiChat, &[arguments("[]")], unchanged), [Law::ArgumentsObject]);
}

#[test]
fn ids_are_from_client_or_injected_calls() {
    let body = session("claude-opus-4-8");
    let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"t9","name":"sh","input":{}}]}"#;
    let result = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t9","content":"x"}]}"#;
    let insert = [call, result].map(|json| RequestEdit::InsertJson { before: 3, json: json.into() });
    let found = broken_laws(&body, Format::Anthropic, &insert, unchanged);
    assert_eq!(found, [Law::IdsKept, Law::IdsKept]);
    assert_eq!(broken_laws(&body, Format::Anthropic, &insert, |rewrite| rewrite.injected_call_ids = &["t9"]), []);
}

#[test]
fn tools_are_from_client_plus_the_injected_one() {
    let body = session("claude-opus-4-8");
    let append = [RequestEdit::AppendTool { json: INJECTED_TOOL.into() }];
    assert_eq!(broken_laws(&body, Format::Anthropic, &append, unchanged), [Law::ToolsKept]);
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &append, |rewrite| rewrite.injected_tool = Some(INJECTED_TOOL)),
        []
    );
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &[], |rewrite| rewrite.injected_tool = Some(INJECTED_TOOL)),
        [Law::ToolsKept]
    );
}

#[test]
fn reasoning_is_never_invented() {
    let body = session("claude-opus-4-8");
    let synthetic = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"aha","signature":"s"},{"type":"text","text":"x"}]}"#;
    let insert = [RequestEdit::InsertJson { before: 3, json: synthetic.into() }];
    let found = broken_laws(&body, Format::Anthropic, &insert, unchanged);
    assert_eq!(found, [Law::ReasoningKept, Law::NoMergedThinking]);
}

#[test]
fn assistant_messages_with_thinking_are_not_merged() {
    let answer = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"a"},{"type":"text","text":"a"}]}"#;
    let prompt = r#"{"role":"user","content":"b"}"#;
    let body = claude("claude-opus-4-8", &[prompt, answer, prompt, &answer.replace("\"a\"", "\"c\""), prompt]);
    assert_eq!(
        broken_laws(&body, Format::Anthropic, &[RequestEdit::DropMessage(2)], unchanged),
        [Law::NoMergedThinking]
    );
}

#[test]
fn call_keeps_its_reasoning_if_the_model_requires_it() {
    let call = |id: &str| {
        format!(
            r#"{{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#
        )
    };
    let body = format!(
        r#"{{"model":"deepseek-v4-pro","messages":[{{"role":"user","content":"a"}},{},{}]}}"#,
        call("c1"),
        call("c2")
    );
    let found: BTreeSet<Law> =
        broken_laws(&body, Format::OpenAiChat, &[RequestEdit::DropPart(PartId::new(1, 0))], unchanged)
            .into_iter()
            .collect();
    assert_eq!(found, BTreeSet::from([Law::ReasoningReturned, Law::CallReasoningKept]));
    assert_eq!(
        broken_laws(
            &body.replace("deepseek-v4-pro", "qwen3"),
            Format::OpenAiChat,
            &[RequestEdit::DropPart(PartId::new(1, 0))],
            unchanged
        ),
        []
    );
}

#[test]
fn opaque_blocks_are_unchanged() {
    let search = r#"{"role":"assistant","content":[{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}]}"#;
    let prompt = r#"{"role":"user","content":"b"}"#;
    let body = claude("claude-opus-4-8", &[prompt, search, prompt, &round(1)]);
    let replaced = [
        RequestEdit::DropMessage(1),
        RequestEdit::InsertJson { before: 1, json: search.replace("[]}]", r#"["x"]}]"#) },
    ];
    assert_eq!(broken_laws(&body, Format::Anthropic, &replaced, unchanged), [Law::OpaqueKept]);
    assert_eq!(broken_laws(&body, Format::Anthropic, &[RequestEdit::DropMessage(1)], unchanged), []);
    let half = [RequestEdit::DropPart(PartId::new(1, 0))];
    assert_eq!(broken_laws(&body, Format::Anthropic, &half, unchanged), [Law::ServerPair]);
}

#[test]
fn reasoning_item_is_dropped_with_its_following_item() {
    let body = r#"{"model":"gpt-5.5","store":false,"input":[{"role":"user","content":"a"},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"y"}]},{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]}"#;
    let dropped = |at: &[usize]| {
        broken_laws(
            body,
            Format::OpenAiResponses,
            &at.iter().map(|at| RequestEdit::DropMessage(*at)).collect::<Vec<_>>(),
            unchanged,
        )
    };
    assert_eq!(dropped(&[1]), [Law::ReasoningPairKept]);
    assert_eq!(dropped(&[2]), [Law::ReasoningPairKept]);
    assert_eq!(dropped(&[1, 2]), []);
    assert_eq!(dropped(&[1, 2, 3]), []);
}

#[test]
fn duplicate_item_is_not_reported_as_missing_reasoning() {
    let body = r#"{"model":"gpt-5.5","store":false,"input":[{"role":"user","content":"a"},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"role":"user","content":"b"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"role":"user","content":"c"}]}"#;
    assert_eq!(broken_laws(body, Format::OpenAiResponses, &[], unchanged), []);
}

#[test]
fn violations_of_the_client_are_not_reported() {
    let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"tool","tool_call_id":"lost","content":"x"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
    let insert = [RequestEdit::InsertMessage { before: 1, role: Role::User, text: "a note".into() }];
    assert_eq!(broken_laws(body, Format::OpenAiChat, &insert, unchanged), []);
}

#[test]
fn every_rewrite_law_has_a_scenario() {
    let source = include_str!("comparisons.rs");
    for law in Law::all().filter(|law| law.topic() == LawTopic::RewrittenRequest) {
        assert!(source.contains(&format!("Law::{law:?}")), "{law:?}");
    }
}

#[test]
fn empty_item_is_not_reasoning() {
    let body = r#"{"model":"gpt-5.5","input":[{"role":"user","content":"a"},{"type":"message","id":"msg_1","role":"user"},{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]}"#;
    assert_eq!(broken_laws(body, Format::OpenAiResponses, &[RequestEdit::DropMessage(1)], unchanged), []);
}

/// Without the user message after the unanswered call, the call would be in the newest turn and look
/// pending.
#[test]
fn message_after_unanswered_server_call_is_not_dropped() {
    let call = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    // A block that names the call but is not a result does not answer it.
    let stray = r#"{"type":"of_tomorrow","tool_use_id":"srvtoolu_1"}"#;
    for blocks in [call.to_owned(), format!("{call},{stray}")] {
        let body = format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":9,"tools":[{{"name":"sh"}}],"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":[{blocks}]}},{{"role":"user","content":"b"}},{{"role":"assistant","content":"c"}},{{"role":"user","content":"d"}}]}}"#
        );
        let request = Request::parse(Format::Anthropic, body.as_bytes()).unwrap();
        let may_drop =
            |run| CutPoints::for_conversation(request.conversation(), &LawProfile::for_request(&request)).may_drop(run);
        assert!(!may_drop(2..3), "{blocks}");
        assert!(may_drop(1..3), "{blocks}");
    }
}

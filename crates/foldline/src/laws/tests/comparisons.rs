//! What a rewritten request owes to the client's: one scenario a law.

use super::super::{Cuts, Law, Profile, Rewriting, Thinking, Topic, compare};
use crate::conversation::{PartId, Role};
use crate::wire::{Edit, Format, Request};
use std::collections::BTreeSet;

const OUR_TOOL: &str = r#"{"name":"unfold","input_schema":{"type":"object"}}"#;

fn claude(model: &str, messages: &[&str]) -> String {
    let tools = r#""tools":[{"name":"sh","input_schema":{"type":"object"}}]"#;
    format!(
        r#"{{"model":"{model}","max_tokens":9,"thinking":{{"type":"adaptive"}},{tools},"messages":[{}]}}"#,
        messages.join(",")
    )
}

/// A turn of thinking, a call and its result.
fn round(id: usize) -> String {
    format!(
        r#"{{"role":"assistant","content":[{{"type":"thinking","thinking":"hm {id}","signature":"s{id}"}},{{"type":"tool_use","id":"t{id}","name":"sh","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{id}","content":"out {id}"}}]}}"#
    )
}

/// Message 0 is the user's, 1 and 2 the first round, and so on.
fn session(model: &str) -> String {
    claude(model, &[r#"{"role":"user","content":"go"}"#, &round(1), &round(2), &round(3)])
}

fn broken(body: &str, format: Format, edits: &[Edit], rewriting: impl Fn(&mut Rewriting<'_>)) -> Vec<Law> {
    let client = Request::parse(format, body.as_bytes()).unwrap();
    let bytes = client.splice(edits).unwrap();
    let rewritten = Request::parse(format, &bytes).unwrap();
    let profile = Profile::of_request(&client);
    let mut it = Rewriting::new(&profile);
    rewriting(&mut it);
    compare(&client, &rewritten, &it).into_iter().map(|violation| violation.law).collect()
}

fn plain(_: &mut Rewriting<'_>) {}

fn fold(message: usize) -> Edit {
    Edit::Text { at: PartId::new(message, 0), text: "[folded]".into() }
}

fn thinking(message: usize) -> Edit {
    Edit::DropPart(PartId::new(message, 0))
}

#[test]
fn an_old_result_may_be_folded_where_history_is_not_signed() {
    let body = session("claude-opus-4-8");
    assert_eq!(broken(&body, Format::Anthropic, &[fold(2)], plain), []);
    assert_eq!(broken(&body, Format::Anthropic, &[Edit::DropMessage(1), Edit::DropMessage(2)], plain), []);
}

#[test]
fn thinking_behind_an_edit_must_go_where_history_is_signed() {
    let body = session("claude-fable-5-2");
    assert_eq!(broken(&body, Format::Anthropic, &[fold(2)], plain), [Law::ReasoningBound]);
    // Thinking that was produced after the fold is bound to it.
    assert_eq!(broken(&body, Format::Anthropic, &[fold(2)], |it| it.settled = Some(3)), []);
    assert_eq!(broken(&body, Format::Anthropic, &[fold(2)], |it| it.thinking = Thinking::DropBlock), []);
    // A strip is a strip of all of it; without saying so, the newest turn is not the client's.
    let strip = [fold(2), thinking(3), thinking(5)];
    assert_eq!(broken(&body, Format::Anthropic, &strip, |it| it.thinking = Thinking::Stripped), []);
    assert_eq!(broken(&body, Format::Anthropic, &strip, plain), [Law::NewestTurnKept]);
}

#[test]
fn kept_thinking_is_one_run_where_history_is_signed() {
    let body = session("claude-opus-5-5");
    assert_eq!(broken(&body, Format::Anthropic, &[thinking(3)], plain), [Law::ReasoningRun]);
    assert_eq!(broken(&body, Format::Anthropic, &[thinking(1)], plain), []);
    assert_eq!(broken(&session("claude-opus-4-8"), Format::Anthropic, &[thinking(3)], plain), []);
}

#[test]
fn the_newest_turn_and_the_last_message_are_kept() {
    let body = session("claude-opus-4-8");
    let found = broken(&body, Format::Anthropic, &[fold(6)], plain);
    assert_eq!(found, [Law::LastMessageKept, Law::NewestTurnKept]);
    assert_eq!(broken(&body, Format::Anthropic, &[thinking(5)], plain), [Law::NewestTurnKept]);
}

#[test]
fn no_result_is_left_behind_when_a_call_goes() {
    let found = broken(&session("claude-opus-4-8"), Format::Anthropic, &[Edit::DropMessage(1)], plain);
    assert_eq!(found, [Law::ResultHasCall]);
    let found = broken(&session("claude-opus-4-8"), Format::Anthropic, &[fold(2), Edit::DropMessage(0)], plain);
    assert_eq!(found, [Law::FirstIsUser]);
}

#[test]
fn a_fold_leaves_no_blank_text_and_arguments_stay_objects() {
    let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"x"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
    let text = |text: &str| Edit::Text { at: PartId::new(2, 0), text: text.into() };
    let arguments = |json: &str| Edit::Arguments { at: PartId::new(1, 1), arguments: json.into() };
    // The client's own empty text is not held against us.
    assert_eq!(broken(body, Format::OpenAiChat, &[text("[folded]")], plain), []);
    assert_eq!(broken(body, Format::OpenAiChat, &[text("  ")], plain), [Law::TextNotBlank]);
    // Nor does it excuse one of ours.
    assert_eq!(broken(body, Format::OpenAiChat, &[text("")], plain), [Law::TextNotBlank]);
    let emptied = Edit::Text { at: PartId::new(0, 0), text: String::new() };
    assert_eq!(broken(body, Format::OpenAiChat, &[emptied], plain), [Law::TextNotBlank]);
    assert_eq!(broken(body, Format::OpenAiChat, &[arguments(r#"{"a":1}"#)], plain), []);
    assert_eq!(broken(body, Format::OpenAiChat, &[arguments("[]")], plain), [Law::ArgumentsObject]);
}

#[test]
fn ids_are_the_clients_or_of_a_call_of_ours() {
    let body = session("claude-opus-4-8");
    let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"t9","name":"sh","input":{}}]}"#;
    let result = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t9","content":"x"}]}"#;
    let insert = [call, result].map(|json| Edit::InsertJson { before: 3, json: json.into() });
    let found = broken(&body, Format::Anthropic, &insert, plain);
    assert_eq!(found, [Law::IdsKept, Law::IdsKept]);
    assert_eq!(broken(&body, Format::Anthropic, &insert, |it| it.own_calls = &["t9"]), []);
}

#[test]
fn tools_are_the_clients_and_the_one_that_was_announced() {
    let body = session("claude-opus-4-8");
    let append = [Edit::AppendTool { json: OUR_TOOL.into() }];
    assert_eq!(broken(&body, Format::Anthropic, &append, plain), [Law::ToolsKept]);
    assert_eq!(broken(&body, Format::Anthropic, &append, |it| it.tool = Some(OUR_TOOL)), []);
    assert_eq!(broken(&body, Format::Anthropic, &[], |it| it.tool = Some(OUR_TOOL)), [Law::ToolsKept]);
}

#[test]
fn reasoning_is_never_made_up() {
    let body = session("claude-opus-4-8");
    let made_up = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"aha","signature":"s"},{"type":"text","text":"x"}]}"#;
    let insert = [Edit::InsertJson { before: 3, json: made_up.into() }];
    let found = broken(&body, Format::Anthropic, &insert, plain);
    assert_eq!(found, [Law::ReasoningKept, Law::NoMergedThinking]);
}

#[test]
fn assistant_messages_with_thinking_do_not_meet() {
    let said = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"a"},{"type":"text","text":"a"}]}"#;
    let asked = r#"{"role":"user","content":"b"}"#;
    let body = claude("claude-opus-4-8", &[asked, said, asked, &said.replace("\"a\"", "\"c\""), asked]);
    assert_eq!(broken(&body, Format::Anthropic, &[Edit::DropMessage(2)], plain), [Law::NoMergedThinking]);
}

#[test]
fn a_call_keeps_its_reasoning_where_the_model_wants_it_back() {
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
        broken(&body, Format::OpenAiChat, &[Edit::DropPart(PartId::new(1, 0))], plain).into_iter().collect();
    assert_eq!(found, BTreeSet::from([Law::ReasoningBack, Law::ReasoningWithCalls]));
    assert_eq!(
        broken(
            &body.replace("deepseek-v4-pro", "qwen3"),
            Format::OpenAiChat,
            &[Edit::DropPart(PartId::new(1, 0))],
            plain
        ),
        []
    );
}

#[test]
fn sealed_blocks_are_the_clients() {
    let search = r#"{"role":"assistant","content":[{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}]}"#;
    let asked = r#"{"role":"user","content":"b"}"#;
    let body = claude("claude-opus-4-8", &[asked, search, asked, &round(1)]);
    let replaced = [Edit::DropMessage(1), Edit::InsertJson { before: 1, json: search.replace("[]}]", r#"["x"]}]"#) }];
    assert_eq!(broken(&body, Format::Anthropic, &replaced, plain), [Law::OpaqueKept]);
    assert_eq!(broken(&body, Format::Anthropic, &[Edit::DropMessage(1)], plain), []);
    let half = [Edit::DropPart(PartId::new(1, 0))];
    assert_eq!(broken(&body, Format::Anthropic, &half, plain), [Law::ServerPair]);
}

#[test]
fn a_reasoning_item_goes_with_the_item_behind_it() {
    let body = r#"{"model":"gpt-5.5","store":false,"input":[{"role":"user","content":"a"},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"y"}]},{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]}"#;
    let dropped = |at: &[usize]| {
        broken(body, Format::OpenAiResponses, &at.iter().map(|at| Edit::DropMessage(*at)).collect::<Vec<_>>(), plain)
    };
    assert_eq!(dropped(&[1]), [Law::AtomWhole]);
    assert_eq!(dropped(&[2]), [Law::AtomWhole]);
    assert_eq!(dropped(&[1, 2]), []);
    assert_eq!(dropped(&[1, 2, 3]), []);
}

#[test]
fn an_item_that_the_client_sent_twice_is_not_said_to_have_lost_its_reasoning() {
    let body = r#"{"model":"gpt-5.5","store":false,"input":[{"role":"user","content":"a"},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"role":"user","content":"b"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"role":"user","content":"c"}]}"#;
    assert_eq!(broken(body, Format::OpenAiResponses, &[], plain), []);
}

/// The request that a client sends again after its own mistake is not refused by us.
#[test]
fn what_the_client_broke_is_not_held_against_the_rewriting() {
    let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"tool","tool_call_id":"lost","content":"x"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
    let insert = [Edit::InsertMessage { before: 1, role: Role::User, text: "a note".into() }];
    assert_eq!(broken(body, Format::OpenAiChat, &insert, plain), []);
}

#[test]
fn every_law_of_rewriting_has_its_scenario() {
    let here = include_str!("comparisons.rs");
    for law in Law::all().filter(|law| law.topic() == Topic::Rewriting) {
        assert!(here.contains(&format!("Law::{law:?}")), "{law:?}");
    }
}

#[test]
fn an_item_that_says_nothing_is_no_reasoning() {
    let body = r#"{"model":"gpt-5.5","input":[{"role":"user","content":"a"},{"type":"message","id":"msg_1","role":"user"},{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]}"#;
    assert_eq!(broken(body, Format::OpenAiResponses, &[Edit::DropMessage(1)], plain), []);
}

/// The client left a server tool's call without a result, and an answer of the user behind it. Without that answer the call
/// would stand in the newest turn, as if it were pending.
#[test]
fn what_keeps_an_unanswered_server_call_out_of_the_newest_turn_stays() {
    let call = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    // A block that names the call and is no result of it is no answer.
    let stray = r#"{"type":"of_tomorrow","tool_use_id":"srvtoolu_1"}"#;
    for blocks in [call.to_owned(), format!("{call},{stray}")] {
        let body = format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":9,"tools":[{{"name":"sh"}}],"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":[{blocks}]}},{{"role":"user","content":"b"}},{{"role":"assistant","content":"c"}},{{"role":"user","content":"d"}}]}}"#
        );
        let request = Request::parse(Format::Anthropic, body.as_bytes()).unwrap();
        let may_drop = |run| Cuts::of(request.conversation(), &Profile::of_request(&request)).may_drop(run);
        assert!(!may_drop(2..3), "{blocks}");
        assert!(may_drop(1..3), "{blocks}");
    }
}

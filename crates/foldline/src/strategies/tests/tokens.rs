//! Regression tests of token counts.

use crate::conversation::{ImagePart, Role};
use crate::strategies::tests::support::*;
use crate::strategies::tests::{rounds, user};
use crate::strategies::*;
use crate::tokens::Budget;

#[test]
fn estimate_is_monotone() {
    let text = "a word, 数字 and 👩‍👩‍👧 {\"json\": [1, 2]}  \n\n".repeat(9);
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    assert!(ends.windows(2).all(|pair| estimate_tokens(&text[..pair[0]]) <= estimate_tokens(&text[..pair[1]])));
    assert!(estimate_tokens(&"x".repeat(1_250)) <= estimate_tokens(&format!("{} ", "x".repeat(1_250))));
}

#[test]
fn image_costs_512_tokens() {
    let with = |parts| total_tokens(&conversation_of(vec![Message::new(Role::User, parts)]));
    let image = || Part::Image(ImagePart::default());
    assert_eq!(with(vec![image()]), 512 + 8);
    assert_eq!(with(vec![image(), image(), Part::text("look")]), 2 * 512 + 2 + 8);
}

#[test]
fn tools_and_instructions_count() {
    let plain = conversation_of(vec![user("go")]);
    let tool = crate::conversation::ToolDefinition {
        name: "sh".into(),
        definition: r#"{"name":"sh","description":"runs a command"}"#.into(),
    };
    let with = Conversation { system: vec![Part::text("be brief")], tools: vec![tool], ..plain.clone() };
    assert!(total_tokens(&with) >= total_tokens(&plain) + 10);
}

#[test]
fn output_above_the_window_leaves_zero_budget() {
    assert_eq!(Budget::for_projection(1_000, Some(4_000)).tokens, 0);
    let mut messages = vec![user(&"折叠旧的部分".repeat(2_000))];
    messages.extend(rounds(4, 640));
    let (projected, stats) = compact_to_budget(&messages, 0, &CompactToBudget::default());
    assert!(!stats.fits() && stats.after < stats.before && projected[0] == messages[0]);
    assert!(!terminal_truncate(messages, 0, &TerminalTruncate::default()).fits());
}

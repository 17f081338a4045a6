//! The tool by which a model unfolds what it needs, answered inside the proxy.
//!
//! It is one more tool for the model and none for the client, who never sees it. An answer is bounded,
//! and a fault is told to the model in words that it can act on.

use foldline::wire::{HiddenCall, Offer};
use foldline_archive::{Error, ErrorKind, Shelf, View, view};
use serde::Deserialize;

use super::metrics::{Kind, Metrics};

/// The tool as the model sees it.
pub(crate) const OFFER: Offer<'static> = Offer {
    name: "unfold",
    description: "Get back the original text behind a marker such as [folded: 412 lines of read_file src/main.rs; \
        unfold 7k3q9p2m4x1c], exactly as it was. Long or old parts of this conversation were replaced by such \
        markers; nothing is lost. Use it instead of running a tool again to see what it said then. Ask for lines or \
        grep when a part is enough: a whole text comes in pages of about 4000 tokens.",
    schema: r#"{"type":"object","properties":{"handle":{"type":"string","description":"The handle at the end of the marker"},"lines":{"type":"string","description":"Only these lines, counted from 1: 10..20, 10.. or ..20"},"grep":{"type":"string","description":"Only lines that match this regular expression, each with its number"},"page":{"type":"integer","description":"Which page of a long text, counted from 1"}},"required":["handle"]}"#,
};

/// What the model asks for.
#[derive(Deserialize)]
struct Wanted {
    handle: String,
    #[serde(default)]
    lines: Option<String>,
    #[serde(default)]
    grep: Option<String>,
    #[serde(default)]
    page: Option<usize>,
}

/// The answer to a call.
pub(crate) fn answer(call: &HiddenCall, shelf: Option<&Shelf>, metrics: &Metrics) -> String {
    let answered = look_up(call, shelf);
    let kind = if answered.is_ok() { "served" } else { "refused" };
    metrics.unfolds.get_or_create(&Kind { kind }).inc();
    answered.unwrap_or_else(|why| why)
}

/// What a model is told that asks without end.
pub(crate) const NO_MORE: &str = "No more can be unfolded in this turn. Go on with what you have; you can unfold again in \
    the next turn.";

fn look_up(call: &HiddenCall, shelf: Option<&Shelf>) -> Result<String, String> {
    let wanted: Wanted = serde_json::from_str(&call.arguments)
        .map_err(|error| format!("The arguments could not be read ({error}). Call it with {{\"handle\": \"..\"}}."))?;
    let shelf = shelf.ok_or("There is no archive; run the tool again instead.")?;
    // A handle is copied out of a marker, sometimes with what stands around it.
    let handle = wanted.handle.trim().trim_start_matches("unfold ").trim_matches([']', '[', ' ', '"']);
    let told = |error: Error| match error.kind() {
        ErrorKind::Unknown => format!("No original has the handle {handle}. Copy it from the end of the marker."),
        _ => format!("{error}."),
    };
    let lines = wanted.lines.as_deref().map(str::trim).filter(|it| !it.is_empty());
    let part = View {
        lines: lines.map(str::parse).transpose().map_err(told)?,
        grep: wanted.grep.filter(|it| !it.is_empty()),
        page: Some(wanted.page.unwrap_or(1)),
        ..View::default()
    };
    let unfolded = shelf.unfold(handle).map_err(told)?;
    let excerpt = view(&unfolded.bytes, &part).map_err(told)?;
    let mut text = String::from_utf8_lossy(&excerpt.bytes).into_owned();
    if text.trim().is_empty() {
        text = match excerpt.matches {
            Some(_) => format!("No line matches; the original has {} lines.", excerpt.lines),
            None => "The original is empty here.".to_owned(),
        };
    }
    if excerpt.pages > 1 {
        text.push_str(&format!(
            "\n[page {} of {}; the original has {} lines]",
            excerpt.page, excerpt.pages, excerpt.lines
        ));
    }
    Ok(text)
}

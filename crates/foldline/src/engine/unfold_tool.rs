//! The tool with which a model restores originals: its declaration, and the answer to a call.
//!
//! Which originals a model may read is decided by the caller. Results are bounded, and errors are words that the model
//! can act on.

use serde::Deserialize;

use crate::engine::excerpt::{ExcerptQuery, excerpt_until};
use crate::engine::handle::Handle;
use crate::engine::readable::readable_original;
use crate::tokens::{Meter, Tokens};
use crate::wire::InjectedTool;

/// The tool as the model sees it.
pub const UNFOLD_TOOL: InjectedTool<'static> = InjectedTool {
    name: "unfold",
    description: "Get back the original text behind a marker such as [folded: kept 40 of 412 lines; \
        unfold 7k3q9p2m4x1c], exactly as it was. Long or old parts of this conversation were replaced by such \
        markers; nothing is lost. Use it instead of running a tool again to see what it said then. Ask for lines or \
        grep when a part is enough: a whole text comes in pages of about 4000 tokens.",
    schema: r#"{"type":"object","properties":{"handle":{"type":"string","description":"The handle at the end of the marker"},"lines":{"type":"string","description":"Only these lines, counted from 1: 10..20, 10.. or ..20"},"grep":{"type":"string","description":"Only lines that match this regular expression, each with its number"},"page":{"type":"integer","description":"Which page of a long text, counted from 1"}},"required":["handle"]}"#,
};

/// Arguments of a call.
#[derive(Deserialize)]
struct UnfoldArguments {
    handle: String,
    #[serde(default)]
    lines: Option<String>,
    #[serde(default)]
    grep: Option<String>,
    #[serde(default)]
    page: Option<usize>,
}

/// Answers a call with these arguments, a JSON object. `read` returns the original of a handle, none if the model may not
/// read it, or a text for the model about what failed; `gives_up` bounds the search for a pattern, as in
/// [`excerpt_until`].
///
/// ```
/// use foldline::Handle;
/// use foldline::engine::answer_unfold;
///
/// let handle = Handle::for_content(b"one\ntwo\n");
/// let arguments = format!(r#"{{"handle":"{handle}","lines":"2.."}}"#);
/// let answer = answer_unfold(&arguments, |_| Ok(Some(b"one\ntwo\n".to_vec())), || false);
/// assert_eq!(answer.map(|(_, text)| text), Ok("two\n".to_owned()));
/// ```
///
/// # Errors
///
/// A text for the model: if the arguments are invalid, or there is no such original.
pub fn answer_unfold(
    arguments: &str,
    read: impl FnOnce(Handle) -> Result<Option<Vec<u8>>, String>,
    gives_up: impl Fn() -> bool,
) -> Result<(Handle, String), String> {
    let arguments: UnfoldArguments = serde_json::from_str(arguments)
        .map_err(|error| format!("The arguments could not be read ({error}). Call it with {{\"handle\": \"..\"}}."))?;
    // A handle is copied from a marker, sometimes with the text around it.
    let handle = arguments.handle.trim().trim_start_matches("unfold ").trim_matches([']', '[', ' ', '"']);
    let not_a_handle = || format!("Not a handle: copy all {} characters from the end of the marker.", Handle::LENGTH);
    let handle: Handle = handle.to_ascii_lowercase().parse().map_err(|_| not_a_handle())?;
    let unknown = || format!("No original has the handle {handle}. Copy it from the end of the marker.");
    let bytes = read(handle)?.ok_or_else(unknown)?;
    let lines = arguments.lines.as_deref().map(str::trim).filter(|lines| !lines.is_empty());
    let query = ExcerptQuery {
        lines: lines.map(str::parse).transpose().map_err(|error| format!("{error}."))?,
        grep: arguments.grep.filter(|pattern| !pattern.is_empty()),
        page: Some(arguments.page.unwrap_or(1)),
        ..ExcerptQuery::default()
    };
    let excerpt = excerpt_until(&readable_original(&bytes), &query, gives_up).map_err(|error| format!("{error}."))?;
    let mut text = String::from_utf8_lossy(&excerpt.bytes).into_owned();
    if text.trim().is_empty() {
        text = match excerpt.matches {
            Some(_) => format!("No line matches; the original has {} lines.", excerpt.total_lines),
            None => "The original is empty here.".to_owned(),
        };
    }
    if excerpt.pages > 1 {
        text.push_str(&format!(
            "\n[page {} of {}; the original has {} lines]",
            excerpt.page, excerpt.pages, excerpt.total_lines
        ));
    }
    Ok((handle, text))
}

/// Minimum tokens for which a truncated result is useful.
const MIN_ROOM_TOKENS: Tokens = 100;

/// Truncates the answer to a call to the available tokens, keeping its start.
pub fn truncate_answer(mut text: String, room: Tokens, meter: &Meter) -> String {
    const TRUNCATION_NOTE: &str =
        "\n[cut here: the window has no room for more. Ask for other lines, or grep, in a later turn.]";
    const NO_ROOM_TEXT: &str =
        "There is no room in the window for it now. Ask for a few lines, or grep, in a later turn.";
    let tokens = meter.text(&text);
    if tokens <= room {
        return text;
    }
    if room < MIN_ROOM_TOKENS {
        return NO_ROOM_TEXT.to_owned();
    }
    // Tokens are not distributed evenly over a text; a tenth is reserved for that and for the note.
    let most = (text.len() as f64 * room as f64 / tokens as f64 * 0.9) as usize;
    let most = text.floor_char_boundary(most);
    text.truncate(text[..most].rfind('\n').unwrap_or(most));
    text + TRUNCATION_NOTE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::engine::marker;
    use crate::engine::session::FoldSession;
    use crate::models::table::ModelTable;

    /// Returns a session in which old rounds were dropped, and the handle of the oldest.
    fn session_with_dropped_rounds() -> (FoldSession, Handle) {
        let mut session = FoldSession::for_model("gpt-4o", 4_000);
        session.push(Message::text(Role::User, "read them all"));
        for at in 0..60 {
            let source: String = (0..40).map(|line| format!("let value_{at}_{line} = parse({line});\n")).collect();
            let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/{at}.rs"}}"#));
            session.push(Message::new(Role::Assistant, vec![call]));
            session.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source)]));
            session.plan_request().unwrap();
        }
        let sent: Vec<Message<'_>> = session.rendered_messages(0).collect();
        let notes = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text);
        let handle = notes.flat_map(marker::handles).next().expect("old rounds were dropped");
        (session, handle)
    }

    #[test]
    fn session_answers_with_lines_matches_and_pages() {
        let (session, handle) = session_with_dropped_rounds();
        let answer = |rest: &str| session.answer_unfold(&format!(r#"{{"handle":"{handle}"{rest}}}"#));
        assert!(answer("").contains("\n[page 1 of "), "a long original comes in pages: {}", answer(""));
        assert!(answer("").len() <= crate::engine::excerpt::PAGE_BYTES + 100);
        assert_eq!(answer(r#","grep":"value_3_7 ""#).lines().count(), 1);
        assert!(answer(r#","lines":"2..2""#).starts_with("-- call of read_file src/0.rs"), "{}", answer(""));
        assert!(answer(r#","grep":"(""#).starts_with("not a regular expression"), "{}", answer(r#","grep":"(""#));
        assert!(answer(r#","page":9999"#).starts_with("there is no page 9999"));
        // The handle may be copied with the text around it.
        let copied = format!(r#"{{"handle":"[unfold {}]","lines":"1"}}"#, handle.as_str().to_ascii_uppercase());
        assert_eq!(session.answer_unfold(&copied.replace("[unfold", "unfold")), answer(r#","lines":"1""#));
    }

    #[test]
    fn session_answers_dropped_rounds_in_their_readable_view() {
        let (session, handle) = session_with_dropped_rounds();
        let answer = session.answer_unfold(&format!(r#"{{"handle":"{handle}"}}"#));
        assert!(answer.starts_with("== assistant\n-- call of read_file src/0.rs\n"), "{answer}");
        assert!(session.unfold(handle).unwrap().starts_with(b"["), "the exact bytes are JSON");
    }

    #[test]
    fn unfolded_text_is_truncated_to_available_tokens() {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let lines: String = (0..400).map(|at| format!("line {at}: \u{e4}\u{df} value_{at}\n")).collect();
        assert_eq!(truncate_answer(lines.clone(), 100_000, &meter), lines);
        for room in [100, 500, 2_000] {
            let cut = truncate_answer(lines.clone(), room, &meter);
            let (kept, note) = cut.rsplit_once('\n').unwrap();
            assert!(lines.starts_with(&format!("{kept}\n")) && note.starts_with("[cut here"), "{room}: {cut}");
            assert!(meter.text(&cut) <= room + 30 && meter.text(&cut) > room / 2, "{room}: {}", meter.text(&cut));
        }
        assert!(truncate_answer(lines.clone(), 99, &meter).starts_with("There is no room"));
        assert!(truncate_answer("x".repeat(9_000), 200, &meter).len() < 9_000, "one long line");
    }
}

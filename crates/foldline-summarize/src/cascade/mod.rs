//! The enforcement cascade: brings a session into its window before the next step, by a summary if a model can
//! write one, otherwise by code, and always with the user's texts, the newest round and a record of actions.
//!
//! Nothing changes until everything is computed and stored: the session is read, and replaced in one assignment at the
//! end, with no await after it. An aborted call leaves the session unchanged.

pub(crate) mod event;
pub(crate) mod options;
pub(crate) mod record;
pub(crate) mod split;
pub(crate) mod summary_frame;

use std::collections::HashMap;

use foldline::laws::{Law, LawProfile};
use foldline::strategies::{DetachedOriginal, TerminalTruncate, chunk, detach_references, terminal_truncate};
use foldline::tokens::Tokens;
use foldline::{Conversation, Handle, Message, Meter, Original, Part, Role, laws};

pub use crate::cascade::event::{
    CascadeEvent, CascadeListener, CascadeStep, EnforceStrategy, FailureFallback, TraceId,
};
pub use crate::cascade::options::{EnforceOptions, EnforceOutcome, EnforceResult};
pub use crate::cascade::record::ActionRecord;

use crate::cascade::event::CascadeTrace;
use crate::cascade::split::{SessionSplit, choose_split};
use crate::cascade::summary_frame::{SummaryFrame, is_frame, quoted};
use crate::fallback::extract_facts;
use crate::limits::ModelSpend;
use crate::prepared_summary::{MessageFingerprint, PreparedSummary};
use crate::progress::{SummaryAuthor, SummaryOutcome};
use crate::summarizer::SummaryTask;

impl EnforceOptions {
    /// Brings a session into its window, if it exceeds its budget. The same as [`enforce_context_window`].
    pub async fn enforce<'m>(
        &self,
        session: &mut Conversation<'m>,
        listener: CascadeListener<'_>,
    ) -> EnforceResult<'m> {
        enforce_context_window(session, self, listener).await
    }
}

/// Brings a session into its window, if it exceeds its budget.
///
/// ```
/// use foldline::{Conversation, Message, Meter, Part, Role};
/// use foldline_summarize::{EnforceOptions, EnforceOutcome, EnforceStrategy, enforce_context_window};
///
/// let mut session = Conversation { messages: vec![Message::text(Role::User, "read them all")], ..Conversation::default() };
/// for at in 0..60 {
///     let call = Part::call(format!("c{at}"), "write_file", format!(r#"{{"path":"{at}.txt"}}"#));
///     session.messages.push(Message::new(Role::Assistant, vec![call]));
///     session.messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "a line of it\n".repeat(60))]));
/// }
/// let options = EnforceOptions::new(16_384, Meter::for_byte_estimate());
/// let result = tokio::runtime::Builder::new_current_thread().build()?.block_on(
///     enforce_context_window(&mut session, &options, &|_| ()),
/// );
/// assert_eq!(result.outcome, EnforceOutcome::Fits(EnforceStrategy::Excerpt));
/// assert!(result.tokens_after <= options.budget);
/// assert_eq!(session.messages[0], Message::text(Role::User, "read them all"));
/// assert!(session.messages[1].parts[0].as_text().unwrap().contains("- wrote: 3.txt"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn enforce_context_window<'m>(
    session: &mut Conversation<'m>,
    options: &EnforceOptions,
    listener: CascadeListener<'_>,
) -> EnforceResult<'m> {
    let before = options.meter.conversation(session);
    let mut result = EnforceResult {
        outcome: EnforceOutcome::Unchanged,
        tokens_before: before,
        tokens_after: before,
        budget: options.budget,
        dropped: Vec::new(),
        handle: None,
        spent: ModelSpend::default(),
    };
    if before <= options.budget {
        return result;
    }
    let trace = CascadeTrace::start(before, options.budget, session.messages.len(), listener);
    let overhead = options.overhead_tokens(session);
    let proposal = match propose_summary(session, overhead, options, &trace, &mut result.spent).await {
        Ok(proposal) => proposal,
        Err(SummarizerAborted) => {
            trace.fail("the summarizer was aborted");
            return EnforceResult { outcome: EnforceOutcome::Aborted, ..result };
        }
    };
    // No await from here on.
    let SessionProposal { messages, strategy, archived, detached } = truncated_to_budget(proposal, overhead, options);
    let after = overhead + count_tokens(&messages, &options.meter);
    if after > options.budget {
        trace.fail(&format!("the protected messages have {after} tokens, the budget is {}", options.budget));
        return EnforceResult { outcome: EnforceOutcome::CannotFit { floor: after }, ..result };
    }
    // No step above is trusted with the laws: a result that breaks more laws than the session is not installed.
    let messages = match check_laws(session, messages, &options.profile) {
        Ok(messages) => messages,
        Err(law) => {
            trace.fail(&format!("the result would break a law of the provider: {law}"));
            return EnforceResult { outcome: EnforceOutcome::BreaksLaw(law), ..result };
        }
    };
    let dropped = dropped_messages(&session.messages, &messages);
    let kept = session.messages.len() - dropped.len();
    let bytes = serde_json::to_vec(&dropped).expect("messages are always JSON");
    let handle = Handle::for_content(&bytes);
    if let Some(store) = &options.store {
        let tokens = count_tokens(&dropped, &options.meter);
        let original = |handle, bytes| Original { handle, bytes, tool: None, arguments: None, message: 0, tokens };
        let mut originals = vec![original(handle, bytes.as_slice())];
        // More may have been dropped than the frame refers to.
        originals.extend(
            archived
                .as_ref()
                .map(|messages| original(messages.handle, &messages.bytes))
                .filter(|original| original.handle != handle),
        );
        originals.extend(detached.iter().map(|text| Original::new(text.handle, text.text.as_bytes())));
        if let Err(error) = store.store(&originals) {
            trace.fail(&error.to_string());
            return EnforceResult { outcome: EnforceOutcome::NotStored(error.to_string()), ..result };
        }
    }
    let archived_as = options.store.as_ref().map(|_| handle);
    if strategy == EnforceStrategy::Truncate {
        trace.emit(CascadeStep::Truncated { dropped: before.saturating_sub(after), archived: archived_as });
    }
    session.messages = messages;
    trace.complete(strategy, after, kept, archived_as);
    (result.outcome, result.tokens_after, result.dropped, result.handle) =
        (EnforceOutcome::Fits(strategy), after, dropped, Some(handle));
    result
}

/// Messages that could replace the session's.
struct SessionProposal<'m> {
    messages: Vec<Message<'m>>,
    strategy: EnforceStrategy,
    /// The messages to which the frame's handle refers.
    archived: Option<ArchivedMessages>,
    /// The texts of markers that were detached from dropped results.
    detached: Vec<DetachedOriginal>,
}

/// Messages as JSON, and their handle in the store.
struct ArchivedMessages {
    handle: Handle,
    bytes: Vec<u8>,
}

/// The summarizer was aborted.
struct SummarizerAborted;

/// Proposes the session with a summary in place of its older rounds; unchanged if nothing can be dropped.
async fn propose_summary<'m>(
    session: &Conversation<'m>,
    overhead: Tokens,
    options: &EnforceOptions,
    trace: &CascadeTrace<'_>,
    spent: &mut ModelSpend,
) -> Result<SessionProposal<'m>, SummarizerAborted> {
    let fresh = options.prepared.as_ref().filter(|prepared| prepared.is_fresh(&session.messages));
    if let Some(prepared) = fresh
        && let Some(split) = SessionSplit::split_at(session, prepared.until(), overhead, options)
    {
        let proposal = build_proposal(session, &split, prepared.text().to_owned(), EnforceStrategy::Prepared, options);
        if overhead + count_tokens(&proposal.messages, &options.meter) <= options.target_tokens() {
            return Ok(proposal);
        }
    }
    let Some(mut split) = choose_split(session, overhead, options) else {
        let messages = session.messages.clone();
        return Ok(SessionProposal {
            messages,
            strategy: EnforceStrategy::Truncate,
            archived: None,
            detached: Vec::new(),
        });
    };
    let mut new = split.dropped.clone();
    if let Some(prepared) = fresh.filter(|prepared| prepared.until() < split.cut) {
        // The prepared summary does not cover enough: the new summary continues it.
        if let Some(first) = SessionSplit::split_at(session, prepared.until(), overhead, options) {
            new.drain(..first.dropped.len().min(new.len()));
            let message_count = split.earlier_frame.as_ref().map_or(0, |frame| frame.message_count);
            let record = split.earlier_frame.as_ref().map_or(String::new(), |frame| frame.record.clone());
            split.earlier_frame = Some(SummaryFrame {
                message_count,
                author: SummaryAuthor::Model,
                handle: None,
                summary: prepared.text().to_owned(),
                record,
            });
        }
    }
    let text = transcript_text(new, &session.messages);
    let earlier = split.earlier_frame.as_ref().map(|frame| frame.summary.as_str());
    let (summary, author) = match &options.summarizer {
        Some(summarizer) => {
            let goal = split.goal(session);
            let task = SummaryTask {
                text: &text,
                goal: &goal,
                earlier_summary: earlier,
                max_tokens: split.summary_budget.min(options.budget / 8),
                session: Some(&session.messages),
            };
            let summary = summarizer.summarize(&task, &|progress| trace.emit(CascadeStep::Progress(progress))).await;
            *spent = summary.spent;
            if summary.outcome == SummaryOutcome::Aborted {
                return Err(SummarizerAborted);
            }
            (summary.text, summary.author)
        }
        None => (String::new(), SummaryAuthor::Code),
    };
    let (summary, strategy) = match author {
        SummaryAuthor::Model => (summary, EnforceStrategy::ModelSummary),
        SummaryAuthor::Code => (
            summarize_by_code(&text, earlier, split.summary_budget.min(options.window / 4), &options.meter),
            EnforceStrategy::Excerpt,
        ),
    };
    Ok(build_proposal(session, &split, summary, strategy, options))
}

/// Returns the earlier summary and the facts of the text; its quoted lines fit the budget.
fn summarize_by_code(text: &str, earlier: Option<&str>, budget: Tokens, meter: &Meter) -> String {
    let mut room = budget;
    loop {
        let summary = facts_after(text, earlier, room, meter);
        let tokens = meter.text(&quoted(&summary));
        if tokens <= budget || room < 16 {
            return summary;
        }
        room = (room * budget / tokens).min(room - room / 16 - 1);
    }
}

/// Returns the earlier summary, compressed to half the room, and the facts of the text.
fn facts_after(text: &str, earlier: Option<&str>, room: Tokens, meter: &Meter) -> String {
    let Some(earlier) = earlier else { return extract_facts(text, room, meter) };
    let options = chunk::CompressOptions { meter: meter.clone(), max_chunk_bytes: 512 };
    let earlier = chunk::compress(earlier, room / 2, &options);
    format!("{}\n\n{}", earlier.text, extract_facts(text, room.saturating_sub(earlier.after + 2), meter))
}

/// Builds the split session with a summary in place of the dropped messages.
fn build_proposal<'m>(
    session: &Conversation<'m>,
    split: &SessionSplit<'m>,
    summary: String,
    strategy: EnforceStrategy,
    options: &EnforceOptions,
) -> SessionProposal<'m> {
    let before = split.earlier_frame.as_ref().map_or(0, |frame| frame.message_count);
    let mut frame = SummaryFrame {
        message_count: before + split.dropped.len(),
        author: if strategy == EnforceStrategy::Excerpt { SummaryAuthor::Code } else { SummaryAuthor::Model },
        handle: None,
        summary,
        record: split.record.to_text(split.record_budget, &options.meter),
    };
    let archived = options.store.as_ref().map(|_| {
        let dropped = dropped_messages(&session.messages, &split.with_frame(session, &frame));
        let bytes = serde_json::to_vec(&dropped).expect("messages are always JSON");
        ArchivedMessages { handle: Handle::for_content(&bytes), bytes }
    });
    frame.handle = archived.as_ref().map(|messages| messages.handle);
    let mut messages = split.with_frame(session, &frame);
    // A marker of the strategies may refer to a result that is dropped.
    let detached = detach_references(&mut messages, &split.dropped, options.store.is_some());
    let messages = apply_provider_rules(messages, options);
    SessionProposal { messages, strategy, archived, detached }
}

/// Returns the proposal if it fits, otherwise its terminal truncation.
fn truncated_to_budget<'m>(
    proposal: SessionProposal<'m>,
    overhead: Tokens,
    options: &EnforceOptions,
) -> SessionProposal<'m> {
    if overhead + count_tokens(&proposal.messages, &options.meter) <= options.budget {
        return proposal;
    }
    let truncate = TerminalTruncate { keep_last: 4, meter: options.meter.clone(), is_generated: is_frame };
    let truncation = terminal_truncate(proposal.messages, options.budget.saturating_sub(overhead), &truncate);
    let messages = apply_provider_rules(truncation.messages, options);
    SessionProposal {
        messages,
        strategy: EnforceStrategy::Truncate,
        archived: proposal.archived,
        detached: proposal.detached,
    }
}

/// Adapts the messages to the laws of stricter providers.
fn apply_provider_rules<'m>(mut messages: Vec<Message<'m>>, options: &EnforceOptions) -> Vec<Message<'m>> {
    if options.profile.signs_history() {
        // Reasoning is bound to everything before it, and that has changed.
        for message in messages.iter_mut().filter(|message| message.is_assistant()) {
            message.parts.retain(|part| !matches!(part, Part::Reasoning(_)));
        }
        messages.retain(|message| !message.parts.is_empty());
    }
    if options.profile.has(Law::Alternation) {
        let mut merged: Vec<Message<'m>> = Vec::with_capacity(messages.len());
        for message in messages {
            match merged.last_mut() {
                Some(last) if last.role == Role::User && message.role == Role::User => last.parts.extend(message.parts),
                _ => merged.push(message),
            }
        }
        messages = merged;
    }
    messages
}

/// Returns these messages, if they break no law more often than the session's.
fn check_laws<'m>(
    session: &Conversation<'m>,
    messages: Vec<Message<'m>>,
    profile: &LawProfile,
) -> Result<Vec<Message<'m>>, String> {
    let mut allowed: HashMap<&str, usize> = HashMap::new();
    for violation in laws::check_conversation(session, profile) {
        *allowed.entry(violation.law.name()).or_default() += 1;
    }
    let (model, system, tools) = (session.model.clone(), session.system.clone(), session.tools.clone());
    let replacement = Conversation { model, system, tools, messages };
    let mut is_new = |law: &str| match allowed.get_mut(law) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    let new = laws::check_conversation(&replacement, profile).into_iter().find(|broken| is_new(broken.law.name()));
    match new {
        Some(broken) => Err(broken.to_string()),
        None => Ok(replacement.messages),
    }
}

fn count_tokens(messages: &[Message<'_>], meter: &Meter) -> Tokens {
    messages.iter().map(|message| meter.message(message)).sum()
}

/// Returns the messages of a session that are not in its replacement, in order.
fn dropped_messages<'m>(session: &[Message<'m>], replacement: &[Message<'m>]) -> Vec<Message<'m>> {
    let mut remaining: HashMap<MessageFingerprint, usize> = HashMap::new();
    for message in replacement {
        *remaining.entry(MessageFingerprint::from_messages(std::slice::from_ref(message))).or_default() += 1;
    }
    let mut is_missing = |message: &&Message<'m>| match remaining
        .get_mut(&MessageFingerprint::from_messages(std::slice::from_ref(*message)))
    {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    session.iter().filter(|message| is_missing(message)).cloned().collect()
}

/// Returns the cut of a session, the newly dropped rounds as text, and the summary that they continue.
pub(crate) fn rounds_to_summarize(
    session: &Conversation<'_>,
    options: &EnforceOptions,
    earlier: Option<&PreparedSummary>,
) -> Option<(usize, String, Option<String>)> {
    let overhead = options.overhead_tokens(session);
    let split = choose_split(session, overhead, options)?;
    let mut new = split.dropped.as_slice();
    let mut before = split.earlier_frame.map(|frame| frame.summary);
    if let Some(earlier) = earlier {
        if earlier.until() >= split.cut {
            return None;
        }
        let first = SessionSplit::split_at(session, earlier.until(), overhead, options)?;
        new = &new[first.dropped.len().min(new.len())..];
        before = Some(earlier.text().to_owned());
    }
    (!new.is_empty()).then(|| (split.cut, transcript_text(new.to_vec(), &session.messages), before))
}

/// Returns dropped messages as text. Markers in them lose their references: a summary that quotes one must not refer to a
/// result that is gone, now or later.
fn transcript_text(mut dropped: Vec<Message<'_>>, session: &[Message<'_>]) -> String {
    detach_references(&mut dropped, session, false);
    chunk::render_transcript(&dropped)
}

#[cfg(test)]
mod tests {
    use foldline::wire::Format;

    use super::*;

    /// The number of broken laws must not hide which ones: an orphan less does not make up for a call without a result.
    #[test]
    fn law_that_the_session_obeys_stays_obeyed() {
        let profile = LawProfile::for_model(Format::OpenAiChat, None);
        let result = |id: &'static str| Message::new(Role::Tool, vec![Part::result(id, "ok")]);
        let user = || Message::text(Role::User, "go");
        let session =
            Conversation { messages: vec![user(), result("gone"), result("lost")], ..Conversation::default() };
        let unanswered = vec![user(), Message::new(Role::Assistant, vec![Part::call("c", "sh", "{}")]), user()];
        assert!(check_laws(&session, unanswered, &profile).is_err());
        assert!(check_laws(&session, vec![user(), result("gone")], &profile).is_ok());
    }
}

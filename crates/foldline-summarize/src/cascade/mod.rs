//! The enforcement cascade: a session is brought into its window before the next step, by a summary if a model can write
//! one, by code if not, and in every case with the user's words, the newest round and a record of what was done.
//!
//! Nothing is changed until everything is computed and kept: the session is read, and replaced in one piece at the very
//! end, with no await behind it. A call that is given up, at whatever point, leaves the session as it was.

mod event;
mod record;
pub(crate) mod split;
pub(crate) mod summary_frame;

use std::collections::HashMap;

use foldline::laws;
use foldline::laws::{Law, LawProfile};
use foldline::strategies::chunk;
use foldline::strategies::{TerminalTruncate, terminal_truncate};
use foldline::wire::{ContextOverflow, Format, LearnedLimit};
use foldline::{Budget, Conversation, Handle, Message, Meter, Original, OriginalStore, Part, PinRules, Role, Tokens};

pub use event::{CascadeEvent, CascadeListener, CascadeStep, EnforceStrategy};
pub use record::ActionRecord;

pub(crate) use crate::cascade::split::user_goal;
use crate::cascade::split::{SessionSplit, choose_split};
use crate::cascade::summary_frame::SummaryFrame;
use crate::fallback::extract_facts;
use crate::limits::ModelSpend;
use crate::prepare::{MessageFingerprint, PreparedSummary};
use crate::progress::SummaryOutcome;
use crate::summarizer::{Summarizer, SummaryAuthor, SummaryTask};
use event::CascadeTrace;

/// How a session is kept inside its window.
#[derive(Clone)]
pub struct EnforceOptions<'e> {
    /// The window of the agent's model.
    pub window: Tokens,
    /// Counts its tokens.
    pub meter: Meter,
    /// Above this something is done.
    pub budget: Tokens,
    /// Something is done down to this share of the budget, so that it is not done at every step.
    pub target_ratio: f64,
    /// Whose laws the session obeys.
    pub profile: LawProfile,
    /// How many of the newest messages stay, tried in this order; behind them, the newest round alone.
    pub keep_last: Vec<usize>,
    /// Rounds in which one of these stands stay.
    pub pins: PinRules,
    /// Writes summaries. Without one no model is called.
    pub summarizer: Option<&'e Summarizer>,
    /// A summary that was written before; it is used if what it summarises is still there, word for word.
    pub prepared: Option<&'e PreparedSummary>,
    /// Holds what goes. It is asked before anything goes; if it fails, nothing does.
    pub store: Option<&'e (dyn OriginalStore + Sync)>,
}

impl<'e> EnforceOptions<'e> {
    /// For a window, by the classic numbers: nine tenths of what the window has beside an answer of 8192 tokens and 2048
    /// more, in windows below 32 768 tokens proportionally less; the last 16, 12, 8 or 6 messages stay; without a model.
    pub fn new(window: Tokens, meter: Meter) -> Self {
        Self {
            window,
            budget: default_budget(window),
            meter,
            target_ratio: 0.6,
            profile: LawProfile::for_model(Format::OpenAiChat, None),
            keep_last: vec![16, 12, 8, 6],
            pins: PinRules::default(),
            summarizer: None,
            prepared: None,
            store: None,
        }
    }

    /// The same after a server said that what was sent, so many tokens by our count, did not fit: for the retry.
    pub fn tightened(&self, overflow: &ContextOverflow, sent: Tokens) -> Self {
        let mut tighter = self.clone();
        match overflow.learned_limit(sent) {
            LearnedLimit::Stated { tokens, .. } if tokens < self.window => {
                tighter.window = tokens;
                tighter.budget = default_budget(tokens).min(self.budget);
            }
            // The window is what we thought, or unknown: our count was too low.
            LearnedLimit::Stated { .. } | LearnedLimit::BelowCount(_) => {}
        }
        if tighter.budget >= sent {
            tighter.budget = sent / 4 * 3;
        }
        tighter
    }

    /// Tokens down to which something is done.
    fn target_tokens(&self) -> Tokens {
        (self.budget as f64 * self.target_ratio.clamp(0.1, 1.0)) as Tokens
    }

    /// Tokens beside the messages.
    fn overhead_tokens(&self, session: &Conversation<'_>) -> Tokens {
        self.meter.system(&session.system) + self.meter.tools(&session.tools) + self.meter.request_overhead()
    }
}

fn default_budget(window: Tokens) -> Tokens {
    match window {
        0..32_768 => (window - window / 4 - window / 16) / 10 * 9,
        _ => Budget::for_cascade(window).tokens,
    }
}

/// What became of a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EnforceResult<'m> {
    /// How it ended.
    pub outcome: EnforceOutcome,
    /// Tokens before.
    pub tokens_before: Tokens,
    /// Tokens after; of a session that stayed as it was, those before.
    pub tokens_after: Tokens,
    /// Tokens that it may have.
    pub budget: Tokens,
    /// What went, as it was, in order.
    pub dropped: Vec<Message<'m>>,
    /// The address of what went: the handle of [`Enforced::dropped`] as JSON, under which an archive holds it if there
    /// is one.
    pub handle: Option<Handle>,
    /// What the summariser spent.
    pub spent: ModelSpend,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnforceOutcome {
    /// The session was inside its budget; nothing happened.
    Unchanged,
    /// The session was brought into its budget.
    Fits(EnforceStrategy),
    /// The session is as it was: not even what must stay fits.
    CannotFit {
        /// The fewest tokens that it can be brought to.
        floor: Tokens,
    },
    /// The session is as it was: what would have been left breaks a law of the provider that it did not break.
    BreaksLaw(String),
    /// The session is as it was: what would have gone could not be kept.
    NotStored(String),
    /// The session is as it was: the summariser was told to stop.
    Aborted,
}

impl EnforceResult<'_> {
    /// Whether the session is inside its budget now.
    pub fn fits(&self) -> bool {
        matches!(self.outcome, EnforceOutcome::Unchanged | EnforceOutcome::Fits(_))
    }
}

/// Brings a session into its window, if it is not inside.
///
/// ```
/// use foldline::{Conversation, Message, Meter, Part, Role};
/// use foldline_summarize::{End, Enforce, Strategy, enforce_context_window};
///
/// let mut session = Conversation { messages: vec![Message::text(Role::User, "read them all")], ..Conversation::default() };
/// for at in 0..60 {
///     let call = Part::call(format!("c{at}"), "write_file", format!(r#"{{"path":"{at}.txt"}}"#));
///     session.messages.push(Message::new(Role::Assistant, vec![call]));
///     session.messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "a line of it\n".repeat(60))]));
/// }
/// let with = Enforce::new(16_384, Meter::by_bytes());
/// let done = tokio::runtime::Builder::new_current_thread().build()?.block_on(
///     enforce_context_window(&mut session, &with, &|_| ()),
/// );
/// assert_eq!(done.end, End::Fits(Strategy::Chunk));
/// assert!(done.after <= with.budget);
/// assert_eq!(session.messages[0], Message::text(Role::User, "read them all"));
/// assert!(session.messages[1].parts[0].as_text().unwrap().contains("- wrote: 3.txt"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn enforce_context_window<'m>(
    session: &mut Conversation<'m>,
    with: &EnforceOptions<'_>,
    listener: CascadeListener<'_>,
) -> EnforceResult<'m> {
    let before = with.meter.conversation(session);
    let mut done = EnforceResult {
        outcome: EnforceOutcome::Unchanged,
        tokens_before: before,
        tokens_after: before,
        budget: with.budget,
        dropped: Vec::new(),
        handle: None,
        spent: ModelSpend::default(),
    };
    if before <= with.budget {
        return done;
    }
    let trace = CascadeTrace::start(before, with.budget, listener);
    let fixed = with.overhead_tokens(session);
    let proposal = match propose_summary(session, fixed, with, &trace, &mut done.spent).await {
        Ok(proposal) => proposal,
        Err(SummarizerAborted) => {
            trace.fail("the summariser was told to stop");
            return EnforceResult { outcome: EnforceOutcome::Aborted, ..done };
        }
    };
    // From here on nothing waits.
    let SessionProposal { messages, strategy, archived: promised } = truncated_to_budget(proposal, fixed, with);
    let after = fixed + count_tokens(&messages, &with.meter);
    if after > with.budget {
        trace.fail(&format!("what must stay has {after} tokens, and {} are allowed", with.budget));
        return EnforceResult { outcome: EnforceOutcome::CannotFit { floor: after }, ..done };
    }
    // Nobody here is trusted with the laws: what is worse than what came is not installed.
    let messages = match check_laws(session, messages, &with.profile) {
        Ok(messages) => messages,
        Err(law) => {
            trace.fail(&format!("what would be left breaks a law of the provider: {law}"));
            return EnforceResult { outcome: EnforceOutcome::BreaksLaw(law), ..done };
        }
    };
    let dropped = dropped_messages(&session.messages, &messages);
    let kept = session.messages.len() - dropped.len();
    let bytes = serde_json::to_vec(&dropped).expect("messages are always JSON");
    let handle = Handle::for_content(&bytes);
    if let Some(keep) = with.store {
        let tokens = count_tokens(&dropped, &with.meter);
        let original = |handle, bytes| Original { handle, bytes, tool: None, arguments: None, message: 0, tokens };
        let mut originals = vec![original(handle, bytes.as_slice())];
        // More may have gone than the summary tells of.
        originals.extend(promised.as_ref().map(|it| original(it.handle, &it.bytes)).filter(|it| it.handle != handle));
        if let Err(error) = keep.store(&originals) {
            trace.fail(&error.to_string());
            return EnforceResult { outcome: EnforceOutcome::NotStored(error.to_string()), ..done };
        }
    }
    if strategy == EnforceStrategy::Truncate {
        trace.emit(CascadeStep::Truncated { dropped: before.saturating_sub(after), archived: handle });
    }
    session.messages = messages;
    trace.complete(strategy, after, kept, handle);
    (done.outcome, done.tokens_after, done.dropped, done.handle) =
        (EnforceOutcome::Fits(strategy), after, dropped, Some(handle));
    done
}

/// Messages that could take the place of the session's.
struct SessionProposal<'m> {
    messages: Vec<Message<'m>>,
    strategy: EnforceStrategy,
    /// What the summary says can be asked for.
    archived: Option<ArchivedMessages>,
}

/// Messages as JSON, and the handle under which an archive is to hold them.
struct ArchivedMessages {
    handle: Handle,
    bytes: Vec<u8>,
}

/// Somebody told the summariser to stop.
struct SummarizerAborted;

/// The session with a summary in the place of its older rounds; as it is when nothing can go.
async fn propose_summary<'m>(
    session: &Conversation<'m>,
    fixed: Tokens,
    with: &EnforceOptions<'_>,
    trace: &CascadeTrace<'_>,
    spent: &mut ModelSpend,
) -> Result<SessionProposal<'m>, SummarizerAborted> {
    let fresh = with.prepared.filter(|prepared| prepared.is_fresh(&session.messages));
    if let Some(prepared) = fresh
        && let Some(parting) = SessionSplit::split_at(session, prepared.until(), fixed, with)
    {
        let proposal = build_proposal(session, &parting, prepared.text().to_owned(), EnforceStrategy::Prepared, with);
        if fixed + count_tokens(&proposal.messages, &with.meter) <= with.target_tokens() {
            return Ok(proposal);
        }
    }
    let Some(mut parting) = choose_split(session, fixed, with) else {
        let messages = session.messages.clone();
        return Ok(SessionProposal { messages, strategy: EnforceStrategy::Truncate, archived: None });
    };
    let mut new = parting.dropped.clone();
    if let Some(prepared) = fresh.filter(|prepared| prepared.until() < parting.cut) {
        // What was prepared does not go far enough: it is where the summary goes on from.
        if let Some(first) = SessionSplit::split_at(session, prepared.until(), fixed, with) {
            new.drain(..first.dropped.len().min(new.len()));
            let messages = parting.earlier_frame.as_ref().map_or(0, |frame| frame.message_count);
            let record = parting.earlier_frame.as_ref().map_or(String::new(), |frame| frame.record.clone());
            parting.earlier_frame = Some(SummaryFrame {
                message_count: messages,
                author: SummaryAuthor::Model,
                handle: None,
                summary: prepared.text().to_owned(),
                record,
            });
        }
    }
    let text = chunk::render_transcript(&new);
    let earlier = parting.earlier_frame.as_ref().map(|frame| frame.summary.as_str());
    let (summary, author) = match with.summarizer {
        Some(summariser) => {
            let goal = parting.goal(session);
            let task = SummaryTask {
                text: &text,
                goal: &goal,
                earlier_summary: earlier,
                max_tokens: parting.summary_budget.min(with.budget / 8),
            };
            let summary = summariser.summarize(&task, &|progress| trace.emit(CascadeStep::Progress(progress))).await;
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
            summarize_by_code(&text, earlier, parting.summary_budget.min(with.window / 4), &with.meter),
            EnforceStrategy::Excerpt,
        ),
    };
    Ok(build_proposal(session, &parting, summary, strategy, with))
}

/// The summary before, as far as there is room for both, and the facts of the text.
fn summarize_by_code(text: &str, earlier: Option<&str>, room: Tokens, meter: &Meter) -> String {
    let Some(earlier) = earlier else { return extract_facts(text, room, meter) };
    let options = chunk::CompressOptions { meter: meter.clone(), max_chunk_bytes: 512 };
    let earlier = chunk::compress(earlier, room / 2, &options);
    format!("{}\n\n{}", earlier.text, extract_facts(text, room.saturating_sub(earlier.after + 2), meter))
}

/// The session, parted, with a summary in the place of what goes.
fn build_proposal<'m>(
    session: &Conversation<'m>,
    parting: &SessionSplit<'m>,
    summary: String,
    strategy: EnforceStrategy,
    with: &EnforceOptions<'_>,
) -> SessionProposal<'m> {
    let before = parting.earlier_frame.as_ref().map_or(0, |frame| frame.message_count);
    let mut frame = SummaryFrame {
        message_count: before + parting.dropped.len(),
        author: if strategy == EnforceStrategy::Excerpt { SummaryAuthor::Code } else { SummaryAuthor::Model },
        handle: None,
        summary,
        record: parting.record.to_text(parting.record_budget, &with.meter),
    };
    let promised = with.store.map(|_| {
        let goes = dropped_messages(&session.messages, &parting.with_frame(session, &frame));
        let bytes = serde_json::to_vec(&goes).expect("messages are always JSON");
        ArchivedMessages { handle: Handle::for_content(&bytes), bytes }
    });
    frame.handle = promised.as_ref().map(|it| it.handle);
    let messages = apply_provider_rules(parting.with_frame(session, &frame), with);
    SessionProposal { messages, strategy, archived: promised }
}

/// The proposal itself if it fits, else what terminal truncation leaves of it.
fn truncated_to_budget<'m>(
    proposal: SessionProposal<'m>,
    fixed: Tokens,
    with: &EnforceOptions<'_>,
) -> SessionProposal<'m> {
    if fixed + count_tokens(&proposal.messages, &with.meter) <= with.budget {
        return proposal;
    }
    let options = TerminalTruncate { keep_last: 4, meter: with.meter.clone() };
    let truncation = terminal_truncate(proposal.messages, with.budget.saturating_sub(fixed), &options);
    let messages = apply_provider_rules(truncation.messages, with);
    SessionProposal { messages, strategy: EnforceStrategy::Truncate, archived: proposal.archived }
}

/// The messages under the laws of a provider that is stricter than others.
fn apply_provider_rules<'m>(mut messages: Vec<Message<'m>>, with: &EnforceOptions<'_>) -> Vec<Message<'m>> {
    if with.profile.signs_history() {
        // Thinking is bound to all that stood before it, and that has changed.
        for message in messages.iter_mut().filter(|message| message.is_assistant()) {
            message.parts.retain(|part| !matches!(part, Part::Reasoning(_)));
        }
        messages.retain(|message| !message.parts.is_empty());
    }
    if with.profile.has(Law::Alternation) {
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

/// These messages, if they break no more laws than the session's.
fn check_laws<'m>(
    session: &Conversation<'_>,
    messages: Vec<Message<'m>>,
    profile: &LawProfile,
) -> Result<Vec<Message<'m>>, String> {
    let instead = Conversation { messages, ..Conversation::default() };
    let broken = laws::check_conversation(&instead, profile);
    match broken.first() {
        Some(first) if broken.len() > laws::check_conversation(session, profile).len() => Err(first.to_string()),
        _ => Ok(instead.messages),
    }
}

fn count_tokens(messages: &[Message<'_>], meter: &Meter) -> Tokens {
    messages.iter().map(|message| meter.message(message)).sum()
}

/// The messages of a session that are not in what takes its place, in order.
fn dropped_messages<'m>(session: &[Message<'m>], instead: &[Message<'m>]) -> Vec<Message<'m>> {
    let mut there: HashMap<MessageFingerprint, usize> = HashMap::new();
    for message in instead {
        *there.entry(MessageFingerprint::from_messages(std::slice::from_ref(message))).or_default() += 1;
    }
    let mut is_missing = |message: &&Message<'m>| match there
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

/// Where a session would be parted, what of it would go since an earlier summary, as text, and that summary.
pub(crate) fn rounds_to_summarize(
    session: &Conversation<'_>,
    with: &EnforceOptions<'_>,
    earlier: Option<&PreparedSummary>,
) -> Option<(usize, String, Option<String>)> {
    let fixed = with.overhead_tokens(session);
    let parting = choose_split(session, fixed, with)?;
    let mut new = parting.dropped.as_slice();
    let mut before = parting.earlier_frame.map(|frame| frame.summary);
    if let Some(earlier) = earlier {
        if earlier.until() >= parting.cut {
            return None;
        }
        let first = SessionSplit::split_at(session, earlier.until(), fixed, with)?;
        new = &new[first.dropped.len().min(new.len())..];
        before = Some(earlier.text().to_owned());
    }
    (!new.is_empty()).then(|| (parting.cut, chunk::render_transcript(new), before))
}

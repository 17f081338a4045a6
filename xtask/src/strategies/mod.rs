//! `cargo xtask strategies`: runs the classic strategies and the cascade over recorded sessions, checks what must hold,
//! and compares the savings with those of the algorithms that they replace.
//!
//! The corpus is found in the same way as for `cargo xtask corpus`. Results are in docs/measurements/strategies.md.

mod checks;
mod originals;

use std::future::Future;
use std::pin::pin;
use std::slice::from_ref;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anyhow::{Result, bail};
use foldline::laws::LawProfile;
use foldline::strategies::{
    CompactToBudget, DedupToolCalls, SnippetToolOutputs, StrategyOptions, TerminalTruncate, TrimMiddle, apply_all,
    apply_all_with, compact_to_budget, terminal_truncate,
};
use foldline::transcript::RecordedSession;
use foldline::{Conversation, FoldSession, MemoryStore, Message, Meter, ModelTable};
use foldline_replay::RecordingFiles;
use foldline_summarize::{EnforceOptions, enforce_context_window};

use crate::corpus;
use crate::output::print_line;
use crate::strategies::checks::{CheckedSession, Findings, MODEL};

/// Sessions that are checked, sampled evenly.
const SESSION_COUNT: usize = 60;
const BUDGETS: [u64; 3] = [8_000, 16_000, 32_000];

/// Checks the strategies on recorded sessions.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let set = corpus::development_set(arguments)?;
    let recordings: Vec<RecordedSession> = RecordingFiles::from_paths(from_ref(&set))?.filter_map(Result::ok).collect();
    let count = SESSION_COUNT.min(recordings.len());
    let sampled = (0..count).map(|at| &recordings[at * recordings.len() / count]);
    let sessions: Vec<CheckedSession> = sampled.map(checked_session).collect();
    let messages: usize = sessions.iter().map(|session| session.messages.len()).sum();
    print_line(&format!("{} of {} sessions, {messages} messages\n", sessions.len(), recordings.len()));
    let mut rows = Vec::new();
    check_without_budget(&sessions, &mut rows);
    for budget in BUDGETS {
        check_with_budget(&sessions, budget, &mut rows);
    }
    print_line(Findings::HEADER);
    rows.iter().for_each(|row| print_line(&row.to_string()));
    print_line(&format!("\n{}", originals::comparison(&sessions, &BUDGETS)));
    let faults: usize = rows.iter().map(Findings::faults).sum();
    if faults > 0 {
        bail!("{faults} faults");
    }
    Ok(())
}

fn checked_session(recording: &RecordedSession) -> CheckedSession {
    CheckedSession {
        id: recording.id.clone(),
        profile: LawProfile::for_model(recording.format.wire_format(), recording.model()),
        messages: recording.conversation.messages.clone(),
    }
}

fn check_without_budget(sessions: &[CheckedSession], rows: &mut Vec<Findings>) {
    let enabled = StrategyOptions {
        middle: Some(TrimMiddle::default()),
        calls: Some(DedupToolCalls::default()),
        snippets: Some(SnippetToolOutputs::default()),
        ..StrategyOptions::default()
    };
    let mut default = Findings::new("apply_all", None);
    let mut all = Findings::new("apply_all, all enabled", None);
    for session in sessions {
        let mut messages = session.messages.clone();
        apply_all(&mut messages);
        default.check(session, &messages, &[]);
        let mut messages = session.messages.clone();
        apply_all_with(&mut messages, &enabled);
        all.check(session, &messages, &[]);
    }
    rows.extend([default, all]);
}

fn check_with_budget(sessions: &[CheckedSession], budget: u64, rows: &mut Vec<Findings>) {
    let meter = Meter::for_model(ModelTable::builtin(), Some(MODEL));
    let mut projection = Findings::new("compact_to_budget", Some(budget));
    let mut truncation = Findings::new("terminal_truncate", Some(budget));
    let mut cascade = Findings::new("apply_all + cascade", Some(budget));
    let mut engine = Findings::new("engine, every request", Some(budget));
    for session in sessions {
        let (messages, stats) = compact_to_budget(&session.messages, budget, &CompactToBudget::for_model(MODEL));
        projection.check(session, &messages, &[]);
        projection.check_count(session, &messages, stats.after, stats.fits());

        let options = TerminalTruncate { meter: meter.clone(), ..TerminalTruncate::default() };
        let result = terminal_truncate(session.messages.clone(), budget, &options);
        let removed = [result.dropped.as_slice(), &result.originals].concat();
        truncation.check(session, &result.messages, &removed);
        truncation.check_count(session, &result.messages, result.after, result.fits());

        check_cascade(session, budget, &meter, &mut cascade);
        check_engine(session, budget, &mut engine);
    }
    rows.extend([projection, truncation, cascade, engine]);
}

/// Runs `apply_all` and then the cascade without a model, as an agent does before a step.
fn check_cascade(session: &CheckedSession, budget: u64, meter: &Meter, findings: &mut Findings) {
    let mut messages = session.messages.clone();
    apply_all(&mut messages);
    let mut conversation = Conversation { messages, ..Conversation::default() };
    let store = Arc::new(MemoryStore::default());
    let options = EnforceOptions {
        budget,
        profile: session.profile.clone(),
        store: Some(store),
        ..EnforceOptions::new(budget * 5 / 4, meter.clone())
    };
    let result = ready(enforce_context_window(&mut conversation, &options, &|_| ()));
    findings.check(session, &conversation.messages, &result.dropped);
    findings.check_count(session, &conversation.messages, result.tokens_after, result.fits());
}

/// Returns the output of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a cascade without a model waits for nothing"),
    }
}

/// Sends every request of a session, and unfolds every handle that was ever rendered.
fn check_engine(session: &CheckedSession, budget: u64, findings: &mut Findings) {
    let mut fold = FoldSession::for_model(MODEL, budget);
    let conversation = Conversation { messages: session.messages.clone(), ..Conversation::default() };
    let mut pushed = 0;
    for point in conversation.request_points() {
        conversation.messages[pushed..point].iter().for_each(|message| fold.push(message.clone()));
        pushed = point;
        if fold.plan_request().is_err() {
            continue;
        }
        // What was rendered before has no new handles.
        let from = fold.take_first_changed();
        findings.record_handles(fold.rendered_messages(from));
    }
    let fits = fold.plan_request().is_ok();
    let rendered: Vec<Message<'static>> = fold.rendered_messages(0).collect();
    findings.check_handles(session, |handle| fold.unfold(handle));
    if fits {
        findings.check_with(session, &rendered, |text| is_restorable(&fold, text));
    }
    findings.check_count(session, &rendered, fold.tokens(), fits);
}

/// Returns true if the text of a user is an original of the session.
fn is_restorable(fold: &FoldSession, text: &str) -> bool {
    // User messages are folded only in truncation, each under its own handle.
    fold.unfold(foldline::Handle::for_content(text.as_bytes())).is_some()
}

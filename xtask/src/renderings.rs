//! `cargo xtask renderings`: prints a digest of every rendering of a corpus' development set.
//!
//! Run it before and after a change that must not change a byte of any rendering. The corpus is found in the same way as
//! for `cargo xtask corpus`.

use std::slice::from_ref;

use anyhow::{Context, Result};
use foldline::engine::ReasoningRetention;
use foldline::models::PriceTable;
use foldline::transcript::RecordedSession;
use foldline::{FoldOptions, FoldSession, Meter, ModelTable};
use foldline_replay::RecordingFiles;

use crate::corpus;
use crate::output::print_line;

/// Budgets in tokens, each with the name of a price table.
const RENDER_CONFIGS: [(u64, &str); 4] =
    [(128_000, "anthropic-5m"), (128_000, "local"), (32_000, "anthropic-5m"), (32_000, "local")];

/// Prints one digest per configuration.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let set = corpus::development_set(arguments)?;
    let recordings: Vec<RecordedSession> = RecordingFiles::from_paths(from_ref(&set))?.filter_map(Result::ok).collect();
    for (budget, prices) in RENDER_CONFIGS {
        let mut digest = blake3::Hasher::new();
        let mut counts = RenderingCounts::default();
        for recording in &recordings {
            render_session(recording, budget, prices, &mut digest, &mut counts)?;
        }
        let RenderingCounts { requests, creases, refused } = counts;
        let sessions = recordings.len();
        print_line(&format!(
            "{budget:>7} {prices:<13} {sessions} sessions, {requests} requests, {creases} creases, {refused} that cannot \
             fit: {}",
            &digest.finalize().to_hex()[..32]
        ));
    }
    Ok(())
}

/// Counts of one configuration over all sessions.
#[derive(Default)]
struct RenderingCounts {
    requests: u64,
    creases: u64,
    refused: u64,
}

/// Renders every request of a session and adds the messages that changed since the previous one to the digest.
fn render_session(
    recording: &RecordedSession,
    budget: u64,
    prices: &str,
    digest: &mut blake3::Hasher,
    counts: &mut RenderingCounts,
) -> Result<()> {
    let prices = PriceTable::builtin().get(prices).context("the price table is built in")?;
    let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
    let conversation = &recording.conversation;
    let mut setup = FoldOptions::new(meter, prices, budget).with_overhead_of(conversation);
    setup.handles = true;
    setup.reasoning_retention = ReasoningRetention::DropOld;
    let mut session = FoldSession::new(setup);
    let mut pushed = 0;
    for point in conversation.request_points() {
        for message in &conversation.messages[pushed..point] {
            session.push(message.clone());
        }
        pushed = point;
        counts.requests += 1;
        match session.plan_request() {
            Ok(Some(crease)) => {
                counts.creases += 1;
                digest.update(
                    format!(
                        "{} {} {} {}",
                        crease.request_point, crease.saved_tokens, crease.rewrite_cost, crease.first_message
                    )
                    .as_bytes(),
                );
            }
            Ok(None) => {}
            Err(_) => {
                counts.refused += 1;
                digest.update(b"cannot fit");
                continue;
            }
        }
        let from = session.take_first_changed();
        for message in session.rendered_messages(from) {
            digest.update(&serde_json::to_vec(&message)?);
        }
        digest.update(&session.tokens().to_le_bytes());
    }
    Ok(())
}

//! `foldline demo`: the main job with nothing to set up.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use foldline_archive::Archive;
use foldline_server::demo::{
    BaselineRun, DEMO_MODEL, DemoError, DemoRunner, DemoTurn, ProxiedRun, RefusedRequest, WINDOW_TOKENS,
};

use super::print_stdout;
use crate::environment::Terminal;
use crate::render;
use crate::render::{format_number, format_percent};
use crate::units::format_dollars;

/// Watch an agent outgrow its window, and the proxy keep it inside
///
/// A scripted agent looks for a bug and sends its whole conversation again at every step; a scripted model answers it,
/// counts every token and refuses what is too long. The demo lets them talk straight, and then through the real
/// proxy. Everything happens on this machine: no key is needed, and nothing is sent anywhere.
#[derive(Args)]
pub(crate) struct DemoCommand {}

impl DemoCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run_demo()).map_err(|failure| anyhow!("{failure}"))
    }
}

async fn run_demo() -> Result<ExitCode, DemoError> {
    let look = Terminal::for_stdout();
    let stage = DemoRunner::default();
    print_stdout(&format!(
        "An agent mends an importer. Its model takes {} tokens; both are scripts on this machine.\n\n",
        format_number(WINDOW_TOKENS)
    ))?;
    let straight = stage.run_baseline().await?;
    let RefusedRequest { turn, status, message, .. } = &straight.refusal;
    print_stdout(&format!("Straight to the model, turn {turn} is refused with {status}:\n"))?;
    print_stdout(&format!("  {}\n\n", render::wrapped(message, look, "  ")))?;
    print_stdout("Through foldline, with tokens as the agent sends them and as the model gets them:\n\n")?;

    let folder = tempfile::tempdir()?;
    let archive = Archive::open(folder.path().join("archive.db"))?;
    let most = straight.turn_tokens.iter().copied().max().unwrap_or_default();
    print_stdout(&format!("turn  {:<32} {:>7} {:>7}\n", "", "agent", "model"))?;
    let (mut creases, mut asked) = (0, Vec::new());
    let told = stage
        .run_through_proxy(&straight, archive, |turn| {
            creases += usize::from(turn.is_crease);
            asked.extend(turn.unfold.iter().map(|it| (turn.number, it.clone())));
            // Who does not want to read on is told at the end.
            let _ = print_stdout(&format_turn(turn, most, look));
        })
        .await?;

    print_stdout("\n")?;
    for (turn, it) in &asked {
        let same = if it.is_exact { "the very bytes" } else { "NOT the bytes" };
        let line = format!(
            "In turn {turn} the model needed a file as it was before an edit, and that had been folded. It asked for \
             {}, inside of its answer, and got {} bytes: {same} that it had seen. The agent saw nothing of it.",
            it.handle,
            format_number(it.bytes as u64)
        );
        print_stdout(&format!("{}\n\n", render::wrapped(&line, look, "")))?;
    }
    print_stdout(&format_guarantees(&told, creases))?;
    print_stdout(&format_costs(&straight, &told))?;
    let kept = told.finished
        && told.restored
        && told.violations.is_empty()
        && told.max_prompt_tokens <= WINDOW_TOKENS
        && told.recovered_count == told.original_count;
    if !kept || asked.iter().any(|(_, it)| !it.is_exact) {
        return Err("a promise was broken; please report this".into());
    }
    Ok(ExitCode::SUCCESS)
}

/// A turn in a line: how much the model got, and how much of the agent's it did not need.
fn format_turn(turn: &DemoTurn, most: u64, look: Terminal) -> String {
    let room = look.width.saturating_sub(66).clamp(8, 60);
    let mut notes = Vec::new();
    if turn.is_crease {
        notes.push("crease");
    }
    if turn.unfold.is_some() {
        notes.push("unfolded");
    }
    let bar = render::comparison_bar(turn.sent_tokens, turn.received_tokens, most, room, look);
    let title = render::padded(&turn.title, 32);
    let line = format!(
        "{:>4}  {title} {:>7} {:>7}  {bar} {}",
        turn.number,
        format_number(turn.received_tokens),
        format_number(turn.sent_tokens),
        notes.join(", ")
    );
    format!("{}\n", line.trim_end())
}

fn format_guarantees(told: &ProxiedRun, creases: usize) -> String {
    let laws = match told.violations.len() {
        0 => "broke no law of its format".to_owned(),
        broken => format!("broke {broken} laws, such as {}", told.violations[0]),
    };
    format!(
        "  fits         the longest of {} prompts has {} tokens\n  \
           valid        every one of them {laws}\n  \
           stable       each began with the one before it, but for {creases} creases\n  \
           recoverable  {} of {} folded originals came back byte for byte\n\n",
        told.prompt_count,
        format_number(told.max_prompt_tokens),
        told.recovered_count,
        told.original_count
    )
}

/// What both ways cost, by what the model counted.
fn format_costs(straight: &BaselineRun, told: &ProxiedRun) -> String {
    let (without, with) = (&straight.cost, &told.cost);
    let line = |name: &str, without: String, with: String, less: String| {
        format!("{name:<22}{without:>12}{with:>12}{less:>12}\n")
    };
    let tokens = |name: &str, without: u64, with: u64| {
        let less =
            if with <= without { format!("-{}", format_percent(without - with, without)) } else { String::new() };
        line(name, format_number(without), format_number(with), less)
    };
    let cents = |bill: f64| (bill * 1e6) as u64;
    let saved = format_percent(cents(without.dollars).saturating_sub(cents(with.dollars)), cents(without.dollars));
    [
        line("", "straight*".into(), "foldline".into(), String::new()),
        tokens("tokens of prompts", without.prompt_tokens, with.prompt_tokens),
        tokens(
            "  not in the cache",
            without.prompt_tokens - without.cached_tokens,
            with.prompt_tokens - with.cached_tokens,
        ),
        line(
            &format!("bill, as {DEMO_MODEL}"),
            format_dollars(without.dollars),
            format_dollars(with.dollars),
            format!("-{saved}"),
        ),
        "\n* if the window were wide enough\n".to_owned(),
    ]
    .concat()
}

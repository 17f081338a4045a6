//! `foldline demo`: the main job with nothing to set up.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use foldline_archive::Archive;
use foldline_server::rehearsal::{Failure, Folded, MODEL, Refused, Rehearsal, Straight, Turn, WINDOW};

use super::print;
use crate::environment::Look;
use crate::picture::{self, number, percent};
use crate::quantity::dollars;

/// Watch an agent outgrow its window, and the proxy keep it inside
///
/// A scripted agent looks for a bug and sends its whole conversation again at every step; a scripted model answers it,
/// counts every token and refuses what is too long. The demo lets them talk straight, and then through the real
/// proxy. Everything happens on this machine: no key is needed, and nothing is sent anywhere.
#[derive(Args)]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(play()).map_err(|failure| anyhow!("{failure}"))
    }
}

async fn play() -> Result<ExitCode, Failure> {
    let look = Look::of_stdout();
    let stage = Rehearsal::default();
    print(&format!(
        "An agent mends an importer. Its model takes {} tokens; both are scripts on this machine.\n\n",
        number(WINDOW)
    ))?;
    let straight = stage.straight().await?;
    let Refused { turn, status, message, .. } = &straight.refused;
    print(&format!("Straight to the model, turn {turn} is refused with {status}:\n"))?;
    print(&format!("  {}\n\n", picture::wrapped(message, look, "  ")))?;
    print("Through foldline, with tokens as the agent sends them and as the model gets them:\n\n")?;

    let folder = tempfile::tempdir()?;
    let archive = Archive::open(folder.path().join("archive.db"))?;
    let most = straight.turns.iter().copied().max().unwrap_or_default();
    print(&format!("turn  {:<32} {:>7} {:>7}\n", "", "agent", "model"))?;
    let (mut creases, mut asked) = (0, Vec::new());
    let told = stage
        .through_the_proxy(&straight, archive, |turn| {
            creases += usize::from(turn.creased);
            asked.extend(turn.unfolded.iter().map(|it| (turn.number, it.clone())));
            // Who does not want to read on is told at the end.
            let _ = print(&row(turn, most, look));
        })
        .await?;

    print("\n")?;
    for (turn, it) in &asked {
        let same = if it.same { "the very bytes" } else { "NOT the bytes" };
        let line = format!(
            "In turn {turn} the model needed a file as it was before an edit, and that had been folded. It asked for \
             {}, inside of its answer, and got {} bytes: {same} that it had seen. The agent saw nothing of it.",
            it.handle,
            number(it.bytes as u64)
        );
        print(&format!("{}\n\n", picture::wrapped(&line, look, "")))?;
    }
    print(&promises(&told, creases))?;
    print(&bills(&straight, &told))?;
    let kept = told.finished
        && told.restored
        && told.broken.is_empty()
        && told.longest <= WINDOW
        && told.recovered == told.originals;
    if !kept || asked.iter().any(|(_, it)| !it.same) {
        return Err("a promise was broken; please report this".into());
    }
    Ok(ExitCode::SUCCESS)
}

/// A turn in a line: how much the model got, and how much of the agent's it did not need.
fn row(turn: &Turn, most: u64, look: Look) -> String {
    let room = look.width.saturating_sub(66).clamp(8, 60);
    let mut notes = Vec::new();
    if turn.creased {
        notes.push("crease");
    }
    if turn.unfolded.is_some() {
        notes.push("unfolded");
    }
    let bar = picture::of_two(turn.sent, turn.raw, most, room, look);
    let title = picture::column(&turn.title, 32);
    let line = format!(
        "{:>4}  {title} {:>7} {:>7}  {bar} {}",
        turn.number,
        number(turn.raw),
        number(turn.sent),
        notes.join(", ")
    );
    format!("{}\n", line.trim_end())
}

fn promises(told: &Folded, creases: usize) -> String {
    let laws = match told.broken.len() {
        0 => "broke no law of its format".to_owned(),
        broken => format!("broke {broken} laws, such as {}", told.broken[0]),
    };
    format!(
        "  fits         the longest of {} prompts has {} tokens\n  \
           valid        every one of them {laws}\n  \
           stable       each began with the one before it, but for {creases} creases\n  \
           recoverable  {} of {} folded originals came back byte for byte\n\n",
        told.prompts,
        number(told.longest),
        told.recovered,
        told.originals
    )
}

/// What both ways cost, by what the model counted.
fn bills(straight: &Straight, told: &Folded) -> String {
    let (without, with) = (&straight.bill, &told.bill);
    let line = |name: &str, without: String, with: String, less: String| {
        format!("{name:<22}{without:>12}{with:>12}{less:>12}\n")
    };
    let tokens = |name: &str, without: u64, with: u64| {
        let less = if with <= without { format!("-{}", percent(without - with, without)) } else { String::new() };
        line(name, number(without), number(with), less)
    };
    let cents = |bill: f64| (bill * 1e6) as u64;
    let saved = percent(cents(without.dollars).saturating_sub(cents(with.dollars)), cents(without.dollars));
    [
        line("", "straight*".into(), "foldline".into(), String::new()),
        tokens("tokens of prompts", without.prompts, with.prompts),
        tokens("  not in the cache", without.prompts - without.cached, with.prompts - with.cached),
        line(&format!("bill, as {MODEL}"), dollars(without.dollars), dollars(with.dollars), format!("-{saved}")),
        "\n* if the window were wide enough\n".to_owned(),
    ]
    .concat()
}

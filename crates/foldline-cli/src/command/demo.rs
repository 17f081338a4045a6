//! `foldline demo`: the proxy at work, without any setup.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use foldline_archive::Archive;
use foldline_server::demo::{
    BaselineRun, DEMO_MODEL, DemoError, DemoRunner, DemoTurn, ProxiedRun, RefusedRequest, WINDOW_TOKENS,
};
use foldline_server::proxy::{Proxy, ProxySettings};

use crate::environment::Terminal;
use crate::output::print_stdout;
use crate::render;
use crate::render::{format_number, format_percent};
use crate::units::format_dollars;

/// Watch an agent outgrow its window, and the proxy keep it inside
///
/// A scripted agent looks for a bug and sends its whole conversation again at every step; a scripted model answers,
/// counts every token and rejects requests that are too long. The demo runs them without foldline first, and then
/// through the real proxy. Everything runs on this machine: no key is needed, and nothing is sent anywhere.
#[derive(Args)]
pub(crate) struct DemoCommand {
    /// Keep a proxy running afterwards, with the demo's session on its dashboard.
    #[arg(long)]
    open: bool,
}

impl DemoCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = crate::runtime::build()?;
        runtime.block_on(run_demo(self.open)).map_err(|failure| anyhow!("{failure}"))
    }
}

async fn run_demo(open: bool) -> Result<ExitCode, DemoError> {
    let terminal = Terminal::for_stdout();
    let runner = DemoRunner::default();
    print_stdout(&format!(
        "An agent repairs an importer. Its model accepts {} tokens; both are scripts on this machine.\n\n",
        format_number(WINDOW_TOKENS)
    ))?;
    let baseline = runner.run_baseline().await?;
    let RefusedRequest { turn, status, message, .. } = &baseline.refusal;
    print_stdout(&format!("Without foldline, turn {turn} is refused with {status}:\n"))?;
    print_stdout(&format!("  {}\n\n", render::wrapped(message, terminal, "  ")))?;
    print_stdout("Through foldline; tokens sent by the agent and received by the model:\n\n")?;

    let folder = tempfile::tempdir()?;
    let archive = Archive::open(folder.path().join("archive.db"))?;
    let max_turn_tokens = baseline.turn_tokens.iter().copied().max().unwrap_or_default();
    print_stdout(&format!("turn  {:<32} {:>7} {:>7}\n", "", "agent", "model"))?;
    let (mut creases, mut unfolds, mut tool_tokens) = (0, Vec::new(), 0);
    let proxied = runner
        .run_through_proxy(&baseline, archive.clone(), |turn| {
            creases += usize::from(turn.is_crease);
            // The first request is longer by the tool alone.
            if turn.number == 1 {
                tool_tokens = turn.sent_tokens.saturating_sub(turn.received_tokens);
            }
            unfolds.extend(turn.unfold.iter().map(|it| (turn.number, it.clone())));
            // A closed standard output is reported by the prints after the run.
            let _ = print_stdout(&format_turn(turn, max_turn_tokens, terminal));
        })
        .await?;

    print_stdout("\n")?;
    if tool_tokens > 0 {
        let line = format!(
            "Until something is folded the model receives {} tokens more than the agent sends: the definition of the tool \
             with which it can unfold. The tool is part of every request, so that the prompt cache stays valid.",
            format_number(tool_tokens)
        );
        print_stdout(&format!("{}\n\n", render::wrapped(&line, terminal, "")))?;
    }
    for (turn, it) in &unfolds {
        let same = if it.is_exact { "exactly the bytes" } else { "NOT the bytes" };
        let line = format!(
            "In turn {turn} the model needed a file as it was before an edit, and that had been folded. It unfolded \
             {} within its response and received {} bytes: {same} it had seen before. The agent saw none of this.",
            it.handle,
            format_number(it.bytes as u64)
        );
        print_stdout(&format!("{}\n\n", render::wrapped(&line, terminal, "")))?;
    }
    print_stdout(&format_guarantees(&proxied, creases))?;
    print_stdout(&format_costs(&baseline, &proxied))?;
    let guarantees_hold = proxied.finished
        && proxied.restored
        && proxied.violations.is_empty()
        && proxied.max_prompt_tokens <= WINDOW_TOKENS
        && proxied.recovered_count == proxied.original_count;
    if !guarantees_hold || unfolds.iter().any(|(_, it)| !it.is_exact) {
        return Err("a guarantee was violated; please report this".into());
    }
    if open {
        serve_dashboard(archive).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves the dashboard with the demo's session until Ctrl-C.
async fn serve_dashboard(archive: Archive) -> Result<(), DemoError> {
    let settings = ProxySettings { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..ProxySettings::default() };
    let proxy = Proxy::bind(settings, Some(archive)).await?;
    print_stdout(&format!(
        "\nThe session is on the dashboard: http://{}/foldline/ (Ctrl-C ends it)\n",
        proxy.address()
    ))?;
    proxy
        .run(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await;
    Ok(())
}

/// Formats a turn as one line: tokens that the model received, and tokens that the agent sent.
fn format_turn(turn: &DemoTurn, max_turn_tokens: u64, terminal: Terminal) -> String {
    let room = terminal.width.saturating_sub(66).clamp(8, 60);
    let mut notes = Vec::new();
    if turn.is_crease {
        notes.push("crease");
    }
    if turn.unfold.is_some() {
        notes.push("unfolded");
    }
    let bar = render::comparison_bar(turn.sent_tokens, turn.received_tokens, max_turn_tokens, room, terminal);
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

fn format_guarantees(proxied: &ProxiedRun, creases: usize) -> String {
    let laws = match proxied.violations.len() {
        0 => "follows the laws of its format".to_owned(),
        broken => format!("follows its laws, except {broken} violations such as {}", proxied.violations[0]),
    };
    format!(
        "  fits         the longest of {} prompts has {} tokens\n  \
           valid        every prompt {laws}\n  \
           stable       each prompt extends the previous one, except at {creases} creases\n  \
           recoverable  {} of {} folded originals were restored byte for byte\n\n",
        proxied.prompt_count,
        format_number(proxied.max_prompt_tokens),
        proxied.recovered_count,
        proxied.original_count
    )
}

/// Formats the costs of both runs, by the model's counts.
fn format_costs(baseline: &BaselineRun, proxied: &ProxiedRun) -> String {
    let (without, with) = (&baseline.cost, &proxied.cost);
    let line = |name: &str, without: String, with: String, less: String| {
        format!("{name:<22}{without:>12}{with:>12}{less:>12}\n")
    };
    let tokens = |name: &str, without: u64, with: u64| {
        let less =
            if with <= without { format!("-{}", format_percent(without - with, without)) } else { String::new() };
        line(name, format_number(without), format_number(with), less)
    };
    let micros = |dollars: f64| (dollars * 1e6) as u64;
    let saved = format_percent(micros(without.dollars).saturating_sub(micros(with.dollars)), micros(without.dollars));
    [
        line("", "without*".into(), "foldline".into(), String::new()),
        tokens("prompt tokens", without.prompt_tokens, with.prompt_tokens),
        tokens(
            "  not in the cache",
            without.prompt_tokens - without.cached_tokens,
            with.prompt_tokens - with.cached_tokens,
        ),
        line(
            &format!("cost, as {DEMO_MODEL}"),
            format_dollars(without.dollars),
            format_dollars(with.dollars),
            format!("-{saved}"),
        ),
        "\n* without foldline, if the window were large enough\n".to_owned(),
    ]
    .concat()
}

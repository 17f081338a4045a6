//! A rehearsal: an agent and a model, both scripted, talk over loopback, first straight and then through
//! the real proxy, until the conversation is far longer than the model's window.
//!
//! Agent and model know nothing of the proxy. Every number that comes out was measured by the model's
//! side, which counts, checks and caches as a provider does; nothing leaves the machine.

mod agent;
mod provider;
mod script;

use std::collections::HashSet;
use std::net::Ipv4Addr;

use axum::body::Body;
use foldline::marker;
use foldline::wire::{Format, Request as Wire};
use foldline::{CountCache, Message, Meter, ModelTable, Part, Prices, Tokens};
use foldline_archive::Archive;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::sync::oneshot;

use crate::demo::agent::{ScriptedAgent, TurnOutcome};
use crate::demo::provider::{AbortOnDrop, ReceivedPrompt, ScriptedProvider};
use crate::proxy::{Proxy, ProxySettings, ProxyStats};

/// The model whose vocabulary is counted by, and whose prices are billed.
pub const DEMO_MODEL: &str = "gpt-5.4";
/// Tokens that the scripted model takes.
pub const WINDOW_TOKENS: Tokens = 24_000;
/// Tokens of answer that the agent leaves room for.
const MAX_OUTPUT_TOKENS: Tokens = 1_000;

/// Why a rehearsal came to no end.
pub type DemoError = Box<dyn std::error::Error + Send + Sync>;

/// What the agent's session is without a proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BaselineRun {
    /// How it ends with the model's real window.
    pub refusal: RefusedRequest,
    /// Tokens of each turn, if the window were wide enough.
    pub turn_tokens: Vec<Tokens>,
    /// What all of them would cost.
    pub cost: SessionCost,
}

/// A request that a provider refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RefusedRequest {
    /// The turn, counted from 1.
    pub turn: usize,
    /// The status of HTTP.
    pub status: u16,
    /// The provider's words.
    pub message: String,
}

/// A turn through the proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DemoTurn {
    /// Counted from 1.
    pub number: usize,
    /// What the model did in it.
    pub title: String,
    /// Tokens of the same turn without a proxy.
    pub received_tokens: Tokens,
    /// Tokens that the model got.
    pub sent_tokens: Tokens,
    /// What the model got did not begin with what it got before: something was folded in between.
    pub is_crease: bool,
    /// What the model asked for in this turn, unseen by the agent.
    pub unfold: Option<DemoUnfold>,
}

/// An original that the model got back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DemoUnfold {
    /// What it asked for.
    pub handle: String,
    /// What it got.
    pub bytes: usize,
    /// It is exactly what the model had seen before.
    pub is_exact: bool,
}

/// What the whole session came to through the proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProxiedRun {
    /// What it cost.
    pub cost: SessionCost,
    /// The laws of the format that requests broke.
    pub violations: Vec<String>,
    /// Prompts that the model got, hidden rounds included.
    pub prompt_count: usize,
    /// The longest of them.
    pub max_prompt_tokens: Tokens,
    /// Originals behind the markers of the last prompt.
    pub original_count: usize,
    /// How many of them came back byte for byte when they were asked for.
    pub recovered_count: usize,
    /// The agent's own view: its session ended as it does without a proxy.
    pub finished: bool,
    /// What the model wrote back is byte for byte what it had read.
    pub restored: bool,
    /// What the proxy says of itself.
    pub stats: ProxyStats,
}

/// What prompts and answers cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionCost {
    /// Tokens of all prompts.
    pub prompt_tokens: Tokens,
    /// How many of them the provider's cache knew.
    pub cached_tokens: Tokens,
    /// Tokens of all answers.
    pub output_tokens: Tokens,
    /// All of it in dollars.
    pub dollars: f64,
}

impl SessionCost {
    fn add(&mut self, arrival: &ReceivedPrompt, prices: &Prices) {
        self.prompt_tokens += arrival.tokens;
        self.cached_tokens += arrival.cached_tokens;
        self.output_tokens += arrival.output_tokens;
        let fresh = (arrival.tokens - arrival.cached_tokens) as f64 * prices.write;
        let rest = arrival.cached_tokens as f64 * prices.read + arrival.output_tokens as f64 * prices.output;
        self.dollars += prices.dollars(fresh + rest);
    }
}

/// The stage of a rehearsal.
///
/// ```
/// use foldline_archive::Archive;
/// use foldline_server::demo::{Rehearsal, WINDOW};
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # let folder = tempfile::tempdir()?;
/// let stage = Rehearsal::default();
/// let straight = stage.straight().await?;
/// assert!(*straight.turns.last().unwrap() > WINDOW, "the session outgrows its window");
/// let archive = Archive::open(folder.path().join("archive.db"))?;
/// let folded = stage.through_the_proxy(&straight, archive, |_| ()).await?;
/// assert!(folded.finished && folded.restored && folded.longest <= WINDOW);
/// # Ok::<(), foldline_server::demo::Failure>(()) })?;
/// # Ok::<(), foldline_server::demo::Failure>(())
/// ```
pub struct DemoRunner {
    meter: Meter,
    prices: Prices,
}

impl Default for DemoRunner {
    fn default() -> Self {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some(DEMO_MODEL)).with_cache(CountCache::default());
        Self { meter, prices: Prices::for_model(table, Some(DEMO_MODEL)) }
    }
}

impl DemoRunner {
    /// The session without a proxy: once until the model refuses it, once with a window of any width.
    pub async fn run_baseline(&self) -> Result<BaselineRun, DemoError> {
        let narrow = ScriptedProvider::start(self.meter.clone(), Some(WINDOW_TOKENS)).await?;
        let mut agent = ScriptedAgent::new(format!("http://{}/v1", narrow.address));
        let mut turn = 1;
        let refused = loop {
            match agent.run_turn().await? {
                TurnOutcome::Continued => turn += 1,
                TurnOutcome::Done => return Err("the session ended before its window was full".into()),
                TurnOutcome::Refused { status, message } => {
                    break RefusedRequest { turn, status: status.as_u16(), message };
                }
            }
        };

        let wide = ScriptedProvider::start(self.meter.clone(), None).await?;
        let mut agent = ScriptedAgent::new(format!("http://{}/v1", wide.address));
        while matches!(agent.run_turn().await?, TurnOutcome::Continued) {}
        let mut bill = SessionCost::default();
        let arrivals = wide.take_prompts();
        arrivals.iter().for_each(|arrival| bill.add(arrival, &self.prices));
        Ok(BaselineRun {
            refusal: refused,
            turn_tokens: arrivals.iter().map(|arrival| arrival.tokens).collect(),
            cost: bill,
        })
    }

    /// The same session through a proxy with this archive, turn by turn.
    pub async fn run_through_proxy(
        &self,
        straight: &BaselineRun,
        archive: Archive,
        mut tell: impl FnMut(&DemoTurn),
    ) -> Result<ProxiedRun, DemoError> {
        let provider = ScriptedProvider::start(self.meter.clone(), Some(WINDOW_TOKENS)).await?;
        let upstream: crate::proxy::UpstreamUrl = format!("http://{}", provider.address).parse()?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let settings =
            ProxySettings { listen, openai: upstream.clone(), anthropic: upstream, ..ProxySettings::default() };
        let proxy = Proxy::bind(settings, Some(archive)).await?;
        let (base, watch) = (format!("http://{}", proxy.address()), proxy.stats_handle());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = AbortOnDrop(tokio::spawn(proxy.run(async {
            let _ = stopped.await;
        })));

        let mut agent = ScriptedAgent::new(format!("{base}/v1"));
        let (mut bill, mut broken, mut longest, mut prompts) = (SessionCost::default(), Vec::new(), 0, 0);
        let mut last = ReceivedPrompt::default();
        let mut ended = false;
        let steps = crate::demo::script::script_steps();
        for (at, (step, &raw)) in steps.iter().zip(&straight.turn_tokens).enumerate() {
            let turned = agent.run_turn().await?;
            let arrivals = provider.take_prompts();
            arrivals.iter().for_each(|arrival| bill.add(arrival, &self.prices));
            broken.extend(arrivals.iter().flat_map(|arrival| arrival.violations.clone()));
            prompts += arrivals.len();
            longest = arrivals.iter().map(|arrival| arrival.tokens).fold(longest, Tokens::max);
            let Some(first) = arrivals.first() else { return Err("the model got nothing".into()) };
            let got = arrivals.iter().filter_map(|arrival| arrival.unfold.as_ref()).find_map(|asked| {
                Some(DemoUnfold { handle: asked.handle.clone(), bytes: asked.bytes?, is_exact: asked.is_exact })
            });
            tell(&DemoTurn {
                number: at + 1,
                title: step.action.title(),
                received_tokens: raw,
                sent_tokens: first.tokens,
                is_crease: arrivals.iter().any(|arrival| !arrival.extends_previous),
                unfold: got,
            });
            last = arrivals.into_iter().next_back().unwrap_or_default();
            match turned {
                TurnOutcome::Continued => {}
                TurnOutcome::Done => ended = at + 1 == steps.len(),
                TurnOutcome::Refused { status, message } => {
                    return Err(format!("turn {} was refused with {status}: {message}", at + 1).into());
                }
            }
        }
        let handles = prompt_handles(&last)?;
        let mut recovered = 0;
        for handle in &handles {
            recovered += usize::from(original_matches_agent(&base, handle, &agent).await?);
        }
        drop(stop);
        drop(serving);
        let originals = handles.len();
        let (tally, restored) = (watch.snapshot(), agent.has_restored_file());
        Ok(ProxiedRun {
            cost: bill,
            violations: broken,
            prompt_count: prompts,
            max_prompt_tokens: longest,
            original_count: originals,
            recovered_count: recovered,
            finished: ended,
            restored,
            stats: tally,
        })
    }
}

/// Whether the original behind a handle, as the proxy gives it out, is a text that the agent sent.
async fn original_matches_agent(base: &str, handle: &str, agent: &ScriptedAgent) -> Result<bool, DemoError> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request = Request::get(format!("{base}/foldline/unfold/{handle}")).body(Body::empty())?;
    let response = client.request(request).await?;
    let found = response.status() == StatusCode::OK;
    let original = response.into_body().collect().await?.to_bytes();
    // What stands for whole rounds is their messages.
    let rounds: Vec<Message<'_>> = serde_json::from_slice(&original).unwrap_or_default();
    let mut texts = rounds.iter().flat_map(|message| {
        let said = message.parts.iter().filter_map(Part::as_text);
        said.chain(message.results().flat_map(|result| result.texts()))
    });
    let is_sent =
        if rounds.is_empty() { agent.has_sent(&original) } else { texts.all(|text| agent.has_sent(text.as_bytes())) };
    Ok(found && is_sent)
}

/// The handles in the markers of a prompt's messages.
fn prompt_handles(arrival: &ReceivedPrompt) -> Result<HashSet<String>, DemoError> {
    let request = Wire::parse(Format::OpenAiChat, &arrival.body)?;
    let messages = (0..).map_while(|at| request.raw_message(at));
    Ok(messages.flat_map(marker::handles).map(|handle| handle.to_string()).collect())
}

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
use foldline::wire::{Format, Request as Wire};
use foldline::{CountCache, Message, Meter, ModelTable, Part, Prices, Tokens, marker};
use foldline_archive::Archive;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::sync::oneshot;

use crate::proxy::{Proxy, Settings, Tally};
use agent::{Agent, Turned};
use provider::{Aborted, Arrival, Provider};

/// The model whose vocabulary is counted by, and whose prices are billed.
pub const MODEL: &str = "gpt-5.4";
/// Tokens that the scripted model takes.
pub const WINDOW: Tokens = 24_000;
/// Tokens of answer that the agent leaves room for.
const OUTPUT: Tokens = 1_000;

/// Why a rehearsal came to no end.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the agent's session is without a proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Straight {
    /// How it ends with the model's real window.
    pub refused: Refused,
    /// Tokens of each turn, if the window were wide enough.
    pub turns: Vec<Tokens>,
    /// What all of them would cost.
    pub bill: Bill,
}

/// A request that a provider refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refused {
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
pub struct Turn {
    /// Counted from 1.
    pub number: usize,
    /// What the model did in it.
    pub title: String,
    /// Tokens of the same turn without a proxy.
    pub raw: Tokens,
    /// Tokens that the model got.
    pub sent: Tokens,
    /// What the model got did not begin with what it got before: something was folded in between.
    pub creased: bool,
    /// What the model asked for in this turn, unseen by the agent.
    pub unfolded: Option<Unfolded>,
}

/// An original that the model got back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unfolded {
    /// What it asked for.
    pub handle: String,
    /// What it got.
    pub bytes: usize,
    /// It is exactly what the model had seen before.
    pub same: bool,
}

/// What the whole session came to through the proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Folded {
    /// What it cost.
    pub bill: Bill,
    /// The laws of the format that requests broke.
    pub broken: Vec<String>,
    /// Prompts that the model got, hidden rounds included.
    pub prompts: usize,
    /// The longest of them.
    pub longest: Tokens,
    /// Originals behind the markers of the last prompt.
    pub originals: usize,
    /// How many of them came back byte for byte when they were asked for.
    pub recovered: usize,
    /// The agent's own view: its session ended as it does without a proxy.
    pub finished: bool,
    /// What the model wrote back is byte for byte what it had read.
    pub restored: bool,
    /// What the proxy says of itself.
    pub tally: Tally,
}

/// What prompts and answers cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Bill {
    /// Tokens of all prompts.
    pub prompts: Tokens,
    /// How many of them the provider's cache knew.
    pub cached: Tokens,
    /// Tokens of all answers.
    pub output: Tokens,
    /// All of it in dollars.
    pub dollars: f64,
}

impl Bill {
    fn add(&mut self, arrival: &Arrival, prices: &Prices) {
        self.prompts += arrival.tokens;
        self.cached += arrival.cached;
        self.output += arrival.output;
        let fresh = (arrival.tokens - arrival.cached) as f64 * prices.write;
        let rest = arrival.cached as f64 * prices.read + arrival.output as f64 * prices.output;
        self.dollars += prices.dollars(fresh + rest);
    }
}

/// The stage of a rehearsal.
///
/// ```
/// use foldline_archive::Archive;
/// use foldline_server::rehearsal::{Rehearsal, WINDOW};
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
/// # Ok::<(), foldline_server::rehearsal::Failure>(()) })?;
/// # Ok::<(), foldline_server::rehearsal::Failure>(())
/// ```
pub struct Rehearsal {
    meter: Meter,
    prices: Prices,
}

impl Default for Rehearsal {
    fn default() -> Self {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some(MODEL)).with_cache(CountCache::default());
        Self { meter, prices: Prices::for_model(table, Some(MODEL)) }
    }
}

impl Rehearsal {
    /// The session without a proxy: once until the model refuses it, once with a window of any width.
    pub async fn straight(&self) -> Result<Straight, Failure> {
        let narrow = Provider::start(self.meter.clone(), Some(WINDOW)).await?;
        let mut agent = Agent::new(format!("http://{}/v1", narrow.address));
        let mut turn = 1;
        let refused = loop {
            match agent.turn().await? {
                Turned::On => turn += 1,
                Turned::Done => return Err("the session ended before its window was full".into()),
                Turned::Refused { status, message } => break Refused { turn, status: status.as_u16(), message },
            }
        };

        let wide = Provider::start(self.meter.clone(), None).await?;
        let mut agent = Agent::new(format!("http://{}/v1", wide.address));
        while matches!(agent.turn().await?, Turned::On) {}
        let mut bill = Bill::default();
        let arrivals = wide.take_arrivals();
        arrivals.iter().for_each(|arrival| bill.add(arrival, &self.prices));
        Ok(Straight { refused, turns: arrivals.iter().map(|arrival| arrival.tokens).collect(), bill })
    }

    /// The same session through a proxy with this archive, turn by turn.
    pub async fn through_the_proxy(
        &self,
        straight: &Straight,
        archive: Archive,
        mut tell: impl FnMut(&Turn),
    ) -> Result<Folded, Failure> {
        let provider = Provider::start(self.meter.clone(), Some(WINDOW)).await?;
        let upstream: crate::proxy::Upstream = format!("http://{}", provider.address).parse()?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let settings = Settings { listen, openai: upstream.clone(), anthropic: upstream, ..Settings::default() };
        let proxy = Proxy::bind(settings, Some(archive)).await?;
        let (base, watch) = (format!("http://{}", proxy.address()), proxy.watch());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Aborted(tokio::spawn(proxy.run(async {
            let _ = stopped.await;
        })));

        let mut agent = Agent::new(format!("{base}/v1"));
        let (mut bill, mut broken, mut longest, mut prompts) = (Bill::default(), Vec::new(), 0, 0);
        let mut last = Arrival::default();
        let mut ended = false;
        let steps = script::steps();
        for (at, (step, &raw)) in steps.iter().zip(&straight.turns).enumerate() {
            let turned = agent.turn().await?;
            let arrivals = provider.take_arrivals();
            arrivals.iter().for_each(|arrival| bill.add(arrival, &self.prices));
            broken.extend(arrivals.iter().flat_map(|arrival| arrival.broken.clone()));
            prompts += arrivals.len();
            longest = arrivals.iter().map(|arrival| arrival.tokens).fold(longest, Tokens::max);
            let Some(first) = arrivals.first() else { return Err("the model got nothing".into()) };
            let got = arrivals.iter().filter_map(|arrival| arrival.asked.as_ref()).find_map(|asked| {
                Some(Unfolded { handle: asked.handle.clone(), bytes: asked.bytes?, same: asked.same })
            });
            tell(&Turn {
                number: at + 1,
                title: step.does.title(),
                raw,
                sent: first.tokens,
                creased: arrivals.iter().any(|arrival| !arrival.stable),
                unfolded: got,
            });
            last = arrivals.into_iter().next_back().unwrap_or_default();
            match turned {
                Turned::On => {}
                Turned::Done => ended = at + 1 == steps.len(),
                Turned::Refused { status, message } => {
                    return Err(format!("turn {} was refused with {status}: {message}", at + 1).into());
                }
            }
        }
        let handles = handles_of(&last)?;
        let mut recovered = 0;
        for handle in &handles {
            recovered += usize::from(is_the_agents_own(&base, handle, &agent).await?);
        }
        drop(stop);
        drop(serving);
        let originals = handles.len();
        let (tally, restored) = (watch.tally(), agent.restored());
        Ok(Folded { bill, broken, prompts, longest, originals, recovered, finished: ended, restored, tally })
    }
}

/// Whether the original behind a handle, as the proxy gives it out, is a text that the agent sent.
async fn is_the_agents_own(base: &str, handle: &str, agent: &Agent) -> Result<bool, Failure> {
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
    let is_sent = if rounds.is_empty() { agent.sent(&original) } else { texts.all(|text| agent.sent(text.as_bytes())) };
    Ok(found && is_sent)
}

/// The handles in the markers of a prompt's messages.
fn handles_of(arrival: &Arrival) -> Result<HashSet<String>, Failure> {
    let request = Wire::parse(Format::OpenAiChat, &arrival.body)?;
    let messages = (0..).map_while(|at| request.raw_message(at));
    Ok(messages.flat_map(marker::handles).map(|handle| handle.to_string()).collect())
}

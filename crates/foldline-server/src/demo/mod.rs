//! A demo: a scripted agent and a scripted model communicate over loopback, first directly and then through the real
//! proxy, until the conversation is far longer than the model's window.
//!
//! Neither of them knows about the proxy. All numbers are measured by the scripted provider, which counts, checks and
//! caches as a real one does. No request leaves the machine.

mod agent;
mod constants;
mod provider;
mod script;

use std::collections::HashSet;
use std::net::Ipv4Addr;

use axum::body::Body;
use foldline::engine::marker;
use foldline::tokens::{CountCache, Tokens};
use foldline::wire::{Format, Request as Wire};
use foldline::{Message, Meter, ModelTable, Part, Prices};
use foldline_archive::Archive;
use futures_util::future::LocalBoxFuture;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::sync::oneshot;

use crate::demo::agent::{ScriptedAgent, TurnOutcome};
use crate::demo::provider::{AbortOnDrop, ReceivedPrompt, ScriptedProvider};
use crate::proxy::{Proxy, ProxySettings, ProxyStats, Upstreams};

pub use crate::demo::constants::{DEMO_MODEL, DemoError, WINDOW_TOKENS};

/// The agent's session without a proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BaselineRun {
    /// The refusal that ends it with the real window.
    pub refusal: RefusedRequest,
    /// Tokens of each turn with an unlimited window.
    pub turn_tokens: Vec<Tokens>,
    /// Cost of all turns with an unlimited window.
    pub cost: SessionCost,
}

/// A request that a provider refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RefusedRequest {
    /// Number of the turn, counted from 1.
    pub turn: usize,
    /// HTTP status.
    pub status: u16,
    /// Error message of the provider.
    pub message: String,
}

/// A turn through the proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DemoTurn {
    /// Number of the turn, counted from 1.
    pub number: usize,
    /// Action of the model.
    pub title: String,
    /// Tokens of the same turn without a proxy.
    pub received_tokens: Tokens,
    /// Tokens that the model received.
    pub sent_tokens: Tokens,
    /// True if the prompt did not extend the previous one, because new folds were made.
    pub is_crease: bool,
    /// Original that the model unfolded in this turn, unseen by the agent.
    pub unfold: Option<DemoUnfold>,
}

/// An original that the model restored.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DemoUnfold {
    /// Handle that was requested.
    pub handle: String,
    /// Size of the result in bytes.
    pub bytes: usize,
    /// True if it equals the text that the model had received before.
    pub is_exact: bool,
}

/// The result of the session through the proxy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProxiedRun {
    /// Cost of the session.
    pub cost: SessionCost,
    /// Provider laws that requests violated.
    pub violations: Vec<String>,
    /// Number of prompts that the model received, including hidden rounds.
    pub prompt_count: usize,
    /// Tokens of the longest prompt.
    pub max_prompt_tokens: Tokens,
    /// Number of originals behind the markers of the last prompt.
    pub original_count: usize,
    /// Number of these originals that were restored byte for byte.
    pub recovered_count: usize,
    /// True if the agent's session ended as it does without a proxy.
    pub finished: bool,
    /// True if the file that the model wrote back equals the one it had read.
    pub restored: bool,
    /// Statistics of the proxy.
    pub stats: ProxyStats,
}

/// The cost of prompts and responses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionCost {
    /// Tokens of all prompts.
    pub prompt_tokens: Tokens,
    /// Prompt tokens that were read from the provider's cache.
    pub cached_tokens: Tokens,
    /// Tokens of all responses.
    pub output_tokens: Tokens,
    /// Total cost in dollars.
    pub dollars: f64,
}

impl SessionCost {
    fn add(&mut self, prompt: &ReceivedPrompt, prices: &Prices) {
        self.prompt_tokens += prompt.tokens;
        self.cached_tokens += prompt.cached_tokens;
        self.output_tokens += prompt.output_tokens;
        let fresh = (prompt.tokens - prompt.cached_tokens) as f64 * prices.write;
        let rest = prompt.cached_tokens as f64 * prices.read + prompt.output_tokens as f64 * prices.output;
        self.dollars += prices.dollars(fresh + rest);
    }
}

/// Runs the demo.
///
/// ```
/// use foldline_archive::Archive;
/// use foldline_server::demo::{DemoRunner, WINDOW_TOKENS};
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # let folder = tempfile::tempdir()?;
/// let runner = DemoRunner::default();
/// let baseline = runner.run_baseline().await?;
/// assert!(*baseline.turn_tokens.last().unwrap() > WINDOW_TOKENS, "the session outgrows its window");
/// let archive = Archive::open(folder.path().join("archive.db"))?;
/// let proxied = runner.run_through_proxy(&baseline, archive, |_| ()).await?;
/// assert!(proxied.finished && proxied.restored && proxied.max_prompt_tokens <= WINDOW_TOKENS);
/// # Ok::<(), foldline_server::demo::DemoError>(()) })?;
/// # Ok::<(), foldline_server::demo::DemoError>(())
/// ```
#[derive(Debug)]
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
    /// Runs the session without a proxy: once until the model refuses it, and once with an unlimited window.
    ///
    /// # Errors
    ///
    /// Fails if the scripted provider cannot listen on the loopback address, or if the session does not fill its window.
    pub fn run_baseline(&self) -> impl Future<Output = Result<BaselineRun, DemoError>> {
        // Boxed, so that this crate alone compiles it.
        let run: LocalBoxFuture<'_, _> = Box::pin(self.replay_baseline());
        run
    }

    async fn replay_baseline(&self) -> Result<BaselineRun, DemoError> {
        let limited = ScriptedProvider::start(self.meter.clone(), Some(WINDOW_TOKENS)).await?;
        let mut agent = ScriptedAgent::new(format!("http://{}/v1", limited.address));
        let mut turn = 1;
        let refusal = loop {
            match agent.run_turn().await? {
                TurnOutcome::Continued => turn += 1,
                TurnOutcome::Done => return Err("the session ended before its window was full".into()),
                TurnOutcome::Refused { status, message } => {
                    break RefusedRequest { turn, status: status.as_u16(), message };
                }
            }
        };

        let unlimited = ScriptedProvider::start(self.meter.clone(), None).await?;
        let mut agent = ScriptedAgent::new(format!("http://{}/v1", unlimited.address));
        while matches!(agent.run_turn().await?, TurnOutcome::Continued) {}
        let mut cost = SessionCost::default();
        let prompts = unlimited.take_prompts();
        prompts.iter().for_each(|prompt| cost.add(prompt, &self.prices));
        Ok(BaselineRun { refusal, turn_tokens: prompts.iter().map(|prompt| prompt.tokens).collect(), cost })
    }

    /// Runs the same session through a proxy with this archive. `on_turn` is called after each turn.
    ///
    /// # Errors
    ///
    /// Fails if the provider or the proxy cannot listen on the loopback address, or if a turn gets no response.
    pub async fn run_through_proxy(
        &self,
        baseline: &BaselineRun,
        archive: Archive,
        mut on_turn: impl FnMut(&DemoTurn),
    ) -> Result<ProxiedRun, DemoError> {
        self.boxed_proxied_run(baseline, archive, &mut on_turn).await
    }

    /// Boxes the run, so that this crate alone compiles it.
    fn boxed_proxied_run<'a>(
        &'a self,
        baseline: &'a BaselineRun,
        archive: Archive,
        on_turn: &'a mut dyn FnMut(&DemoTurn),
    ) -> LocalBoxFuture<'a, Result<ProxiedRun, DemoError>> {
        Box::pin(self.replay_through_proxy(baseline, archive, on_turn))
    }

    async fn replay_through_proxy(
        &self,
        baseline: &BaselineRun,
        archive: Archive,
        on_turn: &mut dyn FnMut(&DemoTurn),
    ) -> Result<ProxiedRun, DemoError> {
        let provider = ScriptedProvider::start(self.meter.clone(), Some(WINDOW_TOKENS)).await?;
        let upstream: crate::proxy::UpstreamUrl = format!("http://{}", provider.address).parse()?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let settings = ProxySettings { listen, upstreams: Upstreams::all_at(&upstream), ..ProxySettings::default() };
        let proxy = Proxy::bind(settings, Some(archive)).await?;
        let (base_url, stats) = (format!("http://{}", proxy.address()), proxy.stats_handle());
        let (stop, stopped) = oneshot::channel::<()>();
        let proxy_task = AbortOnDrop(tokio::spawn(proxy.run(async {
            let _ = stopped.await;
        })));

        let mut agent = ScriptedAgent::new(format!("{base_url}/v1"));
        let (mut cost, mut violations, mut max_prompt_tokens, mut prompt_count) =
            (SessionCost::default(), Vec::new(), 0, 0);
        let mut last_prompt = ReceivedPrompt::default();
        let mut finished = false;
        let steps = crate::demo::script::script_steps();
        for (at, (step, &received_tokens)) in steps.iter().zip(&baseline.turn_tokens).enumerate() {
            let outcome = agent.run_turn().await?;
            let prompts = provider.take_prompts();
            prompts.iter().for_each(|prompt| cost.add(prompt, &self.prices));
            violations.extend(prompts.iter().flat_map(|prompt| prompt.violations.clone()));
            prompt_count += prompts.len();
            max_prompt_tokens = prompts.iter().map(|prompt| prompt.tokens).fold(max_prompt_tokens, Tokens::max);
            let Some(first) = prompts.first() else { return Err("the model received no prompt".into()) };
            let unfold = prompts.iter().filter_map(|prompt| prompt.unfold.as_ref()).find_map(|unfold| {
                Some(DemoUnfold { handle: unfold.handle.clone(), bytes: unfold.bytes?, is_exact: unfold.is_exact })
            });
            on_turn(&DemoTurn {
                number: at + 1,
                title: step.action.title(),
                received_tokens,
                sent_tokens: first.tokens,
                is_crease: prompts.iter().any(|prompt| !prompt.extends_previous),
                unfold,
            });
            last_prompt = prompts.into_iter().next_back().unwrap_or_default();
            match outcome {
                TurnOutcome::Continued => {}
                TurnOutcome::Done => finished = at + 1 == steps.len(),
                TurnOutcome::Refused { status, message } => {
                    return Err(format!("turn {} was refused with {status}: {message}", at + 1).into());
                }
            }
        }
        let handles = prompt_handles(&last_prompt)?;
        let mut recovered_count = 0;
        for handle in &handles {
            recovered_count += usize::from(original_matches_agent(&base_url, handle, &agent).await?);
        }
        drop(stop);
        drop(proxy_task);
        Ok(ProxiedRun {
            cost,
            violations,
            prompt_count,
            max_prompt_tokens,
            original_count: handles.len(),
            recovered_count,
            finished,
            restored: agent.has_restored_file(),
            stats: stats.snapshot(),
        })
    }
}

/// Returns true if the original behind a handle, as returned by the proxy, is a text that the agent sent.
async fn original_matches_agent(base_url: &str, handle: &str, agent: &ScriptedAgent) -> Result<bool, DemoError> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request = Request::get(format!("{base_url}/foldline/unfold/{handle}?raw=1")).body(Body::empty())?;
    let response = client.request(request).await?;
    let is_found = response.status() == StatusCode::OK;
    let original = response.into_body().collect().await?.to_bytes();
    // The original of whole rounds is a list of their messages.
    let rounds: Vec<Message<'_>> = serde_json::from_slice(&original).unwrap_or_default();
    let mut texts = rounds.iter().flat_map(|message| {
        let texts = message.parts.iter().filter_map(Part::as_text);
        texts.chain(message.results().flat_map(|result| result.texts()))
    });
    let is_sent =
        if rounds.is_empty() { agent.has_sent(&original) } else { texts.all(|text| agent.has_sent(text.as_bytes())) };
    Ok(is_found && is_sent)
}

/// Returns the handles in the markers of a prompt's messages.
fn prompt_handles(prompt: &ReceivedPrompt) -> Result<HashSet<String>, DemoError> {
    let request = Wire::parse(Format::OpenAiChat, &prompt.body)?;
    let messages = (0..).map_while(|at| request.raw_message(at));
    Ok(messages.flat_map(marker::handles).map(|handle| handle.to_string()).collect())
}

//! The recursive summariser: a model writes a briefing of a text that it never has in its prompt as a whole.
//!
//! It is shown what the text is and where things begin in it, looks around with tools, lets a sub-model read long
//! passages, and hands in a briefing, which must pass the [`Gate`]. The loop always ends: every call is admitted by the
//! account, waits for at most so long, and can be given up at any moment. Nothing outside is changed by it; what comes
//! out is a value. Whatever happens, it has a text: where no model wrote one, code did.

pub(crate) mod prompts;
pub(crate) mod sub_calls;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use foldline::strategies::chunk::{CompressOptions, compress};
use foldline::strategies::{CompactToBudget, TerminalTruncate, compact_to_budget, terminal_truncate};
use foldline::wire::{LearnedLimit, StopReason};
use foldline::{Handle, Message, Part, Role, Tokens};
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::command::{ROOT_TOOLS, RootCommand};
use crate::fallback::extract_facts;
use crate::gate::QualityGate;
use crate::limits::{CallBudget, CallEstimate, LimitKind, ModelRole, ModelSpend, SummaryLimits, estimated_usage};
use crate::model::{LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ToolStyle};
use crate::progress::{ProgressEvent, ProgressListener, SummaryOutcome};
use crate::text_environment::{SearchPattern, TextEnvironment, ViewLimits};

/// Commands of one turn that are carried out.
const MAX_COMMANDS_PER_TURN: usize = 16;
/// How often a briefing may be refused.
const MAX_REFUSALS: usize = 3;
/// How often in a row the root model may talk instead of doing something.
const MAX_IDLE_TURNS: usize = 2;
/// How often a model may find its question too large.
const MAX_OVERFLOWS: usize = 3;
/// The longest pause before a call is tried again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(20);
/// Windows from this size on are those of models that may think before they answer.
const WIDE_WINDOW_TOKENS: Tokens = 64_000;

/// What is to be summarised.
#[derive(Clone, Copy, Debug)]
pub struct SummaryTask<'t> {
    /// The text.
    pub text: &'t str,
    /// What the work in it is about, in the user's words; empty when there is no such thing.
    pub goal: &'t str,
    /// The summary of what came before the text.
    pub earlier_summary: Option<&'t str>,
    /// Tokens that the summary may have.
    pub max_tokens: Tokens,
}

/// A summary, and how it came about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SummaryResult {
    /// The text. It fits, and it is never empty.
    pub text: String,
    /// Who wrote it.
    pub author: SummaryAuthor,
    /// How the writing ended.
    pub outcome: SummaryOutcome,
    /// What was spent.
    pub spent: ModelSpend,
    /// How long it took.
    pub elapsed: Duration,
    /// The largest question that was put to the root model, in tokens.
    pub largest_context: Tokens,
}

/// Who wrote a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SummaryAuthor {
    /// The model; its text passed the gate.
    Model,
    /// Code: see [`facts`].
    Code,
}

/// A summariser: a model that leads, one that reads for it, and what they may cost.
#[derive(Clone)]
pub struct Summarizer {
    root_model: Arc<dyn LanguageModel>,
    sub_model: Arc<dyn LanguageModel>,
    limits: SummaryLimits,
    abort: CancellationToken,
}

/// Why there is no briefing of the model's.
enum StopCause {
    Limit(LimitKind),
    Failed(ModelError),
    Aborted,
}

impl Summarizer {
    /// One model that leads and reads.
    pub fn new(model: Arc<dyn LanguageModel>) -> Self {
        let sub = Arc::clone(&model);
        Self { root_model: model, sub_model: sub, limits: SummaryLimits::default(), abort: CancellationToken::new() }
    }

    /// Another model answers the sub-calls, a cheaper one as a rule.
    pub fn with_sub_model(self, sub: Arc<dyn LanguageModel>) -> Self {
        Self { sub_model: sub, ..self }
    }

    /// Other limits.
    pub fn with_limits(self, limits: SummaryLimits) -> Self {
        Self { limits, ..self }
    }

    /// Ends when this token is cancelled. Dropping the future ends it as well.
    pub fn with_abort(self, abort: CancellationToken) -> Self {
        Self { abort, ..self }
    }

    /// The model that leads.
    pub fn root_model(&self) -> &Arc<dyn LanguageModel> {
        &self.root_model
    }

    /// Writes a summary. It never fails: what comes back always fits and never is the text of a failure.
    pub async fn summarize(&self, task: &SummaryTask<'_>, listener: ProgressListener<'_>) -> SummaryResult {
        let account = CallBudget::new(&self.limits);
        let mut run = SummaryRun::new(self, task, &account, listener);
        let ended = run.run().await;
        let (spent, elapsed, largest_context) = (account.spent(), account.elapsed(), run.largest_context);
        let (text, author, outcome) = match ended {
            Ok(text) => (text, SummaryAuthor::Model, SummaryOutcome::Converged),
            Err(stop) => {
                let outcome = match stop {
                    StopCause::Limit(limit) => SummaryOutcome::Exhausted(limit),
                    StopCause::Failed(error) => SummaryOutcome::Failed(error.message),
                    StopCause::Aborted => SummaryOutcome::Aborted,
                };
                (extract_facts(task.text, task.max_tokens, &self.root_model.info().meter), SummaryAuthor::Code, outcome)
            }
        };
        listener(ProgressEvent::Ended(outcome.clone()));
        SummaryResult { text, author, outcome, spent, elapsed, largest_context }
    }
}

/// One summary in the making.
struct SummaryRun<'r, 't> {
    summarizer: &'r Summarizer,
    task: &'r SummaryTask<'t>,
    budget: &'r CallBudget<'r>,
    listener: ProgressListener<'r>,
    environment: TextEnvironment<'t>,
    gate: QualityGate<'r>,
    /// Stands in the fences around what others wrote. It is a hash of the text, so the text can not contain it.
    fence: Handle,
    max_tokens: Tokens,
    /// What the models' windows turned out to be.
    root_window: Tokens,
    sub_window: AtomicU64,
    /// One for each call of the sub-model that may be under way.
    sub_call_permits: Semaphore,
    messages: Vec<Message<'static>>,
    largest_context: Tokens,
    call_count: usize,
}

/// What the root model is to do next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnPhase {
    Exploring,
    /// Whatever it says now is the briefing.
    Finishing,
}

impl<'r, 't: 'r> SummaryRun<'r, 't> {
    fn new(
        with: &'r Summarizer,
        task: &'r SummaryTask<'t>,
        account: &'r CallBudget<'r>,
        listener: ProgressListener<'r>,
    ) -> Self {
        let traits = with.root_model.info();
        let at_most = task.max_tokens.min(traits.window / 4);
        let mut sources = vec![task.text];
        sources.extend(task.earlier_summary);
        Self {
            summarizer: with,
            task,
            budget: account,
            listener,
            environment: TextEnvironment::new(task.text),
            gate: QualityGate::new(sources, task.goal, at_most, &traits.meter),
            fence: Handle::for_content(task.text.as_bytes()),
            max_tokens: at_most,
            root_window: traits.window,
            sub_window: AtomicU64::new(with.sub_model.info().window),
            sub_call_permits: Semaphore::new(with.limits.concurrency.max(1)),
            messages: Vec::new(),
            largest_context: 0,
            call_count: 0,
        }
    }

    /// The loop.
    async fn run(&mut self) -> Result<String, StopCause> {
        let with = self.summarizer;
        let traits = with.root_model.info();
        let system = self.system_prompt(traits.tool_style);
        (self.listener)(ProgressEvent::Read {
            rows: self.environment.row_count(),
            tokens: traits.meter.text(self.task.text),
        });
        self.messages.push(Message::text(Role::User, self.opening_prompt()));
        let (mut talk, mut refusals, mut overflows) = (0, 0, 0);
        let mut told_to_close = false;
        loop {
            let output = self.max_output_tokens();
            let closing = talk >= MAX_IDLE_TURNS
                || refusals >= MAX_REFUSALS - 1
                || with.is_nearly_exhausted(self.budget, CallEstimate { input: self.root_window / 2, output });
            let phase = if closing { TurnPhase::Finishing } else { TurnPhase::Exploring };
            if closing && !told_to_close {
                told_to_close = true;
                self.push_notice(&self.finish_prompt(traits.tool_style));
            }
            let (messages, context) = self.fitted_messages(&system, output);
            let tools: &[_] = if traits.tool_style == ToolStyle::Calls { &ROOT_TOOLS } else { &[] };
            let question = ModelRequest { system: &system, messages: &messages, tools, max_output: output };
            let turn = self.budget.spent().iterations + 1;
            (self.listener)(ProgressEvent::Turn { turn, of: with.limits.iterations, context });
            self.largest_context = self.largest_context.max(context);
            let answer = match self.call_model(ModelRole::Root, &question, context).await {
                Err(StopCause::Failed(ModelError { kind: ModelErrorKind::Overflow(overflow), message }))
                    if overflows < MAX_OVERFLOWS =>
                {
                    overflows += 1;
                    self.root_window = reduced_window(self.root_window, overflow.learned_limit(context));
                    (self.listener)(ProgressEvent::Retried { why: message });
                    continue;
                }
                answer => answer?,
            };
            let commands = self.parse_commands(&answer, phase);
            self.push_assistant_turn(&answer, &commands);
            if commands.is_empty() {
                talk += 1;
                if answer.stop == Some(StopReason::MaxTokens) {
                    self.push_notice("Your answer was too long and was cut off. Be shorter.");
                } else if phase == TurnPhase::Finishing {
                    self.push_notice(&self.finish_prompt(traits.tool_style));
                } else {
                    self.push_notice(match traits.tool_style {
                        ToolStyle::Calls => "Call a tool to look at the text, or call final with the briefing.",
                        ToolStyle::Text => {
                            "Write a command from the list to look at the text, or FINAL with the briefing."
                        }
                    });
                }
                if talk > MAX_IDLE_TURNS + 1 {
                    return Err(StopCause::Limit(LimitKind::Refusals));
                }
                continue;
            }
            talk = 0;
            match self.check_final(&answer, &commands) {
                Some(Ok(text)) => return Ok(text),
                Some(Err(why)) => {
                    refusals += 1;
                    (self.listener)(ProgressEvent::Refused { why: why.clone() });
                    if refusals >= MAX_REFUSALS {
                        return Err(StopCause::Limit(LimitKind::Refusals));
                    }
                    self.push_results(
                        &commands,
                        vec![format!("The briefing is refused: {why}. Mend it and hand it in again.")],
                    );
                }
                None => {
                    let results = self.run_commands(&commands).await;
                    self.push_results(&commands, results);
                }
            }
        }
    }

    /// Tokens that the root model may answer with.
    fn max_output_tokens(&self) -> Tokens {
        let thinking = if self.root_window >= WIDE_WINDOW_TOKENS { 4_096 } else { 0 };
        (self.max_tokens * 3 / 2 + 256 + thinking).min(self.root_window / 3)
    }

    /// What the model wants. In the closing phase plain words are the briefing.
    fn parse_commands(&mut self, answer: &ModelResponse, phase: TurnPhase) -> Vec<Result<RootCommand, String>> {
        let commands: Vec<_> = if answer.calls.is_empty() {
            // Models that do not call the tools they were told of sometimes write their names.
            RootCommand::parse_text(&answer.text)
        } else {
            answer.calls.iter().map(RootCommand::from_call).collect()
        };
        let spoke = !answer.text.trim().is_empty() && answer.stop != Some(StopReason::MaxTokens);
        if commands.is_empty() && phase == TurnPhase::Finishing && spoke {
            return vec![Ok(RootCommand::Final { text: answer.text.trim().to_owned() })];
        }
        commands
    }

    /// Writes down what the model said, with calls of our own ids: nine letters and digits, which every server takes.
    fn push_assistant_turn(&mut self, answer: &ModelResponse, commands: &[Result<RootCommand, String>]) {
        let mut parts = Vec::new();
        if !answer.text.trim().is_empty() {
            parts.push(Part::text(answer.text.clone()));
        }
        for (at, command) in commands.iter().take(MAX_COMMANDS_PER_TURN).enumerate() {
            let name = command.as_ref().map_or("unknown", RootCommand::name);
            let arguments = answer.calls.get(at).map_or("{}", |call| call.arguments.as_str());
            parts.push(Part::call(format!("fold{:05}", self.call_count + at), name, arguments.to_owned()));
        }
        if parts.is_empty() {
            parts.push(Part::text("(nothing)"));
        }
        self.messages.push(Message::new(Role::Assistant, parts));
    }

    /// Answers the calls of the last message. Fewer results than calls: the last one stands for the rest.
    fn push_results(&mut self, commands: &[Result<RootCommand, String>], results: Vec<String>) {
        for at in 0..commands.len().min(MAX_COMMANDS_PER_TURN) {
            let id = format!("fold{:05}", self.call_count + at);
            let text = results.get(at).or(results.last()).cloned().unwrap_or_default();
            self.messages.push(Message::new(Role::Tool, vec![Part::result(id, text)]));
        }
        self.call_count += commands.len().min(MAX_COMMANDS_PER_TURN);
    }

    /// Tells the model something: behind the last result if there is one, since not every server takes a user's words
    /// there.
    fn push_notice(&mut self, words: &str) {
        let result = self.messages.last_mut().and_then(|message| match message.parts.last_mut() {
            Some(Part::ToolResult(result)) => result.content.last_mut(),
            _ => None,
        });
        match result {
            Some(Part::Text { text }) => {
                let text = text.to_mut();
                text.push_str("\n\n");
                text.push_str(words);
            }
            _ => self.messages.push(Message::text(Role::User, words.to_owned())),
        }
    }

    /// A briefing that was handed in, judged.
    fn check_final(
        &self,
        answer: &ModelResponse,
        commands: &[Result<RootCommand, String>],
    ) -> Option<Result<String, String>> {
        let is_final = |command: &&Result<RootCommand, String>| matches!(command, Ok(RootCommand::Final { .. }));
        let Ok(RootCommand::Final { text }) = commands.iter().find(is_final)? else { return None };
        if !commands.iter().all(|command| is_final(&command)) {
            // It can not have seen yet what the others give back.
            return None;
        }
        if answer.stop == Some(StopReason::MaxTokens) {
            return Some(Err("it was cut off; be shorter".to_owned()));
        }
        Some(self.check_summary(text.trim()))
    }

    fn check_summary(&self, text: &str) -> Result<String, String> {
        match self.gate.check(text) {
            Ok(()) => Ok(text.to_owned()),
            Err(flaws) => Err(flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        }
    }

    /// The conversation as it is sent: inside the window, whatever has been shown before.
    fn fitted_messages(&self, system: &str, output: Tokens) -> (Vec<Message<'static>>, Tokens) {
        let traits = self.summarizer.root_model.info();
        let meter = &traits.meter;
        let declared: Tokens = match traits.tool_style {
            ToolStyle::Calls => {
                ROOT_TOOLS.iter().map(|tool| meter.text(tool.description) + meter.text(tool.parameters) + 16).sum()
            }
            ToolStyle::Text => 0,
        };
        let fixed = meter.message(&Message::text(Role::System, system)) + declared + meter.request_overhead();
        let room = self.root_window.saturating_sub(output).saturating_sub(fixed);
        let room = room.saturating_sub(meter.margin(room));
        let count = |messages: &[Message<'_>]| messages.iter().map(|message| meter.message(message)).sum::<Tokens>();
        let options = CompactToBudget { keep_last: 1, min_chars: 160, target_ratio: 0.75, meter: meter.clone() };
        let (projected, _) = compact_to_budget(&self.messages, room, &options);
        let mut messages = without_tool_calls(projected, traits.tool_style);
        let mut tokens = count(&messages);
        // Words for calls are a little more or less than calls; and what can not be elided is cut.
        let mut tighter = room;
        while tokens > room && tighter > 0 {
            tighter = tighter.saturating_sub((tokens - room).max(room / 16).max(8));
            let options = TerminalTruncate { keep_last: 1, meter: meter.clone() };
            messages = without_tool_calls(
                terminal_truncate(self.messages.clone(), tighter, &options).messages,
                traits.tool_style,
            );
            tokens = count(&messages);
        }
        (messages, tokens + fixed)
    }

    /// Carries out the commands of one turn; the sub-model is asked several things at a time.
    async fn run_commands(&self, commands: &[Result<RootCommand, String>]) -> Vec<String> {
        let traits = self.summarizer.root_model.info();
        let meter = &traits.meter;
        let shown = commands.len().min(MAX_COMMANDS_PER_TURN) as Tokens;
        let clamp = ViewLimits { tokens: self.root_window / 6 / shown.max(1), ..ViewLimits::default() };
        let asks = commands.iter().filter(|command| matches!(command, Ok(RootCommand::Ask { .. }))).count();
        let answers = commands.iter().take(MAX_COMMANDS_PER_TURN).map(|command| async move {
            match command {
                Ok(RootCommand::Ask { first, last, question }) => {
                    self.ask_sub_model(*first, *last, question, asks).await
                }
                _ => String::new(),
            }
        });
        let answers = join_all(answers).await;
        let mut results = Vec::new();
        for (command, answers) in commands.iter().zip(answers) {
            let look = match command {
                Err(why) => {
                    results.push(format!("Not understood: {why}"));
                    continue;
                }
                Ok(RootCommand::Head { rows }) => self.environment.head(*rows, clamp, meter),
                Ok(RootCommand::Tail { rows }) => self.environment.tail(*rows, clamp, meter),
                Ok(RootCommand::Slice { first, last }) => self.environment.slice(*first, *last, clamp, meter),
                Ok(RootCommand::Chunks) => self.environment.outline(clamp, meter),
                Ok(RootCommand::Count { pattern }) => {
                    let (lines, times) = self.environment.count_matches(&SearchPattern::new(pattern));
                    format!("{times} matches in {lines} lines")
                }
                Ok(RootCommand::Grep { pattern, from }) => {
                    let found = self.environment.grep(&SearchPattern::new(pattern), *from, clamp, meter);
                    if found.line_count == 0 { "(no line matches)".to_owned() } else { found.text }
                }
                Ok(RootCommand::Ask { .. }) => {
                    let options = CompressOptions { meter: meter.clone(), max_chunk_bytes: 512 };
                    compress(&answers, clamp.tokens, &options).text
                }
                Ok(RootCommand::Final { .. }) => {
                    results.push("Not taken: hand it in alone, once you have seen what the others give.".to_owned());
                    continue;
                }
            };
            let tool = command.as_ref().map_or("unknown", RootCommand::name);
            (self.listener)(ProgressEvent::Viewed { tool, shown: meter.text(&look) });
            results.push(self.fenced(&look));
        }
        if commands.len() > MAX_COMMANDS_PER_TURN {
            let left = commands.len() - MAX_COMMANDS_PER_TURN;
            if let Some(last) = results.last_mut() {
                let _ =
                    write!(last, "\n\n({left} more commands were not carried out: {MAX_COMMANDS_PER_TURN} at a time)");
            }
        }
        results
    }

    /// One call of a model: admitted, bounded in time, tried again when the server stumbles, given up when nobody wants
    /// it any more.
    async fn call_model(
        &self,
        asked: ModelRole,
        question: &ModelRequest<'_>,
        input: Tokens,
    ) -> Result<ModelResponse, StopCause> {
        let with = self.summarizer;
        let model = match asked {
            ModelRole::Root => &with.root_model,
            ModelRole::Sub => &with.sub_model,
        };
        let traits = model.info();
        let estimate = CallEstimate { input, output: question.max_output };
        let ticket = self.budget.admit(asked, estimate, &traits.prices).map_err(StopCause::Limit)?;
        let mut failures = 0;
        loop {
            let end = (Instant::now() + with.limits.call_time).min(self.budget.deadline());
            let answered = tokio::select! {
                biased;
                () = with.abort.cancelled() => return Err(StopCause::Aborted),
                answered = timeout_at(end, model.complete(question)) => answered,
            };
            let error = match answered {
                Ok(Ok(answer)) => {
                    let output = traits.meter.text(&answer.text)
                        + answer
                            .calls
                            .iter()
                            .map(|call| traits.meter.text(call.arguments.as_str()) + 8)
                            .sum::<Tokens>();
                    ticket
                        .record_usage(answer.usage.unwrap_or_else(|| estimated_usage(CallEstimate { input, output })));
                    return Ok(answer);
                }
                Ok(Err(error)) => error,
                Err(_) if Instant::now() >= self.budget.deadline() => return Err(StopCause::Limit(LimitKind::Time)),
                Err(_) => ModelError::new(
                    ModelErrorKind::Busy(None),
                    format!("{} did not answer within {:?}", traits.name, with.limits.call_time),
                ),
            };
            if !error.is_transient() || failures >= with.limits.retries {
                return Err(StopCause::Failed(error));
            }
            failures += 1;
            (self.listener)(ProgressEvent::Retried { why: error.message.clone() });
            let pause = match error.kind {
                ModelErrorKind::Busy(Some(told)) => told,
                _ => Duration::from_millis(200) * 4_u32.pow(failures as u32 - 1),
            };
            let until = Instant::now() + pause.min(MAX_RETRY_DELAY);
            if until >= self.budget.deadline() {
                return Err(StopCause::Limit(LimitKind::Time));
            }
            tokio::select! {
                biased;
                () = with.abort.cancelled() => return Err(StopCause::Aborted),
                () = sleep(until - Instant::now()) => {}
            }
        }
    }
}

impl Summarizer {
    /// Whether the next turn of the root model is the last one that can be paid for.
    fn is_nearly_exhausted(&self, account: &CallBudget<'_>, next: CallEstimate) -> bool {
        let time = account.elapsed() > self.limits.total_time.mul_f64(0.8);
        account.calls_left(ModelRole::Root) <= 2 || time || !account.allows_two_more(next)
    }
}

/// A window in which a question would have fit.
fn reduced_window(window: Tokens, lesson: LearnedLimit) -> Tokens {
    match lesson {
        LearnedLimit::Stated { tokens, .. } if tokens < window => tokens,
        LearnedLimit::BelowCount(tokens) if tokens < window => tokens * 3 / 4,
        _ => window * 3 / 4,
    }
}

/// The conversation for a model that knows no tools: what it said, and in the user's role what that gave.
fn without_tool_calls(messages: Vec<Message<'static>>, speech: ToolStyle) -> Vec<Message<'static>> {
    if speech == ToolStyle::Calls {
        return messages;
    }
    let mut out: Vec<Message<'static>> = Vec::new();
    for message in messages {
        let role = if message.is_assistant() { Role::Assistant } else { Role::User };
        let texts = message.parts.into_iter().flat_map(|part| match part {
            Part::Text { text } => vec![text.into()],
            Part::ToolResult(result) => result.texts().map(str::to_owned).collect(),
            _ => Vec::new(),
        });
        let text = texts.collect::<Vec<_>>().join("\n\n");
        match out.last_mut() {
            Some(last) if last.role == role => last.parts.push(Part::text(text)),
            _ => out.push(Message::text(role, text)),
        }
    }
    for message in &mut out {
        if message.parts.len() > 1 {
            let texts: Vec<&str> = message.parts.iter().filter_map(Part::as_text).collect();
            message.parts = vec![Part::text(texts.join("\n\n"))];
        }
    }
    out
}

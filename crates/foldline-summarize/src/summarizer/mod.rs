//! The recursive summarizer: a model writes a briefing of a text that is never in its prompt as a whole.
//!
//! The model sees a description and an outline of the text, explores it with tools, delegates long passages to a
//! sub-model, and submits a briefing, which must pass the [`QualityGate`]. The loop always ends: every call is
//! admitted by the budget, has a timeout, and can be aborted at any moment. It has no side effects; the result is a
//! value. There is always a text: if no model wrote one, code did.

pub(crate) mod prompts;
pub(crate) mod sub_calls;

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use foldline::strategies::chunk::{CompressOptions, compress};
use foldline::strategies::{CompactToBudget, TerminalTruncate, compact_to_budget, terminal_truncate};
use foldline::tokens::Tokens;
use foldline::wire::{LearnedLimit, StopReason};
use foldline::{Handle, Message, Part, Role};
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::command::{ROOT_TOOLS, RootCommand};
use crate::fallback::extract_facts;
use crate::gate::QualityGate;
use crate::limits::{CallBudget, CallEstimate, LimitKind, ModelRole, ModelSpend, SummaryLimits, estimated_usage};
use crate::model::{LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ToolStyle};
use crate::progress::{ProgressEvent, ProgressListener, SummaryAuthor, SummaryOutcome};
use crate::text_environment::{SearchPattern, TextEnvironment, ViewLimits};
use crate::tool_table::ToolTable;

/// Number of commands of one turn that are executed.
const MAX_COMMANDS_PER_TURN: usize = 16;
/// Number of rejections after which the run ends.
const MAX_REFUSALS: usize = 3;
/// Number of consecutive turns without a command after which the model must finish.
const MAX_IDLE_TURNS: usize = 2;
/// Number of context overflows that are tolerated.
const MAX_OVERFLOWS: usize = 3;
/// The longest pause before a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(20);
/// Window size from which models are assumed to reason before they answer.
const WIDE_WINDOW_TOKENS: Tokens = 64_000;

/// The input of a summary.
#[derive(Clone, Copy, Debug)]
pub struct SummaryTask<'t> {
    /// The text.
    pub text: &'t str,
    /// The goal of the work, in the user's words; may be empty.
    pub goal: &'t str,
    /// The summary of everything before the text.
    pub earlier_summary: Option<&'t str>,
    /// Maximum tokens of the summary.
    pub max_tokens: Tokens,
    /// The messages of the conversation that the text is from, if it is from one. Approvals and requests in a summary must
    /// occur in those of the user; next steps must have been named by the user or the model, not only by a tool.
    pub session: Option<&'t [Message<'t>]>,
}

impl<'t> SummaryTask<'t> {
    /// Creates a task for a text that is not from a conversation, without a goal.
    pub fn new(text: &'t str, max_tokens: Tokens) -> Self {
        Self { text, goal: "", earlier_summary: None, max_tokens, session: None }
    }
}

/// A summary and its statistics.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SummaryResult {
    /// The text. It fits, and it is never empty.
    pub text: String,
    /// The author.
    pub author: SummaryAuthor,
    /// The outcome of the run.
    pub outcome: SummaryOutcome,
    /// The spending.
    pub spent: ModelSpend,
    /// The duration.
    pub elapsed: Duration,
    /// The largest request to the root model, in tokens.
    pub largest_context: Tokens,
}

/// A summarizer: a root model, a sub-model that reads for it, and their limits.
#[derive(Clone)]
pub struct Summarizer {
    root_model: Arc<dyn LanguageModel>,
    sub_model: Arc<dyn LanguageModel>,
    limits: SummaryLimits,
    abort: CancellationToken,
    tools: ToolTable,
}

impl fmt::Debug for Summarizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summarizer")
            .field("root_model", self.root_model.info())
            .field("sub_model", self.sub_model.info())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The reason why there is no briefing by the model.
enum StopCause {
    Limit(LimitKind),
    Failed(ModelError),
    Aborted,
}

impl Summarizer {
    /// Creates a summarizer with one model in both roles.
    pub fn new(model: Arc<dyn LanguageModel>) -> Self {
        let sub_model = Arc::clone(&model);
        Self {
            root_model: model,
            sub_model,
            limits: SummaryLimits::default(),
            abort: CancellationToken::new(),
            tools: ToolTable::default(),
        }
    }

    /// Sets the classes of tools, which decide whose output may be summarized.
    #[must_use]
    pub fn with_tools(self, tools: ToolTable) -> Self {
        Self { tools, ..self }
    }

    /// Returns the classes of tools.
    pub fn tools(&self) -> &ToolTable {
        &self.tools
    }

    /// Sets the model for sub-calls, usually a cheaper one.
    #[must_use]
    pub fn with_sub_model(self, sub_model: Arc<dyn LanguageModel>) -> Self {
        Self { sub_model, ..self }
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(self, limits: SummaryLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the token that aborts the run. Dropping the future aborts it too.
    #[must_use]
    pub fn with_abort(self, abort: CancellationToken) -> Self {
        Self { abort, ..self }
    }

    /// Returns the root model.
    pub fn root_model(&self) -> &Arc<dyn LanguageModel> {
        &self.root_model
    }

    /// Writes a summary. It never fails: the result always fits and is never an error text.
    pub async fn summarize(&self, task: &SummaryTask<'_>, listener: ProgressListener<'_>) -> SummaryResult {
        let budget = CallBudget::new(&self.limits);
        let mut run = SummaryRun::new(self, task, &budget, listener);
        let ended = run.run().await;
        let (spent, elapsed, largest_context) = (budget.spent(), budget.elapsed(), run.largest_context);
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
        listener(ProgressEvent::Ended { outcome: outcome.clone(), author });
        SummaryResult { text, author, outcome, spent, elapsed, largest_context }
    }
}

/// One run of the summarizer.
struct SummaryRun<'r, 't> {
    summarizer: &'r Summarizer,
    task: &'r SummaryTask<'t>,
    budget: &'r CallBudget<'r>,
    listener: ProgressListener<'r>,
    environment: TextEnvironment<'t>,
    gate: QualityGate<'r>,
    /// Part of the fences around untrusted text. It is a hash of the text, so the text cannot contain it.
    fence: Handle,
    max_tokens: Tokens,
    /// The windows, as learned from overflows.
    root_window: Tokens,
    sub_window: AtomicU64,
    /// One permit for each concurrent call of the sub-model.
    sub_call_permits: Semaphore,
    messages: Vec<Message<'static>>,
    largest_context: Tokens,
    call_count: usize,
}

/// The phase of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnPhase {
    Exploring,
    /// Any text is the briefing.
    Finishing,
}

impl<'r, 't: 'r> SummaryRun<'r, 't> {
    fn new(
        summarizer: &'r Summarizer,
        task: &'r SummaryTask<'t>,
        budget: &'r CallBudget<'r>,
        listener: ProgressListener<'r>,
    ) -> Self {
        let info = summarizer.root_model.info();
        let max_tokens = task.max_tokens.min(info.window / 4);
        let mut sources = vec![task.text];
        sources.extend(task.earlier_summary);
        Self {
            summarizer,
            task,
            budget,
            listener,
            environment: TextEnvironment::new(task.text),
            gate: QualityGate::new(sources, task.goal, max_tokens, &info.meter).with_session(task.session),
            fence: Handle::for_content(task.text.as_bytes()),
            max_tokens,
            root_window: info.window,
            sub_window: AtomicU64::new(summarizer.sub_model.info().window),
            sub_call_permits: Semaphore::new(summarizer.limits.concurrency.max(1)),
            messages: Vec::new(),
            largest_context: 0,
            call_count: 0,
        }
    }

    /// Runs the loop until a briefing is accepted or a limit is reached.
    async fn run(&mut self) -> Result<String, StopCause> {
        let summarizer = self.summarizer;
        let info = summarizer.root_model.info();
        let system = self.system_prompt(info.tool_style);
        (self.listener)(ProgressEvent::Read {
            rows: self.environment.row_count(),
            tokens: info.meter.text(self.task.text),
        });
        self.messages.push(Message::text(Role::User, self.opening_prompt()));
        let (mut idle_turns, mut refusals, mut overflows) = (0, 0, 0);
        let mut finish_requested = false;
        loop {
            let output = self.max_output_tokens();
            let closing = idle_turns >= MAX_IDLE_TURNS
                || refusals >= MAX_REFUSALS - 1
                || summarizer.is_nearly_exhausted(self.budget, CallEstimate { input: self.root_window / 2, output });
            let phase = if closing { TurnPhase::Finishing } else { TurnPhase::Exploring };
            if closing && !finish_requested {
                finish_requested = true;
                self.push_notice(&self.finish_prompt(info.tool_style));
            }
            let (messages, context) = self.fitted_messages(&system, output);
            let tools: &[_] = if info.tool_style == ToolStyle::Calls { &ROOT_TOOLS } else { &[] };
            let request = ModelRequest { system: &system, messages: &messages, tools, max_output: output };
            let turn = self.budget.spent().iterations + 1;
            (self.listener)(ProgressEvent::Turn { turn, of: summarizer.limits.iterations, context });
            self.largest_context = self.largest_context.max(context);
            let answer = match self.call_model(ModelRole::Root, &request, context).await {
                Err(StopCause::Failed(ModelError { kind: ModelErrorKind::Overflow(overflow), message }))
                    if overflows < MAX_OVERFLOWS =>
                {
                    overflows += 1;
                    self.root_window =
                        reduced_window(self.root_window, overflow.learned_limit(context), context + output);
                    // The opening shows as much of the text as fits.
                    self.messages[0] = Message::text(Role::User, self.opening_prompt());
                    (self.listener)(ProgressEvent::Retried { why: message });
                    continue;
                }
                answer => answer?,
            };
            let commands = self.parse_commands(&answer, phase);
            self.push_assistant_turn(&answer, &commands);
            if commands.is_empty() {
                idle_turns += 1;
                if answer.stop == Some(StopReason::MaxTokens) {
                    self.push_notice("Your answer was too long and was cut off. Be shorter.");
                } else if phase == TurnPhase::Finishing {
                    self.push_notice(&self.finish_prompt(info.tool_style));
                } else {
                    self.push_notice(match info.tool_style {
                        ToolStyle::Calls => "Call a tool to look at the text, or call final with the briefing.",
                        ToolStyle::Text => {
                            "Write a command from the list to look at the text, or FINAL with the briefing."
                        }
                    });
                }
                if idle_turns > MAX_IDLE_TURNS + 1 {
                    return Err(StopCause::Limit(LimitKind::Refusals));
                }
                continue;
            }
            idle_turns = 0;
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

    /// Returns the maximum output tokens of the root model.
    fn max_output_tokens(&self) -> Tokens {
        let thinking = if self.root_window >= WIDE_WINDOW_TOKENS { 4_096 } else { 0 };
        (self.max_tokens * 3 / 2 + 256 + thinking).min(self.root_window / 3)
    }

    /// Parses the commands of the model. In the finishing phase plain text is the briefing.
    fn parse_commands(&mut self, answer: &ModelResponse, phase: TurnPhase) -> Vec<Result<RootCommand, String>> {
        let commands: Vec<_> = if answer.calls.is_empty() {
            // Models that do not call the declared tools sometimes write their names.
            RootCommand::parse_text(&answer.text)
        } else {
            answer.calls.iter().map(RootCommand::from_call).collect()
        };
        let has_text = !answer.text.trim().is_empty() && answer.stop != Some(StopReason::MaxTokens);
        if commands.is_empty() && phase == TurnPhase::Finishing && has_text {
            return vec![Ok(RootCommand::Final { text: answer.text.trim().to_owned() })];
        }
        commands
    }

    /// Appends the model's turn, with new call ids: nine letters and digits, which every server accepts.
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

    /// Answers the calls of the last message. If there are fewer results than calls, the last result is repeated.
    fn push_results(&mut self, commands: &[Result<RootCommand, String>], results: Vec<String>) {
        for at in 0..commands.len().min(MAX_COMMANDS_PER_TURN) {
            let id = format!("fold{:05}", self.call_count + at);
            let text = results.get(at).or(results.last()).cloned().unwrap_or_default();
            self.messages.push(Message::new(Role::Tool, vec![Part::result(id, text)]));
        }
        self.call_count += commands.len().min(MAX_COMMANDS_PER_TURN);
    }

    /// Appends a notice for the model: to the last result if there is one, since not every server accepts a user
    /// message there.
    fn push_notice(&mut self, notice: &str) {
        let result = self.messages.last_mut().and_then(|message| match message.parts.last_mut() {
            Some(Part::ToolResult(result)) => result.content.last_mut(),
            _ => None,
        });
        match result {
            Some(Part::Text { text }) => {
                let text = text.to_mut();
                text.push_str("\n\n");
                text.push_str(notice);
            }
            _ => self.messages.push(Message::text(Role::User, notice.to_owned())),
        }
    }

    /// Checks a submitted briefing; `None` if there is none.
    fn check_final(
        &self,
        answer: &ModelResponse,
        commands: &[Result<RootCommand, String>],
    ) -> Option<Result<String, String>> {
        let is_final = |command: &&Result<RootCommand, String>| matches!(command, Ok(RootCommand::Final { .. }));
        let Ok(RootCommand::Final { text }) = commands.iter().find(is_final)? else { return None };
        if !commands.iter().all(|command| is_final(&command)) {
            // The model has not seen the results of the other commands yet.
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

    /// Returns the conversation as it is sent, compacted to fit the window, and its tokens.
    fn fitted_messages(&self, system: &str, output: Tokens) -> (Vec<Message<'static>>, Tokens) {
        let info = self.summarizer.root_model.info();
        let meter = &info.meter;
        let declared: Tokens = match info.tool_style {
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
        let mut messages = without_tool_calls(projected, info.tool_style);
        let mut tokens = count(&messages);
        // Text instead of calls changes the size slightly; the parts that cannot be elided are cut.
        let mut tighter = room;
        while tokens > room && tighter > 0 {
            tighter = tighter.saturating_sub((tokens - room).max(room / 16).max(8));
            let options = TerminalTruncate { keep_last: 1, meter: meter.clone(), ..TerminalTruncate::default() };
            messages = without_tool_calls(
                terminal_truncate(self.messages.clone(), tighter, &options).messages,
                info.tool_style,
            );
            tokens = count(&messages);
        }
        (messages, tokens + fixed)
    }

    /// Executes the commands of one turn; sub-calls run concurrently.
    async fn run_commands(&self, commands: &[Result<RootCommand, String>]) -> Vec<String> {
        let info = self.summarizer.root_model.info();
        let meter = &info.meter;
        let shown = commands.len().min(MAX_COMMANDS_PER_TURN) as Tokens;
        let limits = ViewLimits { tokens: self.root_window / 6 / shown.max(1), ..ViewLimits::default() };
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
            let view = match command {
                Err(why) => {
                    results.push(format!("Not understood: {why}"));
                    continue;
                }
                Ok(RootCommand::Head { rows }) => self.environment.head(*rows, limits, meter),
                Ok(RootCommand::Tail { rows }) => self.environment.tail(*rows, limits, meter),
                Ok(RootCommand::Slice { first, last }) => self.environment.slice(*first, *last, limits, meter),
                Ok(RootCommand::Chunks) => self.environment.outline(limits, meter),
                Ok(RootCommand::Count { pattern }) => {
                    let (lines, times) = self.environment.count_matches(&SearchPattern::new(pattern));
                    format!("{times} matches in {lines} lines")
                }
                Ok(RootCommand::Grep { pattern, from }) => {
                    let found = self.environment.grep(&SearchPattern::new(pattern), *from, limits, meter);
                    if found.line_count == 0 { "(no line matches)".to_owned() } else { found.text }
                }
                Ok(RootCommand::Ask { .. }) => {
                    let options = CompressOptions { meter: meter.clone(), max_chunk_bytes: 512 };
                    compress(&answers, limits.tokens, &options).text
                }
                Ok(RootCommand::Final { .. }) => {
                    results.push("Not taken: hand it in alone, once you have seen what the others give.".to_owned());
                    continue;
                }
            };
            let tool = command.as_ref().map_or("unknown", RootCommand::name);
            (self.listener)(ProgressEvent::Viewed { tool: tool.into(), shown: meter.text(&view) });
            results.push(self.fenced(&view));
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

    /// Calls a model once: checks the budget, applies the timeout, retries transient errors, and stops on abort.
    async fn call_model(
        &self,
        role: ModelRole,
        request: &ModelRequest<'_>,
        input: Tokens,
    ) -> Result<ModelResponse, StopCause> {
        let summarizer = self.summarizer;
        let model = match role {
            ModelRole::Root => &summarizer.root_model,
            ModelRole::Sub => &summarizer.sub_model,
        };
        let info = model.info();
        let estimate = CallEstimate { input, output: request.max_output };
        let reservation = self.budget.admit(role, estimate, &info.prices).map_err(StopCause::Limit)?;
        let mut failures = 0;
        loop {
            let end = (Instant::now() + summarizer.limits.call_time).min(self.budget.deadline());
            let answered = tokio::select! {
                biased;
                () = summarizer.abort.cancelled() => return Err(StopCause::Aborted),
                answered = timeout_at(end, model.complete(request)) => answered,
            };
            let error = match answered {
                Ok(Ok(answer)) => {
                    let output = info.meter.text(&answer.text)
                        + answer.calls.iter().map(|call| info.meter.text(call.arguments.as_str()) + 8).sum::<Tokens>();
                    reservation
                        .record_usage(answer.usage.unwrap_or_else(|| estimated_usage(CallEstimate { input, output })));
                    return Ok(answer);
                }
                Ok(Err(error)) => error,
                Err(_) if Instant::now() >= self.budget.deadline() => return Err(StopCause::Limit(LimitKind::Time)),
                Err(_) => ModelError::new(
                    ModelErrorKind::Busy(None),
                    format!("{} did not answer within {:?}", info.name, summarizer.limits.call_time),
                ),
            };
            if !error.is_transient() || failures >= summarizer.limits.retries {
                return Err(StopCause::Failed(error));
            }
            failures += 1;
            (self.listener)(ProgressEvent::Retried { why: error.message.clone() });
            let pause = match error.kind {
                ModelErrorKind::Busy(Some(retry_after)) => retry_after,
                _ => Duration::from_millis(200) * 4_u32.pow(failures as u32 - 1),
            };
            let until = Instant::now() + pause.min(MAX_RETRY_DELAY);
            if until >= self.budget.deadline() {
                return Err(StopCause::Limit(LimitKind::Time));
            }
            tokio::select! {
                biased;
                () = summarizer.abort.cancelled() => return Err(StopCause::Aborted),
                () = sleep(until - Instant::now()) => {}
            }
        }
    }
}

impl Summarizer {
    /// Returns true if the budget allows at most one more turn of the root model.
    fn is_nearly_exhausted(&self, budget: &CallBudget<'_>, next: CallEstimate) -> bool {
        let time = budget.elapsed() > self.limits.total_time.mul_f64(0.8);
        budget.calls_left(ModelRole::Root) <= 2 || time || !budget.allows_two_more(next)
    }
}

/// Returns a smaller window after a request of `requested` tokens, with its response, did not fit. The next request is
/// smaller too, whatever the server stated.
fn reduced_window(window: Tokens, learned: LearnedLimit, requested: Tokens) -> Tokens {
    match learned {
        LearnedLimit::Stated { tokens, .. } if tokens < window.min(requested) => tokens,
        LearnedLimit::BelowCount(tokens) => window.min(requested).min(tokens) * 3 / 4,
        LearnedLimit::Stated { .. } => window.min(requested) * 3 / 4,
    }
}

/// Converts the conversation for a model without tool support: its texts, and the results in the user's role.
fn without_tool_calls(messages: Vec<Message<'static>>, tool_style: ToolStyle) -> Vec<Message<'static>> {
    if tool_style == ToolStyle::Calls {
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

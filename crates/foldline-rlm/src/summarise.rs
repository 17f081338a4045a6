//! The recursive summariser: a model writes a briefing of a text that it never has in its prompt as a whole.
//!
//! It is shown what the text is and where things begin in it, looks around with tools, lets a sub-model read long
//! passages, and hands in a briefing, which must pass the [`Gate`]. The loop always ends: every call is admitted by the
//! account, waits for at most so long, and can be given up at any moment. Nothing outside is changed by it; what comes
//! out is a value. Whatever happens, it has a text: where no model wrote one, code did.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use foldline::chunk::{CompressOptions, compress};
use foldline::classic::{CompactToBudget, TerminalTruncate, compact_to_budget, terminal_truncate};
use foldline::wire::{LearnedLimit, StopReason};
use foldline::{Handle, Message, Part, Role, Tokens};
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::account::{Account, Asked, Estimate, Limit, Limits, Spent, usage};
use crate::command::{Command, TOOLS};
use crate::environment::{Clamp, Environment, Pattern};
use crate::fallback::facts;
use crate::gate::Gate;
use crate::model::{Answer, Model, ModelError, ModelErrorKind, Question, Speech};
use crate::progress::{Outcome, Progress, ProgressListener};

mod reading;
mod words;

/// Commands of one turn that are carried out.
const AT_ONCE: usize = 16;
/// How often a briefing may be refused.
const REFUSALS: usize = 3;
/// How often in a row the root model may talk instead of doing something.
const TALK: usize = 2;
/// How often a model may find its question too large.
const OVERFLOWS: usize = 3;
/// The longest pause before a call is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// Windows from this size on are those of models that may think before they answer.
const WIDE: Tokens = 64_000;

/// What is to be summarised.
#[derive(Clone, Copy, Debug)]
pub struct Task<'t> {
    /// The text.
    pub text: &'t str,
    /// What the work in it is about, in the user's words; empty when there is no such thing.
    pub goal: &'t str,
    /// The summary of what came before the text.
    pub earlier: Option<&'t str>,
    /// Tokens that the summary may have.
    pub at_most: Tokens,
}

/// A summary, and how it came about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The text. It fits, and it is never empty.
    pub text: String,
    /// Who wrote it.
    pub author: Author,
    /// How the writing ended.
    pub outcome: Outcome,
    /// What was spent.
    pub spent: Spent,
    /// How long it took.
    pub elapsed: Duration,
    /// The largest question that was put to the root model, in tokens.
    pub largest_context: Tokens,
}

/// Who wrote a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Author {
    /// The model; its text passed the gate.
    Model,
    /// Code: see [`facts`].
    Code,
}

/// A summariser: a model that leads, one that reads for it, and what they may cost.
#[derive(Clone)]
pub struct Summariser {
    root: Arc<dyn Model>,
    sub: Arc<dyn Model>,
    limits: Limits,
    abort: CancellationToken,
}

/// Why there is no briefing of the model's.
enum Stop {
    Limit(Limit),
    Failed(ModelError),
    Aborted,
}

impl Summariser {
    /// One model that leads and reads.
    pub fn new(model: Arc<dyn Model>) -> Self {
        let sub = Arc::clone(&model);
        Self { root: model, sub, limits: Limits::default(), abort: CancellationToken::new() }
    }

    /// Another model answers the sub-calls, a cheaper one as a rule.
    pub fn with_sub(self, sub: Arc<dyn Model>) -> Self {
        Self { sub, ..self }
    }

    /// Other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Ends when this token is cancelled. Dropping the future ends it as well.
    pub fn with_abort(self, abort: CancellationToken) -> Self {
        Self { abort, ..self }
    }

    /// The model that leads.
    pub fn root(&self) -> &Arc<dyn Model> {
        &self.root
    }

    /// Writes a summary. It never fails: what comes back always fits and never is the text of a failure.
    pub async fn summarise(&self, task: &Task<'_>, listener: ProgressListener<'_>) -> Summary {
        let account = Account::open(&self.limits);
        let mut run = Run::new(self, task, &account, listener);
        let ended = run.lead().await;
        let (spent, elapsed, largest_context) = (account.spent(), account.elapsed(), run.largest);
        let (text, author, outcome) = match ended {
            Ok(text) => (text, Author::Model, Outcome::Converged),
            Err(stop) => {
                let outcome = match stop {
                    Stop::Limit(limit) => Outcome::Exhausted(limit),
                    Stop::Failed(error) => Outcome::Failed(error.message),
                    Stop::Aborted => Outcome::Aborted,
                };
                (facts(task.text, task.at_most, &self.root.traits().meter), Author::Code, outcome)
            }
        };
        listener(Progress::Ended(outcome.clone()));
        Summary { text, author, outcome, spent, elapsed, largest_context }
    }
}

/// One summary in the making.
struct Run<'r, 't> {
    with: &'r Summariser,
    task: &'r Task<'t>,
    account: &'r Account<'r>,
    listener: ProgressListener<'r>,
    text: Environment<'t>,
    gate: Gate<'r>,
    /// Stands in the fences around what others wrote. It is a hash of the text, so the text can not contain it.
    fence: Handle,
    at_most: Tokens,
    /// What the models' windows turned out to be.
    root_window: Tokens,
    sub_window: AtomicU64,
    /// One for each call of the sub-model that may be under way.
    readers: Semaphore,
    messages: Vec<Message<'static>>,
    largest: Tokens,
    calls: usize,
}

/// What the root model is to do next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Looking,
    /// Whatever it says now is the briefing.
    Closing,
}

impl<'r, 't: 'r> Run<'r, 't> {
    fn new(with: &'r Summariser, task: &'r Task<'t>, account: &'r Account<'r>, listener: ProgressListener<'r>) -> Self {
        let traits = with.root.traits();
        let at_most = task.at_most.min(traits.window / 4);
        let mut sources = vec![task.text];
        sources.extend(task.earlier);
        Self {
            with,
            task,
            account,
            listener,
            text: Environment::new(task.text),
            gate: Gate::new(sources, task.goal, at_most, &traits.meter),
            fence: Handle::for_content(task.text.as_bytes()),
            at_most,
            root_window: traits.window,
            sub_window: AtomicU64::new(with.sub.traits().window),
            readers: Semaphore::new(with.limits.at_once.max(1)),
            messages: Vec::new(),
            largest: 0,
            calls: 0,
        }
    }

    /// The loop.
    async fn lead(&mut self) -> Result<String, Stop> {
        let with = self.with;
        let traits = with.root.traits();
        let system = self.instructions(traits.speech);
        (self.listener)(Progress::Read { rows: self.text.rows(), tokens: traits.meter.text(self.task.text) });
        self.messages.push(Message::text(Role::User, self.opening()));
        let (mut talk, mut refusals, mut overflows) = (0, 0, 0);
        let mut told_to_close = false;
        loop {
            let output = self.output();
            let closing = talk >= TALK
                || refusals >= REFUSALS - 1
                || with.account_is_nearly_spent(self.account, Estimate { input: self.root_window / 2, output });
            let phase = if closing { Phase::Closing } else { Phase::Looking };
            if closing && !told_to_close {
                told_to_close = true;
                self.tell(&self.closing_words(traits.speech));
            }
            let (messages, context) = self.fitted(&system, output);
            let tools: &[_] = if traits.speech == Speech::Calls { &TOOLS } else { &[] };
            let question = Question { system: &system, messages: &messages, tools, max_output: output };
            let turn = self.account.spent().iterations + 1;
            (self.listener)(Progress::Turn { turn, of: with.limits.iterations, context });
            self.largest = self.largest.max(context);
            let answer = match self.call(Asked::Root, &question, context).await {
                Err(Stop::Failed(ModelError { kind: ModelErrorKind::Overflow(overflow), message }))
                    if overflows < OVERFLOWS =>
                {
                    overflows += 1;
                    self.root_window = tighter(self.root_window, overflow.learned_limit(context));
                    (self.listener)(Progress::Retried { why: message });
                    continue;
                }
                answer => answer?,
            };
            let commands = self.commands(&answer, phase);
            self.say(&answer, &commands);
            if commands.is_empty() {
                talk += 1;
                if answer.stop == Some(StopReason::MaxTokens) {
                    self.tell("Your answer was too long and was cut off. Be shorter.");
                } else if phase == Phase::Closing {
                    self.tell(&self.closing_words(traits.speech));
                } else {
                    self.tell(match traits.speech {
                        Speech::Calls => "Call a tool to look at the text, or call final with the briefing.",
                        Speech::Text => {
                            "Write a command from the list to look at the text, or FINAL with the briefing."
                        }
                    });
                }
                if talk > TALK + 1 {
                    return Err(Stop::Limit(Limit::Refusals));
                }
                continue;
            }
            talk = 0;
            match self.handed_in(&answer, &commands) {
                Some(Ok(text)) => return Ok(text),
                Some(Err(why)) => {
                    refusals += 1;
                    (self.listener)(Progress::Refused { why: why.clone() });
                    if refusals >= REFUSALS {
                        return Err(Stop::Limit(Limit::Refusals));
                    }
                    self.answer_calls(
                        &commands,
                        vec![format!("The briefing is refused: {why}. Mend it and hand it in again.")],
                    );
                }
                None => {
                    let results = self.carry_out(&commands).await;
                    self.answer_calls(&commands, results);
                }
            }
        }
    }

    /// Tokens that the root model may answer with.
    fn output(&self) -> Tokens {
        let thinking = if self.root_window >= WIDE { 4_096 } else { 0 };
        (self.at_most * 3 / 2 + 256 + thinking).min(self.root_window / 3)
    }

    /// What the model wants. In the closing phase plain words are the briefing.
    fn commands(&mut self, answer: &Answer, phase: Phase) -> Vec<Result<Command, String>> {
        let commands: Vec<_> = if answer.calls.is_empty() {
            // Models that do not call the tools they were told of sometimes write their names.
            Command::of_text(&answer.text)
        } else {
            answer.calls.iter().map(Command::of_call).collect()
        };
        let spoke = !answer.text.trim().is_empty() && answer.stop != Some(StopReason::MaxTokens);
        if commands.is_empty() && phase == Phase::Closing && spoke {
            return vec![Ok(Command::Final { text: answer.text.trim().to_owned() })];
        }
        commands
    }

    /// Writes down what the model said, with calls of our own ids: nine letters and digits, which every server takes.
    fn say(&mut self, answer: &Answer, commands: &[Result<Command, String>]) {
        let mut parts = Vec::new();
        if !answer.text.trim().is_empty() {
            parts.push(Part::text(answer.text.clone()));
        }
        for (at, command) in commands.iter().take(AT_ONCE).enumerate() {
            let name = command.as_ref().map_or("unknown", Command::name);
            let arguments = answer.calls.get(at).map_or("{}", |call| call.arguments.as_str());
            parts.push(Part::call(format!("fold{:05}", self.calls + at), name, arguments.to_owned()));
        }
        if parts.is_empty() {
            parts.push(Part::text("(nothing)"));
        }
        self.messages.push(Message::new(Role::Assistant, parts));
    }

    /// Answers the calls of the last message. Fewer results than calls: the last one stands for the rest.
    fn answer_calls(&mut self, commands: &[Result<Command, String>], results: Vec<String>) {
        for at in 0..commands.len().min(AT_ONCE) {
            let id = format!("fold{:05}", self.calls + at);
            let text = results.get(at).or(results.last()).cloned().unwrap_or_default();
            self.messages.push(Message::new(Role::Tool, vec![Part::result(id, text)]));
        }
        self.calls += commands.len().min(AT_ONCE);
    }

    /// Tells the model something: behind the last result if there is one, since not every server takes a user's words
    /// there.
    fn tell(&mut self, words: &str) {
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
    fn handed_in(&self, answer: &Answer, commands: &[Result<Command, String>]) -> Option<Result<String, String>> {
        let is_final = |command: &&Result<Command, String>| matches!(command, Ok(Command::Final { .. }));
        let Ok(Command::Final { text }) = commands.iter().find(is_final)? else { return None };
        if !commands.iter().all(|command| is_final(&command)) {
            // It can not have seen yet what the others give back.
            return None;
        }
        if answer.stop == Some(StopReason::MaxTokens) {
            return Some(Err("it was cut off; be shorter".to_owned()));
        }
        Some(self.judged(text.trim()))
    }

    fn judged(&self, text: &str) -> Result<String, String> {
        match self.gate.check(text) {
            Ok(()) => Ok(text.to_owned()),
            Err(flaws) => Err(flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        }
    }

    /// The conversation as it is sent: inside the window, whatever has been shown before.
    fn fitted(&self, system: &str, output: Tokens) -> (Vec<Message<'static>>, Tokens) {
        let traits = self.with.root.traits();
        let meter = &traits.meter;
        let declared: Tokens = match traits.speech {
            Speech::Calls => {
                TOOLS.iter().map(|tool| meter.text(tool.description) + meter.text(tool.parameters) + 16).sum()
            }
            Speech::Text => 0,
        };
        let fixed = meter.message(&Message::text(Role::System, system)) + declared + meter.request_overhead();
        let room = self.root_window.saturating_sub(output).saturating_sub(fixed);
        let room = room.saturating_sub(meter.margin(room));
        let count = |messages: &[Message<'_>]| messages.iter().map(|message| meter.message(message)).sum::<Tokens>();
        let options = CompactToBudget { keep_last: 1, min_chars: 160, target_ratio: 0.75, meter: meter.clone() };
        let (projected, _) = compact_to_budget(&self.messages, room, &options);
        let mut messages = spoken(projected, traits.speech);
        let mut tokens = count(&messages);
        // Words for calls are a little more or less than calls; and what can not be elided is cut.
        let mut tighter = room;
        while tokens > room && tighter > 0 {
            tighter = tighter.saturating_sub((tokens - room).max(room / 16).max(8));
            let options = TerminalTruncate { keep_last: 1, meter: meter.clone() };
            messages = spoken(terminal_truncate(self.messages.clone(), tighter, &options).messages, traits.speech);
            tokens = count(&messages);
        }
        (messages, tokens + fixed)
    }

    /// Carries out the commands of one turn; the sub-model is asked several things at a time.
    async fn carry_out(&self, commands: &[Result<Command, String>]) -> Vec<String> {
        let traits = self.with.root.traits();
        let meter = &traits.meter;
        let shown = commands.len().min(AT_ONCE) as Tokens;
        let clamp = Clamp { tokens: self.root_window / 6 / shown.max(1), ..Clamp::default() };
        let asks = commands.iter().filter(|command| matches!(command, Ok(Command::Ask { .. }))).count();
        let answers = commands.iter().take(AT_ONCE).map(|command| async move {
            match command {
                Ok(Command::Ask { first, last, question }) => self.ask(*first, *last, question, asks).await,
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
                Ok(Command::Head { rows }) => self.text.head(*rows, clamp, meter),
                Ok(Command::Tail { rows }) => self.text.tail(*rows, clamp, meter),
                Ok(Command::Slice { first, last }) => self.text.slice(*first, *last, clamp, meter),
                Ok(Command::Chunks) => self.text.outline(clamp, meter),
                Ok(Command::Count { pattern }) => {
                    let (lines, times) = self.text.count(&Pattern::new(pattern));
                    format!("{times} matches in {lines} lines")
                }
                Ok(Command::Grep { pattern, from }) => {
                    let found = self.text.grep(&Pattern::new(pattern), *from, clamp, meter);
                    if found.lines == 0 { "(no line matches)".to_owned() } else { found.shown }
                }
                Ok(Command::Ask { .. }) => {
                    let options = CompressOptions { meter: meter.clone(), max_chunk_bytes: 512 };
                    compress(&answers, clamp.tokens, &options).text
                }
                Ok(Command::Final { .. }) => {
                    results.push("Not taken: hand it in alone, once you have seen what the others give.".to_owned());
                    continue;
                }
            };
            let tool = command.as_ref().map_or("unknown", Command::name);
            (self.listener)(Progress::Looked { tool, shown: meter.text(&look) });
            results.push(self.fenced(&look));
        }
        if commands.len() > AT_ONCE {
            let left = commands.len() - AT_ONCE;
            if let Some(last) = results.last_mut() {
                let _ = write!(last, "\n\n({left} more commands were not carried out: {AT_ONCE} at a time)");
            }
        }
        results
    }

    /// One call of a model: admitted, bounded in time, tried again when the server stumbles, given up when nobody wants
    /// it any more.
    async fn call(&self, asked: Asked, question: &Question<'_>, input: Tokens) -> Result<Answer, Stop> {
        let with = self.with;
        let model = match asked {
            Asked::Root => &with.root,
            Asked::Sub => &with.sub,
        };
        let traits = model.traits();
        let estimate = Estimate { input, output: question.max_output };
        let ticket = self.account.admit(asked, estimate, &traits.prices).map_err(Stop::Limit)?;
        let mut failures = 0;
        loop {
            let end = (Instant::now() + with.limits.call_time).min(self.account.deadline());
            let answered = tokio::select! {
                biased;
                () = with.abort.cancelled() => return Err(Stop::Aborted),
                answered = timeout_at(end, model.answer(question)) => answered,
            };
            let error = match answered {
                Ok(Ok(answer)) => {
                    let output = traits.meter.text(&answer.text)
                        + answer
                            .calls
                            .iter()
                            .map(|call| traits.meter.text(call.arguments.as_str()) + 8)
                            .sum::<Tokens>();
                    ticket.settle(answer.usage.unwrap_or_else(|| usage(Estimate { input, output })));
                    return Ok(answer);
                }
                Ok(Err(error)) => error,
                Err(_) if Instant::now() >= self.account.deadline() => return Err(Stop::Limit(Limit::Time)),
                Err(_) => ModelError::new(
                    ModelErrorKind::Busy(None),
                    format!("{} did not answer within {:?}", traits.name, with.limits.call_time),
                ),
            };
            if !error.is_passing() || failures >= with.limits.retries {
                return Err(Stop::Failed(error));
            }
            failures += 1;
            (self.listener)(Progress::Retried { why: error.message.clone() });
            let pause = match error.kind {
                ModelErrorKind::Busy(Some(told)) => told,
                _ => Duration::from_millis(200) * 4_u32.pow(failures as u32 - 1),
            };
            let until = Instant::now() + pause.min(LONGEST_PAUSE);
            if until >= self.account.deadline() {
                return Err(Stop::Limit(Limit::Time));
            }
            tokio::select! {
                biased;
                () = with.abort.cancelled() => return Err(Stop::Aborted),
                () = sleep(until - Instant::now()) => {}
            }
        }
    }
}

impl Summariser {
    /// Whether the next turn of the root model is the last one that can be paid for.
    fn account_is_nearly_spent(&self, account: &Account<'_>, next: Estimate) -> bool {
        let time = account.elapsed() > self.limits.time.mul_f64(0.8);
        account.left(Asked::Root) <= 2 || time || !account.has_room_for_two(next)
    }
}

/// A window in which a question would have fit.
fn tighter(window: Tokens, lesson: LearnedLimit) -> Tokens {
    match lesson {
        LearnedLimit::Stated { tokens, .. } if tokens < window => tokens,
        LearnedLimit::BelowCount(tokens) if tokens < window => tokens * 3 / 4,
        _ => window * 3 / 4,
    }
}

/// The conversation for a model that knows no tools: what it said, and in the user's role what that gave.
fn spoken(messages: Vec<Message<'static>>, speech: Speech) -> Vec<Message<'static>> {
    if speech == Speech::Calls {
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

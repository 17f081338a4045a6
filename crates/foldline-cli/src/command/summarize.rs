//! `foldline summarise`: a briefing of a text that may be far longer than any window.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use foldline::strategies::chunk;
use foldline::transcript;
use foldline::transcript::TranscriptReader;
use foldline::wire::Format;
use foldline::{Conversation, Meter, ModelTable, Part, Role};
use foldline_summarize::{
    HttpModel, LanguageModel, ModelEndpoint, ModelInfo, ProgressEvent, Summarizer, SummaryAuthor, SummaryLimits,
    SummaryOutcome, SummaryResult, SummaryTask, ToolStyle, extract_facts,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::command::{print_stdout, report};
use crate::{environment, input};

/// Let a model write a briefing of a text that is longer than its window
///
/// The model never gets the whole text: it looks at it with tools, lets a second model read long passages, and hands in a
/// briefing. Paths, numbers, names and quotations in the briefing are checked against the text; one that states what
/// the text does not have is refused. When the model fails, or when there is none, the facts that code can find are
/// printed instead: files, tools, failures, the passages that rank highest. A recorded session or a request body is read as
/// a conversation, anything else as text.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct SummarizeCommand {
    /// The text; standard input when left out or `-`.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// The server of the model, such as <https://api.openai.com>. Without one no model is asked.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// The model that leads.
    #[arg(long, value_name = "NAME", default_value = "gpt-4o-mini")]
    model: String,

    /// The model that reads long passages for it [default: the same].
    #[arg(long, value_name = "NAME")]
    sub_model: Option<String>,

    /// The API that the server speaks.
    #[arg(long, value_name = "FORMAT", default_value = "openai-chat", value_parser = ["openai-chat", "openai-responses", "anthropic"])]
    format: String,

    /// The window of the models in tokens [default: what is known of them].
    #[arg(long, value_name = "N")]
    window: Option<u64>,

    /// The models know no tools: let them write commands as text.
    #[arg(long)]
    plain: bool,

    /// What the work in the text is about [default: in a conversation, what the user asked for].
    #[arg(long, value_name = "WORDS")]
    goal: Option<String>,

    /// Tokens that the briefing may have.
    #[arg(long, value_name = "N", default_value_t = 1_500)]
    tokens: u64,

    /// Most turns of the leading model.
    #[arg(long, value_name = "N", default_value_t = 15)]
    turns: usize,

    /// Most calls of the reading model.
    #[arg(long, value_name = "N", default_value_t = 50)]
    sub_calls: usize,

    /// Most dollars, by the prices that are known of the models.
    #[arg(long, value_name = "USD", default_value_t = 1.0)]
    dollars: f64,

    /// Most seconds.
    #[arg(long, value_name = "N", default_value_t = 300)]
    seconds: u64,

    /// Print the briefing and how it came about as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  foldline summarise build.log
  foldline summarise build.log --upstream https://api.openai.com --goal 'why does the build fail?'
  foldline summarise session.jsonl --upstream http://127.0.0.1:8080 --model qwen3 --window 8192 --plain

The key of the server is taken from OPENAI_API_KEY or ANTHROPIC_API_KEY, by the API.

Exit codes:
  0  a model wrote the briefing, or none was asked
  4  the model did not come to an end: the facts that were found by code were printed";

/// Exit code of a model that did not hand in a briefing.
const EXIT_NO_SUMMARY: u8 = 4;

/// What is to be summarised.
struct SummarySource {
    text: String,
    goal: String,
}

impl SummarizeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let SummarySource { text, goal } = self.read_source()?;
        let goal = self.goal.clone().unwrap_or(goal);
        let Some(upstream) = &self.upstream else {
            let meter = Meter::for_model(ModelTable::builtin(), Some(&self.model));
            let facts = extract_facts(&text, self.tokens, &meter);
            match self.json {
                true => print_stdout(&format!("{}\n", json!({ "author": "code", "text": facts })))?,
                false => print_stdout(&format!("{}\n", facts.trim_end()))?,
            }
            return Ok(ExitCode::SUCCESS);
        };
        let root = self.connect_model(upstream, &self.model)?;
        let mut summariser = Summarizer::new(root).with_limits(SummaryLimits {
            iterations: self.turns,
            sub_calls: self.sub_calls,
            dollars: self.dollars,
            total_time: Duration::from_secs(self.seconds),
            // A model on the machine itself may need all of it for one answer.
            call_time: Duration::from_secs(self.seconds),
            ..SummaryLimits::default()
        });
        if let Some(name) = &self.sub_model {
            summariser = summariser.with_sub_model(self.connect_model(upstream, name)?);
        }
        let task = SummaryTask { text: &text, goal: &goal, earlier_summary: None, max_tokens: self.tokens };
        let bar = progress_bar(self.turns);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let summary = runtime.block_on(summariser.summarize(&task, &|progress| update_progress(&bar, progress)));
        bar.finish_and_clear();
        self.print_summary(&summary)
    }

    /// The text, and what it says of the goal.
    fn read_source(&self) -> Result<SummarySource> {
        let bytes = input::read_bytes(self.file.as_deref())?;
        if bytes.trim_ascii().is_empty() {
            bail!("there is nothing to summarise: the input is empty");
        }
        let head = &bytes[..bytes.len().min(transcript::DETECTION_HEAD_BYTES)];
        if transcript::detect(head).is_some()
            && let Some(recording) = TranscriptReader::new("input", bytes.as_slice())
                .ok()
                .and_then(|mut it| it.find_map(std::result::Result::ok))
        {
            let goal = first_user_text(&recording.conversation);
            return Ok(SummarySource { text: chunk::render_transcript(&recording.conversation.messages), goal });
        }
        Ok(SummarySource { text: String::from_utf8_lossy(&bytes).into_owned(), goal: String::new() })
    }

    fn connect_model(&self, upstream: &str, name: &str) -> Result<Arc<dyn LanguageModel>> {
        let format: Format = serde_json::from_value(json!(self.format)).context("no such format")?;
        let endpoint = ModelEndpoint {
            format,
            base_url: upstream.to_owned(),
            model: name.to_owned(),
            api_key: environment::api_key(format),
            headers: Vec::new(),
        };
        let known = ModelInfo::for_model(name);
        let speech = if self.plain { ToolStyle::Text } else { ToolStyle::Calls };
        let traits = ModelInfo { window: self.window.unwrap_or(known.window), tool_style: speech, ..known };
        Ok(Arc::new(HttpModel::with_info(endpoint, traits)?))
    }

    fn print_summary(&self, summary: &SummaryResult) -> Result<ExitCode> {
        let spent = &summary.spent;
        let outcome = match &summary.outcome {
            SummaryOutcome::Converged => "a model wrote it".to_owned(),
            SummaryOutcome::Exhausted(limit) => format!("no model wrote it: {limit}"),
            SummaryOutcome::Failed(why) => format!("no model wrote it: {why}"),
            _ => "no model wrote it".to_owned(),
        };
        if self.json {
            let report = json!({
                "author": if summary.author == SummaryAuthor::Model { "model" } else { "code" },
                "outcome": summary.outcome,
                "spent": spent,
                "largest_context": summary.largest_context,
                "seconds": summary.elapsed.as_secs_f64(),
                "text": summary.text,
            });
            print_stdout(&format!("{report}\n"))?;
        } else {
            print_stdout(&format!("{}\n", summary.text.trim_end()))?;
            report(&format!(
                "foldline: {outcome}; {} turns, {} sub-calls, {} tokens in, {} out, ${:.4}, {:.1} s",
                spent.iterations,
                spent.sub_calls,
                spent.usage.input,
                spent.usage.output,
                spent.dollars,
                summary.elapsed.as_secs_f64()
            ));
        }
        Ok(if summary.author == SummaryAuthor::Model { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NO_SUMMARY) })
    }
}

/// What the user of a conversation asked for first.
fn first_user_text(conversation: &Conversation<'_>) -> String {
    let said = conversation.messages.iter().filter(|message| message.role == Role::User);
    said.flat_map(|message| &message.parts).filter_map(Part::as_text).next().unwrap_or_default().to_owned()
}

fn progress_bar(turns: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30.cyan} turn {pos} of at most {len}  {msg}");
    let bar = ProgressBar::new(turns as u64).with_style(style.expect("the template is fixed"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn update_progress(bar: &ProgressBar, progress: ProgressEvent) {
    match progress {
        ProgressEvent::Read { rows, tokens } => bar.set_message(format!("{rows} rows, {tokens} tokens")),
        ProgressEvent::Turn { turn, .. } => bar.set_position(turn as u64),
        ProgressEvent::Viewed { tool, shown } => bar.set_message(format!("{tool}: {shown} tokens")),
        ProgressEvent::SubCall { first, last, .. } => bar.set_message(format!("reading rows {first} to {last}")),
        ProgressEvent::Retried { why } | ProgressEvent::Refused { why } => bar.set_message(why),
        _ => {}
    }
}

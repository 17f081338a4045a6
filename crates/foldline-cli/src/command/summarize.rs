//! `foldline summarize`: writes a summary of a text that may be far longer than any context window.

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
use foldline_server::proxy::OutboundTransport;
use foldline_summarize::{
    HttpModel, LanguageModel, ModelEndpoint, ModelInfo, ProgressEvent, Summarizer, SummaryAuthor, SummaryLimits,
    SummaryOutcome, SummaryResult, SummaryTask, ToolStyle, extract_facts,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::output::{print_stdout, report};
use crate::render::plain_lines;
use crate::settings::layers::{SettingLayers, SettingValues};
use crate::units::TokensArg;
use crate::{environment, input, settings};

/// Let a model summarize a text that is longer than its context window
///
/// The model never receives the whole text: it reads it with tools, lets a second model read long passages, and submits
/// a summary. Paths, numbers, names and quotations in the summary are checked against the text; a summary with claims
/// that are not in the text is rejected. If the model fails, or if none is set, facts extracted by code are
/// printed instead: files, tools, failures, the passages that rank highest. A recorded session or a request body is
/// read as a conversation, anything else as text.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct SummarizeCommand {
    /// The text; standard input if omitted or `-`.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// The model server, such as <https://api.openai.com>. Without it no model is called.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// The main model.
    #[arg(long, value_name = "NAME", default_value = "gpt-4o-mini")]
    model: String,

    /// The model that reads long passages for it [default: the main model].
    #[arg(long, value_name = "NAME")]
    sub_model: Option<String>,

    /// The API format of the server.
    #[arg(long, value_name = "FORMAT", default_value = "openai-chat", value_parser = ["openai-chat", "openai-responses", "anthropic"])]
    format: String,

    /// Context window of the models, in tokens [default: from the model table].
    #[arg(long, value_name = "TOKENS")]
    window: Option<TokensArg>,

    /// Use text commands instead of tool calls, for models without tool calling.
    #[arg(long)]
    text_commands: bool,

    /// Goal of the work in the text [default: in a conversation, the first user message].
    #[arg(long, value_name = "WORDS")]
    goal: Option<String>,

    /// Maximum tokens of the summary.
    #[arg(long, value_name = "TOKENS", default_value = "1500")]
    max_tokens: TokensArg,

    /// Maximum turns of the main model.
    #[arg(long, value_name = "N", default_value_t = 15)]
    max_turns: usize,

    /// Maximum calls of the reading model.
    #[arg(long, value_name = "N", default_value_t = 50)]
    max_sub_calls: usize,

    /// Maximum cost in US dollars, by the prices of the model table.
    #[arg(long, value_name = "USD", default_value_t = 1.0)]
    max_cost: f64,

    /// Maximum duration in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,

    /// Print the summary and its statistics as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  foldline summarize build.log
  foldline summarize build.log --upstream https://api.openai.com --goal 'why does the build fail?'
  foldline summarize session.jsonl --upstream http://127.0.0.1:8080 --model qwen3 --text-commands

The key of the server is read from OPENAI_API_KEY or ANTHROPIC_API_KEY, depending on the API format. The server is reached \
like the providers of the proxy: HTTPS_PROXY and NO_PROXY, and ca-cert, client-cert and client-key of the settings.

Exit codes:
  0  a model wrote the summary, or no model was set
  4  the model did not finish: facts extracted by code were printed";

/// Exit code if the model did not submit a summary.
const EXIT_NO_SUMMARY: u8 = 4;

/// The text to summarize.
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
            let facts = extract_facts(&text, self.max_tokens.0, &meter);
            match self.json {
                true => print_stdout(&format!("{}\n", json!({ "author": "code", "text": facts })))?,
                false => print_stdout(&format!("{}\n", plain_lines(facts.trim_end())))?,
            }
            return Ok(ExitCode::SUCCESS);
        };
        let root = self.connect_model(upstream, &self.model)?;
        let mut summarizer = Summarizer::new(root).with_limits(SummaryLimits {
            iterations: self.max_turns,
            sub_calls: self.max_sub_calls,
            dollars: self.max_cost,
            total_time: Duration::from_secs(self.timeout),
            // A local model may need all of it for one answer.
            call_time: Duration::from_secs(self.timeout),
            ..SummaryLimits::default()
        });
        if let Some(name) = &self.sub_model {
            summarizer = summarizer.with_sub_model(self.connect_model(upstream, name)?);
        }
        let task = SummaryTask { goal: &goal, ..SummaryTask::new(&text, self.max_tokens.0) };
        let bar = progress_bar(self.max_turns);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let summary = runtime.block_on(summarizer.summarize(&task, &|progress| update_progress(&bar, progress)));
        bar.finish_and_clear();
        self.print_summary(&summary)
    }

    /// Reads the text, and the goal if it contains one.
    fn read_source(&self) -> Result<SummarySource> {
        let bytes = input::read_bytes(self.file.as_deref())?;
        if bytes.trim_ascii().is_empty() {
            bail!("nothing to summarize: the input is empty");
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
        let format: Format = serde_json::from_value(json!(self.format)).context("unknown format")?;
        let endpoint = ModelEndpoint {
            format,
            base_url: upstream.to_owned(),
            model: name.to_owned(),
            api_key: environment::api_key(format),
            headers: Vec::new(),
        };
        let known = ModelInfo::for_model(name);
        let tool_style = if self.text_commands { ToolStyle::Text } else { ToolStyle::Calls };
        let info = ModelInfo { window: self.window.map_or(known.window, |it| it.0), tool_style, ..known };
        let outbound = settings::proxy::outbound(&SettingLayers::load(SettingValues::new())?)?;
        let transport = Arc::new(OutboundTransport::new(&outbound)?);
        Ok(Arc::new(HttpModel::with_transport(endpoint, info, transport)?))
    }

    fn print_summary(&self, summary: &SummaryResult) -> Result<ExitCode> {
        let spent = &summary.spent;
        let outcome = match &summary.outcome {
            SummaryOutcome::Converged => "written by a model".to_owned(),
            SummaryOutcome::Exhausted(limit) => format!("not written by a model: {limit}"),
            SummaryOutcome::Failed(reason) => format!("not written by a model: {reason}"),
            _ => "not written by a model".to_owned(),
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
            print_stdout(&format!("{}\n", plain_lines(summary.text.trim_end())))?;
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

/// Returns the first user message of a conversation.
fn first_user_text(conversation: &Conversation<'_>) -> String {
    let user_messages = conversation.messages.iter().filter(|message| message.role == Role::User);
    user_messages.flat_map(|message| &message.parts).filter_map(Part::as_text).next().unwrap_or_default().to_owned()
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

//! `foldline show`: reports where the tokens of a conversation are.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use foldline::laws;
use foldline::laws::LawProfile;
use foldline::transcript::RecordedSession;
use foldline::wire::Request;
use foldline::{Conversation, Meter};

use crate::environment::Terminal;
use crate::output::{print_stdout, report};
use crate::render::plain;
use crate::settings::flags::{ModelGroups, SettingFlags};
use crate::settings::models;
use crate::token_report::{SessionReport, TokenReport};
use crate::{input, render};

/// Show where the tokens of a conversation are
///
/// Reads a request body or a recorded session and reports what fills the context window: by role, by tool, by
/// age; the largest parts; repeated text; violated provider laws. Nothing is changed and nothing is sent
/// anywhere. Terms are explained in docs/glossary.md.
///
/// An agent sends its whole conversation at every step, so an early part is paid for many
/// times. Its age is the number of requests since it was first sent.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct ShowCommand {
    /// Request bodies or recorded sessions, plain, .gz or .zst; folders of them; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Count for this model instead of the one in the conversation.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    #[command(flatten)]
    settings: SettingFlags<ModelGroups>,

    /// Number of largest parts and repeats to list.
    #[arg(long, value_name = "N", default_value_t = 8)]
    top: usize,

    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Input formats (detected by content, not by name):
  request bodies    OpenAI Chat Completions, OpenAI Responses, Anthropic Messages
  sessions          Claude Code, Codex, Copilot CLI, Gemini CLI, pi, SWE-agent, OpenHands, Inspect,
                    OpenInference, and JSON lines with a list of messages each

Examples:
  The newest session of Claude Code:
      foldline show \"$(ls -t ~/.claude/projects/*/*.jsonl | head -1)\"
  All sessions of Codex together:
      foldline show ~/.codex/sessions
  The tool that fills the window most:
      foldline show --json session.jsonl | jq -r '.by_tool[0].name'

How to read it:
  A position such as 57.0 is message 57, part 0, both counted from 0.
  Tokens are counted with the model's own vocabulary where it is public, and estimated otherwise;
  the line below the title states which.";

impl ShowCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let table = models::model_table(&self.settings.load()?)?;
        let mut total = TokenReport::default();
        let mut failures = 0;
        let each = |recording: RecordedSession, request: Option<&Request<'_>>| {
            let conversation = Conversation {
                model: self.model.clone().map(Into::into).or(recording.conversation.model),
                ..recording.conversation
            };
            let meter = Meter::for_model(&table, conversation.model.as_deref());
            let mut session_report =
                token_report(&recording.id, recording.format.name(), &conversation, &meter, self.top);
            let format = request.map_or(recording.format.wire_format(), Request::format);
            let profile = LawProfile::for_row(format, meter.row());
            let violations = match request {
                Some(request) => laws::check(request, &profile),
                None => laws::check_conversation(&conversation, &profile),
            };
            session_report.broken_laws = violations.into_iter().map(Into::into).collect();
            total.merge(session_report, self.top);
        };
        let on_error = |error: String| {
            failures += 1;
            report(&format!("foldline: {}", plain(&error)));
        };
        input::for_each_recording(&self.files, each, on_error)?;
        if total.sessions.is_empty() {
            bail!("no conversation in {}", input::join_paths(&self.files));
        }
        print_stdout(&match self.json {
            true => serde_json::to_string_pretty(&total)? + "\n",
            false => render::render_report(&total, Terminal::for_stdout()),
        })?;
        // Errors were reported above; the exit code lets a script notice them too.
        Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) })
    }
}

/// Builds the report of one conversation.
pub(crate) fn token_report(
    id: &str,
    format: &str,
    conversation: &Conversation<'_>,
    meter: &Meter,
    top: usize,
) -> TokenReport {
    let session = SessionReport {
        id: id.to_owned(),
        format: format.to_owned(),
        model: conversation.model.as_deref().map(str::to_owned),
        messages: conversation.messages.len(),
        rounds: conversation.rounds().len(),
        tokens: meter.conversation(conversation),
        sent_tokens: 0,
        window: meter.row().window,
        counted: meter.exactness().into(),
    };
    TokenReport::from_conversation(session, conversation, meter, top)
}

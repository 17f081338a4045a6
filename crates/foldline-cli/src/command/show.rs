//! `foldline show`: where the tokens are.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use foldline::laws;
use foldline::laws::LawProfile;
use foldline::transcript::RecordedSession;
use foldline::wire::Request;
use foldline::{Conversation, Meter};

use super::{print_stdout, report};
use crate::environment::Terminal;
use crate::settings::ModelFlags;
use crate::token_report::{SessionReport, TokenReport};
use crate::{input, render};

/// Show where the tokens of a conversation are
///
/// Reads a request body or a recorded session and tells what fills the window: by role, by tool, by age;
/// the largest parts; what is said again; which laws of the provider it breaks. Nothing is changed and
/// nothing is sent anywhere.
///
/// An agent sends its whole conversation at every step, so a part that came early was paid for many
/// times. Its age is the number of requests since it was first sent.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct ShowCommand {
    /// Request bodies or recorded sessions, plain, .gz or .zst; folders of them; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Count for this model, whatever the conversation says.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    #[command(flatten)]
    models: ModelFlags,

    /// How many of the largest parts and repeats to name.
    #[arg(long, value_name = "N", default_value_t = 8)]
    top: usize,

    /// Print everything as JSON instead of a picture.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
What is read (recognised by content, not by name):
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
  A place such as 57.0 is message 57, part 0, both counted from 0.
  Tokens are counted with the model's own vocabulary where it is public, and estimated otherwise;
  the line below the title says which.";

impl ShowCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let table = self.models.resolve()?;
        let mut whole = TokenReport::default();
        let mut faults = 0;
        let each = |recording: RecordedSession, request: Option<&Request<'_>>| {
            let conversation = Conversation {
                model: self.model.clone().map(Into::into).or(recording.conversation.model),
                ..recording.conversation
            };
            let meter = Meter::for_model(&table, conversation.model.as_deref());
            let mut survey = token_report(&recording.id, recording.format.name(), &conversation, &meter, self.top);
            let format = request.map_or(recording.format.wire_format(), Request::format);
            let profile = LawProfile::for_row(format, meter.row());
            let broken = match request {
                Some(request) => laws::check(request, &profile),
                None => laws::check_conversation(&conversation, &profile),
            };
            survey.broken_laws = broken.into_iter().map(Into::into).collect();
            whole.merge(survey, self.top);
        };
        let fault = |fault: String| {
            faults += 1;
            report(&format!("foldline: {fault}"));
        };
        input::for_each_recording(&self.files, each, fault)?;
        if whole.sessions.is_empty() {
            bail!("there is no conversation in {}", input::join_paths(&self.files));
        }
        print_stdout(&match self.json {
            true => serde_json::to_string_pretty(&whole)? + "\n",
            false => render::render_report(&whole, Terminal::for_stdout()),
        })?;
        // What could not be read was told; a script should notice too.
        Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) })
    }
}

/// The survey of one conversation.
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
        sent: 0,
        window: meter.row().window,
        counted: meter.exactness().into(),
    };
    TokenReport::from_conversation(session, conversation, meter, top)
}

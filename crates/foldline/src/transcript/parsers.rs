//! The parser of each log format.

use crate::transcript::log_format::LogFormat;
use crate::transcript::session_parser::SessionParser;
use crate::transcript::{
    bodies, claude_code, codex, copilot, gemini, inspect, openhands, openinference, pi, swe_agent,
};

/// Returns a new parser for a log format.
pub(super) fn parser_for(format: LogFormat) -> Box<dyn SessionParser> {
    match format {
        LogFormat::ClaudeCode => Box::<claude_code::ClaudeCodeLog>::default(),
        LogFormat::Codex => Box::new(codex::CodexRollout::new()),
        LogFormat::Copilot => Box::<copilot::CopilotEvents>::default(),
        LogFormat::GeminiCli => Box::new(gemini::GeminiChat::new()),
        LogFormat::Pi => Box::new(pi::PiSessionTree::new()),
        LogFormat::SweAgent => Box::new(swe_agent::SweAgentTrajectory::new()),
        LogFormat::OpenHands => Box::new(openhands::OpenHandsEvents::new()),
        LogFormat::Inspect => Box::<inspect::InspectLog>::default(),
        LogFormat::OpenInference => Box::<openinference::OpenInferenceTrace>::default(),
        LogFormat::Bodies(_) | LogFormat::Record => Box::<bodies::BodyParser>::default(),
    }
}

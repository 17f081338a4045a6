//! The scripted model: name, window and limits, shared by agent, provider and runner.

use foldline::tokens::Tokens;

/// The model whose vocabulary and prices are used.
pub const DEMO_MODEL: &str = "gpt-5.4";
/// Window of the scripted model.
pub const WINDOW_TOKENS: Tokens = 24_000;
/// Tokens that the agent reserves for a response.
pub(crate) const MAX_OUTPUT_TOKENS: Tokens = 1_000;

/// The reason why a demo did not finish.
pub type DemoError = Box<dyn std::error::Error + Send + Sync>;

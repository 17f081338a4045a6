//! Routing of tool outputs: decides whether an output is summarized before the agent sees it.
//!
//! Only output whose exact text does not matter is summarized: pages and hits from the web. An agent acts on the exact
//! results of reads, searches, shell commands and unknown tools, and no threshold changes that. The [`ToolTable`]
//! decides, and callers can extend it.

use std::fmt;
use std::str::FromStr;

use foldline::conversation::ToolCall;
use foldline::tokens::Tokens;

use crate::progress::ProgressListener;
use crate::summarizer::{Summarizer, SummaryResult, SummaryTask};
use crate::tool_table::ToolTable;

/// The policy for summarizing tool outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteMode {
    /// Never. No model is called.
    #[default]
    Off,
    /// If it is large, by the thresholds.
    Auto,
    /// Whenever allowed.
    Always,
}

/// The thresholds of [`RouteMode::Auto`], as shares of the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteThresholds {
    /// Output above this share is summarized.
    pub output_ratio: f64,
    /// Output that brings the whole request above this share, and is at least half of it, is summarized.
    pub total_ratio: f64,
}

impl Default for RouteThresholds {
    /// Returns 0.35 of the window for the output, 0.8 for the request.
    fn default() -> Self {
        Self { output_ratio: 0.35, total_ratio: 0.8 }
    }
}

/// The sizes on which the decision depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSizes {
    /// Tokens of the output.
    pub output_tokens: Tokens,
    /// Tokens of the request without it.
    pub rest_tokens: Tokens,
    /// The window of the agent's model.
    pub window_tokens: Tokens,
}

/// A routing decision with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutputRoute {
    /// Unchanged: summaries are off.
    Off,
    /// Unchanged: its exact text matters.
    Exact,
    /// Unchanged: it is small enough.
    Small,
    /// Summarized: it takes too much of the window.
    Large,
    /// Summarized: it makes the request too large.
    FillsWindow,
    /// Summarized: the mode is [`RouteMode::Always`].
    Always,
}

impl OutputRoute {
    /// Decides about the output of a call.
    ///
    /// ```
    /// use foldline::conversation::ToolCall;
    /// use foldline_summarize::{OutputRoute, RouteMode, RouteSizes, RouteThresholds};
    ///
    /// let call =
    ///     |name: &'static str| ToolCall::new("c", name, "{}");
    /// let sizes = RouteSizes { output_tokens: 40_000, rest_tokens: 10_000, window_tokens: 100_000 };
    /// let decide = |mode, name| OutputRoute::decide(mode, &call(name), sizes, RouteThresholds::default());
    /// assert_eq!(decide(RouteMode::Auto, "browse_page"), OutputRoute::Large);
    /// assert_eq!(decide(RouteMode::Off, "browse_page"), OutputRoute::Off);
    /// assert_eq!(decide(RouteMode::Always, "read_file"), OutputRoute::Exact);
    /// ```
    pub fn decide(mode: RouteMode, call: &ToolCall<'_>, sizes: RouteSizes, thresholds: RouteThresholds) -> Self {
        Self::decide_with(&ToolTable::default(), mode, call, sizes, thresholds)
    }

    /// Decides about the output of a call, by a table of tools.
    pub fn decide_with(
        tools: &ToolTable,
        mode: RouteMode,
        call: &ToolCall<'_>,
        sizes: RouteSizes,
        thresholds: RouteThresholds,
    ) -> Self {
        let RouteSizes { output_tokens, rest_tokens, window_tokens } = sizes;
        let total = output_tokens.saturating_add(rest_tokens) as f64;
        let (output, window) = (output_tokens as f64, window_tokens as f64);
        match mode {
            RouteMode::Off => OutputRoute::Off,
            _ if tools.needs_exact_output(call) => OutputRoute::Exact,
            RouteMode::Always => OutputRoute::Always,
            RouteMode::Auto if output > thresholds.output_ratio * window => OutputRoute::Large,
            RouteMode::Auto if total > thresholds.total_ratio * window && output * 2.0 >= total => {
                OutputRoute::FillsWindow
            }
            RouteMode::Auto => OutputRoute::Small,
        }
    }

    /// Returns true if a model is called.
    pub fn is_summarized(self) -> bool {
        matches!(self, OutputRoute::Large | OutputRoute::FillsWindow | OutputRoute::Always)
    }
}

/// The output of a call, before the agent sees it.
#[derive(Clone, Copy, Debug)]
pub struct ToolOutput<'o> {
    /// The call.
    pub call: &'o ToolCall<'o>,
    /// The output.
    pub text: &'o str,
    /// The goal of the work, in the user's words.
    pub goal: &'o str,
    /// Tokens of the request without it.
    pub rest_tokens: Tokens,
    /// The window of the agent's model.
    pub window_tokens: Tokens,
}

impl Summarizer {
    /// Routes the output of a call and, if so decided, summarizes it in a sixteenth of the window. Otherwise no
    /// model is called.
    pub async fn route_output(
        &self,
        output: &ToolOutput<'_>,
        mode: RouteMode,
        thresholds: RouteThresholds,
        listener: ProgressListener<'_>,
    ) -> (OutputRoute, Option<SummaryResult>) {
        let ToolOutput { call, text, goal, rest_tokens, window_tokens } = *output;
        let sizes = RouteSizes { output_tokens: self.root_model().info().meter.text(text), rest_tokens, window_tokens };
        let route = OutputRoute::decide_with(self.tools(), mode, call, sizes, thresholds);
        if !route.is_summarized() {
            return (route, None);
        }
        let task = SummaryTask { goal, ..SummaryTask::new(text, window_tokens / 16) };
        (route, Some(self.summarize(&task, listener).await))
    }
}

/// Returns true if the exact output of a call matters, by the built-in table: of everything but looks at the web.
pub fn needs_exact_output(call: &ToolCall<'_>) -> bool {
    ToolTable::default().needs_exact_output(call)
}

impl FromStr for RouteMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(RouteMode::Off),
            "auto" => Ok(RouteMode::Auto),
            "always" => Ok(RouteMode::Always),
            _ => Err(format!("`{name}` is not one of off, auto, always")),
        }
    }
}

impl fmt::Display for RouteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RouteMode::Off => "off",
            RouteMode::Auto => "auto",
            RouteMode::Always => "always",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide_route(mode: RouteMode, name: &'static str, output: Tokens, rest: Tokens) -> OutputRoute {
        let call = ToolCall::new("c", name, "{}");
        OutputRoute::decide(
            mode,
            &call,
            RouteSizes { output_tokens: output, rest_tokens: rest, window_tokens: 1_000 },
            RouteThresholds::default(),
        )
    }

    #[test]
    fn thresholds_are_shares_of_the_window() {
        assert_eq!(decide_route(RouteMode::Auto, "browse", 350, 0), OutputRoute::Small);
        assert_eq!(decide_route(RouteMode::Auto, "browse", 351, 0), OutputRoute::Large);
        assert_eq!(decide_route(RouteMode::Auto, "browse", 345, 500), OutputRoute::Small);
        assert_eq!(decide_route(RouteMode::Auto, "browse", 340, 465), OutputRoute::Small);
        let wide = RouteThresholds { output_ratio: 0.9, total_ratio: 0.8 };
        let call = ToolCall::new("c", "browse", "{}");
        let decide = |output, rest| {
            OutputRoute::decide(
                RouteMode::Auto,
                &call,
                RouteSizes { output_tokens: output, rest_tokens: rest, window_tokens: 1_000 },
                wide,
            )
        };
        assert_eq!(
            (decide(500, 400), decide(400, 500), decide(400, 400)),
            (OutputRoute::FillsWindow, OutputRoute::Small, OutputRoute::Small)
        );
    }

    #[test]
    fn exact_output_is_never_summarized() {
        for name in [
            "read_file",
            "Grep",
            "bash",
            "shell",
            "edit",
            "list_files",
            "exec_command",
            "view",
            "git_diff",
            "session_recall",
            "odd",
        ] {
            for mode in [RouteMode::Auto, RouteMode::Always] {
                assert_eq!(decide_route(mode, name, 999, 999), OutputRoute::Exact, "{name}");
            }
        }
        assert_eq!(decide_route(RouteMode::Always, "browse", 1, 0), OutputRoute::Always);
        assert_eq!(decide_route(RouteMode::Off, "browse", 999, 999), OutputRoute::Off);
    }
}

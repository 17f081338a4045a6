//! Whether a tool's output is summarised before the agent sees it.
//!
//! Only output whose exact words do not matter is: what a read, a search or a shell gave back is what the agent acts on, and no
//! threshold changes that.

use std::fmt;
use std::str::FromStr;

use foldline::{ActionKind, Tokens, ToolAction, ToolCall};

use crate::progress::ProgressListener;
use crate::summarizer::{Summarizer, SummaryResult, SummaryTask};

/// When output is summarised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteMode {
    /// Never. No model is called.
    #[default]
    Off,
    /// When it is large, by the thresholds.
    Auto,
    /// Whenever it may be.
    Always,
}

/// The thresholds of [`Mode::Auto`], as shares of the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteThresholds {
    /// Output above this share is summarised.
    pub output_ratio: f64,
    /// So is output that brings the whole request above this share and is at least half of it.
    pub total_ratio: f64,
}

impl Default for RouteThresholds {
    /// 0.35 of the window alone; 0.8 of it together.
    fn default() -> Self {
        Self { output_ratio: 0.35, total_ratio: 0.8 }
    }
}

/// How large things are when it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSizes {
    /// The output.
    pub output_tokens: Tokens,
    /// The request without it.
    pub rest_tokens: Tokens,
    /// The window of the agent's model.
    pub window_tokens: Tokens,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutputRoute {
    /// It stays as it is: summaries are off.
    Off,
    /// It stays as it is: its exact words matter.
    Exact,
    /// It stays as it is: it is small enough.
    Small,
    /// It is summarised: by itself it takes too much of the window.
    Large,
    /// It is summarised: with it the request is too large.
    FillsWindow,
    /// It is summarised: so it was asked for.
    Always,
}

impl OutputRoute {
    /// Decides about the output of a call.
    ///
    /// ```
    /// use foldline::{Arguments, ToolCall};
    /// use foldline_summarize::{Mode, Route, Sizes, Thresholds};
    ///
    /// let call = |name: &'static str| ToolCall { id: "c".into(), name: name.into(), arguments: Arguments::Json("{}".into()) };
    /// let sizes = Sizes { output: 40_000, rest: 10_000, window: 100_000 };
    /// let decide = |mode, name| Route::of(mode, &call(name), sizes, Thresholds::default());
    /// assert_eq!(decide(Mode::Auto, "browse_page"), Route::Large);
    /// assert_eq!(decide(Mode::Off, "browse_page"), Route::Off);
    /// assert_eq!(decide(Mode::Always, "read_file"), Route::Exact);
    /// ```
    pub fn decide(mode: RouteMode, call: &ToolCall<'_>, sizes: RouteSizes, thresholds: RouteThresholds) -> Self {
        let RouteSizes { output_tokens: output, rest_tokens: rest, window_tokens: window } = sizes;
        let (output, window, total) = (output as f64, window as f64, output.saturating_add(rest) as f64);
        match mode {
            RouteMode::Off => OutputRoute::Off,
            _ if needs_exact_output(call) => OutputRoute::Exact,
            RouteMode::Always => OutputRoute::Always,
            RouteMode::Auto if output > thresholds.output_ratio * window => OutputRoute::Large,
            RouteMode::Auto if total > thresholds.total_ratio * window && output * 2.0 >= total => {
                OutputRoute::FillsWindow
            }
            RouteMode::Auto => OutputRoute::Small,
        }
    }

    /// Whether a model is called.
    pub fn is_summarized(self) -> bool {
        matches!(self, OutputRoute::Large | OutputRoute::FillsWindow | OutputRoute::Always)
    }
}

/// What a call gave back, before the agent sees it.
#[derive(Clone, Copy, Debug)]
pub struct ToolOutput<'o> {
    /// The call.
    pub call: &'o ToolCall<'o>,
    /// What it gave back.
    pub text: &'o str,
    /// What the work is about, in the user's words.
    pub goal: &'o str,
    /// Tokens of the request without it.
    pub rest_tokens: Tokens,
    /// The window of the agent's model.
    pub window_tokens: Tokens,
}

impl Summarizer {
    /// Routes what a call gave back and, if it is to be, summarises it in a sixteenth of the window. Where it is to stay
    /// as it is, no model is asked.
    pub async fn route_output(
        &self,
        output: &ToolOutput<'_>,
        mode: RouteMode,
        thresholds: RouteThresholds,
        listener: ProgressListener<'_>,
    ) -> (OutputRoute, Option<SummaryResult>) {
        let ToolOutput { call, text, goal, rest_tokens: rest, window_tokens: window } = *output;
        let sizes = RouteSizes {
            output_tokens: self.root_model().info().meter.text(text),
            rest_tokens: rest,
            window_tokens: window,
        };
        let route = OutputRoute::decide(mode, call, sizes, thresholds);
        if !route.is_summarized() {
            return (route, None);
        }
        let task = SummaryTask { text, goal, earlier_summary: None, max_tokens: window / 16 };
        (route, Some(self.summarize(&task, listener).await))
    }
}

/// Whether the exact words of a call's output matter: it reads, searches, edits or runs something.
pub fn needs_exact_output(call: &ToolCall<'_>) -> bool {
    !matches!(ToolAction::from_call(call).kind, ActionKind::Other)
}

impl FromStr for RouteMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(RouteMode::Off),
            "auto" => Ok(RouteMode::Auto),
            "always" => Ok(RouteMode::Always),
            _ => Err(format!("`{name}` is none of off, auto, always")),
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
    use foldline::CallArguments;

    use super::*;

    fn decide_route(mode: RouteMode, name: &'static str, output: Tokens, rest: Tokens) -> OutputRoute {
        let call = ToolCall { id: "c".into(), name: name.into(), arguments: CallArguments::Json("{}".into()) };
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
        let call = ToolCall { id: "c".into(), name: "browse".into(), arguments: CallArguments::Json("{}".into()) };
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
        for name in ["read_file", "Grep", "bash", "shell", "edit", "list_files", "exec_command", "view"] {
            for mode in [RouteMode::Auto, RouteMode::Always] {
                assert_eq!(decide_route(mode, name, 999, 999), OutputRoute::Exact, "{name}");
            }
        }
        assert_eq!(decide_route(RouteMode::Always, "browse", 1, 0), OutputRoute::Always);
        assert_eq!(decide_route(RouteMode::Off, "browse", 999, 999), OutputRoute::Off);
    }
}

//! Whether a tool's output is summarised before the agent sees it.
//!
//! Only output whose exact words do not matter is: what a read, a search or a shell gave back is what the agent acts on, and no
//! threshold changes that.

use std::fmt;
use std::str::FromStr;

use foldline::{ActionKind, Tokens, ToolAction, ToolCall};

use crate::progress::ProgressListener;
use crate::summarise::{Summariser, Summary, Task};

/// When output is summarised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
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
pub struct Thresholds {
    /// Output above this share is summarised.
    pub output: f64,
    /// So is output that brings the whole request above this share and is at least half of it.
    pub total: f64,
}

impl Default for Thresholds {
    /// 0.35 of the window alone; 0.8 of it together.
    fn default() -> Self {
        Self { output: 0.35, total: 0.8 }
    }
}

/// How large things are when it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The output.
    pub output: Tokens,
    /// The request without it.
    pub rest: Tokens,
    /// The window of the agent's model.
    pub window: Tokens,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// It stays as it is: summaries are off.
    Off,
    /// It stays as it is: its exact words matter.
    Exact,
    /// It stays as it is: it is small enough.
    Small,
    /// It is summarised: by itself it takes too much of the window.
    Large,
    /// It is summarised: with it the request is too large.
    Filling,
    /// It is summarised: so it was asked for.
    Asked,
}

impl Route {
    /// Decides about the output of a call.
    ///
    /// ```
    /// use foldline::{Arguments, ToolCall};
    /// use foldline_rlm::{Mode, Route, Sizes, Thresholds};
    ///
    /// let call = |name: &'static str| ToolCall { id: "c".into(), name: name.into(), arguments: Arguments::Json("{}".into()) };
    /// let sizes = Sizes { output: 40_000, rest: 10_000, window: 100_000 };
    /// let decide = |mode, name| Route::of(mode, &call(name), sizes, Thresholds::default());
    /// assert_eq!(decide(Mode::Auto, "browse_page"), Route::Large);
    /// assert_eq!(decide(Mode::Off, "browse_page"), Route::Off);
    /// assert_eq!(decide(Mode::Always, "read_file"), Route::Exact);
    /// ```
    pub fn of(mode: Mode, call: &ToolCall<'_>, sizes: Sizes, thresholds: Thresholds) -> Self {
        let Sizes { output, rest, window } = sizes;
        let (output, window, total) = (output as f64, window as f64, output.saturating_add(rest) as f64);
        match mode {
            Mode::Off => Route::Off,
            _ if is_exact(call) => Route::Exact,
            Mode::Always => Route::Asked,
            Mode::Auto if output > thresholds.output * window => Route::Large,
            Mode::Auto if total > thresholds.total * window && output * 2.0 >= total => Route::Filling,
            Mode::Auto => Route::Small,
        }
    }

    /// Whether a model is called.
    pub fn is_summarised(self) -> bool {
        matches!(self, Route::Large | Route::Filling | Route::Asked)
    }
}

/// What a call gave back, before the agent sees it.
#[derive(Clone, Copy, Debug)]
pub struct Output<'o> {
    /// The call.
    pub call: &'o ToolCall<'o>,
    /// What it gave back.
    pub text: &'o str,
    /// What the work is about, in the user's words.
    pub goal: &'o str,
    /// Tokens of the request without it.
    pub rest: Tokens,
    /// The window of the agent's model.
    pub window: Tokens,
}

impl Summariser {
    /// Routes what a call gave back and, if it is to be, summarises it in a sixteenth of the window. Where it is to stay
    /// as it is, no model is asked.
    pub async fn route(
        &self,
        output: &Output<'_>,
        mode: Mode,
        thresholds: Thresholds,
        listener: ProgressListener<'_>,
    ) -> (Route, Option<Summary>) {
        let Output { call, text, goal, rest, window } = *output;
        let sizes = Sizes { output: self.root().traits().meter.text(text), rest, window };
        let route = Route::of(mode, call, sizes, thresholds);
        if !route.is_summarised() {
            return (route, None);
        }
        let task = Task { text, goal, earlier: None, at_most: window / 16 };
        (route, Some(self.summarise(&task, listener).await))
    }
}

/// Whether the exact words of a call's output matter: it reads, searches, edits or runs something.
pub fn is_exact(call: &ToolCall<'_>) -> bool {
    !matches!(ToolAction::from_call(call).kind, ActionKind::Other)
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(Mode::Off),
            "auto" => Ok(Mode::Auto),
            "always" => Ok(Mode::Always),
            _ => Err(format!("`{name}` is none of off, auto, always")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Off => "off",
            Mode::Auto => "auto",
            Mode::Always => "always",
        })
    }
}

#[cfg(test)]
mod tests {
    use foldline::CallArguments;

    use super::*;

    fn decide(mode: Mode, name: &'static str, output: Tokens, rest: Tokens) -> Route {
        let call = ToolCall { id: "c".into(), name: name.into(), arguments: CallArguments::Json("{}".into()) };
        Route::of(mode, &call, Sizes { output, rest, window: 1_000 }, Thresholds::default())
    }

    #[test]
    fn thresholds_are_shares_of_the_window() {
        assert_eq!(decide(Mode::Auto, "browse", 350, 0), Route::Small);
        assert_eq!(decide(Mode::Auto, "browse", 351, 0), Route::Large);
        assert_eq!(decide(Mode::Auto, "browse", 345, 500), Route::Small);
        assert_eq!(decide(Mode::Auto, "browse", 340, 465), Route::Small);
        let wide = Thresholds { output: 0.9, total: 0.8 };
        let call = ToolCall { id: "c".into(), name: "browse".into(), arguments: CallArguments::Json("{}".into()) };
        let decide = |output, rest| Route::of(Mode::Auto, &call, Sizes { output, rest, window: 1_000 }, wide);
        assert_eq!(
            (decide(500, 400), decide(400, 500), decide(400, 400)),
            (Route::Filling, Route::Small, Route::Small)
        );
    }

    #[test]
    fn exact_content_is_never_summarised() {
        for name in ["read_file", "Grep", "bash", "shell", "edit", "list_files", "exec_command", "view"] {
            for mode in [Mode::Auto, Mode::Always] {
                assert_eq!(decide(mode, name, 999, 999), Route::Exact, "{name}");
            }
        }
        assert_eq!(decide(Mode::Always, "browse", 1, 0), Route::Asked);
        assert_eq!(decide(Mode::Off, "browse", 999, 999), Route::Off);
    }
}

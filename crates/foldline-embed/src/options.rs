//! The options of a session or a fold, as a binding receives them: names and numbers.

use std::path::PathBuf;

use foldline::conversation::ToolDefinition;
use foldline::engine::PinRules;
use foldline::laws::LawProfile;
use foldline::models::PriceTable;
use foldline::tokens::{Budget, Tokens};
use foldline::wire::{Format, Request};
use foldline::{Conversation, FoldOptions, Meter, ModelTable, Part, Prices};
use foldline_archive::{Archive, Namespace, TenantArchive};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::EmbedError;

/// The options of a session or a fold. Everything may be missing.
///
/// ```
/// use foldline_embed::SessionOptions;
///
/// let options = SessionOptions::from_json(r#"{"model":"gpt-4o","budget":32000,"policy":"tight"}"#)?;
/// assert_eq!(options.budget, Some(32_000));
/// SessionOptions::from_json(r#"{"bugdet":32000}"#).unwrap_err();
/// # Ok::<(), foldline_embed::EmbedError>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionOptions {
    /// Dialect of the messages.
    pub format: Option<String>,
    /// Model for which tokens are counted and priced.
    pub model: Option<String>,
    /// Maximum tokens of a request.
    pub budget: Option<Tokens>,
    /// Window of the model if it differs from the built-in table; used without a budget.
    pub window: Option<Tokens>,
    /// Tokens reserved for the answer; used without a budget.
    pub max_output_tokens: Option<Tokens>,
    /// Name of the policy.
    pub policy: Option<String>,
    /// Name of a price table.
    pub prices: Option<String>,
    /// Declared tools, a JSON list.
    pub tools: Option<Box<RawValue>>,
    /// Instructions outside the messages, JSON.
    pub system: Option<Box<RawValue>>,
    /// Tools whose results and arguments are never folded.
    pub pin_tools: Vec<String>,
    /// Targets of calls that are never folded.
    pub pin_targets: Vec<String>,
    /// The store of originals.
    pub archive: ArchiveChoice,
}

/// The archive of a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArchiveChoice {
    /// Path of the archive; originals stay in memory without one.
    pub path: Option<PathBuf>,
    /// Namespace in the archive.
    pub namespace: Option<String>,
    /// Name of the session in the archive.
    pub session: Option<String>,
}

impl ArchiveChoice {
    /// Opens the archive, if there is a path.
    pub(crate) fn open(&self) -> Result<Option<TenantArchive>, EmbedError> {
        let Some(path) = &self.path else { return Ok(None) };
        let namespace = self.namespace.as_ref().map_or_else(|| Ok(Namespace::local()), Namespace::new)?;
        let tenant = Archive::open(path)?.tenant(&namespace);
        Ok(Some(match &self.session {
            Some(name) => tenant.in_session(name),
            None => tenant,
        }))
    }
}

/// Parses the name of a dialect.
pub(crate) fn parse_format(name: &str) -> Result<Format, EmbedError> {
    let names = || Format::all().map(Format::name).collect::<Vec<_>>().join(", ");
    Format::all()
        .find(|format| format.name() == name)
        .ok_or_else(|| EmbedError::invalid(format_args!("unknown format {name:?}; known are {}", names())))
}

impl SessionOptions {
    /// Parses options from a JSON object.
    ///
    /// # Errors
    ///
    /// If a field is unknown or has another type.
    pub fn from_json(json: &str) -> Result<Self, EmbedError> {
        serde_json::from_str(json).map_err(|error| EmbedError::invalid(format_args!("bad options: {error}")))
    }

    /// Returns the dialect; Chat Completions if none is set.
    pub(crate) fn dialect(&self) -> Result<Format, EmbedError> {
        self.format.as_deref().map_or(Ok(Format::OpenAiChat), parse_format)
    }

    /// Returns the options of the engine.
    pub(crate) fn fold_options(&self, format: Format, model: Option<&str>) -> Result<FoldOptions, EmbedError> {
        let table = ModelTable::builtin();
        let model = self.model.as_deref().or(model);
        let meter = Meter::for_model(table, model);
        let prices = match &self.prices {
            Some(name) => PriceTable::builtin()
                .get(name)
                .ok_or_else(|| EmbedError::invalid(format_args!("unknown price table {name:?}")))?,
            None => Prices::for_model(table, model),
        };
        let mut row = meter.row().clone();
        if let Some(window) = self.window {
            (row.window, row.max_input) = (window, None);
        }
        let default_budget = || Budget::for_model(&row, self.max_output_tokens, &meter).tokens;
        let budget = self.budget.unwrap_or_else(default_budget);
        let profile = LawProfile::for_model(format, model);
        let mut options = FoldOptions::new(meter, prices, budget).with_rules(&profile);
        if let Some(policy) = &self.policy {
            options.policy = policy.parse().map_err(EmbedError::invalid)?;
        }
        options.handles = true;
        options.pins =
            PinRules { tools: self.pin_tools.clone(), targets: self.pin_targets.clone(), ..PinRules::default() };
        Ok(options)
    }

    /// Returns the tokens of a request besides its messages: system, tools and request overhead.
    pub(crate) fn overhead_tokens(&self, format: Format, options: &FoldOptions) -> Result<Tokens, EmbedError> {
        let overhead = overhead_conversation(format, self.tools.as_deref(), self.system.as_deref())?;
        Ok(options.clone().with_overhead_of(&overhead).overhead_tokens)
    }
}

/// Returns a conversation of only a system prompt and tools, as they count in a dialect.
pub(crate) fn overhead_conversation(
    format: Format,
    tools: Option<&RawValue>,
    system: Option<&RawValue>,
) -> Result<Conversation<'static>, EmbedError> {
    let tools = tools.map_or("[]", RawValue::get);
    // Each dialect reads its own list of messages and ignores the others.
    let lists = r#""messages":[],"input":[],"contents":[]"#;
    let body = match format {
        Format::Converse => format!(r#"{{"toolConfig":{{"tools":{tools}}},{lists}}}"#),
        _ => format!(r#"{{"tools":{tools},{lists}}}"#),
    };
    let request = Request::parse(format, body.as_bytes())?;
    let text = |system: &RawValue| match serde_json::from_str::<String>(system.get()) {
        Ok(text) => text,
        Err(_) => system.get().to_owned(),
    };
    let tools = request.conversation().tools.iter().map(|tool| ToolDefinition {
        name: tool.name.to_string().into(),
        definition: tool.definition.to_string().into(),
    });
    let system = system.map(|system| Part::text(text(system))).into_iter().collect();
    Ok(Conversation { tools: tools.collect(), system, ..Conversation::default() })
}

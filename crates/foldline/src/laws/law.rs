//! The one table of named laws: what each says, and who has it.
//!
//! A law is an idea, such as "every call is answered". The dialects, servers and models that hold to it
//! are its homes, each with the id under which `docs/reference/laws.md` describes it there. Nothing is
//! checked in this file.

use std::fmt;

use super::ServerKind;
use crate::wire::Format;
use Format::{Anthropic, OpenAiChat as Chat, OpenAiResponses as Responses};

/// What a law is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LawTopic {
    /// Calls and their results.
    Pairing,
    /// Who speaks after whom.
    Roles,
    /// Texts that may not be empty or too long.
    Text,
    /// Thinking, reasoning items and their seals.
    Reasoning,
    /// Declared tools and the choice among them.
    Tools,
    /// What calls are made with.
    Arguments,
    /// `cache_control` and its like.
    CacheBreakpoints,
    /// Pictures, and the size of the whole.
    Media,
    /// What a rewritten request owes to the client's.
    RewrittenRequest,
}

/// Where a law holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LawScope {
    /// In every request of the dialect.
    Format(Format),
    /// In requests of the dialect to OpenAI's own models.
    OpenAi(Format),
    /// In requests of the dialect to models whose row in the table of models names the id.
    Model(Format),
    /// In requests of the dialect to models that sign history.
    SignedHistory(Format),
    /// In requests of the dialect to this server.
    Server(ServerKind, Format),
    /// Between the client's request and ours.
    RewrittenRequest(Format),
}

pub(crate) struct LawEntry {
    pub(crate) law: Law,
    pub(crate) name: &'static str,
    pub(crate) topic: LawTopic,
    pub(crate) scopes: &'static [(LawScope, &'static str)],
    pub(crate) rule: &'static str,
}

macro_rules! laws {
    ($($law:ident $topic:ident [$($home:expr => $id:literal),+ $(,)?] $name:literal: $rule:literal)+) => {
        /// A provider's rule. The table in `docs/reference/laws.md` lists them all.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Law {
            $(#[doc = $rule] $law,)+
        }

        pub(crate) static LAW_TABLE: &[LawEntry] = &[
            $(LawEntry { law: Law::$law, name: $name, topic: LawTopic::$topic, scopes: &[$(($home, $id)),+], rule: $rule },)+
        ];
    };
}

use LawScope::{Format as In, Model, OpenAi, RewrittenRequest, Server as At, SignedHistory};
use ServerKind::{ChatTemplate, LlamaCpp, Mistral, Vllm};

laws! {
    CallAnswered Pairing [In(Anthropic) => "A1.1", In(Chat) => "C1.1", In(Responses) => "R1.1"]
    "call-answered":
    "Every tool call has a result: in the next user turn (Anthropic), in the tool messages right behind it (Chat), anywhere behind it (Responses)."

    ResultHasCall Pairing [In(Anthropic) => "A1.2", In(Chat) => "C1.2", In(Responses) => "R1.1"]
    "result-has-call":
    "Every tool result answers a call: one of the turn before (Anthropic), one of the message before the tool messages (Chat), any one (Responses)."

    OneResult Pairing [In(Anthropic) => "A1.5", In(Chat) => "C1.3", In(Responses) => "R1.1"]
    "one-result":
    "A call has one result, not two."

    ResultsFirst Pairing [In(Anthropic) => "A1.4"]
    "results-first":
    "In a user turn that answers calls the results come first, text and images behind them."

    ResultAfterCall Pairing [In(Responses) => "R1.2"]
    "result-behind-call":
    "An output stands behind its call."

    CallIdUnique Pairing [In(Anthropic) => "A1.6", In(Chat) => "C1.3"]
    "call-id-unique":
    "No two calls of the request (Anthropic), or of one message (Chat), share an id."

    CallIdCharacters Pairing [In(Anthropic) => "A1.7"]
    "call-id-letters":
    "The id of a call is made of ASCII letters, digits, `_` and `-`, at least one."

    CallIdLength Pairing [OpenAi(Chat) => "C1.4", In(Responses) => "R1.3"]
    "call-id-length":
    "The id of a call has at most 40 characters (Chat), or 1 to 64 (Responses)."

    CallIdNineCharacters Pairing [At(Mistral, Chat) => "L2"]
    "call-id-nine":
    "The id of a call is nine ASCII letters and digits."

    CallIdSuffixUnique Pairing [At(Vllm, Chat) => "L3"]
    "call-id-tail":
    "For Mistral's tokenizers the server keeps the last nine characters of an id, so they must differ."

    CallRole Pairing [In(Anthropic) => "A1.8"]
    "call-side":
    "`tool_use` stands in assistant messages only, `tool_result` in user messages only."

    ResultContent Pairing [In(Anthropic) => "A1.9", In(Chat) => "C1.6", In(Responses) => "R1.3"]
    "result-content":
    "A result holds what its format allows: text, image, document, search result, tool reference (Anthropic); a string or at least one text part (Chat); a string, or text, image and file parts (Responses)."

    ResultTextOnly Pairing [At(LlamaCpp, Responses) => "L1.4", At(ChatTemplate, Responses) => "L1.4"]
    "result-text-only":
    "A result given as a list holds text parts alone."

    ToolsetEchoed Pairing [In(Anthropic) => "A1.10"]
    "toolset-echoed":
    "The result of a call with a `toolset_name` carries the same name, and holds only text, images and one browser state."

    ProgrammaticResult Pairing [In(Anthropic) => "A1.11"]
    "programmatic-result":
    "The message that answers a call made by code holds results alone, and they hold text alone."

    ServerPair Pairing [In(Anthropic) => "A1.12"]
    "server-pair":
    "The call of a server or MCP tool and its result stand in assistant messages, call first; only the newest turn may have a call without result."

    ServerPending Pairing [In(Anthropic) => "A1.13"]
    "server-pending":
    "While a server tool's call is pending the user message behind it holds results alone."

    NoServerCallResult Pairing [In(Anthropic) => "A1.15"]
    "server-call-unanswered":
    "The client sends no `tool_result` for a server tool's call (`srvtoolu_`)."

    ReferenceDeclared Tools [In(Anthropic) => "A1.16"]
    "reference-declared":
    "A `tool_reference` names a declared tool."

    NoCallBeforeFallback Pairing [In(Anthropic) => "A1.18"]
    "no-call-before-fallback":
    "No client tool call stands before the last `fallback` block of its message."

    ApprovalPair Pairing [In(Responses) => "R4.1"]
    "approval-pair":
    "An answer to an MCP approval request stands behind the request."

    MessagesNotEmpty Roles [In(Anthropic) => "A2.5", In(Chat) => "C2.1"]
    "some-message":
    "There is at least one message."

    FirstIsUser Roles [In(Anthropic) => "A2.1", At(ChatTemplate, Chat) => "L1.1", At(Mistral, Chat) => "L2"]
    "first-is-user":
    "The first message is the user's (on chat templates: behind the system message)."

    KnownRole Roles [In(Anthropic) => "A2.2", In(Chat) => "C2.1", In(Responses) => "R2.1"]
    "known-role":
    "Every message has a role of its format."

    NoPrefill Roles [Model(Anthropic) => "A2.3"]
    "no-prefill":
    "The conversation does not end with an assistant message (unless a server tool's call in it is pending)."

    NoPrefillWithThinking Roles [In(Anthropic) => "A2.3"]
    "no-prefill-with-thinking":
    "While thinking is on the conversation does not end with an assistant message (unless a server tool's call in it is pending)."

    FinalTextTrimmed Roles [In(Anthropic) => "A2.4"]
    "final-text-trimmed":
    "A final assistant text does not end in white space."

    NoSystemMessage Roles [Model(Anthropic) => "A2.7"]
    "no-system-inside":
    "No message has the role `system`; instructions stand in the field `system`."

    SystemMessagePosition Roles [In(Anthropic) => "A2.7"]
    "system-inside-place":
    "A `system` message is not first, follows a user turn or a server tool's result, and is last or followed by the assistant."

    SystemFirst Roles [At(ChatTemplate, Chat) => "L1.1"]
    "system-first":
    "There is one system message at most, and it is first."

    Alternation Roles [At(ChatTemplate, Chat) => "L1.1"]
    "alternation":
    "User and assistant alternate, apart from calls and results."

    HasUserText Roles [At(ChatTemplate, Chat) => "L1.1"]
    "some-user-text":
    "At least one user message has text."

    LastRole Roles [At(Mistral, Chat) => "L2"]
    "last-role":
    "The last message is a user's or a tool's, or an assistant's marked as a prefix."

    NoUserAfterTool Roles [At(Mistral, Chat) => "L2"]
    "no-user-after-tool":
    "No user message stands right behind a tool message."

    OneAssistantAtEnd Roles [At(LlamaCpp, Chat) => "L1.2", At(ChatTemplate, Chat) => "L1.2"]
    "one-assistant-at-end":
    "At most one assistant message stands at the end."

    HasContent Text [In(Anthropic) => "A2.5", In(Chat) => "C1.7", At(LlamaCpp, Chat) => "L1.2", RewrittenRequest(Responses) => "P4"]
    "has-content":
    "Every message has content; an assistant message may lack it when it has calls (Chat) or is the last (Anthropic)."

    TextNotBlank Text [In(Anthropic) => "A2.6", RewrittenRequest(Chat) => "P4", RewrittenRequest(Responses) => "P4"]
    "text-not-blank":
    "No text block is empty or white space alone."

    TextLength Text [OpenAi(Chat) => "C9.1", OpenAi(Responses) => "R1.3"]
    "text-length":
    "A text has at most 1,048,576 characters (Chat), an output at most 10,485,760 (Responses)."

    CallsNotEmpty Text [In(Chat) => "C1.5"]
    "calls-not-empty":
    "`tool_calls` is absent or has an element."

    CallsPerMessage Text [OpenAi(Chat) => "C1.5"]
    "calls-per-message":
    "A message has at most 128 calls."

    ThinkingSigned Reasoning [In(Anthropic) => "A3.3"]
    "thinking-sealed":
    "A thinking block carries its signature, a redacted one its data."

    ThinkingFirst Reasoning [In(Anthropic) => "A3.4"]
    "thinking-first":
    "In manual mode an unfinished turn with tool calls begins with thinking."

    ClearThinkingFirst Reasoning [In(Anthropic) => "A3.5"]
    "clear-thinking-first":
    "Among the edits of `context_management` the clearing of thinking comes first."

    BindingNeedsThinking Reasoning [In(Anthropic) => "A3.9"]
    "binding-needs-thinking":
    "`thinking.block_binding` is set only when thinking is adaptive or enabled."

    NoManualThinking Reasoning [Model(Anthropic) => "A3.12a"]
    "no-manual-thinking":
    "The model does not take `thinking.type` `enabled`."

    NoAdaptiveThinking Reasoning [Model(Anthropic) => "A3.12b"]
    "no-adaptive-thinking":
    "The model does not take `thinking.type` `adaptive`."

    NoDisabledThinking Reasoning [Model(Anthropic) => "A3.12c"]
    "no-disabled-thinking":
    "The model does not take `thinking.type` `disabled`."

    NoForcedToolWithThinking Tools [In(Anthropic) => "A3.13a"]
    "no-force-with-thinking":
    "In manual thinking `tool_choice` forces no tool."

    NoForcedTool Tools [Model(Anthropic) => "A3.13b"]
    "no-force":
    "The model takes no `tool_choice` that forces a tool."

    ReasoningReturned Reasoning [Model(Chat) => "C3.1a"]
    "reasoning-back":
    "Once a message with calls carries its reasoning, all of them do."

    ThoughtSignature Reasoning [Model(Chat) => "C3.1b"]
    "thought-signature":
    "Every message with calls since the last user message carries its thought signature."

    ReasoningFollowed Reasoning [In(Responses) => "R3.1"]
    "reasoning-followed":
    "A reasoning item with an id is followed by an item of the same answer."

    ReasoningEncrypted Reasoning [In(Responses) => "R3.2"]
    "reasoning-sealed":
    "With `store: false` a reasoning item that has an id has its encrypted content too."

    ReasoningSummary Reasoning [OpenAi(Responses) => "R3.4"]
    "reasoning-summary":
    "A reasoning item has a `summary`, which may be an empty list."

    ReasoningWithoutContent Reasoning [OpenAi(Responses) => "R3.4"]
    "reasoning-without-content":
    "The `content` of a reasoning item is absent or empty."

    ReasoningWithContent Reasoning [At(LlamaCpp, Responses) => "L1.4", At(ChatTemplate, Responses) => "L1.4"]
    "reasoning-with-content":
    "The `content` of a reasoning item holds a text that is not empty."

    CompactionEncrypted Reasoning [In(Responses) => "R3.6"]
    "compaction-sealed":
    "A compaction item has its encrypted content, of at most 20 MB."

    NoPreviousResponse Roles [At(LlamaCpp, Responses) => "L1.4", At(ChatTemplate, Responses) => "L1.4"]
    "no-previous-response":
    "The server keeps no history, so `previous_response_id` is not set."

    ItemIdForm Pairing [OpenAi(Responses) => "R1.4"]
    "item-id-form":
    "The id of an item has its kind's prefix (`fc`, `ctc`, `rs`, `msg`) and at most 64 characters."

    ItemIdUnique Pairing [In(Responses) => "R1.4"]
    "item-id-unique":
    "No two items share an id."

    ToolsDeclared Tools [In(Anthropic) => "A4.1"]
    "tools-declared":
    "A request with tool calls or results declares tools."

    ToolName Tools [In(Anthropic) => "A4.2", OpenAi(Chat) => "C4.2", At(Mistral, Chat) => "L2"]
    "tool-name":
    "The name of a tool is 1 to 64 (Anthropic: 128) ASCII letters, digits, `_` and `-`."

    ToolNameUnique Tools [In(Anthropic) => "A4.2"]
    "tool-name-unique":
    "No two tools share a name."

    ToolsNotEmpty Tools [OpenAi(Chat) => "C4.2", At(Vllm, Chat) => "L3"]
    "tools-not-empty":
    "`tools` is absent or has an element."

    SomeToolLoaded Tools [In(Anthropic) => "A4.3"]
    "some-tool-at-hand":
    "At least one tool is not deferred, and at most 10,000 are."

    ToolCount Tools [OpenAi(Chat) => "C4.2"]
    "tool-count":
    "At most 128 tools are declared."

    ChoiceNeedsTools Tools [OpenAi(Chat) => "C4.3", At(Vllm, Chat) => "L3"]
    "choice-needs-tools":
    "`tool_choice` and `parallel_tool_calls` are set only with `tools`."

    ChoiceDeclared Tools [OpenAi(Chat) => "C4.3", At(Vllm, Chat) => "L3"]
    "choice-declared":
    "The tool that `tool_choice` names is declared."

    StrictSchema Tools [OpenAi(Chat) => "C4.4", OpenAi(Responses) => "C4.4"]
    "strict-schema":
    "In the schema of a strict tool every object forbids additional properties and requires all its own."

    FunctionNamed Tools [In(Responses) => "R4.1"]
    "function-named":
    "A function tool has a name."

    ArgumentsObject Arguments [In(Anthropic) => "A5.1", At(Vllm, Chat) => "L3", At(LlamaCpp, Chat) => "C5.1", At(ChatTemplate, Chat) => "C5.1", RewrittenRequest(Chat) => "P5", RewrittenRequest(Responses) => "P5"]
    "arguments-object":
    "The arguments of a call are a JSON object."

    ArgumentsString Arguments [In(Chat) => "C5.1", In(Responses) => "R5.1"]
    "arguments-text":
    "The arguments of a call are a string (that holds JSON)."

    FunctionCallsOnly Arguments [At(Vllm, Chat) => "L3"]
    "function-calls-only":
    "Every call is of type `function`."

    CacheBreakpointCount CacheBreakpoints [In(Anthropic) => "A6.1"]
    "cache-mark-count":
    "At most four blocks carry `cache_control`, one at the top of the request counted."

    CacheBreakpointOrder CacheBreakpoints [In(Anthropic) => "A6.2"]
    "cache-mark-order":
    "In the order tools, system, messages no mark of an hour comes behind one of five minutes."

    CacheBreakpointPosition CacheBreakpoints [In(Anthropic) => "A6.3"]
    "cache-mark-place":
    "`cache_control` stands on a tool or a block, not on thinking, an empty text, a part of a block or a turn-scoped system message."

    CacheTtl CacheBreakpoints [OpenAi(Chat) => "C6.1", OpenAi(Responses) => "R6.1"]
    "cache-life":
    "`prompt_cache_options.ttl` is `30m`."

    ImageCount Media [In(Anthropic) => "A7.1", OpenAi(Chat) => "C7.1", OpenAi(Responses) => "C7.1"]
    "image-count":
    "At most 600 images (100 where the window is 200,000 tokens), or 1,500 (OpenAI)."

    ImageBytes Media [In(Anthropic) => "A7.1"]
    "image-bytes":
    "An image has at most 10 MB of base64."

    ImagePixels Media [In(Anthropic) => "A7.1"]
    "image-pixels":
    "No side of an image is longer than 8,000 pixels, or 2,000 when there are more than 20 images."

    ImageKind Media [In(Anthropic) => "A7.1"]
    "image-kind":
    "An image in the request is JPEG, PNG, GIF or WebP."

    PartKind Media [At(LlamaCpp, Chat) => "L1.2", At(ChatTemplate, Chat) => "L1.2"]
    "part-kind":
    "A message holds text, images, audio and video alone."

    MessageCount Media [In(Anthropic) => "A8.3"]
    "message-count":
    "There are at most 100,000 messages."

    BodySize Media [In(Anthropic) => "A8.3", OpenAi(Chat) => "C7.1", OpenAi(Responses) => "C7.1"]
    "body-size":
    "The body has at most 32 MB (Anthropic) or 512 MB (OpenAI)."

    LastMessageKept RewrittenRequest [RewrittenRequest(Anthropic) => "P1", RewrittenRequest(Chat) => "P1", RewrittenRequest(Responses) => "P1"]
    "last-message-kept":
    "The last message is the client's, byte for byte."

    IdsKept RewrittenRequest [RewrittenRequest(Anthropic) => "P5", RewrittenRequest(Chat) => "P5", RewrittenRequest(Responses) => "P5"]
    "ids-kept":
    "Every id of a call or a result is the client's (or that of a call of ours)."

    NewestTurnKept RewrittenRequest [RewrittenRequest(Anthropic) => "P6", RewrittenRequest(Chat) => "P6", RewrittenRequest(Responses) => "P6"]
    "newest-turn-kept":
    "The newest assistant turn and all behind it are the client's, byte for byte or without all their thinking."

    ReasoningKept RewrittenRequest [RewrittenRequest(Anthropic) => "P7", RewrittenRequest(Chat) => "P7", RewrittenRequest(Responses) => "P7"]
    "reasoning-kept":
    "Reasoning is the client's, unchanged and in order."

    ReasoningContiguous RewrittenRequest [SignedHistory(Anthropic) => "P7"]
    "reasoning-run":
    "What thinking is kept is one unbroken run of the client's."

    ReasoningAfterEdit RewrittenRequest [SignedHistory(Anthropic) => "P7"]
    "reasoning-bound":
    "No thinking stands behind an edit that it did not see."

    CallReasoningKept RewrittenRequest [Model(Chat) => "C3.1a"]
    "reasoning-with-calls":
    "A message with calls keeps the reasoning that the client sent with it."

    NoMergedThinking RewrittenRequest [RewrittenRequest(Anthropic) => "A2.2"]
    "no-merged-thinking":
    "Two assistant messages that the client kept apart do not meet when one has thinking."

    ToolsKept RewrittenRequest [RewrittenRequest(Anthropic) => "P8", RewrittenRequest(Chat) => "P8", RewrittenRequest(Responses) => "P8"]
    "tools-kept":
    "The tools are the client's, with ours behind them if there is one."

    OpaqueKept RewrittenRequest [RewrittenRequest(Anthropic) => "P10", RewrittenRequest(Chat) => "P10", RewrittenRequest(Responses) => "P10"]
    "opaque-kept":
    "Blocks of server tools, MCP, compaction, fallback and all that is unknown are the client's, byte for byte and in order."

    ReasoningPairKept RewrittenRequest [RewrittenRequest(Responses) => "P11"]
    "atom-whole":
    "A reasoning item with an id and the item behind it are both kept or both gone."
}

/// Rules that one can not see from a request, and why.
pub(crate) static UNCHECKED_RULES: &[(&str, &str)] = &[
    (
        "A1.3",
        "Results spread over several user messages are accepted and merged; that they lower the use of parallel calls is no refusal.",
    ),
    (
        "A1.14",
        "That encrypted search results come back unchanged needs the original: `opaque-kept` compares with the client's request.",
    ),
    (
        "A1.17",
        "What stands before a compaction block is ignored by the server, so that there is no wrong; `opaque-kept` keeps the block.",
    ),
    (
        "A3.1, A3.2",
        "That thinking is complete and unedited needs the original: `reasoning-kept` and `newest-turn-kept` compare with the client's request.",
    ),
    (
        "A3.6 to A3.8",
        "What thinking is bound to needs the memory of what was sent: `reasoning-run` and `reasoning-bound` compare with the client's request.",
    ),
    ("A3.10", "Rules for headers and error bodies of a proxy."),
    ("A3.11", "Which model and account thought a thought is sealed in it."),
    ("A3.14", "A loss of progress notes, no refusal."),
    ("A4.4", "Whether a tool was there from the first request on is known to the session."),
    ("A4.5, A5.2", "Whether examples fit a schema is the client's concern; arguments have no size limit of their own."),
    ("A6.4 to A6.8", "Prices and lifetimes of caches: a miss costs money and is no refusal."),
    ("A7.2, A8.1, A8.2", "Counts of tokens: see the table of models."),
    ("A7.3", "The pages of a PDF can not be counted without reading it."),
    (
        "A9",
        "Threads: the history is at the provider. Such requests are exempt from laws on pairs and on the first message.",
    ),
    ("C3.1", "Z.ai and Qwen answer worse without old reasoning, and refuse nothing."),
    ("C4.1", "Tools of the history need not be declared."),
    ("C8.1", "Counts of tokens: see the table of models."),
    (
        "R1.5",
        "With a previous response, a conversation or item references the history is at the provider. Such requests are exempt from laws on pairs.",
    ),
    (
        "R3.1",
        "That an item lacks the reasoning which it came with can be seen only beside the client's request: `atom-whole`.",
    ),
    ("R3.3", "Encrypted reasoning is opaque."),
    ("R3.5", "Dropped old reasoning loses context and is no refusal."),
    ("R9.1", "No limit is known."),
    (
        "L1.1",
        "Whether a template takes only one call at a time, or resolvable names of tools, is written in the template.",
    ),
    ("L1.3", "Whether a server was started for tools is known to the server."),
    ("L1.5", "Signatures are ignored by llama.cpp."),
    (
        "L2",
        "Content beside calls was refused before version 5 of the tokenizer, pictures in results before version 15: the version is not in the request.",
    ),
    ("L4", "Ollama cuts what does not fit from the front, silently."),
    (
        "P2, P3, P9",
        "These are the laws of the format, checked again on the rewritten request; what the client broke itself is not held against the rewriting.",
    ),
    (
        "P12, P13",
        "Same input, same bytes; and what to do when a provider refuses: promises of the engine and of the proxy.",
    ),
];

impl Law {
    /// All laws, in the order of the reference.
    pub fn all() -> impl Iterator<Item = Law> {
        LAW_TABLE.iter().map(|entry| entry.law)
    }

    fn entry(self) -> &'static LawEntry {
        &LAW_TABLE[self as usize]
    }

    /// A short name, such as `call-answered`.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// What it says, in one sentence.
    pub fn rule(self) -> &'static str {
        self.entry().rule
    }

    /// What it is about.
    pub fn topic(self) -> LawTopic {
        self.entry().topic
    }

    /// The id under which the reference describes it for a format, if the format has it.
    pub fn id(self, format: Format) -> Option<&'static str> {
        let of = |home: &LawScope| match home {
            LawScope::Format(of) | LawScope::OpenAi(of) | LawScope::Model(of) => *of == format,
            LawScope::SignedHistory(of) | LawScope::Server(_, of) | LawScope::RewrittenRequest(of) => *of == format,
        };
        self.entry().scopes.iter().find(|(home, _)| of(home)).map(|(_, id)| *id)
    }

    /// The ids under which the reference describes it: one for each format, server or kind of model
    /// that has it.
    pub fn ids(self) -> impl Iterator<Item = &'static str> {
        let homes = self.entry().scopes;
        homes
            .iter()
            .enumerate()
            .filter(|(at, (_, id))| !homes[..*at].iter().any(|(_, other)| other == id))
            .map(|(_, (_, id))| *id)
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for LawScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dialect = |format: &Format| match format {
            Anthropic => "Anthropic",
            Chat => "Chat",
            Responses => "Responses",
        };
        match self {
            LawScope::Format(format) => write!(f, "{}", dialect(format)),
            LawScope::OpenAi(format) => write!(f, "{}, models of OpenAI", dialect(format)),
            LawScope::Model(format) => write!(f, "{}, some models", dialect(format)),
            LawScope::SignedHistory(format) => write!(f, "{}, rewritten, models that sign history", dialect(format)),
            LawScope::Server(server, format) => write!(f, "{}, {server}", dialect(format)),
            LawScope::RewrittenRequest(format) => write!(f, "{}, rewritten", dialect(format)),
        }
    }
}

//! The one table of named laws: the rule of each and the scopes in which it applies.
//!
//! A law is a rule such as "every call is answered". Its scopes are the dialects, servers and models
//! that enforce it, each with the id under which `docs/reference/laws.md` describes it. Nothing is
//! checked in this file.

use std::fmt;

use crate::laws::server_kind::ServerKind;
use crate::wire::Format;
use Format::{Anthropic, Converse, Gemini, Ollama, OpenAiChat as Chat, OpenAiResponses as Responses};

/// The topic of a law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LawTopic {
    /// Calls and their results.
    Pairing,
    /// Roles and their order.
    Roles,
    /// Texts that must not be empty or too long.
    Text,
    /// Thinking, reasoning items and their signatures.
    Reasoning,
    /// Declared tools and the tool choice.
    Tools,
    /// Arguments of calls.
    Arguments,
    /// `cache_control` and similar fields.
    CacheBreakpoints,
    /// Images, and the size of the request.
    Media,
    /// Fields and blocks that a version of the API rejects.
    ApiVersion,
    /// Parts of the client's request that a rewritten request must keep.
    RewrittenRequest,
}

/// The requests to which a law applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LawScope {
    /// Every request of the dialect.
    Format(Format),
    /// Requests of the dialect to OpenAI's own models.
    OpenAi(Format),
    /// Requests of the dialect to models whose row in the model table lists the id.
    Model(Format),
    /// Requests of the dialect to models that sign history.
    SignedHistory(Format),
    /// Requests of the dialect to this server.
    Server(ServerKind, Format),
    /// Requests of the dialect with this version of the API or a later one.
    ApiVersion(Format, &'static str),
    /// Rewritten requests, compared with the client's.
    RewrittenRequest(Format),
}

/// One row of the table.
pub(crate) struct LawEntry {
    pub(crate) law: Law,
    pub(crate) name: &'static str,
    pub(crate) topic: LawTopic,
    pub(crate) scopes: &'static [(LawScope, &'static str)],
    pub(crate) rule: &'static str,
}

macro_rules! laws {
    ($($law:ident $topic:ident [$($scope:expr => $id:literal),+ $(,)?] $name:literal: $rule:literal)+) => {
        /// A provider's rule. The table in `docs/reference/laws.md` lists them all.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Law {
            $(#[doc = $rule] $law,)+
        }

        pub(crate) static LAW_TABLE: &[LawEntry] = &[
            $(LawEntry { law: Law::$law, name: $name, topic: LawTopic::$topic, scopes: &[$(($scope, $id)),+], rule: $rule },)+
        ];
    };
}

use LawScope::{ApiVersion, Format as In, Model, OpenAi, RewrittenRequest, Server as At, SignedHistory};
use ServerKind::{ChatTemplate, LlamaCpp, Mistral, Vllm};

laws! {
    CallAnswered Pairing [In(Anthropic) => "A1.1", In(Chat) => "C1.1", In(Responses) => "R1.1", In(Gemini) => "G1.1", In(Ollama) => "O1.1", In(Converse) => "B1.1"]
    "call-answered":
    "Every tool call has a result: in the next user turn (Anthropic, Gemini, Converse), in the tool messages directly after it (Chat, Ollama), anywhere after it (Responses)."

    ResultHasCall Pairing [In(Anthropic) => "A1.2", In(Chat) => "C1.2", In(Responses) => "R1.1", In(Gemini) => "G1.3", In(Ollama) => "O1.2", In(Converse) => "B1.2"]
    "result-has-call":
    "Every tool result answers a call: of the previous turn (Anthropic, Gemini, Converse), of the message before the tool messages (Chat, Ollama), any call (Responses)."

    OneResult Pairing [In(Anthropic) => "A1.5", In(Chat) => "C1.3", In(Responses) => "R1.1", In(Gemini) => "G1.1", In(Ollama) => "O1.2", In(Converse) => "B1.2"]
    "one-result":
    "A call has at most one result."

    ResultsFirst Pairing [In(Anthropic) => "A1.4"]
    "results-first":
    "In a user turn that answers calls the results come first, then text and images."

    ResultAfterCall Pairing [In(Responses) => "R1.2"]
    "result-after-call":
    "An output comes after its call."

    CallIdUnique Pairing [In(Anthropic) => "A1.6", In(Chat) => "C1.3"]
    "call-id-unique":
    "No two calls of the request (Anthropic), or of one message (Chat), share an id."

    CallIdCharacters Pairing [In(Anthropic) => "A1.7"]
    "call-id-characters":
    "The id of a call is not empty and contains only ASCII letters, digits, `_` and `-`."

    CallIdLength Pairing [OpenAi(Chat) => "C1.4", In(Responses) => "R1.3", In(Converse) => "B5.3"]
    "call-id-length":
    "The id of a call has at most 40 characters (Chat), or 1 to 64 (Responses, Converse)."

    CallIdNineCharacters Pairing [At(Mistral, Chat) => "L2"]
    "call-id-nine-characters":
    "The id of a call is nine ASCII letters and digits."

    CallIdSuffixUnique Pairing [At(Vllm, Chat) => "L3"]
    "call-id-suffix-unique":
    "With Mistral's tokenizers the server keeps only the last nine characters of an id, so these must be unique."

    CallRole Pairing [In(Anthropic) => "A1.8", In(Converse) => "B1.1"]
    "call-role":
    "A call (`tool_use`, `toolUse`) appears only in assistant messages, its result only in user messages."

    ResultContent Pairing [In(Anthropic) => "A1.9", In(Chat) => "C1.6", In(Responses) => "R1.3", In(Gemini) => "G1.4", In(Ollama) => "O1.3", In(Converse) => "B5.2"]
    "result-content":
    "A result contains only what its format allows: text, image, document, search result, tool reference (Anthropic); a string or at least one text part (Chat); a string, or text, image and file parts (Responses)."

    ResultTextOnly Pairing [At(LlamaCpp, Responses) => "L1.4", At(ChatTemplate, Responses) => "L1.4"]
    "result-text-only":
    "A result given as a list contains only text parts."

    ToolsetEchoed Pairing [In(Anthropic) => "A1.10"]
    "toolset-echoed":
    "The result of a call with a `toolset_name` carries the same name and contains only text, images and one browser state."

    ProgrammaticResult Pairing [In(Anthropic) => "A1.11"]
    "programmatic-result":
    "The message that answers a call made by code contains only results, and these contain only text."

    ServerPair Pairing [In(Anthropic) => "A1.12"]
    "server-pair":
    "The call of a server or MCP tool and its result are in assistant messages, call first; only the newest turn may have a call without a result."

    ServerPending Pairing [In(Anthropic) => "A1.13"]
    "server-pending":
    "While a server tool's call is pending, the user message after it contains only results."

    NoServerCallResult Pairing [In(Anthropic) => "A1.15"]
    "no-server-call-result":
    "The client sends no `tool_result` for a server tool's call (`srvtoolu_`)."

    ReferenceDeclared Tools [In(Anthropic) => "A1.16"]
    "reference-declared":
    "A `tool_reference` names a declared tool."

    NoCallBeforeFallback Pairing [In(Anthropic) => "A1.18"]
    "no-call-before-fallback":
    "No client tool call comes before the last `fallback` block of its message."

    ApprovalPair Pairing [In(Responses) => "R4.1"]
    "approval-pair":
    "The response to an MCP approval request comes after the request."

    MessagesNotEmpty Roles [In(Anthropic) => "A2.5", In(Chat) => "C2.1", In(Gemini) => "G2.2", In(Converse) => "B2.2"]
    "messages-not-empty":
    "There is at least one message."

    FirstIsUser Roles [In(Anthropic) => "A2.1", At(ChatTemplate, Chat) => "L1.1", At(Mistral, Chat) => "L2", In(Gemini) => "G1.2", At(ChatTemplate, Ollama) => "L4", In(Converse) => "B2.2"]
    "first-is-user":
    "The first message is a user message (chat templates: the first after the system message)."

    KnownRole Roles [In(Anthropic) => "A2.2", In(Chat) => "C2.1", In(Responses) => "R2.1", In(Gemini) => "G2.1", In(Ollama) => "O2.1", In(Converse) => "B2.1"]
    "known-role":
    "Every message has a role of its format."

    NoPrefill Roles [Model(Anthropic) => "A2.3"]
    "no-prefill":
    "The conversation does not end with an assistant message (unless a server tool's call in it is pending)."

    NoPrefillWithThinking Roles [In(Anthropic) => "A2.3"]
    "no-prefill-with-thinking":
    "While thinking is on, the conversation does not end with an assistant message (unless a server tool's call in it is pending)."

    FinalTextTrimmed Roles [In(Anthropic) => "A2.4"]
    "final-text-trimmed":
    "A final assistant text does not end in whitespace."

    NoSystemMessage Roles [Model(Anthropic) => "A2.7"]
    "no-system-message":
    "No message has the role `system`; instructions are in the field `system`."

    SystemMessagePosition Roles [In(Anthropic) => "A2.7"]
    "system-message-position":
    "A `system` message is not first, follows a user turn or a server tool's result, and is last or followed by the assistant."

    SystemFirst Roles [At(ChatTemplate, Chat) => "L1.1", At(ChatTemplate, Ollama) => "L4"]
    "system-first":
    "There is at most one system message, and it is first."

    Alternation Roles [At(ChatTemplate, Chat) => "L1.1", In(Gemini) => "G2.1", At(ChatTemplate, Ollama) => "L4", In(Converse) => "B2.1"]
    "alternation":
    "User and assistant alternate, apart from calls and results."

    HasUserText Roles [At(ChatTemplate, Chat) => "L1.1", At(ChatTemplate, Ollama) => "L4"]
    "has-user-text":
    "At least one user message has text."

    LastRole Roles [At(Mistral, Chat) => "L2"]
    "last-role":
    "The last message has the role user or tool, or is an assistant message marked as a prefix."

    NoUserAfterTool Roles [At(Mistral, Chat) => "L2"]
    "no-user-after-tool":
    "No user message directly follows a tool message."

    OneAssistantAtEnd Roles [At(LlamaCpp, Chat) => "L1.2", At(ChatTemplate, Chat) => "L1.2", At(ChatTemplate, Ollama) => "L4"]
    "one-assistant-at-end":
    "The conversation ends with at most one assistant message."

    HasContent Text [In(Anthropic) => "A2.5", In(Chat) => "C1.7", At(LlamaCpp, Chat) => "L1.2", RewrittenRequest(Responses) => "P4", In(Gemini) => "G2.2", RewrittenRequest(Ollama) => "P4", In(Converse) => "B2.3"]
    "has-content":
    "Every message has content; an assistant message may lack it when it has calls (Chat) or is the last (Anthropic)."

    TextNotBlank Text [In(Anthropic) => "A2.6", RewrittenRequest(Chat) => "P4", RewrittenRequest(Responses) => "P4", In(Gemini) => "G2.2", RewrittenRequest(Ollama) => "P4", In(Converse) => "B2.3"]
    "text-not-blank":
    "No text block is empty or only whitespace."

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
    "thinking-signed":
    "A thinking block carries its signature, a redacted one its data."

    ThinkingFirst Reasoning [In(Anthropic) => "A3.4"]
    "thinking-first":
    "In manual mode an unfinished turn with tool calls begins with thinking."

    ClearThinkingFirst Reasoning [In(Anthropic) => "A3.5"]
    "clear-thinking-first":
    "Among the edits of `context_management`, `clear_thinking` comes first."

    BindingNeedsThinking Reasoning [In(Anthropic) => "A3.9"]
    "binding-needs-thinking":
    "`thinking.block_binding` is set only when thinking is adaptive or enabled."

    NoManualThinking Reasoning [Model(Anthropic) => "A3.12a"]
    "no-manual-thinking":
    "The model does not accept `thinking.type` `enabled`."

    NoAdaptiveThinking Reasoning [Model(Anthropic) => "A3.12b"]
    "no-adaptive-thinking":
    "The model does not accept `thinking.type` `adaptive`."

    NoDisabledThinking Reasoning [Model(Anthropic) => "A3.12c"]
    "no-disabled-thinking":
    "The model does not accept `thinking.type` `disabled`."

    NoForcedToolWithThinking Tools [In(Anthropic) => "A3.13a"]
    "no-forced-tool-with-thinking":
    "With manual thinking `tool_choice` does not force a tool."

    NoForcedTool Tools [Model(Anthropic) => "A3.13b"]
    "no-forced-tool":
    "The model does not accept a `tool_choice` that forces a tool."

    ReasoningReturned Reasoning [Model(Chat) => "C3.1a"]
    "reasoning-returned":
    "If one message with calls carries its reasoning, all of them do."

    ThoughtSignature Reasoning [Model(Chat) => "C3.1b", Model(Gemini) => "G3.1"]
    "thought-signature":
    "Every message with calls since the last user message carries its thought signature."

    ReasoningFollowed Reasoning [In(Responses) => "R3.1"]
    "reasoning-followed":
    "A reasoning item with an id is followed by an item of the same response."

    ReasoningEncrypted Reasoning [In(Responses) => "R3.2"]
    "reasoning-encrypted":
    "With `store: false` a reasoning item that has an id also has its encrypted content."

    ReasoningSummary Reasoning [OpenAi(Responses) => "R3.4"]
    "reasoning-summary":
    "A reasoning item has a `summary`, which may be an empty list."

    ReasoningWithoutContent Reasoning [OpenAi(Responses) => "R3.4"]
    "reasoning-without-content":
    "The `content` of a reasoning item is absent or empty."

    ReasoningWithContent Reasoning [At(LlamaCpp, Responses) => "L1.4", At(ChatTemplate, Responses) => "L1.4"]
    "reasoning-with-content":
    "The `content` of a reasoning item contains a text that is not empty."

    CompactionEncrypted Reasoning [In(Responses) => "R3.6"]
    "compaction-encrypted":
    "A compaction item has its encrypted content, of at most 20 MB."

    NoPreviousResponse Roles [At(LlamaCpp, Responses) => "L1.4", At(ChatTemplate, Responses) => "L1.4"]
    "no-previous-response":
    "The server does not store history, so `previous_response_id` is not set."

    ItemIdForm Pairing [OpenAi(Responses) => "R1.4"]
    "item-id-form":
    "The id of an item has its kind's prefix (`fc`, `ctc`, `rs`, `msg`) and at most 64 characters."

    ItemIdUnique Pairing [In(Responses) => "R1.4"]
    "item-id-unique":
    "No two items share an id."

    ToolsDeclared Tools [In(Anthropic) => "A4.1", In(Converse) => "B1.3"]
    "tools-declared":
    "A request with tool calls or results declares tools."

    ToolName Tools [In(Anthropic) => "A4.2", OpenAi(Chat) => "C4.2", At(Mistral, Chat) => "L2", In(Converse) => "B5.3"]
    "tool-name":
    "The name of a tool is 1 to 64 (Anthropic: 128) ASCII letters, digits, `_` and `-`."

    ToolNameUnique Tools [In(Anthropic) => "A4.2"]
    "tool-name-unique":
    "No two tools share a name."

    ToolsNotEmpty Tools [OpenAi(Chat) => "C4.2", At(Vllm, Chat) => "L3"]
    "tools-not-empty":
    "`tools` is absent or has an element."

    SomeToolLoaded Tools [In(Anthropic) => "A4.3"]
    "some-tool-loaded":
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
    "In the schema of a strict tool every object forbids additional properties and requires all its properties."

    FunctionNamed Tools [In(Responses) => "R4.1"]
    "function-named":
    "A function tool has a name."

    CachedContentAlone Tools [In(Gemini) => "G5.1"]
    "cached-content-alone":
    "With `cachedContent` the request has no instructions, tools or tool configuration of its own."

    ArgumentsObject Arguments [In(Anthropic) => "A5.1", At(Vllm, Chat) => "L3", At(LlamaCpp, Chat) => "C5.1", At(ChatTemplate, Chat) => "C5.1", RewrittenRequest(Chat) => "P5", RewrittenRequest(Responses) => "P5", In(Ollama) => "O5.1", In(Converse) => "B5.1"]
    "arguments-object":
    "The arguments of a call are a JSON object."

    ArgumentsString Arguments [In(Chat) => "C5.1", In(Responses) => "R5.1"]
    "arguments-string":
    "The arguments of a call are a string (that contains JSON)."

    FunctionCallsOnly Arguments [At(Vllm, Chat) => "L3"]
    "function-calls-only":
    "Every call is of type `function`."

    CacheBreakpointCount CacheBreakpoints [In(Anthropic) => "A6.1"]
    "cache-breakpoint-count":
    "At most four blocks carry `cache_control`, counting one at the top level of the request."

    CacheBreakpointOrder CacheBreakpoints [In(Anthropic) => "A6.2"]
    "cache-breakpoint-order":
    "In the order tools, system, messages, no one-hour breakpoint comes after a five-minute one."

    CacheBreakpointPosition CacheBreakpoints [In(Anthropic) => "A6.3"]
    "cache-breakpoint-position":
    "`cache_control` is on a tool or a block, not on thinking, an empty text, a part of a block or a turn-scoped system message."

    CacheTtl CacheBreakpoints [OpenAi(Chat) => "C6.1", OpenAi(Responses) => "R6.1"]
    "cache-ttl":
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
    "A message contains only text, images, audio and video."

    MessageCount Media [In(Anthropic) => "A8.3"]
    "message-count":
    "There are at most 100,000 messages."

    BodySize Media [In(Anthropic) => "A8.3", OpenAi(Chat) => "C7.1", OpenAi(Responses) => "C7.1"]
    "body-size":
    "The body has at most 32 MB (Anthropic) or 512 MB (OpenAI)."

    NoSamplingFields ApiVersion [ApiVersion(Anthropic, "2026-10-21") => "A10.1"]
    "no-sampling-fields":
    "`temperature`, `top_p` and `top_k` are not set."

    NoAssistantDocument ApiVersion [ApiVersion(Anthropic, "2026-10-21") => "A10.2"]
    "no-assistant-document":
    "No assistant message contains a document."

    NoUserCitations ApiVersion [ApiVersion(Anthropic, "2026-10-21") => "A10.3"]
    "no-user-citations":
    "A text of a user message has no citations."

    LastMessageKept RewrittenRequest [RewrittenRequest(Anthropic) => "P1", RewrittenRequest(Chat) => "P1", RewrittenRequest(Responses) => "P1", RewrittenRequest(Gemini) => "P1", RewrittenRequest(Ollama) => "P1", RewrittenRequest(Converse) => "P1"]
    "last-message-kept":
    "The last message is the client's, byte for byte."

    IdsKept RewrittenRequest [RewrittenRequest(Anthropic) => "P5", RewrittenRequest(Chat) => "P5", RewrittenRequest(Responses) => "P5", RewrittenRequest(Gemini) => "P5", RewrittenRequest(Ollama) => "P5", RewrittenRequest(Converse) => "P5"]
    "ids-kept":
    "Every id of a call or a result is the client's (or that of an injected call)."

    NewestTurnKept RewrittenRequest [RewrittenRequest(Anthropic) => "P6", RewrittenRequest(Chat) => "P6", RewrittenRequest(Responses) => "P6", RewrittenRequest(Gemini) => "P6", RewrittenRequest(Ollama) => "P6", RewrittenRequest(Converse) => "P6"]
    "newest-turn-kept":
    "The newest assistant turn and everything after it are the client's, byte for byte or with all their thinking removed."

    ReasoningKept RewrittenRequest [RewrittenRequest(Anthropic) => "P7", RewrittenRequest(Chat) => "P7", RewrittenRequest(Responses) => "P7", RewrittenRequest(Gemini) => "P7", RewrittenRequest(Ollama) => "P7", RewrittenRequest(Converse) => "P7"]
    "reasoning-kept":
    "Reasoning is the client's, unchanged and in order."

    ReasoningContiguous RewrittenRequest [SignedHistory(Anthropic) => "P7", SignedHistory(Converse) => "B3.1"]
    "reasoning-contiguous":
    "The kept thinking is one contiguous run of the client's."

    ReasoningAfterEdit RewrittenRequest [SignedHistory(Anthropic) => "P7", SignedHistory(Converse) => "B3.1"]
    "reasoning-after-edit":
    "No thinking follows an edit that was made after it was produced."

    CallReasoningKept RewrittenRequest [Model(Chat) => "C3.1a"]
    "call-reasoning-kept":
    "A message with calls keeps the reasoning that the client sent with it."

    NoMergedThinking RewrittenRequest [RewrittenRequest(Anthropic) => "A2.2"]
    "no-merged-thinking":
    "Two assistant messages that the client separated do not become adjacent when one has thinking."

    ToolsKept RewrittenRequest [RewrittenRequest(Anthropic) => "P8", RewrittenRequest(Chat) => "P8", RewrittenRequest(Responses) => "P8", RewrittenRequest(Gemini) => "P8", RewrittenRequest(Ollama) => "P8", RewrittenRequest(Converse) => "P8"]
    "tools-kept":
    "The tools are the client's, followed by the injected tool if there is one."

    OpaqueKept RewrittenRequest [RewrittenRequest(Anthropic) => "P10", RewrittenRequest(Chat) => "P10", RewrittenRequest(Responses) => "P10", RewrittenRequest(Gemini) => "P10", RewrittenRequest(Ollama) => "P10", RewrittenRequest(Converse) => "P10"]
    "opaque-kept":
    "Blocks of server tools, MCP, compaction, fallback and unknown blocks are the client's, byte for byte and in order."

    ReasoningPairKept RewrittenRequest [RewrittenRequest(Responses) => "P11"]
    "reasoning-pair-kept":
    "A reasoning item with an id and the item after it are both kept or both removed."
}

/// Rules that cannot be checked on a request, and the reasons.
pub(crate) static UNCHECKED_RULES: &[(&str, &str)] = &[
    (
        "A1.3",
        "Results spread over several user messages are accepted and merged; they reduce parallel calls but are not refused.",
    ),
    (
        "A1.14",
        "Checking that encrypted search results are returned unchanged needs the original: `opaque-kept` compares with the client's request.",
    ),
    (
        "A1.17",
        "The server ignores everything before a compaction block, so nothing there can be wrong; `opaque-kept` keeps the block.",
    ),
    (
        "A3.1, A3.2",
        "Checking that thinking is complete and unedited needs the original: `reasoning-kept` and `newest-turn-kept` compare with the client's request.",
    ),
    (
        "A3.6 to A3.8",
        "Checking the history that thinking is bound to needs the earlier requests: `reasoning-contiguous` and `reasoning-after-edit` compare with the client's request.",
    ),
    ("A3.10", "Rules for headers and error bodies of a proxy."),
    ("A3.11", "The model and account that produced a thinking block are encrypted in it."),
    ("A3.14", "Progress notes are lost, but the request is not refused."),
    ("A4.4", "Only the session knows if a tool was declared from the first request on."),
    (
        "A4.5, A5.2",
        "Matching examples to a schema is the client's responsibility; arguments have no separate size limit.",
    ),
    ("A6.4 to A6.8", "Cache prices and lifetimes: a miss costs money but is not refused."),
    ("A7.2, A8.1, A8.2", "Token counts: see the model table."),
    ("A7.3", "The pages of a PDF cannot be counted without parsing it."),
    (
        "A9",
        "Threads: the provider stores the history. Such requests are exempt from the laws on pairing and on the first message.",
    ),
    ("C3.1", "Z.ai and Qwen give worse answers without old reasoning, but refuse nothing."),
    (
        "G3.3 to G3.8",
        "Signatures are opaque: `reasoning-kept` and `opaque-kept` compare with the client's request, and signed parts are never edited.",
    ),
    (
        "G4.1, G5.2",
        "Only the provider knows if a model combines its own tools with functions; caches are never created.",
    ),
    (
        "B1.4",
        "Models other than Claude refuse a user message with both results and text: which ones do is not in the model table.",
    ),
    ("B3.2", "Some models refuse reasoning of earlier turns: only the client knows what it may send."),
    (
        "B4.1, B4.2",
        "A `cachePoint` stays at its place and leaves with its message; a folded result keeps its `status` and has one text item.",
    ),
    ("C4.1", "Tools that appear only in the history need not be declared."),
    ("C8.1", "Token counts: see the model table."),
    (
        "R1.5",
        "With a previous response, a conversation or item references the provider stores the history. Such requests are exempt from the laws on pairing.",
    ),
    (
        "R3.1",
        "Missing reasoning of an item is found only by comparison with the client's request: `reasoning-pair-kept`.",
    ),
    ("R3.3", "Encrypted reasoning is opaque."),
    ("R3.5", "Dropping old reasoning loses context but is not refused."),
    ("R9.1", "No known limit."),
    ("L1.1", "Only the template determines if it accepts parallel calls and which tool names it resolves."),
    ("L1.3", "Only the server knows if it was started with tool support."),
    ("L1.5", "llama.cpp ignores signatures."),
    (
        "L2",
        "Tokenizers before version 5 refused content next to calls, those before version 15 images in results: the version is not in the request.",
    ),
    (
        "L4",
        "Ollama silently truncates an oversized prompt from the front; which roles it accepts depends on the template.",
    ),
    (
        "O3.1",
        "Another `num_ctx` or `shift` than in the request before reloads the model: the proxy sends the same ones in every request, or none.",
    ),
    (
        "P2, P3, P9",
        "The laws of the format, checked again on the rewritten request; violations of the client's own request are not counted.",
    ),
    (
        "P12, P13",
        "Deterministic output, and the handling of a provider's refusal: guarantees of the engine and of the proxy.",
    ),
];

impl Law {
    /// Returns all laws, in the order of the reference.
    pub fn all() -> impl Iterator<Item = Law> {
        LAW_TABLE.iter().map(|entry| entry.law)
    }

    fn entry(self) -> &'static LawEntry {
        &LAW_TABLE[self as usize]
    }

    /// Returns the short name, such as `call-answered`.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Returns the rule in one sentence.
    pub fn rule(self) -> &'static str {
        self.entry().rule
    }

    /// Returns the topic.
    pub fn topic(self) -> LawTopic {
        self.entry().topic
    }

    /// Returns the id of the law in the reference for a format, if it applies to the format.
    pub fn id(self, format: Format) -> Option<&'static str> {
        let has_format = |scope: &LawScope| match scope {
            LawScope::Format(other)
            | LawScope::OpenAi(other)
            | LawScope::Model(other)
            | LawScope::SignedHistory(other)
            | LawScope::Server(_, other)
            | LawScope::ApiVersion(other, _)
            | LawScope::RewrittenRequest(other) => *other == format,
        };
        self.entry().scopes.iter().find(|(scope, _)| has_format(scope)).map(|(_, id)| *id)
    }

    /// Returns the ids of the law in the reference: one for each format, server or kind of model to
    /// which it applies.
    pub fn ids(self) -> impl Iterator<Item = &'static str> {
        let scopes = self.entry().scopes;
        scopes
            .iter()
            .enumerate()
            .filter(|(at, (_, id))| !scopes[..*at].iter().any(|(_, other)| other == id))
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
        let dialect = |format: &Format| format.dialect().title;
        match self {
            LawScope::Format(format) => write!(f, "{}", dialect(format)),
            LawScope::OpenAi(format) => write!(f, "{}, OpenAI models", dialect(format)),
            LawScope::Model(format) => write!(f, "{}, some models", dialect(format)),
            LawScope::SignedHistory(format) => write!(f, "{}, rewritten, models that sign history", dialect(format)),
            LawScope::Server(server, format) => write!(f, "{}, {server}", dialect(format)),
            LawScope::ApiVersion(format, version) => write!(f, "{}, version {version}", dialect(format)),
            LawScope::RewrittenRequest(format) => write!(f, "{}, rewritten", dialect(format)),
        }
    }
}

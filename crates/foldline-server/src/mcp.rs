//! The MCP server: tools with which a model restores and searches folded originals.
//!
//! Three tools: `unfold` returns an original, `search` finds originals by words, `stats` describes the
//! archive. Every result is bounded and states how to get more. Errors are returned as tool results that
//! the model can act on, because a protocol error would reach only the client.
//!
//! Nothing here writes to the archive. Doc comments of the tools and of their parameters are part of the
//! tool schema, and models read them: do not edit them as prose.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldline::engine::original_image;
use foldline_archive::{ArchiveStats, Error, Excerpt, ExcerptQuery, OriginalInfo, SearchHit, TenantArchive, excerpt};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock, Implementation, ServerCapabilities, ServerConfig};
use rmcp::{ServerHandler, ServiceExt, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;

/// Hits on a page.
const HITS_PER_PAGE: usize = 8;

/// Characters of a tool's arguments that are shown with a hit.
const MAX_ARGUMENT_CHARS: usize = 160;

/// Instructions that a client passes to its model.
const INSTRUCTIONS: &str = "Long or old parts of this conversation may have been folded: replaced by a short marker \
     such as [folded: 412 lines, 18.3 kB; unfold 7k3q9p2m4x1z]. Nothing is lost. When you need \
     what a marker stands for, call unfold with the handle at its end instead of running the tool again: you get \
     the text exactly as it was then. When you do not know where something was, call search with words that \
     stand in it.";

/// Serves one client on standard input and output until it disconnects.
///
/// `open` opens the archive. It is called at the first tool call, and again until it succeeds, because
/// the archive may not exist yet when a client starts its servers.
///
/// # Errors
///
/// Fails if the runtime cannot be started, or if the server task panics. A client that disconnects is not an error.
pub fn serve_stdio(open: impl Fn() -> Result<TenantArchive, Error> + Send + Sync + 'static) -> std::io::Result<()> {
    serve_archive(Arc::new(open))
}

fn serve_archive(open: OpenArchive) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = McpServer { open, archive: Arc::default() };
        // A client that disconnects before initialization is not an error.
        let Ok(running) = server.serve(rmcp::transport::io::stdio_pipes()).await else { return Ok(()) };
        running.waiting().await.map(|_| ()).map_err(std::io::Error::other)
    })
}

type OpenArchive = Arc<dyn Fn() -> Result<TenantArchive, Error> + Send + Sync>;

#[derive(Clone)]
struct McpServer {
    open: OpenArchive,
    /// Set at the first successful open.
    archive: Arc<Mutex<Option<TenantArchive>>>,
}

/// What `unfold` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Unfold")]
struct UnfoldParams {
    /// The handle at the end of the marker, for example 7k3q9p2m4x1z. Its first 8 characters are enough when
    /// no other handle begins with them.
    handle: String,
    /// Only these lines, counted from 1, both ends included: "10..20", "10..", "..20" or "10".
    #[serde(default)]
    lines: Option<String>,
    /// Only lines that match this regular expression (Rust syntax, linear time; (?i) ignores case), each with
    /// its number.
    #[serde(default)]
    grep: Option<String>,
    /// With grep: how many lines to show before and behind each match.
    #[serde(default)]
    context: Option<usize>,
    /// Which page of a long answer, counted from 1.
    #[serde(default)]
    page: Option<usize>,
}

/// What `search` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Search")]
struct SearchParams {
    /// Words that stand in the text: identifiers, parts of paths, error messages. Pieces of an identifier
    /// find it (config finds readConfigFile). There is no query syntax.
    words: String,
    /// Which page of the hits, counted from 1.
    #[serde(default)]
    page: Option<usize>,
}

#[tool_router]
impl McpServer {
    /// Get back the original text behind a fold marker, exactly as it was.
    ///
    /// Use it whenever you need something that a marker `[folded: ..; unfold HANDLE]` stands for. Ask for lines or
    /// grep when you need only a part: a whole text comes in pages of about 4000 tokens.
    #[tool(annotations(title = "Unfold", read_only_hint = true, idempotent_hint = true, open_world_hint = false))]
    async fn unfold(&self, Parameters(params): Parameters<UnfoldParams>) -> CallToolResult {
        self.run_blocking(move |archive| {
            let lines = params.lines.as_deref().map(str::trim).filter(|it| !it.is_empty());
            let query = ExcerptQuery {
                lines: lines.map(str::parse).transpose()?,
                grep: params.grep.filter(|it| !it.is_empty()),
                context: params.context.unwrap_or(0).min(50),
                page: Some(params.page.unwrap_or(1)),
            };
            let unfolded = archive.unfold(&params.handle)?;
            let excerpt = excerpt(&unfolded.readable(), &query)?;
            let note = ContentBlock::text(excerpt_note(&unfolded.info, &excerpt));
            if let Some(image) = original_image(&unfolded.bytes) {
                return Ok(vec![ContentBlock::image(image.base64, image.media_type), note]);
            }
            // The text is a separate block, so that the note is not taken for a part of it.
            Ok(vec![ContentBlock::text(lossy_text(excerpt.bytes)), note])
        })
        .await
    }

    /// Search everything that was folded, in this and in earlier sessions, by words that stand in it.
    ///
    /// Answers with handles, best and newest first, each with a snippet and its line number. Call unfold with a handle
    /// to read on.
    #[tool(annotations(title = "Search", read_only_hint = true, idempotent_hint = true, open_world_hint = false))]
    async fn search(&self, Parameters(params): Parameters<SearchParams>) -> CallToolResult {
        self.run_blocking(move |archive| {
            let page = params.page.unwrap_or(1).max(1);
            let found = archive.search(&params.words, (page - 1).saturating_mul(HITS_PER_PAGE), HITS_PER_PAGE)?;
            if found.hits.is_empty() {
                let none = match found.total {
                    0 => "Nothing that was folded has any of these words.".to_owned(),
                    total => {
                        format!("There is no page {page}: {total} hits are on {} pages.", total.div_ceil(HITS_PER_PAGE))
                    }
                };
                return Ok(vec![ContentBlock::text(none)]);
            }
            let mut text: Vec<String> = found.hits.iter().map(format_hit).collect();
            text.push(match found.total.saturating_sub(page.saturating_mul(HITS_PER_PAGE)) {
                0 => format!("{} hits in all.", found.total),
                more => format!("{more} more hits: ask for page {}.", page + 1),
            });
            Ok(vec![ContentBlock::text(text.join("\n\n"))])
        })
        .await
    }

    /// How much was folded and is held: originals, bytes, tokens, which tools they came from, since when.
    #[tool(annotations(title = "Statistics", read_only_hint = true, idempotent_hint = true, open_world_hint = false))]
    async fn stats(&self) -> CallToolResult {
        self.run_blocking(|archive| Ok(vec![ContentBlock::text(format_stats(&archive.stats()?))])).await
    }
}

#[tool_handler(router = Self::tool_router())]
impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("foldline", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }
}

impl McpServer {
    /// Runs `read` on a blocking thread and converts its outcome into a tool result.
    async fn run_blocking(
        &self,
        read: impl FnOnce(&TenantArchive) -> Result<Vec<ContentBlock>, Error> + Send + 'static,
    ) -> CallToolResult {
        let server = self.clone();
        let result = tokio::task::spawn_blocking(move || server.open_archive().and_then(|archive| read(&archive)));
        match result.await {
            Ok(Ok(blocks)) => CallToolResult::success(blocks),
            Ok(Err(error)) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(format!("foldline failed: {error}"))]),
        }
    }

    fn open_archive(&self) -> Result<TenantArchive, Error> {
        let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        match &*archive {
            Some(archive) => Ok(archive.clone()),
            None => Ok(archive.insert((self.open)()?).clone()),
        }
    }
}

/// Decodes bytes as UTF-8; invalid sequences are replaced.
fn lossy_text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// Describes an excerpt for the model: handle, size, source, matches, pages.
fn excerpt_note(info: &OriginalInfo, excerpt: &Excerpt) -> String {
    let mut note = format!("{}, {} lines, {} bytes", info.handle, excerpt.total_lines, info.length);
    if let Some(source) = format_source(info) {
        note += &format!(", from {source}");
    }
    if let Some(matches) = excerpt.matches {
        note += &format!("; {matches} lines match");
    }
    if !excerpt.is_complete {
        note += "; the pattern took too long and was given up, ask for fewer lines";
    }
    if excerpt.page < excerpt.pages {
        note += &format!("; page {} of {}, ask for page {}", excerpt.page, excerpt.pages, excerpt.page + 1);
    } else if excerpt.pages > 1 {
        note += &format!("; page {} of {}, the last", excerpt.page, excerpt.pages);
    }
    note
}

fn format_hit(hit: &SearchHit) -> String {
    let SearchHit { info, line, snippet, .. } = hit;
    let source = format_source(info).map(|source| format!(" {source}")).unwrap_or_default();
    let indented = snippet.lines().map(|line| format!("\n    {line}")).collect::<String>();
    format!("{}{source}, {} tokens, {}, line {line}:{indented}", info.handle, info.tokens, format_age(info.kept_at))
}

fn format_source(info: &OriginalInfo) -> Option<String> {
    let tool = info.tool.as_deref()?;
    let arguments = info.arguments.as_deref().unwrap_or_default();
    let shown = &arguments[..arguments.floor_char_boundary(MAX_ARGUMENT_CHARS)];
    let more = if shown.len() < arguments.len() { ".." } else { "" };
    Some(format!("{tool} {shown}{more}").trim_end().to_owned())
}

fn format_stats(stats: &ArchiveStats) -> String {
    let mut text = format!(
        "{} originals are held: {} bytes, {} tokens, of {} sessions.",
        stats.available, stats.bytes, stats.tokens, stats.sessions
    );
    if let (Some(oldest), Some(newest)) = (stats.oldest_at, stats.newest_at) {
        text += &format!(" The oldest was folded {}, the newest {}.", format_age(oldest), format_age(newest));
    }
    if stats.expired + stats.damaged > 0 {
        text += &format!(" {} have expired, {} are damaged.", stats.expired, stats.damaged);
    }
    for tool in &stats.tools {
        text += &format!("\n{}: {} originals, {} tokens", tool.tool, tool.originals, tool.tokens);
    }
    text
}

/// Formats the time since `at` in the largest unit that fits.
fn format_age(at: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(u64::try_from(at).unwrap_or(0))).as_secs();
    let (count, unit) = match age {
        0..60 => return "just now".to_owned(),
        60..3600 => (age / 60, "minute"),
        3600..86_400 => (age / 3600, "hour"),
        _ => (age / 86_400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

//! The MCP server: a model asks for what was folded, in its own words.
//!
//! Three tools: `unfold` gives an original back, `search` finds originals by words, `stats` says what
//! there is. Every answer is bounded, and says how to get more. A fault is told to the model as the
//! outcome of its call, in words it can act on, because an error of the protocol would only reach the
//! client.
//!
//! Nothing here writes to the archive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// What a client tells its model about this server.
const INSTRUCTIONS: &str = "Long or old parts of this conversation may have been folded: replaced by a short marker \
     such as [folded: 412 lines, 18.3 kB; unfold 7k3q9p2m4x1z]. Nothing is lost. When you need \
     what a marker stands for, call unfold with the handle at its end instead of running the tool again: you get \
     the text exactly as it was then. When you do not know where something was, call search with words that \
     stand in it.";

/// Serves one client on standard input and output until it hangs up.
///
/// `open` opens the shelf. It is called when the first tool is called, and again until it succeeds,
/// because there may be no archive yet when a client starts its servers.
pub fn serve_stdio(open: impl Fn() -> Result<TenantArchive, Error> + Send + Sync + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = McpServer { open: Arc::new(open), archive: Arc::default() };
        // A client that hangs up before it has said hello has simply gone.
        let Ok(running) = server.serve(rmcp::transport::io::stdio_pipes()).await else { return Ok(()) };
        running.waiting().await.map(|_| ()).map_err(std::io::Error::other)
    })
}

#[derive(Clone)]
struct McpServer {
    open: Arc<dyn Fn() -> Result<TenantArchive, Error> + Send + Sync>,
    /// Open from the first success on.
    archive: Arc<Mutex<Option<TenantArchive>>>,
}

/// What `unfold` takes.
#[derive(Debug, Deserialize, JsonSchema)]
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
    async fn unfold(&self, Parameters(asked): Parameters<UnfoldParams>) -> CallToolResult {
        self.run_blocking(move |shelf| {
            let lines = asked.lines.as_deref().map(str::trim).filter(|it| !it.is_empty());
            let wanted = ExcerptQuery {
                lines: lines.map(str::parse).transpose()?,
                grep: asked.grep.filter(|it| !it.is_empty()),
                context: asked.context.unwrap_or(0).min(50),
                page: Some(asked.page.unwrap_or(1)),
            };
            let unfolded = shelf.unfold(&asked.handle)?;
            let excerpt = excerpt(&unfolded.bytes, &wanted)?;
            let note = excerpt_note(&unfolded.info, &excerpt);
            // The text stands alone, so that nothing of ours is taken for a part of it.
            Ok(vec![lossy_text(excerpt.bytes), note])
        })
        .await
    }

    /// Search everything that was folded, in this and in earlier sessions, by words that stand in it.
    ///
    /// Answers with handles, best and newest first, each with a snippet and its line number. Call unfold with a handle
    /// to read on.
    #[tool(annotations(title = "Search", read_only_hint = true, idempotent_hint = true, open_world_hint = false))]
    async fn search(&self, Parameters(asked): Parameters<SearchParams>) -> CallToolResult {
        self.run_blocking(move |shelf| {
            let page = asked.page.unwrap_or(1).max(1);
            let found = shelf.search(&asked.words, (page - 1).saturating_mul(HITS_PER_PAGE), HITS_PER_PAGE)?;
            if found.hits.is_empty() {
                let none = match found.total {
                    0 => "Nothing that was folded has any of these words.".to_owned(),
                    total => {
                        format!("There is no page {page}: {total} hits are on {} pages.", total.div_ceil(HITS_PER_PAGE))
                    }
                };
                return Ok(vec![none]);
            }
            let mut text: Vec<String> = found.hits.iter().map(format_hit).collect();
            text.push(match found.total.saturating_sub(page.saturating_mul(HITS_PER_PAGE)) {
                0 => format!("{} hits in all.", found.total),
                more => format!("{more} more hits: ask for page {}.", page + 1),
            });
            Ok(vec![text.join("\n\n")])
        })
        .await
    }

    /// How much was folded and is held: originals, bytes, tokens, which tools they came from, since when.
    #[tool(annotations(title = "Statistics", read_only_hint = true, idempotent_hint = true, open_world_hint = false))]
    async fn stats(&self) -> CallToolResult {
        self.run_blocking(|shelf| Ok(vec![format_stats(&shelf.stats()?)])).await
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
    /// Does the reading beside the thread that speaks to the client.
    async fn run_blocking(
        &self,
        reading: impl FnOnce(&TenantArchive) -> Result<Vec<String>, Error> + Send + 'static,
    ) -> CallToolResult {
        let server = self.clone();
        let read = tokio::task::spawn_blocking(move || server.open_archive().and_then(|shelf| reading(&shelf)));
        match read.await {
            Ok(Ok(texts)) => CallToolResult::success(texts.into_iter().map(ContentBlock::text).collect()),
            Ok(Err(error)) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(format!("foldline failed: {error}"))]),
        }
    }

    fn open_archive(&self) -> Result<TenantArchive, Error> {
        let mut shelf = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        match &*shelf {
            Some(shelf) => Ok(shelf.clone()),
            None => Ok(shelf.insert((self.open)()?).clone()),
        }
    }
}

/// The text as a model can read it; what is no UTF-8 is replaced.
fn lossy_text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// What the model should know about an excerpt.
fn excerpt_note(entry: &OriginalInfo, excerpt: &Excerpt) -> String {
    let mut note = format!("{}, {} lines, {} bytes", entry.handle, excerpt.total_lines, entry.length);
    if let Some(source) = format_source(entry) {
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
    let SearchHit { info: entry, line, snippet, .. } = hit;
    let source = format_source(entry).map(|source| format!(" {source}")).unwrap_or_default();
    let indented = snippet.lines().map(|line| format!("\n    {line}")).collect::<String>();
    format!("{}{source}, {} tokens, {}, line {line}:{indented}", entry.handle, entry.tokens, format_age(entry.kept_at))
}

fn format_source(entry: &OriginalInfo) -> Option<String> {
    let tool = entry.tool.as_deref()?;
    let arguments = entry.arguments.as_deref().unwrap_or_default();
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

/// How long ago a time was, in the largest unit that fits.
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

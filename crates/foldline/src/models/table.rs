//! The model table: windows, prices, caches, vocabularies and overheads.
//!
//! The built-in table is a data file (`data/models.csv`), and a user's table of the same form overlays it. No other
//! module may know a model by its name: a new fact about models is a new column. A caller may prefer what a server
//! reports about itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use crate::tokens::Tokens;
use crate::tokens::images::ImageRule;

static BUILTIN_TABLE: LazyLock<ModelTable> = LazyLock::new(|| {
    ModelTable { cells: HashMap::new(), rows: Vec::new() }
        .overlay(include_str!("../../data/models.csv"))
        .expect("the built-in table is valid; a test checks it")
});

/// Prefix of the row for unknown models.
const DEFAULT_PREFIX: &str = "*";
/// Maximum number of bytes of a model name that are used: names come from clients, and no real one is nearly as long.
const MAX_NAME_BYTES: usize = 256;

/// The columns of a table.
const COLUMNS: [&str; 22] = [
    "prefix",
    "provider",
    "window",
    "max_input",
    "max_output",
    "usd_in",
    "usd_out",
    "cache_read",
    "cache_write",
    "cache_write_1h",
    "long_price_above",
    "min_prefix",
    "cache_life",
    "vocab",
    "scale",
    "images",
    "per_message",
    "per_call",
    "per_request",
    "tool_prompt",
    "signed_history",
    "laws",
];

/// Facts about models, looked up by name.
///
/// ```
/// use foldline::ModelTable;
///
/// let table = ModelTable::builtin();
/// assert_eq!(table.find(Some("us.anthropic.claude-opus-4-5-20251101-v1:0")).window, 200_000);
/// assert_eq!(table.find(Some("openrouter/openai/gpt-5.4-mini:free")).max_input, Some(272_000));
/// assert_eq!(table.find(None).window, 128_000);
///
/// let mine = table.overlay("prefix,window\nmy-finetune,32768\n")?;
/// assert_eq!(mine.find(Some("my-finetune-v3")).window, 32_768);
/// # Ok::<(), foldline::models::ModelTableError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModelTable {
    /// Explicit cells by normalized prefix: column and value; later ones win.
    cells: HashMap<String, Vec<(String, String)>>,
    /// Rows with every empty cell inherited from their families, sorted by normalized prefix.
    rows: Vec<(String, ModelRow)>,
}

/// The facts about one model or family of models.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelRow {
    /// Prefix of the model names that the row applies to; `*` for all other models.
    pub prefix: String,
    /// Provider that serves the model.
    pub provider: String,
    /// Maximum tokens of input and output together.
    pub window: Tokens,
    /// Maximum tokens of input alone, if the provider limits them below the window.
    pub max_input: Option<Tokens>,
    /// Maximum tokens of one answer.
    pub max_output: Tokens,
    /// Dollars per million input tokens.
    pub usd_in: f64,
    /// Dollars per million output tokens.
    pub usd_out: f64,
    /// Price of a token read from the prompt cache; an input token costs 1.
    pub cache_read: f64,
    /// Price of a token written to the prompt cache.
    pub cache_write: f64,
    /// Price of a token written to be kept for an hour, if that is offered.
    pub cache_write_hour: Option<f64>,
    /// Number of input tokens above which the provider charges more.
    pub long_price_above: Option<Tokens>,
    /// Length of the shortest prefix that is cached.
    pub min_prefix: Tokens,
    /// Lifetime of an unused cache entry, if the provider states it.
    pub cache_ttl: Option<Duration>,
    /// Method of counting text: the name of a vocabulary, `~` before one that is only similar, or `estimate`.
    pub vocabulary: String,
    /// Factor by which the count of text is multiplied.
    pub scale: f64,
    /// Rule by which images are counted.
    pub images: ImageRule,
    /// Tokens of a message without its content.
    pub per_message: Tokens,
    /// Tokens of a call and its result without their content.
    pub per_call: Tokens,
    /// Tokens of a request without its messages.
    pub per_request: Tokens,
    /// Tokens of declaring any tools.
    pub tool_prompt: Tokens,
    /// True if the provider binds reasoning to everything before it, so that an edit of history invalidates the
    /// reasoning after it (A3.6).
    pub signed_history: bool,
    /// Ids of the laws that apply to this model and not to others of its format.
    pub laws: Vec<String>,
    /// Prefix of the newest row of the family, if the model is newer than it and gets the values of that row.
    pub newer_than: Option<String>,
}

/// An error in a model table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTableError {
    line: usize,
    column: Option<String>,
    problem: String,
}

impl ModelTable {
    /// Returns the built-in table.
    pub fn builtin() -> &'static ModelTable {
        &BUILTIN_TABLE
    }

    /// Returns this table overlaid by another: its filled cells win, its new prefixes are added. The first line names
    /// the columns, including `prefix`.
    ///
    /// # Errors
    ///
    /// Fails at the first line with an unknown column, a wrong number of cells, a missing or too long prefix, or a cell that
    /// cannot be parsed; the error names line and column.
    pub fn overlay(&self, csv: &str) -> Result<ModelTable, ModelTableError> {
        let mut cells = self.cells.clone();
        let mut lines = csv
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let Some((first, header)) = lines.next() else { return Ok(self.clone()) };
        let columns: Vec<&str> = header.split(',').map(str::trim).collect();
        let mut scratch = ModelRow::empty();
        for column in &columns {
            if *column != "prefix" && scratch.set_cell(column, "-") == Err(CellError::UnknownColumn) {
                let problem = CellError::UnknownColumn.message_for(column);
                return Err(ModelTableError::in_column(first, column, &problem));
            }
        }
        let Some(prefix_at) = columns.iter().position(|column| *column == "prefix") else {
            return Err(ModelTableError::in_column(first, "prefix", "the first line must name this column"));
        };
        for (line, text) in lines {
            let row: Vec<&str> = text.split(',').map(str::trim).collect();
            if row.len() != columns.len() {
                let problem = format!("{} cells for {} columns", row.len(), columns.len());
                return Err(ModelTableError { line, column: None, problem });
            }
            let prefix = row[prefix_at];
            if prefix.is_empty() {
                return Err(ModelTableError::in_column(line, "prefix", "a row needs a prefix"));
            }
            if prefix.len() > MAX_NAME_BYTES {
                let problem = format!("longer than the {MAX_NAME_BYTES} bytes of a name that are used");
                return Err(ModelTableError::in_column(line, "prefix", &problem));
            }
            let row_cells = cells.entry(normalize_name(prefix)).or_default();
            row_cells.push(("prefix".to_owned(), prefix.to_owned()));
            for (column, cell) in
                columns.iter().zip(&row).filter(|(column, cell)| **column != "prefix" && !cell.is_empty())
            {
                scratch
                    .set_cell(column, cell)
                    .map_err(|error| ModelTableError::in_column(line, column, &error.message_for(cell)))?;
                row_cells.retain(|(other, _)| other != column);
                row_cells.push(((*column).to_owned(), (*cell).to_owned()));
            }
        }
        Ok(ModelTable { rows: resolve_rows(&cells), cells })
    }

    /// Returns the row of a model, by the longest prefix at the start of its name or after a vendor, region or host
    /// in it. Dates, versions and tags after the prefix are ignored, as are case and dots for dashes; `[1m]` selects
    /// the window of one million tokens. A model newer than all rows of its family gets the values of the newest one.
    /// Unknown models get the row `*`. Only the part of the name that [`model_name`] returns is used.
    pub fn find(&self, model: Option<&str>) -> ModelRow {
        let name = model_name(model.unwrap_or_default());
        let normalized = normalize_name(name);
        let mut row = match self.longest_match(name, &normalized) {
            Some((own_name, row)) => self.with_newest_values(own_name, row),
            None => self.row(DEFAULT_PREFIX).cloned().unwrap_or_else(ModelRow::empty),
        };
        if name.to_ascii_lowercase().ends_with("[1m]") {
            row.window = row.window.max(1_000_000);
        }
        row
    }

    /// Returns the row with the longest prefix at any position of `name` where a model's own name may begin, and the
    /// normalized name from there on.
    fn longest_match<'n>(&self, name: &str, normalized: &'n str) -> Option<(&'n str, &ModelRow)> {
        let starts = std::iter::once(0).chain(name.match_indices(['/', ':', '.']).map(|(at, _)| at + 1));
        let mut best: Option<(usize, &'n str, &ModelRow)> = None;
        for start in starts {
            let own_name = &normalized[start..];
            let found = self.longest_prefix(own_name).map(|(length, row)| (length, own_name, row));
            best = found.filter(|(length, ..)| best.is_none_or(|(longest, ..)| *length > longest)).or(best);
        }
        best.map(|(_, own_name, row)| (own_name, row))
    }

    /// Returns the row of a model, with the values of the newest row of its family if the model is newer than that:
    /// providers enlarge windows, and a window that is too small costs more than one that the first overflow corrects;
    /// their laws stay. Prices are those of the newest row only if it has the same name but for the version.
    fn with_newest_values(&self, own_name: &str, row: &ModelRow) -> ModelRow {
        let newest = || {
            let (words, version) = split_version(own_name)?;
            let family = normalize_name(&row.prefix);
            let members =
                self.rows.iter().filter(|(prefix, _)| prefix.starts_with(&family)).filter_map(|(prefix, member)| {
                    split_version(prefix).map(|(words, version)| (words, version, prefix.len(), member))
                });
            let members: Vec<_> = members.collect();
            let has_namesakes = members.iter().any(|(other, ..)| *other == words);
            let comparable = members.iter().filter(|(other, ..)| !has_namesakes || *other == words);
            let (_, newest, _, member) =
                comparable.max_by_key(|(_, version, length, _)| (version, std::cmp::Reverse(*length)))?;
            (version > *newest).then_some((*member, has_namesakes))
        };
        let Some((newest, is_namesake)) = newest() else { return row.clone() };
        let prices = if is_namesake { newest } else { row };
        ModelRow {
            prefix: row.prefix.clone(),
            usd_in: prices.usd_in,
            usd_out: prices.usd_out,
            cache_read: prices.cache_read,
            cache_write: prices.cache_write,
            cache_write_hour: prices.cache_write_hour,
            long_price_above: prices.long_price_above,
            newer_than: Some(newest.prefix.clone()),
            ..newest.clone()
        }
    }

    /// Returns the row with the longest prefix of a normalized name that does not split a number, and the prefix's
    /// length. The rows that match the name so far are adjacent; each byte narrows them down until none is left.
    fn longest_prefix(&self, name: &str) -> Option<(usize, &ModelRow)> {
        let mut matching = &self.rows[..];
        let mut best = None;
        for (at, byte) in name.bytes().enumerate() {
            let byte_at = |row: &(String, ModelRow)| row.0.as_bytes().get(at).copied();
            let from = matching.partition_point(|row| byte_at(row) < Some(byte));
            let to = matching.partition_point(|row| byte_at(row) <= Some(byte));
            matching = &matching[from..to];
            let Some((prefix, row)) = matching.first() else { break };
            if prefix.len() == at + 1 && !splits_number(name, at + 1) {
                best = Some((prefix.len(), row));
            }
        }
        best
    }

    /// Returns the row for exactly this prefix.
    pub fn row(&self, prefix: &str) -> Option<&ModelRow> {
        let prefix = normalize_name(prefix);
        let at = self.rows.binary_search_by(|(other, _)| other.cmp(&prefix)).ok()?;
        Some(&self.rows[at].1)
    }

    /// Returns all rows, sorted by prefix.
    pub fn rows(&self) -> Vec<&ModelRow> {
        let mut rows: Vec<&ModelRow> = self.rows.iter().map(|(_, row)| row).collect();
        rows.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        rows
    }
}

/// Returns the part of a model name that is used: trimmed, and at most 256 bytes. Names come from clients, which can
/// send any text; store and log no more of one than this.
///
/// ```
/// assert_eq!(foldline::models::model_name(" gpt-4o "), "gpt-4o");
/// assert_eq!(foldline::models::model_name(&"/".repeat(200_000)).len(), 256);
/// ```
pub fn model_name(name: &str) -> &str {
    let name = name.trim();
    &name[..name.floor_char_boundary(MAX_NAME_BYTES)]
}

/// Normalizes a name: lowercase, with dots and underscores as dashes, because hosts spell `claude-opus-4-5` as
/// `claude-opus-4.5`.
fn normalize_name(name: &str) -> String {
    name.trim().chars().map(|c| if matches!(c, '.' | '_') { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Splits a normalized name into the words before its version, and the version: `gpt-` and 5.6 of `gpt-5-6-sol`. Dates
/// and sizes (`20b`) are not versions.
fn split_version(name: &str) -> Option<(&str, Vec<u8>)> {
    let start = name.find(|c: char| c.is_ascii_digit())?;
    let mut version = Vec::new();
    for piece in name[start..].split('-') {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = piece.split_at(digits);
        if !(1..=2).contains(&digits) || rest.starts_with('b') {
            break;
        }
        version.push(number.parse().ok()?);
        if !rest.is_empty() {
            break;
        }
    }
    (!version.is_empty()).then_some((&name[..start], version))
}

/// Returns the prefixes of a normalized name that do not split a number, longest first.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    let ends = name.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
    ends.filter(|&end| !splits_number(name, end)).map(|end| &name[..end])
}

/// Returns true if a prefix with this end would split a number of the name: `gpt-4-1` is not a prefix of
/// `gpt-4-1106-preview`.
fn splits_number(name: &str, end: usize) -> bool {
    let digit_at = |at: usize| name.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    digit_at(end - 1) && digit_at(end)
}

/// Fills every empty cell from the family: the row with the longest shorter prefix; for a host's row, the row of the
/// model after the slash; finally the row `*`.
fn resolve_rows(cells: &HashMap<String, Vec<(String, String)>>) -> Vec<(String, ModelRow)> {
    let mut shortest_first: Vec<&String> = cells.keys().collect();
    shortest_first.sort_by_key(|prefix| (prefix.as_str() != DEFAULT_PREFIX, prefix.len()));
    let mut rows: HashMap<String, ModelRow> = HashMap::new();
    for prefix in shortest_first {
        let model = prefix.rsplit('/').next().unwrap_or(prefix);
        let family =
            prefixes(model).find_map(|shorter| rows.get(shorter)).or_else(|| rows.get(DEFAULT_PREFIX)).cloned();
        let mut row = family.unwrap_or_else(ModelRow::empty);
        for (column, cell) in &cells[prefix] {
            row.set_cell(column, cell).expect("cells were validated when the table was parsed");
        }
        rows.insert(prefix.clone(), row);
    }
    let mut sorted: Vec<(String, ModelRow)> = rows.into_iter().collect();
    sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
    sorted
}

/// The reason why a cell could not be set.
#[derive(Debug, PartialEq, Eq)]
enum CellError {
    UnknownColumn,
    InvalidValue(&'static str),
}

impl CellError {
    fn message_for(&self, cell: &str) -> String {
        match self {
            CellError::UnknownColumn => format!("unknown column; the columns are {}", COLUMNS.join(", ")),
            CellError::InvalidValue(expected) => format!("`{cell}` is not {expected}"),
        }
    }
}

impl ModelRow {
    /// Returns a row without facts: nothing fits, nothing is cached.
    fn empty() -> Self {
        ModelRow {
            prefix: DEFAULT_PREFIX.to_owned(),
            provider: String::new(),
            window: 0,
            max_input: None,
            max_output: 0,
            usd_in: 0.0,
            usd_out: 0.0,
            cache_read: 1.0,
            cache_write: 1.0,
            cache_write_hour: None,
            long_price_above: None,
            min_prefix: 0,
            cache_ttl: None,
            vocabulary: "estimate".to_owned(),
            scale: 1.0,
            images: ImageRule::Fixed(0),
            per_message: 0,
            per_call: 0,
            per_request: 0,
            tool_prompt: 0,
            signed_history: false,
            laws: Vec::new(),
            newer_than: None,
        }
    }

    /// Returns true if a provider bills the model by list prices: false for unknown models, and for open weights without
    /// a host, whose prices in the table are only guesses.
    pub fn has_list_price(&self) -> bool {
        self.usd_in > 0.0 && !matches!(self.provider.as_str(), "unknown" | "open-weights" | "")
    }

    /// Sets one column from the text of a cell; a dash is "none", or zero for a required number.
    fn set_cell(&mut self, column: &str, cell: &str) -> Result<(), CellError> {
        match column {
            "prefix" => self.prefix = cell.to_owned(),
            "provider" => self.provider = cell.to_owned(),
            "window" => self.window = parse_count(cell)?.unwrap_or(0),
            "max_input" => self.max_input = parse_count(cell)?,
            "max_output" => self.max_output = parse_count(cell)?.unwrap_or(0),
            "usd_in" => self.usd_in = parse_price(cell)?.unwrap_or(0.0),
            "usd_out" => self.usd_out = parse_price(cell)?.unwrap_or(0.0),
            "cache_read" => self.cache_read = parse_price(cell)?.unwrap_or(1.0),
            "cache_write" => self.cache_write = parse_price(cell)?.unwrap_or(1.0),
            "cache_write_1h" => self.cache_write_hour = parse_price(cell)?,
            "long_price_above" => self.long_price_above = parse_count(cell)?,
            "min_prefix" => self.min_prefix = parse_count(cell)?.unwrap_or(0),
            "cache_life" => self.cache_ttl = parse_count(cell)?.map(Duration::from_secs),
            "vocab" => self.vocabulary = cell.to_owned(),
            "scale" => self.scale = parse_price(cell)?.unwrap_or(1.0),
            "images" => self.images = parse_image_rule(cell)?,
            "per_message" => self.per_message = parse_count(cell)?.unwrap_or(0),
            "per_call" => self.per_call = parse_count(cell)?.unwrap_or(0),
            "per_request" => self.per_request = parse_count(cell)?.unwrap_or(0),
            "tool_prompt" => self.tool_prompt = parse_count(cell)?.unwrap_or(0),
            "signed_history" => {
                self.signed_history = match cell {
                    "yes" => true,
                    "no" | "-" => false,
                    _ => return Err(CellError::InvalidValue("`yes` or `no`")),
                }
            }
            "laws" => {
                let is_id = |id: &&str| id.starts_with(|c: char| c.is_ascii_uppercase());
                let ids: Vec<&str> = cell.split_whitespace().filter(|id| *id != "-").collect();
                if !ids.iter().all(is_id) {
                    return Err(CellError::InvalidValue("a list of law ids such as `A2.3`"));
                }
                self.laws = ids.into_iter().map(str::to_owned).collect();
            }
            _ => return Err(CellError::UnknownColumn),
        }
        Ok(())
    }
}

fn parse_count(cell: &str) -> Result<Option<Tokens>, CellError> {
    match cell {
        "-" => Ok(None),
        _ => cell.parse().map(Some).map_err(|_| CellError::InvalidValue("a whole number")),
    }
}

fn parse_price(cell: &str) -> Result<Option<f64>, CellError> {
    match cell {
        "-" => Ok(None),
        _ => match cell.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err(CellError::InvalidValue("a number of at least 0")),
        },
    }
}

fn parse_image_rule(cell: &str) -> Result<ImageRule, CellError> {
    match cell {
        "-" => Ok(ImageRule::Fixed(0)),
        _ => ImageRule::parse(cell).ok_or(CellError::InvalidValue(
            "fixed:TOKENS, squares:SIDE:EDGE:TOKENS, tiles:BASE:TILE or patches:BUDGET:FACTOR",
        )),
    }
}

impl ModelTableError {
    fn in_column(line: usize, column: &str, problem: &str) -> Self {
        ModelTableError { line, column: Some(column.to_owned()), problem: problem.to_owned() }
    }

    /// Returns the line of the table, starting at 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the name of the column, if the error is in one.
    pub fn column(&self) -> Option<&str> {
        self.column.as_deref()
    }
}

impl fmt::Display for ModelTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model table, line {}", self.line)?;
        if let Some(column) = &self.column {
            write!(f, ", column `{column}`")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for ModelTableError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(model: &str) -> String {
        ModelTable::builtin().find(Some(model)).prefix
    }

    #[test]
    fn unknown_newer_member_gets_the_newest_window_of_its_family() {
        let limits = |model: &str| {
            let row = ModelTable::builtin().find(Some(model));
            (row.window, row.max_input)
        };
        for model in ["gpt-7-sol", "gpt-6.2", "gpt-5.7", "openai/gpt-7"] {
            assert_eq!(limits(model), (1_050_000, Some(922_000)), "{model}");
        }
        for model in ["claude-opus-6", "claude-haiku-6", "claude-zeta-6", "eu.anthropic.claude-opus-6-v1:0", "kimi-k4"]
        {
            assert_eq!(limits(model).0, 1_000_000, "{model}");
        }
        assert_eq!(limits("gpt-5-2025-08-07"), (400_000, Some(272_000)), "a date is not a version");
        assert_eq!(limits("gpt-oss-200b").0, 131_072, "a size is not a version");
        assert_eq!(limits("claude-sonnet-4-20250514").0, 200_000);
        assert_eq!(limits("claude-opus-4-9").0, 1_000_000);
    }

    #[test]
    fn unknown_newer_member_has_the_laws_and_prices_of_the_newest() {
        let table = ModelTable::builtin();
        let (newest, newer) = (table.find(Some("claude-opus-5-5")), table.find(Some("claude-opus-6")));
        assert!(newer.signed_history, "an edit of history would invalidate its reasoning");
        assert_eq!((&newer.laws, newer.usd_in, newer.cache_read), (&newest.laws, newest.usd_in, newest.cache_read));
        assert_eq!((newer.prefix.as_str(), newer.newer_than.as_deref()), ("claude", Some("claude-opus-5-5")));
        let unknown = table.find(Some("claude-zeta-6"));
        assert!(unknown.signed_history && unknown.newer_than.is_some());
        assert_eq!(unknown.usd_in, table.find(Some("claude")).usd_in, "the price of another kind of model is no guess");
        assert_eq!(newest.newer_than, None);
    }

    #[test]
    fn models_of_november_2026_have_their_windows_and_prices() {
        for (model, window, usd_in, usd_out, cache_read) in [
            ("gpt-6-astra", 1_050_000, 10.0, 50.0, 0.1),
            ("gpt-6.1-sol", 1_050_000, 2.0, 10.0, 0.05),
            ("claude-haiku-5-5", 1_000_000, 0.1, 0.5, 0.1),
            ("claude-opus-5-5", 1_000_000, 4.0, 20.0, 0.05),
            ("gemini-4-argon", 1_048_576, 2.0, 10.0, 0.05),
            ("gemini-3.8-flash", 1_048_576, 0.75, 3.75, 0.1),
            ("kimi-k3", 1_000_000, 3.0, 15.0, 0.1),
            ("qwen3.8-max", 991_808, 2.0, 6.0, 0.125),
        ] {
            let row = ModelTable::builtin().find(Some(model));
            assert_eq!(
                (row.window, row.usd_in, row.usd_out, row.cache_read),
                (window, usd_in, usd_out, cache_read),
                "{model}"
            );
        }
        for (model, window) in [("glm-5.3", 1_000_000), ("grok-4.6", 500_000), ("mistral-large-4", 1_000_000)] {
            assert_eq!(ModelTable::builtin().find(Some(model)).window, window, "{model}");
        }
    }

    #[test]
    fn unknown_column_lists_the_columns() {
        let error = ModelTable::builtin().overlay("prefix,windows\nm,1\n").unwrap_err().to_string();
        assert!(
            error.contains("column `windows`: unknown column; the columns are prefix, provider, window,"),
            "{error}"
        );
        let mut row = ModelRow::empty();
        for column in COLUMNS {
            assert_ne!(row.set_cell(column, "-"), Err(CellError::UnknownColumn), "{column}");
        }
    }

    #[test]
    fn unknown_and_open_models_have_no_list_price() {
        let priced = |model| ModelTable::builtin().find(Some(model)).has_list_price();
        assert!(priced("claude-opus-4-6") && priced("gpt-5"));
        assert!(!priced("my-finetune") && !priced("gemma-3-27b-it"));
    }

    #[test]
    fn model_is_found_in_every_spelling() {
        for (model, row) in [
            ("gpt-4o-2024-08-06", "gpt-4o"),
            ("GPT-4o-Mini", "gpt-4o-mini"),
            ("openai/gpt-5.4-mini:free", "gpt-5.4-mini"),
            ("gpt-4-1106-preview", "gpt-4"),
            ("gpt-4.1-2025-04-14", "gpt-4.1"),
            ("ft:gpt-4o:acme::a1b2", "gpt-4o"),
            ("claude-opus-4-5-20251101", "claude-opus-4-5"),
            ("claude-opus-4-20250514", "claude-opus-4"),
            ("claude-opus-4.5", "claude-opus-4-5"),
            ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
            ("us.anthropic.claude-opus-4-1-20250805-v1:0", "claude-opus-4-1"),
            ("openrouter/anthropic/claude-opus-5.5", "claude-opus-5-5"),
            ("claude-sonnet-4-5[1m]", "claude-sonnet-4-5"),
            ("github-copilot/claude-opus-4.8", "github-copilot/claude-opus-4.8"),
            ("models/gemini-2.5-pro", "gemini-2.5-pro"),
            ("Qwen/Qwen3-32B", "qwen3-32b"),
            ("accounts/fireworks/models/deepseek-v3.2", "deepseek-v3.2"),
            ("amazon.nova-pro-v1:0", "nova-pro"),
            ("claude-next-9", "claude"),
            ("gpt-7", "gpt"),
            ("something-else", "*"),
            ("", "*"),
            ("日本語/模型", "*"),
        ] {
            assert_eq!(prefix(model), row, "{model}");
        }
    }

    /// Returns the shortest of several measured lookup times.
    fn lookup_time(name: &str) -> Duration {
        let table = ModelTable::builtin();
        let times = (0..9).map(|_| {
            let start = std::time::Instant::now();
            (0..4).for_each(|_| drop(std::hint::black_box(table.find(Some(name)))));
            start.elapsed()
        });
        times.min().unwrap()
    }

    #[test]
    fn lookup_time_is_bounded_for_hostile_names() {
        for part in ["/", "a", "gpt-4o.", "claude/"] {
            let name = |bytes: usize| part.repeat(bytes / part.len());
            let times = [128, 256, 2_048].map(|bytes| lookup_time(&name(bytes)));
            assert!(times[1] < times[0] * 5, "more than quadratic: {part:?} {times:?}");
            assert!(times[2] < times[1] * 3, "grows with the name: {part:?} {times:?}");
        }
    }

    #[test]
    fn only_the_first_256_bytes_of_a_name_count() {
        assert_eq!(prefix(&format!("{}/gpt-4o", "x".repeat(200))), "gpt-4o");
        assert_eq!(prefix(&format!("{}/gpt-4o", "x".repeat(300))), "*");
        assert_eq!(prefix(&format!("{}gpt-4o", " ".repeat(300))), "gpt-4o", "surrounding space is trimmed");
        assert_eq!(prefix(&format!("gpt-4o{}", "日".repeat(300))), "gpt-4o", "cut between two characters");
    }

    /// Every row is found by its name, bare and in the spellings of hosts, and equals the result of an exhaustive
    /// search.
    #[test]
    fn lookup_equals_an_exhaustive_search() {
        fn exhaustive(table: &ModelTable, name: &str) -> String {
            let (name, normalized) = (name.trim(), normalize_name(name));
            let starts = std::iter::once(0).chain(name.match_indices(['/', ':', '.']).map(|(at, _)| at + 1));
            let found = starts.flat_map(|start| prefixes(&normalized[start..]).filter_map(|prefix| table.row(prefix)));
            // Among prefixes of the same length the first one in the name wins.
            let found = found.reduce(|best, row| if row.prefix.len() > best.prefix.len() { row } else { best });
            found.map_or(DEFAULT_PREFIX, |row| &row.prefix).to_owned()
        }
        let table = ModelTable::builtin().overlay("prefix,window\na/b.c,8192\n日本,8192\nx1,8192\n").unwrap();
        let before = ["", "openai/", "bedrock/us.anthropic.", "ft:", "gpt-4o/", " 日"];
        let after = ["", ":free", "-20250929-v1:0", "@20250929", "1", "-1106-preview", "[1m]", "日"];
        for row in table.rows() {
            for (index, before) in before.iter().enumerate() {
                for after in &after[index % 2..] {
                    let name = format!("{before}{}{after}", row.prefix);
                    let name = if index % 3 == 0 { name.to_uppercase().replace('-', "_") } else { name };
                    assert_eq!(table.find(Some(&name)).prefix, exhaustive(&table, &name), "{name}");
                }
            }
        }
    }

    #[test]
    fn unknown_model_gets_a_conservative_row() {
        let row = ModelTable::builtin().find(None);
        assert_eq!((row.window, row.max_input, row.vocabulary.as_str()), (128_000, None, "estimate"));
        assert!(!row.signed_history);
    }

    #[test]
    fn one_million_window_is_selected_by_name() {
        let table = ModelTable::builtin();
        assert_eq!(table.find(Some("claude-sonnet-4-5")).window, 200_000);
        assert_eq!(table.find(Some("claude-sonnet-4-5[1m]")).window, 1_000_000);
    }

    #[test]
    fn empty_cells_inherit_and_dashes_clear() {
        let table = ModelTable::builtin();
        let newer = table.find(Some("claude-opus-5-5"));
        let older = table.find(Some("claude-opus-5"));
        assert_eq!((newer.window, newer.max_output), (older.window, older.max_output));
        assert_eq!((newer.cache_read, older.cache_read), (0.05, 0.1));
        assert_eq!((newer.signed_history, older.signed_history), (true, false));
        assert_eq!(table.find(Some("gpt-5")).max_input, Some(272_000));
        assert_eq!(table.find(Some("gpt-5.3-chat-latest")).max_input, None);
        // A host's row inherits from the model after the slash.
        assert_eq!(table.find(Some("github-copilot/gpt-5.5")).per_message, table.find(Some("gpt-5.5")).per_message);
    }

    #[test]
    fn signed_history_matches_the_law() {
        let signed = [
            "claude-fable-5-1",
            "claude-fable-5-2",
            "claude-mythos-5-1",
            "claude-mythos-5-2",
            "claude-opus-5-5",
            "claude-sonnet-5-5",
            "claude-haiku-5-5",
        ];
        let signed_rows: Vec<&str> = ModelTable::builtin()
            .rows()
            .into_iter()
            .filter(|row| row.signed_history)
            .map(|row| row.prefix.as_str())
            .collect();
        let mut signed = signed.to_vec();
        signed.sort_unstable();
        assert_eq!(signed_rows, signed);
    }

    /// Every row of the built-in table is plausible: a window, an answer that fits it, ordered prices, a known
    /// vocabulary.
    #[test]
    fn builtin_rows_are_plausible() {
        for row in ModelTable::builtin().rows() {
            assert!(row.window >= 8_192, "{row:?}");
            assert!(row.max_input.is_none_or(|cap| cap <= row.window), "{row:?}");
            assert!(row.max_output > 0 && row.max_output <= row.window, "{row:?}");
            assert!(row.cache_read <= 1.0 && row.cache_write >= 1.0 && row.scale > 0.0, "{row:?}");
            let name = row.vocabulary.trim_start_matches('~');
            let known =
                ["estimate", "o200k", "cl100k", "qwen2", "mistral", "llama3", "deepseek", "kimi", "glm", "minimax"];
            assert!(known.contains(&name), "{row:?}");
        }
    }

    #[test]
    fn overlay_changes_only_what_it_names() {
        let table = ModelTable::builtin();
        let text = "# mine\n\nwindow , prefix\n64000, gpt-4o\n 4096,tiny\n";
        let mine = table.overlay(text).unwrap();
        assert_eq!(mine.find(Some("gpt-4o")), ModelRow { window: 64_000, ..table.find(Some("gpt-4o")) });
        // A row that inherits from the changed one but sets its own window.
        assert_eq!(mine.find(Some("gpt-4o-mini")), table.find(Some("gpt-4o-mini")));
        assert_eq!(mine.find(Some("tiny-chat")).window, 4_096);
        assert_eq!(table.overlay("").unwrap().rows().len(), table.rows().len());
        let twice = mine.overlay("prefix,window\ntiny,8192").unwrap();
        assert_eq!(twice.find(Some("tiny")).window, 8_192);
    }

    #[test]
    fn errors_name_line_and_column() {
        let error = |csv: &str| ModelTable::builtin().overlay(csv).unwrap_err().to_string();
        assert_eq!(error("prefix,window\nmine,8k"), "model table, line 2, column `window`: `8k` is not a whole number");
        assert_eq!(
            error("# a\nprefix,cache_read\nmine,-0.5"),
            "model table, line 3, column `cache_read`: `-0.5` is not a number of at least 0"
        );
        assert_eq!(
            error("prefix,windows\n"),
            format!("model table, line 1, column `windows`: unknown column; the columns are {}", COLUMNS.join(", "))
        );
        assert_eq!(error("window\n8192"), "model table, line 1, column `prefix`: the first line must name this column");
        assert_eq!(
            error(&format!("prefix,window\n{},8192", "m".repeat(257))),
            "model table, line 2, column `prefix`: longer than the 256 bytes of a name that are used"
        );
        assert_eq!(error("prefix,window\nmine"), "model table, line 2: 1 cells for 2 columns");
        assert!(
            error("prefix,images\nmine,round:5").contains("line 2, column `images`: `round:5` is not fixed:TOKENS")
        );
        let full = ModelTable::builtin().overlay("prefix,usd_in\nmine,nan").unwrap_err();
        assert_eq!((full.line(), full.column()), (2, Some("usd_in")));
    }
}

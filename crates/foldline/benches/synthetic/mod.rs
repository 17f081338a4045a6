//! Text as tools print it, made up: always the same from the same seed.
//!
//! It is made like what people have recorded, since what a text costs to count and to fold is decided by how often its words and names
//! come again. Of the tool results in recorded sessions of half a megabyte to two (64 of the development set, 30 MB), and of
//! a megabyte of this:
//!
//! | | recorded | made up |
//! |---|--:|--:|
//! | bytes of a line, of a token | 53, 3.6 | 50, 3.9 |
//! | lines that were printed before | 23 % | 25 % |
//! | words in a kilobyte, and new ones | 118, 9.1 | 134, 7.8 |
//! | names in a kilobyte, and new ones | 35, 7.4 | 33, 8.1 |

/// Whoever prints it: knows what was printed before.
pub(crate) struct TextGenerator {
    state: u64,
    names: Vec<String>,
    paths: Vec<String>,
    lines: Vec<String>,
    /// Which line is printed again next, and how many more.
    repeat: (usize, usize),
}

/// So many names are talked of at a time, and so many lines may be printed again: a session that goes on talks of other things,
/// and not of ever more.
const MAX_ACTIVE_NAMES: usize = 3_000;

const VOCABULARY_WORDS: [&str; 112] = [
    "the", "a", "of", "to", "is", "in", "for", "not", "value", "if", "this", "and", "read", "line", "file", "with",
    "error", "return", "be", "it", "on", "from", "that", "index", "name", "set", "list", "node", "test", "path", "key",
    "state", "when", "all", "new", "count", "by", "must", "type", "size", "parse", "first", "last", "next", "call",
    "open", "write", "item", "text", "found", "start", "end", "map", "one", "has", "each", "at", "limit", "default",
    "config", "result", "none", "same", "into", "before", "request", "message", "field", "only", "buffer", "input",
    "output", "cache", "after", "while", "block", "order", "check", "empty", "table", "group", "token", "match",
    "user", "time", "load", "store", "view", "event", "client", "handle", "format", "child", "merge", "queue", "frame",
    "label", "option", "module", "filter", "source", "target", "update", "schema", "worker", "column", "closed",
    "parent", "header", "prefix", "render", "offset",
];

impl TextGenerator {
    pub(crate) fn new(seed: u64) -> Self {
        let state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut printer = Self { state, names: Vec::new(), paths: Vec::new(), lines: Vec::new(), repeat: (0, 0) };
        printer.names = (0..40).map(|_| printer.new_name()).collect();
        printer.paths = (0..8).map(|_| printer.new_path()).collect();
        printer
    }

    fn random_below(&mut self, sides: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 33) as usize % sides
    }

    /// One of so many, the first far more often than the last.
    fn skewed_index(&mut self, many: usize) -> usize {
        let throw = self.random_below(1 << 16) as f64 / f64::from(1 << 16);
        (throw * throw * many as f64) as usize
    }

    fn common_word(&mut self) -> &'static str {
        VOCABULARY_WORDS[self.skewed_index(VOCABULARY_WORDS.len())]
    }

    fn random_word(&mut self) -> &'static str {
        VOCABULARY_WORDS[self.random_below(VOCABULARY_WORDS.len())]
    }

    fn new_name(&mut self) -> String {
        let (a, b) = (self.random_word(), self.random_word());
        match self.random_below(4) {
            0 => format!("{a}_{b}_{}", self.random_word()),
            1 => format!("{a}{}{}", b[..1].to_uppercase(), &b[1..]),
            2 => format!("{a}_{b}{}", self.random_below(100)),
            _ => format!("{a}_{b}"),
        }
    }

    fn new_path(&mut self) -> String {
        format!("src/{}/{}_{}.rs", self.random_word(), self.random_word(), self.random_word())
    }

    /// What is talked about, and now and then something new.
    fn name(&mut self) -> String {
        if self.random_below(6) == 0 {
            let name = self.new_name();
            let at = self.skewed_index(self.names.len());
            self.names.insert(self.names.len() - at, name.clone());
            if self.names.len() > MAX_ACTIVE_NAMES {
                self.names.remove(0);
            }
            return name;
        }
        let at = self.skewed_index(self.names.len());
        self.names[self.names.len() - 1 - at].clone()
    }

    pub(crate) fn path(&mut self) -> String {
        if self.random_below(6) == 0 {
            let path = self.new_path();
            self.paths.push(path);
        }
        let at = self.skewed_index(self.paths.len().min(MAX_ACTIVE_NAMES / 10));
        self.paths[self.paths.len() - 1 - at].clone()
    }

    fn words(&mut self, count: usize) -> String {
        let mut words = String::new();
        for at in 0..count {
            words += if at > 0 { " " } else { "" };
            words += self.common_word();
            // Now and then a word of two.
            if self.random_below(16) == 0 {
                words += self.random_word();
            }
        }
        words
    }

    /// A line of a source, a log, a listing or a text, or one that was printed before, with those that followed it.
    fn line(&mut self) -> String {
        if let (at, 1..) = self.repeat {
            self.repeat = (at + 1, self.repeat.1 - 1);
            return self.lines[at].clone();
        }
        if self.random_below(56) == 0 && self.lines.len() > 100 {
            let back = 30 + self.random_below(self.lines.len().min(MAX_ACTIVE_NAMES) - 30);
            self.repeat = (self.lines.len() - back, 3 + self.random_below(24));
        }
        match self.random_below(12) {
            0 => String::new(),
            1 => "        }".to_owned(),
            2 => {
                format!("        let {} = self.{}({}, &{});", self.name(), self.name(), self.common_word(), self.name())
            }
            3 => format!(
                "    pub fn {}(&self, {}: &str) -> Option<{}> {{",
                self.name(),
                self.common_word(),
                self.random_word()
            ),
            4 => format!(
                "        if {}.{}() && {} == {} {{",
                self.random_word(),
                self.name(),
                self.random_word(),
                self.random_below(1_000)
            ),
            5 => format!("    /// {} `{}`, {} {}.", self.words(3), self.name(), self.words(5), self.random_word()),
            6 => format!("        // {} {} {}", self.words(7), self.random_word(), self.random_word()),
            7 => format!("{}:{}: {} {}", self.path(), self.random_below(900), self.words(2), self.name()),
            8 => {
                format!("test {}::tests::{} ... ok ({} ms)", self.random_word(), self.name(), self.random_below(5_000))
            }
            9 => {
                format!(
                    "        return self.{}({}, \"{} {}\")?;",
                    self.name(),
                    self.name(),
                    self.words(2),
                    self.random_word()
                )
            }
            10 => format!("- {}: {} ({:07x})", self.random_word(), self.words(8), self.random_below(1 << 28)),
            _ => format!("{} {} {}", self.words(9), self.random_word(), self.random_word()),
        }
    }

    /// Lines of so many bytes, at the least.
    pub(crate) fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 80);
        while text.len() < bytes {
            let line = self.line();
            text += &line;
            text.push('\n');
            self.lines.push(line);
        }
        text
    }
}

//! Generated text that resembles tool output; deterministic for a seed.
//!
//! The cost of counting and folding a text depends on how often its words and names repeat, so the generator is
//! fitted to recordings. Tool results in recorded sessions of half a megabyte to two (64 of the development set, 30
//! MB), and one megabyte of generated text:
//!
//! | | recorded | generated |
//! |---|--:|--:|
//! | bytes per line, per token | 53, 3.6 | 50, 3.9 |
//! | lines that were printed before | 23 % | 25 % |
//! | words per kilobyte, new ones | 118, 9.1 | 134, 7.8 |
//! | names per kilobyte, new ones | 35, 7.4 | 33, 8.1 |

/// A generator of tool output that can repeat its own lines.
pub(crate) struct TextGenerator {
    state: u64,
    names: Vec<String>,
    paths: Vec<String>,
    lines: Vec<String>,
    /// Index of the next repeated line, and the number of lines still to repeat.
    repeat: (usize, usize),
}

/// Maximum numbers of names in use and of lines that may be repeated: a long session moves to other topics and does
/// not accumulate them.
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
        let mut generator = Self { state, names: Vec::new(), paths: Vec::new(), lines: Vec::new(), repeat: (0, 0) };
        generator.names = (0..40).map(|_| generator.new_name()).collect();
        generator.paths = (0..8).map(|_| generator.new_path()).collect();
        generator
    }

    fn random_below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 33) as usize % bound
    }

    /// Returns an index below `count`, small ones far more often than large ones.
    fn skewed_index(&mut self, count: usize) -> usize {
        let random = self.random_below(1 << 16) as f64 / f64::from(1 << 16);
        (random * random * count as f64) as usize
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

    /// Returns a name in use, or sometimes a new one.
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
            // Sometimes a compound of two words.
            if self.random_below(16) == 0 {
                words += self.random_word();
            }
        }
        words
    }

    /// Returns a line of source, log, listing or prose, or a repeated line with those that followed it.
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

    /// Returns lines of at least `bytes` bytes.
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

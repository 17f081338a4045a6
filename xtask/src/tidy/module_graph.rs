//! Dependencies between the source files of a crate, and their cycles.
//!
//! A file depends on another if its non-test code names an item that is defined there: by a `use`, or by a path that
//! begins with `crate`, `super`, `self`, a child module or an imported name. Re-exports are followed to the file of the
//! definition; declaring a module, importing a module or re-exporting an item is not a dependency. Names that only macros or
//! `Self` resolve are not seen.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Item, UseTree, Visibility};

use crate::source_tree::{RustFile, SourceTree, is_test_item, item_attributes};

/// The most re-exports that are followed to a definition.
const MAX_REEXPORTS: usize = 12;

/// The files of a crate that are not test code, and which of them use which.
pub(crate) struct ModuleGraph {
    modules: Vec<Module>,
}

/// A module: a file, or an inline module of one.
struct Module {
    /// Path of the file.
    path: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names of the items that are defined here.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Tokens of everything but imports and modules.
    body: Vec<PathToken>,
}

/// One name of a `use`.
struct Import {
    /// The name in scope, or `*`.
    name: String,
    path: Vec<String>,
    is_reexport: bool,
}

/// The tokens that matter for paths.
#[derive(PartialEq)]
enum PathToken {
    Word(String),
    Separator,
    Comma,
    Open,
    Close,
    Other,
}

impl ModuleGraph {
    /// Reads the modules of the crate whose sources are in this folder.
    pub(crate) fn read(tree: &SourceTree, folder: &str) -> Self {
        let mut graph = ModuleGraph { modules: Vec::new() };
        let files: BTreeMap<&str, &RustFile> = tree.rust_files.iter().map(|file| (file.path.as_str(), file)).collect();
        for root in ["lib.rs", "main.rs"] {
            if let Some(file) = files.get(format!("{folder}{root}").as_str()) {
                graph.add_module(&files, &file.path, folder, None, &file.syntax.items);
            }
        }
        graph
    }

    /// Returns the paths of all files of the crate that are not test code.
    pub(crate) fn files(&self) -> BTreeSet<&str> {
        self.modules.iter().map(|module| module.path.as_str()).collect()
    }

    fn add_module(
        &mut self,
        files: &BTreeMap<&str, &RustFile>,
        path: &str,
        folder: &str,
        parent: Option<usize>,
        items: &[Item],
    ) -> usize {
        let at = self.modules.len();
        self.modules.push(Module {
            path: path.to_owned(),
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: Vec::new(),
            body: Vec::new(),
        });
        for item in items.iter().filter(|item| !is_test_item(item_attributes(item))) {
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let inside = format!("{folder}{name}/");
                    let child = match &module.content {
                        Some((_, items)) => Some(self.add_module(files, path, &inside, Some(at), items)),
                        None => [format!("{folder}{name}.rs"), format!("{inside}mod.rs")]
                            .iter()
                            .find_map(|candidate| files.get(candidate.as_str()))
                            .map(|file| self.add_module(files, &file.path, &inside, Some(at), &file.syntax.items)),
                    };
                    if let Some(child) = child {
                        self.modules[at].children.insert(name, child);
                    }
                }
                Item::Use(import) => {
                    let is_reexport = !matches!(import.vis, Visibility::Inherited);
                    read_imports(&import.tree, &mut Vec::new(), is_reexport, &mut self.modules[at].imports);
                }
                _ => {
                    let module = &mut self.modules[at];
                    module.items.extend(item_name(item));
                    read_tokens(shipped_tokens(item), &mut module.body);
                }
            }
        }
        at
    }

    /// Returns for each file the files whose items it uses.
    fn dependencies(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (at, module) in self.modules.iter().enumerate() {
            let words: BTreeSet<&str> = module
                .body
                .iter()
                .filter_map(|token| match token {
                    PathToken::Word(word) => Some(word.as_str()),
                    _ => None,
                })
                .collect();
            let mut paths: Vec<Vec<String>> = Vec::new();
            for import in &module.imports {
                if !import.is_reexport || words.contains(import.name.as_str()) {
                    paths.push(import.path.clone());
                }
            }
            read_paths(&module.body, &mut paths);
            let used = paths.iter().filter_map(|path| self.definition(at, path, 0));
            let used = used.map(|other| self.modules[other].path.as_str()).filter(|path| *path != module.path);
            graph.entry(&module.path).or_default().extend(used);
        }
        graph
    }

    /// Returns the module that defines what a path names, if that is an item of this crate and not a module.
    fn definition(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        if depth > MAX_REEXPORTS {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.definition_in(self.root_of(from), rest, depth),
            "self" => self.definition_in(from, rest, depth),
            "super" => self.definition_in(self.modules[from].parent?, rest, depth),
            name => {
                let module = &self.modules[from];
                let known = module.children.contains_key(name)
                    || module.items.contains(name)
                    || module.imports.iter().any(|import| import.name == name && import.path[0] != name);
                known.then(|| self.definition_in(from, path, depth)).flatten()
            }
        }
    }

    fn definition_in(&self, mut at: usize, path: &[String], depth: usize) -> Option<usize> {
        for (position, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            if name == "super" {
                at = module.parent?;
                continue;
            }
            if name == "*" {
                return (!module.body.is_empty()).then_some(at);
            }
            if let Some(child) = module.children.get(name) {
                at = *child;
                continue;
            }
            if module.items.contains(name) {
                return Some(at);
            }
            let rest = &path[position + 1..];
            let named = module.imports.iter().filter(|import| import.name == *name).map(|import| import.path.clone());
            let globs = module.imports.iter().filter(|import| import.name == "*").map(|import| {
                let mut path = import.path.clone();
                path.pop();
                path.push(name.clone());
                path
            });
            let found = named
                .chain(globs)
                .map(|mut target| {
                    target.extend_from_slice(rest);
                    target
                })
                .find_map(|target| self.definition(at, &target, depth + 1));
            return found;
        }
        None
    }

    fn root_of(&self, mut at: usize) -> usize {
        while let Some(parent) = self.modules[at].parent {
            at = parent;
        }
        at
    }

    /// Returns the dependencies between the files of a group.
    pub(crate) fn dependencies_in(&self, group: &BTreeSet<&str>) -> Vec<(&str, &str)> {
        let mut edges = Vec::new();
        for (file, others) in self.dependencies().into_iter().filter(|(file, _)| group.contains(file)) {
            edges.extend(others.into_iter().filter(|other| group.contains(other)).map(|other| (file, other)));
        }
        edges
    }

    /// Returns the groups of files that depend on each other in a cycle.
    pub(crate) fn cycles(&self) -> Vec<BTreeSet<&str>> {
        let graph = self.dependencies();
        let reachable: BTreeMap<&str, BTreeSet<&str>> =
            graph.keys().map(|file| (*file, reachable_from(&graph, file))).collect();
        let mut cycles: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
        for (file, others) in &reachable {
            let group: BTreeSet<&str> =
                others.iter().filter(|other| reachable[*other].contains(file)).copied().collect();
            if group.len() > 1 {
                cycles.insert(group);
            }
        }
        cycles.into_iter().collect()
    }
}

fn reachable_from<'g>(graph: &BTreeMap<&'g str, BTreeSet<&'g str>>, file: &str) -> BTreeSet<&'g str> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = vec![file];
    while let Some(at) = open.pop() {
        for next in graph.get(at).into_iter().flatten() {
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    seen
}

fn item_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Returns the tokens of an item without the methods that only tests have, and without doc comments.
fn shipped_tokens(item: &Item) -> TokenStream {
    let mut item = item.clone();
    if let Item::Impl(block) = &mut item {
        block.items.retain(|member| match member {
            syn::ImplItem::Fn(method) => !is_test_item(&method.attrs),
            _ => true,
        });
    }
    item.into_token_stream()
}

fn read_imports(tree: &UseTree, prefix: &mut Vec<String>, is_reexport: bool, imports: &mut Vec<Import>) {
    let mut add = |name: String, last: Option<String>| {
        let path: Vec<String> = prefix.iter().cloned().chain(last).collect();
        if !path.is_empty() {
            imports.push(Import { name, path, is_reexport });
        }
    };
    match tree {
        UseTree::Name(name) if name.ident == "self" => add(prefix.last().cloned().unwrap_or_default(), None),
        UseTree::Name(name) => add(name.ident.to_string(), Some(name.ident.to_string())),
        UseTree::Rename(name) if name.ident == "self" => add(name.rename.to_string(), None),
        UseTree::Rename(name) => add(name.rename.to_string(), Some(name.ident.to_string())),
        UseTree::Glob(_) => add("*".into(), Some("*".into())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| read_imports(tree, prefix, is_reexport, imports)),
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            read_imports(&path.tree, prefix, is_reexport, imports);
            prefix.pop();
        }
    }
}

fn read_tokens(stream: TokenStream, tokens: &mut Vec<PathToken>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Ident(word) => tokens.push(PathToken::Word(word.to_string())),
            TokenTree::Punct(mark) if mark.as_char() == ',' => tokens.push(PathToken::Comma),
            TokenTree::Punct(mark) if mark.as_char() == ':' => {
                let second = trees.next_if(|tree| matches!(tree, TokenTree::Punct(next) if next.as_char() == ':'));
                tokens.push(if second.is_some() { PathToken::Separator } else { PathToken::Other });
            }
            TokenTree::Group(group) => {
                let is_brace = group.delimiter() == Delimiter::Brace;
                tokens.push(if is_brace { PathToken::Open } else { PathToken::Other });
                read_tokens(group.stream(), tokens);
                tokens.push(if is_brace { PathToken::Close } else { PathToken::Other });
            }
            _ => tokens.push(PathToken::Other),
        }
    }
}

/// Collects the paths with at least two segments, those of local imports in braces one by one.
fn read_paths(tokens: &[PathToken], paths: &mut Vec<Vec<String>>) {
    let mut at = 0;
    while at < tokens.len() {
        let follows = at > 0 && tokens[at - 1] == PathToken::Separator;
        let begins = matches!(tokens[at], PathToken::Word(_)) && tokens.get(at + 1) == Some(&PathToken::Separator);
        if begins && !follows {
            read_path(tokens, at, &mut Vec::new(), paths);
        }
        at += 1;
    }
}

/// Reads the path that begins at a token and returns the position after it.
fn read_path(tokens: &[PathToken], mut at: usize, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let length = prefix.len();
    loop {
        match tokens.get(at) {
            Some(PathToken::Word(word)) => {
                prefix.push(word.clone());
                at += 1;
            }
            Some(PathToken::Open) => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != PathToken::Close) {
                    at = read_path(tokens, at, prefix, paths).max(at + 1);
                    if tokens.get(at) == Some(&PathToken::Comma) {
                        at += 1;
                    }
                }
                prefix.truncate(length);
                return at + 1;
            }
            _ => break,
        }
        if tokens.get(at) != Some(&PathToken::Separator) {
            break;
        }
        at += 1;
    }
    paths.push(prefix.clone());
    prefix.truncate(length);
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let tree = tree(&files);
        let graph = ModuleGraph::read(&tree, "crates/a/src/");
        let names = |group: &BTreeSet<&str>| {
            group.iter().map(|path| path.trim_start_matches("crates/a/src/")).collect::<Vec<_>>().join(" ")
        };
        graph.cycles().iter().map(names).collect()
    }

    #[test]
    fn imports_in_both_directions_are_a_cycle() {
        let files = [
            ("lib.rs", "mod b; mod c; mod d;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "use super::b::B; pub struct C;"),
            ("d.rs", "use crate::{b::B, c::C};"),
        ];
        assert_eq!(cycles(&files), ["b.rs c.rs"]);
    }

    #[test]
    fn inline_paths_and_paths_in_macros_count() {
        let files = [
            ("lib.rs", "mod b; mod c;"),
            ("b.rs", "pub fn b() { println!(\"{}\", crate::c::c()) }"),
            ("c.rs", "pub fn c() { super::b::b() }"),
        ];
        assert_eq!(cycles(&files), ["b.rs c.rs"]);
    }

    #[test]
    fn imported_modules_count_where_their_items_are_used() {
        let files = [
            ("lib.rs", "mod b; mod c;"),
            ("b/mod.rs", "use crate::c; pub mod e; pub fn b() { c::c() }"),
            ("b/e.rs", "pub fn e() {}"),
            ("c.rs", "use crate::b; pub fn c() { b::e::e() }"),
        ];
        assert_eq!(cycles(&files), Vec::<String>::new());
    }

    #[test]
    fn reexports_are_followed_and_do_not_count() {
        let files = [
            ("lib.rs", "mod b; mod c; pub use crate::b::B; pub use c::*;"),
            ("b.rs", "pub struct B; use crate::C;"),
            ("c/mod.rs", "mod e; pub use e::C;"),
            ("c/e.rs", "pub struct C; pub fn c() { crate::B; }"),
        ];
        assert_eq!(cycles(&files), ["b.rs c/e.rs"]);
    }

    #[test]
    fn parent_with_code_can_be_part_of_a_cycle() {
        let files = [
            ("lib.rs", "mod b;"),
            ("b/mod.rs", "mod e; pub struct B; fn b() { e::e() }"),
            ("b/e.rs", "use super::B; pub fn e() {}"),
        ];
        assert_eq!(cycles(&files), ["b/e.rs b/mod.rs"]);
        let facade = [
            ("lib.rs", "mod b;"),
            ("b/mod.rs", "mod e; mod f; pub use e::e;"),
            ("b/e.rs", "use super::f::F; pub fn e() {}"),
            ("b/f.rs", "pub struct F;"),
        ];
        assert_eq!(cycles(&facade), Vec::<String>::new());
    }

    #[test]
    fn test_code_does_not_count() {
        let files = [
            ("lib.rs", "mod b; mod c; #[cfg(test)] mod d;"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::c::C; }"),
            ("c.rs", "pub struct C; use crate::b::B;"),
            ("d.rs", "use crate::b::B; pub struct D;"),
        ];
        assert_eq!(cycles(&files), Vec::<String>::new());
    }
}

//! Functions: how their doc comments begin, and how long they are.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ImplItemFn, ItemFn, ItemImpl, ItemMod, Lit, Meta, Signature, TraitItemFn};

use crate::source_tree::{SourceTree, is_test_item};

/// Words that a function's doc comment does not begin with; it begins with a verb.
const BAD_FIRST_WORDS: [&str; 5] = ["What", "How", "Who", "Where", "Whether"];
/// Doc comments that still do. Lower the number when they become fewer; never raise it.
const ALLOWED_BAD_FIRST_WORDS: usize = 1;
/// The most faults that are listed.
const MAX_LISTED_FAULTS: usize = 20;

/// A function or method.
#[derive(Debug)]
pub(crate) struct FunctionInfo {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) line: usize,
    /// Lines from the signature to the closing brace.
    pub(crate) lines: usize,
    /// First word of the doc comment.
    pub(crate) first_word: Option<String>,
    pub(crate) is_test: bool,
}

impl FunctionInfo {
    /// Returns true if the doc comment begins with a verb in the third person, as in "Returns".
    pub(crate) fn begins_with_verb(&self) -> bool {
        const OTHER_WORDS: [&str; 5] = ["as", "its", "this", "thus", "us"];
        let word = self.first_word.as_deref().unwrap_or_default().to_lowercase();
        word.len() > 1 && word.ends_with('s') && !word.ends_with("ss") && !OTHER_WORDS.contains(&word.as_str())
    }
}

/// Returns a fault for each doc comment with a bad first word, if they are more than allowed.
pub(crate) fn check_doc_comments(tree: &SourceTree) -> Vec<String> {
    let bad = bad_doc_comments(tree);
    if bad.len() <= ALLOWED_BAD_FIRST_WORDS {
        return Vec::new();
    }
    let count = format!("{} doc comments, {ALLOWED_BAD_FIRST_WORDS} are allowed", bad.len());
    bad.into_iter().take(MAX_LISTED_FAULTS).chain([count]).collect()
}

/// Returns a note if the allowed number can be lowered.
pub(crate) fn loose_doc_comments(tree: &SourceTree) -> Vec<String> {
    let bad = bad_doc_comments(tree).len();
    let note = || format!("{bad} doc comments: lower the {ALLOWED_BAD_FIRST_WORDS} in xtask/src/tidy/functions.rs");
    (bad < ALLOWED_BAD_FIRST_WORDS).then(note).into_iter().collect()
}

/// Returns the places of doc comments with a bad first word.
pub(crate) fn bad_doc_comments(tree: &SourceTree) -> Vec<String> {
    let functions = all_functions(tree);
    let bad = functions.iter().filter_map(|function| {
        let word = function.first_word.as_deref().filter(|word| BAD_FIRST_WORDS.contains(word))?;
        Some(format!("{}:{} the doc comment of {} begins with {word}", function.path, function.line, function.name))
    });
    bad.collect()
}

/// Returns all functions of the repository's Rust files.
pub(crate) fn all_functions(tree: &SourceTree) -> Vec<FunctionInfo> {
    let mut functions = Vec::new();
    for file in &tree.rust_files {
        let is_test = !file.path.contains("/src/") || file.path.contains("/tests/") || file.path.contains("/testing");
        let mut visitor = FunctionVisitor { path: &file.path, is_test, functions: &mut functions };
        visitor.visit_file(&file.syntax);
    }
    functions
}

struct FunctionVisitor<'a> {
    path: &'a str,
    is_test: bool,
    functions: &'a mut Vec<FunctionInfo>,
}

impl FunctionVisitor<'_> {
    fn add(&mut self, attributes: &[Attribute], signature: &Signature, block: Option<&Block>) {
        let line = signature.span().start().line;
        let end = block.map_or(signature.span().end().line, |block| block.span().end().line);
        self.functions.push(FunctionInfo {
            name: signature.ident.to_string(),
            path: self.path.to_owned(),
            line,
            lines: end + 1 - line,
            first_word: first_doc_word(attributes),
            is_test: self.is_test || is_test_item(attributes),
        });
    }

    /// Visits what is inside an item, which is test code if the item is.
    fn within(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.is_test;
        self.is_test |= is_test_item(attributes);
        visit(self);
        self.is_test = before;
    }
}

impl<'ast> Visit<'ast> for FunctionVisitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.add(&item.attrs, &item.sig, Some(&item.block));
        self.within(&item.attrs, |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.add(&item.attrs, &item.sig, Some(&item.block));
        self.within(&item.attrs, |this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.add(&item.attrs, &item.sig, item.default.as_ref());
        self.within(&item.attrs, |this| visit::visit_trait_item_fn(this, item));
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.within(&item.attrs, |this| visit::visit_item_mod(this, item));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.within(&item.attrs, |this| visit::visit_item_impl(this, item));
    }
}

fn first_doc_word(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let Meta::NameValue(meta) = &attribute.meta else { return None };
        let Expr::Lit(value) = &meta.value else { return None };
        let Lit::Str(text) = &value.lit else { return None };
        let text = meta.path.is_ident("doc").then(|| text.value())?;
        let word = text.split_whitespace().next()?;
        Some(word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    const TEXT: &str = "/// Where it is.\nfn a() {}\nimpl B {\n    /// Returns it.\n    fn b() {\n    }\n}\ntrait C {\n    /// Whether c.\n    fn c();\n}\n#[cfg(test)]\nmod tests {\n    fn d() {}\n}\n/// What.\nstruct E;\n";

    #[test]
    fn doc_comments_that_begin_with_a_question_word_are_found() {
        assert_eq!(
            bad_doc_comments(&tree(&[("a/src/a.rs", TEXT)])),
            [
                "a/src/a.rs:2 the doc comment of a begins with Where",
                "a/src/a.rs:10 the doc comment of c begins with Whether"
            ]
        );
    }

    #[test]
    fn more_of_them_than_allowed_are_a_fault() {
        let function = "/// How it is done.\nfn a() {}\n";
        let tree_of = |count: usize| tree(&[("a/src/a.rs", &function.repeat(count))]);
        assert_eq!(check_doc_comments(&tree_of(ALLOWED_BAD_FIRST_WORDS)), Vec::<String>::new());
        assert!(!check_doc_comments(&tree_of(ALLOWED_BAD_FIRST_WORDS + 1)).is_empty());
    }

    #[test]
    fn functions_have_their_lines_and_first_words() {
        let functions = all_functions(&tree(&[("a/src/a.rs", TEXT)]));
        let found: Vec<_> =
            functions.iter().map(|it| (it.name.as_str(), it.lines, it.begins_with_verb(), it.is_test)).collect();
        assert_eq!(
            found,
            [("a", 1, false, false), ("b", 2, true, false), ("c", 1, false, false), ("d", 1, false, true)]
        );
    }
}

//! The files of the repository with the Rust files parsed, for rules and statistics.
//!
//! Files are parsed once; a file that is not valid Rust is an error, not a rule violation.

use anyhow::{Context, Result};
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

use crate::repository::{self, RepoFile};

/// All text files of the repository, and the syntax of its Rust files.
pub(crate) struct SourceTree {
    pub(crate) files: Vec<RepoFile>,
    pub(crate) rust_files: Vec<RustFile>,
}

/// A parsed Rust file.
pub(crate) struct RustFile {
    /// Path from the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) syntax: syn::File,
}

impl SourceTree {
    /// Reads and parses the files that git tracks.
    pub(crate) fn read() -> Result<Self> {
        SourceTree::new(repository::tracked_files()?)
    }

    /// Parses the Rust files among these files.
    pub(crate) fn new(files: Vec<RepoFile>) -> Result<Self> {
        let parse = |file: &RepoFile| -> Result<RustFile> {
            let syntax = syn::parse_file(&file.text).with_context(|| format!("{} is not valid Rust", file.path))?;
            Ok(RustFile { path: file.path.clone(), syntax })
        };
        let rust_files = files.iter().filter(|file| is_rust(file)).map(parse).collect::<Result<_>>()?;
        Ok(SourceTree { files, rust_files })
    }

    /// Returns the text of a file, or an empty text if there is no such file.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str())
    }

    /// Returns the names of the workspace's crates that have Rust files, each with its source folder.
    pub(crate) fn crates(&self) -> Vec<(String, String)> {
        let mut crates: Vec<(String, String)> = Vec::new();
        for file in &self.rust_files {
            let Some((folder, _)) = file.path.split_once("/src/") else { continue };
            let name = folder.strip_prefix("crates/").unwrap_or(folder);
            if !name.contains('/') && !crates.iter().any(|(known, _)| known == name) {
                crates.push((name.to_owned(), format!("{folder}/src/")));
            }
        }
        crates
    }
}

/// Returns true for a Rust source file.
pub(crate) fn is_rust(file: &RepoFile) -> bool {
    file.path.ends_with(".rs")
}

/// Returns true if an item with these attributes is compiled for tests only.
pub(crate) fn is_test_item(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| mentions_test(&condition))
        }
        _ => false,
    })
}

/// Returns true if a `cfg` condition asks for tests; `not(..)` does not count.
fn mentions_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("any") || list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|conditions| conditions.iter().any(mentions_test)),
        _ => false,
    }
}

/// Returns the attributes of an item.
pub(crate) fn item_attributes(item: &syn::Item) -> &[Attribute] {
    use syn::Item;
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Source trees of a few lines.

    use super::*;

    /// Builds a tree from pairs of path and text.
    pub(crate) fn tree(files: &[(&str, &str)]) -> SourceTree {
        let files = files.iter().map(|(path, text)| RepoFile { path: (*path).into(), text: (*text).into() });
        SourceTree::new(files.collect()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_items_are_recognized_by_their_attributes() {
        let is_test = |text: &str| is_test_item(item_attributes(&syn::parse_str::<syn::Item>(text).unwrap()));
        assert!(is_test("#[cfg(test)] mod a {}"));
        assert!(is_test("#[cfg(any(test, feature = \"testing\"))] mod a;"));
        assert!(is_test("#[test] fn a() {}"));
        assert!(!is_test("#[cfg(not(test))] fn a() {}"));
        assert!(!is_test("#[cfg(unix)] fn a() {}"));
    }

    #[test]
    fn crates_have_a_source_folder() {
        let tree =
            testing::tree(&[("crates/a/src/lib.rs", ""), ("crates/a/tests/b.rs", ""), ("xtask/src/main.rs", "")]);
        let expected = [("a", "crates/a/src/"), ("xtask", "xtask/src/")];
        assert_eq!(tree.crates(), expected.map(|(name, folder)| (name.to_owned(), folder.to_owned())));
    }
}

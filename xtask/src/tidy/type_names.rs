//! Names of types: each is used once in its crate.
//!
//! Structs, enums, unions, traits and type aliases count; associated types, test code and variants of one type behind `cfg`
//! do not.

use std::collections::BTreeMap;

use syn::{Attribute, Item};

use crate::source_tree::{SourceTree, is_test_item, item_attributes};
use crate::tidy::module_graph::ModuleGraph;

/// A type of a crate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamedType {
    pub(crate) name: String,
    /// Path of the file that defines it.
    pub(crate) path: String,
    has_cfg: bool,
}

/// Returns a fault for each name that two types of a crate have.
pub(crate) fn check_type_names(tree: &SourceTree) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, folder) in tree.crates() {
        for group in shared_names(&crate_types(tree, &folder)) {
            let paths: Vec<&str> = group.iter().map(|named| named.path.as_str()).collect();
            faults.push(format!("{name} has {} types named {}: {}", group.len(), group[0].name, paths.join(", ")));
        }
    }
    faults
}

/// Returns the types of the crate with this source folder.
pub(crate) fn crate_types(tree: &SourceTree, folder: &str) -> Vec<NamedType> {
    let graph = ModuleGraph::read(tree, folder);
    let shipped = graph.files();
    let mut types = Vec::new();
    for file in tree.rust_files.iter().filter(|file| shipped.contains(file.path.as_str())) {
        collect_types(&file.syntax.items, &file.path, &mut types);
    }
    types
}

/// Returns the types that share a name, grouped by it.
pub(crate) fn shared_names(types: &[NamedType]) -> Vec<Vec<NamedType>> {
    let mut by_name: BTreeMap<&str, Vec<NamedType>> = BTreeMap::new();
    for named in types {
        by_name.entry(&named.name).or_default().push(named.clone());
    }
    let is_one_type = |group: &Vec<NamedType>| group.iter().all(|named| named.has_cfg && named.path == group[0].path);
    by_name.into_values().filter(|group| group.len() > 1 && !is_one_type(group)).collect()
}

/// Returns true if a name in camel case has one word.
pub(crate) fn is_one_word(name: &str) -> bool {
    name.chars().skip(1).filter(|letter| letter.is_uppercase()).count() == 0
}

fn collect_types(items: &[Item], path: &str, types: &mut Vec<NamedType>) {
    for item in items.iter().filter(|item| !is_test_item(item_attributes(item))) {
        let name = match item {
            Item::Enum(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Mod(module) => {
                if let Some((_, items)) = &module.content {
                    collect_types(items, path, types);
                }
                continue;
            }
            _ => continue,
        };
        let has_cfg = item_attributes(item).iter().any(|attribute: &Attribute| attribute.path().is_ident("cfg"));
        types.push(NamedType { name: name.to_string(), path: path.to_owned(), has_cfg });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn two_types_of_a_crate_with_one_name_are_a_fault() {
        let tree = tree(&[
            ("crates/a/src/lib.rs", "mod b; mod c; pub struct Row; mod inner { enum Cell {} }"),
            (
                "crates/a/src/b.rs",
                "type Row = u8; impl Iterator for B { type Item = u8; } impl Iterator for C { type Item = u8; }",
            ),
            ("crates/a/src/c.rs", "trait Cell {} #[cfg(test)] mod tests { struct Row; }"),
            ("crates/d/src/lib.rs", "struct Row;"),
        ]);
        assert_eq!(
            check_type_names(&tree),
            [
                "a has 2 types named Cell: crates/a/src/lib.rs, crates/a/src/c.rs",
                "a has 2 types named Row: crates/a/src/lib.rs, crates/a/src/b.rs"
            ]
        );
    }

    #[test]
    fn variants_for_platforms_are_one_type() {
        let text = "#[cfg(unix)] struct Lock; #[cfg(not(unix))] struct Lock;";
        assert_eq!(check_type_names(&tree(&[("crates/a/src/lib.rs", text)])), Vec::<String>::new());
    }

    #[test]
    fn words_of_a_name_are_counted() {
        assert!(is_one_word("Crease"));
        assert!(!is_one_word("FoldSession"));
    }
}

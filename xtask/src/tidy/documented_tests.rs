//! The reference of the strategies names a test for every capability and every known failure: each must exist.

use std::collections::BTreeSet;

use crate::source_tree::{SourceTree, is_rust};

const STRATEGIES_PAGE: &str = "docs/reference/strategies.md";

/// Finds tests that the page names and no crate has, and rows without a test.
pub(crate) fn check_documented_tests(tree: &SourceTree) -> Vec<String> {
    let functions: BTreeSet<&str> =
        tree.files.iter().filter(|file| is_rust(file)).flat_map(|file| function_names(&file.text)).collect();
    let Some(page) = tree.files.iter().find(|file| file.path == STRATEGIES_PAGE) else {
        return vec![format!("{STRATEGIES_PAGE} does not exist")];
    };
    let mut faults = Vec::new();
    for (row, tests) in test_cells(&page.text) {
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).filter(|name| !name.contains('-')).collect();
        if names.iter().all(|name| *name == "foldline") {
            faults.push(format!("{STRATEGIES_PAGE}: {row:?} has no test"));
        }
        let missing = names.into_iter().filter(|name| *name != "foldline" && !functions.contains(name));
        faults.extend(missing.map(|name| format!("{STRATEGIES_PAGE}: there is no test `{name}`")));
    }
    faults
}

/// Returns the first cell and the cell of tests of each row, in the tables whose last column is tests.
fn test_cells(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut has_tests = false;
    page.lines().filter_map(move |line| {
        let row = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
        let Some(row) = row else {
            has_tests = false;
            return None;
        };
        let (first, last) = (row.split('|').next()?.trim(), row.rsplit('|').next()?.trim());
        if last == "tests" {
            has_tests = true;
            return None;
        }
        (has_tests && !first.starts_with("---")).then_some((first, last))
    })
}

/// Returns the names of the functions in a source file.
fn function_names(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split("fn ").skip(1).map(move |rest| rest.split(|character| !is_name(character)).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_of_tables_with_tests_are_read() {
        let page =
            "| a | item |\n|---|---|\n| 1 | `x` |\n\n| failure | tests |\n|---|---|\n| it broke | `it_works` |\n";
        assert_eq!(test_cells(page).collect::<Vec<_>>(), [("it broke", "`it_works`")]);
        assert_eq!(function_names("pub fn a() {}\nasync fn b_1<T>() {}").collect::<Vec<_>>(), ["a", "b_1"]);
    }
}

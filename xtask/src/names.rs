//! `cargo xtask names`: statistics of names, prose and structure, to compare before and after a change.

use anyhow::Result;

use crate::output::print_line;
use crate::request_path::request_path;
use crate::source_tree::SourceTree;
use crate::tidy::functions::{FunctionInfo, all_functions, bad_doc_comments};
use crate::tidy::module_cycles::cyclic_files;
use crate::tidy::type_names::{crate_types, is_one_word, shared_names};
use crate::tidy::words::{word_counts, words_in_comments};

/// Functions with more lines than this are counted.
const LONG_FUNCTION_LINES: usize = 60;

/// Prints the statistics of the working tree; with `path`, the file switches of a proxied request one by one.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let tree = SourceTree::read()?;
    if arguments.first().is_some_and(|argument| argument == "path") {
        request_path(&tree).switches.iter().for_each(|switch| print_line(switch));
        return Ok(());
    }
    statistics(&tree).iter().for_each(|line| print_line(line));
    Ok(())
}

fn statistics(tree: &SourceTree) -> Vec<String> {
    let (mut types, mut one_word, mut shared, mut cyclic) = (0, 0, 0, Vec::new());
    for (name, folder) in tree.crates() {
        let found = crate_types(tree, &folder);
        types += found.len();
        one_word += found.iter().filter(|named| is_one_word(&named.name)).count();
        shared += shared_names(&found).iter().map(Vec::len).sum::<usize>();
        cyclic.push(format!("{name} {}", cyclic_files(tree, &folder)));
    }
    let (words, lines) = words_in_comments(tree);
    let counts: Vec<String> = word_counts(tree).iter().map(|(word, count)| format!("{word} {count}")).collect();
    let functions = all_functions(tree);
    let documented = functions.iter().filter(|function| function.first_word.is_some());
    let verbs = documented.clone().filter(|function| function.begins_with_verb()).count();
    let shipped: Vec<&FunctionInfo> = functions.iter().filter(|function| !function.is_test).collect();
    let long = shipped.iter().filter(|function| function.lines > LONG_FUNCTION_LINES).count();
    let longest = shipped.iter().max_by_key(|function| function.lines).map_or_else(String::new, |function| {
        format!("{} ({}, {}:{})", function.lines, function.name, function.path, function.line)
    });
    let path = request_path(tree);
    let row = |name: &str, value: String| format!("{name:<50}{value}");
    vec![
        row("types", types.to_string()),
        row("types with a name of one word", percent(one_word, types)),
        row("types that share a name in their crate", shared.to_string()),
        row("files in cycles of modules", cyclic.join(", ")),
        row("ratchet words per 1,000 lines of comments", format!("{:.1}", 1_000.0 * ratio(words, lines))),
        row("ratchet words", counts.join(", ")),
        row("doc comments of functions that begin with a verb", percent(verbs, documented.count())),
        row("doc comments with a wrong first word", bad_doc_comments(tree).len().to_string()),
        row("lines of the longest function", longest),
        row(&format!("functions with more than {LONG_FUNCTION_LINES} lines"), long.to_string()),
        row("files of one proxied request", path.files.len().to_string()),
        row("file switches of one proxied request", path.switches.len().to_string()),
    ]
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1} % ({part} of {whole})", 100.0 * ratio(part, whole))
}

fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn statistics_have_a_line_each() {
        let tree = tree(&[(
            "crates/a/src/lib.rs",
            "//! Nobody.\nstruct Row;\nstruct RowCell;\n/// Returns a.\nfn a() {\n}\n/// The b.\nfn b() {}\n",
        )]);
        let mut lines: Vec<String> =
            statistics(&tree).iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(lines.remove(5).starts_with("ratchet words "));
        assert_eq!(
            lines,
            [
                "types 2",
                "types with a name of one word 50.0 % (1 of 2)",
                "types that share a name in their crate 0",
                "files in cycles of modules a 0",
                "ratchet words per 1,000 lines of comments 333.3",
                "doc comments of functions that begin with a verb 50.0 % (1 of 2)",
                "doc comments with a wrong first word 0",
                "lines of the longest function 2 (a, crates/a/src/lib.rs:5)",
                "functions with more than 60 lines 0",
                "files of one proxied request 0",
                "file switches of one proxied request 0",
            ]
        );
    }
}

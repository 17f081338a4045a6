//! `cargo xtask tidy`: the rules of the repository that no compiler checks.
//!
//! A rule is a function that returns what breaks it; `RULES` lists them. The rules are those of
//! ARCHITECTURE.md and CONTRIBUTING.md.

mod boundaries;
mod dashboard;
mod documented_tests;
pub(crate) mod functions;
pub(crate) mod module_cycles;
mod module_graph;
mod prose;
pub(crate) mod type_names;
pub(crate) mod words;

use anyhow::{Result, bail};

use crate::output::print_line;
use crate::source_tree::{SourceTree, is_rust};

type TidyRule = fn(&SourceTree) -> Result<Vec<String>>;

const RULES: &[(&str, TidyRule)] = &[
    ("every source file begins with a description", boundaries::check_module_docs),
    (
        "crates depend on each other in one direction, and the engine on nothing that does IO",
        boundaries::check_dependencies,
    ),
    ("the engine uses no file, clock, environment or network", boundaries::check_purity),
    ("no cycles between modules", |tree| Ok(module_cycles::check_module_cycles(tree))),
    ("type names are unique in their crate", |tree| Ok(type_names::check_type_names(tree))),
    ("doc comments of functions begin with a verb", |tree| Ok(functions::check_doc_comments(tree))),
    ("words that the style replaces become fewer", |tree| Ok(words::check_words(tree))),
    ("environment variables are declared and read in one file", boundaries::check_environment),
    ("no path of a developer's machine is committed", boundaries::check_machine_paths),
    ("generated pages are up to date (`cargo xtask reference` writes them)", boundaries::check_reference_pages),
    ("tests that the reference of the strategies names exist", |tree| {
        Ok(documented_tests::check_documented_tests(tree))
    }),
    ("the committed build of the dashboard belongs to its sources", dashboard::check_dashboard_build),
];

/// Files with more lines than this before their tests get a note.
const MAX_FILE_LINES: usize = 600;

/// Checks all rules and fails if one is broken.
pub(crate) fn run(_: &[String]) -> Result<()> {
    let tree = SourceTree::read()?;
    let mut broken = 0;
    for (name, rule) in RULES {
        let faults = rule(&tree)?;
        print_line(&format!("{} {name}", if faults.is_empty() { "ok  " } else { "FAIL" }));
        faults.iter().for_each(|fault| print_line(&format!("       {fault}")));
        broken += faults.len();
    }
    notes(&tree).iter().for_each(|note| print_line(&format!("note {note}")));
    if broken > 0 {
        bail!("{broken} violations of the repository's rules");
    }
    Ok(())
}

/// Returns remarks that are not failures.
fn notes(tree: &SourceTree) -> Vec<String> {
    let long_files = tree.files.iter().filter(|file| is_rust(file)).filter_map(|file| {
        let lines = boundaries::without_tests(file).lines().count();
        (lines > MAX_FILE_LINES)
            .then(|| format!("{} has {lines} lines before its tests: two ideas, or a table?", file.path))
    });
    let mut notes: Vec<String> = long_files.collect();
    notes.extend(functions::loose_doc_comments(tree));
    notes.extend(words::loose_words(tree));
    notes
}

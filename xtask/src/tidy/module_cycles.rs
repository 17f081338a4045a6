//! Cycles between the modules of a crate, with a count of files that may only fall.

use crate::source_tree::SourceTree;
use crate::tidy::module_graph::ModuleGraph;

/// Files that are part of a cycle today. Lower a number when they become fewer; never raise it. A crate that is not
/// listed has none.
const ALLOWED_CYCLIC_FILES: &[(&str, usize)] = &[];

/// Returns a fault for each crate with more files in cycles than allowed.
pub(crate) fn check_module_cycles(tree: &SourceTree) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, folder) in tree.crates() {
        let (found, allowed) = (cyclic_files(tree, &folder), allowed_files(&name));
        if found > allowed {
            faults.push(format!("{name} has {found} files in cycles of modules, {allowed} are allowed:"));
            let graph = ModuleGraph::read(tree, &folder);
            let short = |path: &str| path.trim_start_matches(folder.as_str()).to_owned();
            for cycle in graph.cycles() {
                let files: Vec<String> = cycle.iter().map(|path| short(path)).collect();
                faults.push(format!("  cycle: {}", files.join(", ")));
                let edges = graph.dependencies_in(&cycle);
                faults.extend(edges.iter().map(|(file, other)| format!("    {} uses {}", short(file), short(other))));
            }
        }
    }
    faults
}

/// Returns a note for each crate whose allowed number can be lowered.
pub(crate) fn loose_module_cycles(tree: &SourceTree) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, folder) in tree.crates() {
        let (found, allowed) = (cyclic_files(tree, &folder), allowed_files(&name));
        if found < allowed {
            notes.push(format!(
                "{name} has {found} files in cycles of modules: lower the {allowed} in xtask/src/tidy/module_cycles.rs"
            ));
        }
    }
    notes
}

/// Returns the number of files that are part of a cycle, of the crate with this source folder.
pub(crate) fn cyclic_files(tree: &SourceTree, folder: &str) -> usize {
    ModuleGraph::read(tree, folder).cycles().iter().map(|cycle| cycle.len()).sum()
}

fn allowed_files(name: &str) -> usize {
    ALLOWED_CYCLIC_FILES.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn cycle_in_a_crate_without_an_allowance_is_a_fault() {
        let tree = tree(&[
            ("crates/new/src/lib.rs", "mod b; mod c;"),
            ("crates/new/src/b.rs", "pub fn b() { crate::c::c() }"),
            ("crates/new/src/c.rs", "pub fn c() { crate::b::b() }"),
        ]);
        assert_eq!(
            check_module_cycles(&tree),
            [
                "new has 2 files in cycles of modules, 0 are allowed:",
                "  cycle: b.rs, c.rs",
                "    b.rs uses c.rs",
                "    c.rs uses b.rs"
            ]
        );
    }
}

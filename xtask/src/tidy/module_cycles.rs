//! Cycles between the modules of a crate, file by file. There are none.

use crate::source_tree::SourceTree;
use crate::tidy::module_graph::ModuleGraph;

/// Returns a fault for each cycle, with the dependencies in it.
pub(crate) fn check_module_cycles(tree: &SourceTree) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, folder) in tree.crates() {
        let graph = ModuleGraph::read(tree, &folder);
        let short = |path: &str| path.trim_start_matches(folder.as_str()).to_owned();
        for cycle in graph.cycles() {
            let files: Vec<String> = cycle.iter().map(|path| short(path)).collect();
            faults.push(format!("{name} has a cycle of modules: {}", files.join(", ")));
            let edges = graph.dependencies_in(&cycle);
            faults.extend(edges.iter().map(|(file, other)| format!("    {} uses {}", short(file), short(other))));
        }
    }
    faults
}

/// Returns the number of files that are part of a cycle, of the crate with this source folder.
pub(crate) fn cyclic_files(tree: &SourceTree, folder: &str) -> usize {
    ModuleGraph::read(tree, folder).cycles().iter().map(|cycle| cycle.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn cycle_of_modules_is_a_fault() {
        let tree = tree(&[
            ("crates/new/src/lib.rs", "mod b; mod c;"),
            ("crates/new/src/b.rs", "pub fn b() { crate::c::c() }"),
            ("crates/new/src/c.rs", "pub fn c() { crate::b::b() }"),
        ]);
        assert_eq!(
            check_module_cycles(&tree),
            ["new has a cycle of modules: b.rs, c.rs", "    b.rs uses c.rs", "    c.rs uses b.rs"]
        );
    }
}

//! Rules about the boundaries of crates and files: dependencies, IO, environment, paths, generated pages.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use foldline::wire::ApiFamily;
use serde_json::Value;

use crate::reference;
use crate::repository::{self, RepoFile};
use crate::source_tree::{SourceTree, is_rust};
use crate::tidy::prose::prose;

/// Returns the text before the tests of a file.
pub(crate) fn without_tests(file: &RepoFile) -> &str {
    file.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default()
}

/// Finds source files without a `//!` header.
pub(crate) fn check_module_docs(tree: &SourceTree) -> Result<Vec<String>> {
    let undocumented = |file: &&RepoFile| is_rust(file) && !file.text.starts_with("//! ");
    Ok(tree.files.iter().filter(undocumented).map(|file| format!("{} does not begin with `//! `", file.path)).collect())
}

/// The crates of the workspace, each with those that it may depend on.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("foldline", &[]),
    ("foldline-archive", &["foldline"]),
    ("foldline-clients", &["foldline"]),
    ("foldline-summarize", &["foldline"]),
    ("foldline-replay", &["foldline"]),
    ("foldline-server", &["foldline", "foldline-archive", "foldline-summarize"]),
    ("foldline-cli", &["foldline", "foldline-archive", "foldline-replay", "foldline-summarize", "foldline-server"]),
    ("foldline-embed", &["foldline", "foldline-archive", "foldline-replay"]),
    ("foldline-python", &["foldline-embed"]),
    ("foldline-node", &["foldline-embed"]),
    ("xtask", &["foldline", "foldline-archive", "foldline-replay", "foldline-summarize"]),
];

/// Crates that do IO; the engine depends on none of them, directly or indirectly.
const IO_CRATES: &[&str] = &[
    "async-std",
    "axum",
    "chrono",
    "deadpool-postgres",
    "getrandom",
    "hyper",
    "mio",
    "object_store",
    "rand",
    "reqwest",
    "rusqlite",
    "smol",
    "socket2",
    "time",
    "tokio",
    "tokio-postgres",
    "tower-http",
    "ureq",
];

/// Finds dependencies between crates that are not allowed, and IO crates that the engine reaches.
pub(crate) fn check_dependencies(_: &SourceTree) -> Result<Vec<String>> {
    let metadata = repository::cargo_metadata()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> =
        list(&metadata["packages"]).iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
    let members: BTreeSet<String> = list(&metadata["workspace_members"]).iter().map(text).collect();
    // Only dependencies of shipped code; tests and build scripts may use any crate.
    let dependencies: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let shipped =
                |dependency: &&Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            (
                text(&node["id"]),
                list(&node["deps"]).iter().filter(shipped).map(|dependency| text(&dependency["pkg"])).collect(),
            )
        })
        .collect();

    let mut faults = Vec::new();
    for member in &members {
        let name = &names[member];
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(crate_name, _)| crate_name == name) else {
            faults.push(format!("{name} is not in the table of crates in xtask/src/tidy/boundaries.rs"));
            continue;
        };
        for other in dependencies[member].iter().filter(|other| members.contains(*other)).map(|other| &names[other]) {
            if !allowed.contains(&other.as_str()) {
                faults.push(format!("{name} may not depend on {other}"));
            }
        }
        if name == "foldline" {
            // Optional features, off by default: generators for property tests, and the reader of a user's
            // tokenizer, which depends on a random generator that counting does not use.
            let optional = names.iter().filter(|(_, name)| ["proptest", "tokenizers"].contains(&name.as_str()));
            let mut seen: BTreeSet<String> = optional.map(|(id, _)| id.clone()).chain([member.clone()]).collect();
            let mut open = vec![member.clone()];
            while let Some(at) = open.pop() {
                for next in dependencies.get(&at).into_iter().flatten().filter(|next| seen.insert((*next).clone())) {
                    if IO_CRATES.contains(&names[next].as_str()) {
                        faults.push(format!("the engine may not reach {} (through {})", names[next], names[&at]));
                    }
                    open.push(next.clone());
                }
            }
        }
    }
    Ok(faults)
}

/// Finds uses of files, clocks, threads, randomness and the like in the engine.
pub(crate) fn check_purity(tree: &SourceTree) -> Result<Vec<String>> {
    const IO_NAMES: [&str; 9] = [
        "std::fs",
        "std::env",
        "std::net",
        "std::process",
        "std::thread",
        "SystemTime",
        "Instant::now",
        "stdin()",
        "RandomState",
    ];
    let engine = |file: &&RepoFile| is_rust(file) && file.path.starts_with(ENGINE_SOURCE_DIR);
    Ok(find_mentions(tree.files.iter().filter(engine), &IO_NAMES))
}

const ENGINE_SOURCE_DIR: &str = "crates/foldline/src/";

/// The file that reads environment variables.
const ENVIRONMENT_FILE: &str = "crates/foldline-cli/src/environment.rs";
/// The file that declares the variables of settings.
const SETTINGS_FILE: &str = "crates/foldline-cli/src/settings/table.rs";
/// The file that declares the variable of tests with a database server.
const TEST_SERVER_FILE: &str = "xtask/src/postgres.rs";

/// Finds variables that are read outside the one file for it, and documented ones that are not declared.
pub(crate) fn check_environment(tree: &SourceTree) -> Result<Vec<String>> {
    let shipped = |file: &&RepoFile| is_rust(file) && file.path.starts_with("crates/") && file.path.contains("/src/");
    let elsewhere = tree.files.iter().filter(shipped).filter(|file| file.path != ENVIRONMENT_FILE);
    let mut faults = find_mentions(elsewhere, &["env::var", "env::set_var", "env = \""]);

    // Each API has a setting for its upstream.
    let of_apis: Vec<String> = ApiFamily::all()
        .map(|family| format!("{VARIABLE_PREFIX}{}", family.name.to_uppercase().replace('-', "_")))
        .collect();
    let is_declared = |name: &str| {
        let literal = format!("\"{name}\"");
        of_apis.iter().any(|variable| variable == name)
            || [SETTINGS_FILE, ENVIRONMENT_FILE, TEST_SERVER_FILE].iter().any(|file| tree.text(file).contains(&literal))
    };
    for file in tree.files.iter().filter(|file| is_rust(file) || file.path.ends_with(".md")) {
        for text in prose(file) {
            for name in foldline_variables(text.text).filter(|name| !is_declared(name)) {
                faults.push(format!("{} names {name}, which {SETTINGS_FILE} does not declare", file.path));
            }
        }
    }
    faults.dedup();
    Ok(faults)
}

/// Start of the names of foldline's variables.
const VARIABLE_PREFIX: &str = concat!("FOLDLINE", "_");

/// Returns the names of foldline's variables in a text.
fn foldline_variables(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(VARIABLE_PREFIX).filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit()).unwrap_or(rest.len());
        (end > VARIABLE_PREFIX.len()).then(|| &rest[..end])
    })
}

/// Finds absolute paths of a developer's machine.
pub(crate) fn check_machine_paths(tree: &SourceTree) -> Result<Vec<String>> {
    // Concatenated, so that this file passes its own rule.
    const MACHINE_PATHS: [&str; 5] = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("/ro", "ot/"),
        concat!("/Us", "ers/"),
        concat!("/ho", "me/"),
    ];
    Ok(find_mentions(tree.files.iter(), &MACHINE_PATHS))
}

/// Finds generated pages that differ from what the code generates.
pub(crate) fn check_reference_pages(tree: &SourceTree) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for page in reference::REFERENCE_PAGES {
        let committed = tree.files.iter().find(|file| file.path == page.path).map(|file| file.text.as_str());
        if committed != Some((page.render)()?.as_str()) {
            faults.push(format!("{} is out of date: run `cargo xtask reference`", page.path));
        }
    }
    Ok(faults)
}

/// Finds lines that contain one of these words, except in comments and tests.
fn find_mentions<'f>(files: impl Iterator<Item = &'f RepoFile>, words: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let text = if is_rust(file) { without_tests(file) } else { &file.text };
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for word in words.iter().filter(|word| line.contains(**word)) {
                faults.push(format!("{}:{} mentions {word}", file.path, at + 1));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn file_without_module_docs_is_found() {
        let files = tree(&[("a.rs", "//! This.\n"), ("b.rs", "fn b() {}\n"), ("c.md", "c\n")]);
        assert_eq!(check_module_docs(&files).unwrap(), ["b.rs does not begin with `//! `"]);
    }

    #[test]
    fn engine_io_is_found_except_in_tests() {
        let path = "crates/foldline/src/a.rs";
        let tests = "//! A.\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(check_purity(&tree(&[(path, tests)])).unwrap(), Vec::<String>::new());
        assert_eq!(
            check_purity(&tree(&[(path, "//! A.\nuse std::fs;\n")])).unwrap(),
            [format!("{path}:2 mentions std::fs")]
        );
        assert_eq!(check_purity(&tree(&[("crates/other/src/a.rs", "use std::fs;\n")])).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn undeclared_variable_is_found() {
        let name = |rest: &str| format!("{}{rest}", concat!("FOLDLINE", "_"));
        let declared = format!("//! E.\nconst A: Setting = Setting::new(\"a\", \"{}\");\n", name("A"));
        let page = format!("set {} or {}\n", name("A"), name("B_2"));
        let faults = check_environment(&tree(&[(SETTINGS_FILE, &declared), ("README.md", &page)])).unwrap();
        assert_eq!(faults, [format!("README.md names {}, which {SETTINGS_FILE} does not declare", name("B_2"))]);
    }
}

//! `cargo xtask tidy`: the rules of the repository that no compiler checks.
//!
//! A rule is a function that reports what breaks it; `RULES` lists them. The rules are those of
//! ARCHITECTURE.md and CONTRIBUTING.md.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::repository::{self, RepoFile};
use crate::{print_line, reference};

type TidyRule = fn(&[RepoFile]) -> Result<Vec<String>>;

const RULES: &[(&str, TidyRule)] = &[
    ("every source file says at its head what it is for", check_module_docs),
    ("crates depend on each other in one direction, and the engine on nothing that does IO", check_dependencies),
    ("the engine touches no file, clock, environment or network", check_purity),
    (
        "modules of the engine use those that ARCHITECTURE.md lists above them, and it lists them all",
        check_module_order,
    ),
    ("environment variables are declared and read in one place", check_environment),
    ("no path of a developer's machine is committed", check_machine_paths),
    ("generated pages are up to date (`cargo xtask reference` writes them)", check_reference_pages),
];

/// A file longer than this, tests apart, is looked at again: it is two ideas, or a table.
const MAX_FILE_LINES: usize = 600;

pub(crate) fn run(_: &[String]) -> Result<()> {
    let files = repository::tracked_files()?;
    let mut broken = 0;
    for (name, rule) in RULES {
        let faults = rule(&files)?;
        print_line(&format!("{} {name}", if faults.is_empty() { "ok  " } else { "FAIL" }));
        faults.iter().for_each(|fault| print_line(&format!("       {fault}")));
        broken += faults.len();
    }
    for file in files.iter().filter(|file| is_source(file)) {
        let lines = without_tests(file).lines().count();
        if lines > MAX_FILE_LINES {
            print_line(&format!("note {} has {lines} lines before its tests: two ideas, or a table?", file.path));
        }
    }
    if broken > 0 {
        bail!("{broken} places break a rule of the repository");
    }
    Ok(())
}

fn is_source(file: &RepoFile) -> bool {
    file.path.ends_with(".rs")
}

/// The text before the tests of a file.
fn without_tests(file: &RepoFile) -> &str {
    file.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default()
}

fn check_module_docs(files: &[RepoFile]) -> Result<Vec<String>> {
    let silent = |file: &&RepoFile| is_source(file) && !file.text.starts_with("//! ");
    Ok(files.iter().filter(silent).map(|file| format!("{} does not begin with `//! `", file.path)).collect())
}

/// The crates of the workspace, each with those that it may depend on.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("foldline", &[]),
    ("foldline-archive", &["foldline"]),
    ("foldline-summarize", &["foldline"]),
    ("foldline-replay", &["foldline"]),
    ("foldline-server", &["foldline", "foldline-archive", "foldline-summarize"]),
    ("foldline-cli", &["foldline", "foldline-archive", "foldline-replay", "foldline-summarize", "foldline-server"]),
    ("foldline-py", &["foldline", "foldline-archive", "foldline-summarize"]),
    ("xtask", &["foldline", "foldline-archive", "foldline-replay"]),
];

/// Crates that do IO: none of them may stand anywhere behind the engine.
const IO_CRATES: &[&str] = &[
    "async-std",
    "axum",
    "chrono",
    "deadpool-postgres",
    "getrandom",
    "hyper",
    "mio",
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

fn check_dependencies(_: &[RepoFile]) -> Result<Vec<String>> {
    let metadata = repository::cargo_metadata()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> =
        list(&metadata["packages"]).iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
    let members: BTreeSet<String> = list(&metadata["workspace_members"]).iter().map(text).collect();
    // Dependencies of the shipped code: those of tests and build scripts may do what they like.
    let behind: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let shipped = |it: &&Value| list(&it["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            (text(&node["id"]), list(&node["deps"]).iter().filter(shipped).map(|it| text(&it["pkg"])).collect())
        })
        .collect();

    let mut faults = Vec::new();
    for member in &members {
        let name = &names[member];
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(crate_name, _)| crate_name == name) else {
            faults.push(format!("{name} is not in the table of crates in xtask/src/tidy.rs"));
            continue;
        };
        for other in behind[member].iter().filter(|other| members.contains(*other)).map(|other| &names[other]) {
            if !allowed.contains(&other.as_str()) {
                faults.push(format!("{name} may not depend on {other}"));
            }
        }
        if name == "foldline" {
            // Behind features that are off unless asked for: generators for property tests, and the reader
            // of a user's own tokenizer, which brings randomness that it does not use to count.
            let optional = names.iter().filter(|(_, name)| ["proptest", "tokenizers"].contains(&name.as_str()));
            let mut seen: BTreeSet<String> = optional.map(|(id, _)| id.clone()).chain([member.clone()]).collect();
            let mut open = vec![member.clone()];
            while let Some(at) = open.pop() {
                for next in behind.get(&at).into_iter().flatten().filter(|next| seen.insert((*next).clone())) {
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

fn check_purity(files: &[RepoFile]) -> Result<Vec<String>> {
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
    let engine = |file: &&RepoFile| is_source(file) && file.path.starts_with(ENGINE_SOURCE_DIR);
    Ok(find_mentions(files.iter().filter(engine), &IO_NAMES))
}

const ARCHITECTURE_FILE: &str = "ARCHITECTURE.md";
const ENGINE_SOURCE_DIR: &str = "crates/foldline/src/";
/// What only tests use.
const TEST_MODULES: [&str; 3] = ["promises", "testing", "traps"];

/// Modules of one row of the table may use each other.
fn check_module_order(files: &[RepoFile]) -> Result<Vec<String>> {
    let page = files.iter().find(|file| file.path == ARCHITECTURE_FILE).map_or("", |file| file.text.as_str());
    let section = page.split("## Inside `foldline`\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let names = rows.enumerate().flat_map(|(row, names)| names.split('`').step_by(2).map(move |name| (name, row)));
    let listed: BTreeMap<&str, usize> = names.filter(|(name, _)| !name.contains("::")).collect();

    let mut faults = BTreeSet::new();
    for file in files.iter().filter(|file| is_source(file) && !file.path.contains("/tests/")) {
        let Some(name) = file.path.strip_prefix(ENGINE_SOURCE_DIR).and_then(|path| path.split(['/', '.']).next())
        else {
            continue;
        };
        if name == "lib" || TEST_MODULES.contains(&name) {
            continue;
        }
        let Some(row) = listed.get(name) else {
            faults.insert(format!("{ARCHITECTURE_FILE} does not list {name}"));
            continue;
        };
        let below = used_modules(without_tests(file)).filter(|used| listed.get(used).is_some_and(|other| other > row));
        faults.extend(below.map(|used| format!("{} uses {used}, which is below it", file.path)));
    }
    Ok(faults.into_iter().collect())
}

/// The modules that a text names by their paths.
fn used_modules(text: &str) -> impl Iterator<Item = &str> {
    const CRATE_PREFIX: &str = "crate::";
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines
        .flat_map(|line| line.match_indices(CRATE_PREFIX).map(move |(at, _)| &line[at + CRATE_PREFIX.len()..]))
        .flat_map(|rest| {
            // One path, or several in braces.
            let paths = rest.strip_prefix('{').unwrap_or(&rest[..rest.find("::").unwrap_or(rest.len())]);
            paths
                .split(", ")
                .map(|path| path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
        })
}

/// The file that declares them.
const ENVIRONMENT_FILE: &str = "crates/foldline-cli/src/environment.rs";
/// The folder of recorded conversations that benches, examples and tasks try things on.
const CORPUS_VARIABLE: &str = "FOLDLINE_CORPUS";

fn check_environment(files: &[RepoFile]) -> Result<Vec<String>> {
    let shipped = |file: &&RepoFile| is_source(file) && file.path.starts_with("crates/") && file.path.contains("/src/");
    let elsewhere = files.iter().filter(shipped).filter(|file| file.path != ENVIRONMENT_FILE);
    let mut faults = find_mentions(elsewhere, &["env::var", "env::set_var", "env = \""]);

    let declared = files.iter().find(|file| file.path == ENVIRONMENT_FILE).map_or("", |file| file.text.as_str());
    for file in files.iter().filter(|file| is_source(file) || file.path.ends_with(".md")) {
        for name in foldline_variables(&file.text).filter(|name| *name != CORPUS_VARIABLE) {
            if !declared.contains(&format!("&str = \"{name}\"")) {
                faults.push(format!("{} names {name}, which {ENVIRONMENT_FILE} does not declare", file.path));
            }
        }
    }
    faults.dedup();
    Ok(faults)
}

/// The names of our variables in a text.
fn foldline_variables(text: &str) -> impl Iterator<Item = &str> {
    const VARIABLE_PREFIX: &str = concat!("FOLDLINE", "_");
    text.match_indices(VARIABLE_PREFIX).filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit()).unwrap_or(rest.len());
        (end > VARIABLE_PREFIX.len()).then(|| &rest[..end])
    })
}

fn check_machine_paths(files: &[RepoFile]) -> Result<Vec<String>> {
    // In pieces, so that this file does not name them.
    const MACHINE_PATHS: [&str; 5] = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("/ro", "ot/"),
        concat!("/Us", "ers/"),
        concat!("/ho", "me/"),
    ];
    Ok(find_mentions(files.iter(), &MACHINE_PATHS))
}

fn check_reference_pages(files: &[RepoFile]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for page in reference::REFERENCE_PAGES {
        let committed = files.iter().find(|file| file.path == page.path).map(|file| file.text.as_str());
        if committed != Some((page.render)()?.as_str()) {
            faults.push(format!("{} is not what the code says", page.path));
        }
    }
    Ok(faults)
}

/// Where one of these words stands in the shipped part of a file, comments apart.
fn find_mentions<'f>(files: impl Iterator<Item = &'f RepoFile>, words: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let text = if is_source(file) { without_tests(file) } else { &file.text };
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

    fn file(path: &str, text: &str) -> RepoFile {
        RepoFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn file_without_module_docs_is_found() {
        let files = [file("a.rs", "//! This.\n"), file("b.rs", "fn b() {}\n"), file("c.md", "c\n")];
        assert_eq!(check_module_docs(&files).unwrap(), ["b.rs does not begin with `//! `"]);
    }

    #[test]
    fn engine_io_is_found_except_in_tests() {
        let path = "crates/foldline/src/a.rs";
        let tests = "//! A.\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(check_purity(&[file(path, tests)]).unwrap(), Vec::<String>::new());
        assert_eq!(
            check_purity(&[file(path, "//! A.\nuse std::fs;\n")]).unwrap(),
            [format!("{path}:2 mentions std::fs")]
        );
        assert_eq!(check_purity(&[file("crates/other/src/a.rs", "use std::fs;\n")]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn wrong_order_and_unlisted_modules_are_found() {
        let table = "# A\n\n## Inside `foldline`\n\n| module | idea |\n|---|---|\n| `text`, `wire` | a |\n| `wire::sse` | b |\n| `fold` | c |\n\n## More\n";
        let page = file(ARCHITECTURE_FILE, table);
        let of = |name: &str, text: &str| file(&format!("{ENGINE_SOURCE_DIR}{name}.rs"), text);
        let fine = [
            of("fold", "use crate::wire::Request;\n"),
            of("wire/sse", "use crate::text::Text;\n// crate::fold\n"),
            of("text", "use crate::wire;\n\n#[cfg(test)]\nmod tests {\n    use crate::fold;\n}\n"),
            of("traps", "use crate::fold::fold;\n"),
        ];
        let [a, b, c, d] = fine;
        assert_eq!(check_module_order(&[a, b, c, d, file(ARCHITECTURE_FILE, table)]).unwrap(), Vec::<String>::new());
        let down = of("wire/sse", "use crate::{text, fold::State};\nfn a() { crate::fold::fold() }\n");
        let faults = check_module_order(&[page, down, of("apply", "")]).unwrap();
        assert_eq!(
            faults,
            [
                "ARCHITECTURE.md does not list apply".to_owned(),
                format!("{ENGINE_SOURCE_DIR}wire/sse.rs uses fold, which is below it")
            ]
        );
    }

    #[test]
    fn undeclared_variable_is_found() {
        let name = |rest: &str| format!("{}{rest}", concat!("FOLDLINE", "_"));
        let declared = file(ENVIRONMENT_FILE, &format!("//! E.\nconst A: &str = \"{}\";\n", name("A")));
        let page = file("README.md", &format!("set {} or {}\n", name("A"), name("B_2")));
        let faults = check_environment(&[declared, page]).unwrap();
        assert_eq!(faults, [format!("README.md names {}, which {ENVIRONMENT_FILE} does not declare", name("B_2"))]);
    }
}

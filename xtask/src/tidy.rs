//! `cargo xtask tidy`: the rules of the repository that no compiler checks.
//!
//! A rule is a function that reports what breaks it; `RULES` lists them. The rules are those of
//! ARCHITECTURE.md and CONTRIBUTING.md.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::repository::{self, File};
use crate::{reference, say};

type Rule = fn(&[File]) -> Result<Vec<String>>;

const RULES: &[(&str, Rule)] = &[
    ("every source file says at its head what it is for", module_docs),
    ("crates depend on each other in one direction, and the engine on nothing that does IO", dependencies),
    ("the engine touches no file, clock, environment or network", purity),
    ("modules of the engine use those that ARCHITECTURE.md lists above them, and it lists them all", order),
    ("environment variables are declared and read in one place", environment),
    ("no path of a developer's machine is committed", machine_paths),
    ("generated pages are up to date (`cargo xtask reference` writes them)", references),
];

/// A file longer than this, tests apart, is looked at again: it is two ideas, or a table.
const LONG: usize = 600;

pub(crate) fn run(_: &[String]) -> Result<()> {
    let files = repository::files()?;
    let mut broken = 0;
    for (name, rule) in RULES {
        let faults = rule(&files)?;
        say(&format!("{} {name}", if faults.is_empty() { "ok  " } else { "FAIL" }));
        faults.iter().for_each(|fault| say(&format!("       {fault}")));
        broken += faults.len();
    }
    for file in files.iter().filter(|file| is_source(file)) {
        let lines = shipped(file).lines().count();
        if lines > LONG {
            say(&format!("note {} has {lines} lines before its tests: two ideas, or a table?", file.path));
        }
    }
    if broken > 0 {
        bail!("{broken} places break a rule of the repository");
    }
    Ok(())
}

fn is_source(file: &File) -> bool {
    file.path.ends_with(".rs")
}

/// The text before the tests of a file.
fn shipped(file: &File) -> &str {
    file.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default()
}

fn module_docs(files: &[File]) -> Result<Vec<String>> {
    let silent = |file: &&File| is_source(file) && !file.text.starts_with("//! ");
    Ok(files.iter().filter(silent).map(|file| format!("{} does not begin with `//! `", file.path)).collect())
}

/// The crates of the workspace, each with those that it may depend on.
const DIRECTION: &[(&str, &[&str])] = &[
    ("foldline", &[]),
    ("foldline-archive", &["foldline"]),
    ("foldline-rlm", &["foldline"]),
    ("foldline-replay", &["foldline"]),
    ("foldline-server", &["foldline", "foldline-archive", "foldline-rlm"]),
    ("foldline-cli", &["foldline", "foldline-archive", "foldline-replay", "foldline-rlm", "foldline-server"]),
    ("foldline-py", &["foldline", "foldline-archive", "foldline-rlm"]),
    ("xtask", &["foldline", "foldline-archive", "foldline-replay"]),
];

/// Crates that do IO: none of them may stand anywhere behind the engine.
const IMPURE: &[&str] = &[
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

fn dependencies(_: &[File]) -> Result<Vec<String>> {
    let metadata = repository::metadata()?;
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
        let Some((_, allowed)) = DIRECTION.iter().find(|(crate_name, _)| crate_name == name) else {
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
                    if IMPURE.contains(&names[next].as_str()) {
                        faults.push(format!("the engine may not reach {} (through {})", names[next], names[&at]));
                    }
                    open.push(next.clone());
                }
            }
        }
    }
    Ok(faults)
}

fn purity(files: &[File]) -> Result<Vec<String>> {
    const WORLD: [&str; 9] = [
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
    let engine = |file: &&File| is_source(file) && file.path.starts_with(ENGINE);
    Ok(mentions(files.iter().filter(engine), &WORLD))
}

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ENGINE: &str = "crates/foldline/src/";
/// What only tests use.
const OF_TESTS: [&str; 3] = ["promises", "testing", "traps"];

/// Modules of one row of the table may use each other.
fn order(files: &[File]) -> Result<Vec<String>> {
    let page = files.iter().find(|file| file.path == ARCHITECTURE).map_or("", |file| file.text.as_str());
    let section = page.split("## Inside `foldline`\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let names = rows.enumerate().flat_map(|(row, names)| names.split('`').step_by(2).map(move |name| (name, row)));
    let listed: BTreeMap<&str, usize> = names.filter(|(name, _)| !name.contains("::")).collect();

    let mut faults = BTreeSet::new();
    for file in files.iter().filter(|file| is_source(file) && !file.path.contains("/tests/")) {
        let Some(name) = file.path.strip_prefix(ENGINE).and_then(|path| path.split(['/', '.']).next()) else {
            continue;
        };
        if name == "lib" || OF_TESTS.contains(&name) {
            continue;
        }
        let Some(row) = listed.get(name) else {
            faults.insert(format!("{ARCHITECTURE} does not list {name}"));
            continue;
        };
        let below = used(shipped(file)).filter(|used| listed.get(used).is_some_and(|other| other > row));
        faults.extend(below.map(|used| format!("{} uses {used}, which is below it", file.path)));
    }
    Ok(faults.into_iter().collect())
}

/// The modules that a text names by their paths.
fn used(text: &str) -> impl Iterator<Item = &str> {
    const PATH: &str = "crate::";
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.match_indices(PATH).map(move |(at, _)| &line[at + PATH.len()..])).flat_map(|rest| {
        // One path, or several in braces.
        let paths = rest.strip_prefix('{').unwrap_or(&rest[..rest.find("::").unwrap_or(rest.len())]);
        paths.split(", ").map(|path| path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
    })
}

/// The file that declares them.
const ENVIRONMENT: &str = "crates/foldline-cli/src/environment.rs";
/// The folder of recorded conversations that benches, examples and tasks try things on.
const CORPUS: &str = "FOLDLINE_CORPUS";

fn environment(files: &[File]) -> Result<Vec<String>> {
    let shipped = |file: &&File| is_source(file) && file.path.starts_with("crates/") && file.path.contains("/src/");
    let elsewhere = files.iter().filter(shipped).filter(|file| file.path != ENVIRONMENT);
    let mut faults = mentions(elsewhere, &["env::var", "env::set_var", "env = \""]);

    let declared = files.iter().find(|file| file.path == ENVIRONMENT).map_or("", |file| file.text.as_str());
    for file in files.iter().filter(|file| is_source(file) || file.path.ends_with(".md")) {
        for name in variables(&file.text).filter(|name| *name != CORPUS) {
            if !declared.contains(&format!("&str = \"{name}\"")) {
                faults.push(format!("{} names {name}, which {ENVIRONMENT} does not declare", file.path));
            }
        }
    }
    faults.dedup();
    Ok(faults)
}

/// The names of our variables in a text.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    const PREFIX: &str = concat!("FOLDLINE", "_");
    text.match_indices(PREFIX).filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit()).unwrap_or(rest.len());
        (end > PREFIX.len()).then(|| &rest[..end])
    })
}

fn machine_paths(files: &[File]) -> Result<Vec<String>> {
    // In pieces, so that this file does not name them.
    const PATHS: [&str; 5] = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("/ro", "ot/"),
        concat!("/Us", "ers/"),
        concat!("/ho", "me/"),
    ];
    Ok(mentions(files.iter(), &PATHS))
}

fn references(files: &[File]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for page in reference::PAGES {
        let committed = files.iter().find(|file| file.path == page.path).map(|file| file.text.as_str());
        if committed != Some((page.render)()?.as_str()) {
            faults.push(format!("{} is not what the code says", page.path));
        }
    }
    Ok(faults)
}

/// Where one of these words stands in the shipped part of a file, comments apart.
fn mentions<'f>(files: impl Iterator<Item = &'f File>, words: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let text = if is_source(file) { shipped(file) } else { &file.text };
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

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_file_without_a_word_about_itself_is_found() {
        let files = [file("a.rs", "//! This.\n"), file("b.rs", "fn b() {}\n"), file("c.md", "c\n")];
        assert_eq!(module_docs(&files).unwrap(), ["b.rs does not begin with `//! `"]);
    }

    #[test]
    fn the_engine_may_not_look_at_the_world_but_its_tests_may() {
        let path = "crates/foldline/src/a.rs";
        let tests = "//! A.\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(purity(&[file(path, tests)]).unwrap(), Vec::<String>::new());
        assert_eq!(purity(&[file(path, "//! A.\nuse std::fs;\n")]).unwrap(), [format!("{path}:2 mentions std::fs")]);
        assert_eq!(purity(&[file("crates/other/src/a.rs", "use std::fs;\n")]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_module_that_looks_down_is_found_and_one_that_is_not_listed() {
        let table = "# A\n\n## Inside `foldline`\n\n| module | idea |\n|---|---|\n| `text`, `wire` | a |\n| `wire::sse` | b |\n| `fold` | c |\n\n## More\n";
        let page = file(ARCHITECTURE, table);
        let of = |name: &str, text: &str| file(&format!("{ENGINE}{name}.rs"), text);
        let fine = [
            of("fold", "use crate::wire::Request;\n"),
            of("wire/sse", "use crate::text::Text;\n// crate::fold\n"),
            of("text", "use crate::wire;\n\n#[cfg(test)]\nmod tests {\n    use crate::fold;\n}\n"),
            of("traps", "use crate::fold::fold;\n"),
        ];
        let [a, b, c, d] = fine;
        assert_eq!(order(&[a, b, c, d, file(ARCHITECTURE, table)]).unwrap(), Vec::<String>::new());
        let down = of("wire/sse", "use crate::{text, fold::State};\nfn a() { crate::fold::fold() }\n");
        let faults = order(&[page, down, of("apply", "")]).unwrap();
        assert_eq!(
            faults,
            [
                "ARCHITECTURE.md does not list apply".to_owned(),
                format!("{ENGINE}wire/sse.rs uses fold, which is below it")
            ]
        );
    }

    #[test]
    fn a_variable_that_is_not_declared_is_found() {
        let name = |rest: &str| format!("{}{rest}", concat!("FOLDLINE", "_"));
        let declared = file(ENVIRONMENT, &format!("//! E.\nconst A: &str = \"{}\";\n", name("A")));
        let page = file("README.md", &format!("set {} or {}\n", name("A"), name("B_2")));
        let faults = environment(&[declared, page]).unwrap();
        assert_eq!(faults, [format!("README.md names {}, which {ENVIRONMENT} does not declare", name("B_2"))]);
    }
}

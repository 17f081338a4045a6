//! `foldline models`, `completions`, `man` and `--version`.

#![expect(clippy::unwrap_used, reason = "test code")]

#[expect(dead_code, reason = "other tests need the rest of it")]
mod support;

use std::path::Path;

use support::{foldline, utf8};

fn run(home: &Path, arguments: &[&str]) -> String {
    let output = foldline(home).args(arguments).current_dir(home).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", utf8(&output.stderr));
    utf8(&output.stdout).to_owned()
}

#[test]
fn facts_of_a_model_name_their_origin() {
    let home = tempfile::tempdir().unwrap();
    let shown = run(home.path(), &["models", "claude-opus-4-6"]);
    assert!(shown.starts_with("claude-opus-4-6: row claude-opus-4-6 of the built-in table\n"), "{shown}");
    assert!(shown.contains("window         1,000,000 tokens") && shown.contains("$5 in, $25 out"), "{shown}");
    let shown = run(home.path(), &["models", "some-unknown-model"]);
    assert!(shown.contains("row * (unknown models)") && shown.contains("price          not known"), "{shown}");
    std::fs::write(home.path().join("m.csv"), "prefix,window\nclaude-opus-4-6,300000\n").unwrap();
    let shown = run(home.path(), &["models", "claude-opus-4-6", "--models", "m.csv"]);
    assert!(shown.contains("of m.csv over the built-in table") && shown.contains("from m.csv: window"), "{shown}");
}

#[test]
fn rows_and_price_tables_are_listed() {
    let home = tempfile::tempdir().unwrap();
    let rows = run(home.path(), &["models"]);
    assert!(rows.lines().count() > 100 && rows.contains("claude-opus-4-6") && !rows.contains("prices:"), "{rows}");
    let prices = run(home.path(), &["models", "--prices"]);
    assert!(["anthropic-5m", "anthropic-1h", "local"].iter().all(|name| prices.contains(name)), "{prices}");
    let json: serde_json::Value = serde_json::from_str(&run(home.path(), &["models", "--json"])).unwrap();
    assert!(json.as_array().unwrap().iter().any(|row| row["prefix"] == "gpt-5" && row["window"] == 400_000));
}

#[test]
fn wrong_column_lists_the_columns() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("m.csv"), "prefix,size\nx,1\n").unwrap();
    let output = foldline(home.path()).args(["models", "--models", "m.csv"]).current_dir(home.path()).output().unwrap();
    let stderr = utf8(&output.stderr);
    assert!(stderr.contains("`size`: unknown column; the columns are prefix, provider, window"), "{stderr}");
}

#[test]
fn completions_and_manual_pages_are_written() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(home.path(), &["completions", shell]).contains("foldline"), "{shell}");
    }
    assert!(run(home.path(), &["completions", "bash"]).contains("observe"), "values of settings are completed");
    assert!(run(home.path(), &["man"]).contains(".TH foldline"));
    run(home.path(), &["man", "--dir", "pages"]);
    assert!(home.path().join("pages/foldline-serve.1").exists());
    assert!(run(home.path(), &["--version"]).contains("features: "));
}

//! Sources of settings, as a user meets them: variables, the settings file and their mistakes.

#![expect(clippy::unwrap_used, reason = "test code")]

#[expect(dead_code, reason = "other tests need the rest of it")]
mod support;

use std::path::Path;

use support::{foldline, utf8};

/// Returns the standard error of a command that fails.
fn error_of(home: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = foldline(home);
    let output = command.args(arguments).envs(variables.iter().copied()).current_dir(home).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", utf8(&output.stdout));
    utf8(&output.stderr).trim_end().to_owned()
}

#[test]
fn misspelled_variable_names_the_nearest() {
    let home = tempfile::tempdir().unwrap();
    for arguments in [&["serve", "--listen", "127.0.0.1:0"][..], &["unfold", "7k3q9p2m"], &["run", "--", "true"]] {
        assert_eq!(
            error_of(home.path(), arguments, &[("FOLDLINE_UPSTEAM", "http://127.0.0.1:1")]),
            "foldline: unknown variable $FOLDLINE_UPSTEAM; did you mean $FOLDLINE_UPSTREAM?"
        );
    }
}

#[test]
fn invalid_value_names_its_source() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("proxy.toml");
    std::fs::write(&file, "policy = tight\n").unwrap();
    let serve = &["serve", "--listen", "127.0.0.1:0", "--settings", "proxy.toml"][..];
    assert_eq!(
        error_of(home.path(), serve, &[]),
        "foldline: line 1 of proxy.toml: texts need quotes; write policy = \"tight\""
    );
    std::fs::write(&file, "window = \"large\"\n").unwrap();
    assert_eq!(
        error_of(home.path(), serve, &[]),
        "foldline: window in proxy.toml: \"large\" is not a number of tokens; write it as 200000, 32k or 1M"
    );
    std::fs::write(&file, "window = \"32k\"\n").unwrap();
    assert_eq!(
        error_of(home.path(), serve, &[("FOLDLINE_MAX_BODY", "much")]),
        "foldline: $FOLDLINE_MAX_BODY: write a size as a number and KB, MB, GB or TB, such as 500MB"
    );
}

/// Commands find originals in the archive that the settings file names.
#[test]
fn archive_of_the_settings_file_is_used_by_every_command() {
    let home = tempfile::tempdir().unwrap();
    let settings = home.path().join("proxy.toml");
    std::fs::write(&settings, "archive = \"from-file.db\"\nnamespace = \"team\"\n").unwrap();
    let request = serde_json::json!({ "model": "gpt-4o", "messages": [
        { "role": "user", "content": "read it" },
        { "role": "assistant", "tool_calls": [{ "id": "c", "type": "function", "function": { "name": "read", "arguments": "{}" } }] },
        { "role": "tool", "tool_call_id": "c", "content": "a line of the file\n".repeat(2_000) },
        { "role": "assistant", "content": "done" },
        { "role": "user", "content": "thanks" },
    ] });
    std::fs::write(home.path().join("body.json"), request.to_string()).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = foldline(home.path());
        command.env("FOLDLINE_SETTINGS", &settings).args(arguments).current_dir(home.path()).output().unwrap()
    };
    let fitted = run(&["fit", "body.json", "--budget", "2k", "-o", "small.json"]);
    assert!(fitted.status.success(), "{}", utf8(&fitted.stderr));
    assert!(home.path().join("from-file.db").exists());
    let stats = run(&["archive", "stats"]);
    assert!(utf8(&stats.stdout).contains("1 stored"), "{}{}", utf8(&stats.stdout), utf8(&stats.stderr));
    let other = run(&["archive", "stats", "--namespace", "local"]);
    assert!(utf8(&other.stdout).contains("0 stored"), "{}", utf8(&other.stdout));
}

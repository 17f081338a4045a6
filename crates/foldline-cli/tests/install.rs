//! `foldline install` and `uninstall`: only the client's own keys change, and everything is restored.

#![expect(clippy::unwrap_used, reason = "test code")]

#[expect(dead_code, reason = "other tests need the rest of it")]
mod support;

use std::path::Path;

use serde_json::Value;

use support::{foldline, utf8};

/// Runs a command and returns its standard output.
fn run(home: &Path, arguments: &[&str]) -> String {
    let output = foldline(home).args(arguments).current_dir(home).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", utf8(&output.stderr));
    utf8(&output.stdout).to_owned()
}

/// Returns the path and the contents of every file below a folder.
fn all_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(all_files(&path)),
            false => files.push((path.to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())),
        }
    }
    files.sort();
    files
}

/// A settings file of each client as a user may have written it, and a part of what is installed.
const CLIENT_FILES: [(&str, &str, &str, &str); 6] = [
    (
        "claude",
        ".claude/settings.json",
        "{\n  \"model\": \"opus\",\n  \"env\": { \"A\": \"1\" } }\n\n",
        "\"ANTHROPIC_BASE_URL\": \"http://127.0.0.1:8787\"",
    ),
    (
        "codex",
        ".codex/config.toml",
        "# mine\nmodel = \"gpt-5\"\n[tools]\nweb = true\n",
        "openai_base_url = \"http://127.0.0.1:8787/v1\"\n",
    ),
    (
        "opencode",
        ".config/opencode/opencode.jsonc",
        "{ // comment\n\t\"theme\": \"x\",\n}",
        "\"baseURL\": \"http://127.0.0.1:8787/v1\"",
    ),
    (
        "cline",
        ".cline/data/settings/providers.json",
        "{\"providers\":{\"anthropic\":{\"settings\":{\"apiKey\":\"k\"}}}}",
        "\"baseUrl\": \"http://127.0.0.1:8787/v1\"",
    ),
    ("pi", ".pi/agent/models.json", "{}", "\"baseUrl\": \"http://127.0.0.1:8787\""),
    ("aider", ".aider.conf.yml", "model: x\n", "\nopenai-api-base: http://127.0.0.1:8787/v1\n"),
];

#[test]
fn every_client_is_installed_and_restored_exactly() {
    for (client, file, original, installed) in CLIENT_FILES {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, original).unwrap();
        let before = all_files(home.path());

        let printed = run(home.path(), &["install", client]);
        assert!(printed.starts_with(&format!("~/{file}\n  ")) && printed.contains("127.0.0.1:8787"), "{printed}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(installed), "{client}: {text}");
        let after = all_files(home.path());
        assert!(run(home.path(), &["install", client]).contains("nothing was changed"), "idempotent");
        assert_eq!(all_files(home.path()), after);

        let printed = run(home.path(), &["uninstall", client]);
        assert!(printed.contains("the file is as it was before"), "{printed}");
        assert_eq!(all_files(home.path()), before, "{client}");
        assert!(run(home.path(), &["uninstall", client]).contains("nothing was changed"));
    }
}

#[test]
fn gemini_is_installed_in_its_env_file() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".gemini/.env");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "GEMINI_API_KEY=k").unwrap();
    let before = all_files(home.path());
    run(home.path(), &["install", "gemini"]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "GEMINI_API_KEY=k\nGOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8787\n");
    run(home.path(), &["uninstall", "gemini"]);
    assert_eq!(all_files(home.path()), before);
}

/// Gemini CLI refuses a base URL without a sign-in method in its settings.
#[test]
fn gemini_gets_a_sign_in_method_unless_it_has_one() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".gemini/settings.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    for (original, method) in [
        (None, "gemini-api-key"),
        (Some("{\"ui\":{\"theme\":\"x\"}}"), "gemini-api-key"),
        (Some("{\"security\":{\"auth\":{\"selectedType\":\"vertex-ai\"}}}"), "vertex-ai"),
    ] {
        original.into_iter().for_each(|text| std::fs::write(&path, text).unwrap());
        let before = all_files(home.path());
        let printed = run(home.path(), &["install", "gemini"]);
        let settings: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(settings["security"]["auth"]["selectedType"], method);
        assert_eq!(printed.contains("~/.gemini/settings.json"), method == "gemini-api-key", "{printed}");
        assert!(run(home.path(), &["install", "gemini"]).contains("nothing was changed"), "idempotent");
        run(home.path(), &["uninstall", "gemini"]);
        assert_eq!(all_files(home.path()), before);
    }
}

#[test]
fn file_that_did_not_exist_is_removed() {
    let home = tempfile::tempdir().unwrap();
    run(home.path(), &["install", "claude"]);
    let settings: Value =
        serde_json::from_slice(&std::fs::read(home.path().join(".claude/settings.json")).unwrap()).unwrap();
    assert_eq!(
        settings,
        serde_json::json!({ "env": {
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:8787",
            "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1",
            "ENABLE_TOOL_SEARCH": "true",
        } })
    );
    run(home.path(), &["uninstall", "claude"]);
    assert_eq!(all_files(home.path()), []);
}

#[test]
fn later_changes_of_the_user_survive_uninstall() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".claude/settings.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, r#"{"env":{"ANTHROPIC_BASE_URL":"https://gw.example"}}"#).unwrap();
    let printed = run(home.path(), &["install", "claude", "--url", "http://127.0.0.1:9/"]);
    assert!(printed.contains("was https://gw.example: set it as the upstream of the proxy"), "{printed}");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("{\"env\"", "{\"model\":\"opus\",\"env\"")).unwrap();
    assert!(run(home.path(), &["uninstall", "claude"]).contains("other changes of the file"));
    let settings: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(settings, serde_json::json!({ "model": "opus", "env": { "ANTHROPIC_BASE_URL": "https://gw.example" } }));
}

#[test]
fn another_address_replaces_the_first_and_is_undone_as_one() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".codex/config.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "model = \"a\"\n").unwrap();
    run(home.path(), &["install", "codex"]);
    run(home.path(), &["install", "codex", "--url", "http://127.0.0.1:9"]);
    assert!(std::fs::read_to_string(&path).unwrap().contains("http://127.0.0.1:9/v1"));
    run(home.path(), &["uninstall", "codex"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "model = \"a\"\n");
}

#[test]
fn damaged_settings_are_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".claude/settings.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "{\"env\": ").unwrap();
    let output = foldline(home.path()).args(["install", "claude"]).output().unwrap();
    assert!(!output.status.success() && utf8(&output.stderr).contains("not valid JSON"), "{}", utf8(&output.stderr));
    assert_eq!(std::fs::read(&path).unwrap(), b"{\"env\": ");
}

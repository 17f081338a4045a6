//! End-to-end tests of the archive commands.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::{Archive, Namespace};

const LOG_TEXT: &str = "compiling\nerror[E0308]: mismatched types\n  --> src/readConfigFile.rs:12\nfailed\n";

/// Creates a folder with an archive that contains `LOG_TEXT`.
fn archive_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    archive.tenant(&Namespace::local()).store(&[original(LOG_TEXT)]).unwrap();
    folder
}

fn original(text: &str) -> Original<'_> {
    let handle = Handle::for_content(text.as_bytes());
    let arguments = Some(r#"{"command":"cargo build"}"#);
    Original { handle, bytes: text.as_bytes(), tool: Some("bash"), arguments, message: 4, tokens: 30 }
}

fn run_foldline(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foldline"))
        .args(arguments)
        .env("FOLDLINE_ARCHIVE", folder.join("archive.db"))
        .env_remove("FOLDLINE_ARCHIVE_KEY")
        .env_remove("FOLDLINE_ARCHIVE_KEY_FILE")
        .env("COLUMNS", "100")
        .output()
        .unwrap()
}

/// Returns standard output of a successful run.
fn stdout_of(folder: &Path, arguments: &[&str]) -> String {
    let output = run_foldline(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the exit code and standard error of a failed run.
fn failure_of(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = run_foldline(folder, arguments);
    assert!(output.stdout.is_empty(), "{arguments:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Folders of a long path matter less than its file name, and dropped rounds have no tool of their own.
#[test]
fn search_names_the_file_of_a_hit() {
    let folder = archive_folder();
    let path = r#"{"file_path":"/srv/projects/service/repository/internal/handlers/authentication/middleware.go"}"#;
    let rounds = r#"[{"role":"assistant","parts":[{"type":"tool_call","id":"c","name":"Read","arguments":{"json":"{\"file_path\":\"src/a.rs\"}"}}]},{"role":"tool","parts":[{"type":"tool_result","call_id":"c","content":[{"type":"text","text":"dropped_words\n"}]}]}]"#;
    let file = Original { tool: Some("Read"), arguments: Some(path), ..original("package handlers") };
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let dropped = Original { tool: None, arguments: None, ..original(rounds) };
    archive.tenant(&Namespace::local()).store(&[file, dropped]).unwrap();
    drop(archive);
    let found = stdout_of(folder.path(), &["search", "package"]);
    assert!(found.contains("Read …") && found.contains("/middleware.go "), "{found}");
    let found = stdout_of(folder.path(), &["search", "dropped_words"]);
    assert!(found.contains("Read src/a.rs "), "{found}");
}

/// Dropped rounds are one line of JSON, on which ranges of lines and patterns are useless.
#[test]
fn unfolded_rounds_are_readable() {
    let folder = archive_folder();
    let rounds = r#"[{"role":"assistant","parts":[{"type":"reasoning","text":"Hm.","seal":"c2lnbmVk"},{"type":"tool_call","id":"c","name":"Read","arguments":{"json":"{\"file_path\":\"src/a.rs\"}"}}]},{"role":"tool","parts":[{"type":"tool_result","call_id":"c","content":[{"type":"text","text":"fn a() {\n    readable_words();\n}\n"}]}]}]"#;
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    archive.tenant(&Namespace::local()).store(&[Original { tool: None, ..original(rounds) }]).unwrap();
    drop(archive);
    let (folder, handle) = (folder.path(), Handle::for_content(rounds.as_bytes()));
    let handle = handle.as_str();
    let view = "== assistant\n-- reasoning\nHm.\n-- call of Read src/a.rs\n== tool\n-- result of Read src/a.rs, ok\nfn a() {\n    readable_words();\n}\n";
    assert_eq!(stdout_of(folder, &["unfold", handle]), view);
    assert_eq!(stdout_of(folder, &["unfold", handle, "--lines", "4"]), "-- call of Read src/a.rs\n");
    assert_eq!(stdout_of(folder, &["unfold", handle, "--grep", "words"]), "8:    readable_words();\n");
    assert_eq!(stdout_of(folder, &["unfold", handle, "--raw"]), rounds);
    let found = stdout_of(folder, &["search", "readable_words"]);
    assert!(found.contains("line 8") && found.contains(">     readable_words();"), "{found}");
}

#[test]
fn unfold_prints_all_or_a_part() {
    let folder = archive_folder();
    let folder = folder.path();
    let handle = Handle::for_content(LOG_TEXT.as_bytes());
    let handle = handle.as_str();
    assert_eq!(stdout_of(folder, &["unfold", handle]), LOG_TEXT);
    assert_eq!(stdout_of(folder, &["unfold", &handle[..8]]), LOG_TEXT);
    assert_eq!(stdout_of(folder, &["unfold", handle, "--lines", "2..2"]), "error[E0308]: mismatched types\n");
    assert_eq!(
        stdout_of(folder, &["unfold", handle, "--grep", "^err", "-C", "1"]),
        LOG_TEXT
            .lines()
            .take(3)
            .zip(["1-", "2:", "3-"])
            .map(|(line, front)| format!("{front}{line}\n"))
            .collect::<String>()
    );
    assert_eq!(stdout_of(folder, &["unfold", handle, "--page", "1"]), LOG_TEXT);
}

#[test]
fn errors_have_exit_codes() {
    let folder = archive_folder();
    let folder = folder.path();
    let handle = Handle::for_content(LOG_TEXT.as_bytes());
    let handle = handle.as_str();
    let (code, stderr) = failure_of(folder, &["unfold", "00000000"]);
    assert!(code == 1 && stderr.contains("no original"), "{stderr}");
    for bad in [
        &["unfold", "not a handle"][..],
        &["unfold", &handle[..7]],
        &["unfold", handle, "--grep", "("],
        &["unfold", handle, "--lines", "9.."],
        &["unfold", handle, "--page", "7"],
        &["search", "?"],
    ] {
        let (code, stderr) = failure_of(folder, bad);
        assert!(code == 2 && stderr.starts_with("foldline: "), "{bad:?}: {code} {stderr}");
    }
    let (code, stderr) = failure_of(folder, &["unfold", handle, "--namespace", "other"]);
    assert!(code == 1 && stderr.contains("other"), "{stderr}");
    let (code, stderr) = failure_of(folder, &["unfold", handle, "--archive", "/nowhere/archive.db"]);
    assert!(code == 1 && stderr.contains("no archive at /nowhere/archive.db"), "{stderr}");
}

#[test]
fn search_matches_identifier_parts_and_prints_json() {
    let folder = archive_folder();
    let folder = folder.path();
    let hits = stdout_of(folder, &["search", "config"]);
    assert!(
        hits.contains(Handle::for_content(LOG_TEXT.as_bytes()).as_str()) && hits.contains("readConfigFile"),
        "{hits}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout_of(folder, &["search", "mismatched", "types", "--json"])).unwrap();
    assert_eq!((json["tool"].as_str(), json["line"].as_u64()), (Some("bash"), Some(2)));
    assert_eq!(run_foldline(folder, &["search", "zebra"]).status.code(), Some(1));
}

#[test]
fn archive_stats_verify_prune_export_and_import_work() {
    let folder = archive_folder();
    let folder = folder.path();
    let stats = stdout_of(folder, &["archive", "stats"]);
    assert!(stats.contains("1 stored") && stats.contains("bash"), "{stats}");
    assert!(stdout_of(folder, &["archive", "verify"]).starts_with("1 originals are intact"));
    assert!(
        stdout_of(folder, &["archive", "prune", "--unused-for", "30d", "--max-size", "1GB"])
            .starts_with("removed 0 originals")
    );
    let export = folder.join("export.jsonl.zst");
    stdout_of(folder, &["archive", "export", export.to_str().unwrap()]);
    let elsewhere = folder.join("other.db");
    let elsewhere = elsewhere.to_str().unwrap();
    let imported = stdout_of(folder, &["archive", "import", export.to_str().unwrap(), "--archive", elsewhere]);
    assert!(imported.starts_with("imported 1 originals"), "{imported}");
    let handle = Handle::for_content(LOG_TEXT.as_bytes());
    assert_eq!(stdout_of(folder, &["unfold", handle.as_str(), "--archive", elsewhere]), LOG_TEXT);
}

/// Damage is reported with its handle and exit code 1; the rest remains readable.
#[test]
fn verify_reports_damage() {
    let folder = archive_folder();
    let path = folder.path().join("archive.db");
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE pack SET content = x'00'", ()).unwrap();
    Archive::open(&path).unwrap().tenant(&Namespace::local()).store(&[original("intact text")]).unwrap();
    let output = run_foldline(folder.path(), &["archive", "verify"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(Handle::for_content(LOG_TEXT.as_bytes()).as_str()));
    assert_eq!(stdout_of(folder.path(), &["unfold", Handle::for_content(b"intact text").as_str()]), "intact text");
}

#[test]
fn encrypted_archive_requires_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let key = folder.join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef0123456789a=\n").unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let key = key.to_str().unwrap();
    let export = folder.join("export.jsonl");
    std::fs::write(&export, "{\"foldline_export\":1}\n{\"original\":{\"text\":\"sealed words\"}}\n").unwrap();
    stdout_of(folder, &["archive", "import", export.to_str().unwrap(), "--archive-key-file", key]);
    let handle = Handle::for_content(b"sealed words");
    assert_eq!(stdout_of(folder, &["unfold", handle.as_str(), "--archive-key-file", key]), "sealed words");
    assert!(stdout_of(folder, &["search", "sealed", "--archive-key-file", key]).contains(handle.as_str()));
    let (code, stderr) = failure_of(folder, &["unfold", handle.as_str()]);
    assert!(code == 1 && stderr.contains("is sealed"), "{stderr}");
}

#[test]
fn delete_removes_a_handle_a_session_or_everything() {
    let folder = archive_folder();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    archive.tenant(&Namespace::local()).in_session("s-1").store(&[original("of a session")]).unwrap();
    archive.tenant(&Namespace::new("team").unwrap()).store(&[original("of a team")]).unwrap();
    drop(archive);
    let folder = folder.path();
    let handle = Handle::for_content(LOG_TEXT.as_bytes());
    let deleted = |arguments: &[&str]| stdout_of(folder, &[&["archive", "delete"], arguments].concat());
    assert_eq!(failure_of(folder, &["archive", "delete"]).0, 2);
    assert_eq!(failure_of(folder, &["archive", "delete", "--all", "--session", "s-1"]).0, 2);
    assert!(deleted(&[handle.as_str()]).starts_with("deleted 1 originals"));
    assert_eq!(failure_of(folder, &["unfold", handle.as_str()]).0, 1);
    assert!(deleted(&["--session", "s-1"]).starts_with("deleted 1 originals"));
    assert!(deleted(&["--all", "--namespace", "local"]).starts_with("deleted 0 originals"));
    assert!(deleted(&["--all"]).starts_with("deleted 1 originals"));
}

#[test]
fn prune_and_verify_act_on_the_chosen_namespace() {
    let folder = archive_folder();
    let folder = folder.path();
    let verified = |arguments: &[&str]| stdout_of(folder, &[&["archive", "verify"], arguments].concat());
    assert!(verified(&[]).starts_with("1 originals are intact"));
    assert!(verified(&["--namespace", "local"]).starts_with("1 originals are intact"));
    assert!(verified(&["--namespace", "team"]).starts_with("0 originals are intact"));
    let output = run_foldline(folder, &["archive", "prune", "--unused-for", "0d"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && stderr.contains("1 originals are above the age limit and were kept"),
        "{stderr}"
    );
    let output = run_foldline(folder, &["archive", "prune", "--unused-for", "0d", "--namespace", "team"]);
    assert!(output.status.success() && output.stderr.is_empty());
}

/// A file is moved into PostgreSQL by two runs, the first of which copies everything; then data is held and deleted.
#[cfg(feature = "postgres")]
#[test]
fn file_is_migrated_to_postgres_and_held() {
    let Ok(url) = std::env::var("TEST_POSTGRES_URL") else {
        println!("skipped: needs a PostgreSQL server, see `cargo xtask postgres`");
        return;
    };
    let database = foldline_archive::postgres_testing::TestDatabase::create(&url);
    let folder = archive_folder();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let tenant = archive.tenant(&Namespace::new("token-alice").unwrap()).in_session("s-1");
    tenant.store(&[original("held text\n")]).unwrap();
    tenant.record_fact("cold_cache", b"f", b"").unwrap();
    drop((tenant, archive));
    let (folder, url) = (folder.path(), database.url());
    let handle = Handle::for_content(LOG_TEXT.as_bytes());
    let migrate = ["archive", "migrate", "--from", &*folder.join("archive.db").to_string_lossy(), "--to", &url]
        .map(str::to_owned);
    let migrate: Vec<&str> = migrate.iter().map(String::as_str).collect();
    assert!(stdout_of(folder, &migrate).starts_with("copied 2 originals and 1 facts to postgres://"));
    let again = stdout_of(folder, &migrate);
    assert!(
        again.starts_with("copied 0 originals and 0 facts") && again.contains("2 originals were already"),
        "{again}"
    );
    assert_eq!(stdout_of(folder, &["unfold", handle.as_str(), "--archive", &url]), LOG_TEXT);

    let held = |arguments: &[&str]| {
        stdout_of(folder, &[&["archive", "hold", "--archive", &url, "--namespace", "token-alice"], arguments].concat())
    };
    assert_eq!(held(&["--session", "s-1", "--set", "case 17"]), "");
    let holds = held(&[]);
    assert!(holds.starts_with("s-1 ") && holds.contains("case 17"), "{holds}");
    let delete = ["archive", "delete", "--archive", &url, "--namespace", "token-alice", "--session", "s-1"];
    assert_ne!(failure_of(folder, &delete).0, 0);
    assert_eq!(held(&["--session", "s-1", "--release"]), "");
    assert!(stdout_of(folder, &delete).starts_with("deleted 1 originals"));
    let (code, message) = failure_of(folder, &["archive", "hold", "--set", "case 18"]);
    assert!(code != 0 && message.contains("PostgreSQL"), "{message}");
}

#[test]
fn audit_log_names_the_command() {
    let folder = archive_folder();
    let folder = folder.path();
    let handle = Handle::for_content(LOG_TEXT.as_bytes());
    let log = folder.join("audit.jsonl");
    let audit = ["--audit-log", log.to_str().unwrap()];
    stdout_of(folder, &[&["unfold", handle.as_str()][..], &audit].concat());
    stdout_of(folder, &[&["archive", "prune", "--unused-for", "30d"][..], &audit].concat());
    let log = std::fs::read_to_string(log).unwrap();
    let [unfold, prune] = log.lines().collect::<Vec<_>>()[..] else { panic!("{log}") };
    assert!(unfold.contains(r#""source":"foldline unfold""#) && unfold.contains(handle.as_str()), "{unfold}");
    assert!(prune.contains(r#""source":"foldline archive""#) && prune.contains(r#""action":"prune""#), "{prune}");
}

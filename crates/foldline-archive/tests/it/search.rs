//! Search by words and by pieces of identifiers and paths, best and newest first.

use foldline::{Original, OriginalStore};
use foldline_archive::{ErrorKind, TenantArchive};

use crate::support::{TempArchive, original, random_bytes};

fn store_texts(temp: &TempArchive, texts: &[&str]) -> TenantArchive {
    let tenant = temp.local_tenant();
    for text in texts {
        tenant.store(&[Original { tool: None, arguments: None, ..original(text.as_bytes()) }]).unwrap();
    }
    tenant
}

fn search_texts(tenant: &TenantArchive, words: &str) -> Vec<String> {
    let hits = tenant.search(words, 0, 10).unwrap().hits;
    hits.iter().map(|hit| hit.snippet.lines().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn identifiers_and_paths_match_by_piece() {
    let temp = TempArchive::new();
    let tenant = store_texts(&temp, &["fn readConfigFile() {}", "see src/fold_engine/HTTPServer.rs", "nothing here"]);
    for words in ["config", "readConfigFile", "read_config_file", "readconfigfile", "CONFIG file"] {
        assert_eq!(search_texts(&tenant, words), ["fn readConfigFile() {}"], "{words}");
    }
    for words in ["fold_engine", "engine", "http server", "HttpServer", "src/fold_engine/HTTPServer.rs"] {
        assert_eq!(search_texts(&tenant, words), ["see src/fold_engine/HTTPServer.rs"], "{words}");
    }
}

#[test]
fn tool_arguments_are_searchable() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"contents")]).unwrap();
    assert_eq!(tenant.search("main.rs read_file", 0, 10).unwrap().total, 1);
}

#[test]
fn ranking_prefers_all_words_and_rare_words() {
    let temp = TempArchive::new();
    let tenant = store_texts(
        &temp,
        &["timeout in the scheduler", "error error error error", "error: timeout", "the the the", "a scheduler error"],
    );
    assert_eq!(search_texts(&tenant, "error timeout")[0], "error: timeout");
    assert_eq!(search_texts(&tenant, "scheduler zebra").len(), 2);
    assert_eq!(search_texts(&tenant, "zebra"), [""; 0]);
}

#[test]
fn equal_scores_rank_newest_first() {
    let temp = TempArchive::new();
    let tenant = store_texts(&temp, &["panic one", "panic two", "panic three"]);
    assert_eq!(search_texts(&tenant, "panic"), ["panic three", "panic two", "panic one"]);
    let page = tenant.search("panic", 1, 1).unwrap();
    assert_eq!((page.total, page.hits[0].snippet.as_str()), (3, "panic two"));
}

#[test]
fn snippet_shows_best_line_and_redacts_secrets() {
    let temp = TempArchive::new();
    let key = format!("sk-{}", "a1b2c3d4".repeat(4));
    let text = format!("first line\nexport KEY={key} for deployment\nneedle in deployment\nlast line\n");
    let tenant = store_texts(&temp, &[&text]);
    let hit = &tenant.search("needle deployment", 0, 1).unwrap().hits[0];
    assert_eq!(hit.line, 3);
    assert_eq!(hit.snippet, "export KEY=[secret] for deployment\nneedle in deployment\nlast line");
    assert_eq!(tenant.search(&key, 0, 1).unwrap().total, 0);
}

/// Full-text syntax, quotes, huge and binary queries are words or nothing, never a database error.
#[test]
fn query_syntax_is_ignored() {
    let temp = TempArchive::new();
    let tenant = store_texts(&temp, &["alpha beta gamma"]);
    let huge = "alpha ".repeat(200_000);
    for words in [
        "alpha AND",
        "NEAR(alpha beta, 5)",
        "alpha*",
        "\"alpha",
        "^alpha",
        "words : alpha",
        "{alpha}",
        "alpha OR NOT",
        "alpha'; DROP TABLE words_1; --",
        "(((alpha",
        "-alpha",
        "alpha\0beta",
        &huge,
    ] {
        assert_eq!(tenant.search(words, 0, 10).unwrap().total, 1, "{words:.40}");
    }
    for empty in ["", "  ", "*", "\"\"", "()", "\u{0}", "💥", "a"] {
        assert_eq!(tenant.search(empty, 0, 10).unwrap_err().kind(), &ErrorKind::InvalidInput, "{empty}");
    }
    assert_eq!(tenant.search(&"x".repeat(1_000_000), 0, 10).unwrap_err().kind(), &ErrorKind::InvalidInput);
}

#[test]
fn binary_and_large_originals_are_indexed() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let large = "lorem ipsum dolor ".repeat(200_000);
    let binary = random_bytes(1, 300_000);
    tenant.store(&[original(&binary), original(large.as_bytes()), original(b"needle")]).unwrap();
    assert_eq!(search_texts(&tenant, "needle"), ["needle"]);
    assert_eq!(tenant.search("ipsum", 0, 1).unwrap().total, 1);
}

/// The index is derived: a lost, damaged or foreign index is rebuilt.
#[test]
fn lost_or_foreign_index_is_rebuilt() {
    let temp = TempArchive::new();
    let index = temp.path().with_extension("db.index");
    let find = || search_texts(&temp.local_tenant(), "needle");
    drop(store_texts(&temp, &["needle"]));
    assert_eq!(find(), ["needle"]);
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(temp.path().with_extension(format!("db.index{suffix}")));
    }
    assert_eq!(find(), ["needle"]);
    std::fs::write(&index, "garbage ".repeat(1000)).unwrap();
    assert_eq!(find(), ["needle"]);

    let other = TempArchive::new();
    drop(store_texts(&other, &["one", "two", "three", "four"]));
    assert_eq!(search_texts(&other.local_tenant(), "three"), ["three"]);
    std::fs::copy(other.path().with_extension("db.index"), &index).unwrap();
    assert_eq!(find(), ["needle"]);
    assert_eq!(search_texts(&temp.local_tenant(), "three"), [""; 0]);
}

//! Searching: by words, by pieces of identifiers and paths, best and newest first.

use foldline::{Original, OriginalStore};
use foldline_archive::{ErrorKind, Shelf};

use crate::support::{Place, noise, original};

fn filled(place: &Place, texts: &[&str]) -> Shelf {
    let shelf = place.shelf();
    for text in texts {
        shelf.store(&[Original { tool: None, arguments: None, ..original(text.as_bytes()) }]).unwrap();
    }
    shelf
}

fn texts(shelf: &Shelf, words: &str) -> Vec<String> {
    let hits = shelf.search(words, 0, 10).unwrap().hits;
    hits.iter().map(|hit| hit.snippet.lines().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn identifiers_and_paths_are_found_by_their_pieces() {
    let place = Place::new();
    let shelf = filled(&place, &["fn readConfigFile() {}", "see src/fold_engine/HTTPServer.rs", "nothing here"]);
    for words in ["config", "readConfigFile", "read_config_file", "readconfigfile", "CONFIG file"] {
        assert_eq!(texts(&shelf, words), ["fn readConfigFile() {}"], "{words}");
    }
    for words in ["fold_engine", "engine", "http server", "HttpServer", "src/fold_engine/HTTPServer.rs"] {
        assert_eq!(texts(&shelf, words), ["see src/fold_engine/HTTPServer.rs"], "{words}");
    }
}

#[test]
fn what_the_tool_was_asked_for_is_found() {
    let place = Place::new();
    let shelf = place.shelf();
    shelf.store(&[original(b"contents")]).unwrap();
    assert_eq!(shelf.search("main.rs read_file", 0, 10).unwrap().total, 1);
}

#[test]
fn all_words_beat_some_and_rare_words_beat_common_ones() {
    let place = Place::new();
    let shelf = filled(
        &place,
        &["timeout in the scheduler", "error error error error", "error: timeout", "the the the", "a scheduler error"],
    );
    assert_eq!(texts(&shelf, "error timeout")[0], "error: timeout");
    assert_eq!(texts(&shelf, "scheduler zebra").len(), 2);
    assert_eq!(texts(&shelf, "zebra"), [""; 0]);
}

#[test]
fn of_equals_the_newest_comes_first() {
    let place = Place::new();
    let shelf = filled(&place, &["panic one", "panic two", "panic three"]);
    assert_eq!(texts(&shelf, "panic"), ["panic three", "panic two", "panic one"]);
    let page = shelf.search("panic", 1, 1).unwrap();
    assert_eq!((page.total, page.hits[0].snippet.as_str()), (3, "panic two"));
}

#[test]
fn the_snippet_shows_the_best_line_and_no_secret() {
    let place = Place::new();
    let key = format!("sk-{}", "a1b2c3d4".repeat(4));
    let text = format!("first line\nexport KEY={key} for deployment\nneedle in deployment\nlast line\n");
    let shelf = filled(&place, &[&text]);
    let hit = &shelf.search("needle deployment", 0, 1).unwrap().hits[0];
    assert_eq!(hit.line, 3);
    assert_eq!(hit.snippet, "export KEY=[secret] for deployment\nneedle in deployment\nlast line");
    assert_eq!(shelf.search(&key, 0, 1).unwrap().total, 0);
}

/// Full-text syntax, quotes, huge and binary queries: words or nothing, never an error of the database.
#[test]
fn a_query_is_never_syntax() {
    let place = Place::new();
    let shelf = filled(&place, &["alpha beta gamma"]);
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
        assert_eq!(shelf.search(words, 0, 10).unwrap().total, 1, "{words:.40}");
    }
    for empty in ["", "  ", "*", "\"\"", "()", "\u{0}", "💥", "a"] {
        assert_eq!(shelf.search(empty, 0, 10).unwrap_err().kind(), &ErrorKind::BadRequest, "{empty}");
    }
    assert_eq!(shelf.search(&"x".repeat(1_000_000), 0, 10).unwrap_err().kind(), &ErrorKind::BadRequest);
}

#[test]
fn binary_and_large_originals_do_not_stop_the_index() {
    let place = Place::new();
    let shelf = place.shelf();
    let large = "lorem ipsum dolor ".repeat(200_000);
    let binary = noise(1, 300_000);
    shelf.store(&[original(&binary), original(large.as_bytes()), original(b"needle")]).unwrap();
    assert_eq!(texts(&shelf, "needle"), ["needle"]);
    assert_eq!(shelf.search("ipsum", 0, 1).unwrap().total, 1);
}

/// The index is derived: lost, damaged or of another archive, it is made again.
#[test]
fn the_index_is_made_again() {
    let place = Place::new();
    let index = place.path().with_extension("db.index");
    let find = || texts(&place.shelf(), "needle");
    drop(filled(&place, &["needle"]));
    assert_eq!(find(), ["needle"]);
    for ending in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(place.path().with_extension(format!("db.index{ending}")));
    }
    assert_eq!(find(), ["needle"]);
    std::fs::write(&index, "garbage ".repeat(1000)).unwrap();
    assert_eq!(find(), ["needle"]);

    let other = Place::new();
    drop(filled(&other, &["one", "two", "three", "four"]));
    assert_eq!(texts(&other.shelf(), "three"), ["three"]);
    std::fs::copy(other.path().with_extension("db.index"), &index).unwrap();
    assert_eq!(find(), ["needle"]);
    assert_eq!(texts(&place.shelf(), "three"), [""; 0]);
}

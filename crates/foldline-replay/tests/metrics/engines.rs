//! The interface between engine and replay: invalid renderings, handles, and what an engine can see.

use super::*;

/// An engine with an invalid rendering fails instead of scoring well.
#[test]
fn rendering_with_a_gap_is_rejected() {
    struct GapSession;
    impl EngineSession for GapSession {
        fn push(&mut self, _: &[SharedMessage]) -> Result<(), EngineError> {
            Ok(())
        }
        fn request(&mut self) -> Result<RenderingDelta, EngineError> {
            Ok(RenderingDelta { changed: Vec::new(), len: 2, is_crease: false })
        }
    }
    struct GapEngine;
    impl ReplayEngine for GapEngine {
        fn name(&self) -> &str {
            "gaps"
        }
        fn open(&self, _: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
            Ok(Box::new(GapSession))
        }
    }
    assert!(matches!(replay(&late_need_case(), &GapEngine, 1_000, prices()), Err(EngineError::Failed(_))));
}

/// A result whose call was removed is an orphan that providers reject.
#[test]
fn broken_laws_are_counted() {
    let case = late_need_case();
    assert_eq!(run_scripted(&case, unchanged).score.laws_broken, 0);
    let orphan = |messages: &[SharedMessage]| {
        let mut now = messages.to_vec();
        if now.len() > 2 {
            now.remove(1);
        }
        now
    };
    assert!(run_scripted(&case, orphan).score.laws_broken > 0);
}

/// A rendering consists of verbatim lines and markers; a summary in the agent's name is neither.
#[test]
fn invented_bytes_are_counted() {
    let case = late_need_case();
    let bytes = |text| run_scripted(&case, with_file_replaced(text)).score.invented_bytes;
    assert_eq!(bytes("[folded: 4 lines of read lib.rs]"), 0);
    assert_eq!(bytes("use std::fmt;\n[+2]\n}"), 0);
    assert_eq!(bytes("It parses a header."), 19);
    // Gaming: a summary disguised as a marker.
    let disguised = format!("[folded: {}]", "and then it parses a header ".repeat(10));
    let disguised: &'static str = disguised.leak();
    assert_eq!(bytes(disguised), disguised.len() as u64);
}

/// Handles are unfolded when they appear, and again at the end by a restarted engine.
#[test]
fn every_handle_must_unfold_exactly() {
    struct UnfoldingSession {
        unfolded: &'static str,
        messages: Vec<SharedMessage>,
    }
    impl EngineSession for UnfoldingSession {
        fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
            self.messages.extend_from_slice(messages);
            Ok(())
        }
        fn request(&mut self) -> Result<RenderingDelta, EngineError> {
            let handle = Handle::for_content(FILE_TEXT.as_bytes());
            let marker = format!("[folded: 4 lines of read lib.rs; unfold {handle}]");
            let mut now = self.messages.clone();
            if now.len() > 2 {
                now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", marker)]));
            }
            Ok(RenderingDelta { len: now.len(), changed: now.into_iter().enumerate().collect(), is_crease: true })
        }
        fn unfold(&mut self, _: Handle) -> Result<Option<Vec<u8>>, EngineError> {
            Ok(Some(self.unfolded.as_bytes().to_vec()))
        }
    }
    struct UnfoldingEngine(&'static str);
    impl ReplayEngine for UnfoldingEngine {
        fn name(&self) -> &str {
            "unfolding"
        }
        fn open(&self, _: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
            Ok(Box::new(UnfoldingSession { unfolded: self.0, messages: Vec::new() }))
        }
    }
    let share = |unfolded| {
        let score = replay(&late_need_case(), &UnfoldingEngine(unfolded), 100_000, prices()).unwrap().score;
        (score.unfolded.hits, score.unfolded.total)
    };
    assert_eq!(share(FILE_TEXT), (2, 2));
    // Missing context is reported with the handle that restores it.
    let missing = replay(&late_need_case(), &UnfoldingEngine(FILE_TEXT), 100_000, prices()).unwrap().missing_context;
    assert!(
        !missing.is_empty() && missing.iter().all(|it| it.handle == Some(Handle::for_content(FILE_TEXT.as_bytes())))
    );
    assert_eq!(share("fn parse_header(limit: usize) {"), (0, 2));
    // Without handles nothing is counted.
    assert_eq!(
        run_scripted(&late_need_case(), with_file_replaced("[folded: 4 lines of read lib.rs]")).score.unfolded.total,
        0
    );
}

/// The classic strategies are scored like any engine, and each shortens its kind of content.
#[test]
fn classic_strategies_are_scored() {
    let case = case_from(long_session(30));
    let full = run_scripted(&case, unchanged).score;
    for classic in baselines::CLASSIC_STRATEGIES {
        let score = replay(&case, classic, 10_000, prices()).unwrap().score;
        assert_eq!((score.calls, score.unannounced, score.laws_broken), (full.calls, 0, 0), "{}", classic.name());
        assert!(score.tokens <= full.tokens, "{}", classic.name());
        // Nothing is repeated here, and no result is long.
        let idle = ["classic dedup of outputs", "classic snippets of stale outputs", "classic apply_all"];
        assert_eq!(score.tokens < full.tokens, !idle.contains(&classic.name()), "{}", classic.name());
    }
}

/// An engine sees the messages before a call, and nothing of the call or after it.
#[test]
fn engine_sees_only_earlier_messages() {
    let case = late_need_case();
    let expected: Vec<usize> = case.calls.iter().map(|call| call.start).collect();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    run_scripted(&case, move |messages: &[SharedMessage]| {
        log.lock().unwrap().push(messages.len());
        messages.to_vec()
    });
    assert_eq!(*seen.lock().unwrap(), expected);
}

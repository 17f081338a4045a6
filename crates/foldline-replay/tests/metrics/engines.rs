//! What an engine shows and keeps from the replay, and what the replay keeps from an engine.

use super::*;

/// An engine that renders nonsense is told so, and does not pass for a good one.
#[test]
fn a_rendering_with_a_hole_is_refused() {
    struct Hole;
    impl Engine for Hole {
        fn push(&mut self, _: &[Shared]) -> Result<(), Refusal> {
            Ok(())
        }
        fn request(&mut self) -> Result<Delta, Refusal> {
            Ok(Delta { set: Vec::new(), len: 2, creased: false })
        }
    }
    struct Holes;
    impl Maker for Holes {
        fn name(&self) -> &str {
            "holes"
        }
        fn open(&self, _: &Setup) -> Result<Box<dyn Engine>, Refusal> {
            Ok(Box::new(Hole))
        }
    }
    assert!(matches!(replay(&late_need(), &Holes, 1_000, prices()), Err(Refusal::Broken(_))));
}

/// A result whose call is gone is an orphan that providers refuse.
#[test]
fn broken_laws_are_counted() {
    let case = late_need();
    assert_eq!(run(&case, everything).score.laws_broken, 0);
    let orphan = |messages: &[Shared]| {
        let mut now = messages.to_vec();
        if now.len() > 2 {
            now.remove(1);
        }
        now
    };
    assert!(run(&case, orphan).score.laws_broken > 0);
}

/// A rendering is verbatim lines and markers; a summary in the agent's name is neither.
#[test]
fn invented_bytes_are_counted() {
    let case = late_need();
    let bytes = |text| run(&case, instead(text)).score.invented;
    assert_eq!(bytes("[folded: 4 lines of read lib.rs]"), 0);
    assert_eq!(bytes("use std::fmt;\n[+2]\n}"), 0);
    assert_eq!(bytes("It parses a header."), 19);
    // Gaming: a summary in the clothes of a marker.
    let disguised = format!("[folded: {}]", "and then it parses a header ".repeat(10));
    let disguised: &'static str = disguised.leak();
    assert_eq!(bytes(disguised), disguised.len() as u64);
}

/// Handles are asked for their originals as they come, and at the end of an engine that was started anew.
#[test]
fn every_handle_has_to_give_its_bytes_back() {
    struct Keeper {
        gives: &'static str,
        messages: Vec<Shared>,
    }
    impl Engine for Keeper {
        fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
            self.messages.extend_from_slice(messages);
            Ok(())
        }
        fn request(&mut self) -> Result<Delta, Refusal> {
            let handle = Handle::for_content(FILE.as_bytes());
            let marker = format!("[folded: 4 lines of read lib.rs; unfold {handle}]");
            let mut now = self.messages.clone();
            if now.len() > 2 {
                now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", marker)]));
            }
            Ok(Delta { len: now.len(), set: now.into_iter().enumerate().collect(), creased: true })
        }
        fn unfold(&mut self, _: Handle) -> Result<Option<Vec<u8>>, Refusal> {
            Ok(Some(self.gives.as_bytes().to_vec()))
        }
    }
    struct Keeps(&'static str);
    impl Maker for Keeps {
        fn name(&self) -> &str {
            "keeper"
        }
        fn open(&self, _: &Setup) -> Result<Box<dyn Engine>, Refusal> {
            Ok(Box::new(Keeper { gives: self.0, messages: Vec::new() }))
        }
    }
    let share = |gives| {
        let score = replay(&late_need(), &Keeps(gives), 100_000, prices()).unwrap().score;
        (score.unfolded.have, score.unfolded.of)
    };
    assert_eq!(share(FILE), (2, 2));
    // What is missing is told with the handle that stands for it.
    let missed = replay(&late_need(), &Keeps(FILE), 100_000, prices()).unwrap().missteps;
    assert!(!missed.is_empty() && missed.iter().all(|it| it.handle == Some(Handle::for_content(FILE.as_bytes()))));
    assert_eq!(share("fn parse_header(limit: usize) {"), (0, 2));
    // An engine that offers nothing owes nothing.
    assert_eq!(run(&late_need(), instead("[folded: 4 lines of read lib.rs]")).score.unfolded.of, 0);
}

/// The classic functions are rows like any other, and each shortens what it is for.
#[test]
fn classic_strategies_are_scored() {
    let case = case(long_session(30));
    let full = run(&case, everything).score;
    for classic in policy::CLASSIC {
        let score = replay(&case, classic, 10_000, prices()).unwrap().score;
        assert_eq!((score.calls, score.unannounced, score.laws_broken), (full.calls, 0, 0), "{}", classic.name());
        assert!(score.tokens <= full.tokens, "{}", classic.name());
        // Nothing is said twice here, and no result is long.
        let idle = ["classic dedup of outputs", "classic snippets of stale outputs", "classic apply_all"];
        assert_eq!(score.tokens < full.tokens, !idle.contains(&classic.name()), "{}", classic.name());
    }
}

/// An engine sees what came before a call, and nothing of the call or behind it.
#[test]
fn the_future_is_withheld() {
    let case = late_need();
    let expected: Vec<usize> = case.calls.iter().map(|call| call.at).collect();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    run(&case, move |messages: &[Shared]| {
        log.lock().unwrap().push(messages.len());
        messages.to_vec()
    });
    assert_eq!(*seen.lock().unwrap(), expected);
}

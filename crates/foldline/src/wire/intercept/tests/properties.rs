//! Properties of all answers of several rounds, in every format.

use proptest::prelude::*;

use crate::wire::intercept::tests::*;

/// Generates answers of up to four rounds: all but the last call only the hidden tool.
pub(crate) fn answers() -> impl Strategy<Value = Vec<ScriptedResponse>> {
    let output = prop::sample::select(vec![
        ScriptedOutput::Reasoning("hm ", "s"),
        ScriptedOutput::Text("text "),
        ScriptedOutput::Text("grüße 🦀"),
        ScriptedOutput::Unknown,
    ]);
    let hidden = prop::sample::select(vec![ScriptedOutput::Call("h", TOOL_NAME, r#"{"handle":"日本"}"#)]);
    let own = prop::sample::select(vec![
        ScriptedOutput::Call("c", "read", "{}"),
        ScriptedOutput::Call("d", "list", r#"{"x":"ü"}"#),
    ]);
    let continuing = (prop::collection::vec(output.clone(), 0..4), prop::collection::vec(hidden.clone(), 1..3));
    let ending =
        (prop::collection::vec(output, 0..4), prop::collection::vec(prop_oneof![hidden, own.clone()], 0..3), own);
    (prop::collection::vec(continuing, 0..4), ending, any::<bool>()).prop_map(
        |(continuing, (outputs, mixed, own), calls)| {
            let mut rounds: Vec<ScriptedResponse> = continuing
                .into_iter()
                .map(|(mut outputs, hidden)| {
                    outputs.extend(hidden);
                    script("r", &outputs, ScriptedStop::Calls, 100, 10)
                })
                .collect();
            let mut last = outputs;
            if calls {
                last.extend(mixed);
                last.push(own);
            }
            rounds.push(script("r", &last, if calls { ScriptedStop::Calls } else { ScriptedStop::Answer }, 200, 10));
            rounds
        },
    )
}

proptest! {
    #[test]
    fn any_answer_is_complete_for_any_chunking(
        rounds in answers(),
        format in prop::sample::select(Format::all().collect::<Vec<_>>()),
        size in 1..80usize,
    ) {
        let played = play(format, &rounds);
        let cut = play_in_chunks(format, &rounds, size);
        prop_assert_eq!(&played.bytes, &cut.bytes);
        let outputs = || rounds.iter().flat_map(|round| &round.outputs);
        let text: String = outputs().filter_map(|output| if let ScriptedOutput::Text(text) = output { Some(*text) } else { None }).collect();
        let own = outputs().filter(|output| matches!(output, ScriptedOutput::Call(_, name, _) if *name != TOOL_NAME)).count();
        prop_assert_eq!(played.answer.text, text);
        prop_assert_eq!(played.answer.output, 10 * rounds.len() as u64);
        prop_assert_eq!(played.answer.calls.len(), own);
    }
}

proptest! {
    #[test]
    fn damaged_rounds_never_panic_and_ignore_chunking(
        rounds in answers(),
        format in prop::sample::select(Format::all().collect::<Vec<_>>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..8),
        size in 1..80usize,
    ) {
        let damaged: Vec<Vec<u8>> = rounds
            .iter()
            .map(|round| {
                let mut bytes = scripted_stream(format, round);
                for (at, byte, how) in &changes {
                    let at = at.index(bytes.len());
                    match how {
                        0 => bytes[at] = *byte,
                        1 => bytes.insert(at, *byte),
                        _ => drop(bytes.remove(at)),
                    }
                }
                bytes
            })
            .collect();
        let play = |size: usize| {
            let mut splicer = StreamSplicer::new(format, TOOL_NAME);
            let mut bytes = Vec::new();
            for round in &damaged {
                round.chunks(size).for_each(|piece| splicer.push(piece, &mut bytes));
                let RoundOutcome::Continue(calls) = splicer.end_round(&mut bytes) else { break };
                calls.continuation(&["answer"]);
            }
            splicer.write_error(502, &ApiError::parse(b"over"), &mut bytes);
            bytes
        };
        prop_assert_eq!(play(usize::MAX), play(size));
    }
}

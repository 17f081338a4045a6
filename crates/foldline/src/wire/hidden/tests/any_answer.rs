//! What holds for every answer of several rounds, in every format.

use proptest::prelude::*;

use super::*;

/// Any answer of up to four rounds: all but the last ask for the hidden tool alone.
fn answers() -> impl Strategy<Value = Vec<Script>> {
    let say =
        prop::sample::select(vec![Say::Think("hm ", "s"), Say::Text("text "), Say::Text("grüße 🦀"), Say::Unknown]);
    let hidden = prop::sample::select(vec![Say::Call("h", TOOL, r#"{"handle":"日本"}"#)]);
    let own = prop::sample::select(vec![Say::Call("c", "read", "{}"), Say::Call("d", "list", r#"{"x":"ü"}"#)]);
    let asking = (prop::collection::vec(say.clone(), 0..4), prop::collection::vec(hidden.clone(), 1..3));
    let ending = (prop::collection::vec(say, 0..4), prop::collection::vec(prop_oneof![hidden, own.clone()], 0..3), own);
    (prop::collection::vec(asking, 0..4), ending, any::<bool>()).prop_map(|(asking, (says, mixed, own), calls)| {
        let mut rounds: Vec<Script> = asking
            .into_iter()
            .map(|(mut says, hidden)| {
                says.extend(hidden);
                script("r", &says, End::Calls, 100, 10)
            })
            .collect();
        let mut last = says;
        if calls {
            last.extend(mixed);
            last.push(own);
        }
        rounds.push(script("r", &last, if calls { End::Calls } else { End::Answer }, 200, 10));
        rounds
    })
}

proptest! {
    #[test]
    fn any_answer_is_readable_and_complete_however_it_is_cut(
        rounds in answers(),
        format in prop::sample::select(FORMATS.to_vec()),
        size in 1..80usize,
    ) {
        let played = play(format, &rounds);
        let cut = play_in_pieces(format, &rounds, size);
        prop_assert_eq!(&played.bytes, &cut.bytes);
        let says = || rounds.iter().flat_map(|round| &round.says);
        let text: String = says().filter_map(|say| if let Say::Text(text) = say { Some(*text) } else { None }).collect();
        let own = says().filter(|say| matches!(say, Say::Call(_, name, _) if *name != TOOL)).count();
        prop_assert_eq!(played.got.text, text);
        prop_assert_eq!(played.got.output, 10 * rounds.len() as u64);
        prop_assert_eq!(played.got.calls.len(), own);
    }
}

proptest! {
    #[test]
    fn damaged_rounds_are_spliced_without_a_panic_and_the_same_however_they_are_cut(
        rounds in answers(),
        format in prop::sample::select(FORMATS.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..8),
        size in 1..80usize,
    ) {
        let damaged: Vec<Vec<u8>> = rounds
            .iter()
            .map(|round| {
                let mut bytes = stream(format, round);
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
            let mut splicer = Splicer::new(format, TOOL);
            let mut bytes = Vec::new();
            for round in &damaged {
                round.chunks(size).for_each(|piece| splicer.push(piece, &mut bytes));
                let Next::Continue(asked) = splicer.end_round(&mut bytes) else { break };
                asked.continuation(&["answer"]);
            }
            splicer.fail(502, &ApiError::parse(b"over"), &mut bytes);
            bytes
        };
        prop_assert_eq!(play(usize::MAX), play(size));
    }
}

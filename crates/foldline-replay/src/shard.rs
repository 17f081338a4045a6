//! Shards of a replay: parts of a set of recordings that are replayed by separate processes and merged afterwards.
//!
//! The merge has the numbers of one replay of the whole set, bit for bit. Therefore a result has the outcome of every
//! session and its position in the set, never sums of floating-point numbers, and every shard collects the statistics
//! of the whole set. A merge of results that do not belong together is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use foldline::transcript::RecordedSession;
use foldline::{ModelTable, Prices};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::compare::{EngineComparison, PlacedOutcome};

/// The value of the field `kind`, by which a result is recognized. Its number changes with the fields.
const SHARD_KIND: &str = "foldline replay shard 1";
/// Seed of the assignment, so that it is independent of other choices by the hash of a name.
const SHARD_HASH_SEED: u64 = 0x5ba9_d5ee;
/// Maximum number of shards.
const MAX_SHARDS: u32 = 1_000_000;
/// Maximum number of missing shards that an error names.
const MAX_NAMED_SHARDS: usize = 8;

/// One of several shards, written `2/8`: the second of eight.
///
/// ```
/// let shards: Vec<foldline_replay::ReplayShard> = ["1/2", "2/2"].map(|text| text.parse().unwrap()).to_vec();
/// // Every session is in exactly one shard, wherever its file is.
/// assert_eq!(shards.iter().filter(|shard| shard.contains("session-1")).count(), 1);
/// assert!("3/2".parse::<foldline_replay::ReplayShard>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReplayShard {
    number: u32,
    count: u32,
}

impl ReplayShard {
    /// Returns true if a session, by its name, is in this shard. It depends on nothing else.
    pub fn contains(self, id: &str) -> bool {
        xxh3_64_with_seed(id.as_bytes(), SHARD_HASH_SEED) % u64::from(self.count) == u64::from(self.number - 1)
    }
}

impl fmt::Display for ReplayShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl FromStr for ReplayShard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let invalid = |reason: &str| {
            ShardError(format!(
                "\"{text}\" is not a shard: {reason}; use NUMBER/COUNT with numbers from 1, such as 2/8"
            ))
        };
        let (number, count) = text.split_once('/').ok_or_else(|| invalid("it has no \"/\""))?;
        let parse = |part: &str| part.parse::<u32>().map_err(|_| invalid(&format!("\"{part}\" is not a number")));
        let (number, count) = (parse(number)?, parse(count)?);
        match (number, count) {
            (_, 0) => Err(invalid("there are no shards")),
            (0, _) => Err(invalid("the first shard is 1")),
            _ if count > MAX_SHARDS => Err(invalid(&format!("there are at most {MAX_SHARDS} shards"))),
            _ if number > count => Err(invalid(&format!("the last of {count} shards is {count}"))),
            _ => Ok(Self { number, count }),
        }
    }
}

impl TryFrom<String> for ReplayShard {
    type Error = ShardError;

    fn try_from(text: String) -> Result<Self, ShardError> {
        text.parse()
    }
}

impl From<ReplayShard> for String {
    fn from(shard: ReplayShard) -> String {
        shard.to_string()
    }
}

/// An error of a shard's name, or of results that cannot be merged. Its text names the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardError(String);

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ShardError {}

/// A hash of the names of a set's sessions in order, computed while they are read. Shards with equal hashes have read
/// the same set.
#[derive(Default)]
pub struct RecordingSetHash {
    count: u64,
    names: Xxh3,
}

impl fmt::Debug for RecordingSetHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordingSetHash").field(&self.to_text()).finish()
    }
}

impl RecordingSetHash {
    /// Adds the next session of the set.
    pub fn add(&mut self, recording: &RecordedSession) {
        self.count += 1;
        let numbers = [recording.id.len(), recording.conversation.messages.len()];
        numbers.iter().for_each(|&number| self.names.update(&(number as u64).to_le_bytes()));
        self.names.update(recording.id.as_bytes());
    }

    /// Returns the number of sessions and the hash.
    pub fn to_text(&self) -> String {
        format!("{} sessions, {:032x}", self.count, self.names.digest128())
    }
}

/// The result of replaying one shard, as JSON that [`merge_shards`] accepts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShardResult {
    kind: String,
    /// The version of the program.
    version: String,
    shard: ReplayShard,
    #[serde(flatten)]
    context: ShardContext,
    /// The recordings of the whole set, as [`RecordingSetHash::to_text`] describes them.
    recordings: String,
    engine_names: Vec<String>,
    outcomes: Vec<PlacedOutcome>,
}

/// What a report needs besides the outcomes; the same for all shards of a replay, except for the date.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardContext {
    /// Settings of the replay by the names of their flags.
    pub settings: BTreeMap<String, String>,
    /// Description of the recordings.
    pub data_set: String,
    /// The day of the replay.
    pub date: String,
    /// Sessions of the whole set with too few calls, and the number of their calls.
    pub left_out: Vec<(String, usize)>,
}

/// The merged results of all shards.
#[derive(Debug)]
pub struct MergedReplay {
    /// The comparison over all sessions.
    pub comparison: EngineComparison,
    /// What a report needs besides it, with the latest date.
    pub context: ShardContext,
}

impl ShardResult {
    /// Creates the result of a shard. Details that no report shows, because they belong to another engine than no
    /// compaction and `subject`, are dropped.
    pub fn new(
        shard: ReplayShard,
        version: &str,
        context: ShardContext,
        recordings: &RecordingSetHash,
        engine_names: Vec<String>,
        mut outcomes: Vec<PlacedOutcome>,
        subject: usize,
    ) -> Self {
        for placed in &mut outcomes {
            for (at, run) in placed.outcome.runs.iter_mut().enumerate().filter(|&(at, _)| at != subject) {
                run.missing_context.clear();
                if at != 0 {
                    run.points.clear();
                }
            }
        }
        Self {
            kind: SHARD_KIND.to_owned(),
            version: version.to_owned(),
            shard,
            context,
            recordings: recordings.to_text(),
            engine_names,
            outcomes,
        }
    }

    /// Returns the number of replayed sessions.
    pub fn session_count(&self) -> usize {
        self.outcomes.len()
    }

    /// Returns the result as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a result is plain data")
    }

    /// Parses a result. `name` is the name of its file, for errors.
    ///
    /// # Errors
    ///
    /// Fails if the text is not the result of a shard, or of another version of the program.
    pub fn parse(name: &str, text: &str, version: &str) -> Result<Self, ShardError> {
        #[derive(Deserialize)]
        struct ShardHead {
            kind: String,
            version: String,
        }
        let Ok(head) = serde_json::from_str::<ShardHead>(text) else {
            return Err(ShardError(format!(
                "{name} is not the result of a shard; merge files that `foldline replay --shard I/N --json FILE` wrote"
            )));
        };
        if head.kind != SHARD_KIND || head.version != version {
            return Err(ShardError(format!(
                "{name} was written by foldline {} and this is {version}; replay and merge all shards with one version",
                head.version
            )));
        }
        serde_json::from_str(text)
            .map_err(|error| ShardError(format!("{name} is damaged: {error}; replay its shard again")))
    }
}

/// Merges the results of all shards of a replay, each with the name of its file, in any order.
///
/// # Errors
///
/// Fails if a shard is missing or appears twice, or if settings or recordings differ.
pub fn merge_shards(mut results: Vec<(String, ShardResult)>) -> Result<MergedReplay, ShardError> {
    results.sort_by_key(|(_, result)| result.shard);
    let Some((first_name, first)) = results.first() else {
        return Err(ShardError("nothing to merge; name the results of all shards".to_owned()));
    };
    let mut context = first.context.clone();
    for (name, result) in &results {
        check_same_replay((first_name, first), (name, result))?;
        context.date = context.date.max(result.context.date.clone());
    }
    for pair in results.windows(2) {
        if pair[0].1.shard == pair[1].1.shard {
            let (shard, [one, other]) = (pair[0].1.shard, [&pair[0].0, &pair[1].0]);
            return Err(ShardError(format!("shard {shard} is in both {one} and {other}; name each shard once")));
        }
    }
    let count = first.shard.count;
    if (results.len() as u64) < u64::from(count) {
        return Err(missing_shards(count, &results));
    }
    let engine_names = first.engine_names.clone();
    let mut outcomes: Vec<PlacedOutcome> = results.into_iter().flat_map(|(_, result)| result.outcomes).collect();
    outcomes.sort_by_key(|placed| placed.position);
    if outcomes.windows(2).any(|pair| pair[0].position == pair[1].position)
        || outcomes.iter().any(|placed| placed.outcome.runs.len() != engine_names.len())
    {
        return Err(ShardError("the results contradict each other; replay all shards again".to_owned()));
    }
    let outcomes = outcomes.into_iter().map(|placed| placed.outcome).collect();
    let default_prices = Prices::for_model(ModelTable::builtin(), None);
    Ok(MergedReplay { comparison: EngineComparison::new(engine_names, outcomes, default_prices), context })
}

/// Checks that two results are of the same replay.
fn check_same_replay(one: (&str, &ShardResult), other: (&str, &ShardResult)) -> Result<(), ShardError> {
    let ((one_name, one), (other_name, other)) = (one, other);
    if one.shard.count != other.shard.count {
        return Err(ShardError(format!(
            "{one_name} is shard {} and {other_name} is shard {}; merge the shards of one division",
            one.shard, other.shard
        )));
    }
    let (ours, theirs) = (&one.context.settings, &other.context.settings);
    for flag in ours.keys().chain(theirs.keys()) {
        let [our_value, their_value] = [ours, theirs].map(|settings| settings.get(flag).map_or("not set", |it| it));
        if our_value != their_value {
            return Err(ShardError(format!(
                "{flag} is {our_value} in {one_name} and {their_value} in {other_name}; replay all shards with the same \
                 settings"
            )));
        }
    }
    if one.recordings != other.recordings || one.context.left_out != other.context.left_out {
        return Err(ShardError(format!(
            "{one_name} and {other_name} are of different recordings ({} and {}); give every shard the same files, \
             in the same order",
            one.recordings, other.recordings
        )));
    }
    if one.engine_names != other.engine_names {
        return Err(ShardError(format!(
            "{one_name} and {other_name} are of different engines; replay all shards with the same settings"
        )));
    }
    Ok(())
}

fn missing_shards(count: u32, results: &[(String, ShardResult)]) -> ShardError {
    let is_missing = |number: &u32| !results.iter().any(|(_, result)| result.shard.number == *number);
    let missing: Vec<String> = (1..=count)
        .filter(is_missing)
        .take(MAX_NAMED_SHARDS + 1)
        .map(|number| ReplayShard { number, count }.to_string())
        .collect();
    let more = if missing.len() > MAX_NAMED_SHARDS { ", .." } else { "" };
    let named = missing[..missing.len().min(MAX_NAMED_SHARDS)].join(", ");
    ShardError(format!("shards are missing: {named}{more}; replay them and name the results of all {count} shards"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<ReplayShard>().unwrap_err().to_string()
    }

    #[test]
    fn invalid_shards_are_refused_with_a_reason() {
        assert!(refusal("0/4").contains("the first shard is 1"));
        assert!(refusal("5/4").contains("the last of 4 shards is 4"));
        assert!(refusal("1/0").contains("there are no shards"));
        assert!(refusal("a/b").contains("\"a\" is not a number"));
        assert!(refusal("-1/4").contains("\"-1\" is not a number"));
        assert!(refusal("3").contains("it has no \"/\""));
        assert!(refusal("1/4000000000").contains("at most 1000000"));
        assert!(refusal("3/").ends_with("such as 2/8"));
    }

    /// The assignment is part of the format: programs on other machines and of later versions must agree.
    #[test]
    fn assignment_is_fixed_and_even() {
        let shards: Vec<ReplayShard> = (1..=4).map(|number| ReplayShard { number, count: 4 }).collect();
        let mut sizes = [0; 4];
        for at in 0..4_000 {
            let id = format!("session-{at}");
            let holders: Vec<usize> = (0..4).filter(|&shard| shards[shard].contains(&id)).collect();
            assert_eq!(holders.len(), 1);
            sizes[holders[0]] += 1;
        }
        assert!(sizes.iter().all(|size| (900..1_100).contains(size)), "{sizes:?}");
        let first: Vec<u32> = ["a", "b", "c", "d", "e", "f"]
            .map(|id| shards.iter().find(|shard| shard.contains(id)).unwrap().number)
            .to_vec();
        assert_eq!(first, [2, 3, 1, 3, 4, 3]);
    }

    fn result(shard: &str, change: impl FnOnce(&mut ShardResult)) -> (String, ShardResult) {
        let context = ShardContext {
            settings: [("--budget".to_owned(), "128000".to_owned())].into(),
            data_set: "sessions".to_owned(),
            date: "2026-01-01".to_owned(),
            left_out: Vec::new(),
        };
        let names = vec!["no compaction".to_owned()];
        let recordings = RecordingSetHash::default();
        let shard: ReplayShard = shard.parse().unwrap();
        let mut result = ShardResult::new(shard, "1.0.0", context, &recordings, names, Vec::new(), 0);
        change(&mut result);
        (format!("{}.json", shard.number), result)
    }

    fn merge_error(results: Vec<(String, ShardResult)>) -> String {
        merge_shards(results).unwrap_err().to_string()
    }

    #[test]
    fn results_that_do_not_belong_together_are_refused() {
        let same = |_: &mut ShardResult| ();
        assert!(merge_shards(vec![result("2/2", same), result("1/2", same)]).is_ok());
        assert!(merge_error(Vec::new()).contains("nothing to merge"));
        let few = merge_error(vec![result("1/3", same)]);
        assert!(few.contains("shards are missing: 2/3, 3/3; replay them"), "{few}");
        assert!(merge_error(vec![result("7/20", same)]).contains("8/20, 9/20, .."));
        let twice = merge_error(vec![result("1/2", same), result("1/2", same), result("2/2", same)]);
        assert!(twice.contains("shard 1/2 is in both 1.json and 1.json"), "{twice}");
        assert!(
            merge_error(vec![result("1/2", same), result("2/3", same)])
                .contains("is shard 1/2 and 2.json is shard 2/3")
        );
        let budget = |result: &mut ShardResult| _ = result.context.settings.insert("--budget".into(), "64000".into());
        let other = merge_error(vec![result("1/2", same), result("2/2", budget)]);
        assert!(other.starts_with("--budget is 128000 in 1.json and 64000 in 2.json; replay all"), "{other}");
        let sample = |result: &mut ShardResult| _ = result.context.settings.insert("--sample".into(), "5".into());
        assert!(
            merge_error(vec![result("1/2", same), result("2/2", sample)]).contains("--sample is not set in 1.json")
        );
        let recordings = |result: &mut ShardResult| "7 sessions".clone_into(&mut result.recordings);
        assert!(merge_error(vec![result("1/2", same), result("2/2", recordings)]).contains("different recordings"));
        let engines = |result: &mut ShardResult| result.engine_names.push("theirs".to_owned());
        assert!(merge_error(vec![result("1/2", same), result("2/2", engines)]).contains("different engines"));
    }

    #[test]
    fn files_of_other_kinds_and_versions_are_refused() {
        let (_, written) = result("1/1", |_| ());
        assert!(ShardResult::parse("1.json", &written.to_json(), "1.0.0").is_ok());
        let parse_error =
            |text: &str, version: &str| ShardResult::parse("1.json", text, version).unwrap_err().to_string();
        assert!(parse_error("{\"rows\":[]}", "1.0.0").contains("1.json is not the result of a shard"));
        assert!(parse_error("", "1.0.0").contains("--shard I/N --json FILE"));
        assert!(parse_error(&written.to_json(), "1.0.1").contains("foldline 1.0.0 and this is 1.0.1"));
        let damaged = written.to_json().replace("\"1/1\"", "\"2/1\"");
        assert!(parse_error(&damaged, "1.0.0").contains("is damaged"));
    }
}

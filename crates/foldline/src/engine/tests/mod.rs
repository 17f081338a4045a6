//! Tests of the engine as a whole: the four guarantees, the left fold, and known failures of other compactors.

mod guarantees;
mod known_failures;
mod left_fold;
mod records;

//! Tests of the engine as a whole: the four guarantees, and known failures of other compactors.

mod guarantees;
mod known_failures;

//! Every law by example, and the laws over made-up conversations.

mod comparisons;
mod examples;
mod properties;
mod repairs;

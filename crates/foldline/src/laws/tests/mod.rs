//! Examples of every law, and properties over generated conversations.

mod comparisons;
mod examples;
mod properties;
mod repairs;

//! Settings: declared once in a table, read from flags, variables and the settings file, and resolved once into plain
//! structs.
//!
//! | module | idea |
//! |---|---|
//! | `table` | the settings: name, variable, default, help |
//! | `flags` | clap arguments of the table |
//! | `layers` | values of all sources, and which one wins |
//! | `proxy`, `archive`, `models` | resolved settings |
//! | `reference` | docs/reference/proxy.md |

pub(crate) mod archive;
pub(crate) mod flags;
pub(crate) mod layers;
pub(crate) mod models;
pub(crate) mod proxy;
pub(crate) mod reference;
pub(crate) mod table;

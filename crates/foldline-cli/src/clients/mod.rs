//! Clients of providers: how each is pointed at a proxy, for one run or for good, and what its settings are.
//!
//! | module | idea |
//! |---|---|
//! | `kind` | the clients that foldline knows |
//! | `base_url` | base URLs of proxies and in settings files |
//! | `launch` | variables and arguments of one run |
//! | `config` | the settings files of clients, and the base URLs in them |
//! | `install` | changes of settings files, and their exact undo |
//! | `edit` | edits of JSON, TOML, YAML and `.env` files |

pub(crate) mod base_url;
pub(crate) mod config;
pub(crate) mod edit;
pub(crate) mod install;
pub(crate) mod kind;
pub(crate) mod launch;

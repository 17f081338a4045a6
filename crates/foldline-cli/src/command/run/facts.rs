//! The client that a command is, and the providers that it would use.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::clients::base_url::ConfiguredUrl;
use crate::clients::kind::ClientKind;
use crate::clients::launch::CallerEnv;
use crate::clients::{install, launch};
use crate::environment;

/// Facts about the client that a command is, from its settings files.
pub(super) struct ClientFacts {
    pub(super) kind: Option<ClientKind>,
    /// Base URLs in its settings files, the strongest first.
    pub(super) configured: Vec<ConfiguredUrl>,
    pub(super) home: PathBuf,
    /// True if the client refuses base URLs because no sign-in method is selected in its settings.
    pub(super) lacks_sign_in: bool,
}

impl ClientFacts {
    pub(super) fn read(program: &OsStr) -> Self {
        let (kind, folders) = (ClientKind::from_program(program), environment::client_folders());
        let configured = kind.map(|kind| folders.configured_urls(kind)).unwrap_or_default();
        let lacks_sign_in = kind.and_then(|kind| folders.missing_sign_in(kind)).is_some();
        Self { kind, configured, home: folders.home, lacks_sign_in }
    }

    /// Returns the environment with the providers that the client would use: those of its settings files first. A URL that
    /// `foldline install` wrote is a proxy's, not a provider's.
    pub(super) fn caller(&self) -> CallerEnv {
        let record = self.kind.and_then(|kind| install::record_path(kind).ok());
        let is_installed =
            |url: &str| record.as_deref().is_some_and(|record| install::is_written_by_install(record, url));
        let foreign: Vec<ConfiguredUrl> = self.configured.iter().filter(|it| !is_installed(&it.url)).cloned().collect();
        let (openai, anthropic) = launch::configured_upstreams(self.kind, &foreign);
        let caller = environment::caller_env();
        CallerEnv { openai: openai.or(caller.openai), anthropic: anthropic.or(caller.anthropic), ..caller }
    }
}

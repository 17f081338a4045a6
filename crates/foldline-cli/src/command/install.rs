//! `foldline install` and `foldline uninstall`: point a client at the proxy in its own settings, and undo it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use foldline::wire::Format;

use crate::clients::base_url::{BaseUrls, short_path};
use crate::clients::config::{self, ClientFile};
use crate::clients::install::{self, SettingChange, UninstallOutcome};
use crate::clients::kind::ClientKind;
use crate::environment;
use crate::output::print_stdout;
use crate::settings::layers::{SettingLayers, SettingValues};
use crate::settings::proxy;

/// Point a client at the proxy, in the client's own settings file
///
/// The client then uses the proxy of `foldline serve`, which must be running. Only the listed keys are written; the file
/// is backed up next to itself, and `foldline uninstall` restores it.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct InstallCommand {
    /// The client.
    #[arg(value_enum)]
    client: ClientKind,
    /// Base URL of the proxy, without a version [default: the address of `listen` in the settings].
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// Undo `foldline install`
///
/// If nothing else has changed the settings file since, it is restored byte for byte. Otherwise only the keys that were
/// written get their former values, and other changes remain.
#[derive(Args)]
pub(crate) struct UninstallCommand {
    /// The client.
    #[arg(value_enum)]
    client: ClientKind,
}

const HELP: &str = "\
Files and keys:
  claude     ~/.claude/settings.json: env.ANTHROPIC_BASE_URL; if the upstream is api.anthropic.com also
             env._CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL and env.ENABLE_TOOL_SEARCH
  codex      ~/.codex/config.toml: openai_base_url
  opencode   ~/.config/opencode/opencode.json: provider.openai.options.baseURL, provider.anthropic.options.baseURL
  cline      ~/.cline/data/settings/providers.json: baseUrl of the providers that are signed in
  pi         ~/.pi/agent/models.json: providers.anthropic.baseUrl, providers.openai.baseUrl
  gemini     ~/.gemini/.env: GOOGLE_GEMINI_BASE_URL; if no sign-in method is selected also
             ~/.gemini/settings.json: security.auth.selectedType
  aider      ~/.aider.conf.yml: openai-api-base, set-env

Without a permanent change: `foldline run -- CMD`.";

impl InstallCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let folders = environment::client_folders();
        let settings = proxy::resolve(&SettingLayers::load(SettingValues::new())?)?;
        let base = match self.url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => {
                let scheme = if settings.tls.is_some() { "https" } else { "http" };
                format!("{scheme}://{}", settings.listen)
            }
        };
        let bases = BaseUrls {
            openai: format!("{base}{}", settings.upstreams.get(Format::OpenAiChat.dialect().family).version()),
            anthropic: base.clone(),
        };
        let file = folders.file(self.client);
        let text = std::fs::read_to_string(&file.path).unwrap_or_default();
        let wanted = config::proxy_settings(self.client, &bases, proxy::is_official_anthropic(&settings), &text);
        if wanted.is_empty() {
            bail!("{} is signed in to no provider that foldline supports; sign in and run again", self.client.title());
        }
        let mut changed = vec![(install::install(&install::record_path(self.client)?, &file, &wanted)?, file)];
        if let Some((file, setting)) = folders.missing_sign_in(self.client) {
            changed.push((install::install(&install::sign_in_record_path(self.client)?, &file, &[setting])?, file));
        }
        changed.retain(|(changes, _)| !changes.is_empty());
        if changed.is_empty() {
            print_stdout(&format!("{} already points at {base}; nothing was changed\n", self.client.title()))?;
            return Ok(ExitCode::SUCCESS);
        }
        let listed = |(changes, file): &(Vec<SettingChange>, ClientFile)| {
            format!("{}\n{}", short_path(&file.path, &folders.home), format_changes(changes))
        };
        let mut text: String = changed.iter().map(listed).collect();
        let changes = changed.iter().flat_map(|(changes, _)| changes);
        for change in changes.filter(|change| change.from.as_deref().is_some_and(|from| from.contains("://"))) {
            let former = change.from.as_deref().unwrap_or_default().trim_matches('"');
            text += &format!(
                "{} was {former}: set it as the upstream of the proxy if requests should still go there\n",
                change.key
            );
        }
        let command = self.client.command();
        text += &format!("start `foldline serve`, then {command}; undo with `foldline uninstall {command}`\n");
        print_stdout(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl UninstallCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let folders = environment::client_folders();
        let mut text = String::new();
        let files = [
            (install::sign_in_record_path(self.client)?, folders.sign_in_file(self.client)),
            (install::record_path(self.client)?, Some(folders.file(self.client))),
        ];
        for (record, file) in files {
            let Some(file) = file else { continue };
            let format = file.format;
            let outcome = install::uninstall(&record, |path| ClientFile { path: path.to_owned(), format })?;
            let place = short_path(&file.path, &folders.home);
            text += &match outcome {
                UninstallOutcome::NotInstalled => continue,
                UninstallOutcome::Restored(changes) => {
                    format!("{place}\n{}the file is as it was before\n", format_changes(&changes))
                }
                UninstallOutcome::KeysRestored(changes) => {
                    format!(
                        "{place}\n{}other changes of the file since the installation remain\n",
                        format_changes(&changes)
                    )
                }
            };
        }
        if text.is_empty() {
            text = format!("{} was not set up by `foldline install`; nothing was changed\n", self.client.title());
        }
        print_stdout(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn format_changes(changes: &[SettingChange]) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "(none)".to_owned());
    changes.iter().map(|it| format!("  {}: {} -> {}\n", it.key, value(&it.from), value(&it.to))).collect()
}

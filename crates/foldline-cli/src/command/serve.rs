//! `foldline serve`: the drop-in proxy.

use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use foldline_server::proxy::{Mode, Proxy, Settings};

use super::print;
use crate::proxy_settings::ProxyFlags;
use crate::settings::{ArchiveFlags, ModelFlags};

/// Serve the drop-in proxy
///
/// Point an agent's base URL at it: OPENAI_BASE_URL=http://127.0.0.1:8787/v1, or
/// ANTHROPIC_BASE_URL=http://127.0.0.1:8787. Requests go on to the provider with the agent's own key, folded
/// when they must be or when it pays; everything else passes through.
#[derive(Args)]
#[command(after_long_help = crate::proxy_settings::HELP)]
pub(crate) struct Serve {
    #[command(flatten)]
    proxy: ProxyFlags,
    #[command(flatten)]
    models: ModelFlags,
    #[command(flatten)]
    archive: ArchiveFlags,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = self.proxy.resolve()?;
        let settings = Settings { models: self.models.resolve()?, namespace: self.archive.namespace()?, ..settings };
        let archive = self.archive.open_for(settings.mode)?;
        crate::log::to_stderr();
        #[cfg(unix)]
        open_as_many_files_as_allowed();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let kept = archive.clone();
        let served = runtime.block_on(async {
            let (listen, scheme) = (settings.listen, if settings.tls.is_some() { "https" } else { "http" });
            let greeting = greeting(&settings);
            let proxy = Proxy::bind(settings, archive).await.map_err(|error| {
                let taken = error.kind() == ErrorKind::AddrInUse;
                let what = if taken { "; is a foldline running already? Choose another with --listen" } else { "" };
                anyhow!("could not listen on {listen}: {error}{what}")
            })?;
            let (address, tenancy) = (proxy.address(), proxy.tenancy());
            print(&format!("foldline listens on {scheme}://{address}\n{greeting}  tenancy    {tenancy}\n"))?;
            proxy.run(told_to_stop()).await;
            Ok(ExitCode::SUCCESS)
        });
        crate::runtime::end(runtime, kept);
        served
    }
}

/// Every request holds two connections. Shells begin with room for 1,024 files, for the sake of programs that could not
/// take more; what this process is allowed is usually far above.
#[cfg(unix)]
fn open_as_many_files_as_allowed() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const ENOUGH: u64 = 1 << 16;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if current.is_some_and(|current| current < wanted) {
        // Where it is refused, connections beyond the limit wait.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn greeting(settings: &Settings) -> String {
    let mode = match settings.mode {
        Mode::Fold => "folds",
        Mode::Observe => "observes; every request goes out as it came",
        Mode::Off => "passes everything through",
    };
    format!("  openai     {}\n  anthropic  {}\n  mode       {mode}\n", settings.openai, settings.anthropic)
}

/// Ends when the process is told to end: by Ctrl-C, or as service managers do.
async fn told_to_stop() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = interrupt.await;
}

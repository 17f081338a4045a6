//! `cargo xtask postgres COMMAND`: runs a command with a private PostgreSQL server.
//!
//! The server has its data in a temporary folder, listens on a free port of the loopback interface, and ends with the
//! command. `TEST_POSTGRES_URL` is the URL of its administrator. With `--durable` before the command, a commit waits for
//! the disk, which measurements need and tests do not.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::output::print_line;
use crate::repository::remove_package_variables;

/// The variable with the URL of the server's administrator.
pub(crate) const SERVER_VARIABLE: &str = "TEST_POSTGRES_URL";

/// Starts a server, runs the command and stops the server.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (durability, command) = match arguments {
        [flag, command @ ..] if flag == "--durable" => (Durability::Disk, command),
        command => (Durability::Memory, command),
    };
    let [program, rest @ ..] = command else { bail!("usage: cargo xtask postgres [--durable] COMMAND ..") };
    let server = PrivateServer::start(durability)?
        .context("PostgreSQL is not installed (Debian: apt-get install postgresql)")?;
    let mut command = Command::new(program);
    remove_package_variables(&mut command);
    let status = command.args(rest).env(SERVER_VARIABLE, server.url()).status();
    if !status.with_context(|| format!("{program} did not start"))?.success() {
        bail!("`{}` failed", arguments.join(" "));
    }
    Ok(())
}

/// Where a commit is when the server confirms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// On the disk.
    Disk,
    /// In memory of the system: the machine does not lose power during a test.
    Memory,
}

/// A server with its data in a temporary folder. Dropping it stops the server and removes the folder.
pub(crate) struct PrivateServer {
    folder: PathBuf,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    port: u16,
}

impl PrivateServer {
    /// Starts a server; `None` if PostgreSQL is not installed and cannot be installed.
    pub(crate) fn start(durability: Durability) -> Result<Option<Self>> {
        let Some(programs) = find_programs().or_else(install_package) else { return Ok(None) };
        let folder = std::env::temp_dir().join(format!("foldline-postgres-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Self { user: unprivileged_user(), folder, programs, port };
        if let Some((user, group)) = server.user {
            std::os::unix::fs::chown(&server.folder, Some(user), Some(group))?;
        }
        server.run("initdb", &["--auth=trust", "--username=admin", "--no-sync", "--encoding=UTF8", "--locale=C"])?;
        let fsync = if durability == Durability::Disk { "on" } else { "off" };
        let options = format!(
            "-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= -c fsync={fsync} \
             -c max_connections=300"
        );
        let log = server.folder.join("log");
        server
            .run("pg_ctl", &["start", "--wait", "--silent", "--options", &options, "--log", &log.to_string_lossy()])?;
        Ok(Some(server))
    }

    /// Returns the URL of the administrator.
    pub(crate) fn url(&self) -> String {
        format!("postgres://admin@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs a program of PostgreSQL on the data folder; the server refuses to run as root.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(self.programs.join(program));
        command.arg("--pgdata").arg(self.folder.join("data")).args(arguments).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        let status = command.status().with_context(|| format!("{program} did not start"))?;
        if !status.success() {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            bail!("{program} ended with {status}\n{log}");
        }
        Ok(())
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if let Err(error) = self.run("pg_ctl", &["stop", "--mode=immediate", "--silent"]) {
            print_line(&format!("the PostgreSQL server in {} was not stopped: {error}", self.folder.display()));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the folder with the programs of the newest installed version.
fn find_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, folder)| folder.join("initdb").exists())
        .collect();
    versions.sort_unstable();
    let on_path = || {
        let found = run_quietly("sh", &["-c", "command -v initdb"])?;
        Path::new(String::from_utf8(found.stdout).ok()?.trim()).parent().map(Path::to_path_buf)
    };
    versions.pop().map(|(_, folder)| folder).or_else(on_path)
}

/// Installs Debian's package, if this process may.
fn install_package() -> Option<PathBuf> {
    if !is_root() {
        return None;
    }
    print_line("installing PostgreSQL");
    let install = ["-c", "apt-get install -y postgresql || (apt-get update && apt-get install -y postgresql)"];
    run_quietly("sh", &install)?;
    find_programs()
}

/// Returns the user that runs the server, if this process is root: the package's own, or one without rights.
fn unprivileged_user() -> Option<(u32, u32)> {
    let id = |option, name| -> Option<u32> {
        String::from_utf8(run_quietly("id", &[option, name])?.stdout).ok()?.trim().parse().ok()
    };
    let user = |name| Some((id("-u", name)?, id("-g", name)?));
    is_root().then(|| user("postgres").or_else(|| user("nobody"))).flatten()
}

fn is_root() -> bool {
    run_quietly("id", &["-u"]).is_some_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Runs a command; `None` if it fails.
fn run_quietly(program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.ok().filter(|output| output.status.success())
}

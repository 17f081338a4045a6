//! `cargo xtask packages`: tests of the packages for Python and Node with a debug build of their native modules. Also a
//! step of `cargo xtask ci`.
//!
//! The core and all adapters of each package are tested, with the real frameworks. Wheels and tarballs are made and
//! checked by `cargo xtask dist --check`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::dist::{node, python};
use crate::file_copy::copy_folder;
use crate::output::print_line;
use crate::programs::has_program;
use crate::repository::{self, RELEASE_FEATURES};

/// What the tests of the Python package need where the frameworks of the adapters cannot be installed.
const PYTHON_REQUIREMENTS: [&str; 2] = ["pytest>=8", "typing-extensions"];
/// The installer of the frameworks: the resolver of an old pip needs many minutes for them, this one seconds.
const PYTHON_INSTALLER: &str = "uv>=0.8";
/// The adapters for Node.
const NODE_ADAPTERS: [&str; 3] = ["ai-sdk", "openai-agents", "pi"];
/// What their tests need.
const NODE_REQUIREMENTS: [&str; 5] =
    ["ai@7", "@ai-sdk/openai@4", "@openai/agents@0.20", "openai@7", "@earendil-works/pi-coding-agent@0.87.1"];
/// First version of Node that the hosts of the adapters support.
const ADAPTER_NODE_VERSION: u32 = 22;
/// The version that is installed from npm where Node is older.
const NEWER_NODE_VERSION: u32 = 24;

/// Builds and tests both packages; what is not installed is reported and skipped.
pub(crate) fn check(_: &[String]) -> Result<()> {
    let (has_python, has_node) = (has_program("python3"), has_program("node") && has_program(node::NPM));
    if !has_python {
        print_line("the Python package was not tested: python3 is not installed");
    }
    if !has_node {
        print_line("the Node packages were not tested: node and npm are not installed");
    }
    if !has_python && !has_node {
        return Ok(());
    }
    // An example makes cargo resolve features as for tests, so that all dependencies are those of the tests. The command
    // is the other side of tests that compare bytes.
    let mut cargo = repository::cargo_command();
    cargo.args(["build", "--workspace", "--lib", "--bin", "foldline", "--example", "turns"]);
    cargo.args(["--features", RELEASE_FEATURES]);
    if !cargo.status().context("cargo did not start")?.success() {
        bail!("the native modules do not build");
    }
    let metadata = repository::cargo_metadata()?;
    let target = PathBuf::from(metadata["target_directory"].as_str().context("no build folder")?);
    if has_python {
        test_python(&target)?;
    }
    if has_node {
        test_node(&target)?;
    }
    Ok(())
}

/// Tests the Python package in an environment of the build folder.
fn test_python(target: &Path) -> Result<()> {
    let package = repository::root().join("crates/foldline-python");
    let environment = target.join("packages/python");
    if !environment.exists() {
        python::create_environment(&environment)?;
    }
    let program = python::program(&environment, "python");
    if !install_frameworks(&program, &package.join("tests/requirements.txt"))? {
        print_line("the adapters for Python were not tested: their frameworks cannot be installed");
        if !run_installer(&program, &["-m", "pip", "install", "--quiet"], &PYTHON_REQUIREMENTS)? {
            print_line("the Python package was not tested: its tools cannot be installed");
            return Ok(());
        }
    }
    let name = if cfg!(windows) { "_native.pyd" } else { "_native.abi3.so" };
    let built = format!("{}_native{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let module = package.join("python/foldline").join(name);
    fs::copy(target.join("debug").join(built), &module).context("cannot copy the native module")?;
    let mut pytest = Command::new(&program);
    pytest.args(["-m", "pytest", "-p", "no:cacheprovider", "--durations=5"]);
    pytest.current_dir(package.join("tests")).env("PYTHONPATH", package.join("python"));
    pytest.env("COMMAND_OF_TESTS", target.join(format!("debug/foldline{}", std::env::consts::EXE_SUFFIX)));
    let status = pytest.env("PYTHONDONTWRITEBYTECODE", "1").status();
    let removed = fs::remove_file(&module);
    if !status.context("pytest did not start")?.success() {
        bail!("a test of the Python package failed");
    }
    removed.context("cannot remove the native module")
}

/// Installs the frameworks of all adapters into an environment. Returns false if that fails.
fn install_frameworks(python: &Path, requirements: &Path) -> Result<bool> {
    let requirements = requirements.to_str().context("the path of the repository is not Unicode")?;
    let mut uv = vec!["-m", "uv", "pip", "install", "--quiet", "--python"];
    uv.push(python.to_str().context("the path of the build folder is not Unicode")?);
    Ok(run_installer(python, &["-m", "pip", "install", "--quiet"], &[PYTHON_INSTALLER])?
        && run_installer(python, &uv, &["--requirement", requirements])?)
}

/// Runs an installer with these packages. Returns false if it fails.
fn run_installer(python: &Path, installer: &[&str], packages: &[&str]) -> Result<bool> {
    let mut install = Command::new(python);
    install.args(installer).args(packages).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    Ok(install.status().context("Python did not start")?.success())
}

/// Tests the Node packages in a copy below the build folder, next to the packages that they need.
fn test_node(target: &Path) -> Result<()> {
    let folder = target.join("packages/node");
    let sources = folder.join("packages");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    copy_folder(&node::packages_folder(), &sources)?;
    fs::copy(node::built_module(&target.join("debug")), sources.join("core/foldline.node"))
        .context("cannot copy the native module")?;
    run_node_tests(Path::new("node"), &sources.join("core"))?;

    let Some(node) = node_for_adapters(&target.join("packages/newer-node"))? else {
        print_line(&format!("the adapters for Node were not tested: they need Node {ADAPTER_NODE_VERSION} or newer"));
        return Ok(());
    };
    // Workspaces link the packages to each other.
    if !install_from_npm(&folder, "{\"private\": true, \"workspaces\": [\"packages/*\"]}\n", &NODE_REQUIREMENTS)? {
        print_line("the adapters for Node were not tested: their frameworks cannot be installed");
        return Ok(());
    }
    NODE_ADAPTERS.iter().try_for_each(|adapter| run_node_tests(&node, &sources.join(adapter)))
}

/// Returns a Node that the adapters support: the installed one, or one from npm in this folder.
fn node_for_adapters(folder: &Path) -> Result<Option<PathBuf>> {
    if node_version()? >= ADAPTER_NODE_VERSION {
        return Ok(Some(PathBuf::from("node")));
    }
    let (system, processor) = node::node_platform()?;
    let package = format!("node-{}-{processor}", if system == "win32" { "win" } else { system });
    let program =
        folder.join("node_modules").join(&package).join("bin/node").with_extension(std::env::consts::EXE_EXTENSION);
    let is_installed = program.exists()
        || install_from_npm(folder, "{\"private\": true}\n", &[&format!("{package}@{NEWER_NODE_VERSION}")])?;
    Ok(is_installed.then_some(program))
}

/// Installs packages of npm into a folder with this manifest. Returns false if npm cannot.
fn install_from_npm(folder: &Path, manifest: &str, packages: &[&str]) -> Result<bool> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("package.json"), manifest)?;
    let mut npm = Command::new(node::NPM);
    npm.args(["install", "--silent", "--no-audit", "--no-fund"]).args(packages).current_dir(folder);
    Ok(npm.status().context("npm did not start")?.success())
}

/// Runs the tests of a package.
fn run_node_tests(node: &Path, package: &Path) -> Result<()> {
    let mut tests: Vec<PathBuf> = fs::read_dir(package.join("test"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".test.js"))
        .collect();
    tests.sort();
    let status = Command::new(node).args(["--test", "--test-reporter=dot"]).args(&tests).status();
    if !status.context("node did not start")?.success() {
        bail!("a test in {} failed", package.display());
    }
    Ok(())
}

/// Returns the major version of Node.
fn node_version() -> Result<u32> {
    let output = Command::new("node").arg("--version").output().context("node did not start")?;
    let text = String::from_utf8(output.stdout)?;
    let major = text.trim().trim_start_matches('v').split('.').next().unwrap_or_default();
    major.parse().with_context(|| format!("node prints {text:?} as its version"))
}

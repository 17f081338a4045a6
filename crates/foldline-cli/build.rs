//! Puts the commit and the features of a build into its version.

use std::process::Command;

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let mut details = Vec::new();
    // Debug builds are not rebuilt for every commit.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo:rerun-if-changed={log}");
        }
        details.extend(git(&["rev-parse", "--short=12", "HEAD"]).map(|commit| format!("commit {commit}")));
    } else {
        details.push("debug build".to_owned());
    }
    let mut features: Vec<String> = std::env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")))
        .collect();
    features.sort();
    features.retain(|feature| feature != "default");
    let features = if features.is_empty() { "default".to_owned() } else { features.join(", ") };
    details.push(format!("features: {features}"));
    println!("cargo:rustc-env=BUILD_VERSION={version} ({})", details.join("; "));
    println!("cargo:rerun-if-changed=build.rs");
}

/// Returns the output of a git command; none outside of a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

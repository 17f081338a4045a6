//! Checks licenses, wildcard versions and sources of all dependencies against deny.toml.
//!
//! cargo-deny does this and more, and is used if it is installed. Building it takes longer than all other steps of CI
//! together, so without it the same lists are checked here, from cargo's metadata: for all features and platforms.
//! Advisories need cargo-deny and a database from the network.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::output::print_line;
use crate::repository;

/// The only permitted source of dependencies: the default registry.
const DEFAULT_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks all packages of the lock file.
pub(crate) fn check() -> Result<()> {
    let path = repository::root().join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let policy = DependencyPolicy::parse(&text)?;
    let metadata = repository::cargo_metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut faults: Vec<String> = packages.iter().flat_map(|package| policy.faults(package)).collect();
    faults.sort();
    if !faults.is_empty() {
        bail!("dependencies break deny.toml:\n  {}", faults.join("\n  "));
    }
    print_line(&format!("licenses, versions and sources of {} packages comply with deny.toml", packages.len()));
    print_line("advisories were not checked: cargo-deny is not installed (`cargo install cargo-deny --locked`)");
    Ok(())
}

/// The lists of deny.toml that are checked here.
struct DependencyPolicy {
    allowed_licenses: BTreeSet<String>,
}

impl DependencyPolicy {
    fn parse(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse().context("deny.toml is not valid TOML")?;
        let allowed = table.get("licenses").and_then(|licenses| licenses.get("allow")).and_then(|list| list.as_array());
        let allowed = allowed.context("deny.toml has no list licenses.allow")?;
        let names: BTreeSet<String> = allowed.iter().filter_map(|name| name.as_str()).map(str::to_owned).collect();
        if let Some(unknown) = names.iter().find(|name| Expression::parse(name).is_err()) {
            bail!("licenses.allow of deny.toml: {unknown} is not an SPDX license");
        }
        Ok(Self { allowed_licenses: names })
    }

    /// Returns the rules that a package breaks.
    fn faults(&self, package: &Value) -> Vec<String> {
        let name = format!("{} {}", text(package, "name"), text(package, "version"));
        let license = package["license"].as_str().context("it states none");
        let mut faults = Vec::new();
        if let Err(error) = license.and_then(|license| self.check_license(license)) {
            faults.push(format!("{name}: license: {error:#}"));
        }
        // Packages of this repository have no source.
        if let Some(source) = package["source"].as_str() {
            if source != DEFAULT_REGISTRY {
                faults.push(format!("{name}: source: {source}"));
            }
            return faults;
        }
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_wildcard = |dependency: &&Value| dependency["req"] == "*" && !dependency["source"].is_null();
        faults.extend(
            dependencies
                .iter()
                .filter(is_wildcard)
                .map(|dependency| format!("{name}: any version of {}", text(dependency, "name"))),
        );
        faults
    }

    /// Checks that a choice of the license expression is permitted.
    fn check_license(&self, license: &str) -> Result<()> {
        let expression = Expression::parse_mode(license, ParseMode::LAX).context("not an SPDX expression")?;
        let is_allowed = expression.evaluate(|required| {
            let id = required.license.id().filter(|_| required.addition.is_none());
            // A license with an exception is listed as a whole.
            id.is_some_and(|id| self.allowed_licenses.contains(id.name))
                || self.allowed_licenses.contains(&required.to_string())
        });
        if is_allowed { Ok(()) } else { bail!("{license} is not in licenses.allow") }
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(package: Value) -> Vec<String> {
        DependencyPolicy::parse("[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]").unwrap().faults(&package)
    }

    #[test]
    fn one_choice_of_a_license_must_be_allowed() {
        let of = |license: Value| {
            faults(json!({ "name": "a", "version": "1", "license": license, "source": DEFAULT_REGISTRY }))
        };
        for license in ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "Apache-2.0 WITH LLVM-exception OR MIT"] {
            assert!(of(json!(license)).is_empty(), "{license}");
        }
        for license in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "Apache-2.0 WITH LLVM-exception", "my own", ""] {
            assert_eq!(of(json!(license)).len(), 1, "{license}");
        }
        assert_eq!(of(Value::Null), ["a 1: license: it states none"]);
        assert!(DependencyPolicy::parse("[licenses]\nallow = [\"MITT\"]").is_err());
    }

    #[test]
    fn other_sources_and_wildcards_are_faults() {
        let git = json!({ "name": "a", "version": "1", "license": "MIT", "source": "git+https://example.com/a" });
        assert_eq!(faults(git), ["a 1: source: git+https://example.com/a"]);
        let dependencies = json!([
            { "name": "any", "req": "*", "source": DEFAULT_REGISTRY },
            { "name": "own", "req": "*", "source": null },
            { "name": "fixed", "req": "^1", "source": DEFAULT_REGISTRY },
        ]);
        let own =
            json!({ "name": "x", "version": "0", "license": "MIT", "source": null, "dependencies": dependencies });
        assert_eq!(faults(own), ["x 0: any version of any"]);
    }
}

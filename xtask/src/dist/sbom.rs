//! The software bill of materials in CycloneDX 1.6, from cargo's metadata and lock file.
//!
//! It lists what is linked into the command and the native modules on this platform, without tests and build scripts'
//! own dependencies. It has no time and no random serial number, so that the same lock file makes the same document.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::build::{COMMAND_FEATURES, DistBuild};
use crate::programs::output_of;
use crate::repository;

/// The packages that a release ships.
const SHIPPED: [&str; 3] = ["foldline-cli", "foldline-node", "foldline-python"];

/// Writes the document.
pub(super) fn write(build: &DistBuild) -> Result<()> {
    let host = String::from_utf8(output_of(Command::new("rustc").args(["--print", "host-tuple"]))?)?;
    let arguments =
        ["metadata", "--format-version", "1", "--locked", "--features", COMMAND_FEATURES, "--filter-platform"];
    let metadata = output_of(repository::cargo_command().args(arguments).arg(host.trim()))?;
    let lock = fs::read_to_string(repository::root().join("Cargo.lock"))?;
    let document = bill_of_materials(&serde_json::from_slice(&metadata)?, &lock, &build.version)?;
    let path = build.output.join(format!("foldline-{}-{}.cdx.json", build.version, build.platform));
    fs::write(path, serde_json::to_string_pretty(&document)? + "\n")?;
    Ok(())
}

/// Returns the document for the shipped packages of cargo's metadata.
fn bill_of_materials(metadata: &Value, lock: &str, version: &str) -> Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checksums = checksums(lock)?;
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let linked: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let is_linked = |dependency: &&Value| list(&dependency["dep_kinds"]).iter().any(|it| it["kind"].is_null());
            let linked = list(&node["deps"]);
            (text(&node["id"]), linked.iter().filter(is_linked).map(|it| text(&it["pkg"])).collect())
        })
        .collect();
    let is_shipped = |id: &&String| SHIPPED.contains(&text(&packages[*id]["name"]).as_str());
    let shipped: Vec<String> = packages.keys().filter(is_shipped).cloned().collect();
    let (mut seen, mut open) = (BTreeSet::from_iter(shipped.clone()), shipped.clone());
    while let Some(id) = open.pop() {
        open.extend(linked.get(&id).into_iter().flatten().filter(|next| seen.insert((*next).clone())).cloned());
    }

    let url = |id: &String| purl(&text(&packages[id]["name"]), &text(&packages[id]["version"]));
    let component = |id: &String| {
        let (name, version) = (text(&packages[id]["name"]), text(&packages[id]["version"]));
        let mut component = json!({
            "type": "library", "bom-ref": url(id), "name": name, "version": version, "purl": url(id), "scope": "required",
        });
        if let Some(license) = packages[id]["license"].as_str() {
            // Old manifests separate alternatives by a slash, which is not SPDX.
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        if let Some(checksum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    };
    let root = purl("foldline-release", version);
    let depends = |id: &String| {
        let on: BTreeSet<String> = linked.get(id).into_iter().flatten().map(url).collect();
        json!({ "ref": url(id), "dependsOn": on })
    };
    let on_shipped: BTreeSet<String> = shipped.iter().map(url).collect();
    let of_root = json!({ "ref": root, "dependsOn": on_shipped });
    let dependencies: Vec<Value> = [of_root].into_iter().chain(seen.iter().map(depends)).collect();
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": { "type": "application", "bom-ref": root, "name": "foldline", "version": version } },
        "components": seen.iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

/// Returns the identifier of a crate.
fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// Returns the checksums of the lock file, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock is not valid TOML")?;
    let packages = lock.get("package").and_then(|list| list.as_array()).context("Cargo.lock lists no packages")?;
    let field = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_owned());
    Ok(packages
        .iter()
        .filter_map(|it| Some(((field(it, "name")?, field(it, "version")?), field(it, "checksum")?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_what_is_linked_and_not_what_tests_use() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let needs = |id: &str, on: &[(&str, Value)]| {
            let deps: Vec<Value> =
                on.iter().map(|(name, kind)| json!({"pkg": name, "dep_kinds": [{"kind": kind}]})).collect();
            json!({"id": id, "deps": deps})
        };
        let metadata = json!({
            "packages": [package("foldline-cli"), package("linked"), package("deep"), package("tested"), package("other")],
            "resolve": {"nodes": [
                needs("foldline-cli", &[("linked", Value::Null), ("tested", json!("dev"))]),
                needs("linked", &[("deep", Value::Null)]),
                needs("deep", &[]), needs("tested", &[]), needs("other", &[]),
            ]},
        });
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0\"\nchecksum = \"ab12\"\n";
        let document = bill_of_materials(&metadata, lock, "0.1.0").unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["deep", "foldline-cli", "linked"]);
        assert_eq!(components[0]["hashes"][0]["content"], "ab12");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["dependencies"][0]["dependsOn"], json!(["pkg:cargo/foldline-cli@1.0.0"]));
    }
}

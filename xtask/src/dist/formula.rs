//! The formula of Homebrew, from the tarballs of all platforms.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::sums;
use crate::output::print_line;
use crate::repository;

/// Platforms that Homebrew supports, as in the names of the tarballs.
const PLATFORMS: [&str; 4] = ["macos-aarch64", "macos-x86_64", "linux-aarch64", "linux-x86_64"];
/// The template of the formula.
const TEMPLATE: &str = "packaging/homebrew/foldline.rb.in";

/// Writes the formula into a folder with the tarballs of all platforms, which will be at this address.
pub(super) fn write(folder: &Path, address: &str) -> Result<()> {
    let metadata = repository::cargo_metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let cli = packages.iter().find(|package| package["name"] == "foldline-cli").context("no foldline-cli")?;
    let version = cli["version"].as_str().context("foldline-cli has no version")?;
    let sum_of = |platform: &str| -> Result<String> {
        let path = folder.join(format!("foldline-{version}-{platform}.tar.gz"));
        Ok(sums::sha256(&fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?))
    };
    let sums = PLATFORMS.iter().map(|platform| Ok((*platform, sum_of(platform)?))).collect::<Result<Vec<_>>>()?;
    let template = fs::read_to_string(repository::root().join(TEMPLATE))?;
    let path = folder.join("foldline.rb");
    fs::write(&path, rendered(&template, version, address, &sums)?)?;
    print_line(&format!("{} was written", path.display()));
    Ok(())
}

/// Returns a template with its places filled in.
fn rendered(template: &str, version: &str, address: &str, sums: &[(&str, String)]) -> Result<String> {
    let address = address.trim_end_matches('/');
    let mut formula = template.replace("@VERSION@", version).replace("@ADDRESS@", address);
    for (platform, sum) in sums {
        formula = formula.replace(&format!("@SHA256 {platform}@"), sum);
    }
    match formula.lines().find(|line| line.contains('@') && !line.starts_with('#')) {
        Some(line) => bail!("nothing fills in {:?} of {TEMPLATE}", line.trim()),
        None => Ok(formula),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formula_has_the_sum_of_each_platform() {
        let template = fs::read_to_string(repository::root().join(TEMPLATE)).unwrap();
        let sums = PLATFORMS.map(|platform| (platform, format!("sum of {platform}")));
        let formula = rendered(&template, "1.2.3", "https://example.com/v1.2.3/", &sums).unwrap();
        for (platform, sum) in sums {
            let url = format!("url \"https://example.com/v1.2.3/foldline-1.2.3-{platform}.tar.gz\"\n");
            let (_, after) = formula.split_once(&url).unwrap();
            assert!(after.trim_start().starts_with(&format!("sha256 \"{sum}\"")), "{platform}");
        }
        rendered(&template, "1.2.3", "https://example.com", &[]).unwrap_err();
    }
}

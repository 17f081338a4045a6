//! SHA-256 sums of the files of a release, as `sha256sum --check` reads them.

use std::fmt::Write as _;
use std::fs;

use anyhow::Result;
use sha2::{Digest, Sha256};

use super::build::DistBuild;

/// The file with the sums.
pub(super) const FILE: &str = "SHA256SUMS";

/// Writes the sums of all files.
pub(super) fn write(build: &DistBuild) -> Result<()> {
    let mut sums = String::new();
    for (name, _) in build.files()? {
        let _ = writeln!(sums, "{}  {name}", sha256(&fs::read(build.output.join(&name))?));
    }
    fs::write(build.output.join(FILE), sums)?;
    Ok(())
}

/// Returns the SHA-256 of bytes in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_a_known_text() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}

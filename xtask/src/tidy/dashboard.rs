//! The committed build of the dashboard: it must belong to the committed sources.
//!
//! The build writes a digest of every file it reads. Here the digest is computed again, without Node.

use anyhow::Result;

use crate::source_tree::SourceTree;

const FOLDER: &str = "crates/foldline-server/dashboard/";
const DIGEST_FILE: &str = "crates/foldline-server/dashboard/dist/sources.digest";
/// Files and folders that the build reads; the same list is in `scripts/digest.mjs`.
const INPUTS: [&str; 7] =
    ["index.html", "package-lock.json", "package.json", "public/", "src/", "tsconfig.json", "vite.config.ts"];

/// Returns a fault if the sources of the dashboard changed after its last build.
pub(crate) fn check_dashboard_build(tree: &SourceTree) -> Result<Vec<String>> {
    let is_input =
        |path: &str| INPUTS.iter().any(|input| path == *input || input.ends_with('/') && path.starts_with(input));
    let sources = tree.files.iter().filter_map(|file| Some((file.path.strip_prefix(FOLDER)?, &file.text)));
    let mut lines: Vec<(&str, String)> = sources
        .filter(|(path, _)| is_input(path))
        .map(|(path, text)| (path, format!("{:016x}  {path}\n", fnv1a(text.as_bytes()))))
        .collect();
    lines.sort();
    let digest: String = lines.into_iter().map(|(_, line)| line).collect();
    if digest == tree.text(DIGEST_FILE) {
        return Ok(Vec::new());
    }
    Ok(vec![format!("{FOLDER}dist does not match the sources: run `npm ci && npm run build` in {FOLDER}")])
}

/// Returns the FNV-1a hash of bytes: it detects accidents, not attacks.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::RepoFile;

    fn tree(files: &[(&str, &str)]) -> SourceTree {
        let file = |(path, text): &(&str, &str)| RepoFile { path: format!("{FOLDER}{path}"), text: (*text).to_owned() };
        SourceTree::new(files.iter().map(file).collect()).unwrap()
    }

    #[test]
    fn changed_source_without_a_build_is_a_fault() {
        let digest = format!("{:016x}  src/a.ts\n", fnv1a(b"one"));
        let built = |source| tree(&[("src/a.ts", source), ("dist/sources.digest", &digest), ("README.md", "x")]);
        assert!(check_dashboard_build(&built("one")).unwrap().is_empty());
        assert_eq!(check_dashboard_build(&built("two")).unwrap().len(), 1);
    }
}

//! An encrypted archive: only its key opens it, and no plaintext is on disk.
#![cfg(feature = "encryption")]

use foldline::{Handle, OriginalStore};
use foldline_archive::{Archive, ArchiveKey, ArchiveOptions, ErrorKind, Namespace, RequestRecord};

use crate::support::{TempArchive, original};

fn encrypted_options(secret: u8) -> ArchiveOptions {
    ArchiveOptions { key: Some(ArchiveKey::new(&[secret; 32]).unwrap()), ..ArchiveOptions::default() }
}

#[test]
fn encrypted_archive_leaves_no_plaintext_on_disk() {
    let temp = TempArchive::new();
    let text = "the xylophone recital begins at dusk";
    {
        let archive = Archive::open_with(temp.path(), encrypted_options(1)).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let mut secret = original(text.as_bytes());
        secret.tool = Some("zeppelin_tool");
        secret.arguments = Some(r#"{"path":"quokka.rs"}"#);
        tenant.store(&[secret]).unwrap();
        assert_eq!(tenant.unfold(Handle::for_content(text.as_bytes()).as_str()).unwrap().bytes, text.as_bytes());
        // The search works, from an index in memory.
        let found = tenant.search("xylophone", 0, 10).unwrap();
        assert_eq!(found.hits[0].info.tool.as_deref(), Some("zeppelin_tool"));
        assert_eq!(tenant.search("quokka", 0, 10).unwrap().total, 1);
    }
    for file in std::fs::read_dir(temp.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for word in ["xylophone", "zeppelin", "quokka"] {
            assert!(!bytes.windows(word.len()).any(|window| window == word.as_bytes()), "{word}");
        }
    }
}

#[test]
fn only_the_right_key_opens_the_archive() {
    let temp = TempArchive::new();
    drop(Archive::open_with(temp.path(), encrypted_options(1)).unwrap());
    let denied = |opened: Result<Archive, foldline_archive::Error>| {
        assert_eq!(opened.unwrap_err().kind(), &ErrorKind::WrongKey);
    };
    denied(Archive::open_with(temp.path(), encrypted_options(2)));
    denied(Archive::open(temp.path()));
    denied(temp.open_read_only());
    Archive::open_with(temp.path(), encrypted_options(1)).unwrap();

    // A caller who passes a key expects encryption.
    let plaintext = TempArchive::new();
    drop(plaintext.open());
    denied(Archive::open_with(plaintext.path(), encrypted_options(1)));
}

/// Plain hashes would show whether a known text, session or conversation is in the archive.
#[test]
fn encrypted_archive_has_no_plain_hashes_or_model_names() {
    let temp = TempArchive::new();
    let (text, fingerprint) = (b"a text that others know", b"hash of a prefix");
    let hash = *blake3::hash(text).as_bytes();
    let handle = Handle::for_content(text);
    {
        let archive = Archive::open_with(temp.path(), encrypted_options(1)).unwrap();
        let tenant = archive.tenant(&Namespace::local()).in_session("session-by-hash");
        tenant.store(&[original(text)]).unwrap();
        tenant.record_fact("summary", fingerprint, b"payload").unwrap();
        let request = RequestRecord { model: "a-secret-model".into(), payload: b"{}".into(), ..Default::default() };
        tenant.append_request(&request).unwrap();
        tenant.append_event("creased", b"{}").unwrap();
        tenant.store(&[original(b"behind the records, in order")]).unwrap();

        // Everything is found by its name nevertheless, whole or by prefix.
        for length in 8..=12 {
            let info = tenant.unfold(&handle.as_str()[..length]).unwrap().info;
            assert_eq!((info.handle, info.session.as_deref()), (handle, Some("session-by-hash")));
        }
        assert_eq!(tenant.fact("summary", fingerprint).unwrap().unwrap().payload, b"payload");
        assert_eq!(tenant.facts().unwrap()[0].fingerprint, fingerprint);
        let requests = tenant.requests(0, 9).unwrap();
        assert_eq!((requests[0].model.as_str(), &requests[0].payload[..]), ("a-secret-model", &b"{}"[..]));
        assert_eq!(tenant.sessions(9).unwrap()[0].name, "session-by-hash");
        assert_eq!(tenant.events(0, 9).unwrap()[0].session.as_deref(), Some("session-by-hash"));
        assert_eq!(tenant.store_durably(&[original(text)]).unwrap().existing, 1);
    }
    for file in std::fs::read_dir(temp.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let has = |secret: &[u8]| bytes.windows(secret.len()).any(|window| window == secret);
        assert!(!has(&hash) && !has(&hash[..8]), "the hash");
        assert!(!has(handle.as_str().as_bytes()) && !has(&handle.as_str().as_bytes()[..8]), "the handle");
        assert!(!has(b"session-by-hash") && !has(fingerprint) && !has(b"a-secret-model"));
    }
}

/// Everybody who can read the key can read the archive.
#[test]
fn key_file_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "0123456789abcdef0123456789abcdef0123456789ab\n").unwrap();
    for mode in [0o644, 0o640, 0o604, 0o660, 0o620] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let error = ArchiveKey::from_file(&path).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InsecurePermissions, "{mode:o}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    for mode in [0o600, 0o400] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        ArchiveKey::from_file(&path).unwrap();
    }
}

//! Export and import: another archive gets the same content, and damaged lines are reported.

use foldline::{Handle, OriginalStore};
use foldline_archive::ErrorKind;

use crate::support::{TempArchive, original, random_bytes};

#[test]
fn export_and_import_copy_everything() {
    let (from, to) = (TempArchive::new(), TempArchive::new());
    let texts: Vec<Vec<u8>> = (0..600).map(|at| random_bytes(at, 10)).chain([b"text\n\0".to_vec(), vec![]]).collect();
    let tenant = from.local_tenant().in_session("s-1");
    tenant.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    tenant.record_fact("summary", &[0, 255], b"payload").unwrap();
    let mut export = Vec::new();
    let exported = tenant.export(&mut export, |_| ()).unwrap();
    assert_eq!((exported.originals, exported.facts, exported.damaged), (602, 1, 0));

    let tenant = to.local_tenant();
    let imported = tenant.import(export.as_slice(), |_| ()).unwrap();
    assert_eq!((imported.added, imported.existing, imported.facts, imported.rejected), (602, 0, 1, 0));
    for text in &texts {
        let (exported, imported) = (
            from.local_tenant().unfold(Handle::for_content(text).as_str()),
            tenant.unfold(Handle::for_content(text).as_str()),
        );
        assert_eq!(exported.unwrap(), imported.unwrap());
    }
    assert_eq!(tenant.in_session("s-1").fact("summary", &[0, 255]).unwrap().unwrap().payload, b"payload");
    let again = tenant.import(export.as_slice(), |_| ()).unwrap();
    assert_eq!((again.added, again.existing, again.facts), (0, 602, 0));
}

/// Each bad line is reported by its number; the good ones are imported.
#[test]
fn bad_lines_are_reported() {
    let good = Handle::for_content(b"good");
    let lines = format!(
        "{{\"foldline_export\":1}}\nnot json\n\
         {{\"original\":{{\"handle\":\"{good}\",\"kept_at\":1,\"carried_at\":1,\"text\":\"bad\"}}}}\n\
         {{\"original\":{{\"handle\":\"{good}\",\"kept_at\":1,\"carried_at\":1}}}}\n\
         {{\"original\":{{\"handle\":\"{good}\",\"kept_at\":1,\"carried_at\":1,\"text\":\"good\"}}}}\n"
    );
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let imported = tenant.import(lines.as_bytes(), |_| ()).unwrap();
    assert_eq!((imported.added, imported.rejected), (1, 3));
    assert_eq!(imported.rejections.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(tenant.unfold(good.as_str()).unwrap().bytes, b"good");

    for foreign in ["", "{}\n", "{\"foldline_export\":2}\n", "\u{0}\u{1}"] {
        let error = tenant.import(foreign.as_bytes(), |_| ());
        assert!(foreign.is_empty() || error.unwrap_err().kind() == &ErrorKind::InvalidInput, "{foreign}");
    }
}

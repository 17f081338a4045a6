//! A store of one's own: originals are files, named by their handles, written before a request is sent.
//!
//! Run it with `cargo run -p foldline --example custom_store`. The crate `foldline-archive` has a store with
//! compression, encryption, search and retention.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::fs;
use std::path::PathBuf;

use foldline::engine::{StoreError, marker};
use foldline::{FoldSession, Handle, Message, Original, OriginalStore, Part, Role};

/// One file per original.
struct FileStore {
    folder: PathBuf,
}

impl OriginalStore for FileStore {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        for original in originals {
            let path = self.folder.join(original.handle.as_str());
            // A handle is a short hash: a file with other content belongs to another text.
            match fs::read(&path) {
                Ok(stored) if stored == original.bytes => continue,
                Ok(_) => return Err(StoreError(format!("the handle {} belongs to another text", original.handle))),
                Err(_) => {}
            }
            fs::write(&path, original.bytes).map_err(|error| StoreError(error.to_string()))?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("foldline-store-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let store = FileStore { folder: folder.clone() };

    let mut session = FoldSession::for_model("gpt-4o", 3_000);
    session.push(Message::text(Role::User, "Compare the pages."));
    let mut handles: Vec<Handle> = Vec::new();
    for at in 0..30 {
        let call = Part::call(format!("c{at}"), "fetch", format!(r#"{{"page":{at}}}"#));
        session.push(Message::new(Role::Assistant, vec![call]));
        let page: String = (0..30).map(|line| format!("page {at}, sentence {line}.\n")).collect();
        session.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), page)]));
        session.plan_request()?;
        // If this fails, the rendering must not be sent.
        session.store_originals(&store)?;
        let sent: Vec<Message> = session.rendered_messages(0).collect();
        let results = sent.iter().flat_map(Message::results).flat_map(|result| result.texts());
        let texts = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text);
        handles.extend(results.chain(texts).flat_map(marker::handles));
    }
    handles.sort();
    handles.dedup();
    // The files restore every original, also after the session is gone.
    for handle in &handles {
        let original = fs::read(folder.join(handle.as_str()))?;
        assert_eq!(Handle::for_content(&original), *handle);
    }
    println!("{} originals in {} files", handles.len(), fs::read_dir(&folder)?.count());
    fs::remove_dir_all(&folder)?;
    Ok(())
}

//! Opening recordings: a file or a folder, plain or compressed, read line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::Recording;

/// A reader of a file's text. What it was compressed with is told by its first bytes.
pub fn open(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = File::open(path)?;
    let mut magic = [0; 4];
    let mut seen = 0;
    while seen < magic.len() {
        match file.read(&mut magic[seen..])? {
            0 => break,
            more => seen += more,
        }
    }
    let whole = io::Cursor::new(magic[..seen].to_vec()).chain(file);
    Ok(match magic {
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(BufReader::new(zstd::Decoder::new(whole)?)),
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(whole))),
        _ => Box::new(BufReader::new(whole)),
    })
}

/// All recordings of a set with one record a line.
pub fn recordings(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Recording>> + Send> {
    Ok(open(path)?
        .lines()
        .filter(|line| line.as_ref().map_or(true, |line| !line.trim().is_empty()))
        .map(|line| Recording::from_line(&line?).map_err(io::Error::other)))
}

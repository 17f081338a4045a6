//! A client with one connection, on plain sockets, so that the client's own cost stays small.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::conversation::BenchFormat;
use crate::processes::unix_nanos;

pub(crate) struct BenchConnection {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
    host: String,
}

impl BenchConnection {
    pub(crate) fn open(address: &str) -> io::Result<Self> {
        let to = TcpStream::connect(address)?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { reader: BufReader::new(to.try_clone()?), writer: to, host: address.to_owned() })
    }

    fn send(&mut self, format: BenchFormat, body: &str) -> io::Result<()> {
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            format.path(),
            self.host,
            body.len()
        );
        self.writer.write_all(&[head.as_bytes(), body.as_bytes()].concat())
    }

    /// Sends a turn, reads its answer, and returns the duration.
    pub(crate) fn send_turn(&mut self, format: BenchFormat, body: &str) -> io::Result<Duration> {
        let began = Instant::now();
        self.send(format, body)?;
        let head = self.read_head()?;
        let mut left = head.content_length.unwrap_or(0);
        if head.content_length.is_none() {
            while !self.read_chunk()?.is_empty() {}
        }
        let mut piece = [0; 4096];
        while left > 0 {
            let read = self.reader.read(&mut piece[..left.min(4096)])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= read;
        }
        match head.status {
            200 => Ok(began.elapsed()),
            other => Err(io::Error::other(format!("status {other}"))),
        }
    }

    /// Gets a page or an answer of the API, and returns it with the duration.
    pub(crate) fn get(&mut self, path: &str) -> io::Result<BenchAnswer> {
        let began = Instant::now();
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host);
        self.writer.write_all(head.as_bytes())?;
        let head = self.read_head()?;
        let mut body = vec![0; head.content_length.unwrap_or(0)];
        self.reader.read_exact(&mut body)?;
        let time = began.elapsed();
        Ok(BenchAnswer { status: head.status, time, text: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Requests a stream of events and returns the connection, after its head.
    pub(crate) fn subscribe(mut self, path: &str) -> io::Result<TcpStream> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host);
        self.writer.write_all(head.as_bytes())?;
        self.read_head()?;
        Ok(self.writer)
    }

    /// Sends a turn whose answer streams, and returns the latency of its first chunk.
    pub(crate) fn first_chunk_latency(&mut self, format: BenchFormat, body: &str) -> io::Result<Duration> {
        self.send(format, body)?;
        self.read_head()?;
        let first = self.read_chunk()?;
        let arrived = unix_nanos();
        while !self.read_chunk()?.is_empty() {}
        let text = String::from_utf8_lossy(&first).into_owned();
        let written = text.split("at ").nth(1).and_then(|it| it.split(' ').next()?.parse::<u64>().ok());
        written
            .map(|written| Duration::from_nanos(arrived.saturating_sub(written)))
            .ok_or_else(|| io::Error::other(text))
    }

    fn read_head(&mut self) -> io::Result<ResponseHead> {
        let (mut head, mut line) = (ResponseHead { status: 0, content_length: None }, String::new());
        loop {
            line.clear();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                return Ok(head);
            }
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                head.status = rest[..3].parse().unwrap_or(0);
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                head.content_length = value.trim().parse().ok();
            }
        }
    }

    fn read_chunk(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        let mut bytes = vec![0; length + 2];
        self.reader.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// An answer of the API.
pub(crate) struct BenchAnswer {
    pub(crate) status: u16,
    pub(crate) time: Duration,
    pub(crate) text: String,
}

struct ResponseHead {
    status: u16,
    content_length: Option<usize>,
}

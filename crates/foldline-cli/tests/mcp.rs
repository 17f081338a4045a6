//! End-to-end tests of `foldline mcp`: JSON-RPC, one message per line.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::{Archive, Namespace};
use serde_json::{Value, json};

struct McpClient {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    id: u64,
}

impl McpClient {
    fn start(folder: &std::path::Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_foldline"))
            .args(["mcp", "--archive"])
            .arg(folder.join("archive.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut client = Self { child, stdin, stdout, id: 0 };
        let hello = client.request(
            "initialize",
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert_eq!(hello["result"]["serverInfo"]["name"], "foldline");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}));
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the server closed the connection");
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == self.id {
                return answer;
            }
        }
    }

    /// Returns the texts of a tool's answer, and true if it is an error.
    fn call_tool(&mut self, tool: &str, arguments: Value) -> (Vec<String>, bool) {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        let result = &answer["result"];
        let texts = result["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let texts = texts.iter().map(|it| it["text"].as_str().unwrap().to_owned()).collect();
        (texts, result["isError"].as_bool().unwrap_or(false))
    }

    fn close(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn mcp_client_unfolds_and_searches() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (1..=2000).map(|at| format!("line {at} of the output\n")).collect();
    let handle = Handle::for_content(text.as_bytes());
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let tenant = archive.tenant(&Namespace::local());
    let original =
        Original { handle, bytes: text.as_bytes(), tool: Some("bash"), arguments: Some("{}"), message: 1, tokens: 9 };
    tenant.store(&[original]).unwrap();
    // Namespaces are isolated over MCP, too.
    archive
        .tenant(&Namespace::new("other").unwrap())
        .store(&[Original { bytes: b"zebra", handle: Handle::for_content(b"zebra"), ..original }])
        .unwrap();

    let mut client = McpClient::start(folder.path());
    let tools = client.request("tools/list", json!({}));
    let mut names: Vec<_> =
        tools["result"]["tools"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["search", "stats", "unfold"]);

    let (texts, is_error) = client.call_tool("unfold", json!({"handle": handle}));
    assert!(!is_error && texts[0].len() <= 16384 && text.starts_with(&texts[0]));
    assert!(texts[1].contains("2000 lines") && texts[1].contains("ask for page 2"), "{}", texts[1]);
    assert_eq!(
        client.call_tool("unfold", json!({"handle": handle, "lines": "7..8"})).0[0],
        "line 7 of the output\nline 8 of the output\n"
    );
    assert_eq!(
        client.call_tool("unfold", json!({"handle": handle, "grep": " 1999 "})).0[0],
        "1999:line 1999 of the output\n"
    );
    let (texts, _) = client.call_tool("search", json!({"words": "output"}));
    assert!(texts[0].contains(handle.as_str()), "{}", texts[0]);
    assert!(client.call_tool("search", json!({"words": "zebra"})).0[0].starts_with("Nothing"));
    assert!(client.call_tool("stats", json!({})).0[0].starts_with("1 originals"));

    for (tool, arguments) in [
        ("unfold", json!({"handle": Handle::for_content(b"zebra")})),
        ("unfold", json!({"handle": "%%%%"})),
        ("unfold", json!({"handle": handle, "grep": "("})),
        ("unfold", json!({"handle": handle, "page": 1000})),
        ("search", json!({"words": ""})),
    ] {
        let (texts, is_error) = client.call_tool(tool, arguments.clone());
        assert!(is_error && texts[0].len() > 20, "{tool} {arguments}: {texts:?}");
    }
    client.close();
}

/// A client starts its servers before anything was folded; the archive appears later.
#[test]
fn server_starts_before_the_archive_exists() {
    let folder = tempfile::tempdir().unwrap();
    let mut client = McpClient::start(folder.path());
    let (texts, is_error) = client.call_tool("search", json!({"words": "needle"}));
    assert!(is_error && texts[0].contains("nothing was folded yet"), "{texts:?}");
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let original = Original {
        handle: Handle::for_content(b"needle"),
        bytes: b"needle",
        tool: None,
        arguments: None,
        message: 0,
        tokens: 1,
    };
    archive.tenant(&Namespace::local()).store(&[original]).unwrap();
    let (texts, is_error) = client.call_tool("search", json!({"words": "needle"}));
    assert!(!is_error && texts[0].contains("needle"), "{texts:?}");
    client.close();
}

#[test]
fn mcp_client_gets_a_folded_image_as_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = r#"{"type":"image","source":{"base64":"iVBORw0KGgoAAAANSUhEUg=="}}"#;
    let handle = Handle::for_content(image.as_bytes());
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    archive.tenant(&Namespace::local()).store(&[Original::new(handle, image.as_bytes())]).unwrap();
    drop(archive);
    let mut client = McpClient::start(folder.path());
    let answer = client.request("tools/call", json!({"name": "unfold", "arguments": {"handle": handle}}));
    let block = &answer["result"]["content"][0];
    assert_eq!(
        *block,
        json!({"type": "image", "data": "iVBORw0KGgoAAAANSUhEUg==", "mimeType": "image/png"}),
        "{answer}"
    );
    client.close();
}

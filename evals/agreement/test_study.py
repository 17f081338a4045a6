"""Tests the study against a scripted provider on loopback. Needs the binary: FOLDLINE=target/debug/foldline.

    FOLDLINE=target/debug/foldline python3 -m unittest discover -s evals/agreement
"""

import contextlib
import http.server
import io
import json
import os
import tempfile
import threading
import unittest

import study

FOLDLINE = os.environ.get("FOLDLINE", "target/debug/foldline")
NEEDLE = "value_17_of_the_first_file"


def session(rounds=40):
    """A session that reads a long file in each round; the last round needs a name of the first file."""
    messages = [{"role": "user", "content": "find the value"}]
    requests = []
    for at in range(rounds):
        requests.append(len(messages))
        command = NEEDLE if at + 1 == rounds else f"file_{at}.txt"
        call = {"name": "read", "arguments": json.dumps({"path": command})}
        messages.append({"role": "assistant", "content": None,
                         "tool_calls": [{"id": f"c{at}", "type": "function", "function": call}]})  # fmt: skip
        lines = [f"the line {line} of file {at} has words that are not needed again" for line in range(80)]
        lines.insert(40, NEEDLE if at == 0 else "")
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": "\n".join(lines)})
    return {"model": None, "tools": [], "messages": messages, "requests": requests}


class ScriptedProvider(http.server.BaseHTTPRequestHandler):
    """Answers with the next file, or with the needle if the request still contains it whole and is long."""

    fail = 0
    requests = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).requests.append(body)
        if type(self).fail > 0:
            type(self).fail -= 1
            self.send_response(429)
            self.send_header("retry-after", "0")
            self.end_headers()
            return
        calls = sum(bool(message.get("tool_calls")) for message in body["messages"])
        has_needle = NEEDLE in json.dumps(body["messages"])
        target = NEEDLE if has_needle and calls == 39 else f"file_{calls}.txt"
        call = {"id": "x", "type": "function", "function": {"name": "read", "arguments": json.dumps({"path": target})}}
        answer = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


class StudyTest(unittest.TestCase):
    def setUp(self):
        ScriptedProvider.requests, ScriptedProvider.fail = [], 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ScriptedProvider)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.folder = tempfile.TemporaryDirectory()
        self.sessions = os.path.join(self.folder.name, "sessions.jsonl")
        self.answers = os.path.join(self.folder.name, "answers.jsonl")
        with open(self.sessions, "w") as out:
            out.write(json.dumps(session()) + "\n")

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()

    def study(self, *more):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            study.main([self.sessions, self.answers, "--base-url", f"http://127.0.0.1:{self.server.server_port}/v1",
                        "--model", "scripted", "--dollars-per-million-input", "1", "--dollars-per-million-output", "4",
                        "--foldline", FOLDLINE, "--budget", "12000", "--wait-factor", "0", "--per-session", "50",
                        *more])  # fmt: skip
        return out.getvalue()

    def test_nothing_is_sent_before_the_cost_is_accepted(self):
        text = self.study()
        self.assertIn("at most $", text)
        self.assertIn("nothing was sent", text)
        self.assertEqual(ScriptedProvider.requests, [])

    def test_pairs_are_scored_and_runs_are_continued(self):
        text = self.study("--points", "3", "--yes")
        self.assertEqual(len(ScriptedProvider.requests), 9)
        self.assertIn("3 request points of 1 sessions", text)
        # A second run with more points sends only what is missing.
        self.study("--points", "5", "--yes")
        self.assertEqual(len(ScriptedProvider.requests), 15)
        text = self.study("--report")
        self.assertEqual(len(ScriptedProvider.requests), 15)
        self.assertIn("full request twice, same action     100.0 %", text)

    def test_a_rate_limit_is_retried(self):
        ScriptedProvider.fail = 2
        self.study("--points", "1", "--yes")
        self.assertEqual(len(ScriptedProvider.requests), 5)

    def test_folded_requests_are_shorter_and_have_the_tools(self):
        self.study("--points", "1", "--yes")
        full, _, folded = ScriptedProvider.requests
        self.assertLess(len(json.dumps(folded)), len(json.dumps(full)))
        self.assertEqual([tool["function"]["name"] for tool in folded["tools"]], ["read"])

    def test_margin_decides_by_the_lower_bound(self):
        def answers(agree):
            return {
                (str(at), 1, arm): {"action": ["read", "a" if arm != "folded" or at < agree else "b"],
                                    "recorded": ["read", "a"]}
                for at in range(100) for arm in study.ARMS
            }  # fmt: skip

        target = study.report(answers(100), 0.03).split("tool:")[0]
        self.assertIn("folded is not inferior", target)
        target = study.report(answers(96), 0.03).split("tool:")[0]
        self.assertIn("not shown", target)

    def test_targets_ignore_the_order_of_options(self):
        self.assertEqual(study.command_target("grep -n foo src/a.rs"), study.command_target("grep foo -n src/a.rs"))
        self.assertNotEqual(study.command_target("cat src/a.rs"), study.command_target("cat src/b.rs"))


if __name__ == "__main__":
    unittest.main()

"""Does a model take the same next action with a folded request as with the full one?

    python3 evals/agreement/study.py sessions.jsonl answers.jsonl --base-url URL --model NAME \
        --dollars-per-million-input 0.1 --dollars-per-million-output 0.4

At sampled request points of recorded sessions where folding changes the request, a model gets the full request, the full
request again, and the folded one. Its first tool call is compared with the recorded one: the tool, and its target (a file,
a command, a query). The second full request shows how often the model disagrees with itself.

The cost is printed before anything is sent, and nothing is sent without --yes. Every answer is appended to the file of
answers at once, and a second run continues where the first one ended. The key is read from the variable OPENAI_API_KEY
(--key-variable). See README.md for what the result means.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

ARMS = ("full", "full again", "folded")
# Arguments that name what a call is about, most specific first.
TARGET_KEYS = (
    "file_path", "path", "filename", "file", "target_file", "notebook_path", "url", "pattern", "query", "regex",
    "command", "cmd", "input",
)  # fmt: skip
COMMAND_KEYS = ("command", "cmd", "input")
ATTEMPTS = 4
SAMPLES = 2000


class FoldlinePipe:
    """A conversation in `foldline pipe`."""

    def __init__(self, binary, session, arguments):
        self.process = subprocess.Popen([binary, "pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rendered = []
        self.send(op="open", format="openai-chat", budget=arguments.budget, model=arguments.model,
                  prices=arguments.prices, policy=arguments.policy, tools=session["tools"])  # fmt: skip

    def send(self, **fields):
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()

    def push(self, messages):
        self.send(op="push", messages=messages)

    def request(self):
        """Returns the rendering and its tokens, and those of the full request; None if it cannot fit."""
        self.send(op="request")
        answer = json.loads(self.process.stdout.readline())
        if not answer["ok"]:
            return None
        for change in answer["set"]:
            self.rendered[change["at"] : change["at"] + 1] = [change["message"]]
        del self.rendered[answer["len"] :]
        return list(self.rendered), answer["tokens"], answer["received_tokens"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def session_key(session):
    return hashlib.sha256(json.dumps(session["messages"][:4]).encode()).hexdigest()[:16]


def tools_of(session):
    """Returns the tools of a session. Most logs do not record them; then they are derived from the recorded calls."""
    if session["tools"]:
        return session["tools"]
    properties = {}
    for message in session["messages"]:
        for call in message.get("tool_calls") or []:
            arguments = parse_arguments(call["function"]["arguments"])
            names = properties.setdefault(call["function"]["name"], {})
            names.update({name: {} for name in arguments})
    return [
        {"type": "function", "function": {"name": name, "description": "",
                                          "parameters": {"type": "object", "properties": keys}}}
        for name, keys in sorted(properties.items())
    ]  # fmt: skip


def parse_arguments(text):
    try:
        value = json.loads(text)
    except ValueError:
        return {"input": text}
    return value if isinstance(value, dict) else {"input": value}


def action_of(message):
    """Returns the tool and the target of a message's first call; a message without a call is an answer."""
    calls = message.get("tool_calls") or []
    if not calls:
        return ["answer", ""]
    function = calls[0]["function"]
    arguments = parse_arguments(function.get("arguments") or "{}")
    for key in TARGET_KEYS:
        if key in arguments:
            value = arguments[key]
            text = value if isinstance(value, str) else json.dumps(value)
            return [function["name"], command_target(text) if key in COMMAND_KEYS else text.strip()]
    return [function["name"], json.dumps(arguments, sort_keys=True)]


def command_target(command):
    """Returns the program of a command and the paths in it: the order of options does not matter."""
    words = re.findall(r"[^\s\"'`;|&()<>]+", command)
    paths = sorted({word.rstrip("/") for word in words[1:] if "/" in word or re.search(r"\.\w", word)})
    return " ".join(words[:1] + paths)


def find_points(sessions, arguments):
    """Returns the request points at which folding changes the request, at most a few of each session."""
    points = []
    for session in sessions:
        pipe, pushed, found = FoldlinePipe(arguments.foldline, session, arguments), 0, []
        for start in session["requests"]:
            pipe.push(session["messages"][pushed:start])
            pushed = start
            answer = pipe.request()
            recorded = session["messages"][start] if start < len(session["messages"]) else None
            if answer is None or recorded is None or recorded["role"] != "assistant":
                continue
            folded, tokens, full_tokens = answer
            if folded != session["messages"][:start] and full_tokens <= arguments.max_full_tokens:
                found.append({"session": session_key(session), "at": start, "folded": folded, "tokens": tokens,
                              "full_tokens": full_tokens, "full": session["messages"][:start],
                              "tools": tools_of(session), "recorded": action_of(recorded)})  # fmt: skip
        pipe.close()
        found.sort(key=lambda it: hashlib.sha256(f"{it['session']} {it['at']}".encode()).digest())
        points.extend(found[: arguments.per_session])
    points.sort(key=lambda it: hashlib.sha256(f"{it['at']} {it['session']}".encode()).digest())
    return points[: arguments.points]


def ask(arguments, key, messages, tools):
    """Returns the model's action. Requests that fail for a passing reason are sent again."""
    body = {"model": arguments.model, "messages": messages, "max_tokens": arguments.max_output, "temperature": 0}
    if tools:
        body["tools"] = tools
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    for attempt in range(ATTEMPTS):
        request = urllib.request.Request(
            arguments.base_url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=arguments.timeout) as response:
                return action_of(json.load(response)["choices"][0]["message"])
        except urllib.error.HTTPError as error:
            if error.code not in (408, 409, 429, 500, 502, 503, 504, 529) or attempt + 1 == ATTEMPTS:
                raise SystemExit(f"the provider answered {error.code}: {error.read(500).decode(errors='replace')}")
            wait = float(error.headers.get("retry-after") or 2**attempt)
        except (urllib.error.URLError, TimeoutError) as error:
            if attempt + 1 == ATTEMPTS:
                raise SystemExit(f"the provider cannot be reached: {error}")
            wait = 2**attempt
        time.sleep(min(wait, 60) * arguments.wait_factor)


def run(points, path, arguments):
    """Asks for every answer that the file does not have yet."""
    known = read_answers(path)
    key = os.environ.get(arguments.key_variable, "")
    with open(path, "a", encoding="utf-8") as out:
        for count, point in enumerate(points, 1):
            for arm in ARMS:
                if (point["session"], point["at"], arm) in known:
                    continue
                action = ask(arguments, key, point["folded" if arm == "folded" else "full"], point["tools"])
                line = {"session": point["session"], "at": point["at"], "arm": arm, "action": action,
                        "recorded": point["recorded"], "model": arguments.model}  # fmt: skip
                out.write(json.dumps(line) + "\n")
                out.flush()
            print(f"\r{count} of {len(points)} points", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def read_answers(path):
    if not os.path.exists(path):
        return {}
    answers = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            try:
                answer = json.loads(line)
            except ValueError:
                continue  # The last line of an interrupted run.
            answers[answer["session"], answer["at"], answer["arm"]] = answer
    return answers


def complete_points(answers):
    """Returns the points with all three answers, by session."""
    by_point = {}
    for (session, at, arm), answer in answers.items():
        by_point.setdefault((session, at), {})[arm] = answer
    by_session = {}
    for (session, _), arms in sorted(by_point.items()):
        if len(arms) == len(ARMS):
            by_session.setdefault(session, []).append(arms)
    return by_session


def measures(arms, parts):
    """Returns for one point which actions agree, by the first `parts` of tool and target."""
    full, again, folded = (arms[arm]["action"][:parts] for arm in ARMS)
    recorded = arms["full"]["recorded"][:parts]
    return [full == recorded, folded == recorded, full == again, full == folded]


def interval(by_session, statistic):
    """Returns a statistic of the points and its 95 % interval, by bootstrap over sessions."""
    sessions = list(by_session.values())
    chance = random.Random(1)
    value = statistic([point for points in sessions for point in points])
    draws = sorted(
        statistic([point for points in chance.choices(sessions, k=len(sessions)) for point in points])
        for _ in range(SAMPLES)
    )
    return value, draws[SAMPLES // 40], draws[SAMPLES - 1 - SAMPLES // 40]


def report(answers, margin):
    by_session = complete_points(answers)
    count = sum(map(len, by_session.values()))
    if not count:
        return "no point has all three answers yet"
    lines = [f"{count} request points of {len(by_session)} sessions; 95 % intervals over sessions", ""]
    for title, parts in (("tool and target", 2), ("tool", 1)):
        def share(at):
            return interval(by_session, lambda points: sum(measures(it, parts)[at] for it in points) / len(points))

        difference = interval(
            by_session,
            lambda points: sum(measures(it, parts)[1] - measures(it, parts)[0] for it in points) / len(points),
        )
        rows = [("full request, as recorded", share(0)), ("folded request, as recorded", share(1)),
                ("difference, folded - full", difference), ("full request twice, same action", share(2)),
                ("full and folded, same action", share(3))]  # fmt: skip
        lines.append(f"{title}:")
        lines += [f"  {name:34} {100 * value:6.1f} % ({100 * low:.1f} to {100 * high:.1f})" for name, (value, low, high) in rows]
        verdict = "not inferior" if difference[1] > -margin else "not shown to be not inferior"
        lines += [f"  folded is {verdict} at a margin of {100 * margin:.1f} points", ""]
    return "\n".join(lines).rstrip()


def estimate(points, known, arguments):
    """Returns what the missing answers cost at most, in dollars, and their input tokens."""
    missing = [
        (point["tokens"] if arm == "folded" else point["full_tokens"])
        for point in points
        for arm in ARMS
        if (point["session"], point["at"], arm) not in known
    ]
    output = len(missing) * arguments.max_output
    dollars = sum(missing) * arguments.dollars_per_million_input + output * arguments.dollars_per_million_output
    return len(missing), sum(missing), dollars / 1e6


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", help="the file that collect.py wrote")
    parser.add_argument("answers", help="the file of answers, which is continued")
    parser.add_argument("--base-url", default="https://api.openai.com/v1", help="a Chat Completions API")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-variable", default="OPENAI_API_KEY")
    parser.add_argument("--dollars-per-million-input", type=float, required=True)
    parser.add_argument("--dollars-per-million-output", type=float, required=True)
    parser.add_argument("--foldline", default="foldline", help="the binary")
    parser.add_argument("--budget", type=int, default=128_000, help="tokens of a folded request")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--prices", default="anthropic-5m", help="the price table by which folds are decided")
    parser.add_argument("--max-full-tokens", type=int, default=120_000, help="longer full requests are left out")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--per-session", type=int, default=5)
    parser.add_argument("--margin", type=float, default=0.03, help="the difference that does not matter")
    parser.add_argument("--max-output", type=int, default=400)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--wait-factor", type=float, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true", help="only report the answers so far")
    parser.add_argument("--yes", action="store_true", help="send the requests")
    return parser.parse_args(arguments)


def main(arguments):
    arguments = parse(arguments)
    if not arguments.report:
        with open(arguments.sessions, encoding="utf-8") as lines:
            sessions = [json.loads(line) for line in lines]
        points = find_points(sessions, arguments)
        requests, tokens, dollars = estimate(points, read_answers(arguments.answers), arguments)
        print(f"{len(points)} points; {requests} requests with {tokens:,} input tokens: at most ${dollars:.2f} without prompt caching")
        if not arguments.yes:
            print("nothing was sent; add --yes to send the requests")
            return
        run(points, arguments.answers, arguments)
    print(report(read_answers(arguments.answers), arguments.margin))


if __name__ == "__main__":
    main(sys.argv[1:])

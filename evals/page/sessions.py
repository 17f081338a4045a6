"""Writes made-up sessions of a coding agent, to look at the page of `foldline replay` without showing anyone's work.

    python3 evals/page/sessions.py /tmp/sessions.jsonl
    foldline replay /tmp/sessions.jsonl --baselines all --html /tmp/page.html

An agent reads the files of a small project, searches, edits, runs tests, and comes back to names that it saw long
before. The same seed gives the same sessions.
"""

import argparse
import json
import random

NOUNS = "ledger parcel beacon harbor lattice compass canal orchard signal quarry window anchor".split()
VERBS = "load merge split render settle reserve cancel audit import export verify rotate".split()


def module(draw, noun):
    """A file with its functions, and their names."""
    names = [f"{verb}_{noun}_{draw.choice(NOUNS)}" for verb in draw.sample(VERBS, 8)]
    lines = [f'"""Everything about a {noun}."""', "", "import logging", ""]
    for name in names:
        limit = draw.randrange(100, 9000)
        lines += [f"def {name}(value, limit={limit}):", f'    """Does what {name} says, up to {limit}."""']
        lines += [f"    step_{at} = value * {draw.randrange(2, 90)} + {at}" for at in range(draw.randrange(8, 40))]
        lines += ["    if step_0 > limit:", f'        raise ValueError("{name} is over {limit}")', "    return step_0", ""]
    return "\n".join(lines), names


def session(seed, rounds):
    draw = random.Random(seed)
    files = {f"src/{noun}.py": module(draw, noun) for noun in draw.sample(NOUNS, 8)}
    messages = [
        {"role": "system", "content": "You are a careful engineer. Run the tests before you say that you are done."},
        {"role": "user", "content": f"The {draw.choice(NOUNS)} totals are wrong since the last release. Find out why."},
    ]
    seen = []

    def call(name, arguments, result, says=None):
        use = f"call_{len(messages)}"
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "content": says,
                         "tool_calls": [{"id": use, "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": use, "content": result})

    for turn in range(rounds):
        path = draw.choice(list(files))
        text, names = files[path]
        choice = draw.random()
        if choice < 0.4 or not seen:
            call("read_file", {"path": path}, text)
            seen.append(path)
        elif choice < 0.55:
            name = draw.choice(files[draw.choice(seen)][1])
            hits = [f"{path}:{at}:{line}" for path, (text, _) in files.items()
                    for at, line in enumerate(text.splitlines(), 1) if name in line]
            call("grep", {"pattern": name}, "\n".join(hits), f"Where is {name} used?")
        elif choice < 0.75:
            path = draw.choice(seen)
            text, _ = files[path]
            line = draw.choice([line for line in text.splitlines() if "step_" in line and " = " in line])
            new = line + "  # checked"
            files[path] = (text.replace(line, new, 1), files[path][1])
            call("str_replace", {"path": path, "old_str": line, "new_str": new}, f"{path} was changed.")
        else:
            ran = [f"tests/test_{draw.choice(NOUNS)}.py::test_{draw.choice(VERBS)}_{at} PASSED [{at // 2}%]" for at in range(180)]
            failed = draw.choice(files[draw.choice(seen)][1])
            code = draw.randrange(1000, 9999)
            ran.append(f"FAILED tests/test_all.py::test_{failed} - ValueError: {failed} is over {code}")
            call("run", {"command": "pytest -q"}, "\n".join(ran + [f"1 failed, {len(ran) - 1} passed in {code / 100} s"]))
        if turn % 25 == 24:
            messages.append({"role": "assistant", "content": f"So far {len(set(seen))} files; {draw.choice(names)} looks odd."})
            messages.append({"role": "user", "content": "Go on, and leave the public names as they are."})
    messages.append({"role": "assistant", "content": "The limit is checked in one place now; all tests pass."})
    return {"id": f"made-up-{seed}", "source": "made up", "messages": messages}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="file to write, one session per line")
    with open(parser.parse_args().file, "w") as out:
        for seed in range(16):
            out.write(json.dumps(session(seed, 60 + 15 * seed)) + "\n")


if __name__ == "__main__":
    main()

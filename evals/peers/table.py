"""Prints one Markdown table of the reports that `compare.sh .. --json OUT` wrote.

    python3 evals/peers/table.py OUT.json [MORE.json ..] > docs/peers.md

A slow peer may be replayed by itself (PEERS=kompact): reports of the same sessions and prices are joined, each row once, and
the gap is told by the bound of whichever report has it.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BOUND = "clairvoyant cover, when it pays"


def versions():
    folder = os.path.join(HERE, "requirements")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            yield from (line.strip().replace("==", " ") for line in file if "==" in line)


def main():
    reports = []
    for path in sys.argv[1:]:
        with open(path) as file:
            reports.append(json.load(file))
    same = {(it["conversations"], it["calls"], it["price_table"], it["budget"]) for it in reports}
    if len(same) != 1:
        sys.exit(f"these reports are not of the same sessions: {same}")
    conversations, calls, prices, budget = same.pop()
    rows = {row["name"]: row for report in reports for row in report["rows"]}
    best = rows[BOUND]["repaired"]["value"] if BOUND in rows else None
    percent = lambda share: f"{100 * share:.1f}"
    print("# Beside other packages\n")
    print(
        f"Printed by `evals/peers/compare.sh SET --sample {conversations}` and `evals/peers/table.py` on {reports[0]['date']}: "
        f"{conversations} sessions with {calls} calls, drawn evenly from `{os.path.basename(reports[0]['set'])}`; prices `{prices}`, "
        f"budget {budget // 1000} k tokens. {', '.join(versions())}. In percent; what the columns mean: [guide](guide/replay.md); what each "
        "package is told, and what it keeps: [evals/peers](../evals/peers/README.md).\n"
    )
    print("| | tokens | bill | repaired | hard support | missteps | edit anchors | instructions | gap closed | laws broken |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, row in rows.items():
        repaired = row["repaired"]
        gap = "" if best is None or best == 1 else percent((1 - repaired["value"]) / (1 - best))
        shown = [percent(row[it]["value"]) for it in ["tokens", "bill"]]
        shown.append(f"{percent(repaired['value'])} ({percent(repaired['low'])} to {percent(repaired['high'])})")
        shown += [percent(row[it]["value"]) for it in ["hard", "missteps", "anchors"]]
        shown += [percent(row["instructions"]), gap, str(row["score"]["laws_broken"])]
        print(f"| {name} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()

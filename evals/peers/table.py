"""Prints one Markdown table of the reports that `compare.sh .. --json OUT` wrote.

    python3 evals/peers/table.py OUT.json [MORE.json ..] > docs/peers.md

A slow peer may be replayed separately (PEERS=kompact): reports of the same sessions and prices are joined, each row once, and
the oracle of any of the reports is used. The rows of the first report that are not common to all follow those of the others.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ORACLE = "oracle (optimal)"
# Rows of every report: no compaction and foldline.
COMMON_ROWS = 2


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
        sys.exit(f"the reports are not of the same sessions: {same}")
    conversations, calls, prices, budget = same.pop()
    parts = [report["rows"] for report in reports]
    ordered = [parts[0][:COMMON_ROWS], *parts[1:], parts[0]]
    rows = {}
    for row in (row for part in ordered for row in part):
        rows.setdefault(row["name"], row)
    oracle = rows[ORACLE]["cost_with_retries"]["value"] if ORACLE in rows else None
    percent = lambda share: f"{100 * share:.1f}"
    print("# Comparison with other packages\n")
    print(
        f"Printed by `evals/peers/compare.sh SET --sample {conversations}` and `evals/peers/table.py` on {reports[0]['date']}: "
        f"{conversations} sessions with {calls} calls, drawn evenly from `{os.path.basename(reports[0]['data_set'])}`; prices `{prices}`, "
        f"budget {budget // 1000} k tokens. {', '.join(versions())}. In percent; the last column counts violations. "
        "What the columns mean: [replay guide](guide/replay.md#columns); what each package receives, and what it keeps between "
        "requests: [evals/peers](../evals/peers/README.md). The oracle saving is that of oracle (optimal).\n"
    )
    print("| | tokens | cost | cost incl. retries | needed context kept | needed strings kept | actions missing context | edits that apply | instructions kept | % of oracle saving | laws broken |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, row in rows.items():
        cost = row["cost_with_retries"]
        share = "" if oracle in (None, 1) else percent((1 - cost["value"]) / (1 - oracle))
        shown = [percent(row[it]["value"]) for it in ["tokens", "cost"]]
        shown.append(f"{percent(cost['value'])} ({percent(cost['low'])} to {percent(cost['high'])})")
        kept = row["needed_context_kept"]
        shown.append(f"{percent(kept['value'])} ({percent(kept['low'])} to {percent(kept['high'])})")
        shown += [percent(row[it]["value"]) for it in ["needed_strings_kept", "actions_missing_context", "edits_that_apply"]]
        shown += [percent(row["instructions_kept"]), share, str(row["score"]["laws_broken"])]
        print(f"| {name} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()

"""Drives `foldline mcp` with the MCP client of the Python SDK, as an agent would.

    python -m venv env && env/bin/pip install mcp
    env/bin/python evals/mcp/client.py target/release/foldline

Makes an archive in a temporary folder, then lists the tools and calls each of them: whole texts, pages,
ranges, patterns, searches, and every kind of bad input. Prints what it checked; exits 1 at the first
thing that is not as it should be.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

LOG = "".join(f"{at:05} INFO worker {at % 7} finished batch\n" for at in range(1, 3001))
FAILURE = "running 3 tests\ntest parser::empty_list ... FAILED\nassertion failed: readConfigFile is None\n"
ODD = "tabs\tand \"quotes\" and \u0000 and \U0001f980 and \u2028 end without a line break"


def check(what, holds, seen=""):
    print(("ok   " if holds else "FAIL ") + what)
    if not holds:
        print(seen)
        sys.exit(1)


def texts(result):
    return [block.text for block in result.content]


async def run(binary, archive):
    arguments = ["mcp", "--archive", str(archive)]
    async with stdio_client(StdioServerParameters(command=binary, args=arguments)) as streams:
        async with ClientSession(*streams) as session:
            hello = await session.initialize()
            check(f"reports its name: {hello.server_info.name} {hello.server_info.version}", hello.server_info.name == "foldline")
            check("instructs a model what to do with a marker", "unfold" in (hello.instructions or ""))
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            check(f"offers {sorted(tools)}", sorted(tools) == ["search", "stats", "unfold"])
            check("each tool is described", all(len(tool.description or "") > 60 for tool in tools.values()))
            schema = tools["unfold"].input_schema
            check("unfold needs a handle alone", schema["required"] == ["handle"], schema)
            check("each argument is described", all("description" in it for it in schema["properties"].values()), schema)

            async def call(name, **arguments):
                return await session.call_tool(name, arguments)

            found = await call("search", words="config")
            check("search finds an identifier by a piece", "readConfigFile" in texts(found)[0], texts(found))
            failure = texts(found)[0].split()[0]
            whole = await call("unfold", handle=failure)
            check("unfold gives the text exactly", texts(whole)[0] == FAILURE, texts(whole))
            check("the beginning of a handle is enough", texts(await call("unfold", handle=failure[:6]))[0] == FAILURE)

            found = await call("search", words="quotes tabs")
            odd = texts(await call("unfold", handle=texts(found)[0].split()[0]))
            check("odd characters survive the protocol", odd[0] == ODD, odd)

            log = texts(await call("search", words="worker batch"))[0].split()[0]
            page, pages, at = "", 1, 1
            while at <= pages:
                text, note = texts(await call("unfold", handle=log, page=at))
                check(f"page {at} is bounded", len(text.encode()) <= 16384)
                pages = int(note.split(" of ")[1].split(",")[0].split(";")[0]) if " of " in note else 1
                page, at = page + text, at + 1
            check(f"{pages} pages make up the whole", page == LOG and pages > 3)
            lines = texts(await call("unfold", handle=log, lines="120..122"))[0]
            check("a range of lines", lines == "".join(LOG.splitlines(True)[119:122]), lines)
            matched = texts(await call("unfold", handle=log, grep="^0200[0-9] INFO worker 6", context=1))
            check("a pattern with its neighbours", matched[0].startswith("2000-"), matched)

            stats = texts(await call("stats"))[0]
            check("stats count", stats.startswith("3 originals"), stats)

            for what, name, arguments in [
                ("an unknown handle", "unfold", {"handle": "00000000"}),
                ("an odd handle", "unfold", {"handle": "../../etc/passwd"}),
                ("a bad range", "unfold", {"handle": log, "lines": "9..1"}),
                ("a bad pattern", "unfold", {"handle": log, "grep": "("}),
                ("a page too many", "unfold", {"handle": log, "page": 99}),
                ("an empty search", "search", {"words": "  "}),
            ]:
                result = await call(name, **arguments)
                check(f"{what} is reported to the model", result.is_error and len(texts(result)[0]) > 20, result)
            result = await call("search", words='") OR words MATCH "x NEAR(')
            check("query syntax is only words", not result.is_error, result)
            result = await call("search", words="batch " * 150_000)
            check("a query of a megabyte is answered", not result.is_error)
            begun = time.perf_counter()
            for _ in range(100):
                await call("unfold", handle=failure)
            print(f"     {10 * (time.perf_counter() - begun):.2f} ms a call, round trip")


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else "foldline"
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive.db"
        lines = [{"foldline_export": 1}]
        lines += [{"original": {"tool": "bash", "arguments": "{}", "text": text}} for text in (LOG, FAILURE, ODD)]
        export = "".join(json.dumps(line) + "\n" for line in lines)
        subprocess.run([binary, "archive", "import", "--archive", archive], input=export.encode(), check=True)
        asyncio.run(run(binary, archive))
    print("all well")


main()

// The extension inside the real pi: its command reads 60 files in a window of 16k.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { brokenLaws, countTokens } from "@foldline/core";
import { foldline } from "pi-foldline";

import { TASK, source } from "../../core/test/conversation.js";
import { startProvider } from "../../core/test/provider.js";

const WINDOW = 16_000;
const MAX_TOKENS = 2_000;
const TURNS = 60;
const EXTENSION = fileURLToPath(new URL("../index.js", import.meta.url));

/** Returns the path of pi's command. */
function piCommand() {
  const folders = createRequire(import.meta.url).resolve.paths("pi");
  const packages = folders.map((folder) => join(folder, "@earendil-works/pi-coding-agent"));
  const installed = packages.find((folder) => existsSync(join(folder, "package.json")));
  assert(installed, "pi is not installed");
  return join(installed, JSON.parse(readFileSync(join(installed, "package.json"), "utf8")).bin.pi);
}

/** Runs pi in an empty home folder until it ends. Returns its output. */
async function runPi(home, project, args) {
  const env = { ...process.env, HOME: home, PI_OFFLINE: "1", PI_CODING_AGENT_DIR: join(home, ".pi/agent") };
  const child = spawn(process.execPath, [piCommand(), ...args], { cwd: project, env, stdio: ["ignore", "pipe", "pipe"] });
  const output = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"]) child[name].on("data", (chunk) => (output[name] += chunk));
  output.code = await new Promise((resolve) => child.on("close", resolve));
  return output;
}

test("pi reads 60 files inside a window of 16k", async () => {
  const folder = mkdtempSync(join(tmpdir(), "pi-foldline-"));
  const [home, project] = [join(folder, "home"), join(folder, "project")];
  const provider = await startProvider(TURNS, "read");
  try {
    mkdirSync(join(project, "src"), { recursive: true });
    mkdirSync(join(home, ".pi/agent"), { recursive: true });
    for (let at = 1; at <= TURNS; at++) writeFileSync(join(project, `src/file_${at}.rs`), source(at, 60));
    const model = { id: "gpt-4o", contextWindow: WINDOW, maxTokens: MAX_TOKENS };
    const local = { baseUrl: provider.url, api: "openai-completions", apiKey: "not-a-key", models: [model] };
    writeFileSync(join(home, ".pi/agent/models.json"), JSON.stringify({ providers: { local } }));

    const args = ["--extension", EXTENSION, "--provider", "local", "--model", "gpt-4o", "-p", TASK];
    const { code, stdout, stderr } = await runPi(home, project, args);
    assert.equal(code, 0, stderr);
    assert.match(stdout, /Done\./);
    assert.equal(provider.reads, TURNS);
    // The session file of pi has every result as it was.
    const stored = storedSession(home);
    for (let at = 1; at <= TURNS; at++) assert(stored.includes(`let value_${at}_59 = `), `file ${at}`);
    assert.notEqual(provider.unfolded, null);

    let creases = 0;
    let sent = [];
    for (const body of provider.bodies) {
      assert.deepEqual(brokenLaws(body, { format: "openai-chat" }), []);
      assert(countTokens(body, { format: "openai-chat" }) <= WINDOW - MAX_TOKENS);
      creases += sent.some((message, at) => JSON.stringify(message) !== JSON.stringify(body.messages[at])) ? 1 : 0;
      sent = body.messages;
    }
    assert(creases >= 1 && creases <= 25, `${creases} creases`);
    const answers = provider.bodies.map((body) => body.messages.find((message) => message.tool_call_id === "unfold_1"));
    assert(answers.some((answer) => JSON.stringify(answer ?? "").includes("value_")));
  } finally {
    provider.close();
    rmSync(folder, { recursive: true, force: true });
  }
});

function storedSession(home) {
  const folder = join(home, ".pi/agent/sessions");
  const files = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".jsonl"));
  return files.map((name) => readFileSync(join(folder, name), "utf8")).join("");
}

test("the readme shows the tested lines", () => {
  const readme = readFileSync(join(dirname(EXTENSION), "README.md"), "utf8");
  assert(readme.includes("pi --extension"));
  assert(readme.includes("export default foldline({ budget: 60_000 });"));
  assert.equal(typeof foldline({ budget: 60_000 }), "function");
});

#!/usr/bin/env node
// Runs the command that npm installed for this platform, with the same arguments, streams, signals and exit code.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { constants } from "node:os";

const name = `@foldline/cli-${process.platform}-${process.arch}`;
const file = process.platform === "win32" ? "foldline.exe" : "foldline";

let command;
try {
  command = createRequire(import.meta.url).resolve(`${name}/${file}`);
} catch {
  console.error(`foldline: the package ${name} is not installed; install it, or build foldline from source`);
  process.exit(1);
}

const child = spawn(command, process.argv.slice(2), { stdio: "inherit" });
// Ctrl-C reaches the whole group of processes; the command decides when it ends.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`foldline: ${command} did not start: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));

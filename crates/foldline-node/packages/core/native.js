// Loads the native module of this platform: a file next to this one (a build of the repository), or the package that
// npm installs for the platform.

import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);

function load() {
  const local = fileURLToPath(new URL("./foldline.node", import.meta.url));
  if (existsSync(local)) return require(local);
  const name = `@foldline/core-${process.platform}-${process.arch}`;
  try {
    return require(`${name}/foldline.node`);
  } catch (cause) {
    throw new Error(`the native module ${name} cannot be loaded; install it, or build it from source`, { cause });
  }
}

export const native = load();

// Writes or checks dist/sources.digest: a digest of everything that the build reads. `cargo xtask tidy` computes the
// same digest without Node, so that a change of the sources without a build is noticed everywhere.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const root = new URL('..', import.meta.url).pathname;
const inputs = ['index.html', 'package-lock.json', 'package.json', 'public', 'src', 'tsconfig.json', 'vite.config.ts'];

/** Returns the files below a path. */
function files(path) {
  const entries = readdirSync(join(root, path), { withFileTypes: true });
  return entries.flatMap((entry) => {
    const name = `${path}/${entry.name}`;
    return entry.isDirectory() ? files(name) : [name];
  });
}

/** Returns the FNV-1a hash of bytes: it detects accidents, not attacks. */
function fnv1a(bytes) {
  let hash = 0xcbf29ce484222325n;
  for (const byte of bytes) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return hash.toString(16).padStart(16, '0');
}

const paths = inputs.flatMap((path) => (path.includes('.') ? [path] : files(path))).sort();
const text = paths.map((path) => `${fnv1a(readFileSync(join(root, path)))}  ${path}\n`).join('');
const target = join(root, 'dist/sources.digest');
if (process.argv.includes('--write')) {
  writeFileSync(target, text);
} else if (readFileSync(target, 'utf8') !== text) {
  process.stderr.write('dist does not match the sources: run `npm run build`\n');
  process.exit(1);
}

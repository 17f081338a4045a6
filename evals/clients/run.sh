#!/bin/sh
# Installs real clients in separate environments below target/clients, builds the proxy and a strict provider, and runs
# every client through the proxy against that provider. Only the installation uses the network.
#
#     evals/clients/run.sh [CASE..]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
installed=${FOLDLINE_EVAL_CLIENTS:-$target/clients}
mkdir -p "$installed/npm"
if [ ! -x "$installed/python/bin/python" ]; then
    python3 -m venv "$installed/python"
    "$installed/python/bin/pip" install -q -r "$here/requirements.txt"
fi
if [ ! -x "$installed/aider/bin/aider" ]; then
    python3 -m venv "$installed/aider"
    "$installed/aider/bin/pip" install -q aider-chat
fi
if [ ! -x "$installed/npm/node_modules/.bin/claude" ]; then
    npm install --prefix "$installed/npm" --no-audit --no-fund @openai/codex @anthropic-ai/claude-code opencode-ai
fi
cd "$root"
cargo build -p foldline-cli -p foldline-server --bin foldline --example strict_provider
set -- "$installed" "$target/debug/foldline" "$target/debug/examples/strict_provider" "$@"
python3 "$here/run.py" "$@"
exec python3 "$here/newcomer.py" "$@"

#!/bin/sh
# Installs real clients in separate environments below target/clients, builds the proxy and a strict provider, and runs
# every client through the proxy against that provider. Only the installation uses the network.
#
#     evals/clients/run.sh [CASE..]
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
installed=${FOLDLINE_EVAL_CLIENTS:-$target/clients}
mkdir -p "$installed/npm"
# uv resolves the requirements in seconds; pip takes many minutes.
if [ ! -x "$installed/uv/bin/uv" ]; then
    python3 -m venv "$installed/uv"
    "$installed/uv/bin/pip" install -q uv
fi
environment() {
    if [ ! -x "$installed/$1/bin/python" ]; then
        python3 -m venv "$installed/$1"
        name=$1
        shift
        "$installed/uv/bin/uv" pip install -q --python "$installed/$name/bin/python" "$@"
    fi
}
environment python -r "$here/requirements.txt"
environment mini mini-swe-agent mcp
environment aider aider-chat setuptools
if [ ! -x "$installed/npm/node_modules/.bin/claude" ]; then
    npm install --prefix "$installed/npm" --no-audit --no-fund \
        @anthropic-ai/claude-code @openai/codex opencode-ai @earendil-works/pi-coding-agent cline \
        openai ai@6 @ai-sdk/openai@3 @ai-sdk/anthropic@3
fi
cd "$root"
cargo build -p foldline-cli -p foldline-server --bin foldline --example strict_provider
set -- "$installed" "$target/debug/foldline" "$target/debug/examples/strict_provider" "$@"
python3 "$here/run.py" "$@"
exec python3 "$here/newcomer.py" "$@"

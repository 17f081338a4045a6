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
mkdir -p "$installed"
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
# Each has its own, since they require different versions of the same libraries.
environment python anthropic openai
environment langchain langchain langchain-anthropic langchain-openai
environment litellm litellm mcp
environment openai-agents openai-agents
environment pydantic-ai 'pydantic-ai-slim[anthropic,openai]'
environment mini mini-swe-agent mcp
environment aider aider-chat setuptools
packages() {
    folder=$installed/$1
    if [ ! -d "$folder/node_modules" ]; then
        shift
        npm install --prefix "$folder" --no-audit --no-fund "$@"
    fi
}
# The clients need a newer Node than many systems have.
packages node node@24
PATH=$installed/node/node_modules/.bin:$PATH
packages npm @anthropic-ai/claude-code @openai/codex opencode-ai cline openai ai @ai-sdk/openai @ai-sdk/anthropic
packages pi @earendil-works/pi-coding-agent
packages gemini @google/gemini-cli
cd "$root"
cargo build -p foldline-cli -p foldline-server --bin foldline --example strict_provider
set -- "$installed" "$target/debug/foldline" "$target/debug/examples/strict_provider" "$@"
python3 "$here/run.py" "$@"
exec python3 "$here/newcomer.py" "$@"

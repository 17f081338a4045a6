#!/bin/sh
# Installs the peers, each in its own environment under target/peers.
#
#     evals/peers/install.sh                all of them
#     evals/peers/install.sh langchain ..   some of them: the names of the files in requirements/
#
# Needs python3 with venv and pip; OpenHands needs Python 3.12. Nothing is installed outside target/peers.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
into=$(cd "$here/../.." && pwd)/target/peers
mkdir -p "$into"

if [ $# -eq 0 ]; then
    set -- $(cd "$here/requirements" && ls | sed 's/\.txt$//')
fi

# Some of them have hundreds of dependencies; uv resolves them in seconds.
if [ ! -x "$into/uv/bin/uv" ]; then
    python3 -m venv "$into/uv"
    "$into/uv/bin/pip" install --quiet --disable-pip-version-check uv
fi

for peer in "$@"; do
    case $peer in
        openhands) python=3.12 ;;
        *) python=3.11 ;;
    esac
    echo "$peer"
    [ -x "$into/$peer/bin/python" ] || "$into/uv/bin/uv" venv --quiet --python "$python" "$into/$peer"
    "$into/uv/bin/uv" pip install --quiet --python "$into/$peer/bin/python" -r "$here/requirements/$peer.txt"
done

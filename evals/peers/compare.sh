#!/bin/sh
# Prints one table of foldline, the installed peers, the classic strategies, the simple policies and the
# oracles.
#
#     evals/peers/compare.sh FILES.. [--sample N] [--budget N] [--html OUT] ..
#
# All arguments are passed to `foldline replay`. Some peers need a tenth of a second per call: --sample replays
# an even, deterministic sample of the sessions. Missing peers are installed first; PEERS="kompact headroom"
# selects some, by the names of the files in requirements/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=$root/target/peers

# One peer would download its token vocabulary; another one ships the same file.
vocabulary=$(ls -d "$peers"/llama-index/lib/python*/site-packages/llama_index/core/_static/tiktoken_cache 2>/dev/null || true)
[ -z "$vocabulary" ] || export TIKTOKEN_CACHE_DIR="$vocabulary"
# By default it stops reading that file after ten seconds, and estimates.
export HEADROOM_TIKTOKEN_LOAD_TIMEOUT_SECONDS=300

while IFS='|' read -r name peer adapter; do
    case " ${PEERS:-$peer} " in *" $peer "*) ;; *) continue ;; esac
    # A peer that cannot be installed is reported and left out of the table.
    [ -x "$peers/$peer/bin/python" ] || "$here/install.sh" "$peer" >&2 || true
    if [ -x "$peers/$peer/bin/python" ]; then
        set -- "$@" --engine "$name=cd '$here' && exec '$peers/$peer/bin/python' $adapter"
    else
        echo "$name is not installed (evals/peers/install.sh $peer)" >&2
    fi
done < "$here/peers.txt"

cd "$root"
cargo build --quiet --release -p foldline-cli
exec "${CARGO_TARGET_DIR:-target}/release/foldline" replay --baselines all "$@"

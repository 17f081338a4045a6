#!/bin/sh
# Prints the table of foldline, the peers that are installed, the classic strategies, the simple policies and the
# bounds, side by side.
#
#     evals/peers/compare.sh FILES.. [--sample N] [--budget N] [--html OUT] ..
#
# What follows is given to `foldline replay`. Some peers need a tenth of a second for each call: with --sample a
# part of the sessions is drawn evenly, and always the same. Peers that are not there are installed first; PEERS="kompact headroom"
# chooses some, by the names of the files in requirements/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=$root/target/peers

# One peer counts tokens with a vocabulary that it would download; another brings the same file along.
vocabulary=$(ls -d "$peers"/llama-index/lib/python*/site-packages/llama_index/core/_static/tiktoken_cache 2>/dev/null || true)
[ -z "$vocabulary" ] || export TIKTOKEN_CACHE_DIR="$vocabulary"
# On a busy machine it gives up reading that file after ten seconds, and guesses.
export HEADROOM_TIKTOKEN_LOAD_TIMEOUT_SECONDS=300

while IFS='|' read -r name peer adapter; do
    case " ${PEERS:-$peer} " in *" $peer "*) ;; *) continue ;; esac
    # A peer that can not be installed is left out of the table, and that is said.
    [ -x "$peers/$peer/bin/python" ] || "$here/install.sh" "$peer" >&2 || true
    if [ -x "$peers/$peer/bin/python" ]; then
        set -- "$@" --engine "$name=cd '$here' && exec '$peers/$peer/bin/python' $adapter"
    else
        echo "$name is not installed (evals/peers/install.sh $peer)" >&2
    fi
done < "$here/peers.txt"

cd "$root"
cargo build --quiet --release -p foldline-cli
exec "${CARGO_TARGET_DIR:-target}/release/foldline" replay --beside all "$@"

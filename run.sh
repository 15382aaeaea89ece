#!/usr/bin/env bash
# Serve a model: ./run.sh [gemma|qwen|smollm2|REPO|PATH] [options of the server ...]
set -eu

model=gemma
case "${1-}" in
    "" | -*) ;;
    *)
        model=$1
        shift
        ;;
esac

# Paths among the arguments are relative to the caller's folder.
from=$PWD
cd "$(dirname "$0")"
root=$PWD
. scripts/setup.sh
set_up ""
cd "$from"
exec "$root/$PYTHON" -P -m mlx_server.main --model "$model" "$@"

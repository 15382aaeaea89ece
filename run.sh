#!/usr/bin/env bash
# Serve a model: ./run.sh [gemma|qwen|smollm2|REPO|PATH] [options of the server ...]
set -eu
# the caller's folder, against which a relative model path is meant
from=$PWD
cd "$(dirname "$0")"
. scripts/setup.sh

model=gemma
case "${1-}" in
    "" | -*) ;;
    *)
        model=$1
        shift
        ;;
esac
case "$model" in
    /*) ;;
    *) if [ -f "$from/$model/config.json" ]; then model=$from/$model; fi ;;
esac

set_up ""
exec "$PYTHON" -m mlx_server.main --model "$model" "$@"

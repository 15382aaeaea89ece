#!/usr/bin/env bash
# Serve a model: ./run.sh [gemma|qwen|smollm2|REPO|PATH] [options of the server ...]
set -eu

# The first word is the model. Without one it is gemma, unless the options name another.
case "${1-}" in
    "" | -*)
        case " $* " in
            *" --model "* | *" --model="*) ;;
            *) set -- --model gemma "$@" ;;
        esac
        ;;
    *) set -- --model "$@" ;;
esac

# Paths among the arguments are relative to the caller's folder.
from=$PWD
CDPATH='' cd -- "$(dirname -- "$0")"
root=$PWD
. scripts/setup.sh
set_up ""
cd "$from"
# Large pages for glibc's big blocks: weights are read in less time. Nothing else looks at it.
export GLIBC_TUNABLES="${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}"
exec "$root/$PYTHON" -P -m mlx_server.main "$@"

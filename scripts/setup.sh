# Sourced by run.sh, scripts/check and scripts/test with the project's root as the current folder.
# set_up EXTRAS, which is "" or "[dev]", makes .venv or brings it up to date.

PYTHON=.venv/bin/python
STAMP=.venv/installed
LOCK=$PWD/.setup-lock

find_python() {
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "mlx_server needs Python 3.11 or newer, and the PATH has none. Install it" \
        "(on macOS: brew install python; on Debian: apt-get install python3-venv) and try again." >&2
    return 1
}

make_venv() {
    local python
    rm -rf .venv
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --seed --python '>=3.11' .venv
        return
    fi
    python=$(find_python) || return 1
    if ! "$python" -m venv .venv; then
        echo "Python's venv module does not work; on Debian: apt-get install python3-venv" >&2
        return 1
    fi
}

install_project() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$PYTHON" --editable ".$1"
    else
        "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable ".$1"
    fi
}

# One set-up at a time: another one's half-made .venv would be taken for a broken one.
lock() {
    local owner num_nameless=0
    until mkdir "$LOCK" 2>/dev/null; do
        owner=$(cat "$LOCK/owner" 2>/dev/null) || owner=
        [ -n "$owner" ] || num_nameless=$((num_nameless + 1))
        if [ "$num_nameless" -gt 3 ] || { [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; }; then
            rm -rf "$LOCK"
        else
            sleep 1
        fi
    done
    echo $$ >"$LOCK/owner"
    trap 'rm -rf "$LOCK"' EXIT
}

unlock() {
    rm -rf "$LOCK"
    trap - EXIT
}

set_up() {
    local status=0
    lock
    make_ready "$1" || status=$?
    unlock
    return "$status"
}

# The stamp is away while packages are installed: without it .venv is half-made and not used again.
make_ready() {
    local extras=$1 state wanted
    wanted="$(cksum <pyproject.toml) $PWD"
    state=$(cat "$STAMP" 2>/dev/null) || state=
    "$PYTHON" -c '' 2>/dev/null || state=
    case $state in
        "$wanted $extras" | "$wanted [dev]") return ;;
    esac
    if [ -z "$state" ]; then
        echo "Making .venv ..." >&2
        make_venv || return 1
    fi
    rm -f "$STAMP"
    echo "Installing mlx_server and what it needs into .venv; the first time takes minutes ..." >&2
    install_project "$extras" || return 1
    echo "$wanted $extras" >"$STAMP"
}

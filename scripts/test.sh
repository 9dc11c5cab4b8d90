#!/usr/bin/env bash
# Set up the environment and run the checks; further arguments are passed to pytest.
#
#   bash scripts/test.sh         the checks of CI: lint, format, types, all tests
#   bash scripts/test.sh fast    lint, format, and the tests that are neither integration nor slow (tests/conftest.py): less than two minutes, without vLLM
#   bash scripts/test.sh fuzz    property tests with FUZZ_EXAMPLES (2000) new random examples
#
# All checks run even if one fails; the last line names the failed ones. Types are checked in parallel with the tests and reported after them.
# Tests that measure time (mark `timing`) run last, in one process and with no other process at the same time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=all
if [[ ${1:-} == fast || ${1:-} == fuzz ]]; then
    mode=$1
    shift
fi
if [[ $mode == all ]]; then bash scripts/setup.sh cpu-vllm frameworks report; else bash scripts/setup.sh; fi
python=.venv/bin/python
failed=()

check() {
    local name="$1"
    shift
    echo "== $name" >&2
    "$@" || failed+=("$name")
}

# pytest ends with status 5 when it finds no test: the arguments may select tests of only one of the two runs.
empty=0
run_tests() {
    "$python" -m pytest "$@" || { status=$? && ((status == 5 && ++empty < 2)) || return "$status"; }
}
parallel=(-n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder --timing=without)

if [[ $mode == fuzz ]]; then
    check "pytest of properties" run_tests "${parallel[@]}" -m hypothesis --hypothesis-profile fuzz --timeout 0 "$@"
else
    check "ruff check" "$python" -m ruff check .
    check "ruff format" "$python" -m ruff format --check .
fi
if [[ $mode == fast ]]; then check "pytest" run_tests "${parallel[@]}" -m "not integration and not slow" "$@"; fi
if [[ $mode == all ]]; then
    types=$(mktemp)
    trap 'rm -f "$types"' EXIT
    # It has what the tests leave of the cores while they wait. Nothing reads the cache of a clean checkout.
    nice -n 19 "$python" -m mypy ${CI:+--cache-dir=/dev/null} >"$types" 2>&1 &
    mypy=$!
    check "pytest" run_tests "${parallel[@]}" "$@"
    types_are_right() { wait "$mypy" && status=0 || status=$?; cat "$types"; return "$status"; }
    check "mypy" types_are_right
    timing=("$@")
    (($#)) || mapfile -t timing < <(grep -rl --include='*.py' 'mark\.timing' tests)
    check "pytest of timing" run_tests --timing=only "${timing[@]}"
fi

if ((${#failed[@]})); then
    printf 'failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
    exit 1
fi

#!/usr/bin/env bash
# Sets up, then runs every check of CI: lint, format, types, tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
python=.venv/bin/python

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
"$python" -m pytest "$@"

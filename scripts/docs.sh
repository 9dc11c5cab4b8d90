#!/usr/bin/env bash
# Builds the site of the documentation in a folder (`site/` unless one is named); a warning is an error.
#
#   bash scripts/docs.sh [folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python scripts/docs_site.py "$@"

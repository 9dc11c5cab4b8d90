#!/usr/bin/env bash
# Build the documentation site in a folder (default `site/`); any warning is an error.
#
#   bash scripts/docs.sh [folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python scripts/docs_site.py "$@"

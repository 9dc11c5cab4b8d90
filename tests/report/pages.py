"""Reports in a real Chromium, for the tests of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared.browser import find_chromium
from verl.report.compact_index import compact_index
from verl.report.compact_texts import compact_chunk
from verl.report.pack import packed
from verl.report.page import html_page

PAGES = ("overview", "agents", "episodes", "time", "compare", "audit")
needs_chromium = pytest.mark.skipif(
    find_chromium() is None,
    reason="needs Chromium: bash scripts/setup.sh report, or apt-get install chromium",
)


def write_page(
    path: Path, index: dict[str, Any], chunks: list[dict[str, Any]], compact_texts: bool = True
) -> Path:
    """Write the page of an index and its texts, as `verl-mas report` does; without `compact_texts` the
    texts are as a server sends them.
    """
    data = {"index": packed(compact_index(index))} | {
        f"chunk-{number}": packed(compact_chunk(chunk) if compact_texts else chunk)
        for number, chunk in enumerate(chunks)
    }
    path.write_text(html_page("report", data), encoding="utf-8")
    return path

"""`scripts/report_screenshots.py` draws small pictures of each page of a run."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from scripts.report_screenshots import MOST_BYTES, main
from tests.house.source import ROOT
from tests.report.pages import needs_chromium
from tests.report.reading import small_run

PICTURES = ROOT / "docs" / "report"


@needs_chromium
def test_every_page_of_a_run_is_drawn(tmp_path: Path) -> None:
    main([str(small_run(tmp_path / "small")), "--out", str(tmp_path / "pictures")])
    drawn = {path.name: Image.open(path).size for path in (tmp_path / "pictures").iterdir()}
    pages = ("overview", "agents", "episodes", "time")
    assert drawn == {f"small_{page}.png": (1280, 860) for page in pages} | {
        "small_overview_phone.png": (390, 844)
    }


def test_the_pictures_of_the_page_are_small_and_all_are_shown() -> None:
    text = (ROOT / "docs" / "report.md").read_text()
    paths = list(PICTURES.glob("*.png"))
    assert paths
    for path in paths:
        assert path.stat().st_size <= MOST_BYTES
        assert f"](report/{path.name})" in text, path.name

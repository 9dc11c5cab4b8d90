"""Draw docs/report/*.png, screenshots of the report of runs, with a Chromium and Pillow (of matplotlib).

python scripts/report_screenshots.py RUN [RUN...] [--out docs/report]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shared.browser import Browser, chromium
from verl.report.index import read_report
from verl.report.page import report_page
from verl.utils.disk import writing

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("overview", "agents", "episodes", "time", "compare", "audit")
# Width, height, dark.
DESK = (1280, 860, False)
PHONE = (390, 844, True)
MOST_BYTES = 120_000
# An episode to open: of the last step but two with a group of different rewards, the one with most calls.
EPISODE = """(() => {
  const run = report.run();
  const flat = report.flatGroups(run);
  const at = (name, i) => report.value(run.episodes, name, i);
  const fit = report.filterEpisodes(run, {split: "train"})
    .filter((i) => !flat.has(at("uid", i)) && !at("failure", i) && at("chunk", i) >= 0);
  const steps = [...new Set(fit.map((i) => at("step", i)))].slice(-3);
  const ofStep = fit.filter((i) => at("step", i) === steps[0]);
  return ofStep.sort((a, b) => at("calls", b) - at("calls", a))[0] ?? 0;
})()"""


def draw(browser: Browser, path: Path, look: tuple[int, int, bool]) -> None:
    """Write what the window shows, with at most 255 colours."""
    width, height, dark = look
    browser.look(width, height, dark)
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 300))")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        browser.screenshot(raw)
        image = Image.open(raw).convert("RGB").quantize(255, dither=Image.Dither.NONE)
    with writing(path):
        image.save(path, optimize=True)
    if (size := path.stat().st_size) > MOST_BYTES:
        raise SystemExit(f"{path} has {size} bytes, more than {MOST_BYTES}; choose a smaller window")


def screenshots(runs: Sequence[Path], out: Path) -> list[Path]:
    """Write the screenshots of each run's report and of the comparison of the first two; return their
    paths.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        for run in runs:
            page.write_text(report_page(read_report([run]), 8.0), encoding="utf-8")
            for name in PAGES:
                if name == "compare" or (name == "audit" and not (run / "audit").is_dir()):
                    continue
                browser.open(page, f"/{name}")
                if name == "episodes":
                    browser.evaluate(f"report.bench.open({EPISODE})")
                paths.append(out / f"{run.name}_{name}.png")
                draw(browser, paths[-1], DESK)
            browser.open(page, "/overview")
            paths.append(out / f"{run.name}_overview_phone.png")
            draw(browser, paths[-1], PHONE)
        if len(runs) > 1:
            page.write_text(report_page(read_report(runs[:2]), 8.0), encoding="utf-8")
            browser.open(page, "/compare")
            paths.append(out / "compare.png")
            draw(browser, paths[-1], DESK)
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Draw screenshots of the report of runs.")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of a run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "report", help="default: docs/report")
    options = parser.parse_args(arguments)
    for path in screenshots(options.runs, options.out):
        print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()

"""The page of `verl-mas watch` in a real Chromium follows a run that grows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.shared.browser import chromium
from tests.house.source import ROOT
from tests.report.pages import needs_chromium
from tests.report.test_watch import PARTS, split_run
from tests.waiting import replace

pytestmark = needs_chromium


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a process watches a run."""
    command = [sys.executable, "-m", "verl.report.watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_new_steps_arrive_without_a_reload_and_texts_are_fetched_when_they_are_opened(tmp_path: Path) -> None:
    folder, later, lines = split_run(tmp_path)
    with served(folder) as address, chromium() as browser:
        browser.offline(False)
        browser.open(address, "/episodes?split=train")
        before = browser.evaluate("report.listed.length")
        calls = browser.evaluate("report.count(report.run().calls)")
        assert before > 0 and browser.evaluate("report.run().steps.at(-1)") == 2
        loaded = len(browser.requests)
        for name, content in later.items():
            replace(folder / name, content, tmp_path)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write("".join(lines[3:]))
        browser.wait(f"report.listed.length > {before}")
        browser.wait("report.run().steps.at(-1) === 3")
        assert browser.evaluate("report.count(report.run().calls)") > calls
        browser.evaluate(f"report.bench.open({before})")
        assert len(browser.evaluate("document.querySelector('article .reply').textContent")) > 20
        new = browser.requests[loaded:]
        assert new and all(url.startswith(address) for url in new), "it asks its own server alone"
        assert browser.problems == []


def test_a_server_that_ends_is_said_on_the_page(tmp_path: Path) -> None:
    folder, _, _ = split_run(tmp_path)
    with chromium() as browser:
        browser.offline(False)
        with served(folder) as address:
            browser.open(address, "/episodes")
        browser.wait("document.getElementById('foot').textContent.includes('no longer answers')")


def test_the_list_grows_beside_an_open_episode_whose_credit_comes_later(tmp_path: Path) -> None:
    folder, later, _ = split_run(tmp_path)
    (folder / PARTS[0]).write_bytes(later[PARTS[0]])
    with served(folder) as address, chromium() as browser:
        browser.offline(False)
        browser.open(address, "/episodes")
        count = browser.evaluate("report.listed.length")
        last = browser.evaluate("report.listed.find((i) => report.row(report.run().episodes, i).step === 3)")
        browser.evaluate(f"report.bench.open({last})")
        browser.evaluate("document.getElementById('detail').dataset.opened = 'yes'")
        for name in PARTS[1:]:
            if not name.startswith("credit"):
                replace(folder / name, later[name], tmp_path)
        browser.wait(f"report.listed.length > {count}")
        status = "document.querySelector('.side [role=status]').textContent"
        assert browser.evaluate(f"{status}.startsWith(`${{report.listed.length}} of`)")
        assert browser.evaluate("document.getElementById('detail').dataset.opened") == "yes"
        for name in PARTS[1:]:
            if name.startswith("credit"):
                replace(folder / name, later[name], tmp_path)
        browser.wait("document.getElementById('detail').dataset.opened === undefined")
        assert browser.problems == []

"""What kills cost a search: one that is killed at random moments and started again, beside the same search
undisturbed.

    python recipe/evolve/kills.py --kills 20

searches in the world of `measure.py`, compares ledger, report, kept replies and chosen file byte by byte,
and counts what the engine was asked for in all lives: a request that a kill cut off counts with all
tokens of its reply. Writes `kills.json`: `{"kills", "seed", "identical",
"tokens", "undisturbed_tokens", "largest_batch", "kills_by_what_was_done"}`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Generator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from agent_system.evolve.replay import ReplayMemory
from agent_system.launch import evolving
from recipe.evolve.measure import HERE, inputs
from recipe.evolve.teams import start_files
from recipe.runs import ROOT, overrides_of

FILES = ("ledger.jsonl", "report.md", "replies.jsonl", "best.yaml")
REQUESTS = "requests.txt"
# The search, which is small: it is started as often as it is killed.
SEARCH = {
    "evolve.generations": 8,
    "evolve.children": 3,
    "evolve.tasks": 64,
    "evolve.confirm": 64,
    "data.val_max_samples": 64,
}


class Logged:
    """A request to an engine that writes its key to a file when it is made."""

    def __init__(self, key: str, request: Awaitable[Any], path: Path) -> None:
        self._key = key
        self._request = request
        self._path = path

    def __await__(self) -> Generator[Any, None, Any]:
        with open(self._path, "a") as file:
            file.write(f"{self._key}\n")
        return self._request.__await__()

    def close(self) -> None:
        """Close the request, which is not made."""
        close = getattr(self._request, "close", None)
        if close is not None:
            close()


def search_logged(path: Path) -> None:
    """Search with the keys of the command line, and write the keys of all requests to a file."""
    reply = ReplayMemory.reply

    def logged(memory: ReplayMemory, key: str, request: Awaitable[Any]) -> Awaitable[Any]:
        return reply(memory, key, Logged(key, request, path))

    ReplayMemory.reply = logged  # type: ignore[method-assign,assignment]
    evolving.main()


def started(folder: Path, keys: list[str]) -> BaseProcess:
    """Start a search in a folder, in a process that has the modules already."""
    arguments = (folder, [*keys, f"trainer.default_local_dir={folder}"])
    process = multiprocessing.get_context("fork").Process(target=_search, args=arguments)
    process.start()
    return process


def _search(folder: Path, keys: list[str]) -> None:
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv[1:] = keys
    search_logged(folder / REQUESTS)


def ended(folder: Path, keys: list[str]) -> float:
    """Let a search end, and return the seconds until it had written the first line of its ledger.
    Raise RuntimeError if it fails.
    """
    began = time.monotonic()
    process = started(folder, keys)
    while process.exitcode is None and not (folder / "evolve" / "ledger.jsonl").exists():
        time.sleep(0.002)
    start_s = time.monotonic() - began
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the search failed; its output is in {folder / 'log.txt'}")
    return start_s


def killed(folder: Path, keys: list[str], rng: random.Random, start_s: float, line_s: float) -> str:
    """Start a search, kill it at a random moment, and return what it was doing: one of four kills comes
    while it starts, the others in the time of two lines after a new line of the ledger.
    """
    ledger = folder / "evolve" / "ledger.jsonl"
    before = ledger.stat().st_size if ledger.exists() else 0
    process = started(folder, keys)
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0, start_s))
    else:
        while process.exitcode is None and (not ledger.exists() or ledger.stat().st_size <= before):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 2 * line_s))
    process.kill()
    process.join()
    if process.exitcode == 0:
        return "ended"
    return "playing" if ledger.exists() and ledger.stat().st_size > before else "starting"


def paid_tokens(folder: Path) -> int:
    """Return the tokens of the replies to all requests that were made, by the kept replies."""
    lengths = {}
    for line in (folder / "evolve" / "replies.jsonl").read_text().splitlines():
        key, replies = json.loads(line)
        lengths[key] = sum(len(reply[0]) for reply in replies)
    # one of a batch of another order of arrival than the kept ones cannot be: replies follow from requests
    return sum(lengths[key] for key in (folder / REQUESTS).read_text().split())


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a ledger."""
    return [json.loads(line) for line in (folder / "evolve" / "ledger.jsonl").read_text().splitlines()]


def main() -> None:
    """Search undisturbed and with kills, and write what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("overrides", nargs="*", help="further key=value of the search")
    args = parser.parse_args()
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    start, parts = start_files("lookup", ROOT / "outputs" / "evolve_files")
    settings = config["common"] | config["worlds"]["lookup"] | inputs(config, "lookup", "warm", args.seed)
    settings |= SEARCH
    keys = [f"evolve.start=[{start}]", f"evolve.parts=[{parts}]", *overrides_of(settings), *args.overrides]
    folders = [ROOT / "outputs" / "verl-mas" / f"evolve_kills_{name}" for name in ("whole", "killed")]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    whole, disturbed = folders
    began = time.monotonic()
    start_s = ended(whole, keys)
    lines = events(whole)
    line_s = (time.monotonic() - began - start_s) / len(lines)
    rng = random.Random(f"kills-{args.seed}")
    kinds: Counter[str] = Counter()
    while sum(kinds.values()) < args.kills and not kinds["ended"]:
        kinds[killed(disturbed, keys, rng, start_s, line_s)] += 1
        sys.stdout.write(
            f"{dict(kinds)}: {len(events(disturbed)) if (disturbed / 'evolve').exists() else 0}\n"
        )
        sys.stdout.flush()
    ended(disturbed, keys)
    same = all(
        (disturbed / "evolve" / name).read_bytes() == (whole / "evolve" / name).read_bytes() for name in FILES
    )
    batches = [line.get("engine_tokens", 0) for line in lines]
    kills = kinds["playing"] + kinds["starting"]
    row = {
        "kills": kills,
        "seed": args.seed,
        "identical": same,
        "tokens": paid_tokens(disturbed),
        "undisturbed_tokens": paid_tokens(whole),
        "largest_batch": max(batches),
        "kills_by_what_was_done": dict(sorted((+kinds).items())),
    }
    (args.out / "kills.json").write_text(json.dumps(row, indent=1) + "\n")
    sys.stdout.write(json.dumps(row) + "\n")
    if not same or row["tokens"] > row["undisturbed_tokens"] + kills * row["largest_batch"]:
        sys.exit(
            "the search that was killed differs from the other one, or paid for more than a batch a kill"
        )


if __name__ == "__main__":
    main()

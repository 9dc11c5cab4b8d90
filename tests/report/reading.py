"""Runs to report on, and what a page holds."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.shared.report_run import write_run
from tests.report.expanding import expanded_chunk, expanded_index

SMALL: dict[str, Any] = {"tasks": 3, "episodes": 2, "calls": 2, "characters": 300, "val_every": 2, "keys": 12}


def small_run(folder: Path, **changes: Any) -> Path:
    """A run of two steps with two validations."""
    return write_run(folder, **{"steps": 2, **SMALL, **changes})


def data_of(page: str) -> dict[str, Any]:
    """Element id -> what a page has inside, as its script expands it."""
    elements = re.findall(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', page)
    packed = {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in elements}
    return {
        name: expanded_index(value) if name == "index" else expanded_chunk(value)
        for name, value in packed.items()
    }


def texts_of(data: dict[str, Any], run: int = 0) -> list[dict[str, Any] | None]:
    """For each episode of a run: its texts, prompts and replies put together; None if left out."""
    episodes = data["index"]["runs"][run]["episodes"]
    texts: list[dict[str, Any] | None] = []
    for chunk, row in zip(column(episodes, "chunk"), column(episodes, "row"), strict=True):
        if chunk < 0:
            texts.append(None)
            continue
        strings = data[f"chunk-{chunk}"]["strings"]
        episode = data[f"chunk-{chunk}"]["episodes"][row]
        calls = [
            call | {"prompt": "".join(strings[at] for at in call["prompt"]), "reply": strings[call["reply"]]}
            for call in episode["calls"]
        ]
        texts.append(episode | {"calls": calls})
    return texts


def column(table: dict[str, Any], name: str) -> list[Any]:
    """A column of a table of the index."""
    values = table[name]
    return [values["all"]] * table["length"] if isinstance(values, dict) else values


def episodes_in(folder: Path) -> list[dict[str, Any]]:
    """The episodes of all files of trajectories, in order of steps, training first."""
    files = sorted((folder / "trajectories").glob("*.jsonl"), key=lambda f: (f.name[-12:], f.name))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def rewrite(path: Path, change: Any, line: int = 0) -> None:
    """Change one object of a file of JSON lines."""
    lines = path.read_text().splitlines()
    row = json.loads(lines[line])
    change(row)
    lines[line] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")

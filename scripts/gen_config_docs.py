"""Write docs/config.md from the typed configuration, and the table of verl's keys into docs/upstream_map.md.

`python scripts/gen_config_docs.py [--check]`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.compat.keys import VerlKey

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "config.md"
MAP = ROOT / "docs" / "upstream_map.md"
VERL_KEYS_HEADER = "| verl 0.9 | here | |\n|---|---|---|\n"
HEADER = """# Configuration keys

Written by `python scripts/gen_config_docs.py` from `verl/trainer/config`; change the declaration there, not this file.
Every key is set on the command line as `key=value` (Hydra); an unknown key is an error.
"""


def section_of(name: str) -> str:
    """The dotted section a key is listed under: at most the first two parts, e.g. `actor_rollout_ref.actor`."""
    parts = name.split(".")[:-1]
    return ".".join(parts[:2])


def render(rows: list[tuple[str, str, Any, str]]) -> str:
    """The Markdown page of `describe(RunConfig)`: one table a section, in the order of declaration."""
    pages = [HEADER]
    for section, members in groupby(rows, key=lambda row: section_of(row[0])):
        pages.append(f"\n## `{section}`\n\n| key | type | default | meaning |\n|---|---|---|---|\n")
        for name, kind, default, meaning in members:
            cells = (f"`{name}`", f"`{kind.replace('typing.', '')}`", f"`{default!r}`", meaning)
            pages.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(pages)


def render_verl_keys(entries: Sequence[VerlKey]) -> str:
    """The Markdown table of verl's keys that are not keys here; entries that say the same share a row."""
    rows = []
    for (here, note), members in groupby(entries, key=lambda entry: (entry.here, entry.note)):
        names = ", ".join(f"<code>{entry.name}</code>".replace("*", "\\*") for entry in members)  # no code spans: those are our keys
        rows.append(f"| {names} | {', '.join(f'`{key}`' for key in here) or 'none'} | {note} |\n")
    return VERL_KEYS_HEADER + "".join(rows)


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare only; returns the exit status (1: a page is out of date)."""
    sys.path.insert(0, str(ROOT))
    from verl.compat.keys import VERL_KEYS
    from verl.trainer.config import RunConfig
    from verl.trainer.config.spec import describe

    old = {path: path.read_text(encoding="utf-8") if path.is_file() else "" for path in (DOC, MAP)}
    table = render_verl_keys(VERL_KEYS)
    new = {
        DOC: render(describe(RunConfig)),
        MAP: re.sub(re.escape(VERL_KEYS_HEADER) + r"(\|.*\n)*", lambda _: table, old[MAP]),
    }
    if "--check" in arguments:
        return int(new != old or table not in new[MAP])
    for path, text in new.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

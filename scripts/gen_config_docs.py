"""Write docs/config.md from the typed configuration: `python scripts/gen_config_docs.py [--check]`."""

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "config.md"
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


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare only; returns the exit status (1: the page is out of date)."""
    sys.path.insert(0, str(ROOT))
    from verl.trainer.config import RunConfig
    from verl.trainer.config.spec import describe

    text = render(describe(RunConfig))
    if "--check" in arguments:
        return int(not DOC.is_file() or DOC.read_text(encoding="utf-8") != text)
    DOC.parent.mkdir(exist_ok=True)
    DOC.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

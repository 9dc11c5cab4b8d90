"""Write docs/config.md from the typed configuration, and the table of verl's keys into docs/upstream_map.md.

`python scripts/gen_config_docs.py [--check]`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from verl.compat.keys import VERL_KEYS, VerlKey  # noqa: E402
from verl.trainer.config import RunConfig  # noqa: E402
from verl.trainer.config.effect import condition_text  # noqa: E402
from verl.trainer.config.spec import Key, keys, type_text  # noqa: E402

DOC = ROOT / "docs" / "config.md"
MAP = ROOT / "docs" / "upstream_map.md"
VERL_KEYS_HEADER = "| verl 0.9 | here | |\n|---|---|---|\n"
HEADER = """# Configuration keys

Written by `python scripts/gen_config_docs.py` from `verl/trainer/config`; change the declaration there, not this file.
Every key is set on the command line as `key=value` (Hydra). An unknown key, a value that is not allowed and a changed
key without effect are errors: one line that names the key, before anything starts. Numbers are finite in float32 and
int64.
"""


def section_of(name: str) -> str:
    """Return the dotted section of a key: at most its first two parts, e.g. `actor_rollout_ref.actor`."""
    parts = name.split(".")[:-1]
    return ".".join(parts[:2])


def render(declared: Iterable[Key]) -> str:
    """Return the Markdown page of `keys(RunConfig)`: one table per section, in the order of declaration."""
    pages = [HEADER]
    for section, members in groupby(declared, key=lambda key: section_of(key.name)):
        pages.append(f"\n## `{section}`\n\n| key | type | default | allowed | has an effect with | meaning |\n|---|---|---|---|---|---|\n")
        for key in members:
            cells = (f"`{key.name}`", f"`{type_text(key.type)}`", f"`{key.default!r}`", allowed(key), effect(key), key.meaning)
            pages.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(pages)


def allowed(key: Key) -> str:
    """Return the range or the choices of a key in words."""
    return key.range or ("" if callable(key.choices) else ", ".join(key.choices))


def effect(key: Key) -> str:
    """Return the conditions of a key in words, as code where they are valid overrides."""
    found = [condition_text(condition, key.name) for condition in key.effect]
    return "; ".join(f"`{text}`" if re.fullmatch(r"[\w.]+=\w+", text) else text for text in found)


def render_verl_keys(entries: Sequence[VerlKey]) -> str:
    """Return the Markdown table of verl's keys that do not exist here; entries with the same text share a row."""
    rows = []
    for (here, note), members in groupby(entries, key=lambda entry: (entry.here, entry.note)):
        names = ", ".join(f"<code>{entry.name}</code>".replace("*", "\\*") for entry in members)  # no code spans: those are our keys
        rows.append(f"| {names} | {', '.join(f'`{key}`' for key in here) or 'none'} | {note} |\n")
    return VERL_KEYS_HEADER + "".join(rows)


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare only; return the exit status (1: a page is out of date)."""
    old = {path: path.read_text(encoding="utf-8") if path.is_file() else "" for path in (DOC, MAP)}
    table = render_verl_keys(VERL_KEYS)
    new = {
        DOC: render(keys(RunConfig).values()),
        MAP: re.sub(re.escape(VERL_KEYS_HEADER) + r"(\|.*\n)*", lambda _: table, old[MAP]),
    }
    if "--check" in arguments:
        stale = [path for path in new if new[path] != old[path] or (path == MAP and table not in new[MAP])]
        sys.stderr.write("".join(f"{path.relative_to(ROOT)} is out of date; run: python scripts/gen_config_docs.py\n" for path in stale))
        return int(bool(stale))
    for path, text in new.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

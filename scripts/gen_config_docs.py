"""Write docs/config.md from the typed configuration, and the tables of upstream keys into
docs/upstream_map.md.

`python scripts/gen_config_docs.py [--check]`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from agent_system.evolve.settings import EvolveConfig  # noqa: E402
from verl.compat.defaults import DR_MAS_DEFAULTS, VERL_DEFAULTS  # noqa: E402
from verl.compat.keys import TWINS, VERL_KEYS, VERL_MEANINGS, VERL_VALUES, VerlKey  # noqa: E402
from verl.compat.pettingllms import PETTINGLLMS_KEYS  # noqa: E402
from verl.trainer.config import RunConfig  # noqa: E402
from verl.trainer.config.spec import Key, keys, type_text  # noqa: E402
from verl.trainer.plan.ineffective_keys import ESTIMATED, IN_THE_LOSS, condition_text, readers  # noqa: E402

DOC = ROOT / "docs" / "config.md"
MAP = ROOT / "docs" / "upstream_map.md"
# Headers of the tables that are written into the map.
TWINS_HEADER = "| in any command | here | a command's value | |\n|---|---|---|---|\n"
KEYS_HEADER = "| verl 0.9 | here | a command's value | |\n|---|---|---|---|\n"
VALUES_HEADER = "| key | a command's value | |\n|---|---|---|\n"
DEFAULTS_HEADER = "| default | of a command in the names of |\n|---|---|\n"
PETTINGLLMS_HEADER = "| PettingLLMs | here | |\n|---|---|---|\n"
HEADER = """# Configuration keys

Written by `python scripts/gen_config_docs.py` from `verl/trainer/config`; change the declaration there, not this file.
Every key is set on the command line as `key=value` (Hydra). An unknown key, a value that is not allowed and a changed
key without effect are errors: one line that names the key, before anything starts. Numbers are finite in float32 and
int64.
"""


FOLLOWERS_HEADER = """
## Keys that follow others

Each has the value of the key beside it, also an agent's own, unless it is set itself. Type, allowed values
and meaning are the same. In a configuration made in Python, `RunConfig()`, each has the default of that key.

| keys | as | have an effect with |
|---|---|---|
"""
EVOLVE_HEADER = """
## Keys of `verl-mas evolve`

They are read by [the search for a team](evolve.md) alone, beside the keys of a run.

| key | type | default | allowed | meaning |
|---|---|---|---|---|
"""
PARTS_HEADER = """
## Keys of one optional part

Each section exists only with the part of a run that the line above its table names; without that part
its keys are errors.
"""
OPTIONS_HEADER = """
## Keys of one estimator or loss

Each is read by one estimator (`algorithm.adv_estimator`) or one policy loss
(`actor_rollout_ref.actor.policy_loss.loss_mode`) alone, whose entry in [docs/algorithms.md](algorithms.md) says what it is for.

| of | key | type | default | allowed | meaning |
|---|---|---|---|---|---|
"""


def section_of(name: str) -> str:
    """Return the dotted section of a key: at most its first two parts, e.g. `actor_rollout_ref.actor`."""
    parts = name.split(".")[:-1]
    return ".".join(parts[:2])


def render(declared: Iterable[Key]) -> str:
    """Return the Markdown page of `keys(RunConfig)`: one table per section, in the order of declaration, then
    the keys of optional parts, those of single estimators and losses, and those that follow others.
    """
    declared = list(declared)
    options = [key for key in declared if only_reader(key)]
    others = [key for key in declared if key.like or key.same_as]
    rest = [key for key in declared if key not in options and key not in others]
    common = [key for key in rest if not key.part]
    parts = [key for key in rest if key.part]
    pages = [
        f"{HEADER}\nThere are {len(common)} keys of every run and {len(parts)} of [one optional "
        f"part](#keys-of-one-optional-part). {len(options)} more are of [one\nestimator or "
        f"loss](#keys-of-one-estimator-or-loss), and {len(others)} repeat [keys of another "
        "section](#keys-that-follow-others).\n"
    ]
    for section, members in groupby(common, key=lambda key: section_of(key.name)):
        pages += [f"\n## `{section}`\n\n", *table(members)]
    pages.append(PARTS_HEADER)
    for part, members in groupby(parts, key=lambda key: key.part):
        group = list(members)
        condition = effect([part], group[0])
        pages += [f"\n### {part_of(group)}\n\nWith {condition}.\n\n", *table(group)]
    pages.append(OPTIONS_HEADER)
    pages += [
        row(
            f"`{only_reader(key)}`",
            f"`{key.name}`",
            type_of(key),
            f"`{key.default!r}`",
            allowed(key),
            key.meaning,
        )
        for key in options
    ]
    pages.append(FOLLOWERS_HEADER)
    for (section, leader), members in groupby(others, key=sections_of_follower):
        group = list(members)
        names = ", ".join(f"`{key.name.removeprefix(section)}`" for key in group)
        leaders = ", ".join(f"`{key.like.removeprefix(leader)}`" for key in group)
        same = f"`{leader[:-1]}`" if names == leaders else f"`{leader[:-1]}`: {leaders}"
        place = f"the keys of `{group[0].same_as}`, with values of their own" if group[0].same_as else same
        pages.append(row(f"under `{section[:-1]}`: {names}", place, effect(group[0].effect[:1], group[0])))
    return "".join(pages)


def render_evolve(declared: Iterable[Key]) -> str:
    """Return the section of `keys(EvolveConfig)`."""
    rows = [
        row(f"`{key.name}`", type_of(key), f"`{key.default!r}`", allowed(key), key.meaning)
        for key in declared
    ]
    return EVOLVE_HEADER + "".join(rows)


def table(members: Iterable[Key]) -> list[str]:
    """Return the lines of a table of keys; conditions of their whole part are left to its heading."""
    return [
        "| key | type | default | allowed | has an effect with | meaning |\n|---|---|---|---|---|---|\n",
        *(
            row(
                f"`{key.name}`",
                type_of(key),
                f"`{key.default!r}`",
                allowed(key),
                effect([condition for condition in key.effect if condition != key.part], key),
                key.meaning,
            )
            for key in members
        ),
    ]


def part_of(group: Sequence[Key]) -> str:
    """Return the section that contains all keys of a group, as code."""
    sections = [key.name.split(".")[:-1] for key in group]
    shared = [names[0] for names in zip(*sections, strict=False) if len(set(names)) == 1]
    return f"`{'.'.join(shared)}`"


def row(*cells: str) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def only_reader(key: Key) -> str:
    """Return the name of the one estimator or loss that reads a key; empty for a key of several, or of the
    run.
    """
    names = readers(key.name) if {ESTIMATED, IN_THE_LOSS} & {*key.effect} else []
    return names[0] if len(names) == 1 else ""


def sections_of_follower(key: Key) -> tuple[str, str]:
    """Return the section of a key and that of the key it follows, each with a dot behind it."""
    section, _, _ = key.name.rpartition(".")
    leader, _, _ = key.like.rpartition(".")
    return f"{section}.", f"{leader}."


def type_of(key: Key) -> str:
    """Return the type of a key as code."""
    return f"`{type_text(key.type)}`"


def allowed(key: Key) -> str:
    """Return the range or the choices of a key in words."""
    return key.range or ("" if callable(key.choices) else ", ".join(key.choices))


def effect(conditions: Iterable[str], key: Key) -> str:
    """Return conditions of a key in words, as code where they are valid overrides."""
    texts = [condition_text(condition, key.name) for condition in conditions]
    return "; ".join(f"`{text}`" if re.fullmatch(r"[\w.]+=\w+", text) else text for text in texts)


def upstream_names(entries: Iterable[VerlKey]) -> str:
    """Return the names of entries, without code spans: those are our keys."""
    return ", ".join(f"<code>{entry.name}</code>".replace("*", "\\*") for entry in entries)


def our_keys(here: Sequence[str]) -> str:
    """Return keys as code, or `none`."""
    return ", ".join(f"`{key}`" for key in here) or "none"


def render_verl_keys(entries: Sequence[VerlKey], header: str = KEYS_HEADER) -> str:
    """Return the table of keys that do not exist here; entries with the same text share a row."""
    rows = []
    for (here, taken, note), members in groupby(
        entries, key=lambda entry: (entry.here, entry.in_words(), entry.note)
    ):
        rows.append(f"| {upstream_names(members)} | {our_keys(here)} | {taken} | {note} |\n")
    return header + "".join(rows)


def render_verl_values(entries: Sequence[VerlKey]) -> str:
    """Return the table of keys with the same name here and other values."""
    rows = []
    for (taken, note), members in groupby(entries, key=lambda entry: (entry.in_words(), entry.note)):
        rows.append(f"| {our_keys([entry.name for entry in members])} | {taken} | {note} |\n")
    return VALUES_HEADER + "".join(rows)


def render_defaults(tables: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of the defaults of each upstream that a translated command gets."""
    rows = [
        f"| `{key}={value}` | {upstream} |\n"
        for upstream, defaults in tables.items()
        for key, value in defaults.items()
    ]
    return DEFAULTS_HEADER + "".join(rows)


def render_pettingllms(entries: Sequence[VerlKey]) -> str:
    """Return the table of PettingLLMs' keys."""
    rows = [f"| {upstream_names([entry])} | {our_keys(entry.here)} | {entry.note} |\n" for entry in entries]
    return PETTINGLLMS_HEADER + "".join(rows)


def upstream_tables() -> dict[str, str]:
    """Return header -> whole table, of every table that is written into the map."""
    return {
        KEYS_HEADER: render_verl_keys(VERL_KEYS),
        TWINS_HEADER: render_verl_keys(
            [entry for entry in TWINS if entry.name not in entry.here], TWINS_HEADER
        ),
        VALUES_HEADER: render_verl_values(
            [entry for entry in (*VERL_VALUES, *VERL_MEANINGS) if entry.name in entry.here]
        ),
        DEFAULTS_HEADER: render_defaults({"verl or Dr. MAS": VERL_DEFAULTS, "Dr. MAS": DR_MAS_DEFAULTS}),
        PETTINGLLMS_HEADER: render_pettingllms(PETTINGLLMS_KEYS),
    }


def with_tables(page: str) -> str:
    """Return a page with its generated tables written anew. Raises ValueError for a table whose header is not
    on the page once.
    """
    for header, table in upstream_tables().items():
        if page.count(header) != 1:
            raise ValueError(f"{MAP.relative_to(ROOT)} must have this table once:\n{header}")
        page = re.sub(re.escape(header) + r"(\|.*\n)*", lambda _, table=table: table, page)  # type: ignore[misc]
    return page


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare only; return the exit status (1: a page is out of date)."""
    old = {path: path.read_text(encoding="utf-8") if path.is_file() else "" for path in (DOC, MAP)}
    new = {
        DOC: render(keys(RunConfig).values()) + render_evolve(keys(EvolveConfig).values()),
        MAP: with_tables(old[MAP]),
    }
    if "--check" in arguments:
        stale = [path for path in new if new[path] != old[path]]
        sys.stderr.write(
            "".join(
                f"{path.relative_to(ROOT)} is out of date; run: python scripts/gen_config_docs.py\n"
                for path in stale
            )
        )
        return int(bool(stale))
    for path, text in new.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

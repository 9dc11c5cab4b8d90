"""Every key of the configuration stands in a page that says when to change it, and the defaults that the
pages state are those of the declarations.
"""

import re
from collections.abc import Iterator

from agent_system.evolve.settings import EvolveConfig
from tests.docs.pages import pages, prose
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import keys

DECLARED = {**keys(RunConfig), **keys(EvolveConfig)}
# Pages that list keys without saying when: the generated reference, the names of upstreams, the overview, and
# the page about the code.
LISTS = {"docs/config.md", "docs/upstream_map.md", "docs/features.md", "docs/architecture.md"}
# Keys that no page explains. It only shrinks: a new key comes with its line in a page.
UNEXPLAINED: set[str] = set()
# Sections whose pages drop the prefix.
SHORT = ("actor_rollout_ref.", "algorithm.")
# Sections whose keys are entries of a dictionary, which nothing declares.
VALUES_OF_A_DICT = ("agent.api.",)
# A table of the keys of one or several sections: `| key under `a.b` and `c.d` | default | change it when |`.
HEADER = re.compile(r"^\| key(?P<sections>[^|]*)\|(?P<second>[^|]*)\|")


def rows() -> Iterator[tuple[str, list[list[str]], str | None]]:
    """(`page:line`, keys, default cell) of every row of a table of keys.

    A key is its full names, one for each section of the table. Without a column of defaults the cell is None.
    """
    for page, text in pages().items():
        if page.startswith("docs/") and page not in LISTS:
            yield from ((f"{page}:{line}", names, cell) for line, names, cell in _rows_of(text))


def _rows_of(text: str) -> Iterator[tuple[int, list[list[str]], str | None]]:
    sections: list[str] | None = None
    has_default = False
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            sections = [f"{name}." for name in re.findall(r"`([\w.<>]+)`", header["sections"])] or [""]
            has_default = header["second"].strip() == "default"
        elif not line.startswith("|"):
            sections = None
        elif sections is not None and line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            names = re.findall(r"`([\w.]+)`", cells[0])
            full = [[f"{section}{name}" for section in sections] for name in names]
            if full:
                yield number, full, cells[1] if has_default else None


def explained() -> set[str]:
    """Keys that stand in a table of keys, or by name in the prose of a page."""
    named = {name for _, row, _ in rows() for names in row for name in names}
    for page, text in pages().items():
        if page.startswith("docs/") and page not in LISTS:
            for span in re.findall(r"`([^`\n]+)`", prose(text)):
                named |= set(re.findall(r"(?<![\w./])[a-z_]+(?:\.\w+)+", span))
    return named | {
        prefix + name
        for prefix in SHORT
        for name in named
        if name not in DECLARED and prefix + name in DECLARED
    }


def spelled(value: object) -> str:
    """A value as the command line takes it, numbers as short as they can be."""
    if isinstance(value, list):
        return f"[{','.join(map(spelled, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") or '""'


def test_every_key_stands_in_a_page_that_says_when_to_change_it() -> None:
    missing = sorted(DECLARED.keys() - explained() - UNEXPLAINED)
    assert not missing, (
        "no page says when to change these keys; add a row `| key | default | when |` to a table of keys "
        "in a page of docs/ (docs/training.md lists the pages by subject):\n"
        + "\n".join(f"{name} (default {spelled(DECLARED[name].default)})" for name in missing)
    )


def test_keys_without_an_explanation_get_fewer() -> None:
    assert sorted(UNEXPLAINED & explained()) == [], "take them out of UNEXPLAINED"
    assert sorted(UNEXPLAINED - DECLARED.keys()) == []


def test_the_keys_of_the_tables_exist_and_have_the_stated_defaults() -> None:
    wrong = []
    for where, row, cell in rows():
        names = [name for names in row for name in names if not name.startswith(VALUES_OF_A_DICT)]
        wrong += [f"{where}: no key {name}" for name in names if name not in DECLARED]
        if cell is None:
            continue
        stated = re.findall(r"`([^`]*)`", cell) or cell.split(", ")
        if len(stated) != len(row):
            wrong.append(f"{where}: {len(row)} keys and {len(stated)} defaults")
        wrong += [
            f"{where}: {name} has the default {spelled(DECLARED[name].default)}, not {default}"
            for names, default in zip(row, stated, strict=False)
            for name in names
            if name in DECLARED and spelled(DECLARED[name].default) != default.removesuffix(".0")
        ]
    assert not wrong, "\n".join(wrong)


def test_the_tables_are_read() -> None:
    tabled = {name for _, row, _ in rows() for names in row for name in names}
    assert len(tabled) > 150
    assert {"critic.optim.lr_warmup_steps", "data.prompt_key", "reward.model.api.base_url"} <= tabled

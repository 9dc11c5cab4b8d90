"""The upstream map keeps its word: every place imports, every key exists, every difference is pinned by a
test that is there.
"""

import importlib
import re

import pytest

from tests.docs.pages import pages
from tests.docs.test_readme import is_key
from tests.house.source import ROOT

PAGE = pages()["docs/upstream_map.md"]


def column(number: int, header: str) -> list[str]:
    """Code spans in a column of every table whose header row has that title there."""
    spans, wanted = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            wanted = False
        elif len(cells) > number and cells[number] == header:
            wanted = True
        elif wanted and len(cells) > number:
            spans += re.findall(r"`([^`]+)`", cells[number])
    return spans


def resolve(path: str) -> object:
    """The object at a dotted path: the longest module of it, then attributes."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        if importlib.util.find_spec(parts[0]) and _is_module(name):
            found: object = importlib.import_module(name)
            for attribute in parts[cut:]:
                found = getattr(found, attribute)
            return found
    raise ModuleNotFoundError(path)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


PLACES = sorted({place for place in column(1, "here") if place.startswith(("verl.", "agent_system."))})
KEYS = sorted({place for place in column(1, "here") if not place.startswith(("verl.", "agent_system."))})
PINS = column(3, "test")


def test_the_tables_are_read() -> None:
    assert len(PLACES) > 60 and len(KEYS) > 8 and len(PINS) > 15


@pytest.mark.parametrize("place", PLACES)
def test_every_place_imports(place: str) -> None:
    assert resolve(place) is not None


@pytest.mark.parametrize("key", KEYS)
def test_every_key_exists(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize("pin", PINS)
def test_every_difference_is_pinned(pin: str) -> None:
    file, _, name = pin.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{file} has no {name}"

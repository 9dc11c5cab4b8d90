"""Every test with an `arena` runs at each level that this machine offers and that promises what it tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_system.sandbox.levels import LEVELS
from agent_system.sandbox.local import LocalSandbox
from tests.agent_system.sandbox.arena import Arena, offered, sandbox_at


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an `arena` runs at the strongest level of this machine and at the weakest that promises
    what is tested.

    The marker `promised_by` names that weakest level (default: `rlimits`), with `each=True` all from there
    on; `strongest` takes the strongest alone, `every` all.
    """
    if "arena" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("promised_by")
        least = marker.args[0] if marker else "rlimits"
        levels = offered("rlimits" if least in ("every", "strongest") else least)
        if least == "strongest":
            levels = levels[:1]
        elif least != "every" and not (marker and marker.kwargs.get("each")):
            levels = list(dict.fromkeys([*levels[:1], *levels[-1:]]))
        metafunc.parametrize("arena", levels, indirect=True)


@pytest.fixture
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    yield Arena(request.param)


@pytest.fixture(scope="session", autouse=True)
def _close() -> Iterator[None]:
    yield
    for level in LEVELS:
        if isinstance(sandbox := sandbox_at(level), LocalSandbox):
            sandbox.close()

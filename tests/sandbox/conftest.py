"""Every test with an `arena` runs at each level that this machine offers and that promises what it tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_system.sandbox.levels import LEVELS
from agent_system.sandbox.local import LocalSandbox
from tests.sandbox.arena import Arena, offered, sandbox_at


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an `arena` runs at every level from the one its marker `promised_by` names (default: all); `strongest` is one."""
    if "arena" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("promised_by")
        least = marker.args[0] if marker else "rlimits"
        metafunc.parametrize("arena", offered()[:1] if least == "strongest" else offered(least), indirect=True)


@pytest.fixture
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    yield Arena(request.param)


@pytest.fixture(scope="session", autouse=True)
def _close() -> Iterator[None]:
    yield
    for level in LEVELS:
        if isinstance(sandbox := sandbox_at(level), LocalSandbox):
            sandbox.close()

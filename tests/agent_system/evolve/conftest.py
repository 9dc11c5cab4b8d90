"""Searches in the scripted world, and the teams that they begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_system.evolve.edits import Parts
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.replay import ReplayMemory
from agent_system.evolve.search import SearchInputs, TeamSearch
from agent_system.evolve.settings import EvolveSettings
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ScriptedPlayer, roles_team, start_team

SMALL = {"tasks": 32, "confirm": 32, "generations": 3, "children": 2}
MakeSearch = Callable[..., TeamSearch]


@pytest.fixture(scope="session")
def start() -> Team:
    return start_team()


@pytest.fixture(scope="session")
def parts() -> Parts:
    return Parts.of([start_team(), roles_team()])


@pytest.fixture
def make_search(tmp_path: Path, start: Team, parts: Parts) -> MakeSearch:
    """Build a small search; keys of the settings, or fields of the inputs, may be given."""

    def make(folder: str = "search", *, seed: int = 1, player: Any = None, **given: Any) -> TeamSearch:
        names = EvolveSettings.__dataclass_fields__
        settings = EvolveSettings(**SMALL | {n: v for n, v in given.items() if n in names})
        inputs = {n: v for n, v in given.items() if n not in names}
        memory = ReplayMemory(tmp_path / folder / "replies.jsonl")
        ledger = SearchLedger(tmp_path / folder, {"seed": seed}, memory)
        player = player or ScriptedPlayer(seed)
        if isinstance(player, ScriptedPlayer):
            player.memory = memory
        return TeamSearch(SearchInputs(settings, seed, [start], parts, player, **inputs), ledger)

    return make

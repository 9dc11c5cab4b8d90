"""A Designer with scripted designs, and the roles of the world `lookup`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system import Task
from agent_system.rollout import Collector
from agent_system.testing import Script, make_tokenizer, scripted_team
from agent_system.workflows.design import DESIGNER, Roles
from agent_system.workflows.graph import Team
from tests.house.source import ROOT

FILE = ROOT / "agent_system" / "workflows" / "lookup" / "team.yaml"
ROLES = ("Solver", "Checker", "Filer")
LOOP = [
    {"loop": 3, "do": [
        {"call": "Solver", "id": "code"},
        {"call": "Checker", "id": "verdict"},
        {"stop": {"of": "verdict", "is": "right"}},
    ]},
]  # fmt: skip
TASKS = [Task(f"t{n}", "red kiwi code", "demo", "C", extra={"asks": "code", "code": "C"}) for n in range(4)]


def design(steps: Any = LOOP, returned: Any = "code") -> str:
    return json.dumps({"do": steps, "return": returned})


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def roles() -> Roles:
    return Roles(Team.load(FILE), 16, 64)


@pytest.fixture
def make_designed(tokenizer: Any) -> Callable[..., Collector]:
    """Build a collector whose Designer writes from a script; the Solver says C, the Checker right."""

    def make(designs: Script, *, file: Path = FILE, **more: Any) -> Collector:
        replies: Mapping[str, Script] = {
            DESIGNER: designs,
            "Solver": lambda *_: "C",
            "Checker": lambda *_: "right",
            "Filer": lambda *_: "D",
        }
        options = {"file": str(file), **more.pop("options", {})}
        more = {"max_tokens": 200_000, **more}
        return scripted_team(
            "design",
            replies | more.pop("replies", {}),
            env_name="lookup",
            options=options,
            tokenizer=tokenizer,
            **more,
        )

    return make

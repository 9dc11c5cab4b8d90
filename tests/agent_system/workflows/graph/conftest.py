"""Teams as texts, and collectors that play them with scripted replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_system import Projection
from agent_system.rollout import Collector
from agent_system.testing import Script, make_tokenizer, scripted_team
from agent_system.workflows.graph.play import chosen_place, with_votes

QUOTE = 'quote: {entry: "\\n{role}: {text}"}'
PAIR = f"""\
team: 1
agents:
  Solver Agent:   {{prompt: "Solve: {{env_prompt}}{{team_context}}", answer: boxed, {QUOTE}}}
  Verifier Agent: {{prompt: "Check: {{env_prompt}}{{team_context}}", answer: {{verdict: verify}}, {QUOTE}}}
do:
  - loop: 2
    do:
      - {{call: Solver Agent, id: s}}
      - {{call: Verifier Agent, id: v, unless: {{loop: last}}}}
      - {{stop: {{of: v, field: approved}}}}
return: s
"""
AGENTS = "".join(f"  {name}: {{prompt: '{name}: {{env_prompt}}{{team_context}}'}}\n" for name in "ABC")

Play = Callable[..., Collector]


def elect(candidates: Sequence[Projection], choice: Projection | None = None) -> Projection:
    """The result of a vote."""
    return with_votes(candidates, chosen_place(candidates, choice))


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def team_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a team to a file."""

    def write(text: str, name: str = "team.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def make_team(team_file: Callable[[str], Path], tokenizer: Any) -> Play:
    """Build a collector that plays a team, by default in the world `math`."""

    def make(text: str, replies: Mapping[str, Script], *, env_name: str = "math", **more: Any) -> Collector:
        options = {"file": str(team_file(text)), **more.pop("options", {})}
        return scripted_team(
            "graph", replies, env_name=env_name, options=options, tokenizer=tokenizer, **more
        )

    return make

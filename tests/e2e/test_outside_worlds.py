"""Real PettingZoo environments train through the usual path, parallel and tree-sampled."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.registry import AgentRegistry
from tests.e2e.conftest import Run, read_metrics, weights

# A random model writes no tags: here any reply stands for one of nine moves, legal or not.
PACKAGE = """
import zlib

from agent_system.projection import Projection
from agent_system.registry import AgentRegistry
from agent_system.workflows.farama import FaramaAgent


NAMES = ("player_0", "player_1", "player_2", "Player")


class Mumbles(FaramaAgent):
    prompt = "{agent} {env_prompt} {actions}"

    def project(self, text):
        return Projection(str(zlib.crc32(text.encode()) % 9), True, {}, text)


for name in NAMES:
    AgentRegistry.register(name, orchestra="farama")(Mumbles)
"""
NAMES = ("player_0", "player_1", "player_2", "Player")
TICTACTOE: dict[str, Any] = {
    "agent.plugins": "[mumbles]",
    "agent.orchestra_type": "farama",
    "agent.agent_ids": "[player_1,player_2]",
    "env.env_name": "farama",
    "env.params.env_id": "classic/tictactoe-v3",
    "env.params.api": "aec",
    "env.max_steps": 20,
    "data.max_prompt_length": 256,
    "trainer.total_training_steps": 3,
    "trainer.save_freq": 1,
    "trainer.val_before_train": False,
}


@pytest.fixture
def mumbles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Overrides of a run on tictactoe."""
    (tmp_path / "mumbles.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mumbles", raising=False)
    yield TICTACTOE
    for name in NAMES:
        AgentRegistry.remove(name, orchestra="farama")


@pytest.fixture
def play(train: Run, mumbles: dict[str, Any]) -> Run:
    """Train on tictactoe; the argument changes some of `TICTACTOE`."""
    return lambda changes=None: train(mumbles | dict(changes or {}))


def calls_of(run_dir: Path, step: int) -> list[dict[str, Any]]:
    lines = (run_dir / "trajectories" / f"train_{step:06d}.jsonl").read_text().splitlines()
    return [call for line in lines for call in json.loads(line)["calls"]]


def check_training(run_dir: Path, policies: set[str]) -> list[dict[str, Any]]:
    lines = [line for line in read_metrics(run_dir) if "actor/lr" in line]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    first, last = weights(run_dir, 2), weights(run_dir, 3)
    assert set(last) == policies
    assert all(first[policy] != last[policy] for policy in policies)
    return lines


def test_two_policies_play_tictactoe_against_each_other(play: Run, tmp_path: Path) -> None:
    play({"algorithm.adv_estimator": "gigpo"})
    lines = check_training(tmp_path / "run", {"player_1", "player_2"})
    assert sum(line["env/illegal"] for line in lines) > 0
    assert sum(line["env/moves"] for line in lines) > 6
    paid = {call["local_reward"] for step in (1, 2, 3) for call in calls_of(tmp_path / "run", step)}
    assert {-1.0, -0.1, 0.0, 1.0} <= paid


def test_a_tree_grows_over_tictactoe(play: Run, tmp_path: Path) -> None:
    tree = {
        "rollout.sampling": "tree",
        "reward.team_scope": "call",
        "algorithm.group_by": "[traj_uid,agent_id,turn,call]",
    }
    play(tree | {"rollout.tree.k": 3, "env.rollout.n": 1, "rollout.max_failure_rate": 0.0})
    lines = check_training(tmp_path / "run", {"player_1", "player_2"})
    assert all(line["tree/candidates/mean"] == 3 and line["tree/left_out"] == 0 for line in lines)
    assert all(line["tree/signal_rate"] > 0 for line in lines)


def test_one_policy_plays_against_chance(play: Run, tmp_path: Path) -> None:
    changes = {
        "agent.agent_ids": "[player_1]",
        "env.params.random_seats": "[player_2]",
        "env.params.success_return": 1,
    }
    play(changes | {"env.rollout.n": 4})
    lines = check_training(tmp_path / "run", {"player_1"})
    assert all(0.0 <= line["episode/success_rate"] <= 1.0 for line in lines)


def test_players_at_the_same_time_train(play: Run, tmp_path: Path) -> None:
    rps = {
        "env.params.env_id": "classic/rps-v2",
        "env.params.api": "parallel",
        "env.params.kwargs.max_cycles": 2,
    }
    play(rps | {"agent.agent_ids": "[player_0,player_1]", "env.params.actions": "[]"})
    lines = check_training(tmp_path / "run", {"player_0", "player_1"})
    assert all(line["env/moves"] == 2.0 and line["env/truncated"] == 1.0 for line in lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env.params.env_id": "classic/tictacto-v3"}, "did you mean 'classic/tictactoe-v3'"),
        ({"agent.agent_ids": "[player_1]"}, "lacks player_2"),
        ({"env.params.illegal": 0.2}, "env.params.illegal is not an option; did you mean 'illegal_penalty'"),
        ({"env.params.api": "ace"}, "env.params.api must be one of"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_what_does_not_fit_is_refused_before_a_model_loads(
    play: Run, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    from agent_system.launch import train

    monkeypatch.setattr(train, "build_controller", lambda *_: pytest.fail("workers would start"))
    with pytest.raises(AgentSystemError, match=words):
        play(changes)

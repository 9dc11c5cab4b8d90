"""Trees whose committed replies form an episode train with every estimator, and single steps with those that
compare single steps.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system import BaseEnv, EnvRegistry, Observation, Outcome
from tests.e2e.conftest import Run, read_metrics, weights
from verl.protocol import DataProto
from verl.trainer.ppo.team import TeamWorkers

TREE: Mapping[str, Any] = {
    "env.env_name": "two_turns",
    "env.max_steps": 2,
    "env.rollout.n": 2,
    "rollout.sampling": "tree",
    "rollout.tree.k": 2,
    "rollout.tree.select": "random",
    "trainer.log_trajectories": -1,
    "trainer.total_training_steps": 1,
    "data.val_max_samples": 1,
}
COMMITTED = TREE | {"rollout.tree.returns": "committed", "algorithm.group_by": "[uid,agent_id]"}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "gigpo": COMMITTED | {"algorithm.adv_estimator": "gigpo"},
    "gae_turn": COMMITTED | {"algorithm.adv_estimator": "gae", "algorithm.gae.level": "turn"},
    "remax": COMMITTED | {"algorithm.adv_estimator": "remax", "rollout.tree.k_per_agent.asker": 3},
    "m_grpo": COMMITTED
    | {"algorithm.adv_estimator": "m_grpo", "algorithm.m_grpo.main_agent": "Verifier Agent"},
    "threshold": COMMITTED
    | {
        "reward.propagation.mode": "threshold",
        "reward.propagation.min_pass_rate": 0.0,
        "agent.frozen": "[Asker]",
    },
    "remax_step": TREE | {"reward.team_scope": "call", "algorithm.adv_estimator": "remax"},
    "gae_step": TREE | {"reward.team_scope": "call", "algorithm.adv_estimator": "gae"},
}


class TwoTurns(BaseEnv):
    """Rewards every action locally by its text, and the team after each turn."""

    blocking = False

    def reset(self, task: Any) -> Observation:
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(local=zlib.crc32(action.encode()) % 100 / 100)

    def step(self, action: Any) -> Outcome:
        return Outcome(team=zlib.crc32(str(action).encode()[::-1]) % 100 / 100, info={"success": 1.0})

    def fork(self) -> "TwoTurns":
        return TwoTurns(self.config, seed=self.seed)


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    EnvRegistry.register("two_turns")(TwoTurns)
    yield
    EnvRegistry.remove("two_turns")


@pytest.mark.parametrize("name", RUNS)
def test_a_tree_trains(train: Run, tmp_path: Path, name: str) -> None:
    train(RUNS[name])
    (line,) = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    frozen = "agent.frozen" in RUNS[name]
    assert line["agent/verifier_agent/advantage_abs"] > 0 and line["wg/verifier_agent/actor/grad_norm"] > 0
    assert ("agent/asker/advantage_abs" in line) is not frozen
    episodes = [
        json.loads(row)
        for row in (tmp_path / "run" / "trajectories" / "train_000001.jsonl").read_text().splitlines()
    ]
    trees = [e for e in episodes if "greedy" not in e["uid"]]
    for episode in trees:
        counts = {"Asker": 0, "Verifier Agent": 0}
        for call in episode["calls"]:
            counts[call["agent_id"]] += not call["greedy"]
        assert sum(call["greedy"] for call in episode["calls"]) == (4 if name == "remax_step" else 0)
        asked = 1 if frozen else RUNS[name].get("rollout.tree.k_per_agent.asker", 2)
        assert counts == {"Asker": 2 * asked, "Verifier Agent": 4}
        assert sum(call["committed"] for call in episode["calls"]) == 4
    if name in ("gigpo", "gae_turn", "remax"):
        committed = [c for e in trees for c in e["calls"] if c["committed"]]
        rewards = {e["traj_uid"]: e["team_reward"] for e in trees}
        assert [c["team_reward"] for e in trees for c in e["calls"] if c["committed"]] == [
            rewards[e["traj_uid"]] for e in trees for c in e["calls"] if c["committed"]
        ]
        assert all(
            c["reward"] == c["candidate_reward"] for e in trees for c in e["calls"] if not c["committed"]
        )
        assert all(c["reward"] > c["candidate_reward"] for c in committed)
    assert ("reward/propagation/pass_rate" in line) is (name == "threshold")
    assert len(list((tmp_path / "run" / "trajectories").glob("val_*"))) == 2


def test_critics_learn_and_are_asked_about_committed_replies_only_and_a_resumed_run_goes_on_to_the_bit(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[DataProto] = []
    update = TeamWorkers.update_critic
    monkeypatch.setattr(
        TeamWorkers,
        "update_critic",
        lambda self, batch, *rest: (learned.append(batch), update(self, batch, *rest))[1],
    )
    longer = RUNS["gae_turn"] | {
        "trainer.total_training_steps": 2,
        "trainer.save_freq": 1,
        "trainer.test_freq": -1,
        "critic.optim.lr": 0.01,
    }
    train(longer)
    for batch in learned:
        assert batch.non_tensor_batch["committed"].all() and len(batch) == 16, "2 tasks, 2 episodes, 4 calls"
        assert batch.batch["returns"].any(dim=1).all()
    assert learned[1].batch["values"].any(dim=1).all(), "a critic starts at 0 and has learned in step 1"
    again = {
        "trainer.default_local_dir": tmp_path / "resumed",
        "trainer.resume_mode": tmp_path / "run" / "checkpoints" / "global_step_1",
    }
    train(longer | again)
    assert weights(tmp_path / "resumed", 2) == weights(tmp_path / "run", 2)

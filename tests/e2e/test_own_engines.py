"""Engines with devices of their own: in another placement group than the policies, with the policies'
weights.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import LEVELS, VERIFIER, asked_at_the_end, load_exported, log_probs
from tests.e2e.test_fully_async import STALE, check_ledger
from tests.e2e.test_weight_transfer import DIES, LAST
from verl.trainer.ppo.controller import ControllerError, RayController

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
TRANSFER = "actor_rollout_ref.rollout.weight_transfer"
ON_RAY = {"trainer.controller": "ray", "ray_init.num_cpus": 2}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, Any]]:
    """Of every worker group that is started: its name, its number of ranks and the placement group of all of
    them.
    """
    found: list[tuple[str, int, Any]] = []
    spawn = RayController.spawn

    def noted(controller: RayController, name: str, *args: Any, **kwargs: Any) -> Any:
        group = spawn(controller, name, *args, **kwargs)
        (where,) = {slot.placement_group.id for slot in group.resource_pool.slots()}
        found.append((name, group.world_size, where))
        return group

    monkeypatch.setattr(RayController, "spawn", noted)
    return found


def check_apart(started: list[tuple[str, int, Any]], policies: int, engines: int) -> None:
    """Policies have one placement group and so many ranks, engines another one and theirs, also after a
    restart.
    """
    ranks, groups = ({"policy": set(), "rollout": set()} for _ in range(2))
    for name, size, where in started:
        kind = name.partition("_")[0]
        ranks[kind].add(size)
        groups[kind].add(where)
    assert ranks == {"policy": {policies}, "rollout": {engines}}
    assert len(groups["policy"]) == len(groups["rollout"]) == 1 and not groups["policy"] & groups["rollout"]


def test_two_engines_of_one_rank_get_its_weights_to_the_last_bit_also_after_one_has_died(
    train: Run,
    once: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list[tuple[str, int, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "own_collective.py").write_text(DIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = LAST | {"agent.specialization": "prompt"}
    with caplog.at_level("INFO"):
        train(one | ON_RAY | {"rollout.n_gpus_per_node": 2, TRANSFER: "own_collective.Dies"})
    assert (tmp_path / "own_collective.died").exists() and len(
        [name for name, *_ in started if name.startswith("rollout")]
    ) == 2
    check_apart(started, policies=1, engines=2)
    assert "-> device 0, engines on rollout devices 0 to 1" in caplog.text
    assert [
        '"free_caches"' in (run / "timeline.jsonl").read_text() for run in (tmp_path / "run", once(one))
    ] == [False, True]
    assert [
        line["training/engine_restarts"] for line in read_metrics(tmp_path / "run") if "actor/lr" in line
    ] == [1, 1]
    assert weights(tmp_path / "run", 2) == weights(once(one), 2)


def test_an_engine_of_two_ranks_serves_their_last_weights_after_asynchronous_training(
    train: Run, tmp_path: Path, started: list[tuple[str, int, Any]]
) -> None:
    """The engine of the frozen agent is beside that of the trained one."""
    apart = {"trainer.n_gpus_per_node": 2, "rollout.n_gpus_per_node": 1, TRANSFER: "collective"}
    few = {"trainer.total_training_steps": 2, "trainer.val_before_train": False, "trainer.test_freq": 0}
    with asked_at_the_end() as said:
        train(STALE | few | LEVELS["frozen"].changes | ON_RAY | apart)
    assert sorted(name for name, *_ in started) == ["policy_asker", "rollout_asker", "rollout_verifier_agent"]
    check_apart(started, policies=2, engines=1)
    check_ledger(tmp_path / "run", 2)
    saved = load_exported(
        tmp_path / "run" / "checkpoints" / "global_step_2" / "actor" / "asker" / "huggingface"
    )
    assert said["asker"].log_probs == pytest.approx(log_probs(saved, said["asker"]), abs=1e-5)
    assert said["asker"].version == 2 and said[LEVELS["frozen"].policy_of[VERIFIER]].version == 0


def test_one_process_has_no_engines_with_devices_of_their_own(train: Run) -> None:
    with pytest.raises(ControllerError, match=r"rollout\.n_gpus_per_node=1 needs trainer\.controller=ray"):
        train({"rollout.n_gpus_per_node": 1})

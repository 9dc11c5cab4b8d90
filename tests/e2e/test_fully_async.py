"""`async_training.mode=fully_async`: episodes are collected all the time; without staleness it is synchronous
training to the last bit.
"""

import json
import math
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_system.environment import Outcome
from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import ADAPTER, LEVELS, compared_after_every_transfer, policies
from tests.e2e.test_one_step_off import TREE, comparable
from tests.house.source import ROOT
from verl.protocol import DataProto
from verl.trainer.ppo import report
from verl.trainer.ppo.asynchronous.lanes import Lanes
from verl.trainer.ppo.collect.step_samples import NoSamplesError
from verl.trainer.ppo.train_step import StepTrainer
from verl.utils.checkpoint import CheckpointError

KILLS = int(os.environ.get("KILLS", "6"))
FOUR = {
    "trainer.total_training_steps": 4,
    "trainer.save_freq": 1,
    "trainer.max_ckpt_to_keep": 0,
    "trainer.test_freq": 2,
}
ASYNC = {"async_training.mode": "fully_async", "algorithm.rollout_correction.rollout_is": "token"}
FRESH = ASYNC | {"async_training.staleness_threshold": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "a model per agent": {"algorithm.rollout_correction.rollout_is": "null"} | LEVELS["L3"].changes,
    "one agent": LEVELS["L0"].changes,
    "one model": LEVELS["L1"].changes,
    "tree, adapters": TREE | {"agent.specialization": "lora"} | ADAPTER,
    "remax, one policy": {"algorithm.adv_estimator": "remax", "agent.specialization": "prompt"},
    "remax, a model per agent": {"algorithm.adv_estimator": "remax"} | LEVELS["L3"].changes,
    "critics": {"algorithm.adv_estimator": "gae", "actor_rollout_ref.actor.ppo_epochs": 2},
}


def without_ledger(run_dir: Path) -> list[dict]:
    """The metrics of a run without its clock and without those that only this mode has."""
    own = ("fully_async/", "trainer/", "rollouter/")
    return [
        {name: value for name, value in line.items() if not name.startswith(own)}
        for line in comparable(run_dir)
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_staleness_it_equals_synchronous_training_to_the_last_bit(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """Also where policies train in lanes of their own, a model per agent."""
    lanes = set[int]()
    start = Lanes.start
    monkeypatch.setattr(Lanes, "start", lambda self, jobs: lanes.add(len(jobs)) or start(self, jobs))
    keys = FRESH | VARIANTS[variant] | {"trainer.total_training_steps": 3}
    train(keys | {"trainer.default_local_dir": tmp_path / "async"})
    assert lanes == {2 if variant in ("a model per agent", "remax, a model per agent", "critics") else 1}
    sync = {name: value for name, value in keys.items() if not name.startswith("async_training")}
    train(sync | {"trainer.default_local_dir": tmp_path / "sync"})
    assert policies(tmp_path / "async", 3) and policies(tmp_path / "async", 3) == policies(
        tmp_path / "sync", 3
    )
    assert without_ledger(tmp_path / "async") == without_ledger(tmp_path / "sync")


@pytest.mark.parametrize("limit", [10, 2])
def test_dynamic_sampling_without_staleness_trains_on_the_tasks_of_synchronous_training(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A reward of 0 or 1 for each of two samples: many tasks have no signal, and others are sampled in their
    place, up to the limit.
    """
    import my_flow_package

    act = my_flow_package.MyWorld.act

    def rarely_rewarded(*args: Any) -> Outcome:
        """Some groups take long, so that others complete before those that were dispatched earlier."""
        local = act(*args).local
        time.sleep(0.2 * (local < 0.15))
        return Outcome(local=float(local > 0.7))

    monkeypatch.setattr(my_flow_package.MyWorld, "blocking", True)
    monkeypatch.setattr(my_flow_package.MyWorld, "act", rarely_rewarded)
    keys = {
        "algorithm.filter_groups.metric": "seq_reward",
        "trainer.total_training_steps": 3,
    }
    keys |= {
        "env.rollout.n": 2,
        "trainer.val_before_train": False,
        "algorithm.filter_groups.max_num_gen_batches": limit,
    }
    keys |= LEVELS["L0"].changes
    train(FRESH | keys | {"trainer.default_local_dir": tmp_path / "async"})
    train(
        keys
        | {"algorithm.rollout_correction.rollout_is": "token", "trainer.default_local_dir": tmp_path / "sync"}
    )
    assert policies(tmp_path / "async", 3) and policies(tmp_path / "async", 3) == policies(
        tmp_path / "sync", 3
    )
    assert without_ledger(tmp_path / "async") == without_ledger(tmp_path / "sync")
    drawn = [line["train/filter_groups/tasks_drawn"] for line in steps_of(tmp_path / "async")]
    assert max(drawn) > 2
    assert sum(line["fully_async/count/rejected"] > 0 for line in steps_of(tmp_path / "async")) > 0


def test_a_step_whose_groups_all_fail_ends_the_run(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import my_flow_package

    monkeypatch.setattr(my_flow_package.MyWorld, "act", lambda *args: 1 / 0)
    with pytest.raises(NoSamplesError, match="step 1: no episode has a sample to train on"):
        train(
            STALE
            | {"trainer.test_freq": 0, "trainer.val_before_train": False, "rollout.max_failure_rate": 1.0}
        )


STALE = ASYNC | FOUR | {"async_training.staleness_threshold": 1.0, "trainer.total_training_steps": 6}


def staleness(run_dir: Path) -> list[float]:
    """The age of the oldest sample of every step."""
    return [
        max(line[f"agent/{agent}/staleness/max"] for agent in ("asker", "verifier_agent"))
        for line in steps_of(run_dir)
    ]


def steps_of(run_dir: Path) -> list[dict]:
    return [line for line in read_metrics(run_dir) if "actor/lr" in line]


def trained_episodes(run_dir: Path) -> list[str]:
    """Ids of all episodes that steps trained on, in their order."""
    files = sorted((run_dir / "trajectories").glob("train_*.jsonl"))
    return [json.loads(line)["traj_uid"] for file in files for line in file.read_text().splitlines()]


def check_counts(counts: dict[str, float]) -> None:
    """The ledger adds up; numbers under verl's names beside it are removed from it."""
    assert counts.pop("total_generated_samples") == sum(
        counts[name] for name in ("trained", "training", "complete")
    )
    assert counts.pop("staleness_samples") >= counts["complete"]
    assert 0 <= counts.pop("stale_samples_processed") <= counts["trained"]
    assert counts["dispatched"] == sum(counts.values()) - counts["dispatched"]


def check_ledger(run_dir: Path, steps: int, failing: bool = False, size: int = 12, lead: int = 1) -> None:
    """No episode is trained twice, every step has a whole batch, and groups add up; with `failing` there are
    more episodes.
    """
    trained = trained_episodes(run_dir)
    assert len(trained) == len(set(trained))
    assert len(trained) == steps * 2 * 3 or failing
    tasks = Counter(uid.split("/")[1] for uid in trained[::3])
    assert max(tasks.values()) <= math.ceil(steps_of(run_dir)[-1]["fully_async/count/dispatched"] / size), (
        "a task was drawn too often"
    )
    for line in steps_of(run_dir):
        counts = {
            name.rpartition("/")[2]: value
            for name, value in line.items()
            if name.startswith("fully_async/count/")
        }
        check_counts(counts)
        assert counts["trained"] == 2 * line["step"] and counts["training"] in range(0, 2 * lead + 1, 2)
        assert line["fully_async/trained_length_ratio"] == 1, "nothing was dropped"
        assert line["fully_async/partial/partial_ratio"] <= line["fully_async/partial/total_partial_num"]
        assert line["fully_async/partial/max_partial_span"] <= line["trainer/staleness"]
        idle = [share for name, share in line.items() if name.startswith("wg/") and name.endswith("/idle")]
        assert (
            all(0 < share < 1 for share in idle)
            if len(idle) == 1
            else all(0 <= share <= 1 for share in idle) and min(idle) < 1
        )


def test_samples_get_older_up_to_the_threshold_and_no_further(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The line of each step says how old they are, how many groups wait, and who was idle."""
    train(STALE | {"async_training.max_off_policy_threshold": 1, "trainer.logger": "[console,jsonl]"})
    assert len(staleness(tmp_path / "run")) == 6 and max(staleness(tmp_path / "run")) == 1
    assert steps_of(tmp_path / "run")[-1]["fully_async/count/stale_samples_processed"] > 0
    check_ledger(tmp_path / "run", 6)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")][1:]
    for line, metrics, age in zip(
        shown, steps_of(tmp_path / "run"), staleness(tmp_path / "run"), strict=True
    ):
        trainer, rollouter = (metrics[f"{part}/idle_ratio"] for part in ("trainer", "rollouter"))
        queue = metrics["fully_async/count/complete"]
        assert (
            f"  staleness {age:.1f}  queue {queue:.0f}  trainer idle {trainer:.0%}  rollouter idle "
            f"{rollouter:.0%}" in line
        )


def test_a_resumed_run_trains_on_every_group_once(train: Run, tmp_path: Path) -> None:
    """The checkpoint has complete groups and groups in progress, whose episodes are played again."""
    train(STALE)
    whole = tmp_path / "whole"
    (tmp_path / "run").rename(whole)
    saved = json.loads((whole / "checkpoints" / "global_step_3" / "groups" / "queue.json").read_text())
    assert {"running", "complete"} & {group["state"] for group in saved["queue"]["groups"]}
    resume = {
        "trainer.resume_mode": whole / "checkpoints" / "global_step_3",
    }
    train(STALE | resume)
    before = trained_episodes(whole)[: 3 * 6]
    after = trained_episodes(tmp_path / "run")
    assert sorted(before + after) == sorted(trained_episodes(whole))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data.train_batch_size": 3}, "data.train_batch_size=2, this run has 3"),
        (FRESH, "holds groups of older weights"),
        (
            {"async_training.max_off_policy_threshold": 2},
            "may become 4 steps old, but this run has .*_threshold=2 for asker; keep 4",
        ),
    ],
    ids=["batch", "staleness", "bound"],
)
def test_a_checkpoint_whose_groups_do_not_fit_the_run_is_refused(
    train: Run, tmp_path: Path, once: Callable[..., Path], change: dict[str, Any], said: str
) -> None:
    whole = once(STALE | {"trainer.test_freq": 0, "trainer.total_training_steps": 2})
    resume = {
        "trainer.resume_mode": whole / "checkpoints" / "global_step_2",
    }
    with pytest.raises(CheckpointError, match=said):
        train(STALE | {"trainer.total_training_steps": 3} | change | resume)


def test_a_program_that_exits_costs_its_episode_and_not_the_run(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import my_flow_package

    act = my_flow_package.MyWorld.act
    asked: list[str] = []

    def once_exits(world: Any, agent_id: str, action: str) -> Any:
        asked.append(action)
        if len(asked) == 3:
            raise SystemExit(3)
        return act(world, agent_id, action)

    monkeypatch.setattr(my_flow_package.MyWorld, "act", once_exits)
    few = {
        "trainer.test_freq": 0,
        "trainer.val_before_train": False,
        "trainer.total_training_steps": 2,
        "rollout.max_failure_rate": 0.5,
    }
    train(STALE | few)
    assert sum(line["episode/failed"] for line in steps_of(tmp_path / "run")) == 1


def test_without_staleness_resuming_equals_an_uninterrupted_run_to_the_last_bit(
    train: Run, tmp_path: Path
) -> None:
    train(FRESH | FOUR)
    whole = tmp_path / "whole"
    (tmp_path / "run").rename(whole)
    train(
        FRESH
        | FOUR
        | {
            "trainer.resume_mode": whole / "checkpoints" / "global_step_2",
        }
    )
    assert weights(tmp_path / "run", 4) == weights(whole, 4)


PATIENT = {"async_training.partial_rollout": False, "async_training.max_off_policy_threshold": 5}


def test_weights_of_several_steps_are_sent_at_once(train: Run, tmp_path: Path) -> None:
    train(STALE | {"async_training.trigger_parameter_sync_step": 3, "trainer.test_freq": 0} | PATIENT)
    sent = [any(name.endswith("sync_mb") for name in line) for line in steps_of(tmp_path / "run")]
    assert sent == [False, False, True] * 2
    assert max(staleness(tmp_path / "run")) >= 2
    check_ledger(tmp_path / "run", 6)


@pytest.mark.parametrize("way", ["eager", "adaptive"])
def test_weights_are_sent_sooner_than_at_the_trigger(train: Run, tmp_path: Path, way: str) -> None:
    sync = {
        "async_training.parameter_sync": way,
        "async_training.trigger_parameter_sync_step": 3,
        "trainer.test_freq": 0,
    }
    train(STALE | sync | PATIENT)
    sent = [
        step
        for step, line in enumerate(steps_of(tmp_path / "run"), 1)
        if any(name.endswith("sync_mb") for name in line)
    ]
    assert (
        max(after - before for before, after in pairwise([0, *sent])) <= (1 if way == "eager" else 3)
        and sent[-1] == 6
    )
    check_ledger(tmp_path / "run", 6)


@pytest.mark.parametrize(("level", "trigger"), [("L2", 3), ("L3", 1)])
def test_a_policy_is_sent_to_its_engine_before_the_next_one_is_updated(
    train: Run, tmp_path: Path, level: str, trigger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter is sent after every step, whatever the trigger; engines serve what was sent at once."""
    measure = report.step_metrics  # with lanes its spans may be those of two updates
    wrong = {f"wg/{group}/timing_s/update_actor": 9e9 for group in ("asker", "verifier_agent")}
    monkeypatch.setattr(
        report,
        "step_metrics",
        lambda *args, **rest: measure(*args, **rest) | (wrong if level == "L3" else {}),
    )
    keys = {
        "trainer.test_freq": 0,
        "trainer.total_training_steps": 2,
        "async_training.trigger_parameter_sync_step": trigger,
    }
    keys |= {"actor_rollout_ref.model.use_remove_padding": False}
    with compared_after_every_transfer() as sent:
        train(STALE | LEVELS[level].changes | keys | {"async_training.max_off_policy_threshold": 5})
    assert sorted(sent) == [(policy, step) for policy in ("asker", "verifier_agent") for step in (0, 1, 2)]
    spans = [json.loads(line) for line in (tmp_path / "run" / "timeline.jsonl").read_text().splitlines()]
    updates = [value for line in steps_of(tmp_path / "run") for name, value in line.items() if name in wrong]
    assert level == "L2" or (len(updates) == 4 and max(updates) < 100), (
        "each is the seconds of the update itself"
    )
    for step in (1, 2):
        calls = [
            span["call"]
            for span in spans
            if span["step"] == step and span["call"] in ("update_actor", "sync_weights")
        ]
        # adapters of one base are updated in one call
        together = ["update_actor", "sync_weights", "sync_weights"]
        assert calls == (together if level == "L2" else ["update_actor", "sync_weights"] * 2)
    check_ledger(tmp_path / "run", 2)


def test_a_step_that_waits_too_long_trains_on_fewer_tasks(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import my_flow_package

    reset = my_flow_package.MyWorld.reset
    monkeypatch.setattr(my_flow_package.MyWorld, "blocking", True)
    monkeypatch.setattr(
        my_flow_package.MyWorld,
        "reset",
        lambda *args: (time.sleep(2.0 * (args[1].prompt == "3?")), reset(*args))[1],
    )
    few = {"trainer.test_freq": 0, "trainer.val_before_train": False, "async_training.batch_timeout_s": 0.2}
    train(STALE | few | {"async_training.staleness_threshold": 0})
    trained = [line["fully_async/count/trained"] for line in steps_of(tmp_path / "run")]
    sizes = [after - before for before, after in pairwise([0, *trained])]
    assert len(sizes) == 6 and 1 in sizes and set(sizes) <= {1, 2}
    uids = trained_episodes(tmp_path / "run")
    assert len(uids) == len(set(uids)) == 3 * trained[-1]
    saved = json.loads(
        (tmp_path / "run" / "checkpoints" / "global_step_6" / "groups" / "queue.json").read_text()
    )
    drawn, left = (
        12 * saved["loader"]["epoch"] + saved["loader"]["position"],
        sum(len(draw["left"]) for _, draw in saved["draws"]),
    )
    assert drawn == saved["queue"]["dispatched"] + left, "a task that was drawn was never dispatched"


def test_what_cannot_be_is_said_before_a_worker_starts(refused: Callable[[dict[str, Any]], str]) -> None:
    assert "needs an off-policy correction" in refused({"async_training.mode": "fully_async"})
    too_low = refused(
        ASYNC | {"async_training.staleness_threshold": 2.5, "async_training.max_off_policy_threshold": 2}
    )
    assert "set it to 3 or more" in too_low
    assert "no such policy; trained policies are asker, verifier_agent" in refused(
        ASYNC | {"async_training.per_policy.judge.staleness_threshold": 1}
    )
    assert "async_training.mode=fully_async" in refused({"async_training.staleness_threshold": 0.5})
    hasty = ASYNC | {"async_training.staleness_threshold": 0}
    assert "set it to 1 or more" in refused(
        hasty | {"async_training.batch_timeout_s": 5, "async_training.max_off_policy_threshold": 0}
    )
    hasty = ASYNC | {"async_training.batch_timeout_s": 5}
    assert "least_batch_size=3 is more than data.train_batch_size=2" in refused(
        hasty | {"async_training.least_batch_size": 3}
    )
    assert "group_by=['policy_id'] compares tasks" in refused(hasty | {"algorithm.group_by": "[policy_id]"})
    assert "adv_estimator=reinforce_plus_plus scales" in refused(
        hasty | {"algorithm.adv_estimator": "reinforce_plus_plus"}
    )


@pytest.mark.parametrize(
    ("level", "where"), [("L3", "async_training.per_policy.verifier_agent"), ("mixed", "async_training")]
)
def test_each_policy_has_its_own_pace(train: Run, tmp_path: Path, level: str, where: str) -> None:
    """The Verifier's model is sent every other step; the Asker's every step, as its own pace is or since it
    is an adapter.
    """
    own = {"trigger_parameter_sync_step": 2, "max_off_policy_threshold": 3}
    keys = LEVELS[level].changes | {"trainer.test_freq": 0, "trainer.total_training_steps": 4}
    train(STALE | keys | {f"{where}.{name}": value for name, value in own.items()})
    steps = steps_of(tmp_path / "run")
    groups = {"asker": "tiny_qwen3_lora" if level == "mixed" else "asker", "verifier_agent": "verifier_agent"}
    sent = {agent: [f"wg/{group}/perf/sync_mb" in line for line in steps] for agent, group in groups.items()}
    assert sent == {"asker": [True] * 4, "verifier_agent": [False, True, False, True]}
    lead = {agent: [line[f"fully_async/lead/{agent}"] for line in steps] for agent in groups}
    assert lead == {"asker": [0] * 4, "verifier_agent": [1, 0, 1, 0]}
    check_ledger(tmp_path / "run", 4)


@pytest.mark.parametrize("lead", [0, 2])
def test_a_policy_is_ahead_of_a_slow_one_by_as_many_steps_as_it_may(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: int
) -> None:
    """The first update of the Verifier ends only after the Asker has ended the steps of its lead, and no
    later one has begun meanwhile.
    """
    update, ended, ahead = StepTrainer.update, list[tuple[str, int]](), threading.Event()

    def watched(trainer: StepTrainer, batch: DataProto, step: int, *rest: Any) -> dict[str, float]:
        policy = batch.non_tensor_batch["policy_id"][0]
        if (policy, step) == ("verifier_agent", 1):
            assert ahead.wait(60) and not time.sleep(0.3)
        result = update(trainer, batch, step, *rest)
        ended.append((policy, step))
        if (policy, step) == ("asker", 1 + lead):
            ahead.set()
        return result

    monkeypatch.setattr(StepTrainer, "update", watched)
    pace = {
        "async_training.max_lead": lead,
        "async_training.staleness_threshold": 3,
        "trainer.test_freq": 0,
        "trainer.save_freq": -1,
    }
    train(STALE | LEVELS["L3"].changes | pace)
    assert ended[: lead + 2] == [*(("asker", step) for step in range(1, lead + 2)), ("verifier_agent", 1)]
    assert sorted(ended) == [(policy, step) for policy in ("asker", "verifier_agent") for step in range(1, 7)]
    check_ledger(tmp_path / "run", 6, lead=lead)


def test_an_engine_that_dies_while_it_samples_and_gets_weights_is_replaced_once(
    train: Run, tmp_path: Path, mortal: None
) -> None:
    """The engine of one policy dies with the weights of step 2: nothing reaches it any more, and no group is
    lost.
    """
    train(STALE | {"trainer.test_freq": 0, "trainer.total_training_steps": 4})
    assert [line["training/engine_restarts"] for line in steps_of(tmp_path / "run")] == [0, 1, 1, 1]
    assert steps_of(tmp_path / "run")[-1]["fully_async/count/failed"] == 0
    check_ledger(tmp_path / "run", 4)


def test_a_task_that_always_fails_is_named_and_replaced_by_another_one_and_set_aside(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three epochs of six tasks: the task fails in the first one and, after a resume, in the second one."""
    import my_flow_package

    reset = my_flow_package.MyWorld.reset

    def broken(world: Any, task: Any) -> Any:
        if task.prompt == "3?":
            raise KeyError("no such world")
        return reset(world, task)

    monkeypatch.setattr(my_flow_package.MyWorld, "reset", broken)
    few = {
        "trainer.test_freq": 0,
        "trainer.val_before_train": False,
        "trainer.save_hf_model": False,
        "data.shuffle": False,
    }
    few |= {
        "data.train_max_samples": 6,
        "rollout.max_failure_rate": 0.5,
        "async_training.max_task_failures": 2,
    }
    train(STALE | few | {"trainer.total_training_steps": 2})
    assert steps_of(tmp_path / "run")[-1]["fully_async/count/failed"] == 1 and "set aside" not in caplog.text
    train(STALE | few | {"trainer.total_training_steps": 8})
    check_ledger(tmp_path / "run", 8, failing=True, size=5)
    said = [
        record.getMessage()
        for record in caplog.records
        if "left out: KeyError: 'no such world'" in record.getMessage()
    ]
    assert len(said) == 6 and all("/toy:3/" in message for message in said)
    named = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(named) == 1 and named[0].startswith(
        "task toy:3 is set aside: its last 2 groups failed, the last one with KeyError"
    )
    last = steps_of(tmp_path / "run")[-1]
    assert last["fully_async/count/failed"] == 2 and last["fully_async/count/dispatched"] > 2 * 6
    assert sum(line["episode/failed"] for line in steps_of(tmp_path / "run")) == 6


@pytest.mark.ray
def test_ray_trains_the_same_groups(train: Run, tmp_path: Path) -> None:
    """Two policies, each of which trains as soon as it can: a lane of calls to its own worker group.

    Without staleness the weights are those of synchronous training by the local controller.
    """
    keys = {"trainer.val_before_train": False, "trainer.save_freq": 4, "trainer.test_freq": 4} | LEVELS[
        "L3"
    ].changes
    two = keys | {"trainer.total_training_steps": 2, "algorithm.rollout_correction.rollout_is": "token"}
    train(two | {"trainer.default_local_dir": tmp_path / "sync"})
    train(FRESH | two | {"trainer.controller": "ray", "trainer.default_local_dir": tmp_path / "fresh"})
    assert policies(tmp_path / "sync", 2) and policies(tmp_path / "fresh", 2) == policies(
        tmp_path / "sync", 2
    )
    train(STALE | keys | {"trainer.controller": "ray", "trainer.total_training_steps": 4})
    check_ledger(tmp_path / "run", 4)
    assert max(staleness(tmp_path / "run")) == 1


def test_no_episode_is_lost_or_trained_twice_when_runs_are_killed_at_random_moments(
    overrides: Callable[..., list[str]], forked_python: str, user_package: Path, tmp_path: Path
) -> None:
    """A run that SIGTERM and SIGKILL end at moments that no test chooses, and that goes on from its last
    checkpoint.

    One moment of five is counted from the start of the process, the others from the end of one of the first
    steps that it trains.
    """
    steps = 4 * KILLS
    changes = STALE | {
        "trainer.total_training_steps": steps,
        "trainer.max_ckpt_to_keep": 1,
        "trainer.save_hf_model": False,
    }
    changes |= {"trainer.val_before_train": False, "trainer.test_freq": 0, "trainer.save_freq": 2} | LEVELS[
        "L3"
    ].changes
    command = [forked_python, "-m", "verl.trainer.main_ppo", *overrides(changes)]
    environment = os.environ | {"PYTHONPATH": f"{user_package}:{ROOT}"}
    moments, killed, in_training, reached = random.Random(0), 0, 0, {0}
    timeline = tmp_path / "run" / "timeline.jsonl"  # a resumed run appends to it

    def updates() -> int:
        return timeline.read_text().count('"update_actor"') if timeline.is_file() else 0

    while True:
        begun, late = updates(), killed % 5 > 0 and killed < KILLS
        until = begun + 2 * moments.randint(1, 2)
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as run:
            while late and run.poll() is None and updates() < until:
                time.sleep(0.02)
            in_s = moments.uniform(0.0, 0.2) if late else moments.uniform(0.2, 1.5)
            try:
                _, said = run.communicate(timeout=in_s if killed < KILLS else 240)
                break
            except subprocess.TimeoutExpired:
                in_training += updates() > begun
                run.send_signal(signal.SIGKILL if killed % 2 else signal.SIGTERM)
                killed += 1
        reached.add(
            max((int(path.read_text()) for path in tmp_path.glob("run/checkpoints/latest*")), default=0)
        )
    assert run.returncode == 0, said
    assert killed == KILLS and len(reached) > KILLS // 4, (
        f"{killed} kills after steps {reached}: the run is over too soon"
    )
    assert 2 * in_training >= KILLS, (
        f"only {in_training} of {KILLS} kills came after a step that the process had trained"
    )
    check_ledger(tmp_path / "run", steps)
    assert max(staleness(tmp_path / "run")) == 1

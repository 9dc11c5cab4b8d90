"""`async_training.mode=fully_async` with samples of older weights, together with everything else that a run
can be.

Every run is stopped by a signal in an update and goes on from its checkpoint, so that it also resumes with
groups in progress.
"""

import functools
import json
import math
import signal
import threading
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system.environment import Observation, Outcome
from agent_system.record import Sample
from agent_system.rollout.episode import Episode
from tests.e2e import test_gateway, test_outside_worlds, test_untrained
from tests.e2e.conftest import Run, read_metrics
from tests.e2e.teams import LEVELS, Level, changes_of, check_versions, policies
from tests.e2e.test_async_faults import FEW, QUICK
from tests.e2e.test_fully_async import check_counts
from tests.e2e.test_one_step_off import ONE_STEP_OFF, TREE
from tests.waiting import send_signal
from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX, GenerateRequest
from verl.trainer.ppo.asynchronous.group_queue import Group, GroupQueue, GroupState
from verl.trainer.ppo.asynchronous.loop import AsynchronousLoop
from verl.trainer.ppo.asynchronous.stream import GroupStream
from verl.trainer.ppo.collect.step_samples import NoSamplesError
from verl.trainer.ppo.train_step import StepTrainer
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.rollout.server import RolloutWorker

pytestmark = pytest.mark.spread
gateway, server, mumbles = test_gateway.gateway, test_untrained.server, test_outside_worlds.mumbles
STEPS, STOPPED = 5, 2
STALE = QUICK | {
    "trainer.total_training_steps": STEPS,
    "trainer.save_freq": -1,
    "async_training.max_off_policy_threshold": 1,
}
REMAX = {"algorithm.adv_estimator": "remax"}
GAE = {"algorithm.adv_estimator": "gae"}
FILTER = {
    "algorithm.filter_groups.metric": "seq_reward",
    "env.rollout.n": 2,
}
COMMITTED = TREE | {
    "rollout.tree.returns": "committed",
    "algorithm.group_by": "[uid,agent_id]",
    "reward.team_scope": "episode",
}
CORRECTION = "algorithm.rollout_correction"
OWN_PACE = {"trigger_parameter_sync_step": 2, "max_off_policy_threshold": 3}
PACES = {f"async_training.per_policy.verifier_agent.{name}": value for name, value in OWN_PACE.items()}
WORKERS = {"env.workers.num": 1, "env.workers.memory_gib": 4}
LAKE = {
    "agent.agent_ids": "[Player]", "env.params.env_id": "FrozenLake-v1", "env.params.api": "gymnasium",
    "env.max_steps": 3,
    "env.params.kwargs.render_mode": "ansi",
}  # fmt: skip
# Overrides, and the fixtures whose overrides come with them.
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "tree, adapters, an engine that dies": (TREE | LEVELS["L2"].changes, ("mortal",)),
    "dynamic sampling": (FILTER | LEVELS["L1"].changes, ("zero_or_one",)),
    "remax, failures": (REMAX | LEVELS["L1"].changes, ("failures",)),
    "paces, a model and an adapter": (LEVELS["mixed"].changes | PACES, ()),
    "critics, adapters": (LEVELS["L2_critic"].changes | {"actor_rollout_ref.actor.ppo_epochs": 2}, ()),
    "frozen, held": (LEVELS["frozen_base"].changes | {"async_training.partial_rollout": False}, ()),
    "api": (LEVELS["L3"].changes, ("api",)),
    "pettingzoo": ({}, ("mumbles",)),
    "gateway": (LEVELS["L3"].changes, ("gateway",)),
}
# With `--all-levels`.
OTHERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    **{level: (team.changes, ()) for level, team in LEVELS.items()},
    "held, adapters of one base": (
        LEVELS["L2"].changes | PACES | {"async_training.partial_rollout": False},
        (),
    ),
    "held, an engine that dies": (
        LEVELS["L2"].changes | {"async_training.partial_rollout": False},
        ("mortal",),
    ),
    "a model per agent, paces": (LEVELS["L3"].changes | PACES, ()),
    "heterogeneous, paces": (LEVELS["heterogeneous_lora"].changes | PACES, ()),
    "eager": (LEVELS["mixed"].changes | PACES | {"async_training.parameter_sync": "eager"}, ()),
    "adaptive": (LEVELS["mixed"].changes | PACES | {"async_training.parameter_sync": "adaptive"}, ()),
    "tree": (TREE | LEVELS["L3"].changes, ()),
    "tree, one agent": (TREE | LEVELS["L0"].changes, ()),
    "tree, failures": (TREE | LEVELS["L1"].changes | {"env.rollout.n": 2}, ("failures",)),
    "tree, dynamic sampling": (
        TREE | FILTER | {"rollout.tree.k": 2} | LEVELS["L0"].changes,
        ("zero_or_one",),
    ),
    "tree, remax": (TREE | REMAX, ()),
    "tree, committed, remax": (COMMITTED | REMAX, ("failures",)),
    "tree, committed, critics": (COMMITTED | GAE | LEVELS["L2"].changes, ()),
    "dynamic sampling, failures": (FILTER | LEVELS["L3"].changes, ("zero_or_one", "failures")),
    "dynamic sampling, held": (
        FILTER | LEVELS["L2"].changes | {"async_training.partial_rollout": False},
        ("zero_or_one",),
    ),
    "dynamic sampling, an engine that dies": (FILTER | LEVELS["L1"].changes, ("zero_or_one", "mortal")),
    "remax, adapters": (REMAX | LEVELS["L2"].changes, ("failures", "mortal")),
    "remax, a model per agent": (REMAX | LEVELS["L3"].changes | PACES, ()),
    "critics": (GAE | LEVELS["L3"].changes, ()),
    "critics, warm-up": (GAE | LEVELS["L1"].changes | {"trainer.critic_warmup": 2}, ()),
    "critics, joint view": (GAE | {"critic.joint_prompt_length": 128}, ()),
    "bypass": ({f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.rollout_is": "null"}, ()),
    "rejection": (
        {f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": "0.5_2.0"},
        (),
    ),
    "m2po": ({f"{CORRECTION}.m2po_tau": 0.04, f"{CORRECTION}.rollout_is": "null"}, ()),
    "api, tree": (TREE | LEVELS["L3"].changes, ("api",)),
    "api, remax": (REMAX | LEVELS["L3"].changes, ("api", "failures")),
    "gymnasium": (LAKE, ("mumbles",)),
    "pettingzoo, tree": (
        TREE | {"env.env_name": "farama", "algorithm.group_by": "[traj_uid,agent_id,turn,call]"},
        ("mumbles",),
    ),
    "gateway, adapters": (LEVELS["L2"].changes, ("gateway", "failures")),
    "gateway, dynamic sampling": (FILTER | LEVELS["L1"].changes, ("gateway", "zero_or_one")),
    "workers": (LEVELS["L1"].changes | WORKERS, ()),
    "workers, tree, adapters": (TREE | LEVELS["L2"].changes | WORKERS, ()),
    "workers, pettingzoo": (WORKERS, ("mumbles",)),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        others = OTHERS if metafunc.config.getoption("--all-levels") else {}
        metafunc.parametrize("case", [*CASES, *others])


@pytest.fixture
def api(server: Any) -> dict[str, Any]:
    """The Verifier is behind a server."""
    return test_untrained.api(server) | {
        "agent.model_ids": "[null,null]",
        "agent.specialization": "[full,null]",
    }


@pytest.fixture
def zero_or_one(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Rewards of 0 or 1: many groups have no signal, and one of them in each attempt fails."""
    import my_flow_package

    act = my_flow_package.MyWorld.act
    monkeypatch.setattr(
        my_flow_package.MyWorld, "act", lambda *args: Outcome(local=float(act(*args).local > 0.5))
    )
    return {}


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of the groups every fourth fails, of the other episodes every fourth and of those that are greedy every
    second.
    """
    run = Episode.run

    async def fails(episode: Episode) -> None:
        spec = episode.spec
        whole = zlib.crc32(spec.uid.removesuffix(GREEDY_SUFFIX).encode()) % 4 == 0
        if whole or zlib.crc32(spec.traj_uid.encode()) % (2 if spec.greedy else 4) == 0:
            raise KeyError("no such world")
        await run(episode)

    monkeypatch.setattr(Episode, "run", fails)
    return {"rollout.max_failure_rate": 1.0}


def stopped(train: Run, keys: Mapping[str, Any]) -> None:
    """Train until a signal in the update after `STOPPED` steps."""
    update, sent = StepTrainer.update, threading.Event()

    def signalled(trainer: StepTrainer, batch: DataProto, step: int, *args: Any) -> Any:
        if step - 1 == STOPPED and not sent.is_set():  # in the lane that is first
            sent.set()
            send_signal(signal.SIGTERM)
        return update(trainer, batch, step, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepTrainer, "update", signalled)
        assert train(keys).progress.global_step == STOPPED + 1


def check_batches(batches: list[DataProto], bounds: Mapping[str, int]) -> int:
    """No group is trained twice, none is too old, weights of the correction are finite; returns the age of
    the oldest sample.
    """
    trained, ages = set[str](), set[int]()
    for version, batch in enumerate(batches):
        columns = batch.non_tensor_batch
        uids = set(columns["uid"])
        assert uids and not uids & trained
        trained |= uids
        for policy, oldest in zip(columns["policy_id"], columns["oldest_version"], strict=True):
            assert 0 <= version - oldest <= bounds.get(policy, 1)
            ages.add(version - int(oldest))
        for name in ("advantages", "old_log_probs", "rollout_log_probs", "rollout_is_weights"):
            assert name not in batch.batch or batch.batch[name].isfinite().all(), name
    return max(ages)


def steps_of(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir) if "fully_async/count/trained" in line]


def check_ledger(run_dir: Path, fewer: bool = False) -> dict[str, float]:
    """All metrics are finite and groups add up in every step; returns the last ledger. With `fewer` tasks may
    be used up by failures.
    """
    lines, counts = steps_of(run_dir), dict[str, float]()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert all(math.isfinite(value) for value in line.values()), line
        counts = {
            name.rpartition("/")[2]: value
            for name, value in line.items()
            if name.startswith("fully_async/count/")
        }
        check_counts(counts)
        assert counts["trained"] == 2 * line["step"] or (
            fewer and line["step"] < counts["trained"] < 2 * line["step"]
        )
    return counts


def episodes(run_dir: Path, of: str = "train_*") -> list[dict[str, Any]]:
    """The episodes of training steps or of one validation."""
    files = (run_dir / "trajectories").glob(f"{of}.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def check_groups(
    run_dir: Path, batches: list[DataProto], n: int, greedy: bool, fewer: bool
) -> dict[str, float]:
    """Every group that was dispatched ends once, with all of its episodes; returns the last ledger."""
    counts, names = check_ledger(run_dir, fewer), [episode["traj_uid"] for episode in episodes(run_dir)]
    assert counts["running"] == counts["complete"] == 0 and len(names) == len(set(names))
    played = Counter(name.rpartition("#")[0] for name in names)
    groups = {uid for uid in played if not uid.endswith(GREEDY_SUFFIX)}
    assert len(groups) == counts["dispatched"] and all(played[uid] == n for uid in groups)
    assert {uid + GREEDY_SUFFIX: 1 for uid in groups if greedy} == {
        uid: played[uid] for uid in set(played) - groups
    }
    assert {uid for batch in batches for uid in batch.non_tensor_batch["uid"]} <= groups
    return counts


def test_old_samples_train_every_team_and_no_group_is_lost_or_trained_twice(
    train: Run,
    tmp_path: Path,
    scored: list[DataProto],
    request: pytest.FixtureRequest,
    tiny_model_dir: Path,
    tiny_llama_dir: Path,
    case: str,
) -> None:
    changes, needs = (CASES | OTHERS)[case]
    changes = changes_of(Level(changes, {}), tiny_model_dir, tiny_llama_dir)
    keys: dict[str, Any] = functools.reduce(
        lambda keys, need: keys | request.getfixturevalue(need), needs, {}
    )
    keys = keys | STALE | changes
    stopped(train, keys)
    saved = json.loads(
        (
            tmp_path / "run" / "checkpoints" / f"global_step_{STOPPED + 1}" / "groups" / "queue.json"
        ).read_text()
    )["queue"]
    # so many groups fail or are rejected that no task may be drawn for a step
    fewer = {"zero_or_one", "failures"} <= set(needs)
    assert {"running", "complete"} & {group["state"] for group in saved["groups"]} or fewer
    train(keys)
    assert check_batches(scored, {"verifier_agent": 3} if changes.items() >= PACES.items() else {}) >= 1
    tree = keys.get("rollout.sampling") == "tree" and "rollout.tree.returns" not in keys
    greedy = keys.get("algorithm.adv_estimator") == "remax" and not tree
    last = check_groups(tmp_path / "run", scored, int(keys.get("env.rollout.n", 3)), greedy, fewer)
    assert ("zero_or_one" in needs) <= last["rejected"]
    assert max(line["training/engine_restarts"] for line in steps_of(tmp_path / "run")) == ("mortal" in needs)


# Overrides and fixtures as in `CASES`, and the policies that are trained.
NEXT_STEP: dict[str, tuple[dict[str, Any], tuple[str, ...], set[str]]] = {
    "critics, a model and an adapter": (GAE | LEVELS["mixed"].changes, (), {"asker", "verifier_agent"}),
    "api": (LEVELS["L3"].changes, ("api",), {"asker"}),
    "pettingzoo, frozen": ({"agent.frozen": "[player_2]"}, ("mumbles",), {"player_1"}),
}


@pytest.mark.parametrize("team", NEXT_STEP)
def test_one_step_off_trains_teams_on_samples_of_the_step_before(
    train: Run, tmp_path: Path, request: pytest.FixtureRequest, team: str
) -> None:
    changes, needs, trained = NEXT_STEP[team]
    keys: dict[str, Any] = functools.reduce(
        lambda keys, need: keys | request.getfixturevalue(need), needs, {}
    )
    train(
        keys
        | ONE_STEP_OFF
        | FEW
        | {"trainer.total_training_steps": 2, "trainer.save_freq": 1, "trainer.save_hf_model": True}
        | changes
    )
    lines = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    ages = {
        name: value
        for step, line in enumerate(lines)
        for name, value in line.items()
        if "/staleness/" in name and value != step
    }
    assert len(lines) == 2 and not ages, "from the second step on samples are one step old"
    assert {name.split("/")[1] for name in lines[1] if name.endswith("/staleness/mean")} == trained
    before, after = (policies(tmp_path / "run", step) for step in (1, 2))
    assert set(after) == trained and all(before[policy] != after[policy] for policy in trained)
    norms = [
        value
        for line in lines
        for name, value in line.items()
        if name.startswith("wg/") and name.endswith("/grad_norm")
    ]
    assert len(norms) == 2 * len(trained) * (2 if changes.items() >= GAE.items() else 1) and min(norms) > 0


def test_a_step_whose_tasks_another_step_used_up_ends_the_run_in_a_line(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of step 1 has no signal, so step 1 trains on that of step 2, and no other one may be drawn."""
    import my_flow_package

    move, act, rejected, first = (
        GroupQueue.move,
        my_flow_package.MyWorld.act,
        threading.Event(),
        list[str](),
    )

    def reset(world: Any, task: Any) -> Observation:
        world.first = task.prompt == (first or [task.prompt])[0]
        first.append(task.prompt)
        return Observation(task.prompt)

    def after_it(world: Any, *args: Any) -> Outcome:
        return Outcome(local=0.0) if world.first or not rejected.wait(60) else act(world, *args)

    def moved(queue: GroupQueue, state: GroupState, *groups: Group) -> None:
        move(queue, state, *groups)
        if state == "rejected" and groups:
            rejected.set()

    monkeypatch.setattr(GroupQueue, "move", moved)
    for name, method in {"reset": reset, "act": after_it, "blocking": True}.items():
        monkeypatch.setattr(my_flow_package.MyWorld, name, method)
    keys = (
        STALE
        | FILTER
        | LEVELS["L0"].changes
        | {"data.train_batch_size": 1, "algorithm.filter_groups.max_num_gen_batches": 1}
    )
    with pytest.raises(
        NoSamplesError,
        match=r"^step 2: no more tasks may be drawn for it, .* raise algorithm.filter_groups.max_num_gen",
    ):
        train(keys)


# Two episodes at a time with longer replies: updates and validations find replies in progress, and episodes
# that wait for their turn.
BUSY = STALE | LEVELS["L1"].changes | {"rollout.max_concurrent_episodes": 2, "data.max_response_length": 48}


@pytest.mark.parametrize("partial", [True, False])
def test_replies_have_tokens_of_several_versions_only_with_partial_rollout(
    train: Run,
    tmp_path: Path,
    scored: list[DataProto],
    samples: list[Sample],
    tiny_model_dir: Path,
    partial: bool,
) -> None:
    """The log-prob of each token is that of the weights whose version it has."""
    saved = (
        {"trainer.save_freq": 1, "trainer.save_hf_model": True, "trainer.max_ckpt_to_keep": 0}
        if partial
        else {}
    )
    train(
        BUSY
        | saved
        | {"async_training.partial_rollout": partial, "async_training.max_off_policy_threshold": 2}
    )
    if partial:
        check_versions(tmp_path / "run", tiny_model_dir, samples, 1e-5)
    columns = [batch.non_tensor_batch for batch in scored]
    mixed = [int((column["version"] != column["oldest_version"]).sum()) for column in columns]
    assert len(mixed) == STEPS and (sum(mixed) > 0) == partial
    assert all((column["mean_version"] == column["version"]).all() for column in columns if not partial)
    assert check_batches(scored, {"tiny_qwen3": 2}) >= 1


def test_groups_that_are_too_old_are_dropped_and_the_run_goes_on(
    train: Run, tmp_path: Path, scored: list[DataProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two groups end after step 2, whose deadline was step 1: no step trains on them."""
    import my_flow_package

    end_step, reset, late, over = (
        AsynchronousLoop._end_step,
        my_flow_package.MyWorld.reset,
        set[str](),
        threading.Event(),
    )

    def slow(world: Any, task: Any) -> Any:
        if len(late) < 2:
            late.add(task.prompt)
        assert task.prompt not in late or over.wait(60)
        return reset(world, task)

    def watched(loop: AsynchronousLoop) -> Any:
        metrics = end_step(loop)
        if loop.progress.global_step == 2:
            over.set()
        return metrics

    monkeypatch.setattr(my_flow_package.MyWorld, "reset", slow)
    monkeypatch.setattr(my_flow_package.MyWorld, "blocking", True)
    monkeypatch.setattr(AsynchronousLoop, "_end_step", watched)
    drop = {"async_training.max_off_policy_strategy": "drop", "async_training.max_off_policy_threshold": 0}
    stopped(train, STALE | drop)
    train(STALE | drop)
    assert check_batches(scored, {"asker": 0, "verifier_agent": 0}) == 0
    last, dropped = (
        check_ledger(tmp_path / "run"),
        [line["fully_async/count/dropped_stale_samples"] for line in steps_of(tmp_path / "run")],
    )
    assert dropped[:2] == [0, 0] and dropped[2] >= 2
    played = Counter(episode["uid"] for episode in episodes(tmp_path / "run"))
    assert set(played.values()) == {3} and len(played) == last["trained"] + last["dropped_stale_samples"]


def test_no_training_episode_begins_and_no_version_changes_during_a_validation(
    train: Run, tmp_path: Path, tasks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the validation come before those of the training episodes that go on."""
    run, load, validate, events = (
        Episode.run,
        RolloutWorker.update_weights,
        GroupStream.set_validating,
        list[str](),
    )
    generate, priorities = HFEngine.generate, {"val": set[int](), "step": set[int]()}

    async def generated(engine: HFEngine, request: GenerateRequest) -> Any:
        priorities["val" if request.request_id.startswith("val") else "step"].add(request.priority)
        return await generate(engine, request)

    async def begun(episode: Episode) -> None:
        events.append("validation episode" if episode.spec.validate else "episode")
        await run(episode)

    @functools.wraps(load)
    async def loaded(*args: Any, **kwargs: Any) -> Any:
        events.append("weights")
        return await load(*args, **kwargs)

    def validating(source: GroupStream, begins: bool) -> None:
        if not begins:
            events.append("end")
        validate(source, begins)
        if begins:
            events.append("begin")

    monkeypatch.setattr(Episode, "run", begun)
    monkeypatch.setattr(RolloutWorker, "update_weights", loaded)
    monkeypatch.setattr(GroupStream, "set_validating", validating)
    monkeypatch.setattr(HFEngine, "generate", generated)
    pace = {"async_training.trigger_parameter_sync_step": 3, "async_training.max_off_policy_threshold": 5}
    train(BUSY | pace | {"data.val_files": tasks, "trainer.test_freq": 2, "data.val_max_samples": 6})
    inside = [part.partition(",end")[0] for part in ",".join(events).split("begin,")[1:]]
    assert len(inside) == 3 and all(set(found.split(",")) == {"validation episode"} for found in inside)
    assert priorities == {"val": {-1}, "step": {0}}
    for step in (2, 4, 5):
        found = episodes(tmp_path / "run", f"val_{step:06d}")
        assert {call["version"] for episode in found for call in episode["calls"]} == {step}

"""Whole runs: a user's own workflow, exact resumption, one result on both controllers."""

import itertools
import json
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent_system.env_workers.ray_actor import RayWorker
from agent_system.launch import checks
from tests.devices import FP32, GPU, on
from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import KL
from verl.protocol.template_time import TEMPLATE_TIME
from verl.trainer.config.spec import ConfigError
from verl.trainer.ppo.timeline import Timeline
from verl.workers.policy_worker import PolicyWorker

# What worker groups do that each has in every step.
AT_THE_SAME_TIME = ("compute_log_prob", "compute_ref_log_prob", "update_actor", "sync_weights")
EVERY_STEP = {"trainer.save_freq": 1}
CLOCK = ("timing", "perf/time_per_step", "perf/throughput", "memory", "idle")


def without_clock(lines: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if not any(word in k for word in CLOCK)} for line in lines]


def test_a_users_package_trains_and_leaves_what_the_docs_promise(once: Callable[..., Path]) -> None:
    run_dir = once(EVERY_STEP)
    steps = [line for line in read_metrics(run_dir) if line["step"] > 0]
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        assert all(math.isfinite(v) for v in line.values())
        for wg in ("asker", "verifier_agent"):
            assert line[f"wg/{wg}/actor/grad_norm"] > 0
            assert line[f"agent/{wg}/calls"] == 6
            for phase in ("gen", "update_actor", "sync_weights"):
                assert line[f"wg/{wg}/timing_s/{phase}"] > 0
            assert line[f"wg/{wg}/global_seqlen/mean"] > 0
        shares = [line[f"agent/{wg}/truncated_replies"] for wg in ("asker", "verifier_agent")]
        assert line["response_length/clip_ratio"] == pytest.approx(sum(shares) / 2)
        assert line["prompt_length/clip_ratio"] == 0.0
        assert (
            line["training/rollout_probs_diff_std"] < 1e-5
            and line["training/rollout_actor_probs_pearson_corr"] > 0.99
        )
        assert 0 < line["rollout_corr/log_prob_diff_max"] < 1e-5, (
            "log-probs of the engine are those of the trainer"
        )
    assert (run_dir / "config.yaml").is_file()
    episodes = [
        json.loads(line)
        for line in (run_dir / "trajectories" / "train_000001.jsonl").read_text().splitlines()
    ]
    assert len(episodes) == 6
    assert {"prompt", "reply", "reward", "local_reward", "team_reward"} <= episodes[0]["calls"][0].keys()
    checkpoint = run_dir / "checkpoints" / "global_step_2"
    assert sorted(p.name for p in checkpoint.iterdir()) == [
        "actor",
        "config.yaml",
        "data.pt",
        "plan.json",
        "trainer_state.json",
    ]
    plan = json.loads((checkpoint / "plan.json").read_text())
    assert [(agent["agent_id"], agent["policy_id"], agent["estimator"]) for agent in plan["agents"]] == [
        ("Asker", "asker", "grpo"),
        ("Verifier Agent", "verifier_agent", "grpo"),
    ]
    first, second = weights(run_dir, 1), weights(run_dir, 2)
    assert set(second) == {"asker", "verifier_agent"}
    assert all(first[wg] != second[wg] for wg in second)
    assert second["asker"] != second["verifier_agent"]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = checkpoint / "actor" / "asker" / "huggingface"
    assert AutoTokenizer.from_pretrained(folder)("a").input_ids
    AutoModelForCausalLM.from_pretrained(folder)


def test_resuming_after_step_3_equals_an_uninterrupted_run_to_the_last_bit(
    train: Run, tmp_path: Path
) -> None:
    """Several mini-batches, the KL to the reference and a schedule are all part of the state."""
    schedule = {
        "trainer.total_training_steps": 5,
        "trainer.save_freq": 3,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine",
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "algorithm.kl_ctrl.target_kl": 0.1,
    }
    train(schedule)
    whole = tmp_path / "run"
    again = {
        "trainer.default_local_dir": tmp_path / "resumed",
        "trainer.resume_mode": whole / "checkpoints" / "global_step_3",
    }
    train(schedule | again)
    assert weights(tmp_path / "resumed", 5) == weights(whole, 5)
    learning = [line for line in read_metrics(whole) if "actor/lr" in line]
    assert all(
        line["training/rollout_probs_diff_max"] < 1e-5 and line["rollout_corr/log_prob_diff_max"] < 1e-5
        for line in learning
    )
    tail = [line for line in without_clock(read_metrics(whole)) if line["step"] > 3]
    assert without_clock(read_metrics(tmp_path / "resumed")) == tail


def test_auto_resume_continues_the_same_experiment_and_a_finished_one_does_nothing(
    train: Run, tmp_path: Path
) -> None:
    train({"trainer.total_training_steps": 1})
    assert train({"trainer.total_training_steps": 2}).progress.global_step == 2
    before = weights(tmp_path / "run", 2)
    train({"trainer.total_training_steps": 2})
    assert weights(tmp_path / "run", 2) == before
    assert [line["step"] for line in read_metrics(tmp_path / "run") if "actor/lr" in line] == [1, 2]


def test_a_budget_of_generated_tokens_ends_the_run_and_survives_a_resume(train: Run, tmp_path: Path) -> None:
    train({"trainer.total_training_steps": 1})
    (spent,) = [
        line["training/generated_tokens"] for line in read_metrics(tmp_path / "run") if "actor/lr" in line
    ]
    assert spent > 0
    longer = {"trainer.total_training_steps": 9, "trainer.test_freq": -1}
    trainer = train(longer | {"trainer.total_generated_tokens": int(spent) + 1})
    assert (trainer.progress.global_step, trainer.progress.generated_tokens > spent) == (2, True)
    assert (tmp_path / "run" / "checkpoints" / "global_step_2").is_dir()
    assert train(longer | {"trainer.total_generated_tokens": int(spent) + 1}).progress.global_step == 2


@pytest.mark.ray
def test_the_local_backend_equals_the_ray_backend(
    train: Run, once: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Ray the environments are in actors, too."""
    local, whole, cpus = once(EVERY_STEP), RayWorker.__init__, []

    def noted(worker: RayWorker, source: bytes, reserved: float, environment: Mapping[str, str]) -> None:
        cpus.append(reserved)
        whole(worker, source, reserved, environment)

    monkeypatch.setattr(RayWorker, "__init__", noted)
    workers = {"env.workers.num": 2, "env.workers.cpus": 0.25}
    train(EVERY_STEP | workers | {"trainer.controller": "ray", "trainer.default_local_dir": tmp_path / "ray"})
    assert cpus == [0.25, 0.25]
    assert weights(tmp_path / "ray", 2) == weights(local, 2)
    assert without_clock(read_metrics(tmp_path / "ray")) == without_clock(read_metrics(local))


@pytest.mark.ray
def test_environment_workers_without_free_cpus_are_refused_before_a_model_loads(
    train: Run, refused: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"trainer.controller": "ray", "env.workers.num": 2, "env.workers.cpus": 2}
    refusal = "env.workers.num=2 and env.workers.cpus=2 reserve 4 CPUs, but the Ray cluster has 3.99 free; lower one of them"
    assert refusal in refused(keys), "a cluster that runs"
    with monkeypatch.context() as before_the_start:
        before_the_start.setattr("ray.is_initialized", lambda: False)
        assert refusal in refused(keys | {"ray_init.num_cpus": 4}), "a private one that is not started yet"
    monkeypatch.setattr("agent_system.launch.env_workers.check_cpus", lambda *of_a_cluster_to_join: None)
    monkeypatch.setattr(
        "agent_system.launch.train.TeamWorkers", lambda *_: pytest.fail("a model would have been loaded")
    )
    with pytest.raises(ConfigError, match=refusal):
        train(keys)


def test_weights_that_travel_one_by_one_are_those_that_travel_together(
    train: Run, once: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets are of a megabyte and more, and a tiny model fits into one."""
    together = once(EVERY_STEP)
    whole, sent = PolicyWorker._weight_buckets, []

    def one_by_one(worker: PolicyWorker, adapter: str | None) -> Iterator[dict[str, Any]]:
        for bucket in whole(worker, adapter):
            sent.extend(bucket)
            yield from ({name: value} for name, value in bucket.items())

    monkeypatch.setattr(PolicyWorker, "_weight_buckets", one_by_one)
    train(EVERY_STEP | {"trainer.default_local_dir": tmp_path / "apart"})
    assert len(sent) > 3 * 2 * 10, "of two models, three times"
    assert weights(tmp_path / "apart", 2) == weights(together, 2)
    assert without_clock(read_metrics(tmp_path / "apart")) == without_clock(read_metrics(together))


@pytest.mark.ray
@pytest.mark.spread
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", on(gpus=4))
def test_two_ranks_of_a_pool_of_their_own_train_as_one_and_at_the_same_time_as_the_other_group(
    train: Run, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gloo on CPUs to 1e-6; with nccl on GPUs the first step in fp32 to 1e-4: a later one may have
    sampled another token.

    A call begins its work when both groups are in it: the work of a tiny model may end before a thread of a
    busy machine starts the other.
    """
    span, both = Timeline.span, threading.Barrier(2, timeout=120)

    @contextmanager
    def together(timeline: Timeline, wg_id: str, call: str) -> Iterator[None]:
        with span(timeline, wg_id, call):
            if call in AT_THE_SAME_TIME:
                both.wait()
            yield

    where = KL | {"cpu": {}, "cuda": GPU | FP32}[device]
    train(where)
    pools = {"trainer.n_gpus_per_node": 4, "trainer.resource_pool": "dedicated"}
    monkeypatch.setattr(Timeline, "span", together)
    train({"trainer.controller": "ray", "trainer.default_local_dir": tmp_path / "two"} | pools | where)
    one, two = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "two")
    spans = [json.loads(line) for line in (tmp_path / "two" / "timeline.jsonl").read_text().splitlines()]
    for step, call in itertools.product((1, 2), AT_THE_SAME_TIME):
        first, second = (s for s in spans if s["step"] == step and s["call"] == call)
        assert {first["wg_id"], second["wg_id"]} == {"asker", "verifier_agent"}
        assert max(first["start"], second["start"]) < min(first["end"], second["end"]), (step, call)
    assert (
        min(line["timing_s/overlap"] for line in two if line["step"])
        > 0
        == max(line.get("timing_s/overlap", 0) for line in one)
    )
    compared, times = (None, 1) if device == "cpu" else (2, 100)
    for a, b in list(zip(one, two, strict=True))[:compared]:
        for name, far in (("actor/grad_norm", 1e-5), ("actor/pg_loss", 1e-6), ("critic/score/mean", 1e-6)):
            assert b.get(name, 0.0) == pytest.approx(a.get(name, 0.0), abs=times * far)


@pytest.mark.parametrize(
    "changes",
    [
        {"agent.specialization": "prompt"},
        {"algorithm.adv_estimator": "rloo", "algorithm.group_by": "[uid]"},
        {"agent.agent_specific_parameters.actor.optim.lr": "[0.001,0.0]"},
    ],
    ids=["shared", "rloo_by_task", "lr_per_agent"],
)
def test_variants_train(train: Run, tmp_path: Path, changes: dict) -> None:
    train({"trainer.save_freq": 1} | changes)
    first, second = weights(tmp_path / "run", 1), weights(tmp_path / "run", 2)
    changed = {wg for wg in first if first[wg] != second[wg]}
    if "agent.specialization" in changes:
        assert len(first) == 1
    assert changed == (set(first) if len(changes) != 1 or "agent.specialization" in changes else {"asker"})


def test_a_users_policy_loss_is_found_in_the_workers(train: Run, tmp_path: Path) -> None:
    train({"actor_rollout_ref.actor.policy_loss.loss_mode": "my_loss", "trainer.total_training_steps": 1})
    (line,) = [line for line in read_metrics(tmp_path / "run") if line["step"] == 1]
    assert line["wg/asker/actor/my_metric"] == pytest.approx(7.0)
    assert 0 < line["training/rollout_probs_diff_mean"] < 1e-5


def test_agents_may_have_models_of_different_size(train: Run, tmp_path: Path, tiny_model_dir: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    larger = tmp_path / "larger"
    shutil.copytree(tiny_model_dir, larger)
    config = AutoConfig.from_pretrained(larger)
    config.hidden_size, config.intermediate_size = 48, 96
    AutoModelForCausalLM.from_config(config).save_pretrained(larger)
    train(
        {
            "agent.model_ids": f"[{tiny_model_dir},{larger}]",
            "actor_rollout_ref.model.path": "null",
            "trainer.save_freq": 1,
        }
    )
    first, second = weights(tmp_path / "run", 1), weights(tmp_path / "run", 2)
    assert len(second["verifier_agent"]) > len(second["asker"])
    assert all(first[wg] != second[wg] for wg in second)


def test_val_only_evaluates_a_checkpoint_and_writes_none(
    train: Run, once: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(once(EVERY_STEP), tmp_path / "run")
    before = weights(tmp_path / "run", 2)
    caplog.clear()
    trainer = train({"trainer.val_only": True})
    assert trainer.progress.global_step == 2
    said = [record.getMessage() for record in caplog.records if "global_step_2" in record.getMessage()]
    assert said == [f"evaluating {tmp_path}/run/checkpoints/global_step_2 (step 2)"]
    assert ("team", "accuracy avg@1") in trainer.progress.before.table
    assert weights(tmp_path / "run", 2) == before


def test_a_validation_in_parts_has_every_metric_of_one_at_once(train: Run, tmp_path: Path) -> None:
    """Also counts, maxima and deviations of an agent; the last part is smaller than the others."""
    keys = {"trainer.total_training_steps": 1, "data.val_max_samples": 5, "env.rollout.val_n": 2}
    found = []
    for size in (0, 2):
        folder = tmp_path / str(size)
        train(keys | {"data.val_batch_size": size, "trainer.default_local_dir": folder})
        lines = [line | {"step": at} for at, line in enumerate(read_metrics(folder))]
        found.append([{k: v for k, v in line.items() if k.startswith("val")} for line in lines])
        assert len(list((folder / "trajectories").glob("val_000000*.jsonl"))) == (3 if size else 1)
    assert found[0] == found[1]
    assert any("agent/asker/response_length/max" in name for line in found[0] for name in line)


def test_a_single_agent_trains_in_a_built_in_world(train: Run, tmp_path: Path) -> None:
    single = {
        "agent.orchestra_type": "single",
        "agent.agent_ids": "[Single Agent]",
        "env.env_name": "math",
        "agent.plugins": "[]",
    }
    train(single | {"agent.orchestra.single.prompt_style": "short"})
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert all("agent/single_agent/reward/mean" in line for line in lines if line["step"] > 0)


def test_a_resumed_run_shows_the_time_of_the_first_one_from_its_first_prompt_on(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data sets, whose rows are measured, are built after the checkpoint is read."""
    built = checks.build_datasets
    shown: list[str] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        shown.append(TEMPLATE_TIME.state())
        return built(*args, **kwargs)

    monkeypatch.setattr(checks, "build_datasets", noted)
    for year, steps in ((2031, 1), (2032, 2)):
        monkeypatch.setattr(TEMPLATE_TIME, "value", datetime(year, 5, 6, 7, 8, 9))
        train(
            {"trainer.total_training_steps": steps, "data.val_files": "[]", "trainer.val_before_train": False}
        )
    assert shown == ["2031-05-06T07:08:09"] * 2

"""Whole runs with critics: GAE for a team or for one agent."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from verl.utils.checkpoint import CheckpointError

GAE = {
    "algorithm.adv_estimator": "gae",
    "critic.optim.lr": 0.01,
    "trainer.total_training_steps": 3,
    "data.val_files": "[]",
}
JOINT = {"critic.joint_prompt_length": 128}
TEAM = {"asker", "verifier_agent"}


pytestmark = pytest.mark.spread
MACHINE = ("timing", "time_per", "throughput", "memory", "/idle")


def steps_of(run_dir: Path) -> list[dict[str, Any]]:
    """Metrics of the training steps, without the clock's and the memory's."""
    lines = [line for line in read_metrics(run_dir) if "critic/score/mean" in line]
    return [{k: v for k, v in line.items() if not any(word in k for word in MACHINE)} for line in lines]


def critics(run_dir: Path, step: int) -> dict[str, bytes]:
    folder = run_dir / "checkpoints" / f"global_step_{step}" / "critic"
    return {p.name: (p / "huggingface" / "model.safetensors").read_bytes() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    "view", [{}, JOINT, {"algorithm.gae.level": "turn", "algorithm.lam": 0.9}], ids=["own", "joint", "turns"]
)
def test_three_steps_of_gae_train_policies_and_critics(
    train: Run, tmp_path: Path, view: dict[str, Any]
) -> None:
    train(GAE | view | {"trainer.save_freq": 1})
    lines = steps_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert all(math.isfinite(v) for v in line.values())
        assert {"critic/vf_explained_var", "critic/values/mean", "critic/vf_loss"} <= line.keys()
        for wg in TEAM:
            assert line[f"wg/{wg}/critic/grad_norm"] > 0 and line[f"wg/{wg}/actor/grad_norm"] > 0
            assert line[f"wg/{wg}/critic/lr"] == 0.01
    assert lines[0]["critic/values/max"] == 0.0 and lines[2]["critic/values/max"] > 0
    before, after = critics(tmp_path / "run", 2), critics(tmp_path / "run", 3)
    assert set(after) == TEAM and all(before[wg] != after[wg] for wg in TEAM)


def test_the_value_loss_falls_while_the_policy_waits(
    train: Run, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Rewards of random replies: a critic that has learnt their mean is left with half their variance."""
    train(
        GAE
        | {
            "trainer.critic_warmup": 12,
            "trainer.total_training_steps": 12,
            "critic.cliprange_value": 10,
            "data.train_batch_size": 6,
        }
    )
    lines = steps_of(tmp_path / "run")
    assert not [name for name in lines[-1] if "actor/" in name]
    gap = {
        f"rollout_corr/{name}"
        for name in ("log_prob_diff_mean", "log_prob_diff_max", "rollout_is_eff_sample_size")
    }
    gap |= {f"rollout_corr/rollout_is_ratio_fraction_{side}" for side in ("high", "low")}
    gap |= {f"wg/{wg}/{name}" for wg in TEAM for name in gap}
    assert all(gap <= line.keys() for line in lines)
    losses = [line["critic/vf_loss"] for line in lines]
    assert sum(losses[-4:]) / 4 < 0.5 * losses[0]
    initial = (tiny_model_dir / "model.safetensors").read_bytes()
    from safetensors.torch import load

    for policy in weights(tmp_path / "run", 12).values():
        assert all(value.equal(load(initial)[name]) for name, value in load(policy).items())


def test_policies_begin_after_the_warm_up_at_the_start_of_their_schedule(train: Run, tmp_path: Path) -> None:
    schedule = {
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "linear",
        "critic.optim.lr_scheduler_type": "linear",
    }
    train(GAE | schedule | {"trainer.critic_warmup": 1})
    lines = steps_of(tmp_path / "run")
    assert [line.get("actor/lr") for line in lines] == [None, 0.001, 0.0]
    assert [line["critic/lr"] for line in lines] == pytest.approx([0.01, 0.005, 0.0])


def test_one_agent_may_have_a_critic_while_the_other_is_compared_with_its_group(
    train: Run, tmp_path: Path
) -> None:
    own = {
        "algorithm.adv_estimator": "grpo",
        "+algorithm.per_agent.asker.adv_estimator": "gae",
        "agent.specialization": "prompt",
    }
    train(GAE | own)
    line = steps_of(tmp_path / "run")[-1]
    (wg,) = critics(tmp_path / "run", 3)
    assert line[f"wg/{wg}/critic/grad_norm"] > 0 and line[f"wg/{wg}/actor/grad_norm"] > 0
    assert line["agent/verifier_agent/advantage_abs"] >= 0


def test_a_resumed_run_with_critics_equals_an_uninterrupted_one_to_the_last_bit(
    train: Run, tmp_path: Path
) -> None:
    schedule = JOINT | {
        "trainer.save_freq": 2,
        "trainer.total_training_steps": 4,
        "critic.ppo_mini_batch_size": 1,
        "critic.ppo_epochs": 2,
        "critic.optim.lr_scheduler_type": "cosine",
    }
    train(GAE | schedule)
    whole, resumed = tmp_path / "run", tmp_path / "resumed"
    start = {
        "trainer.resume_mode": whole / "checkpoints" / "global_step_2",
    }
    train(GAE | schedule | start | {"trainer.default_local_dir": resumed})
    assert critics(resumed, 4) == critics(whole, 4) and weights(resumed, 4) == weights(whole, 4)
    assert steps_of(resumed) == steps_of(whole)[2:]
    for changes, words in (
        (
            {"critic.joint_prompt_length": "null"},
            r"joint_prompt_length=a number, this run needs critics of .* critic\.joint_prompt_length=null",
        ),
        (
            {"algorithm.adv_estimator": "grpo"},
            r"critic\.joint_prompt_length=a number, this run needs no critic",
        ),
    ):
        plain = {"critic.optim.lr": 1e-5} if "algorithm.adv_estimator" in changes else schedule
        with pytest.raises(CheckpointError, match=words):
            train(
                GAE
                | plain
                | start
                | changes
                | {"trainer.total_training_steps": 5, "trainer.default_local_dir": tmp_path / "other"}
            )


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_critics_on_ray_equal_those_of_one_process(train: Run, tmp_path: Path) -> None:
    short = GAE | JOINT | {"trainer.total_training_steps": 2, "agent.specialization": "prompt"}
    train(short)
    train(short | {"trainer.controller": "ray", "trainer.default_local_dir": tmp_path / "ray"})
    assert critics(tmp_path / "ray", 2) == critics(tmp_path / "run", 2)
    assert steps_of(tmp_path / "ray") == steps_of(tmp_path / "run")

"""One line of config from a shared model to adapters to models of their own: two steps each, the right parameters move and no others."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics
from tests.e2e.test_training import without_clock

ADAPTER = {"actor_rollout_ref.model.lora_rank": 4, "actor_rollout_ref.actor.optim.lr": 0.01}
KL = {"actor_rollout_ref.actor.use_kl_loss": True, "algorithm.use_kl_in_reward": True}
LEVELS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "L1": ({"agent.specialization": "prompt"}, {"Asker": "tiny_qwen30", "Verifier Agent": "tiny_qwen30"}),
    "L2": ({"agent.specialization": "lora"} | ADAPTER, {"Asker": "asker", "Verifier Agent": "verifier_agent"}),
    "L2_shared": (
        {"agent.specialization": "lora", "agent.adapter_ids": "[Both,Both]"} | ADAPTER,
        {"Asker": "both", "Verifier Agent": "both"},
    ),
    "L2_critic": (
        {"agent.specialization": "lora", "algorithm.adv_estimator": "gae"} | ADAPTER,
        {"Asker": "asker", "Verifier Agent": "verifier_agent"},
    ),
    "mixed": ({"agent.specialization": "[lora,full]"} | ADAPTER, {"Asker": "asker", "Verifier Agent": "verifier_agent"}),
    "L3": ({"agent.specialization": "full"}, {"Asker": "asker", "Verifier Agent": "verifier_agent"}),
}


def policies(run_dir: Path, step: int) -> dict[str, bytes]:
    """Weights of every policy in a checkpoint, as Hugging Face and PEFT read them."""
    actor = run_dir / "checkpoints" / f"global_step_{step}" / "actor"
    files = sorted(actor.glob("*/huggingface/model.safetensors")) + sorted(actor.glob("*/huggingface/*/adapter_model.safetensors"))
    return {(f.parent.parent if f.name == "model.safetensors" else f.parent).name: f.read_bytes() for f in files}


@pytest.mark.parametrize("level", LEVELS)
def test_two_steps_of_every_level(train: Run, tmp_path: Path, tiny_model_dir: Path, level: str) -> None:
    changes, expected = LEVELS[level]
    base = (tiny_model_dir / "model.safetensors").read_bytes()
    train(changes | KL | {"trainer.save_freq": 1, "agent.agent_specific_parameters.rollout.response_length": "[5,6]"})
    run_dir = tmp_path / "run"
    steps = [line for line in read_metrics(run_dir) if "actor/lr" in line]
    assert len(steps) == 2 and all(math.isfinite(value) for line in steps for value in line.values())
    first, second = policies(run_dir, 1), policies(run_dir, 2)
    assert set(second) == set(expected.values()) and all(first[p] != second[p] for p in second)
    for line in steps:
        assert line["training/rollout_probs_diff_max"] < 1e-5
        for policy in second:
            assert line[f"wg/{policy}/actor/grad_norm"] > 0
    assert (tiny_model_dir / "model.safetensors").read_bytes() == base
    table = json.loads((run_dir / "checkpoints" / "global_step_2" / "trainer_state.json").read_text())["placement"]
    assert {row["agent_id"]: row["policy_id"] for row in table} == expected
    episode = json.loads((run_dir / "trajectories" / "train_000001.jsonl").read_text().splitlines()[0])
    assert {call["agent_id"]: call["policy_id"] for call in episode["calls"]} == expected


def test_an_agent_that_does_not_learn_leaves_its_adapter_and_the_other_ones_move(train: Run, tmp_path: Path) -> None:
    """The verifier's learning rate is zero: only the asker's tensors differ between two steps, and each has the rank that it was given."""
    from safetensors.torch import load

    own = {"actor.optim.lr": "[0.01,0.0]", "model.lora_rank": "[2,3]", "model.target_modules": "[all-linear,[q_proj]]"}
    train({"agent.specialization": "lora", "trainer.save_freq": 1} | {f"agent.agent_specific_parameters.{k}": v for k, v in own.items()})
    first, second = policies(tmp_path / "run", 1), policies(tmp_path / "run", 2)
    assert first["asker"] != second["asker"] and first["verifier_agent"] == second["verifier_agent"]
    ranks = {policy: {min(tensor.shape) for tensor in load(data).values()} for policy, data in second.items()}
    assert ranks == {"asker": {2}, "verifier_agent": {3}} and len(load(second["verifier_agent"])) == 4
    lines = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert [(line["wg/asker/actor/lr"], line["wg/verifier_agent/actor/lr"]) for line in lines] == [(0.01, 0.0)] * 2


def test_a_run_of_adapters_resumes_to_the_last_bit(train: Run, tmp_path: Path) -> None:
    schedule = ADAPTER | KL | {
        "agent.specialization": "[lora,lora]",
        "trainer.total_training_steps": 3,
        "trainer.save_freq": 1,
        "trainer.max_ckpt_to_keep": 0,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine",
    }  # fmt: skip
    train(schedule)
    again = {
        "trainer.default_local_dir": tmp_path / "resumed",
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": tmp_path / "run" / "checkpoints" / "global_step_2",
    }
    train(schedule | again)
    assert policies(tmp_path / "resumed", 3) == policies(tmp_path / "run", 3)
    tail = [line for line in without_clock(read_metrics(tmp_path / "run")) if line["step"] > 2]
    assert without_clock(read_metrics(tmp_path / "resumed")) == tail


@pytest.mark.ray
def test_adapters_on_ray_are_those_of_the_local_controller(train: Run, tmp_path: Path) -> None:
    level = {"agent.specialization": "lora"} | ADAPTER | KL
    train(level)
    train(level | {"trainer.controller": "ray", "trainer.default_local_dir": tmp_path / "ray"})
    assert policies(tmp_path / "ray", 2) == policies(tmp_path / "run", 2)
    assert without_clock(read_metrics(tmp_path / "ray")) == without_clock(read_metrics(tmp_path / "run"))


@pytest.fixture
def refused(train: Run) -> Callable[[dict[str, Any]], str]:
    """The one line that a run ends with, which must come before a worker is started."""
    from verl.trainer.main_ppo import USER_ERRORS

    def go(changes: dict[str, Any]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("verl.trainer.main_ppo.build_controller", lambda config: pytest.fail("a worker would have been started"))
            with pytest.raises(USER_ERRORS) as error:
                train(changes)
        return str(error.value)

    return go


def test_teams_of_adapters_that_cannot_be_are_one_line_before_anything_expensive(refused: Callable[[dict[str, Any]], str]) -> None:
    lora, own = {"agent.specialization": "lora"}, "agent.agent_specific_parameters.model.lora_rank"
    said = refused(lora | {"actor_rollout_ref.model.target_modules": "[q_proj,c_attn]"})
    assert "adapter 'asker' on " in said and "model.target_modules=['q_proj', 'c_attn']: the model has no layer 'c_attn'" in said
    said = refused(lora | {"agent.adapter_ids": "[one,one]", own: "[4,8]"})
    assert "'Asker' and 'Verifier Agent' claim adapter 'one' but differ in model.lora_rank (4 and 8)" in said
    assert "has no effect; it needs an agent with agent.specialization=lora" in refused({"actor_rollout_ref.model.lora_rank": 8})
    said = refused({"agent.specialization": "[lora,full]", own: "[null,8]"})
    assert "model.lora_rank gives agent 'Verifier Agent' 8, which has no effect" in said
    assert "model.lora_rank=0" in refused(lora | {"actor_rollout_ref.model.lora_rank": 0})
    assert "target_modules=3" in refused(lora | {"actor_rollout_ref.model.target_modules": 3})


def test_a_checkpoint_of_other_adapters_or_on_another_base_is_refused(
    train: Run, refused: Callable[[dict[str, Any]], str], tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = tmp_path / "base"
    shutil.copytree(tiny_model_dir, model)
    run = {"agent.specialization": "lora", "actor_rollout_ref.model.path": model} | ADAPTER
    train(run | {"trainer.total_training_steps": 1})
    said = refused(run | {"actor_rollout_ref.model.lora_rank": 8})
    assert "adapter 'asker' of agent 'Asker' with lora_rank=4, this run has lora_rank=8" in said
    assert "team" in refused(run | {"agent.specialization": "full", "actor_rollout_ref.model.lora_rank": 32})
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    said = refused(run)
    assert f"adapters on the model '{model}' as it was; the files there have changed" in said
    assert "changed" in refused(run | {"trainer.val_only": True})
    weights.write_bytes(data)
    assert train(run).global_step == 2


def test_the_table_says_what_each_agent_has(train: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        train({"agent.specialization": "[lora,full]", "trainer.val_only": True, "trainer.resume_mode": "disable"} | ADAPTER)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("agent ")]
    assert lines[0].startswith("agent Asker -> policy asker -> worker group tiny_qwen30_lora (")
    assert lines[0].endswith("adapter of rank 4 with 4,096 parameters)")
    assert lines[1].startswith("agent Verifier Agent -> policy verifier_agent -> worker group verifier_agent (") and "rank" not in lines[1]

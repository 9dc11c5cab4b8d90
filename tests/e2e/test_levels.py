"""One line of config from a shared model to adapters to models of their own: two steps each, the right
parameters move and no others.
"""

import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from tests.conftest import save_peft_adapter
from tests.e2e.conftest import Run, read_metrics
from tests.e2e.teams import (
    ADAPTER,
    KL,
    LEVELS,
    asked_at_the_end,
    changes_of,
    load_exported,
    log_probs,
    policies,
)
from tests.e2e.test_training import without_clock
from verl.trainer.checkpoint.export import export
from verl.utils.names import slug

pytestmark = pytest.mark.spread
# (level, engine, controller) without `--all-levels`: every level in this process, two with real Ray actors.
CASES = [(level, "hf", "local") for level in LEVELS]
CASES += [(level, "hf", "ray") for level in ("L1", "heterogeneous")]
# What tests/e2e/test_vllm.py does not sample with vLLM: engines side by side, and adapters beside the base.
CASES += [(level, "vllm", "local") for level in ("mixed", "frozen_base")]
EVERY = list(itertools.product(LEVELS, ("hf", "vllm"), ("local", "ray")))
# Starting vLLM again takes as long as the rest of a case: without `--all-levels` one level, with both kinds
# of engines, resumes.
RESUMED_WITH_VLLM = "mixed"
# bits of vLLM depend on who shares the batch; those of a reply that is alone do not
SLOTS = {
    "hf": 8,
    "vllm": 1,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`CASES`, and with `--all-levels` the remaining ones of `EVERY`."""
    names = ("level", "engine", "controller")
    if set(names) <= set(metafunc.fixturenames):
        others = (
            [case for case in EVERY if case not in CASES] if metafunc.config.getoption("--all-levels") else []
        )
        marks = {"ray": pytest.mark.ray, "local": ()}
        metafunc.parametrize(names, [pytest.param(*case, marks=marks[case[-1]]) for case in CASES + others])


@pytest.fixture
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """The folders of a Qwen and of a Llama that an engine can serve."""

    def choose(engine: str) -> tuple[Path, Path]:
        if engine == "hf":
            return request.getfixturevalue("tiny_model_dir"), request.getfixturevalue("tiny_llama_dir")
        qwen = tmp_path / "tiny_qwen3"  # as policies are called after it
        shutil.copytree(request.getfixturevalue("wide_heads_model_dir"), qwen)
        return qwen, request.getfixturevalue("wide_heads_llama_dir")

    return choose


def test_two_steps_move_the_right_parameters_resume_equal_and_export_as_they_are(
    train: Run,
    models: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    level: str,
    engine: str,
    controller: str,
) -> None:
    team, run_dir, (qwen, llama) = LEVELS[level], tmp_path / "run", models(engine)
    bases = {folder: (folder / "model.safetensors").read_bytes() for folder in (qwen, llama)}
    lengths = "[5,6]" if len(team.policy_of) == 2 else "[5]"
    run = changes_of(team, qwen, llama) | KL | {
        "actor_rollout_ref.model.path": qwen,
        "trainer.save_freq": 1,
        "trainer.max_ckpt_to_keep": 0,
        "trainer.controller": controller,
        "actor_rollout_ref.rollout.name": engine,
        "actor_rollout_ref.rollout.max_num_seqs": SLOTS[engine],
        "agent.agent_specific_parameters.rollout.response_length": lengths,
    }  # fmt: skip
    with asked_at_the_end() as said:
        train(run)
    steps = [line for line in read_metrics(run_dir) if "actor/lr" in line]
    assert len(steps) == 2 and all(math.isfinite(value) for line in steps for value in line.values())
    first, second = policies(run_dir, 1), policies(run_dir, 2)
    assert set(second) == team.trained and all(first[p] != second[p] for p in second)
    for line in steps:
        assert (
            line["training/rollout_probs_diff_max"] < 1e-5 and line["rollout_corr/log_prob_diff_max"] < 1e-5
        )
        assert {
            name.split("/")[1] for name in line if name.startswith("wg/") and name.endswith("actor/lr")
        } == team.trained
        assert all(line[f"wg/{policy}/actor/grad_norm"] > 0 for policy in second)
        assert all(line[f"agent/{slug(agent)}/calls"] == 6 for agent in team.policy_of)
        sent = sum(value for name, value in line.items() if name.endswith("/perf/sync_mb"))
        assert sent * 2**20 == sum(
            tensor.nbytes for policy in second.values() for tensor in load(policy).values()
        )
    table = json.loads((run_dir / "checkpoints" / "global_step_2" / "trainer_state.json").read_text())[
        "placement"
    ]
    assert {row["agent_id"]: (row["policy_id"], row.get("frozen", False)) for row in table} == {
        agent: (policy, policy in team.frozen) for agent, policy in team.policy_of.items()
    }
    for line in (run_dir / "trajectories" / "train_000001.jsonl").read_text().splitlines():
        calls = json.loads(line)["calls"]
        assert {call["agent_id"]: call["policy_id"] for call in calls} == team.policy_of
        assert all(call["trained"] == (call["policy_id"] in team.trained) for call in calls)

    export(run_dir, tmp_path / "out")
    assert {folder.name for folder in (tmp_path / "out").iterdir() if folder.is_dir()} == team.trained
    for policy, generation in said.items():
        model = load_exported(qwen if policy in team.frozen else tmp_path / "out" / policy)
        assert log_probs(model, generation) == pytest.approx(generation.log_probs, abs=1e-5)
    assert {folder: (folder / "model.safetensors").read_bytes() for folder in bases} == bases

    if engine == "vllm" and level != RESUMED_WITH_VLLM and not request.config.getoption("--all-levels"):
        return
    # Without Ray, whoever wrote the checkpoint: both controllers give the same bits.
    again = {
        "trainer.default_local_dir": tmp_path / "resumed",
        "trainer.resume_mode": "resume_path",
        "trainer.controller": "local",
    }
    train(run | again | {"trainer.resume_mode": run_dir / "checkpoints" / "global_step_1"})
    assert policies(tmp_path / "resumed", 2) == second
    tail = [line for line in without_clock(read_metrics(run_dir)) if line["step"] > 1]
    assert without_clock(read_metrics(tmp_path / "resumed")) == tail


def test_an_agent_that_does_not_learn_leaves_its_adapter_and_the_other_ones_move(
    train: Run, tmp_path: Path
) -> None:
    """The verifier's learning rate is zero: only the asker's tensors differ between two steps, and each has
    the rank that it was given.
    """
    own = {
        "actor.optim.lr": "[0.01,0.0]",
        "model.lora_rank": "[2,3]",
        "model.target_modules": "[all-linear,[q_proj]]",
    }
    train(
        {"agent.specialization": "lora", "trainer.save_freq": 1}
        | {f"agent.agent_specific_parameters.{k}": v for k, v in own.items()}
    )
    first, second = policies(tmp_path / "run", 1), policies(tmp_path / "run", 2)
    assert first["asker"] != second["asker"] and first["verifier_agent"] == second["verifier_agent"]
    ranks = {policy: {min(tensor.shape) for tensor in load(data).values()} for policy, data in second.items()}
    assert ranks == {"asker": {2}, "verifier_agent": {3}} and len(load(second["verifier_agent"])) == 4
    lines = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert [(line["wg/asker/actor/lr"], line["wg/verifier_agent/actor/lr"]) for line in lines] == [
        (0.01, 0.0)
    ] * 2


def test_adapters_of_one_base_have_a_schedule_and_a_clip_each(train: Run, tmp_path: Path) -> None:
    """What the verifier is given changes nothing for the asker in the first step, before that reads new
    replies, and all for itself.
    """
    lora = {"agent.specialization": "lora", "actor_rollout_ref.model.lora_rank": 2, "trainer.save_freq": 1}
    train(lora | {"trainer.default_local_dir": tmp_path / "alike"})
    own = {
        "actor.grad_clip": "[null,1e-12]",
        "actor.optim.lr_scheduler_type": "[null,linear]",
        "actor.optim.total_training_steps": "[null,4]",
        "actor.optim.min_lr_ratio": "[null,0.5]",
    }
    train(lora | {f"agent.agent_specific_parameters.{k}": v for k, v in own.items()})
    alike, apart = policies(tmp_path / "alike", 1), policies(tmp_path / "run", 1)
    assert apart["asker"] == alike["asker"] and apart["verifier_agent"] != alike["verifier_agent"]

    def farthest(data: bytes) -> float:
        return max(float(tensor.abs().max()) for name, tensor in load(data).items() if "lora_B" in name)

    assert farthest(apart["verifier_agent"]) < 1e-3 * farthest(alike["verifier_agent"]), (
        "gradients far below Adam's epsilon move nothing"
    )
    lines = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert [line["wg/asker/actor/lr"] for line in lines] == [0.001] * 2
    assert [line["wg/verifier_agent/actor/lr"] for line in lines] == pytest.approx(
        [0.001, 0.001 * (1 - 0.5 / 3)]
    )


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
        "trainer.resume_mode": tmp_path / "run" / "checkpoints" / "global_step_2",
    }
    train(schedule | again)
    assert policies(tmp_path / "resumed", 3) == policies(tmp_path / "run", 3)
    tail = [line for line in without_clock(read_metrics(tmp_path / "run")) if line["step"] > 2]
    assert without_clock(read_metrics(tmp_path / "resumed")) == tail


@pytest.mark.ray
def test_adapters_on_ray_are_those_of_the_local_controller(
    train: Run, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """One of them starts from PEFT's folder."""
    given = save_peft_adapter(tiny_model_dir, tmp_path / "given", r=4)
    own = {"agent.agent_specific_parameters.model.lora_adapter_path": f"[{given},null]"}
    level = {"agent.specialization": "lora"} | ADAPTER | KL | own
    train(level)
    train(level | {"trainer.controller": "ray", "trainer.default_local_dir": tmp_path / "ray"})
    assert policies(tmp_path / "ray", 2) == policies(tmp_path / "run", 2)
    assert without_clock(read_metrics(tmp_path / "ray")) == without_clock(read_metrics(tmp_path / "run"))


def test_teams_of_adapters_that_cannot_be_are_one_line_before_anything_expensive(
    refused: Callable[[dict[str, Any]], str],
) -> None:
    lora, own = {"agent.specialization": "lora"}, "agent.agent_specific_parameters.model.lora_rank"
    said = refused(lora | {"actor_rollout_ref.model.target_modules": "[q_proj,c_attn]"})
    assert (
        "adapter 'asker' on " in said
        and "model.target_modules=['q_proj', 'c_attn']: the model has no layer 'c_attn'" in said
    )
    assert ": actor_rollout_ref.model.target_modules=" in said
    targets = "agent.agent_specific_parameters.model.target_modules"
    assert f": {targets}=['c_attn']: the model has no layer" in refused(lora | {targets: "[null,[c_attn]]"})
    assert f"{targets}=['']" in refused(lora | {targets: "[null,['']]"})
    said = refused(lora | {"agent.adapter_ids": "[one,one]", own: "[4,8]"})
    assert "'Asker' and 'Verifier Agent' claim adapter 'one' but differ in model.lora_rank (4 and 8)" in said
    assert "has no effect for agent 'Asker'; it needs an agent with agent.specialization=lora" in refused(
        {"actor_rollout_ref.model.lora_rank": 8}
    )
    said = refused({"agent.specialization": "[lora,full]", own: "[null,8]"})
    assert "model.lora_rank=8 has no effect for agent 'Verifier Agent'" in said
    assert "model.lora_rank=0" in refused(lora | {"actor_rollout_ref.model.lora_rank": 0})
    assert "target_modules=3" in refused(lora | {"actor_rollout_ref.model.target_modules": 3})


def test_an_adapter_to_start_from_that_cannot_be_is_one_line(
    refused: Callable[[dict[str, Any]], str], tiny_model_dir: Path, tmp_path: Path
) -> None:
    lora, key = {"agent.specialization": "lora"}, "actor_rollout_ref.model.lora_adapter_path"
    own = "agent.agent_specific_parameters.model.lora_adapter_path"
    given = save_peft_adapter(tiny_model_dir, tmp_path / "given")
    said = refused(lora | {key: tmp_path / "nowhere"})
    assert (
        f"{key}={tmp_path}/nowhere (agent 'Asker'), which is no folder; expected one with adapter_config.json"
        in said
    )
    said = refused(lora | {own: f"[null,{given}]", "actor_rollout_ref.model.lora_rank": 8})
    assert (
        f"model.lora_rank=8 (agent 'Verifier Agent') contradicts the adapter of {own}={given}, whose "
        "lora_rank is 3" in said
    )
    assert "needs an agent with agent.specialization=lora" in refused({key: given})
    config = given / "adapter_config.json"
    for layers, words in (
        (["q_proj", "k_proj"], "does not fit the model: base_model.model."),
        (["c_attn"], "the model has no layer 'c_attn'"),
    ):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": layers}))
        said = refused(lora | {key: given})
        assert f"adapter 'asker' on {str(tiny_model_dir)!r}: {key}={given}: " in said and words in said


def test_a_checkpoint_of_other_adapters_or_on_another_base_is_refused(
    train: Run, refused: Callable[[dict[str, Any]], str], tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = tmp_path / "base"
    shutil.copytree(tiny_model_dir, model)
    run = {"agent.specialization": "lora", "actor_rollout_ref.model.path": model} | ADAPTER
    train(run | {"trainer.total_training_steps": 1})
    said = refused(run | {"actor_rollout_ref.model.lora_rank": 8})
    assert "adapter 'asker' of agent 'Asker' with lora_rank=4, this run has lora_rank=8" in said
    assert "team" in refused(
        run | {"agent.specialization": "full", "actor_rollout_ref.model.lora_rank": "null"}
    )
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    said = refused(run)
    assert f"adapters on an earlier version of the model '{model}'; its files have changed" in said
    assert "changed" in refused(run | {"trainer.val_only": True})
    weights.write_bytes(data)
    assert train(run).progress.global_step == 2


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_checkpoint_whose_kl_was_measured_from_another_model_is_refused(
    train: Run, refused: Callable[[dict[str, Any]], str], tmp_path: Path, tiny_model_dir: Path, where: str
) -> None:
    """The reference is in no checkpoint: it is loaded again from the model's folder."""
    model = tmp_path / "base"
    shutil.copytree(tiny_model_dir, model)
    key = {"loss": "actor_rollout_ref.actor.kl_loss_coef", "reward": "algorithm.kl_ctrl.kl_coef"}[where]
    run = {"actor_rollout_ref.model.path": model, "agent.specialization": "prompt"}
    train(run | {key: 0.001, "trainer.total_training_steps": 1})
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    said = refused(run | {key: 0.001})
    assert f"is of a team with an earlier version of the model '{model}'; its files have changed" in said
    assert train(run).progress.global_step == 2, "without a KL nothing is read from there"
    assert "have changed" in refused(run | {key: 0.001, "trainer.total_training_steps": 3}), (
        "nor is it forgotten"
    )


def test_the_table_says_what_each_agent_has(train: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        train(
            {
                "agent.specialization": "[lora,full]",
                "trainer.val_only": True,
                "trainer.resume_mode": "disable",
            }
            | ADAPTER
        )
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("agent ")]
    assert lines[0].startswith("agent Asker -> policy asker -> worker group tiny_qwen3_lora (")
    assert lines[0].endswith("adapter of rank 4 with 4,096 parameters)")
    assert (
        lines[1].startswith("agent Verifier Agent -> policy verifier_agent -> worker group verifier_agent (")
        and "rank" not in lines[1]
    )

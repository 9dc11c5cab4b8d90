"""Recorded commands of verl train a tiny model; only paths, sizes and the device are changed."""

import json
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from agent_system.errors import AgentSystemError
from agent_system.launch.train import run
from tests.e2e.conftest import read_metrics
from verl.trainer.config.entry import compose_config

FACTS = json.loads((Path(__file__).parents[1] / "compat/upstream_commands.json").read_text(encoding="utf-8"))
VERL = next(commands for source, commands in FACTS.items() if "verl-project" in source)
SIZES = {
    "data.train_batch_size": "2", "data.max_prompt_length": "96", "data.max_response_length": "6", "trainer.n_gpus_per_node": "1",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "2", "critic.ppo_mini_batch_size": "2", "actor_rollout_ref.rollout.n": "2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "1", "actor_rollout_ref.model.lora_rank": "2",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "1024", "critic.ppo_max_token_len_per_gpu": "1024",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "1024", "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": "1024",
    "actor_rollout_ref.rollout.max_num_seqs": "8", "actor_rollout_ref.rollout.max_num_batched_tokens": "1024",
    "actor_rollout_ref.rollout.name": "hf", "actor_rollout_ref.actor.fsdp_config.param_offload": "False",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "False", "critic.fsdp.param_offload": "False",
    "critic.fsdp.optimizer_offload": "False", "critic.model.fsdp_config.param_offload": "False",
    "critic.model.fsdp_config.optimizer_offload": "False",
}  # fmt: skip
ADDED = {
    "trainer.controller": "local", "trainer.device": "cpu", "trainer.logger": "[jsonl]", "trainer.total_training_steps": "2",
    "trainer.num_threads": "1", "trainer.save_freq": "-1", "trainer.val_before_train": "False", "trainer.test_freq": "-1",
}  # fmt: skip


def rows(path: Path, source: str) -> str:
    row = {"data_source": source, "prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    return str(path)


def command(script: str, tmp_path: Path, model: Path, source: str = "openai/gsm8k") -> list[str]:
    """The settings of a script with paths, sizes and device of the test."""
    settings = dict(o.lstrip("+").split("=", 1) for o in get_args_parser().parse_args(VERL[script]).overrides)
    settings |= {key: value for key, value in SIZES.items() if key in settings}
    settings |= {key: str(model) for key in ("actor_rollout_ref.model.path", "critic.model.path") if key in settings}
    data = rows(tmp_path / "rows.jsonl", source)
    settings |= ADDED | {"data.train_files": data, "data.val_files": data, "trainer.default_local_dir": str(tmp_path / "run")}
    return [f"{key}={value}" for key, value in settings.items()]


@pytest.mark.parametrize(
    "script",
    [
        "grpo_trainer/run_qwen3_4b_fsdp.sh",
        "rloo_trainer/run_qwen3_8b_fsdp.sh",
        "ppo_trainer/run_qwen3_8b_fsdp.sh",
        "tuning/lora/run_qwen3_8b_fsdp.sh",
    ],
)
def test_a_recorded_command_of_verl_trains_two_steps(script: str, tmp_path: Path, tiny_model_dir: Path) -> None:
    run(compose_config(command(script, tmp_path, tiny_model_dir)))
    lines = read_metrics(tmp_path / "run")
    assert [line["training/global_step"] for line in lines if "training/global_step" in line] == [1, 2]


def test_an_unknown_data_source_is_an_error_before_training(tmp_path: Path, tiny_model_dir: Path) -> None:
    given = command("grpo_trainer/run_qwen3_4b_fsdp.sh", tmp_path, tiny_model_dir, source="my/set")
    with pytest.raises(AgentSystemError, match=r"data_source='my/set'; known: openai/gsm8k.*reward.custom_reward_function.path"):
        run(compose_config(given))

"""Recorded commands of verl train a tiny model on a CPU: GSM8K with other paths and another device, and
others with smaller sizes, the `hf` engine and fewer, unlogged steps as well.
"""

import functools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hydra._internal.utils import get_args_parser

from agent_system.errors import AgentSystemError
from agent_system.launch.train import run
from tests.conftest import save_peft_adapter, save_tiny_model
from tests.e2e.conftest import fit_digits, read_metrics
from tests.e2e.teams import load_exported
from tests.forked import ForkServer
from tests.house.source import ROOT
from verl.protocol import DataProto
from verl.trainer.checkpoint.export import export
from verl.trainer.plan.command_line import compose_config
from verl.trainer.ppo.train_step import StepTrainer
from verl.workers.critic_worker import CriticWorker
from verl.workers.policy_worker import PolicyWorker

FACTS = json.loads((Path(__file__).parents[1] / "compat/upstream_commands.json").read_text(encoding="utf-8"))
VERL = next(commands for source, commands in FACTS.items() if "verl-project" in source)
SIZES = {
    "data.train_batch_size": "16", "data.max_prompt_length": "96", "data.max_response_length": "8",
    "trainer.n_gpus_per_node": "1",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "16", "critic.ppo_mini_batch_size": "16",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "1", "actor_rollout_ref.model.lora_rank": "2",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "1024", "critic.ppo_max_token_len_per_gpu": "1024",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "1024",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": "1024",
    "actor_rollout_ref.rollout.max_num_seqs": "64",
    "actor_rollout_ref.rollout.max_num_batched_tokens": "1024",
    "actor_rollout_ref.rollout.name": "hf", "actor_rollout_ref.actor.fsdp_config.param_offload": "False",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "False", "critic.fsdp.param_offload": "False",
    "critic.fsdp.optimizer_offload": "False", "critic.model.fsdp_config.param_offload": "False",
    "critic.model.fsdp_config.optimizer_offload": "False",
}  # fmt: skip
ADDED = {
    "trainer.controller": "local", "trainer.device": "cpu", "trainer.logger": "[jsonl]",
    "trainer.total_training_steps": "2",
    "trainer.num_threads": "1", "trainer.save_freq": "-1", "trainer.val_before_train": "False",
    "trainer.test_freq": "-1",
}  # fmt: skip
MODELS = ("actor_rollout_ref.model.path", "critic.model.path")
FUNCTION = "reward.custom_reward_function.path"
SCORES = '''
import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """Two rewards of different scale that differ between replies; the experiment is named after the model."""
    if "qwen" not in extra_info["experiment_name"]:
        raise NotImplementedError("Unknown model name: " + extra_info["experiment_name"])
    digest = zlib.crc32(solution_str.encode())
    accuracy, layout = digest % 7, digest // 7 % 5 / 100
    return {"score": accuracy + layout, "accuracy_reward": accuracy, "format_reward": layout}
'''
Command = Callable[..., list[str]]


def question(row: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{row % 5}+{row // 5 % 5}?"}]


def sums(path: Path, count: int, source: str = "openai/gsm8k") -> Path:
    """Write so many tasks, of 25 questions with their answers."""
    answers = ((row, str(row % 5 + row // 5 % 5)) for row in range(count))
    found = [
        {"data_source": source, "prompt": question(row), "reward_model": {"ground_truth": a}}
        for row, a in answers
    ]
    pq.write_table(pa.Table.from_pylist(found), path)
    return path


@pytest.fixture
def command(tmp_path: Path, tiny_model_dir: Path) -> Command:
    """Return the overrides of a script as typed, with other paths, sizes and device, and `changes`."""

    def build(script: str, source: str = "openai/gsm8k", **changes: Any) -> list[str]:
        data = sums(tmp_path / "rows.parquet", 25, source)
        paths = dict.fromkeys(MODELS, tiny_model_dir)
        added = (
            ADDED
            | {
                "data.train_files": data,
                "data.val_files": data,
                "trainer.default_local_dir": tmp_path / "run",
            }
            | changes
        )
        values = SIZES | paths | added
        typed = [
            (o.partition("=")[0], o.partition("=")[2])
            for o in get_args_parser().parse_args(VERL[script]).overrides
        ]
        names = {name.lstrip("+") for name, _ in typed}
        new = [f"{name}={values.get(name.lstrip('+'), value)}" for name, value in typed]
        return new + [f"{name}={value}" for name, value in added.items() if name not in names]

    return build


@pytest.fixture
def function(tmp_path: Path) -> dict[str, Path]:
    """The path of a reward function with two named rewards."""
    (tmp_path / "scores.py").write_text(SCORES)
    return {FUNCTION: tmp_path / "scores.py"}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[set[str]]]:
    """The names of the parameters that each update changed, of actors and of critics."""
    found: dict[str, list[set[str]]] = {"update_actor": [], "update_critic": []}

    def watch(cls: type, name: str) -> None:
        update = getattr(cls, name)

        @functools.wraps(update)
        def watched(worker: Any, data: DataProto) -> DataProto:
            before = {key: value.clone() for key, value in worker.engine.weights()}
            result = update(worker, data)
            found[name].append(
                {key for key, value in worker.engine.weights() if not torch.equal(value, before[key])}
            )
            return result

        monkeypatch.setattr(cls, name, watched)

    watch(PolicyWorker, "update_actor")
    watch(CriticWorker, "update_critic")
    return found


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[DataProto]:
    """The batch of each step, before its update."""
    seen: list[DataProto] = []
    update = StepTrainer.update

    def watched(trainer: StepTrainer, batch: DataProto, *args: Any) -> Any:
        seen.append(batch)
        return update(trainer, batch, *args)

    monkeypatch.setattr(StepTrainer, "update", watched)
    return seen


def steps(folder: Path) -> list[int]:
    return [line["training/global_step"] for line in read_metrics(folder) if "training/global_step" in line]


@pytest.fixture(scope="module")
def answering_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that answers a `question` with `#### ` and a random digit, with heads as wide as vLLM
    needs them on a CPU.
    """
    folder = save_tiny_model(tmp_path_factory.mktemp("answering"), head_dim=32, max_position_embeddings=4096)
    return fit_digits(folder, [question(row) for row in range(25)], "#### ")


def wandb_lines(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The metrics in the file of an offline run, which is a LevelDB log of protocol buffers after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = run_dir.glob("wandb/offline-run-*/*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }


@pytest.mark.ray
@pytest.mark.spread
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("script", "tasks", "n"),
    [("grpo_trainer/run_seed_oss_36b_fsdp.sh", 64, 2), ("grpo_trainer/run_qwen3_4b_fsdp.sh", 512, 5)],
)
def test_a_recorded_command_for_gsm8k_trains_with_other_paths_and_another_device_alone(
    tmp_path: Path,
    answering_model_dir: Path,
    forked_python: str,
    request: pytest.FixtureRequest,
    script: str,
    tasks: int,
    n: int,
) -> None:
    """As a process, with Ray and vLLM; SIGTERM ends it after two of its steps, of so many tasks with `n`
    replies each.
    """
    if tasks > 64 and not request.config.getoption("--all-levels"):
        pytest.skip("takes more than a minute: needs --all-levels")
    paths: dict[str, Any] = {"actor_rollout_ref.model.path": answering_model_dir}
    for split, count in {"train": tasks, "test": 25}.items():
        paths[f"data.{split.replace('test', 'val')}_files"] = sums(tmp_path / f"{split}.parquet", count)
    changed = paths | {
        "trainer.n_gpus_per_node": 1,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    }
    typed = (override.partition("=") for override in VERL[script])
    given = [f"{name}={changed.pop(name, value)}" for name, _, value in typed]
    assert not changed, "keys that are not in the command"
    environment = (
        os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | ForkServer.workers(forked_python)
    )
    said = tmp_path / "stderr"
    with said.open("w") as errors:
        process = subprocess.Popen(
            [forked_python, "-m", "verl.trainer.main_ppo", *given, "trainer.device=cpu"],
            env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if re.match(r"step +2/15 ", line):
                    process.send_signal(signal.SIGTERM)
            status = process.wait(60)
        finally:
            process.kill()
    assert status == 128 + signal.SIGTERM, said.read_text()[-2000:]
    [run_dir] = (tmp_path / "outputs").glob("*/*")
    trained = [line for line in wandb_lines(run_dir) if "training/global_step" in line]
    assert [line["training/global_step"] for line in trained] == [1, 2]
    assert all(
        line["actor/grad_norm"] > 0 and line["agent/single_agent/advantage_abs"] > 0 for line in trained
    )
    assert all(0 < line["agent/single_agent/reward/mean"] < 1 for line in trained)
    assert (run_dir / "checkpoints/latest_checkpointed_iteration.txt").read_text() == "2"
    assert (run_dir / "checkpoints/global_step_2/trainer_state.json").is_file()
    warned = said.read_text()
    assert (
        "keys of verl (docs/upstream_map.md)" in warned
        and f"actor_rollout_ref.rollout.n={n}: env.rollout.n={n}" in warned
    )


@pytest.fixture
def train(command: Command, tmp_path: Path, answering_model_dir: Path) -> Callable[[str], None]:
    """Train two steps of a script with the model that answers, and check that it learns from rewards by
    `data_source`.
    """

    def build(script: str) -> None:
        run(compose_config(command(script, **dict.fromkeys(MODELS, answering_model_dir))))
        lines = [line for line in read_metrics(tmp_path / "run") if "training/global_step" in line]
        assert [line["training/global_step"] for line in lines] == [1, 2]
        assert all(
            0 < line["agent/single_agent/reward/mean"] < 1 and line["actor/grad_norm"] > 0 for line in lines
        )

    return build


def test_a_command_with_another_estimator_trains_two_steps(
    train: Callable[[str], None], moved: dict[str, list[set[str]]]
) -> None:
    train("rloo_trainer/run_qwen3_8b_fsdp.sh")
    assert len(moved["update_actor"]) == 2 and all(
        any("layers" in key for key in keys) for keys in moved["update_actor"]
    )


def test_a_command_with_a_critic_trains_it(
    train: Callable[[str], None], tmp_path: Path, moved: dict[str, list[set[str]]]
) -> None:
    """The critic's head is 0 at first, so its layers change from the second step on."""
    train("ppo_trainer/run_qwen3_8b_fsdp.sh")
    losses = [line["critic/vf_loss"] for line in read_metrics(tmp_path / "run") if "critic/vf_loss" in line]
    assert len(losses) == 2 and all(loss > 0 for loss in losses)
    first, second = moved["update_critic"]
    assert any("score" in key for key in first) and any("layers" in key for key in second)


def test_a_command_with_an_adapter_trains_it_and_not_its_base(
    train: Callable[[str], None], moved: dict[str, list[set[str]]]
) -> None:
    train("tuning/lora/run_qwen3_8b_fsdp.sh")
    assert len(moved["update_actor"]) == 2
    for keys in moved["update_actor"]:
        assert keys and all(".lora_" in key for key in keys)


def sampled(batch: DataProto, name: str) -> np.ndarray:
    """A tensor of a batch at the tokens of its replies."""
    return batch.batch[name][batch.batch["response_mask"].bool()].numpy()


@torch.no_grad()
def scored(model: Any, batch: DataProto) -> np.ndarray:
    """The log-probs that a plain model gives to the tokens of the replies in a batch."""
    tensors = batch.batch
    logits = model(
        tensors["input_ids"], attention_mask=tensors["attention_mask"], position_ids=tensors["position_ids"]
    ).logits
    replies = tensors["responses"]
    found = logits[:, -replies.shape[1] - 1 : -1].log_softmax(-1).gather(-1, replies[..., None])[..., 0]
    return found[tensors["response_mask"].bool()].numpy()


def test_a_command_with_an_adapter_to_start_from_samples_from_it_and_a_resumed_one_from_the_checkpoint(
    command: Command,
    tmp_path: Path,
    tiny_model_dir: Path,
    batches: list[DataProto],
    moved: dict[str, list[set[str]]],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = save_peft_adapter(tiny_model_dir, tmp_path / "given")
    path = {"actor_rollout_ref.model.lora_adapter_path": given, "trainer.save_freq": "1"}
    for total in (1, 2):
        changes = path | {"trainer.total_training_steps": total}
        run(compose_config(command("tuning/lora/run_qwen3_8b_from_adapter_fsdp.sh", **changes)))
    assert steps(tmp_path / "run") == [1, 2]
    exported = tmp_path / "run/checkpoints/global_step_1/actor/tiny_qwen3_lora/huggingface/single_agent"
    for batch, folder in zip(batches, (given, exported), strict=True):
        assert sampled(batch, "rollout_log_probs") == pytest.approx(
            scored(load_exported(folder), batch), abs=1e-5
        )
        base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
        assert sampled(batch, "ref_log_prob") == pytest.approx(scored(base, batch), abs=1e-5)
        assert np.abs(sampled(batch, "rollout_log_probs") - sampled(batch, "ref_log_prob")).max() > 0.1
    assert all(keys and all(".lora_" in key for key in keys) for keys in moved["update_actor"])
    assert json.loads((exported / "adapter_config.json").read_text())["lora_alpha"] == 12
    shutil.rmtree(given)
    export(tmp_path / "run", tmp_path / "out")  # needs the shape in the checkpoint alone
    saved = (
        tmp_path
        / "run/checkpoints/global_step_2/actor/tiny_qwen3_lora/huggingface/single_agent/adapter_model.safetensors"
    )
    assert (tmp_path / "out/single_agent/adapter_model.safetensors").read_bytes() == saved.read_bytes()
    for folder in (exported, tmp_path / "out/single_agent"):
        ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        assert AutoTokenizer.from_pretrained(folder).get_vocab()["<|im_end|>"] in ends


def test_a_command_with_named_rewards_learns_from_them(
    command: Command, tmp_path: Path, function: dict[str, Path], batches: list[DataProto]
) -> None:
    changes = {"trainer.total_training_steps": 1, "actor_rollout_ref.rollout.n": 4, **function}
    run(compose_config(command("gdpo_trainer/run_qwen3_8b_fsdp.sh", **changes)))
    [batch] = batches
    columns, tasks = batch.non_tensor_batch, batch.non_tensor_batch["uid"]
    total = np.zeros(len(tasks))
    for name in ("accuracy_reward", "format_reward"):
        rewards = columns[name].astype(float)
        for task in set(tasks):
            own = rewards[tasks == task]
            total[tasks == task] += (own - own.mean()) / (own.std(ddof=1) + 1e-6)
    mask = batch.batch["response_mask"].bool().numpy()
    tokens = np.broadcast_to(total[:, None], mask.shape)[mask]
    expected = (tokens - tokens.mean()) / tokens.std(ddof=1)
    assert len(set(expected.round(3))) > 4 and sampled(batch, "advantages") == pytest.approx(
        expected, abs=1e-5
    )
    metrics = read_metrics(tmp_path / "run")[-1]
    assert metrics["reward/accuracy_reward/mean"] == pytest.approx(columns["accuracy_reward"].mean())


def test_an_unknown_data_source_is_an_error_before_training(command: Command) -> None:
    given = command("grpo_trainer/run_qwen3_4b_fsdp.sh", source="my/set")
    with pytest.raises(
        AgentSystemError,
        match=r"data_source='my/set'; known: openai/gsm8k.*reward.custom_reward_function.path",
    ):
        run(compose_config(given))

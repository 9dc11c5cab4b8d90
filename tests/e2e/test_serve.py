"""What becomes of a checkpoint: folders for plain transformers and peft, and a team that answers on the
terminal.
"""

import asyncio
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_system.serve import conversation
from agent_system.serve import main as serve
from tests.e2e.conftest import Run
from tests.e2e.teams import ADAPTER, asked_at_the_end, load_exported, log_probs, without_copies
from verl.model_merger import main as merge

Failed = Callable[[list[str]], str]


# A team of the math workflow, trained for a step: an adapter and a frozen agent on its base.
MATH = ADAPTER | {
    "agent.plugins": "[]",
    "agent.orchestra_type": "math",
    "agent.orchestra.math.prompt_style": "short",
    "agent.agent_ids": "[Solver Agent,Verifier Agent]",
    "agent.specialization": "lora",
    "agent.frozen": "[Verifier Agent]",
    "env.env_name": "math",
    "trainer.total_training_steps": 1,
    "trainer.val_before_train": False,
    "actor_rollout_ref.actor.optim.lr": 0.2,
    "data.max_response_length": 12,
}


@pytest.fixture
def failed(capsys: pytest.CaptureFixture[str]) -> Failed:
    """The one line that the merger ends with."""

    def go(arguments: list[str]) -> str:
        with pytest.raises(SystemExit) as end:
            merge(arguments)
        said = str(end.value.code)
        assert said.startswith("error: ") and "\n" not in said
        return said

    return go


def test_a_trained_team_answers_with_the_weights_of_its_checkpoint(
    once: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = once(MATH)
    with conversation(str(run_dir), greedy=True) as team:
        record = asyncio.run(team.ask("3 + 4?"))
    assert record.failure is None and [s.agent_id for s in record.samples][:2] == [
        "Solver Agent",
        "Verifier Agent",
    ]
    merge(["--checkpoint", str(run_dir), "--out", str(tmp_path / "out")])
    model = load_exported(tmp_path / "out" / "solver_agent")
    for sample in record.samples[:2]:
        prompt = torch.tensor([sample.request.prompt_ids])
        with (
            torch.no_grad(),
            model.disable_adapter() if sample.agent_id == "Verifier Agent" else torch.no_grad(),
        ):
            ids = model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12
            )
        assert tuple(ids[0, prompt.shape[1] :].tolist()) == sample.generation.token_ids

    capsys.readouterr()
    checkpoint = str(run_dir / "checkpoints" / "global_step_1")
    with pytest.raises(SystemExit) as end:
        serve([checkpoint, "3 + 4?", "--greedy"])
    printed = capsys.readouterr().out
    assert (
        end.value.code == 0
        and "Solver Agent" in printed
        and "Verifier Agent" in printed
        and "Answer: " in printed
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("3 + 4?\n"))
    with pytest.raises(SystemExit):
        serve([checkpoint, "--greedy"])
    assert capsys.readouterr().out == printed


def test_a_team_answers_without_the_reward_function_of_its_training(train: Run, tmp_path: Path) -> None:
    function = tmp_path / "grader.py"
    function.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return "
        "len(ground_truth)\n"
    )
    train(
        MATH | {"reward.custom_reward_function.path": function, "trainer.default_local_dir": tmp_path / "run"}
    )
    function.unlink()
    with conversation(str(tmp_path / "run")) as team:
        assert asyncio.run(team.ask("3 + 4?")).failure is None


def test_a_team_that_cannot_answer_is_one_line(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        serve([str(tmp_path), "3?"])
    assert end.value.code == 1 and capsys.readouterr().err.startswith(f"error: no checkpoint at {tmp_path}")
    train({"trainer.total_training_steps": 1})
    with pytest.raises(SystemExit):
        serve([str(tmp_path / "run"), "3?"])
    assert "MyWorld takes no questions: it has no question()" in capsys.readouterr().err


def test_policies_are_made_of_a_checkpoint_alone(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that was moved away from its run and has no Hugging Face copies: a model and an adapter;
    then without a tokenizer.
    """
    with asked_at_the_end() as said:
        train(ADAPTER | {"agent.specialization": "[lora,full]", "trainer.total_training_steps": 1})
    out, checkpoint = tmp_path / "out", str(without_copies(tmp_path / "run", 1))
    merge(["--checkpoint", checkpoint, "--out", str(out)])
    for policy, generation in said.items():
        assert log_probs(load_exported(out / policy), generation) == pytest.approx(
            generation.log_probs, abs=1e-5
        )
        assert (out / policy / "tokenizer.json").is_file()
    assert "No metrics of step 1" in (out / "README.md").read_text()

    def gone(path: str, **more: Any) -> Any:
        raise ValueError("its files are gone")

    monkeypatch.setattr("verl.models.loader.load_tokenizer", gone)
    merge(["--checkpoint", checkpoint, "--out", str(tmp_path / "bare")])
    assert [
        name for name in caplog.messages if "its files are gone" in name and "without a tokenizer" in name
    ][1:] != []
    for file in out.rglob("*.safetensors"):
        assert (tmp_path / "bare" / file.relative_to(out)).read_bytes() == file.read_bytes()


def test_the_cards_say_which_agents_base_step_and_metrics(
    once: Callable[..., Path], tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Of a run that was killed while it wrote the line of its second step, and had a metric in its first that
    is no number.
    """
    run_dir = shutil.copytree(once(MATH), tmp_path / "run")
    file = run_dir / "metrics.jsonl"
    (first,) = (line for line in file.read_text().splitlines() if json.loads(line)["step"] == 1)
    file.write_text(
        json.dumps(json.loads(first) | {"wg/solver_agent/actor/kl_loss": None})
        + '\n{"step": 2, "agent/solver_ag'
    )
    merge(["--checkpoint", str(run_dir), "--out", str(tmp_path / "out")])
    card = (tmp_path / "out" / "solver_agent" / "README.md").read_text()
    assert card.startswith(f"---\nlibrary_name: peft\nbase_model: {json.dumps(str(tiny_model_dir))}\n")
    for fact in (
        "| agents | Solver Agent |",
        "LoRA adapter of rank 4",
        "| step | 1 |",
        "`agent/solver_agent/reward/mean`",
        "`grpo`",
    ):
        assert fact in card
    team = (tmp_path / "out" / "README.md").read_text()
    assert "| Solver Agent | [solver_agent](solver_agent/README.md) |" in team
    assert f"| Verifier Agent | `{tiny_model_dir}`, frozen: not exported |" in team


def test_what_cannot_be_exported_is_one_line(
    train: Run, failed: Failed, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose model was named by where the command was run, exported from elsewhere."""
    base = tmp_path / "base"
    shutil.copytree(tiny_model_dir, base)
    run_dir, out = tmp_path / "run", tmp_path / "out"
    assert f"no checkpoint at {run_dir}" in failed(["--checkpoint", str(run_dir), "--out", str(out)])
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        train(
            ADAPTER
            | {
                "agent.specialization": "lora",
                "actor_rollout_ref.model.path": "base",
                "trainer.total_training_steps": 1,
            }
        )
    (written,) = run_dir.glob("checkpoints/global_step_1/actor/*/huggingface/asker/adapter_config.json")
    assert json.loads(written.read_text())["base_model_name_or_path"] == str(base)
    out.mkdir()
    (out / "kept").write_text("mine")
    assert f"--out {out} exists and is not empty" in failed(["--checkpoint", str(run_dir), "--out", str(out)])
    (out / "kept").unlink()
    metrics = (run_dir / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "agent/\n' + metrics)
    assert "metrics.jsonl:1 is not JSON" in failed(["--checkpoint", str(run_dir), "--out", str(out)])
    (run_dir / "metrics.jsonl").write_text(metrics)
    data = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert f"adapters on an earlier version of the model '{base}'; its files have changed" in failed(
        ["--checkpoint", str(run_dir), "--out", str(out)]
    )
    (base / "model.safetensors").write_bytes(data)
    (run_dir / "config.yaml").unlink()
    (run_dir / "checkpoints" / "global_step_1" / "config.yaml").write_text("agent: {no_such_key: 1}\n")
    assert "config.yaml is not a configuration of this version" in failed(
        ["--checkpoint", str(run_dir), "--out", str(out)]
    )
    (run_dir / "checkpoints" / "global_step_1" / "config.yaml").unlink()
    assert "has no config.yaml" in failed(["--checkpoint", str(run_dir), "--out", str(out)])
    assert list(out.iterdir()) == []

"""The swap test: a trained team is evaluated with its policies exchanged."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_system.rollout.collector import Collector
from tests.e2e.conftest import Run, read_metrics

SWAP = {"agent.role_policies": "{Solver Agent: verifier_agent, Verifier Agent: solver_agent}"}
SWAPPED = Path("swapped", "solver_agent-verifier_agent+verifier_agent-solver_agent")
EVAL = {"trainer.val_only": True}
CLOCK = re.compile("timing|perf/")


@pytest.fixture(scope="module")
def other_model_dir(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """The tiny model with other weights, large enough for replies of its own."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(tiny_model_dir, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder, initializer_range=0.3)
        ).save_pretrained(folder)
    return folder


def renumber_tokens(folder: Path) -> None:
    """Give the bytes of a model's tokenizer the opposite order."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"] = {
        token: 255 - number for token, number in tokenizer["model"]["vocab"].items() if number < 256
    }
    file.write_text(json.dumps(tokenizer))


@pytest.fixture
def math(train: Run, tmp_path: Path, tiny_model_dir: Path, other_model_dir: Path) -> Run:
    """Run the math team, whose policies start from different weights, with changes."""
    rows = [
        {"data_source": "toy", "prompt": f"{i}+{i}?", "reward_model": {"ground_truth": str(2 * i)}}
        for i in range(4)
    ]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    team = {
        "agent.orchestra_type": "math",
        "agent.orchestra.math.prompt_style": "short",
        "agent.agent_ids": "[Solver Agent,Verifier Agent]",
        "agent.model_ids": f"[{tiny_model_dir},{other_model_dir}]",
        "env.env_name": "math",
        "data.train_files": tmp_path / "sums.jsonl",
        "data.val_files": tmp_path / "sums.jsonl",
        "data.val_max_samples": -1,
        "data.max_prompt_length": 512,
        "env.rollout.val_n": 2,
        "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
        "trainer.total_training_steps": 1,
    }
    return lambda changes=None: train(team | dict(changes or {}))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run of the team waits for the next test that needs one."""
    return tmp_path_factory.mktemp("kept") / "run"


@pytest.fixture
def run_dir(math: Run, tmp_path: Path, kept: Path) -> Path:
    """A copy of the folder of the team's run, which is the same in all tests."""
    if not kept.exists():
        math({"trainer.default_local_dir": kept})
    shutil.copytree(kept, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every collection of every run, in order."""
    kept: list[Any] = []
    collect = Collector.collect

    async def keep(self: Collector, *args: Any, **kwargs: Any) -> Any:
        kept.append(await collect(self, *args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(Collector, "collect", keep)
    return kept


def calls(run_dir: Path, step: int = 1) -> list[dict[str, Any]]:
    lines = (run_dir / "trajectories" / f"val_{step:06d}.jsonl").read_text().splitlines()
    times = ("began", "ended", "waited")
    return [
        {name: value for name, value in call.items() if name not in times}
        for line in lines
        for call in json.loads(line)["calls"]
    ]


def spoken(run_dir: Path) -> dict[str, set[str]]:
    """Policies that each agent spoke with in a validation."""
    found: dict[str, set[str]] = {}
    for call in calls(run_dir):
        found.setdefault(call["agent_id"], set()).add(call["policy_id"])
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def validation(run_dir: Path) -> dict[str, float]:
    (line,) = read_metrics(run_dir)[-1:]
    assert line["step"] == 1
    return {name: value for name, value in line.items() if name.startswith("val") and not CLOCK.search(name)}


def exchange_checkpoints(run_dir: Path, folder: Path) -> Path:
    """A copy of a run in which each policy's checkpoint folder holds the other one's weights."""
    shutil.copytree(run_dir, folder)
    actor = folder / "checkpoints" / "global_step_1" / "actor"
    for old, new in (
        ("solver_agent", "aside"),
        ("verifier_agent", "solver_agent"),
        ("aside", "verifier_agent"),
    ):
        (actor / old).rename(actor / new)
    return folder


def same(
    one: Any, other: Any, columns: tuple[str, ...] = ("input_ids", "response_mask", "rollout_log_probs")
) -> bool:
    a, b = one.batch.batch, other.batch.batch
    return all(a[c].shape == b[c].shape and torch.equal(a[c], b[c]) for c in columns)


def test_swapped_roles_equal_exchanged_checkpoint_folders_to_the_last_bit_and_metrics_are_the_roles(
    math: Run, run_dir: Path, tmp_path: Path, results: list[Any]
) -> None:
    exchanged = exchange_checkpoints(run_dir, tmp_path / "exchanged")
    results.clear()
    math(EVAL)
    trainer = math(EVAL | SWAP)
    math(EVAL | {"trainer.default_local_dir": exchanged})
    as_trained, swapped, by_hand = results
    assert same(swapped, by_hand)
    assert not same(swapped, as_trained, ("input_ids",))
    assert spoken(run_dir) == {"Solver Agent": {"solver_agent"}, "Verifier Agent": {"verifier_agent"}}
    assert spoken(run_dir / SWAPPED) == {
        "Solver Agent": {"verifier_agent"},
        "Verifier Agent": {"solver_agent"},
    }
    assert list(swapped.batch.non_tensor_batch["wg_id"]) == list(swapped.batch.non_tensor_batch["policy_id"])
    nameless = [
        [call | {"policy_id": ""} for call in calls(folder)] for folder in (run_dir / SWAPPED, exchanged)
    ]
    assert nameless[0] == nameless[1]
    found = validation(run_dir / SWAPPED)
    assert found == validation(exchanged) != validation(run_dir)
    assert found["val/agent/solver_agent/calls"] == sum(
        c["agent_id"] == "Solver Agent" for c in calls(run_dir / SWAPPED)
    )
    assert {"val-core/toy/acc/mean@2", "val/agent/verifier_agent/response_length/mean"} <= found.keys()
    assert ("team", "accuracy avg@2") in trainer.progress.before.table
    assert trainer.progress.global_step == 1


def test_a_policy_may_speak_for_two_agents_and_answers_the_same_prompt_in_its_own_way(
    math: Run, run_dir: Path
) -> None:
    math(EVAL | {"agent.role_policies.solver_agent": "verifier_agent"})
    folder = run_dir / "swapped" / "solver_agent-verifier_agent"
    assert spoken(folder) == {"Solver Agent": {"verifier_agent"}, "Verifier Agent": {"verifier_agent"}}
    first = [
        [c for c in calls(f) if (c["agent_id"], c["call"]) == ("Solver Agent", 0)] for f in (run_dir, folder)
    ]
    assert [c["prompt"] for c in first[0]] == [c["prompt"] for c in first[1]]
    assert all(a["reply"] != b["reply"] for a, b in zip(*first, strict=True))


def test_a_swapped_evaluation_leaves_every_file_of_the_run_as_it_was(math: Run, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    math({"trainer.save_freq": 1, "trainer.total_training_steps": 2})
    before = files(run_dir)
    math(EVAL | SWAP)
    earlier = {
        "trainer.resume_mode": run_dir / "checkpoints" / "global_step_1",
    }
    math(EVAL | SWAP | earlier)
    after = files(run_dir)
    assert {name: after[name] for name in before} == before
    added = {name for name in after if name not in before}
    assert all(Path(name).is_relative_to(SWAPPED) for name in added)
    inside = {str(Path(name).relative_to(SWAPPED)) for name in added}
    assert {
        "config_eval.yaml",
        "metrics.jsonl",
        "metrics.1.jsonl",
        "trajectories/val_000001.jsonl",
        "trajectories/val_000002.jsonl",
    } == inside
    assert "global_step_1" in (run_dir / SWAPPED / "config_eval.yaml").read_text()


@pytest.mark.ray
def test_swapped_roles_are_the_same_on_ray(math: Run, run_dir: Path, results: list[Any]) -> None:
    results.clear()
    for controller in ("local", "ray"):
        math(EVAL | SWAP | {"trainer.controller": controller})
    assert same(*results)


def test_a_policy_with_another_tokenizer_reads_and_writes_in_its_own_tokens(
    math: Run, tmp_path: Path, tiny_model_dir: Path, other_model_dir: Path, results: list[Any]
) -> None:
    from transformers import AutoTokenizer

    renumbered = shutil.copytree(other_model_dir, tmp_path / "other")
    renumber_tokens(renumbered)
    limits = {"response_length": "[4,9]", "prompt_length": "[400,512]"}
    lengths = {f"agent.agent_specific_parameters.rollout.{key}": values for key, values in limits.items()}
    changes = {"agent.model_ids": f"[{tiny_model_dir},{renumbered}]", "trainer.resume_mode": "disable"}
    runtimes = math(EVAL | SWAP | lengths | changes).collector.runtimes
    assert {agent_id: runtime.binding.max_prompt_length for agent_id, runtime in runtimes.items()} == {
        "Solver Agent": 512,
        "Verifier Agent": 400,
    }
    assert [runtimes[name].binding.prompt_length_key for name in ("Solver Agent", "Verifier Agent")] == [
        "data.max_prompt_length", "agent.agent_specific_parameters.rollout.prompt_length",
    ]  # fmt: skip
    (result,) = results
    folders = {"Verifier Agent": tiny_model_dir, "Solver Agent": renumbered}  # who speaks with whose model
    tokenizers = {agent_id: AutoTokenizer.from_pretrained(folder) for agent_id, folder in folders.items()}
    samples = [sample for episode in result.episodes for sample in episode.samples]
    assert {s.agent_id for s in samples} == set(folders)
    for s in samples:
        own = tokenizers[s.agent_id]
        assert own.decode(s.request.prompt_ids) == s.request.prompt_text
        assert own.decode(s.generation.token_ids, skip_special_tokens=True) == s.text
        assert s.request.max_tokens == {"Verifier Agent": 4, "Solver Agent": 9}[s.agent_id]
    assert max(len(s.generation.token_ids) for s in samples if s.agent_id == "Solver Agent") > 4

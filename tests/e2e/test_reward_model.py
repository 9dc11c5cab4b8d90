"""Models that score replies (`reward.model`) in training, through the keys of the command line."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_system.reward.model
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.tokens import decode
from tests.chat_server import ChatServer, completion
from tests.conftest import save_tiny_model, save_tokenizer, tiny_config
from tests.docs.pages import blocks
from tests.e2e.conftest import Run, fit_digits, read_metrics, weights


@pytest.fixture(scope="session")
def classifier_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random sequence classifier with one output, made from a configuration."""
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def save_classifier(folder: Path, num_labels: int = 1) -> Path:
    import torch
    from transformers import Qwen3ForSequenceClassification

    config = tiny_config(save_tokenizer(folder), num_labels=num_labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForSequenceClassification(config)
        torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def judge_server() -> Iterator[ChatServer]:
    """Grades a reply by the length of the question."""
    server = ChatServer(
        lambda body: completion(f"Because.\nScore: {len(body['messages'][0]['content']) % 11}")
    )
    yield server
    server.stop()


def calls(folder: Path) -> list[dict[str, Any]]:
    """Every call of training."""
    files = sorted((folder / "trajectories").glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [c for e in lines if e["traj_uid"].startswith("step") for c in e["calls"]]


def classifier(path: Path) -> dict[str, Any]:
    return {
        "reward.model.kind": "sequence_classification",
        "reward.model.path": path,
        "reward.model.max_length": 512,
    }


# One step, without a validation.
ONE_STEP = {
    "trainer.total_training_steps": 1,
    "data.val_files": "null",
    "trainer.save_freq": -1,
    "trainer.save_hf_model": False,
}


def test_the_example_of_the_page_trains_and_a_resumed_run_is_the_same_to_the_bit(
    train: Run,
    tmp_path: Path,
    classifier_dir: Path,
    refused: Callable[[dict[str, Any]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [command] = [b.text for b in blocks("bash") if "reward.model.kind=sequence_classification" in b.text]
    page = dict(word.split("=", 1) for word in shlex.split(command.replace("\\\n", " ")) if "=" in word)
    model = shutil.copytree(classifier_dir, tmp_path / "classifier")
    changes = page | {"reward.model.path": model, "reward.model.agents": "ask.*", "trainer.save_freq": 1}
    changes |= {"trainer.val_before_train": False, "trainer.max_ckpt_to_keep": 0}
    train(changes)
    for line in read_metrics(tmp_path / "run"):
        if "agent/asker/reward/model_score/mean" in line:
            assert line["agent/asker/reward/model_score/std"] > 0
            assert line["reward/model/requests"] == 6
            assert "agent/verifier_agent/reward/model_score/mean" not in line
    for call in calls(tmp_path / "run"):
        if call["agent_id"] == "Asker":
            own = call["local_reward"] - 0.5 * call["reward_terms"]["model_score"]
            assert 0 <= own < 1 and own * 100 == pytest.approx(round(own * 100))
        else:
            assert "reward_terms" not in call
    again = tmp_path / "again"
    first = {
        "trainer.resume_mode": tmp_path / "run" / "checkpoints" / "global_step_1",
    }
    monkeypatch.setattr(agent_system.reward.model, "SCORES_KEPT", 0)
    train(changes | first | {"trainer.default_local_dir": again})
    assert weights(again, 2) == weights(tmp_path / "run", 2)
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    said = refused(changes | {"trainer.total_training_steps": 3})
    assert (
        "rewards of an earlier version of the model" in said
        and str(model) in said
        and "resume_mode=disable" in said
    )


@pytest.mark.parametrize("returns", ["step", "committed"])
def test_candidates_of_a_tree_are_scored_and_the_best_is_committed(
    train: Run, tmp_path: Path, classifier_dir: Path, returns: str
) -> None:
    tree = {
        "rollout.sampling": "tree",
        "rollout.tree.k": 3,
        "rollout.tree.returns": returns,
        "env.env_name": "my_forkable_world",
    }
    groups = "[traj_uid,agent_id,turn,call]" if returns == "step" else "[uid,agent_id]"
    keys = {"algorithm.group_by": groups, "reward.team_scope": "call", "reward.model.combine": "replace"}
    train(classifier(classifier_dir) | tree | keys | ONE_STEP)
    by_call: dict[Any, list[dict[str, Any]]] = {}
    for call in calls(tmp_path / "run"):
        assert call["candidate_reward"] == pytest.approx(call["reward_terms"]["model_score"])
        by_call.setdefault((call["prompt"], call["agent_id"], call["seed"]), []).append(call)
    assert len(by_call) == 12
    for candidates in by_call.values():
        best = max(candidates, key=lambda c: c["candidate_reward"])
        assert [c["candidate_reward"] for c in candidates if c["committed"]] == [best["candidate_reward"]]
        assert all(c["local_reward"] == pytest.approx(c["reward_terms"]["model_score"]) for c in candidates)


def test_an_api_judges_whole_episodes(train: Run, tmp_path: Path, judge_server: ChatServer) -> None:
    changes = {
        "reward.model.kind": "api",
        "reward.model.api.base_url": judge_server.url,
        "reward.model.api.model": "big",
    }
    changes |= {"reward.model.agents": "null", "reward.model.combine": "replace"}
    train(
        changes
        | {"trainer.total_training_steps": 1, "trainer.val_before_train": False, "trainer.save_freq": -1}
    )
    files = sorted((tmp_path / "run" / "trajectories").glob("*.jsonl"))
    episodes = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert episodes
    assert all(e["team_reward"] == pytest.approx(e["reward_terms"]["model_score"]) for e in episodes)
    asked = [body for body in judge_server.bodies if "Score: <number>" in body["messages"][0]["content"]]
    assert asked and all(body["temperature"] == 0 and body["max_tokens"] == 512 for body in asked)


@pytest.fixture(scope="module")
def judge_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that writes `Score: ` and a random digit, whatever it reads."""
    draw = random.Random(0)
    chats = [[{"role": "user", "content": "".join(draw.choices(string.printable, k=12))}] for _ in range(16)]
    return fit_digits(save_tiny_model(tmp_path_factory.mktemp("judge")), chats, "Score: ")


@pytest.mark.parametrize("own", [True, False], ids=["own model", "frozen agent"])
def test_a_judge_of_the_run_gives_the_scores_that_it_writes(
    train: Run,
    tmp_path: Path,
    tiny_model_dir: Path,
    judge_dir: Path,
    own: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: dict[str, str] = {}  # the judge's last text for each question
    replies = AgentBinding.replies

    async def watched(binding: AgentBinding, prompt: Prompt, *args: Any) -> Any:
        generations = await replies(binding, prompt, *args)
        written[decode(binding.tokenizer, prompt.ids)] = binding.text_of(generations[0])
        return generations

    monkeypatch.setattr(AgentBinding, "replies", watched)
    (tmp_path / "template").write_text("{reply}")
    where = {"reward.model.path": judge_dir} if own else {"reward.model.agent": "verifier_agent"}
    models = f"[{tiny_model_dir},{tiny_model_dir if own else judge_dir}]"
    agents = {"agent.frozen": "[Verifier Agent]", "agent.specialization": "full", "agent.model_ids": models}
    keys = {"template": tmp_path / "template", "max_length": 96, "response_length": 10, "temperature": 1.0}
    keys |= {"retries": 3, "agents": "asker"}
    train(
        {"reward.model.kind": "judge"}
        | where
        | agents
        | {f"reward.model.{k}": value for k, value in keys.items()}
        | ONE_STEP
    )
    scores = {
        call["reply"].strip(): call["reward_terms"]["model_score"]
        for call in calls(tmp_path / "run")
        if call["agent_id"] == "Asker"
    }
    assert scores and {reply: f"Score: {round(10 * score)}" for reply, score in scores.items()} == {
        reply: written[f"user\n{reply}\nassistant\n"] for reply in scores
    }
    assert len(set(scores.values())) > 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward.model.kind": "sequence_classification"}, "needs reward.model.path"),
        ({"reward.model.kind": "judge"}, "needs either reward.model.path or reward.model.agent"),
        (
            {"reward.model.kind": "judge", "reward.model.agent": "asker"},
            "is trained, so its scores would change",
        ),
        ({"reward.model.kind": "judge", "reward.model.agent": "askr"}, "no agent 'askr'; did you mean"),
        ({"reward.model.kind": "api"}, "needs reward.model.api.base_url and reward.model.api.model"),
        ({"reward.model.weight": 2.0}, "has no effect; it needs reward.model.kind"),
        ({"reward.model.kind": "jugde"}, "did you mean"),
    ],
)
def test_keys_that_are_missing_or_contradict_each_other_are_refused(
    refused: Callable[[dict[str, Any]], str], changes: dict[str, Any], message: str
) -> None:
    from verl.trainer.config.spec import ConfigError

    try:
        found = refused(changes)
    except ConfigError as error:  # found when the command line is composed
        found = str(error)
    assert message in found


def test_a_model_that_gives_no_scores_is_refused(
    refused: Callable[[dict[str, Any]], str], tiny_model_dir: Path, classifier_dir: Path, tmp_path: Path
) -> None:
    assert "no head for scores" in refused(classifier(tiny_model_dir))
    assert "has 3 outputs" in refused(classifier(save_classifier(tmp_path / "three", 3)))
    assert "reads at most 1024 tokens" in refused(
        classifier(classifier_dir) | {"reward.model.max_length": 2000}
    )
    assert "matches no agent" in refused(classifier(classifier_dir) | {"reward.model.agents": "nobody"})

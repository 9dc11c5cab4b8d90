"""The check at the start of a run: engines that serve what the trainer has pass it and leave no trace; others
end the run in one line.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.conftest import Run
from tests.e2e.teams import LEVELS
from tests.e2e.test_fixed_seed import outcome
from verl.trainer.config.spec import ConfigError
from verl.trainer.ppo.interrupt import StopRequest
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.validator import Validator
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.weight_change import WeightChange

ADAPTERS = LEVELS["L2"].changes
SHORT = {
    "trainer.total_training_steps": 1,
    "trainer.save_freq": -1,
    "data.val_files": "[]",
    "trainer.val_before_train": False,
}
Update = Callable[..., None]


@pytest.fixture
def train(train: Run) -> Run:
    """As for other tests, with the check, unless a test switches it off."""
    return lambda changes: train({"trainer.checks": "[engines,memory]"} | changes)


@pytest.fixture
def loses(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str | None, str], bool]], None]:
    """Make engines keep the old values of tensors, chosen by the adapter and the name, from the first update
    on.
    """

    def lose(keeps: Callable[[str | None, str], bool]) -> None:
        update: Update = HFEngine.update_weights
        first: dict[tuple[str | None, str], torch.Tensor] = {}

        def stale(
            self: HFEngine,
            tensors: Mapping[str, torch.Tensor],
            *,
            adapter: str | None = None,
            **arguments: Any,
        ) -> None:
            own = self._weights._tensors if adapter is None else {}
            sent = {}
            for name, value in tensors.items():
                old = (
                    own[name].detach()
                    if adapter is None
                    else first.setdefault((adapter, name), value.clone())
                )
                sent[name] = old.clone() if keeps(adapter, name) else value
            update(self, sent, adapter=adapter, **arguments)

        monkeypatch.setattr(HFEngine, "update_weights", stale)

    return lose


@pytest.mark.parametrize("changes", [{}, ADAPTERS], ids=["model", "adapters"])
def test_a_run_is_the_same_with_the_check_as_without(
    train: Run,
    tmp_path: Path,
    changes: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests: list[str] = []
    apply, undo = WeightChange.apply, WeightChange.undo

    def changed(self: WeightChange, adapters: Any) -> None:
        digests.append(self._engine.digest())
        random = torch.get_rng_state()
        apply(self, adapters)
        digests.append(self._engine.digest())
        assert torch.equal(random, torch.get_rng_state())

    def restored(self: WeightChange) -> None:
        undo(self)
        digests.append(self._engine.digest())

    monkeypatch.setattr(WeightChange, "apply", changed)
    monkeypatch.setattr(WeightChange, "undo", restored)
    with caplog.at_level(logging.INFO):
        train(changes | {"trainer.default_local_dir": tmp_path / "with"})
    assert "engines agree with the trainer: log-probs differ by" in caplog.text
    assert digests[0] == digests[2] != digests[1]
    caplog.clear()
    count = len(digests)
    train(changes | {"trainer.default_local_dir": tmp_path / "without", "trainer.checks": "[memory]"})
    assert "engines agree" not in caplog.text and len(digests) == count
    assert outcome(tmp_path / "with") == outcome(tmp_path / "without")


def test_an_engine_that_keeps_one_tensor_is_refused_in_one_line(
    train: Run, loses: Callable[..., None], tmp_path: Path
) -> None:
    loses(lambda adapter, name: name.endswith("layers.1.mlp.up_proj.weight"))
    with pytest.raises(ConfigError, match="does not serve what it is sent") as error:
        train(SHORT)
    line = str(error.value)
    assert (
        "\n" not in line
        and "worker group" in line
        and "agent.specialization=lora" in line
        and "trainer.checks=[memory]" in line
    )
    assert not list((tmp_path / "run").rglob("train_*.jsonl"))


def test_an_engine_that_ignores_updates_of_adapters_is_refused(
    train: Run, loses: Callable[..., None]
) -> None:
    loses(lambda adapter, name: adapter is not None and "lora_B" in name)
    with pytest.raises(ConfigError, match="does not serve what it is sent"):
        train(ADAPTERS | SHORT)


def test_the_check_can_be_left_out(train: Run, loses: Callable[..., None]) -> None:
    loses(lambda adapter, name: name.endswith("layers.1.mlp.up_proj.weight"))
    assert train(SHORT | {"trainer.checks": "[memory]"}).progress.global_step == 1


def test_an_engine_that_differs_before_any_update_is_refused_at_once(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = HFEngine.__init__

    def broken(self: HFEngine, model: Any, **arguments: Any) -> None:
        with torch.no_grad():
            next(iter(model.parameters())).mul_(1.5)
        init(self, model, **arguments)

    monkeypatch.setattr(HFEngine, "__init__", broken)
    monkeypatch.setattr(WeightChange, "apply", lambda self, adapters: pytest.fail("weights were changed"))
    with pytest.raises(ConfigError, match=r"before any update, expected at most 0\.0005"):
        train(SHORT)


def test_an_evaluation_compares_and_changes_nothing(
    train: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WeightChange, "apply", lambda self, adapters: pytest.fail("weights were changed"))
    with caplog.at_level(logging.INFO):
        train({"trainer.val_only": True, "trainer.resume_mode": "disable"})
    assert "after they were sent weights" in caplog.text


def test_a_signal_ends_an_evaluation_without_words_of_steps_and_checkpoints(
    train: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = Validator.run

    def interrupted(self: Validator, stop: StopRequest, log: bool = True) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return validate(self, stop, log)

    monkeypatch.setattr(Validator, "run", interrupted)
    trainer: RayPPOTrainer = train({"trainer.val_only": True, "trainer.resume_mode": "disable"})
    assert trainer.stopped_by == signal.SIGTERM
    said = [line for line in caplog.messages if "SIGTERM" in line or "signal" in line]
    assert said == [
        "SIGTERM: ending the episodes; repeat to stop at once",
        "evaluation of step 0 stopped by a signal: it has no result",
    ]


def test_a_run_that_continues_is_checked_with_its_own_weights(
    train: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train({"trainer.total_training_steps": 1, "trainer.save_freq": 1})
    caplog.clear()
    with caplog.at_level(logging.INFO):
        trainer: RayPPOTrainer = train(
            {
                "trainer.total_training_steps": 2,
                "trainer.save_freq": 1,
                "actor_rollout_ref.actor.optim.lr": 0.0125,
            }
        )
    assert (
        trainer.progress.global_step == 2
        and "engines agree" in caplog.text
        and "continuing from" in caplog.text
    )
    (changes,) = [
        line for line in caplog.messages if line.startswith("keys that differ from those of the ch")
    ]
    # nothing that every start sets
    assert changes.count(" -> ") == 1 and "actor_rollout_ref.actor.optim.lr: " in changes
    assert changes.endswith(" -> 0.0125")


def test_a_step_on_samples_of_another_policy_is_said_once_and_a_sound_one_is_not(
    train: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the pass before the update, and by the update itself."""
    own = {
        "data.val_files": "[]",
        "trainer.val_before_train": False,
        "trainer.checks": "[memory]",
        "trainer.resume_mode": "disable",
    }
    passes = {"actor_rollout_ref.actor.ppo_epochs": 2}
    train(own)
    train(own | passes)
    assert "engine and trainer disagree" not in caplog.text
    generate = HFEngine.generate

    async def another(self: HFEngine, request: Any) -> Any:
        replies = await generate(self, request)
        return [
            replace(reply, log_probs=tuple(2.5 * value for value in reply.log_probs)) for reply in replies
        ]

    monkeypatch.setattr(HFEngine, "generate", another)
    for changes in ({}, passes):
        caplog.clear()
        train(own | changes)
        assert caplog.text.count("engine and trainer disagree on samples of the current weights") == 1

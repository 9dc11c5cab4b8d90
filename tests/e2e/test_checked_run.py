"""What a config becomes before anything starts: defaults, the chat template's arguments, and tasks that every
agent can be asked.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system.launch.checks import CheckedRun, check_run
from agent_system.launch.collector import build_collector
from agent_system.registry import EnvRegistry
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.command_line import compose_config
from verl.utils.dataset import DatasetError

from .conftest import write_tasks

Check = Callable[..., tuple[Any, CheckedRun]]


@pytest.fixture
def check(overrides: Callable[..., list[str]]) -> Check:
    """Compose and check a config with changes; returns (config, what it stands for)."""

    def go(changes: Mapping[str, Any] | None = None) -> tuple[Any, CheckedRun]:
        config = compose_config(overrides(changes))
        return config, check_run(config)

    return go


SIX_RANKS = {
    "trainer.controller": "ray",
    "trainer.nnodes": 2,
    "trainer.n_gpus_per_node": 3,
}


@pytest.mark.parametrize(
    ("changes", "episodes"),
    [
        ({}, 4 * 8),
        ({**SIX_RANKS}, 4 * 8 * 6),
        ({**SIX_RANKS, "rollout.n_gpus_per_node": 2}, 4 * 8 * 2),
        ({"rollout.max_concurrent_episodes": 5}, 5),
    ],
)
def test_episodes_in_flight_follow_the_slots_of_the_engines(
    check: Check, changes: dict[str, Any], episodes: int
) -> None:
    config, _ = check(changes)
    assert config.rollout.max_concurrent_episodes == episodes


def test_lengths_beyond_the_positions_of_a_model_are_told(
    check: Check, caplog: pytest.LogCaptureFixture
) -> None:
    check()
    assert "positions" not in caplog.text
    check({"data.max_prompt_length": 1024})
    assert (
        "group 'asker': data.max_prompt_length" in caplog.text
        and "allow 1030 tokens" in caplog.text
        and "1024 pos" in caplog.text
    )


def test_arguments_of_the_chat_template_reach_every_agent(check: Check) -> None:
    config, checked = check({"data.apply_chat_template_kwargs.enable_thinking": "false"})
    collector = build_collector(config, checked.plan, checked.tokenizers, dict.fromkeys(checked.tokenizers))
    assert [runtime.prompts.template_kwargs for runtime in collector.runtimes.values()] == [
        {"enable_thinking": False}
    ] * 2


def test_an_argument_of_the_chat_template_that_the_run_sets_is_refused(check: Check) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.apply_chat_template_kwargs\.tokenize=true: tokenize is set by the run"
    ):
        check({"data.apply_chat_template_kwargs.tokenize": "true"})


def test_a_task_that_an_agents_own_words_make_too_long_is_dropped(check: Check, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "long.jsonl", 11)  # the last one has a digit more; one token a byte
    asked, judged = (
        f"<|im_start|>user\n{word} 10?<|im_end|>\n<|im_start|>assistant\n" for word in ("Ask:", "Judge:")
    )
    special = sum(len(token) - 1 for token in ("<|im_start|>", "<|im_end|>", "<|im_start|>"))
    files = {"data.train_files": tasks, "data.val_files": tasks, "data.val_max_samples": -1}

    def tasks_left(**limits: Any) -> int:
        checked = check(files | {key.replace("__", "."): value for key, value in limits.items()})[1]
        assert checked.train is not None and checked.val is not None
        assert len(checked.train) == len(checked.val)
        return len(checked.train)

    longest = len(judged) - special
    assert tasks_left(data__max_prompt_length=longest) == 11
    assert tasks_left(data__max_prompt_length=longest - 1) == 10
    own = f"[{len(asked) - special},{longest}]"
    assert (
        tasks_left(
            data__max_prompt_length=longest, agent__agent_specific_parameters__rollout__prompt_length=own
        )
        == 11
    )
    own = f"[{len(asked) - special - 1},{longest}]"
    assert (
        tasks_left(
            data__max_prompt_length=longest, agent__agent_specific_parameters__rollout__prompt_length=own
        )
        == 10
    )


def test_tasks_of_a_world_that_judges_by_itself_need_no_ground_truth(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open.jsonl").write_text('{"data_source": "toy", "prompt": "go"}\n' * 2)
    files = {"data.train_files": tmp_path / "open.jsonl", "data.val_files": tmp_path / "open.jsonl"}
    with pytest.raises(DatasetError, match="no ground truth"):
        check(files)
    monkeypatch.setattr(EnvRegistry.get("my_world"), "needs_ground_truth", False)
    checked = check(files)[1]
    assert [None if data is None else len(data) for data in (checked.train, checked.val)] == [2, 2]

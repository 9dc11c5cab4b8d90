"""A reward function is tried before training: in a thread of the run it has to give what it gives in the main
thread.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agent_system.reward.trial import try_function
from agent_system.task import task_from_row
from verl.trainer.config.reward import RewardConfig

ROW = {
    "data_source": "demo",
    "prompt": [{"role": "user", "content": "7?"}],
    "reward_model": {"ground_truth": "7"},
    "extra_info": {"index": 3},
}
HEAD = """
import asyncio, random, signal, threading
def compute_score(data_source, solution_str, ground_truth, extra_info):
"""
IN_MAIN = "threading.current_thread() is threading.main_thread()"


def tried(
    tmp_path: Path, code: str, caplog: pytest.LogCaptureFixture, name: str = "compute_score"
) -> list[str]:
    """Try a function, and return the warnings."""
    file = tmp_path / "reward.py"
    file.write_text(code)
    settings = RewardConfig()
    settings.custom_reward_function.path = f"{file}:{name}"
    with caplog.at_level(logging.WARNING):
        try_function(settings, task_from_row(ROW))
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"    return float({IN_MAIN})", "gives 0.0 for a task in a thread of the run"),
        (f"    return 1.0 if {IN_MAIN} else 1 / 0", "gives ZeroDivisionError: division by zero"),
        (
            "    try:\n        signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n    except ValueError:\n"
            "        return 0.0\n    return 1.0",
            "handled an error of its thread",
        ),
    ],
)
def test_what_differs_in_a_thread_is_told_before_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, words: str
) -> None:
    assert any(words in warning for warning in tried(tmp_path, HEAD + body, caplog))


def test_an_async_function_is_tried_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = HEAD.replace("def compute", "async def compute") + f"    return float({IN_MAIN})"
    assert any("in the main thread" in warning for warning in tried(tmp_path, code, caplog))


@pytest.mark.parametrize(
    "body",
    [
        "    return float(solution_str == ground_truth == '7' and extra_info['index'] == 3)",
        "    return random.random()",
        "    return {'score': 1.0, 'data_source': data_source}",
        "    raise KeyError('of every thread')",
        "    raise SystemExit(3)",
        "    return None",
    ],
)
def test_what_is_the_same_everywhere_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    assert tried(tmp_path, HEAD + body, caplog) == []


def test_functions_of_episodes_and_slow_ones_are_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(tmp_path, "def reward(episode):\n    return 1 / 0", caplog, "reward") == []
    monkeypatch.setattr("agent_system.reward.trial.LONGEST_S", 0.05)
    slow = tmp_path / "slow"
    slow.mkdir()
    code = (
        HEAD.replace("import asyncio", "import time, asyncio")
        + f"    time.sleep(0.5)\n    return float({IN_MAIN})"
    )
    assert tried(slow, code, caplog) == []

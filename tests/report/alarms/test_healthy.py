"""Runs that learn raise no alarm: a made one that converges, and a real one."""

import json
from pathlib import Path

from tests.report.alarms.made_runs import MadeRun
from verl.report.alarms import is_solved, raised_alarms


def test_a_healthy_run_raises_none_and_is_solved() -> None:
    """No group has a signal at its end, entropy is a tenth, replies are twice as long, most of them
    equal, and the Verifier approves nearly everything.
    """
    run = MadeRun().build()
    run["alarms"] = raised_alarms(run)
    assert run["alarms"] == []
    assert is_solved(run)


def test_a_real_run_raises_none() -> None:
    """`recorded.json` has metrics of the run `none` of recipe/alarms, seed 0."""
    run = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
    run |= {
        "config": {"trainer.device": "cpu", "trainer.total_training_steps": 60, "data.train_batch_size": 8},
        "agents": [
            {"agent": "Speaker", "policy": "speaker", "trained": True},
            {"agent": "Checker", "policy": "checker", "trained": False},
        ],
    }
    success = run["metrics"]["episode/success_rate"]
    assert sum(success[-5:]) > 1.5 * sum(success[1:6]), "it learns"
    assert raised_alarms(run) == []

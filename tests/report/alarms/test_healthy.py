"""A run that learns and converges raises no alarm."""

from tests.report.alarms.made_runs import MadeRun
from verl.report.alarms import is_solved, raised_alarms


def test_a_healthy_run_raises_none_and_is_solved() -> None:
    run = MadeRun().build()
    run["alarms"] = raised_alarms(run)
    assert run["alarms"] == []
    assert is_solved(run)

"""Hints: figures that are no fault, and are hidden while there is one."""

from tests.report.alarms.made_runs import IDS, MadeRun
from verl.report.alarms import raised_alarms

SERIES = {
    "trainer/idle_ratio": lambda step: 0.6,
    "gateway/solver_agent/mass_cut_off_mean": lambda step: 0.12,
}
# sin-like: the best is not the last
MANY = {step: (lambda task, step=step: 0.9 if (task + step) % 7 else 0.2) for step in range(1, 59, 4)}


def test_hints_are_given_when_nothing_serious_is_raised() -> None:
    alarms = raised_alarms(MadeRun(series=SERIES, validations=MANY).build())
    assert [(alarm["number"], alarm["level"]) for alarm in alarms] == [
        (17, "hint"),
        (18, "hint"),
        (19, "hint"),
    ]
    assert "too good" in alarms[0]["text"] and "60%" in alarms[1]["text"] and "12%" in alarms[2]["text"]


def test_a_little_less_gives_none() -> None:
    series = {name: (lambda step, f=values: 0.8 * f(step)) for name, values in SERIES.items()}
    few = dict(list(MANY.items())[:9])
    assert raised_alarms(MadeRun(series=series, validations=few).build()) == []


def test_serious_alarms_hide_them() -> None:
    stale = {f"agent/{name}/staleness/max": lambda step: 2.0 for name in IDS}
    alarms = raised_alarms(MadeRun(series=SERIES | stale).build())
    assert [alarm["number"] for alarm in alarms] == [4]

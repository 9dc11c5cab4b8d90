"""Runs of older versions, damaged ones and any series at all: no alarm without data, and no error."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.alarms.made_runs import AGENTS, MadeRun
from verl.report.alarms import ALL_RULES, RunFacts, is_solved, raised_alarms
from verl.report.alarms.facts import is_garbled

FLOATS = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1)
NAMES = [
    *sorted(MadeRun().healthy_series()),
    "env/agreed", "trainer/idle_ratio", "gateway/a/mass_cut_off_mean", "reward/x/mean",
    "fully_async/count/trained", "fully_async/count/dropped_stale_samples",
    "fully_async/trained_length_ratio", "agent/solver_agent/gradient_share", "agent/",
    "wg//actor/lr", "agent/x/valid_rate",
]  # fmt: skip


@pytest.mark.parametrize(
    "run", [{}, {"steps": [], "metrics": {}}, {"steps": [0, 1, 2]}, {"state": {}, "facts": None}]
)
def test_an_empty_run_has_no_alarm(run: dict[str, Any]) -> None:
    assert raised_alarms(run) == []
    assert not is_solved(run)


@pytest.mark.parametrize("missing", sorted(MadeRun().healthy_series()))
def test_a_metric_that_an_older_run_lacks_raises_nothing(missing: str) -> None:
    assert raised_alarms(MadeRun(episodes=(0, 0), series={missing: None}).build()) == []


def test_a_run_without_records_and_credit_raises_nothing() -> None:
    assert raised_alarms(MadeRun(episodes=(0, 0), credit=False).build()) == []


@given(
    steps=st.integers(0, 40),
    data=st.data(),
    mode=st.sampled_from(["sync", "one_step_off", "fully_async", "unheard of"]),
    total=st.sampled_from([-1, 0, 7, 60, "many"]),
)
@settings(max_examples=40, deadline=None)
def test_random_series_raise_no_error(steps: int, data: st.DataObject, mode: str, total: Any) -> None:
    metrics = {
        name: data.draw(st.lists(FLOATS, min_size=steps, max_size=steps))
        for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=8, unique=True))
    }
    run = {
        "steps": list(range(1, steps + 1)),
        "metrics": metrics,
        "config": {
            "async_training.mode": mode,
            "trainer.total_training_steps": total,
            "rollout.max_failure_rate": None,
        },
        "agents": AGENTS if steps % 2 else [],
    }
    alarms = raised_alarms(run)
    json.dumps(alarms)
    assert len([alarm for alarm in alarms if alarm["cleared"] is None]) <= 5
    assert {alarm["number"] for alarm in alarms} <= {rule.number for rule in ALL_RULES}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
KEYS = (
    "agent_id", "prompt", "reply", "action", "valid", "trained", "committed", "greedy", "stop_reason", "seed",
    "turn", "call", "candidate", "anchor", "repeated", "reward_terms",
)  # fmt: skip
CALLS = st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=16) | JSON, max_size=4)
EPISODES = st.dictionaries(
    st.sampled_from(
        ["uid", "traj_uid", "task_id", "info", "failure", "answer", "team_reward", "reward_terms"]
    ),
    JSON,
)


COLUMNS = ("traj_uid", "turn", "call", "candidate", "policy_id", "tokens", "advantage", "logp")


@given(st.fixed_dictionaries({name: st.lists(JSON, min_size=2, max_size=2) for name in COLUMNS}))
@settings(max_examples=150, deadline=None)
def test_any_credit_is_read_without_an_error(columns: dict[str, list[Any]]) -> None:
    raised_alarms({"steps": [1], "metrics": {}, "credit": {"1": columns}, "config": {}})


def test_numbers_without_a_float_count_as_none() -> None:
    facts = RunFacts()
    facts.add(1, "train", 0, {"team_reward": 10**400, "info": {"success": 10**400}, "calls": []})
    assert facts.steps["train", 1].groups["None"].high == -math.inf


@given(st.lists(st.tuples(EPISODES, CALLS, st.sampled_from(["train", "val"])), max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_record_is_read_without_an_error(records: list[tuple[dict[str, Any], Any, str]]) -> None:
    facts = RunFacts()
    for number, (episode, calls, split) in enumerate(records):
        facts.add(1, split, number, episode | {"calls": calls})
    raised_alarms({"steps": [1], "metrics": {}, "facts": facts, "config": {}})


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("!" * 40, True),
        ("!" * 20, False),
        ("the cat sat down " * 12, True),
        ("First 6+7=13. Then 13-4=9. \\boxed{9}", False),
        ("right right right right right down down left", False),
        ("", False),
        ("\ud800" * 40, True),
        (" ".join(str(n) for n in range(200)), False),
    ],
)
def test_noise_is_told_from_text(text: str, garbled: bool) -> None:
    assert is_garbled(text) is garbled

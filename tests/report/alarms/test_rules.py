"""Each alarm: a series that raises it, and one just below that does not."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.report.alarms.made_runs import IDS, SOLVER, VERIFIER, MadeRun, between
from verl.report.alarms import ALL_RULES, is_solved, raised_alarms
from verl.report.alarms.base import LEVELS

NOW = 1_000_000.0


def run_state(**changes: Any) -> dict[str, Any]:
    return {
        "state": "running",
        "heartbeat": NOW - 5,
        "step": 30,
        "total_steps": 60,
        "open_spans": [],
        "episodes_in_progress": 12,
        "attempt": {"started": NOW - 5000, "from_step": 0},
    } | changes


def spans(count: int, seconds: float, ended: float) -> dict[str, list[Any]]:
    """`count` updates of one policy, one a step, the last of which ended `ended` seconds ago."""
    ends = [NOW - ended - (count - 1 - place) * 2 * seconds for place in range(count)]
    return {
        "step": list(range(1, count + 1)),
        "lane": ["solver_agent"] * count,
        "call": ["update_actor"] * count,
        "start": [end - seconds for end in ends],
        "end": ends,
    }


def still(**state: Any) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        run["built"] = NOW
        run["state"] = run_state(
            **state.pop("state_of", {}), **{k: v for k, v in state.items() if k != "spans"}
        )
        run["spans"] = state.get("spans") or spans(10, 20.0, 10.0)

    return change


def open_for(seconds: float) -> Callable[[dict[str, Any]], None]:
    return still(open_spans=[{"wg_id": "solver_agent", "call": "update_actor", "start": NOW - seconds}])


def flat(level: float) -> Callable[[int], float]:
    return lambda step: level


def on_all(leaf: str, values: Callable[[int], float], kind: str = "agent") -> dict[str, Any]:
    return {f"{kind}/{name}/{leaf}": values for name in IDS}


def garble(share: float) -> Callable[[dict[str, Any], int], None]:
    """Every n-th Solver's reply is noise."""

    def change(episode: dict[str, Any], step: int) -> None:
        place = int(episode["uid"].split(":")[1].split("/")[0]) * 8 + episode["index"]
        if step > 12 and place % round(1 / share) == 0:
            episode["calls"][0]["reply"] = "!" * 60

    return change


def cut_all(episode: dict[str, Any], step: int) -> None:
    for call in episode["calls"]:
        call["stop_reason"] = "length"


def fail(share: float) -> Callable[[dict[str, Any], int], None]:
    def change(episode: dict[str, Any], step: int) -> None:
        if episode["index"] == 0 and episode["uid"].endswith(("1/0", "2/0")):
            episode["failure"] = "TimeoutError: the episode took 601.2 s, its time limit is 600 s"

    return change


def same_seed(where: int) -> Callable[[dict[str, Any], int], None]:
    def change(episode: dict[str, Any], step: int) -> None:
        if step == where and episode["index"] < 2 and episode["uid"].endswith("1/0"):
            episode["calls"][0]["seed"] = 7

    return change


def longer_if_wrong(times: float) -> Callable[[dict[str, Any], int], None]:
    def change(episode: dict[str, Any], step: int) -> None:
        if not episode["team_reward"]:
            for call in episode["calls"]:
                call["response_tokens"] = round(20 * times)

    return change


def add_third(quoted: bool) -> Callable[[dict[str, Any], int], None]:
    """A Critic speaks after the first solution; the Verifier reads it, or not."""

    def change(episode: dict[str, Any], step: int) -> None:
        first = episode["calls"][0]
        remark = f"Remark {episode['traj_uid']}"
        critic = first | {"agent_id": "Critic", "policy_id": "critic", "reply": remark, "action": remark}
        critic["call"] = 9
        episode["calls"].insert(1, critic)
        if quoted and episode["index"] == 0:
            episode["calls"][2]["prompt"] += f"\nCritic: {remark}"

    return change


def thinks(episode: dict[str, Any], step: int) -> None:
    """Replies begin with thoughts, which later prompts leave out."""
    for call in episode["calls"]:
        call["reply"] = f"<think>{call['reply'][::-1]}</think>\n{call['reply']}"


def copies(share: int) -> Callable[[dict[str, Any], int], None]:
    """The Verifier repeats the Solver in all but one episode of `share`."""

    def change(episode: dict[str, Any], step: int) -> None:
        if episode["index"] % share or share == 1:
            episode["calls"][1]["reply"] = episode["calls"][0]["reply"]

    return change


def judged(one_value: float) -> Callable[[dict[str, Any], int], None]:
    def change(episode: dict[str, Any], step: int) -> None:
        place = (hash((episode["traj_uid"],)) % 1000) / 1000
        episode["reward_terms"] = {"model_score": 1.0 if place < one_value else round(place, 2)}

    return change


@dataclass(frozen=True)
class Case:
    """Changes of a healthy run that raise an alarm, smaller ones that do not, and words of its text."""

    number: int
    name: str
    planted: Mapping[str, Any]
    below: Mapping[str, Any]
    words: tuple[str, ...] = ()
    after: Callable[[dict[str, Any]], None] | None = None
    after_below: Callable[[dict[str, Any]], None] | None = None
    tried: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


HALF = flat(0.5)
STUCK = {"success": HALF, "approve": lambda step: (0.9, 0.4), "same": flat(0.4)}
CASES = [
    Case(
        1,
        "open span",
        {},
        {},
        ("update_actor of solver_agent", "83 min"),
        open_for(5000),
        open_for(590),
        "worker_timeout_s",
    ),
    Case(
        1, "heartbeat", {}, {}, ("no sign of life",), still(heartbeat=NOW - 61.0), still(heartbeat=NOW - 59.0)
    ),
    Case(
        1,
        "no new step",
        {},
        {},
        ("No step has ended for 17 min",),
        still(spans=spans(10, 20.0, 1000.0)),
        still(spans=spans(10, 100.0, 1000.0)),
    ),
    Case(
        2,
        "timeouts",
        {"series": {"episode/failed": flat(5.6), "episode/count": flat(64.4)}, "change": fail(0.08)},
        {"series": {"episode/failed": flat(3.1), "episode/count": flat(66.9)}},
        ("8.0%", "TimeoutError", "N s"),
        tried="rollout.episode_timeout_s",
    ),
    Case(
        2,
        "restarts",
        {"series": {"training/engine_restarts": lambda step: float(step)}},
        {"series": {"training/engine_restarts": lambda step: step // 3}},
        ("Engines were restarted 5 times",),
    ),
    Case(
        3,
        "tail of ratios",
        {
            "series": {
                "rollout_corr/rollout_is_ratio_fraction_high": flat(0.003),
                "rollout_corr/rollout_is_ratio_fraction_low": flat(0.0025),
            }
        },
        {
            "series": {
                "rollout_corr/rollout_is_ratio_fraction_high": flat(0.003),
                "rollout_corr/rollout_is_ratio_fraction_low": flat(0.0019),
            }
        },
        ("0.55%",),
        tried="rollout_is=token",
    ),
    Case(
        3,
        "divergence",
        {"series": {"rollout_corr/k3_kl": lambda step: 2e-4 if step < 20 else 1.1e-3}},
        {"series": {"rollout_corr/k3_kl": lambda step: 2e-4 if step < 20 else 9e-4}},
        ("6 times",),
    ),
    Case(
        3,
        "cpu",
        {"series": {"rollout_corr/log_prob_diff_max": flat(1.1e-3)}},
        {"series": {"rollout_corr/log_prob_diff_max": flat(9e-4)}},
        ("fp32",),
    ),
    Case(
        4,
        "two behind",
        {"series": on_all("staleness/max", flat(2.0))},
        {"series": on_all("staleness/max", flat(0.0))},
        (SOLVER, "2 versions"),
    ),
    Case(
        4,
        "mean age",
        {
            "config": {"async_training.mode": "fully_async"},
            "series": on_all("staleness/mean", flat(3.3)) | on_all("staleness/max", flat(4)),
        },
        {
            "config": {"async_training.mode": "fully_async"},
            "series": on_all("staleness/mean", flat(3.1)) | on_all("staleness/max", flat(4)),
        },
        ("3.3 versions",),
    ),
    Case(
        4,
        "dropped",
        {
            "config": {"async_training.mode": "fully_async"},
            "series": {
                "fully_async/count/dropped_stale_samples": lambda s: s * 0.5,
                "fully_async/count/trained": lambda s: s * 8.0,
            },
        },
        {
            "config": {"async_training.mode": "fully_async"},
            "series": {
                "fully_async/count/dropped_stale_samples": lambda s: s * 0.3,
                "fully_async/count/trained": lambda s: s * 8.0,
            },
        },
        ("too old",),
    ),
    Case(
        4,
        "short ones",
        {
            "config": {"async_training.mode": "fully_async"},
            "series": {"fully_async/trained_length_ratio": flat(0.85)},
        },
        {
            "config": {"async_training.mode": "fully_async"},
            "series": {"fully_async/trained_length_ratio": flat(0.91)},
        },
        ("85%",),
    ),
    Case(
        6,
        "cliff",
        {
            "success": lambda step: 0.9 if step < 40 else 0.3,
            "series": on_all("actor/entropy", lambda step: 0.5 if step < 36 else 0.2, "wg"),
            "same": flat(0.5),
            "approve": lambda s: (0.9, 0.4),
        },
        {
            "success": lambda step: 0.9 if step < 40 else 0.66,
            "same": flat(0.5),
            "approve": lambda s: (0.9, 0.4),
        },
        ("actor/entropy, at step 36", "at step 39"),
        tried="trainer.resume_mode",
    ),
    Case(
        7,
        "pays for length",
        {
            "success": between(0.8, 0.6, 60),
            "same": flat(0.5),
            "series": on_all("reward/mean", lambda s: 0.5 + s / 50)
            | {"reward/length/mean": lambda s: s / 40, "reward/right/mean": between(0.8, 0.6, 60)},
        },
        {
            "success": flat(0.8),
            "same": flat(0.5),
            "series": on_all("reward/mean", lambda s: 0.5 + s / 50)
            | {"reward/length/mean": lambda s: s / 40},
        },
        ("reward/length/mean", "success falls by"),
    ),
    Case(
        7,
        "validation",
        {
            "success": between(0.5, 0.9, 60),
            "validations": {20: lambda task: 0.8 + 0.1 * (task % 2), 50: lambda task: 0.7 + 0.1 * (task % 3)},
        },
        {
            "success": between(0.5, 0.9, 60),
            "validations": {
                20: lambda task: 0.8 + 0.1 * (task % 2),
                50: lambda task: 0.75 + 0.2 * (task % 2),
            },
        },
        ("step 50", "step 20"),
    ),
    Case(
        8,
        "approves all",
        STUCK | {"approve": lambda step: (1.0, 0.9)},
        STUCK | {"approve": lambda step: (1.0, 0.72)},
        ("verifier rejects",),
        tried="verdict_reward",
    ),
    Case(8, "judge", STUCK | {"change": judged(0.97)}, STUCK | {"change": judged(0.9)}, ("scores are 1",)),
    Case(
        8,
        "tests",
        {**STUCK, "series": {"env/agreed": flat(0.97)}},
        {**STUCK, "series": {"env/agreed": flat(0.9)}},
        ("fail nothing",),
    ),
    Case(
        9,
        "gone",
        STUCK | {"series": on_all("actor/entropy", lambda step: 0.5 if step < 20 else 0.05, "wg")},
        STUCK | {"series": on_all("actor/entropy", lambda step: 0.5 if step < 20 else 0.11, "wg")},
        ("solver_agent", "10%"),
        tried="clip_ratio_high",
    ),
    Case(
        9,
        "explodes",
        STUCK | {"series": on_all("actor/entropy", lambda step: 0.5 if step < 20 else 1.55, "wg")},
        STUCK | {"series": on_all("actor/entropy", lambda step: 0.5 if step < 20 else 1.45, "wg")},
        ("3.1 times",),
    ),
    Case(
        10,
        "cut",
        STUCK | {"series": on_all("truncated_replies", flat(0.26))},
        STUCK | {"series": on_all("truncated_replies", flat(0.24))},
        ("26%",),
    ),
    Case(
        10,
        "doubled",
        STUCK | {"series": on_all("response_length/mean", lambda step: 20 if step < 20 else 42)},
        STUCK | {"series": on_all("response_length/mean", lambda step: 20 if step < 20 else 38)},
        ("2.1 times",),
    ),
    Case(
        10,
        "halved",
        STUCK | {"series": on_all("response_length/mean", lambda step: 20 if step < 20 else 9)},
        STUCK | {"series": on_all("response_length/mean", lambda step: 20 if step < 20 else 11)},
    ),
    Case(
        11,
        "invalid",
        STUCK | {"series": on_all("valid_rate", lambda step: 0.97 if step < 20 else 0.88)},
        STUCK | {"series": on_all("valid_rate", lambda step: 0.97 if step < 20 else 0.91)},
        ("88%", "97%"),
    ),
    Case(
        11,
        "low from the start",
        STUCK | {"series": on_all("valid_rate", lambda step: 0.9 if step < 20 else 0.84)},
        STUCK | {"series": on_all("valid_rate", lambda step: 0.88 if step < 20 else 0.84)},
    ),
    Case(11, "garbled", STUCK | {"change": garble(1 / 16)}, STUCK | {"change": garble(1 / 100)}, (SOLVER,)),
    Case(
        12,
        "spent",
        STUCK | {"series": on_all("actor/lr", lambda step: 3e-4 * max(1 - step / 30, 0.01), "wg")},
        STUCK | {"series": on_all("actor/lr", lambda step: 3e-4 * max(1 - step / 60, 0.01), "wg")},
        ("learning rate",),
        fields={"steps": 45},
    ),
    Case(
        12,
        "skipped",
        {"series": on_all("actor/skipped_steps", flat(1.0), "wg")},
        {"series": on_all("actor/skipped_steps", lambda step: float(step % 2), "wg")},
    ),
    Case(
        12,
        "no gradient",
        {"series": on_all("actor/grad_norm", flat(0.0), "wg")},
        {"series": on_all("actor/grad_norm", flat(0.0), "wg") | on_all("advantage_abs", flat(0.0))},
    ),
    Case(
        13,
        "all fail",
        STUCK
        | {
            "success": flat(0.0),
            "series": on_all("zero_signal_groups", flat(1.0)),
            "approve": lambda s: (0.5, 0.5),
        },
        STUCK | {"success": flat(0.91), "series": on_all("zero_signal_groups", flat(1.0))},
        ("every episode fails",),
        tried="rollout.tree.returns=committed",
    ),
    Case(
        13,
        "all cut",
        STUCK
        | {
            "success": flat(0.0),
            "series": on_all("zero_signal_groups", flat(0.7)),
            "approve": lambda s: (0.5, 0.5),
            "change": cut_all,
        },
        STUCK | {"series": on_all("zero_signal_groups", flat(0.58))},
        ("every reply is cut",),
        tried="max_response_length",
    ),
    Case(
        13,
        "all tie",
        STUCK
        | {
            "success": lambda step: 0.5,
            "series": on_all("zero_signal_groups", flat(0.7)),
            "change": lambda episode, step: episode.update(team_reward=0.5),
        },
        STUCK | {"series": on_all("zero_signal_groups", flat(0.7)), "episodes": (7, 8)},
        ("succeed alike",),
    ),
    Case(
        14,
        "long wrong replies",
        STUCK | {"change": longer_if_wrong(4.0)},
        STUCK | {"change": longer_if_wrong(2.0)},
        ("against replies",),
    ),
    Case(
        14,
        "one agent",
        STUCK | {"series": {"agent/solver_agent/gradient_share": flat(0.96)}},
        STUCK | {"series": {"agent/solver_agent/gradient_share": flat(0.94)}},
        (SOLVER,),
    ),
    Case(
        15,
        "equal at entropy 1",
        STUCK | {"same": flat(0.95), "log_prob": flat(math.log(0.05))},
        STUCK | {"same": flat(0.95), "log_prob": flat(math.log(0.2))},
        ("should be",),
    ),
    Case(15, "seeds", {"change": same_seed(60)}, {"change": same_seed(61)}, ("equal seeds",)),
    Case(
        16,
        "one action",
        STUCK | {"approve": lambda step: (1.0, 1.0)},
        STUCK | {"approve": lambda step: (0.96, 0.96)},
        (VERIFIER, "'approve'"),
    ),
    Case(
        16,
        "ignored third",
        STUCK | {"change": add_third(quoted=False)},
        STUCK | {"change": add_third(quoted=True)},
        ("Critic", "audit"),
    ),
    Case(16, "copies", STUCK | {"change": copies(1)}, STUCK | {"change": copies(4)}, (VERIFIER, "copies")),
]


def alarms_of(run: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {alarm["number"]: alarm for alarm in raised_alarms(run) if alarm["cleared"] is None}


def build(
    changes: Mapping[str, Any], case: Case, after: Callable[[dict[str, Any]], None] | None
) -> dict[str, Any]:
    run = MadeRun(**(dict(case.fields) | dict(changes))).build()
    if after is not None:
        after(run)
    return run


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number} {case.name}")
def test_what_is_planted_raises_its_alarm(case: Case) -> None:
    raised = alarms_of(build(case.planted, case, case.after))
    assert case.number in raised, sorted(raised)
    alarm = raised[case.number]
    assert all(word in alarm["text"] for word in case.words), alarm["text"]
    assert case.tried in " ".join(alarm["try"])
    assert alarm["level"] in LEVELS
    assert alarm["raised"] is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number} {case.name}")
def test_a_little_less_does_not(case: Case) -> None:
    raised = alarms_of(build(case.below, case, case.after_below))
    assert case.number not in raised, raised[case.number]["text"]


def test_every_alarm_has_a_case() -> None:
    # 5 is planted in test_validation.py, hints in test_hints.py
    assert {case.number for case in CASES} | {5, 17, 18, 19} == {rule.number for rule in ALL_RULES}


def test_a_run_that_fails_is_not_solved() -> None:
    run = MadeRun(success=flat(0.99), series={"episode/failed": flat(7.0)}).build()
    run["alarms"] = raised_alarms(run)
    assert not is_solved(run)


def test_thoughts_that_others_do_not_see_make_no_lazy_agent() -> None:
    assert 16 not in alarms_of(MadeRun(steps=20, **STUCK, change=thinks).build())


def test_a_verdict_that_approves_all_is_harmless_in_a_solved_run() -> None:
    def wrong_first(episode: dict[str, Any], step: int) -> None:
        episode["info"].pop("verifier/specificity", None)
        if episode["index"] % 2:
            episode["info"]["verifier/specificity"] = 0.0

    run = MadeRun(success=flat(0.99), change=wrong_first).build()
    run["alarms"] = raised_alarms(run)
    assert 8 not in alarms_of(run) and is_solved(run)
    assert 8 in alarms_of(MadeRun(success=flat(0.6), change=wrong_first).build())

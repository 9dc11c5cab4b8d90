"""Alarms 6 to 11: what worked is getting worse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl.report.alarms.base import CLEAR_AT, Reading, Rule
from verl.report.alarms.facts import StepFacts
from verl.report.alarms.history import MEAN_STEPS, START_STEPS, History, spearman

CLIFF = 0.7
CLIFF_DROP = 0.1
AS_GOOD = 0.97
LEAD_STEPS = 10
CLIFF_Z = 4.0
CLIFF_EPISODES = 64
TREND_STEPS = 20
TREND = 0.6
TREND_DROP = 0.05
FEWEST_TASKS = 10
SPECIFICITY = 0.2
WRONG_CASES = 50
COMMONEST = 0.95
EQUAL_SUCCESS = 0.05
FEWEST_OTHERS = 20
ENTROPY_GONE = 0.2
ENTROPY_ROOM = 0.15
ENTROPY_EXPLODES = 3.0
# In nats: below it three times the start is still next to nothing.
LEAST_ENTROPY = 0.1
NO_GAIN = 0.02
CUT = 0.25
INVALID = 0.1
INVALID_DROP = 0.05
FEWEST_CALLS = 100
GARBLED = 0.02
# What may leave its usual range before success falls.
LEADING = {
    "wg": ("actor/entropy", "actor/grad_norm", "actor/ppo_kl", "actor/pg_clipfrac"),
    "agent": ("response_length/mean", "valid_rate", "truncated_replies"),
}
MAD_SCALE = 1.4826


def means_of_5(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each 5 successive values that are all finite; NaN elsewhere, also for the
    first 4.
    """
    means = np.full(len(values), np.nan)
    if len(values) >= MEAN_STEPS:
        windows = np.lib.stride_tricks.sliding_window_view(values, MEAN_STEPS)
        means[MEAN_STEPS - 1 :] = windows.mean(axis=1)
    return means


def cliff(history: History) -> Iterator[Reading]:
    """Judge the mean success of 5 steps against its best, and name what moved first."""
    means = means_of_5(history.success())
    now = means[-1]
    before = means[:-MEAN_STEPS]
    if not np.isfinite(now) or not np.isfinite(before).any():
        return
    # Of a plateau the end: its checkpoint is the newest that is good.
    at = int(np.flatnonzero(before >= AS_GOOD * np.nanmax(before))[-1])
    best = float(before[at])
    if best <= now or best <= 0:
        return
    end = len(means)
    episodes, error = history.success_error(end - MEAN_STEPS, end)
    best_episodes, best_error = history.success_error(at + 1 - MEAN_STEPS, at + 1)
    z = (best - now) / max(math.hypot(error, best_error), 1e-6)
    ratio = min((1 - now / best) / (1 - CLIFF), (best - now) / CLIFF_DROP, z / CLIFF_Z)
    if min(episodes, best_episodes) < CLIFF_EPISODES:
        ratio = 0.0
    first = moved_first(history, at) if ratio >= 1 else None
    why = f" The first series to leave its usual range was {first[0]}, at step {first[1]}." if first else ""
    step = history.steps[at]
    yield Reading(
        ratio,
        f"Mean success of 5 steps is {now:.0%}; it was {best:.0%} at step {step} (difference: "
        f"{z:.1f} standard "
        f"errors).{why}",
        remedies=(
            f"trainer.resume_mode=.../global_step_N of a checkpoint up to step {step}",
            "a lower actor_rollout_ref.actor.optim.lr",
        ),
        series=("episode/success_rate", *((first[0],) if first else ())),
        episodes=examples_of(history, "wrong"),
    )


def moved_first(history: History, at: int) -> tuple[str, int] | None:
    """Return the metric that left its usual range first and has stayed outside since, with the
    step; None if none did.

    The usual range is 3 MAD around the median of 20 steps, up to 10 steps before `at`. A series
    that was outside before is no sign: it has another trend.
    """
    middle_of = max(at + 1 - LEAD_STEPS, MEAN_STEPS)
    earliest: tuple[int, str] | None = None
    for kind, leaves in LEADING.items():
        for leaf in leaves:
            for _, key in history.named(kind, leaf):
                column = history.column(key)
                usual = column[max(middle_of - TREND_STEPS, 0) : middle_of]
                usual = usual[np.isfinite(usual)]
                if len(usual) < MEAN_STEPS:
                    continue
                middle = float(np.median(usual))
                spread = MAD_SCALE * float(np.median(np.abs(usual - middle)))
                inside = ~(np.abs(column - middle) > 3 * max(spread, 1e-3 * abs(middle), 1e-9))
                begin = int(np.flatnonzero(inside)[-1]) + 1 if inside.any() else 0
                if middle_of < begin < len(column) - 1 and (earliest is None or begin < earliest[0]):
                    earliest = begin, key
    return None if earliest is None else (earliest[1], history.steps[earliest[0]])


@dataclass(frozen=True)
class Fall:
    """How far the last validation is below the best one before: the steps of both, the mean
    difference over the tasks of both, and the half width of its 95 % interval.
    """

    best_step: int
    last_step: int
    difference: float
    margin: float


def validation_fall(validations: Sequence[tuple[int, Mapping[str, float]]]) -> Fall | None:
    """Return how far the last validation is below the best one before it, paired over tasks; None
    with fewer than two, or fewer than 10 tasks in both.
    """
    if len(validations) < 2:
        return None
    last_step, last = validations[-1]
    best_step, best = max(validations[:-1], key=lambda entry: sum(entry[1].values()) / max(len(entry[1]), 1))
    tasks = best.keys() & last.keys()
    if len(tasks) < FEWEST_TASKS:
        return None
    differences = np.array([best[task] - last[task] for task in tasks])
    margin = 1.96 * float(differences.std(ddof=1)) / math.sqrt(len(tasks))
    return Fall(best_step, last_step, float(differences.mean()), margin)


def reward_without_success(history: History) -> Iterator[Reading]:
    """Judge whether rewards rise while validation or success falls."""
    rising = [
        (rank, key, subject)
        for subject, key in [("", "episode/team_reward/mean"), *history.named("agent", "reward/mean")]
        if len(values := history.window(key, TREND_STEPS)) == TREND_STEPS and (rank := spearman(values)) > 0
    ]
    if not rising:
        return
    rank, key, subject = max(rising)
    success = history.success()[-TREND_STEPS:]
    who = f"The reward of {history.agent(subject)}" if subject else "The team reward"
    fall = validation_fall(history.validations)
    drop = float(success[:MEAN_STEPS].mean() - success[-MEAN_STEPS:].mean())
    if rank < CLEAR_AT * TREND or not (
        drop >= CLEAR_AT * TREND_DROP or (fall is not None and fall.difference > 0)
    ):
        return
    term = risen_term(history)
    why = f" The term that rose: {term}." if term else ""
    remedies = ((f"a lower weight of {term}",) if term else ()) + (
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
        "algorithm.kl_ctrl.kl_coef=0.001",
    )
    series = (key, "episode/success_rate", *((term,) if term else ()))
    if np.isfinite(success).all():
        yield Reading(
            min(rank / TREND, -spearman(success) / TREND, drop / TREND_DROP),
            f"{who} rises over the last {TREND_STEPS} steps (rank correlation {rank:.2f}), success "
            "falls by "
            f"{drop:.0%}.{why}",
            "success",
            remedies,
            series,
            examples_of(history, "wrong"),
        )
    if fall is not None and fall.difference > 0:
        yield Reading(
            min(rank / TREND, fall.difference / max(fall.margin, 1e-9)),
            f"{who} rises over the last {TREND_STEPS} steps (rank correlation {rank:.2f}), but the "
            "validation of "
            f"step {fall.last_step} is {fall.difference:.1%} ± {fall.margin:.1%} below that of step "
            f"{fall.best_step}.{why}",
            "validation",
            remedies,
            series,
        )


def risen_term(history: History) -> str:
    """Return the metric of the term of a reward that rose most steadily over 20 steps; empty if
    none did.
    """
    keys = [
        *history.keys("reward/", "/mean"),
        *(
            key
            for key in history.keys("agent/", "/mean")
            if "/reward/" in key and not key.endswith("/reward/mean")
        ),
        *(key for _, key in history.named("agent", "local_reward/mean")),
    ]
    ranks = [
        (spearman(values), key)
        for key in keys
        if len(values := history.window(key, TREND_STEPS)) == TREND_STEPS
    ]
    rank, key = max(ranks, default=(0.0, ""))
    return key if rank >= TREND else ""


def always_yes(history: History) -> Iterator[Reading]:
    """Judge whether verdicts, tests and scores tell right from wrong."""
    recent = history.recent_facts()
    roles = sorted({name for facts in recent for name in facts.shares if name.endswith("/specificity")})
    for name in roles:
        yield from _specificity(history, recent, name)
    if not roles:
        for agent_id in sorted({agent for facts in recent for agent in facts.agents}):
            yield from _verdicts(history, recent, agent_id)
    agreed = history.mean("env/agreed")
    if agreed is not None:
        yield Reading(
            min(agreed / COMMONEST, history.room() / ENTROPY_ROOM),
            f"In {agreed:.0%} of the episodes the program passes the team's tests, but success is "
            f"{1 - history.room():.0%}: the tests fail nothing.",
            "tests",
            ("a reward for tests that wrong programs fail", "both classes in the data"),
            ("env/agreed", "episode/success_rate"),
            examples_of(history, "wrong"),
        )
    scores: Counter[float] = sum((facts.scores.get("model_score", Counter()) for facts in recent), Counter())
    if scores.total() >= WRONG_CASES:
        value, count = scores.most_common(1)[0]
        yield Reading(
            min(count / scores.total() / COMMONEST, history.room() / CLIFF_DROP),
            f"{count / scores.total():.0%} of the judge's {scores.total()} scores are {value:g}: "
            "it does not tell "
            "replies apart.",
            "judge",
            ("another rubric or reward model (docs/rewards.md)",),
            ("reward/model_score/mean", "reward/model_score/std"),
        )


def _specificity(history: History, recent: Sequence[StepFacts], name: str) -> Iterator[Reading]:
    from verl.utils.accuracy import wilson_interval  # numpy's, as needed

    shares = [facts.shares.get(name, (0, 0.0)) for facts in recent]
    cases = sum(count for count, _ in shares)
    if cases < WRONG_CASES:
        return
    share = min(max(sum(total for _, total in shares) / cases, 0.0), 1.0)
    high = wilson_interval(share, cases)[1]
    role = name.split("/")[0]
    yield Reading(
        # what a solved run approves is right nearly always
        min(SPECIFICITY / max(high, 1e-6), history.room() / CLIFF_DROP),
        f"The {role} rejects {share:.0%} of what is wrong ({cases} episodes of the last "
        f"{len(recent)} steps; at most "
        f"{high:.0%} with 95 % confidence): it approves nearly everything.",
        name,
        ("env.params.verdict_reward=1.0", "right and wrong cases in the data"),
        (f"env/{name}",),
        examples_of(history, "wrong"),
    )


def _verdicts(history: History, recent: Sequence[StepFacts], agent_id: str) -> Iterator[Reading]:
    parts = [facts.agents[agent_id] for facts in recent if agent_id in facts.agents]
    if any(part.many_actions for part in parts):
        return
    actions: Counter[str] = sum((part.actions for part in parts), Counter())
    successes: Counter[str] = sum((part.successes for part in parts), Counter())
    if not actions:
        return
    action, count = actions.most_common(1)[0]
    others = actions.total() - count
    if others < FEWEST_OTHERS:
        return
    after = successes[action] / count
    after_others = (sum(successes.values()) - successes[action]) / others
    difference = abs(after - after_others)
    share = count / actions.total()
    yield Reading(
        min(share / COMMONEST, EQUAL_SUCCESS / max(difference, 1e-6), history.room() / CLIFF_DROP),
        f"{agent_id} answers {action!r} in {share:.0%} of {actions.total()} calls, and success "
        "after it "
        f"({after:.0%}) is that after anything else ({after_others:.0%}): its verdict says nothing.",
        f"verdicts {agent_id}",
        ("a reward for right verdicts", "right and wrong cases in the data"),
        ("episode/success_rate",),
        examples_of(history, "wrong"),
    )


def entropy_moves(history: History) -> Iterator[Reading]:
    """Judge the entropy of each policy against its start."""
    success = history.success()[-TREND_STEPS:]
    gain = math.inf
    if len(success) == TREND_STEPS and np.isfinite(success).all():
        gain = float(np.polyfit(np.arange(TREND_STEPS), success, 1)[0]) * TREND_STEPS
    for policy, key in history.named("wg", "actor/entropy"):
        now = history.now(key)
        start = history.start(key)
        if now is None or start is None or start <= 0:
            continue
        ratio = min(ENTROPY_GONE * start / max(now, 1e-9), history.room() / ENTROPY_ROOM)
        yield Reading(
            ratio if gain <= NO_GAIN else 0.0,
            f"The entropy of policy {policy} is {now:.3g} nats, {now / start:.0%} of its start, "
            "while success stays at "
            f"{1 - history.room():.0%}: its replies no longer differ, and nothing new is tried.",
            f"low {policy}",
            ("actor_rollout_ref.actor.clip_ratio_high=0.28", "a small actor_rollout_ref.actor.entropy_coeff"),
            (key, "episode/success_rate"),
        )
        yield Reading(
            now / (ENTROPY_EXPLODES * start) if now >= LEAST_ENTROPY else 0.0,
            f"The entropy of policy {policy} is {now:.3g} nats, {now / start:.1f} times its start: "
            "its replies turn to "
            "noise.",
            f"high {policy}",
            ("a lower actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.entropy_coeff=0"),
            (key,),
        )


def lengths_drift(history: History) -> Iterator[Reading]:
    """Judge lengths of replies, and how many are cut."""
    for agent_id, key in history.named("agent", "truncated_replies"):
        if (share := history.now(key)) is not None:
            yield Reading(
                share / CUT,
                f"{share:.0%} of the replies of {history.agent(agent_id)} are cut at the length "
                "limit: they are judged "
                "unfinished.",
                f"cut {agent_id}",
                ("a larger data.max_response_length", "reward.overlong_buffer.len=0"),
                (key,),
                examples_of(history, "cut", history.agent(agent_id)),
            )
    success = history.success()
    first = success[:START_STEPS][np.isfinite(success[:START_STEPS])]
    now_success = history.success_now()
    if now_success is None or not len(first):
        return
    gain = now_success - float(np.median(first))
    for agent_id, key in history.named("agent", "response_length/mean"):
        length = history.mean(key)
        start = history.start(key)
        if not length or not start:
            continue
        ratio = max(length / start / 2, start / length / 2)
        # A team that has solved its tasks may say it in other words.
        harmless = gain >= NO_GAIN or now_success >= 0.95
        yield Reading(
            0.0 if harmless else ratio,
            f"The replies of {history.agent(agent_id)} have {length:.0f} tokens on average, "
            f"{length / start:.1f} times "
            f"those of the start, and success has changed by {gain:+.1%}.",
            f"length {agent_id}",
            ("reward.overlong_buffer.len=0", "another actor_rollout_ref.actor.loss_agg_mode"),
            (key, "episode/success_rate"),
        )


def invalid_or_garbled(history: History) -> Iterator[Reading]:
    """Judge how many replies cannot be read, or are noise."""
    for agent_id, key in history.named("agent", "valid_rate"):
        back = history.steps_back((f"agent/{agent_id}/calls",), FEWEST_CALLS)
        best = history.peak(key)
        values = history.window(key, back) if back else []
        if values and best is not None:
            valid = sum(values) / len(values)
            yield Reading(
                min((1 - valid) / INVALID, (best - valid) / INVALID_DROP),
                f"{valid:.0%} of the replies of {history.agent(agent_id)} can be read; it was {best:.0%}.",
                f"valid {agent_id}",
                (
                    "actor_rollout_ref.actor.invalid_action_penalty_coef=0.1",
                    "a prompt that shows the form",
                    "a lower actor_rollout_ref.actor.optim.lr",
                ),
                (key,),
                examples_of(history, "invalid", history.agent(agent_id)),
            )
    recent = history.recent_facts()
    for name in sorted({name for facts in recent for name in facts.agents}):
        parts = [facts.agents[name] for facts in recent if name in facts.agents]
        texts = sum(part.texts for part in parts)
        if texts >= FEWEST_CALLS:
            share = sum(part.garbled for part in parts) / texts
            yield Reading(
                share / GARBLED,
                f"{share:.1%} of the last {texts} replies of {name} repeat a character or a phrase.",
                f"garbled {name}",
                ("a lower actor_rollout_ref.actor.optim.lr", "logs/engine-*.log, if only some engines do it"),
                (),
                examples_of(history, "garbled", name),
            )


def examples_of(history: History, kind: str, agent_id: str | None = None) -> tuple[int, ...]:
    """Return episodes of the last steps that show something, the newest first."""
    numbers: list[int] = []
    for facts in reversed(history.recent_facts()):
        source = facts.examples if agent_id is None else None
        if agent_id is not None and agent_id in facts.agents:
            source = facts.agents[agent_id].examples
        numbers += source.get(kind, []) if source else []
    return tuple(numbers[:MEAN_STEPS])


RULES = (
    Rule(6, "cliff", "worse", cliff),
    Rule(7, "reward up, validation down", "worse", reward_without_success),
    Rule(8, "always yes", "worse", always_yes),
    Rule(9, "entropy is gone, or explodes", "worse", entropy_moves),
    Rule(10, "lengths drift, replies are cut", "worse", lengths_drift),
    Rule(11, "invalid or garbled replies", "worse", invalid_or_garbled),
)

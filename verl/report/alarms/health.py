"""Alarms 1 to 5: the run stands still, or its figures cannot be trusted; and hints."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from verl.report.alarms.base import Reading, Rule
from verl.report.alarms.history import MEAN_STEPS, History
from verl.report.columns import LENGTH, values
from verl.utils.plain import number

HEARTBEAT_S = 60.0
STALL_S = 600.0
STALL_FACTOR = 6.0
FEWEST_DURATIONS = 3
FEWEST_EPISODES = 20
RESTARTS = 3
OUT_OF_BOUNDS = 0.005
K3_KL = 1e-3
K3_FACTOR = 5.0
FP32_GAP = 1e-3
DROPPED = 0.05
LENGTH_RATIO = 0.9
VALIDATIONS = 10
HIGH, LOW = "rollout_corr/rollout_is_ratio_fraction_high", "rollout_corr/rollout_is_ratio_fraction_low"


def stalled(run: Mapping[str, Any]) -> Reading | None:
    """Return why a run that says it runs does not: no sign of life, a call that does not end, or no
    new step; None if it does, and for runs that do not say.
    """
    state = run.get("state") or {}
    now = run.get("built")
    if state.get("state") != "running" or not isinstance(now, (int, float)):
        return None
    remedies = (
        "rollout.call_timeout_s, rollout.episode_timeout_s and trainer.worker_timeout_s end what hangs",
    )
    heartbeat = state.get("heartbeat")
    if isinstance(heartbeat, (int, float)) and now - heartbeat > HEARTBEAT_S:
        return Reading(
            (now - heartbeat) / HEARTBEAT_S,
            f"The process has given no sign of life for {_seconds(now - heartbeat)} and has not "
            "said how it "
            "ended: it was killed, or its machine has stopped (last completed step: "
            f"{state.get('step')}).",
            "heartbeat",
            ("dmesg and logs/ for the cause, then start the run again: it goes on from its checkpoint",),
            at_once=True,
        )
    usual = _usual_durations(run)
    open_spans = [
        (span, now - span["start"])
        for span in state.get("open_spans") or ()
        if isinstance(span.get("start"), (int, float))
    ]
    for span, seconds in sorted(open_spans, key=lambda entry: -entry[1]):
        group = str(span.get("wg_id"))
        call = str(span.get("call"))
        usually = usual.get((group, call))
        limit = max(STALL_S, STALL_FACTOR * (usually or 0.0))
        if seconds > limit:
            return Reading(
                seconds / limit,
                f"{call} of {group} has not ended for {_seconds(seconds)}"
                + ("." if usually is None else f", usually {_seconds(usually)}."),
                "span",
                remedies,
                at_once=True,
            )
    return _no_new_step(run, now, remedies)


def _no_new_step(run: Mapping[str, Any], now: float, remedies: tuple[str, ...]) -> Reading | None:
    state = run["state"]
    ends: dict[int, float] = {}
    for step, end in zip(*_span_columns(run, "step", "end"), strict=False):
        if isinstance(end, (int, float)):
            ends[step] = max(ends.get(step, 0.0), end)
    began = (state.get("attempt") or {}).get("started")
    moments = sorted(end for end in ends.values() if end >= (number(began) or 0.0))
    if not moments:
        return None
    durations = [after - before for before, after in pairwise(moments)]
    limit = max(STALL_S, STALL_FACTOR * median(durations) if len(durations) >= FEWEST_DURATIONS else 0.0)
    seconds = now - moments[-1]
    if seconds <= limit:
        return None
    usually = f", usually after {_seconds(median(durations))}" if durations else ""
    return Reading(
        seconds / limit,
        f"No step has ended for {_seconds(seconds)}{usually}; "
        f"{state.get('episodes_in_progress', 'unknown')} episodes are in progress.",
        "step",
        remedies,
        at_once=True,
    )


def _usual_durations(run: Mapping[str, Any]) -> dict[tuple[Any, Any], float]:
    """Return the median duration of each call of a worker group that ended at least 3 times."""
    durations = defaultdict(list)
    for lane, call, start, end in zip(*_span_columns(run, "lane", "call", "start", "end"), strict=False):
        if isinstance(start, (int, float)) and isinstance(end, (int, float)):
            durations[lane, call].append(end - start)
    return {key: median(values) for key, values in durations.items() if len(values) >= FEWEST_DURATIONS}


def _span_columns(run: Mapping[str, Any], *names: str) -> list[Sequence[Any]]:
    table = run.get("spans") or {}
    return [values(table, name) if LENGTH in table else table.get(name) or () for name in names]


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def episodes_fail(history: History) -> Iterator[Reading]:
    """Judge the share of failed episodes, and restarts of engines and failures of the sandbox."""
    limit = history.number("rollout.max_failure_rate", 0.1)
    keys = "episode/count", "episode/failed"
    if limit > 0 and (back := history.steps_back(keys, FEWEST_EPISODES)):
        failed = sum(history.window("episode/failed", back))
        total = failed + sum(history.window("episode/count", back))
        causes: Counter[str] = Counter()
        examples: list[int] = []
        for facts in history.facts[-back:]:
            if facts is not None:
                causes.update(facts.failures)
                examples += facts.examples.get("failed", [])
        cause = causes.most_common(1)
        why = ""
        if cause:
            kind, count = cause[0]
            why = f" The commonest cause, {count} of {sum(causes.values())}: {kind}."
        yield Reading(
            failed / total / (limit / 2),
            f"{failed / total:.1%} of {total:.0f} episodes failed; the run stops above {limit:.0%}.{why}",
            "failures",
            _against(cause[0][0] if cause else ""),
            ("episode/failure_rate",),
            tuple(examples[:5]),
        )
    for key, what, remedy in (
        (
            "training/engine_restarts",
            "Engines were restarted",
            "logs/engine-*.log; a lower actor_rollout_ref.rollout.gpu_memory_utilization if they "
            "ran out of memory",
        ),
        (
            "training/sandbox_failures",
            "Programs failed because of the sandbox",
            "docs/sandbox.md for its limits",
        ),
    ):
        counts = history.window(key, MEAN_STEPS + 1)
        if len(counts) > 1:
            growth = max(counts[-1] - counts[0], 0.0)
            yield Reading(
                growth / RESTARTS,
                f"{what} {growth:.0f} times in the last {len(counts) - 1} steps, {counts[-1]:.0f} in all.",
                key,
                (remedy,),
                (key,),
            )


def _against(cause: str) -> tuple[str, ...]:
    lowered = cause.lower()
    if "time" in lowered and ("limit" in lowered or "out" in lowered):
        return ("rollout.episode_timeout_s", "rollout.call_timeout_s", "env.workers.num for a slow world")
    if "memory" in lowered:
        return ("env.workers.memory_gib", "a smaller rollout.max_concurrent_episodes")
    return ("what the cause names; the episodes are in trajectories/",)


def gap_grows(history: History) -> Iterator[Reading]:
    """Judge how far trainer and sampler are apart on the same tokens."""
    remedies = (
        "algorithm.rollout_correction.rollout_is=token",
        "equal dtypes of actor and rollout",
        "actor_rollout_ref.rollout.top_p=1",
    )
    if (high := history.now(HIGH)) is not None:
        share = high + (history.now(LOW) or 0.0)
        yield Reading(
            share / OUT_OF_BOUNDS,
            f"The probabilities that trainer and sampler give to {share:.2%} of the tokens differ "
            "by more than "
            f"the bounds (expected: below {OUT_OF_BOUNDS:.1%}); means do not show such a tail.",
            "ratios",
            remedies,
            (HIGH, LOW),
        )
    yield from _growing_kl(history, remedies)
    gap = history.now("rollout_corr/log_prob_diff_max")
    if gap is not None and _exact(history):
        yield Reading(
            gap / FP32_GAP,
            f"On a CPU in fp32 the log-probs of engine and trainer differ by {gap:.2g} (expected: "
            "below "
            f"{FP32_GAP:g}): they do not run the same weights or the same prompt.",
            "exact",
            ("trainer.checks=[engines,memory]", "logs/engine-*.log"),
            ("rollout_corr/log_prob_diff_max",),
        )


def _growing_kl(history: History, remedies: tuple[str, ...]) -> Iterator[Reading]:
    key = "rollout_corr/k3_kl"
    kl = history.mean(key)
    start = history.start(key)
    # Older samples are farther from the weights that they train: not a matter of engines.
    ages = [(history.mean(name), history.start(name)) for _, name in history.named("agent", "staleness/mean")]
    older = any(now is not None and first is not None and now > first + 0.25 for now, first in ages)
    if kl is None or start is None or older:
        return
    limit = max(K3_KL, K3_FACTOR * start)
    yield Reading(
        kl / limit,
        f"The divergence of the trainer from the sampler is {kl:.2g}, {kl / max(start, 1e-12):.0f} "
        "times that of the "
        "first steps, though samples are not older.",
        "divergence",
        remedies,
        (key,),
    )


def _exact(history: History) -> bool:
    """Whether trainer and engine compute in fp32 on a CPU with the same weights."""
    dtypes = [
        history.setting(name, "auto")
        for name in (
            "actor_rollout_ref.rollout.dtype",
            "actor_rollout_ref.actor.fsdp_config.dtype",
            "actor_rollout_ref.actor.fsdp_config.model_dtype",
        )
    ]
    return (
        history.setting("trainer.device", "auto") == "cpu"
        and history.setting("async_training.mode", "sync") == "sync"
        and history.setting("gateway.structured", "") != "mask"
        and all(str(name) in ("auto", "fp32", "float32") for name in dtypes)
    )


def older_than_planned(history: History) -> Iterator[Reading]:
    """Judge the age of the samples, and which ones are dropped."""
    mode = history.setting("async_training.mode", "sync")
    bound = {"sync": 0.0, "one_step_off": 1.0}.get(
        mode, history.number("async_training.max_off_policy_threshold", 4)
    )
    bounds = [bound] + [
        history.number(key, bound)
        for key in history.config
        if key.startswith("async_training.per_policy.") and key.endswith(".max_off_policy_threshold")
    ]
    remedies = (
        "a lower async_training.staleness_threshold",
        "a clipped loss",
        "a lower actor_rollout_ref.actor.optim.lr",
    )
    for agent_id, key in history.named("agent", "staleness/max"):
        age = history.now(key)
        if age is not None:
            yield Reading(
                age / (max(bounds) + 1),
                f"Samples of {history.agent(agent_id)} are {age:g} versions old; "
                f"async_training.mode={mode} allows "
                f"{max(bounds):g}.",
                f"max {agent_id}",
                remedies,
                (key,),
            )
    if mode != "fully_async":
        return
    for agent_id, key in history.named("agent", "staleness/mean"):
        age = history.now(key)
        # With a bound of 1 a mean near it is how such a run should be.
        if age is not None and max(bounds) >= 2:
            yield Reading(
                age / (0.8 * max(bounds)),
                f"Samples of {history.agent(agent_id)} are {age:.1f} versions old on average, near "
                "the bound of "
                f"{max(bounds):g}: engines are slower than updates.",
                f"mean {agent_id}",
                remedies,
                (key,),
            )
    yield from _dropped(history)


def _dropped(history: History) -> Iterator[Reading]:
    columns = [
        history.window(f"fully_async/count/{name}", MEAN_STEPS + 1)
        for name in ("dropped_stale_samples", "trained")
    ]
    if all(len(column) > 1 for column in columns):
        dropped, trained = (column[-1] - column[0] for column in columns)
        if trained > 0:
            yield Reading(
                dropped / trained / DROPPED,
                f"{dropped:.0f} groups were dropped because they were too old, beside "
                f"{trained:.0f} trained ones: "
                "what is left is biased to short episodes.",
                "dropped",
                (
                    "async_training.max_off_policy_strategy=wait",
                    "a larger async_training.max_off_policy_threshold",
                ),
                ("fully_async/count/dropped_stale_samples",),
            )
    ratio = history.mean("fully_async/trained_length_ratio")
    if ratio is not None:
        yield Reading(
            (1 - ratio) / (1 - LENGTH_RATIO),
            f"Trained episodes have {ratio:.0%} of the length of all that were played: long ones "
            "are dropped.",
            "length",
            ("async_training.max_off_policy_strategy=wait",),
            ("fully_async/trained_length_ratio",),
        )


def validation_is_not_apart(history: History) -> Iterator[Reading]:
    """Judge whether training tasks are validated on."""
    overlap = history.overlap
    yield Reading(
        float(overlap.shared),
        f"{overlap.shared} of {overlap.tasks} validation tasks have the text of a training task: "
        "the accuracy "
        "says in part what was learnt by heart.",
        remedies=("other data.val_files",),
        episodes=overlap.episodes,
        at_once=True,
    )


def best_of_many(history: History) -> Iterator[Reading]:
    """Say by how much the best of many validations is too good."""
    count = len(history.validations)
    if count < VALIDATIONS:
        return
    rates = [sum(tasks.values()) / len(tasks) for _, tasks in history.validations if tasks]
    tasks = len(history.validations[-1][1])
    best = max(rates, default=0.0)
    if not tasks or best <= rates[-1]:
        return
    deviation = math.sqrt(best * (1 - best) / tasks)
    yield Reading(
        count / VALIDATIONS,
        f"The best of {count} validations, {best:.1%}, is about "
        f"{deviation * math.sqrt(2 * math.log(count)):.1%} "
        f"too good, since it was chosen; the last one is {rates[-1]:.1%}.",
        remedies=("quote the last validation, or choose on one set of tasks and quote another",),
    )


def waiting(history: History) -> Iterator[Reading]:
    """Say who waits for half of the time."""
    for key, who, remedy in (
        (
            "trainer/idle_ratio",
            "The trainer",
            "more devices for the engines, or a larger staleness_threshold",
        ),
        ("rollouter/idle_ratio", "The collection of episodes", "fewer devices for the engines"),
    ):
        if (share := history.mean(key)) is not None:
            yield Reading(share / 0.5, f"{who} waits for {share:.0%} of a step.", key, (remedy,), (key,))


def masks(history: History) -> Iterator[Reading]:
    """Say where masks of a form cut off much of the policy's probability."""
    for agent_id, key in history.named("gateway", "mass_cut_off_mean"):
        if (mass := history.mean(key)) is not None:
            yield Reading(
                mass / 0.1,
                f"Masks cut off {mass:.0%} of the probability of the tokens of "
                f"{history.agent(agent_id)}: its prompt "
                "does not lead to the form.",
                agent_id,
                ("a prompt that shows the form",),
                (key,),
            )


RULES = (
    Rule(2, "episodes fail", "now", episodes_fail, first_step=1),
    Rule(3, "sampler and trainer disagree", "untrusted", gap_grows, first_step=1),
    Rule(4, "samples are older than planned", "untrusted", older_than_planned, first_step=1),
    Rule(5, "validation is not apart", "untrusted", validation_is_not_apart, first_step=1),
)
# Judged once, at the end, since nothing is logged while it holds.
STALLED = Rule(1, "stalled", "now", lambda history: (), first_step=1)
HINTS = (
    Rule(17, "best of many validations", "hint", best_of_many),
    Rule(18, "one part waits", "hint", waiting),
    Rule(19, "masks cut off much", "hint", masks),
)

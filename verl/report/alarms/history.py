"""What rules read: metrics of the steps so far, records of the last one, and credit."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl.report.alarms.credit_facts import CreditFacts
from verl.report.alarms.facts import Overlap, StepFacts
from verl.utils.names import slug

# Metrics that rules may read, by their beginnings; a long run has hundreds of others.
READ = (
    "agent/", "critic/rewards/", "critic/score/", "env/", "episode/", "fully_async/", "gateway/", "reward/",
    "rollout_corr/", "rollouter/", "trainer/", "training/", "wg/",
)  # fmt: skip
NOT_READ = ("/timing_s/", "/perf/", "/global_seqlen/", "/turn_", "/prompt_length/")
START_STEPS = 10
# Fewest values of the first steps of which the median is a start.
START_VALUES = 5
MEAN_STEPS = 5


def is_read(key: str) -> bool:
    """Return whether a rule may read a metric."""
    return key.startswith(READ) and not any(part in key for part in NOT_READ)


def plain_number(value: Any) -> float:
    """Return a metric as a float; NaN for what is none."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def spearman(values: ArrayLike) -> float:
    """Return Spearman's correlation of values with their positions, ties at their mean rank; 0 if
    all are equal.
    """
    array_of = np.asarray(values, dtype=np.float64)
    if len(array_of) < 2 or np.ptp(array_of) == 0:
        return 0.0
    _, inverse, counts = np.unique(array_of, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])


class History:
    """The steps of one attempt up to the one that rules judge.

    Args:
        config: the run's configuration by dotted keys.
        agents: `{"agent", "policy", "group", "trained"}` of each agent.
        total_steps: of the run; 0 if unknown.

    Attributes:
        steps: numbers of the steps so far.
        facts: what the records of the last steps say; None of a step without records.
        credit: of the last step; None if it was not recorded.
        overlap: tasks that training and validation share.
        validations: of each validation so far its step, and the success of each of its tasks.
    """

    def __init__(
        self, config: Mapping[str, Any], agents: Sequence[Mapping[str, Any]] = (), total_steps: int = 0
    ) -> None:
        self.config = config
        self.total_steps = total_steps
        self.steps: list[int] = []
        self.facts: list[StepFacts | None] = []
        self.credit: CreditFacts | None = None
        self.overlap = Overlap()
        self.validations: list[tuple[int, Mapping[str, float]]] = []
        self.names = {slug(str(agent["agent"])): str(agent["agent"]) for agent in agents}
        # agents of each policy, and worker groups are named after a policy or a model
        self.policies: dict[str, list[str]] = defaultdict(list)
        for agent in agents:
            if agent.get("trained", True):
                self.policies[str(agent.get("policy"))].append(str(agent["agent"]))
        # of each step: tasks, and sum and sum of squares of their success
        self._groups: list[tuple[int, float, float]] = []
        self._columns: dict[str, array[float]] = {}
        self._by_leaf: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        self._starts: dict[str, float] = {}
        self._peaks: dict[str, tuple[int, float]] = {}

    def add(
        self,
        step: int,
        metrics: Mapping[str, Any],
        facts: StepFacts | None = None,
        credit: CreditFacts | None = None,
    ) -> None:
        """Add a step; metrics that are no finite number count as missing."""
        if self.facts:
            # only the last steps are read
            self.facts[: -2 * MEAN_STEPS] = [None] * len(self.facts[: -2 * MEAN_STEPS])
        self.steps.append(step)
        self.facts.append(facts)
        rates = [g.successes / g.episodes for g in facts.groups.values() if g.episodes] if facts else []
        self._groups.append((len(rates), sum(rates), sum(rate * rate for rate in rates)))
        self.credit = credit
        for key, value in metrics.items():
            if key not in self._columns:
                if not is_read(key):
                    continue
                self._columns[key] = array("d", [math.nan]) * (len(self.steps) - 1)
                self._index(key)
            self._columns[key].append(plain_number(value))
        for column in self._columns.values():
            if len(column) < len(self.steps):
                column.append(math.nan)

    def add_validation(self, step: int, rates: Mapping[str, float]) -> None:
        """Add the success of each task of a validation."""
        self.validations.append((step, dict(rates)))

    def _index(self, key: str) -> None:
        kind, _, rest = key.partition("/")
        subject, _, leaf = rest.partition("/")
        self._by_leaf[kind, leaf].append((subject, key))

    def named(self, kind: str, leaf: str) -> list[tuple[str, str]]:
        """Return (id, key) of the metrics `<kind>/<id>/<leaf>`."""
        return self._by_leaf.get((kind, leaf), [])

    def keys(self, prefix: str, suffix: str = "") -> list[str]:
        """Return the metrics that begin and end so."""
        return [key for key in self._columns if key.startswith(prefix) and key.endswith(suffix)]

    def agent(self, agent_id: str) -> str:
        """Return how a text names an agent, of its id in metrics."""
        return self.names.get(agent_id, agent_id)

    def setting(self, key: str, default: Any) -> Any:
        """Return a key of the configuration; `default` if it is missing or null."""
        value = self.config.get(key)
        return default if value is None else value

    def number(self, key: str, default: float) -> float:
        """Return a numerical key of the configuration; `default` if it is none."""
        value = plain_number(self.config.get(key))
        return value if math.isfinite(value) else default

    def now(self, key: str) -> float | None:
        """Return a metric of the last step; None if it is missing."""
        column = self._columns.get(key)
        return column[-1] if column and math.isfinite(column[-1]) else None

    def window(self, key: str, steps: int) -> list[float]:
        """Return a metric of the last steps, without missing values."""
        column = self._columns.get(key)
        return [value for value in column[-steps:] if math.isfinite(value)] if column else []

    def column(self, key: str) -> NDArray[np.float64]:
        """Return a metric of all steps; NaN where it is missing."""
        return np.array(self._columns.get(key, [math.nan] * len(self.steps)), dtype=np.float64)

    def mean(self, key: str) -> float | None:
        """Return the mean of a metric over the last 5 steps; None if all are missing."""
        values = self.window(key, MEAN_STEPS)
        return sum(values) / len(values) if values else None

    def start(self, key: str) -> float | None:
        """Return the median of a metric over the first 10 steps; None before them, and if fewer
        than 5 have it.
        """
        if key not in self._starts and len(self.steps) >= START_STEPS and key in self._columns:
            first = [value for value in self._columns[key][:START_STEPS] if math.isfinite(value)]
            self._starts[key] = median(first) if len(first) >= START_VALUES else math.nan
        start = self._starts.get(key, math.nan)
        return start if math.isfinite(start) else None

    def peak(self, key: str) -> float | None:
        """Return the highest mean of a metric over 5 steps so far; None before the first."""
        count, best = self._peaks.get(key, (MEAN_STEPS - 1, -math.inf))
        column = self._columns.get(key)
        if column is None:
            return None
        for end in range(count + 1, len(column) + 1):
            values = [value for value in column[end - MEAN_STEPS : end] if math.isfinite(value)]
            if values:
                best = max(best, sum(values) / len(values))
        self._peaks[key] = max(len(column), MEAN_STEPS - 1), best
        return best if math.isfinite(best) else None

    def success(self) -> NDArray[np.float64]:
        """Return the success of each step in 0..1: that of the episodes, or, in worlds that report
        none, the mean team reward in the range of the rewards seen.
        """
        if "episode/success_rate" in self._columns:
            return self.column("episode/success_rate")
        reward = self.column("episode/team_reward/mean")
        bounds = [self.column(f"critic/score/{name}") for name in ("min", "max")] + [reward]
        finite = np.concatenate([values[np.isfinite(values)] for values in bounds])
        if not len(finite) or np.ptp(finite) == 0:
            return (reward > 0).astype(np.float64) if len(finite) else reward
        return (reward - finite.min()) / np.ptp(finite)

    def success_error(self, begin: int, end: int) -> tuple[float, float]:
        """Return the number of episodes of the steps `[begin, end)` and the standard error of their
        mean success: over tasks, since episodes of one task are alike, or over episodes where there
        are no records; infinite if there are too few.
        """
        counts = self.column("episode/count")[begin:end]
        episodes = float(counts[np.isfinite(counts)].sum())
        tasks, total, squares = (sum(values) for values in zip(*self._groups[begin:end], strict=True))
        if tasks > 1 and "episode/success_rate" in self._columns:
            spread = max(squares - total * total / tasks, 0.0) / (tasks - 1)
            return episodes, math.sqrt(spread / tasks)
        success = self.success()[begin:end]
        success = success[np.isfinite(success)]
        if not len(success) or episodes < 1:
            return episodes, math.inf
        mean = min(max(float(success.mean()), 0.0), 1.0)
        return episodes, math.sqrt(mean * (1 - mean) / episodes)

    def success_now(self) -> float | None:
        """Return the mean success of the last 5 steps."""
        values = self.success()[-MEAN_STEPS:]
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else None

    def room(self) -> float:
        """Return how much success is missing over the last 5 steps; 0 if it is not known."""
        success = self.success_now()
        return 0.0 if success is None else 1.0 - success

    def steps_back(self, keys: Iterable[str], least: float) -> int:
        """Return the fewest last steps, at most 5, in which these counts add up to `least`; 0 if
        none do.
        """
        columns = [self._columns[key] for key in keys if key in self._columns]
        total = 0.0
        for back in range(1, min(MEAN_STEPS, len(self.steps)) + 1):
            total += sum(c[-back] for c in columns if math.isfinite(c[-back]))
            if total >= least:
                return back
        return 0

    def recent_facts(self) -> list[StepFacts]:
        """Return what the records of the last 5 steps say."""
        return [facts for facts in self.facts[-MEAN_STEPS:] if facts is not None]

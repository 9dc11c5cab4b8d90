"""Alarms: what a run's metrics and records say is wrong, with figures and what to try.

`raised_alarms` reads a whole run for the report; `AlarmWatch` sees one step after the other while it
trains. Both use the same rules and give the same alarms, but for a run that stands still, which
only a reader beside it can see. What each rule means is in docs/alarms.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl.report.alarms.base import AlarmBoard, AlarmState, Rule, worst_first
from verl.report.alarms.collapse import RULES as COLLAPSE
from verl.report.alarms.credit_facts import credit_facts
from verl.report.alarms.facts import RunFacts
from verl.report.alarms.health import HINTS, STALLED, stalled
from verl.report.alarms.health import RULES as HEALTH
from verl.report.alarms.history import History, is_read
from verl.report.alarms.signal import RULES as SIGNAL

__all__ = ["ALL_RULES", "AlarmWatch", "RunFacts", "is_solved", "raised_alarms"]

JUDGED: tuple[Rule, ...] = (*HEALTH, *COLLAPSE, *SIGNAL, *HINTS)
ALL_RULES: tuple[Rule, ...] = (STALLED, *JUDGED)
SOLVED = 0.95
# Alarms that a solved run may not have.
UNSOLVED_LEVELS = ("now", "untrusted", "worse")


class AlarmWatch:
    """The alarms of a run, step by step.

    Args:
        config: the run's configuration by dotted keys.
        agents: `{"agent", "policy", "group", "trained"}` of each agent.
        total_steps: of the run; 0 if unknown.

    Attributes:
        facts: of the episodes so far; those of a step are added before it.
    """

    def __init__(
        self, config: Mapping[str, Any], agents: Sequence[Mapping[str, Any]] = (), total_steps: int = 0
    ) -> None:
        self.facts = RunFacts()
        self._board = AlarmBoard(JUDGED, History(config, agents, total_steps))

    @property
    def alarms(self) -> list[AlarmState]:
        """Return every alarm, raised or not."""
        return self._board.alarms

    @property
    def history(self) -> History:
        """Return the steps so far."""
        return self._board.history

    def add_validation(self, step: int, *, keep: bool = False) -> None:
        """Take the validation of a step, whose episodes have been added; keep its facts or not."""
        facts = self.facts.take("val", step, keep=keep)
        if facts is not None:
            self.history.add_validation(step, facts.rates())
            self.history.overlap = self.facts.overlap()

    def add_step(
        self,
        step: int,
        metrics: Mapping[str, Any],
        credit: Mapping[str, Sequence[Any]] | None = None,
        *,
        keep: bool = False,
    ) -> list[str]:
        """Judge a step, and return a line for each alarm that was raised or cleared.

        Args:
            step: its number; every one once, in rising order.
            metrics: as logged.
            credit: columns of its rows, as in a file of `credit/`.
            keep: keep the facts of its episodes, which nothing here reads again.
        """
        facts = self.facts.take("train", step, keep=keep)
        self.history.add(step, metrics, facts, credit_facts(credit) if credit is not None else None)
        if self.history.validations:
            self.history.overlap = self.facts.overlap()
        self._board.judge()
        return self._board.lines()


def raised_alarms(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the alarms of a run's last attempt: those that are raised, at most five, worst first,
    then those that were cleared, the last one first.

    Args:
        run: a run of the report's index: `steps`, `metrics`, `config`, `agents`, `state`, `credit`,
            `spans`; also `facts` (`RunFacts` of its episodes) and `built` (epoch seconds at which it
            was read). Whatever is missing silences the rules that need it.

    Returns:
        For each alarm `number`, `name`, `level`, `raised` and `cleared` (steps), `text`, `try`,
        `episodes` (their numbers), `series` (names of metrics).
    """
    watch = _replayed(run)
    alarms = list(watch.alarms)
    stall = AlarmState(STALLED)
    reading = stalled(run)
    last_step = watch.history.steps[-1] if watch.history.steps else 0
    stall.update(last_step, [reading] if reading is not None else [])
    active = worst_first([stall, *alarms])
    cleared = [alarm for alarm in alarms if alarm.raised is not None and not alarm.active]
    cleared.sort(key=lambda alarm: -(alarm.cleared or 0))
    return [alarm.to_dict() for alarm in (*active, *cleared)]


def is_solved(run: Mapping[str, Any]) -> bool:
    """Return whether a run has solved its tasks, so that groups without a difference are no fault:
    95 % mean success of the last 5 steps, and no alarm of `run["alarms"]` raised that says that
    figures are wrong or fall.
    """
    serious = any(
        alarm["cleared"] is None and alarm["level"] in UNSOLVED_LEVELS for alarm in run.get("alarms") or ()
    )
    history = History(run.get("config") or {})
    for step, metrics in _rows(run):
        history.add(step, metrics)
    success = history.success_now() if history.steps else None
    return not serious and success is not None and success >= SOLVED


def _replayed(run: Mapping[str, Any]) -> AlarmWatch:
    """Return the alarms after all steps of the last attempt of a run."""
    state = run.get("state") or {}
    config = run.get("config") or {}
    total = state.get("total_steps") or config.get("trainer.total_training_steps") or 0
    watch = AlarmWatch(config, run.get("agents") or (), max(total, 0) if isinstance(total, int) else 0)
    if isinstance(facts := run.get("facts"), RunFacts):
        watch.facts = facts
    credit = run.get("credit") or {}
    first = _first_step(run)
    validations = sorted(step for split, step in watch.facts.steps if split == "val" and step >= first)
    for step, metrics in _rows(run):
        while validations and validations[0] <= step:
            watch.add_validation(validations.pop(0), keep=True)
        watch.add_step(step, metrics, credit.get(str(step)), keep=True)
    return watch


def _first_step(run: Mapping[str, Any]) -> int:
    """Return the step after which the last attempt began; 0 if it is not known."""
    attempt = (run.get("state") or {}).get("attempt") or run.get("attempt") or {}
    step = attempt.get("from_step")
    return step if isinstance(step, int) else 0


def _rows(run: Mapping[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield the steps of the last attempt with their metrics."""
    columns = [(key, values) for key, values in (run.get("metrics") or {}).items() if is_read(key)]
    first = _first_step(run)
    for place, step in enumerate(run.get("steps") or ()):
        if step > first:
            yield (
                step,
                {
                    key: values[place]
                    for key, values in columns
                    if place < len(values) and values[place] is not None
                },
            )

"""A rule as a value, when it raises an alarm, and in which order alarms are shown.

A rule judges every step of an attempt and says how far each of its subjects (an agent, a policy) is
from its threshold. An alarm is raised when the rule holds in 4 of the last 5 steps, and cleared
after 5 steps at 0.8 of the threshold, so that a figure near it does not raise and clear it in turn.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.report.alarms.history import History

# From the most to the least urgent.
LEVELS = ("now", "untrusted", "worse", "stuck", "hint")
# While an alarm of one of these is raised, hints are hidden.
SERIOUS = LEVELS[:3]
LEVEL_TITLES = {
    "now": "now",
    "untrusted": "figures cannot be trusted",
    "worse": "it gets worse",
    "stuck": "it does not learn",
    "hint": "hint",
}
WINDOW = 5
HOLDS = 4
CLEAR_AT = 0.8
FIRST_STEP = 10
MOST_SHOWN = 5


@dataclass(frozen=True)
class Reading:
    """What a rule says about one subject at one step.

    Attributes:
        ratio: the figure over its threshold: at 1 and above the rule holds.
        text: one or two sentences with the figures and the agent.
        subject: what it is about, and by which of its conditions; empty for the whole run.
        remedies: keys and values to try, or a sentence.
        series: metrics that show it.
        episodes: numbers of episodes that show it.
        at_once: one step is enough.
    """

    ratio: float
    text: str
    subject: str = ""
    remedies: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    episodes: tuple[int, ...] = ()
    at_once: bool = False


@dataclass(frozen=True)
class Rule:
    """An alarm's number, name and level, and what judges a step.

    Attributes:
        number: its number in docs/alarms.md, by which alarms of one level are sorted.
        name: short name.
        level: one of `LEVELS`.
        judge: says of the last step of a history how far each subject is from its threshold;
            subjects of which it says nothing are far from it.
        first_step: steps of the attempt before the rule is asked.
    """

    number: int
    name: str
    level: str
    judge: Callable[[History], Iterable[Reading]]
    first_step: int = FIRST_STEP


@dataclass
class SubjectState:
    """Whether a rule raises its alarm for one subject.

    Attributes:
        raised: step at which it was raised; None while it is not.
        reading: the last reading that held.
    """

    raised: int | None = None
    reading: Reading | None = None
    _holds: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _quiet: int = 0

    def update(self, step: int, reading: Reading | None) -> None:
        """Take the reading of a step; None counts as far below the threshold."""
        ratio = reading.ratio if reading is not None and not math.isnan(reading.ratio) else 0.0
        self._holds.append(ratio >= 1)
        if reading is not None and ratio >= 1:
            self.reading = reading
        self._quiet = self._quiet + 1 if ratio <= CLEAR_AT else 0
        if self.raised is None:
            if sum(self._holds) >= HOLDS or (ratio >= 1 and reading is not None and reading.at_once):
                self.raised = step
        elif self._quiet >= WINDOW:
            self.raised = None
            self._holds.clear()


@dataclass
class AlarmState:
    """An alarm of a run: a rule, and the subjects that raise it.

    Attributes:
        rule: its rule.
        raised: step at which the first of its subjects raised it; None if none ever did.
        cleared: step at which the last one was cleared; None while it is raised.
        is_announced: the console has said so.
    """

    rule: Rule
    raised: int | None = None
    cleared: int | None = None
    is_announced: bool = False
    _subjects: dict[str, SubjectState] = field(default_factory=dict)
    _last: tuple[Reading, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it is raised."""
        return self.raised is not None and self.cleared is None

    def update(self, step: int, readings: Iterable[Reading]) -> None:
        """Take the readings of a step, one of each subject at most."""
        by_subject = {reading.subject: reading for reading in readings}
        for subject in by_subject.keys() - self._subjects.keys():
            # subjects that never came near are not remembered
            if by_subject[subject].ratio >= 1:
                self._subjects[subject] = SubjectState()
        for subject, state in self._subjects.items():
            state.update(step, by_subject.get(subject))
        active = [
            state.reading
            for state in self._subjects.values()
            if state.raised is not None and state.reading is not None
        ]
        if active:
            if not self.active:
                self.raised = step
                self.cleared = None
            self._last = tuple(sorted(active, key=lambda reading: -reading.ratio))
        elif self.active:
            self.cleared = step

    def to_dict(self) -> dict[str, Any]:
        """Return the alarm as the report has it."""
        return {
            "number": self.rule.number,
            "name": self.rule.name,
            "level": self.rule.level,
            "raised": self.raised,
            "cleared": self.cleared,
            "text": " ".join(reading.text for reading in self._last[:3]),
            "try": _distinct(reading.remedies for reading in self._last),
            "episodes": _distinct(reading.episodes for reading in self._last),
            "series": _distinct(reading.series for reading in self._last),
        }


def _distinct(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(dict.fromkeys(entry for part in parts for entry in part))


def worst_first(alarms: Iterable[AlarmState]) -> list[AlarmState]:
    """Return the alarms that are raised, at most five, the most urgent first; hints only if nothing
    serious is raised.
    """
    active = sorted(
        (alarm for alarm in alarms if alarm.active),
        key=lambda alarm: (LEVELS.index(alarm.rule.level), alarm.rule.number),
    )
    serious = any(alarm.rule.level in SERIOUS for alarm in active)
    return [alarm for alarm in active if not (serious and alarm.rule.level == "hint")][:MOST_SHOWN]


class AlarmBoard:
    """The alarms of one attempt, step by step.

    Args:
        rules: what raises them.
        history: the attempt, of which no step has been added.

    Attributes:
        alarms: one of each rule.
        history: the attempt so far.
    """

    def __init__(self, rules: Sequence[Rule], history: History) -> None:
        self.alarms = [AlarmState(rule) for rule in rules]
        self.history = history

    def judge(self) -> None:
        """Judge the step that was added to the history last."""
        count = len(self.history.steps)
        for alarm in self.alarms:
            if count >= alarm.rule.first_step:
                alarm.update(self.history.steps[-1], alarm.rule.judge(self.history))

    def lines(self) -> list[str]:
        """Return a line for each alarm that has come among those shown, and for each of these that
        was cleared, since the last call.
        """
        lines = []
        for alarm in self.alarms:
            if alarm.is_announced and not alarm.active:
                alarm.is_announced = False
                lines.append(f"alarm cleared: {alarm.rule.name} (raised at step {alarm.raised})")
        for alarm in worst_first(self.alarms):
            if not alarm.is_announced:
                alarm.is_announced = True
                lines.append(f"alarm: {describe(alarm.to_dict())}")
        return lines


def describe(alarm: dict[str, Any]) -> str:
    """Return an alarm as one line."""
    remedies = f" Try {'; '.join(alarm['try'])}." if alarm["try"] else ""
    return f"{alarm['name']} ({LEVEL_TITLES[alarm['level']]}). {alarm['text']}{remedies} See docs/alarms.md"

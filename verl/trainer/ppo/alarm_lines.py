"""Alarms in the console while a run trains: a line when one is raised, and one when it is cleared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from verl.report.alarms import AlarmWatch
from verl.trainer.plan.run import RunPlan

logger = logging.getLogger(__name__)
# A logged step, in contrast to a validation alone, has it.
OF_STEP = "training/global_step"


class AlarmLines:
    """Feeds the rules with what a run logs and writes, and logs their lines.

    An error of a rule is logged once, and ends the alarms, not the run.

    Args:
        keys: dotted keys of the run with their values, see `dotted`.
        plan: its agents.
        total_steps: of the run.

    Attributes:
        credit: columns of the step that is judged next, as in its file of `credit/`; None if they
            could not be written.
    """

    def __init__(self, keys: Mapping[str, Any], plan: RunPlan, total_steps: int) -> None:
        self._watch: AlarmWatch | None = None
        try:
            agents = [
                {"agent": agent.agent_id, "policy": agent.policy_id, "trained": not agent.frozen}
                for agent in plan.agents
            ]
            self._watch = AlarmWatch(dict(keys), agents, total_steps)
        except Exception as error:
            self._give_up(error)
        self.credit: dict[str, list[Any]] | None = None
        self._last_step = 0
        self._number = 0

    def note(self, rows: Iterable[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
        """Yield the episodes that are written to a trajectory file, after reading them.

        Args:
            rows: episodes as in the file.
            name: of the file: split and step, `train_000012` or `val_000012_1`.
        """
        split, step = name.split("_")[:2]
        for row in rows:
            self._try(partial(self._add, int(step), split, row))
            self._number += 1
            yield row

    def _add(self, step: int, split: str, row: dict[str, Any], watch: AlarmWatch) -> None:
        watch.facts.add(step, split, self._number, row)

    def judge(self, step: int, metrics: Mapping[str, float]) -> None:
        """Judge a step with what has been read of it, and log the lines."""

        def add(watch: AlarmWatch) -> None:
            watch.add_validation(step)
            if OF_STEP not in metrics or step <= self._last_step:
                return
            self._last_step = step
            for line in watch.add_step(step, metrics, self.credit):
                logger.warning("step %d: %s", step, line)
            self.credit = None

        self._try(add)

    def _try(self, work: Callable[[AlarmWatch], None]) -> None:
        if self._watch is None:
            return
        try:
            work(self._watch)
        except Exception as error:
            # of a rule: a run does not end by what watches it
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._watch = None
        logger.warning(
            "there are no alarms for the rest of the run, because of an error in a rule", exc_info=error
        )


def dotted(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested sections and mappings, with their values."""
    if is_dataclass(section):
        entries = [(field.name, getattr(section, field.name)) for field in fields(section)]
    elif isinstance(section, Mapping) and section:
        entries = list(section.items())
    else:
        yield prefix, section
        return
    for name, value in entries:
        yield from dotted(value, f"{prefix}.{name}" if prefix else str(name))

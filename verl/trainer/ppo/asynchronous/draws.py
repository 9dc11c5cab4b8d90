"""Tasks of the steps of a `GroupStream`: drawn for a step when its first group begins, and one by
one for groups that failed or were rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from verl.trainer.config.algorithm import FilterGroupsConfig
from verl.trainer.ppo.asynchronous.group_queue import GroupQueue
from verl.utils.dataset import TaskLoader


@dataclass
class Draw:
    """Tasks that were drawn for one step.

    Attributes:
        task_indices: all of them, in the data set.
        left: those that are not dispatched yet, as (task_index, attempt, number), see `Group`.
        counts: number of groups by task in the last attempt.
    """

    task_indices: list[int] = field(default_factory=list)
    left: list[tuple[int, int, int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class TaskDraws:
    """Draws tasks for steps.

    Attributes:
        loader: of the tasks.
        queue: of the groups.
        rule: of dynamic sampling.
        whole: play whole batches of tasks, as synchronous training does with dynamic sampling.
        failures: groups that failed in a row since the last step.
    """

    loader: TaskLoader
    queue: GroupQueue
    rule: FilterGroupsConfig
    whole: bool
    failures: int = 0
    _by_step: dict[int, Draw] = field(default_factory=dict, init=False)

    def next_group(self) -> tuple[int, int, int] | None:
        """Return the (task_index, attempt, number) of the next group; None if its step has to make
        do with those that it has.
        """
        draw = self._by_step.setdefault(self.queue.next_step, Draw())
        if not draw.left and self._may_draw(len(draw.task_indices)):
            self._draw(draw)
        return draw.left.pop(0) if draw.left else None

    @property
    def begun(self) -> bool:
        """Whether only a part of a batch of tasks that is played as a whole has begun."""
        return self.whole and bool(self._by_step.get(self.queue.taken + 1, Draw()).left)

    def _may_draw(self, count: int) -> bool:
        """Return whether a step with `count` tasks may have more: not after as many failures in a
        row as a batch has groups, nor after `max_num_gen_batches` batches.
        """
        batch = self.queue.batch
        limit = self.rule.max_num_gen_batches * batch if self.rule.enable else 0
        return self.failures < batch and not 0 < limit <= count

    def _draw(self, draw: Draw) -> None:
        """Draw tasks of a step, if there are any: a batch, then one for each group that failed or
        was rejected; without staleness dynamic sampling draws further batches.
        """
        batch = self.queue.batch
        attempt = len(draw.task_indices) // batch
        count = batch if self.whole or not draw.task_indices else 1
        if len(draw.task_indices) % batch == 0:
            draw.counts = {}
        new = [] if draw.task_indices else self._left_over()
        if len(new) < count:
            excluded = [*draw.task_indices, *new, *self.queue.set_aside]
            new += self.loader.take(count - len(new), excluded)
        for task_index in new:
            task_id = self.loader.source[task_index].task_id
            number = draw.counts.get(task_id, 0)
            draw.left.append((task_index, attempt, number))
            draw.counts[task_id] = number + 1
        draw.task_indices += new

    def _left_over(self) -> list[int]:
        """Return, and take from their steps, the tasks that were drawn for earlier steps but not
        dispatched, because these trained on fewer.
        """
        past = [draw for step, draw in self._by_step.items() if step <= self.queue.taken]
        task_indices = [task_index for draw in past for task_index, _, _ in draw.left]
        for draw in past:
            draw.left = []
        return task_indices

    def close(self, step: int) -> None:
        """Forget the draws of steps up to `step`, which have ended, but not tasks that are left."""
        self._by_step = {of: draw for of, draw in self._by_step.items() if of > step or draw.left}

    def state_dict(self) -> list[list[Any]]:
        """Return the draws in JSON types."""
        return [[step, asdict(draw)] for step, draw in self._by_step.items()]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        """Restore `state_dict`."""
        self._by_step = {step: Draw(**draw) for step, draw in state}

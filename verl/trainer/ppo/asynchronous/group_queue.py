"""Admission of task groups to sampling, and their choice for training steps: numbers only, without clocks or
threads.

A group is all episodes of one task. It is *dispatched* when it begins, at the weight versions `v_p` that are
published then, and ends as
*complete*, *failed* (no episode of it succeeded) or *rejected* (dynamic sampling: it has no signal, or is one
  too many). Versions are numbers of training steps: step `s` begins with version `s - 1`. For every trained
  policy `p`

    capacity_p = floor((1 + tau_p) * M_p * B) - (s - v_p) * B - (running + complete)

and the capacity is the lowest of them, with s the number of steps that have taken a batch, B =
`data.train_batch_size`, tau = `staleness_threshold`, M = `trigger_parameter_sync_step`, K =
`max_off_policy_threshold` under `async_training`, or of the policy alone under `async_training.per_policy`.

Step `s` may train on a group that was dispatched at versions `v_p` if `s - 1 - v_p <= K_p` for all of them:
the group's deadline is the lowest step `v_p + K_p + 1`. A step takes the `B` complete groups with the
earliest deadlines. With `max_off_policy_strategy=wait` it waits for groups that are still sampled if without
them more groups than fit would be left for the steps up to some deadline `d`:

    groups with deadline <= d that are not taken  <=  (d - s) * B      for every d

A group that is dispatched after `s` steps at version `v` is one of at most `(1 + tau) * M * B - (s - v) * B`
that are not trained yet, and the steps up to `v + K + 1` have room for `(v + K + 1 - s) * B`. So none misses
its deadline if `K >= ceil((1 + tau) * M) - 1` (`Pace.least_bound`) for every policy. A smaller K needs
`max_off_policy_strategy=drop`, which leaves such groups out: those that take longest, so that batches get
shorter episodes, and the surplus over the groups that fit. Between a take and the weights that it needs for
more, no group begins: its deadline would have passed.

A step that has waited for `batch_timeout_s` takes fewer groups than B, at least `least_batch_size`, if the
rest fits as above; so does a step for which no more tasks can be sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from verl.trainer.ppo.asynchronous.pace import Pace

T = TypeVar("T")
COUNTS = ("dispatched", "trained", "failed", "rejected", "dropped")


@dataclass(frozen=True)
class Group:
    """A dispatched group.

    Attributes:
        index: its place in the order of dispatch, from 0.
        step: step of its seeds and ids: the step that trains on it if no group fails and none waits.
        attempt: number of batches of tasks that were drawn for this step before its own.
        place: position of its task in the data set.
        number: number of groups of the same task in its batch of tasks before it.
        deadline: last step that may train on it.
        version: lowest version that was published of a policy when it began.
    """

    index: int
    step: int
    attempt: int
    place: int
    number: int
    deadline: int
    version: int


@dataclass
class GroupQueue(Generic[T]):
    """Groups from dispatch to training; a complete group has content of type `T`.

    Attributes:
        batch: groups of a step.
        paces: of every trained policy.
        drops: leave out groups that miss their deadline (`max_off_policy_strategy=drop`).
        steps: number of steps of the run; None without a limit.
        max_failures: `async_training.max_task_failures`.
        versions: published version of every trained policy.
        taken: number of steps that have taken a batch.
        dispatched, trained, failed, rejected, dropped: numbers of groups so far.
        stale: number of groups on which steps have trained that began with older weights than those of the
            step.
        running: groups that are being sampled, by index.
        complete: groups that no step has taken, with their content, by index.
        late: dropped groups, with their content, until somebody clears the list.
        failures: number of groups in a row that failed of a task, by its place.
    """

    batch: int
    paces: Mapping[str, Pace]
    drops: bool = False
    steps: int | None = None
    max_failures: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    dispatched: int = 0
    trained: int = 0
    failed: int = 0
    rejected: int = 0
    dropped: int = 0
    stale: int = 0
    running: dict[int, Group] = field(default_factory=dict)
    complete: dict[int, tuple[Group, T]] = field(default_factory=dict)
    late: list[tuple[Group, T]] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.paces, 0) | self.versions

    @property
    def capacity(self) -> int:
        """Number of groups that may be dispatched now: none while they would be too old for the next step,
        until weights are published.
        """
        if self._deadline <= self.taken:
            return 0
        rooms = [
            math.floor((1 + pace.staleness) * pace.trigger * self.batch)
            - (self.taken - self.versions[policy]) * self.batch
            for policy, pace in self.paces.items()
        ]
        if self.steps is not None:
            rooms.append((self.steps - self.taken) * self.batch)
        return max(min(rooms) - self._ahead, 0)

    @property
    def _deadline(self) -> int:
        """Deadline of a group that is dispatched now."""
        return min(self.versions[policy] + pace.bound + 1 for policy, pace in self.paces.items())

    @property
    def _ahead(self) -> int:
        """Number of groups that later steps can train on."""
        return len(self.complete) + sum(
            not self.drops or group.deadline > self.taken for group in self.running.values()
        )

    @property
    def bounded(self) -> int:
        """Number of groups that count against `(1 + tau) * M * B`, for the policy whose weights were
        published least recently.
        """
        return self._ahead + (self.taken - min(self.versions.values())) * self.batch

    @property
    def next_step(self) -> int:
        """`Group.step` of the next group: a group takes the place of one that failed, was rejected or
        dropped.

        It is one of the steps for which there is room; more groups than that (a whole batch of dynamic
        sampling) belong to the last one.
        """
        return (
            self.taken
            + 1
            + min(self._ahead // self.batch, *(pace.least_bound for pace in self.paces.values()))
        )

    @property
    def set_aside(self) -> set[int]:
        """Places of the tasks that are not drawn any more: of each, `max_failures` groups in a row failed."""
        return {place for place, count in self.failures.items() if 0 < self.max_failures <= count}

    def dispatch(self, place: int, attempt: int, number: int) -> Group:
        """Begin a group of `next_step`."""
        group = Group(
            self.dispatched,
            self.next_step,
            attempt,
            place,
            number,
            self._deadline,
            min(self.versions.values()),
        )
        self.running[group.index] = group
        self.dispatched += 1
        return group

    def end(self, group: Group, content: T) -> None:
        """End a group that steps can train on."""
        self._end_played(group)
        self.complete[group.index] = (group, content)

    def fail(self, group: Group) -> None:
        """End a group without a successful episode."""
        del self.running[group.index]
        self.failed += 1
        self.failures[group.place] = self.failures.get(group.place, 0) + 1

    def reject(self, group: Group) -> None:
        """End a group without a signal."""
        self._end_played(group)
        self.rejected += 1

    def _end_played(self, group: Group) -> None:
        del self.running[group.index]
        if group.place not in self.set_aside:
            self.failures.pop(group.place, None)

    def reject_surplus(self) -> list[tuple[Group, T]]:
        """Reject the complete groups beyond a batch, the last ones in the order of dispatch, and
        return them.
        """
        surplus = [self.complete.pop(index) for index in sorted(self.complete)[self.batch :]]
        self.rejected += len(surplus)
        return surplus

    def take(self, step: int, least: int | None = None) -> list[tuple[Group, T]] | None:
        """Return the groups of a step in the order of dispatch: a batch, or at least `least`; None if it has
        to wait.
        """
        if self.drops:
            missed = [index for index, (group, _) in self.complete.items() if group.deadline < step]
            self.late += [self.complete.pop(index) for index in missed]
            self.dropped += len(missed)
        indices = self._choice(step, self.batch if least is None else least)
        if indices is None:
            return None
        self.taken = step
        self.trained += len(indices)
        return [self.complete.pop(index) for index in sorted(indices)]

    @property
    def ready(self) -> bool:
        """Whether the next step can take a batch."""
        return self._choice(self.taken + 1, self.batch) is not None

    def _choice(self, step: int, least: int) -> list[int] | None:
        """Return the groups that a step would take, by index; None if it has to wait."""
        usable = [
            index for index, (group, _) in self.complete.items() if not self.drops or group.deadline >= step
        ]
        indices = sorted(usable, key=lambda index: (self.complete[index][0].deadline, index))[: self.batch]
        return (
            indices if len(indices) >= least and (self.drops or self._rest_fits(step, set(indices))) else None
        )

    def put_back(self, groups: Sequence[tuple[Group, T]]) -> None:
        """Undo the last `take`."""
        self.taken -= 1
        self.trained -= len(groups)
        self.complete |= {group.index: (group, content) for group, content in groups}

    def fail_taken(self, number: int) -> None:
        """Count groups of the last `take` as failed: none has a sample."""
        self.trained -= number
        self.failed += number

    def count_stale(self, step: int, groups: Iterable[tuple[Group, T]]) -> None:
        """Count the stale ones of the groups of a step that has ended."""
        self.stale += sum(group.version < step - 1 for group, _ in groups)

    def _rest_fits(self, step: int, batch_indices: set[int]) -> bool:
        """Return whether the steps after `step` can train on all other groups before their deadlines."""
        left = [group for group, _ in self.complete.values() if group.index not in batch_indices] + list(
            self.running.values()
        )
        return fits((group.deadline for group in left), step, self.batch)

    def counts(self) -> dict[str, int]:
        """Return the ledger: dispatched = trained + failed + rejected + dropped + running + complete."""
        return {name: getattr(self, name) for name in COUNTS} | {
            "running": len(self.running),
            "complete": len(self.complete),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the content of complete groups, in JSON types; a group that is running will
        run again.
        """
        counts = {name: getattr(self, name) for name in COUNTS}
        running = [asdict(group) for group in self.running.values()]
        counts |= {"taken": self.taken, "stale": self.stale, "failures": list(self.failures.items())}
        return {
            **counts,
            "versions": self.versions,
            "running": running,
            "complete": [asdict(group) for group, _ in self.complete.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any], contents: list[T]) -> None:
        """Restore `state_dict`, with the content of its complete groups in their order."""
        for name in (*COUNTS, "taken", "stale"):
            setattr(self, name, int(state[name]))
        self.failures = dict(state["failures"])
        self.versions |= {
            policy: version for policy, version in state["versions"].items() if policy in self.versions
        }
        self.running = {group["index"]: Group(**group) for group in state["running"]}
        complete = [Group(**group) for group in state["complete"]]
        self.complete = {
            group.index: (group, content) for group, content in zip(complete, contents, strict=True)
        }


def fits(deadlines: Iterable[int], step: int, batch: int) -> bool:
    """Return whether steps after `step`, of `batch` groups each, can train on groups with these deadlines."""
    return all(
        count <= (deadline - step) * batch for count, deadline in enumerate(sorted(deadlines), start=1)
    )

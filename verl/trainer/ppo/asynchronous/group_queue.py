"""Admission of task groups to sampling, and their choice for training steps: numbers only, without clocks or
threads.

A group is all episodes of one task. It is *dispatched* when it begins, at the weight versions `v_p` that are
published then. Its state says where it is, and is changed by `GroupQueue.move` alone, with the collections of
groups by state that answer what is asked whenever a group ends:

    running ──► complete ──► training ──► (its step has ended: trained, and forgotten)
       │           │  ▲          │
       │           │  └──────────┤  the step is undone
       │           ├──► dropped  │  too old for the steps to come
       ├───────────┴──► rejected │  dynamic sampling: it has no signal, or is one too many
       └──► failed ◄─────────────┘  no episode of it succeeded, or none of its step has a sample

Versions are numbers of training steps: step `s` begins with version `s - 1`. For every trained policy `p`

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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Any, Literal, get_args

from verl.trainer.plan.learners import Pace
from verl.trainer.ppo.collect.protocol import FinishedEpisode

GroupState = Literal["running", "complete", "training", "failed", "rejected", "dropped"]
STATES = ("trained", "training", "failed", "rejected", "dropped", "running", "complete")
NUMBERS = ("taken", "dispatched", "stale")


@dataclass
class Group:
    """A dispatched group.

    Attributes:
        index: its place in the order of dispatch, from 0.
        step: step of its seeds and ids: the step that trains on it if no group fails and none
            waits.
        attempt: number of batches of tasks that were drawn for this step before its own.
        task_index: position of its task in the data set.
        number: number of groups of the same task in its batch of tasks before it.
        deadline: last step that may train on it.
        version: lowest version that was published of a policy when it began.
        state: where it is.
        taken_by: step that trains on it, or whose metrics count it; None if no step has taken it
            yet.
        sampled: its episodes, when it has ended.
        greedy: the greedy episode of its baseline, when it has ended.
    """

    index: int
    step: int
    attempt: int
    task_index: int
    number: int
    deadline: int
    version: int
    state: GroupState = "running"
    taken_by: int | None = None
    sampled: Sequence[FinishedEpisode] = ()
    greedy: Sequence[FinishedEpisode] = ()

    @property
    def episodes(self) -> list[FinishedEpisode]:
        """All episodes."""
        return [*self.sampled, *self.greedy]


@dataclass
class GroupQueue:
    """Groups from dispatch until the step that takes them has ended.

    Attributes:
        batch: groups of a step.
        paces: of every trained policy.
        drops: leave out groups that miss their deadline (`max_off_policy_strategy=drop`).
        steps: number of steps of the run; None without a limit.
        max_failures: `async_training.max_task_failures`.
        versions: published version of every trained policy.
        taken: number of steps that have taken a batch.
        dispatched: number of groups so far.
        stale: number of groups on which steps have trained that began with older weights than those
            of the step.
        groups: all that no step which has ended has taken, by index and in the order of dispatch.
        ended: numbers of the others, by what became of them.
        failures: number of groups in a row that failed of a task, by its index.
    """

    batch: int
    paces: Mapping[str, Pace]
    drops: bool = False
    steps: int | None = None
    max_failures: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    dispatched: int = 0
    stale: int = 0
    groups: dict[int, Group] = field(default_factory=dict, init=False)
    ended: Counter[str] = field(default_factory=Counter)
    failures: dict[int, int] = field(default_factory=dict)
    # `groups` by state, by deadline and by index, without order and without empty deadlines.
    _by_state: dict[GroupState, dict[int, dict[int, Group]]] = field(
        default_factory=lambda: {state: {} for state in get_args(GroupState)}, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.paces, 0) | self.versions

    def of(self, *states: GroupState, step: int | None = None) -> list[Group]:
        """Return the groups in some states, of those that `step` has taken if it is set, in the
        order of dispatch.
        """
        groups = (
            group for state in states for same in self._by_state[state].values() for group in same.values()
        )
        return in_order(group for group in groups if step is None or group.taken_by == step)

    def count(self, *states: GroupState, earliest: int = 0) -> int:
        """Return the number of groups in some states whose deadline is not before step `earliest`."""
        return sum(
            len(groups)
            for state in states
            for deadline, groups in self._by_state[state].items()
            if deadline >= earliest
        )

    @property
    def capacity(self) -> int:
        """Number of groups that may be dispatched now: none while they would be too old for the
        next step, until weights are published.
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
        return self.count("complete") + self.count("running", earliest=self.taken + 1 if self.drops else 0)

    @property
    def bounded(self) -> int:
        """Number of groups that count against `(1 + tau) * M * B`, for the policy whose weights
        were published least recently.
        """
        return self._ahead + (self.taken - min(self.versions.values())) * self.batch

    @property
    def next_step(self) -> int:
        """`Group.step` of the next group: a group takes the place of one that failed, was rejected
        or dropped.

        It is one of the steps for which there is room; more groups than that (a whole batch of
        dynamic sampling) belong to the last one.
        """
        return (
            self.taken
            + 1
            + min(self._ahead // self.batch, *(pace.least_bound for pace in self.paces.values()))
        )

    @property
    def set_aside(self) -> set[int]:
        """Indices of the tasks that are not drawn any more: of each, `max_failures` groups in a row
        failed.
        """
        return {task_index for task_index, count in self.failures.items() if 0 < self.max_failures <= count}

    def dispatch(self, task_index: int, attempt: int, number: int) -> Group:
        """Begin a group of `next_step`."""
        group = Group(
            index=self.dispatched,
            step=self.next_step,
            attempt=attempt,
            task_index=task_index,
            number=number,
            deadline=self._deadline,
            version=min(self.versions.values()),
        )
        self._add(group)
        self.dispatched += 1
        return group

    def _add(self, group: Group) -> None:
        self.groups[group.index] = group
        self._by_state[group.state].setdefault(group.deadline, {})[group.index] = group

    def _remove(self, group: Group) -> None:
        del self.groups[group.index]
        self._leave_state(group)

    def _leave_state(self, group: Group) -> None:
        by_deadline = self._by_state[group.state]
        del by_deadline[group.deadline][group.index]
        if not by_deadline[group.deadline]:
            del by_deadline[group.deadline]

    def move(self, state: GroupState, *groups: Group) -> None:
        """Change the state of groups, see above; of one that was running, count the failures of its
        task.
        """
        for group in groups:
            if group.state == "running" and state == "failed":
                self.failures[group.task_index] = self.failures.get(group.task_index, 0) + 1
            elif group.state == "running" and group.task_index not in self.set_aside:
                # A task that is set aside stays so: its groups that began before may still succeed.
                self.failures.pop(group.task_index, None)
            self._leave_state(group)
            group.state = state
            self._add(group)

    def take(self, step: int, least: int | None = None) -> list[Group] | None:
        """Return the groups of a step in the order of dispatch: a batch, or at least `least`; None
        if it has to wait.

        The step also takes the groups that have ended as failed, rejected or dropped since the last
        one.
        """
        if self.drops:
            by_deadline = self._by_state["complete"]
            late = [groups.values() for deadline, groups in by_deadline.items() if deadline < step]
            self.move("dropped", *chain.from_iterable(late))
        batch = self._choice(step, self.batch if least is None else least)
        if batch is None:
            return None
        self.move("training", *batch)
        self.taken = step
        for group in self.of("training", "failed", "rejected", "dropped"):
            group.taken_by = group.taken_by or step
        return in_order(batch)

    def undo(self, step: int) -> None:
        """Undo the takes of the steps after `step`, whose weights do not exist: their groups are
        taken by none, and those that they trained on complete. Groups without a sample stay failed.
        """
        for group in self.groups.values():
            if group.taken_by is not None and group.taken_by > step:
                group.taken_by = None
                if group.state == "training":
                    self.move("complete", group)
        self.taken = min(self.taken, step)
        self.versions = {policy: min(version, step) for policy, version in self.versions.items()}

    def close(self, step: int) -> None:
        """Count, and forget, the groups that steps up to `step` have taken: these have ended."""
        for group in list(self.groups.values()):
            if group.taken_by is not None and group.taken_by <= step:
                is_trained = group.state == "training"
                self.stale += is_trained and group.version < group.taken_by - 1
                self.ended["trained" if is_trained else group.state] += 1
                self._remove(group)

    @property
    def ready(self) -> bool:
        """Whether the next step can take a batch."""
        return self._choice(self.taken + 1, self.batch) is not None

    def _choice(self, step: int, least: int) -> list[Group] | None:
        """Return the groups that a step would take, those with the earliest deadlines first; None
        if it has to wait.
        """
        # With `drop` a group that ended too late is complete until the next take; with `wait` there
        # is none.
        earliest = step if self.drops else 0
        # `least` is a whole batch, unless the step is late or no more tasks may be drawn for it.
        if self.count("complete", earliest=earliest) < least:
            return None
        complete = self._by_state["complete"]
        deadlines = sorted(deadline for deadline in complete if deadline >= earliest)
        # With `drop` no step waits for slow groups: those that miss their deadlines are left out.
        # With `wait` a group that is still running may need a place in this step: without it, more
        # groups would be left for the steps up to some deadline than they can train on.
        if not self.drops and not fits(self._left(deadlines), step, self.batch):
            return None
        usable = chain.from_iterable(in_order(complete[deadline].values()) for deadline in deadlines)
        return list(islice(usable, self.batch))

    def _left(self, deadlines: Iterable[int]) -> Counter[int]:
        """Return the number of groups by deadline, running or complete, that a step leaves which
        takes a batch of complete ones in the order of these deadlines.
        """
        left = Counter({deadline: len(groups) for deadline, groups in self._by_state["running"].items()})
        room = self.batch
        for deadline in deadlines:
            number = len(self._by_state["complete"][deadline])
            left[deadline] += max(number - room, 0)
            room = max(room - number, 0)
        return left

    def counts(self) -> dict[str, int]:
        """Return the ledger: dispatched = trained + training + failed + rejected + dropped +
        running + complete.
        """
        numbers = self.ended + Counter({state: self.count(state) for state in get_args(GroupState)})
        return {"dispatched": self.dispatched} | {state: numbers[state] for state in STATES}

    def state_dict(self) -> dict[str, Any]:
        """Return everything but episodes, of which groups have the numbers, in JSON types; a group
        that is running will run again.
        """
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "versions": dict(self.versions),
            "failures": list(self.failures.items()),
            "ended": dict(self.ended),
            "groups": [
                vars(group) | {"sampled": len(group.sampled), "greedy": len(group.greedy)}
                for group in self.groups.values()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], episodes: Iterable[FinishedEpisode]) -> None:
        """Restore `state_dict`, with the episodes of its groups in their order."""
        for name in NUMBERS:
            setattr(self, name, int(state[name]))
        self.failures = dict(state["failures"])
        self.ended = Counter(state["ended"])
        self.versions |= {
            policy: version for policy, version in state["versions"].items() if policy in self.versions
        }
        left = iter(episodes)
        for group in state["groups"]:
            parts = {name: tuple(islice(left, group[name])) for name in ("sampled", "greedy")}
            self._add(Group(**group | parts))


def in_order(groups: Iterable[Group]) -> list[Group]:
    """Return groups in the order of dispatch."""
    return sorted(groups, key=lambda group: group.index)


def fits(deadlines: Counter[int], step: int, batch: int) -> bool:
    """Return whether steps after `step`, of `batch` groups each, can train on groups of which these
    numbers have each deadline.
    """
    left = sorted((+deadlines).items())
    totals = accumulate(number for _, number in left)
    return all(total <= (deadline - step) * batch for (deadline, _), total in zip(left, totals, strict=True))

"""Admission and choice of groups, over random orders of everything that can happen."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from verl.trainer.plan.learners import Pace
from verl.trainer.ppo.asynchronous.group_queue import Group, GroupQueue, GroupState, fits


def episodes(index: int) -> tuple[Any, ...]:
    return (f"{index}#0", f"{index}#1")


class Waiting(RuleBasedStateMachine):
    """A run with `max_off_policy_strategy=wait` and the lowest bound that is allowed."""

    drops = False

    def least_bound(self, pace: Pace) -> int:
        return pace.least_bound

    @initialize(
        batch=st.integers(1, 4),
        staleness=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        trigger=st.integers(1, 3),
        spare=st.integers(0, 2),
        least=st.integers(1, 2),
    )
    def begin(self, batch: int, staleness: float, trigger: int, spare: int, least: int) -> None:
        paces = {"a": Pace(staleness, trigger), "b": Pace(0.5, 2)}
        paces = {name: replace(pace, bound=self.least_bound(pace) + spare) for name, pace in paces.items()}
        self.queue = GroupQueue(batch, paces, self.drops, steps=9)
        self.least = min(least, batch)
        self.ended, self.trained, self.begun = set[int](), set[int](), dict[int, dict[str, int]]()
        self.step, self.updated = 1, dict.fromkeys(paces, 0)

    @rule(count=st.integers(1, 6))
    def dispatch(self, count: int) -> None:
        for _ in range(min(count, self.queue.capacity)):
            group = self.queue.dispatch(task_index=7, attempt=0, number=0)
            assert group.deadline > self.queue.taken
            self.begun[group.index] = dict(self.queue.versions)

    @precondition(lambda self: self.queue.of("running"))
    @rule(data=st.data(), how=st.sampled_from(["ends", "ends", "fails", "is rejected"]))
    def end(self, data: st.DataObject, how: str) -> None:
        group = data.draw(st.sampled_from(self.queue.of("running")))
        assert group.index not in self.ended
        self.ended.add(group.index)
        group.sampled = episodes(group.index)
        states = {"ends": "complete", "fails": "failed", "is rejected": "rejected"}
        self.queue.move(states[how], group)  # type: ignore[arg-type]

    @precondition(
        lambda self: (
            self.step <= 9 and max(self.updated.values()) == self.step - 1 <= min(self.updated.values()) + 1
        )
    )
    @rule(interrupted=st.booleans(), late=st.booleans())
    def take(self, interrupted: bool, late: bool) -> None:
        least = self.least if late else None
        if interrupted and self.queue.take(self.step, least) is not None:
            self.queue.undo(self.step - 1)
            self.what_is_stored_by_state_is_what_a_scan_returns()
        taken = self.queue.take(self.step, least)
        if taken is None:
            ended = min(self.updated.values()) == self.step - 1
            assert self.queue.of("running") or self.queue.capacity or not ended, (
                "nothing would ever end this wait"
            )
            return
        indices = [group.index for group in taken]
        assert indices == sorted(indices) and all(group.sampled == episodes(group.index) for group in taken)
        assert (least or self.queue.batch) <= len(taken) <= self.queue.batch
        for index in indices:
            for name, pace in self.queue.paces.items():
                assert 0 <= self.step - 1 - self.begun[index][name] <= pace.bound
            assert index not in self.trained
            self.trained.add(index)
        before = self.queue.stale
        ended = self.queue.of("training", "failed", "rejected", "dropped")
        assert self.queue.of("training") == taken
        assert self.queue.of("training", "failed", "rejected", "dropped", step=self.step) == ended
        self.queue.close(self.step)
        assert not self.queue.of("training", "failed", "rejected", "dropped")
        assert self.queue.stale == before + sum(
            min(self.begun[index].values()) < self.step - 1 for index in indices
        )
        self.step += 1

    @precondition(lambda self: min(self.updated.values()) < self.step - 1)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """A lane ends a step; groups begin before the others do, which may be a step behind."""
        name = data.draw(
            st.sampled_from([name for name, step in self.updated.items() if step < self.step - 1])
        )
        self.updated[name] += 1
        if self.updated[name] % self.queue.paces[name].trigger == 0:
            self.queue.versions[name] = self.updated[name]

    @rule()
    def restart(self) -> None:
        state = json.loads(json.dumps(self.queue.state_dict()))
        old = self.queue
        self.queue = GroupQueue(old.batch, old.paces, self.drops, old.steps)
        self.queue.load_state_dict(state, [e for group in old.groups.values() for e in group.episodes])
        assert self.queue == old

    @invariant()
    def the_ledger_holds(self) -> None:
        if not hasattr(self, "queue"):
            return
        counts = self.queue.counts()
        assert counts.pop("dispatched") == sum(counts.values())
        assert self.drops or counts["dropped"] == 0
        left = self.queue.of("running", "complete")
        assert self.drops or fits(
            Counter(group.deadline for group in left), self.queue.taken, self.queue.batch
        ), "a resume would be refused"
        for pace in () if self.drops else self.queue.paces.values():
            assert counts["running"] + counts["complete"] <= math.floor(
                (1 + pace.staleness) * pace.trigger * self.queue.batch
            )
        assert counts["trained"] <= self.queue.taken * self.queue.batch <= 9 * self.queue.batch

    @invariant()
    def what_is_stored_by_state_is_what_a_scan_returns(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue = self.queue
        groups = sorted(queue.groups.values(), key=lambda group: group.index)
        assert list(queue.groups.values()) == groups
        by_state: dict[str, dict[int, dict[int, Group]]] = {state: {} for state in get_args(GroupState)}
        for group in groups:
            by_state[group.state].setdefault(group.deadline, {})[group.index] = group
        assert queue._by_state == by_state
        step = queue.taken + 1
        for states in (*((state,) for state in by_state), ("complete", "running"), tuple(by_state)):
            same = [group for group in groups if group.state in states]
            assert queue.of(*states) == same and queue.count(*states) == len(same)
            in_time = [group for group in same if group.deadline >= step]
            assert queue.count(*states, earliest=step) == len(in_time)
            of_step = [group for group in same if group.taken_by == step - 1]
            assert queue.of(*states, step=step - 1) == of_step
        for least in (0, 1, queue.batch):
            assert queue._choice(step, least) == self.choice(groups, step, least)

    def choice(self, groups: list[Group], step: int, least: int) -> list[Group] | None:
        """What a step takes, by a look at each group."""
        usable = [g for g in groups if g.state == "complete" and (g.deadline >= step or not self.drops)]
        batch = sorted(usable, key=lambda group: group.deadline)[: self.queue.batch]
        left = sorted(g.deadline for g in groups if g.state in ("complete", "running") and g not in batch)
        room = [(deadline - step) * self.queue.batch for deadline in left]
        late = any(number > most for number, most in enumerate(room, 1))
        return None if len(batch) < least or (late and not self.drops) else batch


class Dropping(Waiting):
    """A run with `max_off_policy_strategy=drop`."""

    drops = True

    def least_bound(self, pace: Pace) -> int:
        return pace.trigger - 1


Waiting.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
Dropping.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_waiting, test_dropping = Waiting.TestCase, Dropping.TestCase


def test_a_step_waits_for_a_slow_group_whose_deadline_is_near() -> None:
    queue = GroupQueue(1, {"p": Pace(1.0, bound=1)})
    slow, fast = queue.dispatch(0, 0, 0), queue.dispatch(1, 0, 0)
    assert queue.capacity == 0
    queue.move("complete", fast)
    assert queue.take(1) == [fast]  # step 2 can still train on the slow one
    queue.versions["p"] = 1
    later = queue.dispatch(2, 0, 0)
    queue.move("complete", later)
    assert queue.take(2) is None
    queue.move("complete", slow)
    assert queue.take(2) == [slow]


def test_with_drop_a_step_goes_on_and_leaves_out_what_is_too_old() -> None:
    queue = GroupQueue(1, {"p": Pace(1.0, bound=0)}, drops=True)
    slow, fast = queue.dispatch(0, 0, 0), queue.dispatch(1, 0, 0)
    queue.move("complete", fast)
    assert queue.take(1) == [fast]
    queue.versions["p"] = 1
    queue.move("complete", slow)
    assert queue.take(2) is None and queue.counts()["dropped"] == 1 and queue.capacity == 2
    assert queue.of("dropped") == [slow]


def test_with_drop_groups_that_can_no_longer_be_trained_hold_no_room() -> None:
    queue = GroupQueue(1, {"p": Pace(1.0, bound=0)}, drops=True)
    slow, fast = queue.dispatch(0, 0, 0), queue.dispatch(1, 0, 0)
    queue.move("complete", fast)
    assert queue.capacity == 0 and queue.take(1) == [fast]
    queue.versions["p"] = 1
    assert slow.deadline == 1 and queue.capacity == 2


def test_with_drop_no_group_begins_that_no_step_could_train_on() -> None:
    """A step has taken its batch, and one policy of two has been updated: what began now would be too old for
    the next step.
    """
    queue = GroupQueue(1, {"p": Pace(1.0, bound=0), "q": Pace(1.0, bound=0)}, drops=True)
    queue.move("complete", queue.dispatch(0, 0, 0))
    assert queue.take(1) and queue.capacity == 0
    queue.versions["p"] = 1
    assert queue.capacity == 0
    queue.versions["q"] = 1
    assert queue.capacity == 2 and queue.dispatch(1, 0, 0).deadline == 2


@pytest.mark.parametrize(
    ("staleness", "trigger", "least"), [(0, 1, 0), (0.5, 1, 1), (1, 1, 1), (1, 2, 3), (2.5, 3, 10)]
)
def test_the_least_bound(staleness: float, trigger: int, least: int) -> None:
    assert Pace(staleness, trigger).least_bound == least


def test_a_batch_of_groups_has_the_seeds_of_one_step() -> None:
    queue = GroupQueue(2, {"p": Pace(1.0)})
    assert [queue.dispatch(task_index, 0, 0) for task_index in (5, 6, 7)] == [
        Group(0, 1, 0, 5, 0, 1, 0),
        Group(1, 1, 0, 6, 0, 1, 0),
        Group(2, 2, 0, 7, 0, 1, 0),
    ]


def test_groups_beyond_a_batch_are_of_its_step_and_those_that_are_not_needed_are_rejected() -> None:
    queue = GroupQueue(2, {"p": Pace()})
    groups = [queue.dispatch(task_index, 0, 0) for task_index in range(4)]
    assert [group.step for group in groups] == [1] * 4
    for group in reversed(groups):
        queue.move("complete", group)
    queue.move("rejected", *queue.of("complete")[queue.batch :])
    assert queue.of("rejected") == groups[2:]
    assert queue.counts()["rejected"] == 2 and queue.take(1) == groups[:2]


def test_weights_are_sent_after_as_many_steps_as_the_pace_says_or_sooner() -> None:
    pace, steps = Pace(trigger=3), range(1, 7)
    sent = {
        way: [step for step in steps if pace.sends(way, step, step - 1, ahead=False)]
        for way in ("lazy", "eager", "adaptive")
    }
    assert sent == {"lazy": [3, 6], "eager": [1, 2, 3, 4, 5, 6], "adaptive": []}
    assert pace.sends("adaptive", 4, 3, ahead=True) and pace.sends("adaptive", 4, 1, ahead=False)
    assert not pace.sends("adaptive", 4, 2, ahead=False)
    adapter = replace(pace, adapter=True)
    assert all(
        adapter.sends(way, step, step - 1, ahead=False)
        for way in ("lazy", "eager", "adaptive")
        for step in steps
    )


def test_a_task_is_set_aside_after_failures_in_a_row_and_stays_so() -> None:
    queue = GroupQueue(9, {"p": Pace(9.0)}, max_failures=2)

    def play(*states: GroupState) -> set[int]:
        for state in states:
            queue.move(state, queue.dispatch(7, 0, 0))
        return queue.set_aside

    assert play("failed", "complete", "failed", "rejected", "failed") == set()
    assert play("failed") == play("failed", "complete", "rejected") == {7} and queue.failures == {7: 3}
    for limit, aside in ((3, {7}), (4, set()), (0, set())):
        resumed = GroupQueue(9, {"p": Pace(9.0)}, max_failures=limit)
        resumed.load_state_dict(json.loads(json.dumps(queue.state_dict())), [])
        assert resumed.set_aside == aside

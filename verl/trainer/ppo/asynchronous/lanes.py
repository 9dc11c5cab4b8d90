"""Lanes: sets of policies whose credit, updates and transfers of weights wait for no other policy.

    step s:  take groups ──► rows of lane A: log-probs, credit, update, weights ──► rows of the next step, as soon as they are taken
                        └──► rows of lane B: log-probs, credit, update, weights ──► ...

Policies are in one lane if their advantages depend on each other's samples, or if they are adapters of one
worker group. A policy whose updates are short goes on with the next steps while another one still updates,
which has a queue of at most `async_training.max_lead` steps. Lanes meet in the last step, for a checkpoint
and for a validation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

from verl.trainer.config import AlgorithmConfig, AsyncTrainingConfig
from verl.trainer.plan.agents import AgentPlan
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.plan.run import RunPlan

T = TypeVar("T")
# Fields that samples of different agents, or policies, never share.
OWN_FIELDS = {"agent_id", "policy_id", "wg_id"}
# Parameters of estimators through which an advantage may depend on rows of other policies.
WHOLE_BATCH = {"batch", "non_tensor_batch", "seed", "state"}


def lanes_of(
    algorithm: AlgorithmConfig, async_training: AsyncTrainingConfig, plan: RunPlan
) -> list[list[str]]:
    """Return the trained policies of every lane; one lane unless `async_training.mode=fully_async`.

    There is one lane, too, with an estimator that keeps state, and with a penalty in the reward
    whose coefficient adapts. The critic of a worker group is in the lane of its policies.
    """
    keeps_state = any(agent.takes("state") for agent in plan.trained)
    adapts = algorithm.use_kl_in_reward and algorithm.kl_ctrl.type == "adaptive"
    # With `one_step_off` the samples of the next step have to be complete before any weights are
    # sent. With committed returns the episodes of a tree are those of the whole team. Averages of
    # an estimator and an adapted coefficient are state of all policies, which would depend on the
    # lane that comes first.
    if async_training.mode != "fully_async" or plan.committed or adapts or keeps_state:
        return [plan.policy_ids]
    # Adapters of one base, and its critic, share the processes of a worker group, which do one
    # thing at once.
    common = {agent.wg_id for agent in plan.trained if not compares_itself(agent)}
    lanes: dict[str, list[str]] = {}
    for policy, learner in plan.policies.items():
        lanes.setdefault("" if learner.wg_id in common else learner.wg_id, []).append(policy)
    return list(lanes.values())


def compares_itself(agent: AgentPlan) -> bool:
    """Return whether the advantages of an agent depend on samples of its policy alone, as far as is
    declared.

    Estimators without groups compare a sample with none, or with those of its policy.
    """
    traits = agent.traits
    parameters = ESTIMATORS.parameters(agent.estimator).required
    function = ESTIMATORS.functions.get(agent.estimator)
    # Those of users may read the whole batch as keywords.
    ours = function is None or function.__module__.startswith("verl.")
    is_declared = (
        ours and traits.reads is not None and traits.units is None and not WHOLE_BATCH & set(parameters)
    )
    by_group = (
        not traits.whole_batch and not traits.follows_calls and bool(OWN_FIELDS & set(agent.group_fields))
    )
    return is_declared and (by_group or not traits.grouped)


class Lanes:
    """Runs the jobs of every lane one after the other, those of several lanes at the same time;
    with one lane in the caller's thread.

    After a job that raises, none begins.

    Args:
        number: number of lanes.
        max_lead: steps by which a lane may be ahead of another one.

    Attributes:
        lead: steps that may begin before the oldest one has ended: `max_lead`, or 0 with one lane.
    """

    def __init__(self, number: int, max_lead: int) -> None:
        self.lead = max_lead if number > 1 else 0
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix="lane") for _ in range(number if number > 1 else 0)
        ]
        self._lock = threading.Lock()
        self._running = 0
        self._failed = False
        self._idle_since = time.perf_counter()

    def start(self, jobs: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Start a job of every lane."""
        if self._threads:
            # At once, not when a thread begins: a job that waits behind another one is no idle
            # time.
            with self._lock:
                self._running += len(jobs)
            return [threads.submit(self._run, job) for threads, job in zip(self._threads, jobs, strict=True)]
        # One lane has nothing to go on with beside it, so it needs no thread: the job is over when
        # this returns, and its error comes with the result, as that of a thread does.
        future: Future[T] = Future()
        try:
            future.set_result(jobs[0]())
        except Exception as error:
            future.set_exception(error)
        self._idle_since = time.perf_counter()
        return [future]

    def _run(self, job: Callable[[], T]) -> T:
        try:
            # It was queued before another lane failed: what it would train on cannot be saved any
            # more.
            self.check()
            return job()
        except BaseException:
            # SystemExit of a user's code too: whatever ended the job, its policies lack the step.
            self._failed = True
            raise
        finally:
            with self._lock:
                self._running -= 1
                self._idle_since = time.perf_counter()

    def check(self) -> None:
        """Raise CancelledError if a job has failed."""
        if self._failed:
            raise CancelledError("another policy failed")

    def idle_seconds(self, start: float) -> float:
        """Return the seconds since `start`, by `time.perf_counter`, in which no job was running; 0
        if one is.
        """
        # The lanes may have been idle since before `start`, which is no part of the step.
        with self._lock:
            return 0.0 if self._running else time.perf_counter() - max(start, self._idle_since)

    def end(self) -> None:
        """Begin no more jobs."""
        # Jobs that are queued end with CancelledError; those that run go on, which nothing can
        # interrupt.
        self._failed = True
        for threads in self._threads:
            threads.shutdown(wait=False)

"""The environment of one episode, with its tasks, observations and outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agent_system.options import NoOptions


@dataclass(frozen=True)
class Task:
    """One dataset row.

    Attributes:
        task_id: unique in its dataset.
        prompt: the question as text.
        data_source: name of the dataset, for metrics.
        ground_truth: reference for the grader; None when the environment computes rewards without
            one.
        extra: further data for the environment.
        judged: False for a question without a ground truth; its rewards are not used.
        messages: the row's chat messages (`role`, `content`), unchanged; empty for a task without a
            row.
    """

    task_id: str
    prompt: str
    data_source: str = ""
    ground_truth: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    judged: bool = True
    messages: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class Observation:
    """The input of an agent from the environment.

    Attributes:
        text: fills `{env_prompt}`.
        info: more variables for prompt templates. The optional `anchor` is a canonical key of the
            state (such as a board without its move counter): GiGPO compares calls that acted on
            equal anchors. Without it the text is the anchor.
    """

    text: str
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of an action.

    Attributes:
        team: reward of the whole team. From `act` it belongs to the call just made, from `step` to
            the turn; `reward.team_scope` says whether a sample gets the episode's sum (Dr. MAS),
            its turn's, or the reward right after its own action (AT-GRPO).
        local: rewards of single calls. From `act`: a number, for the call just made. From `step`: a
            mapping whose keys are call numbers of this turn (int, from 0) or agent names (every
            call of that agent in this turn, or its latest earlier call when it made none in this
            turn); both add up. None, or a call that no mapping names, means no local reward: it
            counts as 0 in sums, but unlike an explicit 0 it cuts no credit
            (`reward.propagation.mode=threshold`). A reward that is not a finite number fails the
            episode.
        done: the episode ends.
        info: numbers (and booleans) become metrics, `success` among them; a later turn overwrites
            an earlier one.
        observation: observation at the start of the next turn; None keeps the present one.
    """

    team: float = 0.0
    local: float | Mapping[int | str, float] | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    observation: Observation | None = None


@dataclass(frozen=True)
class Grid:
    """A state that is drawn as a grid, see `BaseEnv.render`.

    Attributes:
        cells: rows from the top, each a text with one character a cell, or a list of short texts.
        legend: meaning of cells, for readers; cells without one are drawn as well.
    """

    cells: Sequence[str | Sequence[str]]
    legend: Mapping[str, str] = field(default_factory=dict)


def paid(amount: float, *coefficients: float) -> float | None:
    """Return the local reward `amount`, or None (no local reward) when all of its coefficients are
    0.
    """
    return amount if any(coefficients) else None


class BaseEnv(ABC):
    """An environment that a user subclasses; one object per episode.

    Every method may be `async def`. Plain methods run in a thread, so that one slow environment
    does not stall the others; set `blocking = False` when they return at once.

    Attributes:
        config_class: dataclass of the options under `env.params`.
        blocking: plain methods may take long.
        needs_ground_truth: tasks must have a ground truth; False for an environment that computes
            rewards without one.
        uses_sandbox: it runs programs in `agent_system.sandbox.shared_sandbox()`, possibly with
            some options only; a run without a working sandbox then does not start.
        config: the options of this run.
        seed: the same for all episodes of a group, so that they start from the same state.
    """

    config_class: ClassVar[type] = NoOptions
    blocking: ClassVar[bool] = True
    needs_ground_truth: ClassVar[bool] = True
    uses_sandbox: bool = False

    def __init__(self, config: Any = None, *, seed: int = 0) -> None:
        self.config = self.config_class() if config is None else config
        self.seed = seed

    @abstractmethod
    def reset(self, task: Task) -> Any:
        """Start `task`; return the first `Observation`."""

    @abstractmethod
    def step(self, action: Any) -> Any:
        """End the turn with the action that the orchestra returned; return an `Outcome`."""

    def observe(self, agent_id: str) -> Any:
        """Return the `Observation` of one agent. Without an override all agents get the turn's
        observation.
        """
        raise NotImplementedError

    def act(self, agent_id: str, action: str) -> Any:
        """Apply one agent's projected action inside the turn; return an `Outcome`. Without an
        override nothing happens.
        """
        raise NotImplementedError

    def score(self, agent_id: str, action: str) -> Any:
        """Return an `Outcome` whose `team` and `local` are added to the `act` reward of a candidate
        of tree sampling.

        For environments that give rewards at `step`, or whose `act` gives none for a proposal: an
        estimate of the action's value in the current state. It is called on the candidate's own
        fork after `act`, must not change the state, and adds nothing to the episode's rewards.
        """
        raise NotImplementedError

    def render(self) -> Any:
        """Return the present state for those who read episodes: a text, a `Grid`, or None.

        It is called after `reset` and after every turn of the episodes whose group is written to
        trajectories/, and must not change the state. Cells and texts may be what a model wrote; they
        are shown as text. An error in it costs no episode.
        """
        return None

    def check_task(self, task: Task) -> None:  # noqa: B027 - most environments take any
        """Raise AgentSystemError if a task cannot be graded; called for each one of the data before
        training.
        """

    def check_workers(self) -> None:  # noqa: B027 - most environments take any
        """Raise AgentSystemError if these options are unfit for worker processes; called before a
        run with `env.workers.num>0`.
        """

    def fork(self) -> BaseEnv:
        """Return a cheap independent copy of the state (needed by tree sampling only); the task
        object is shared.

        Forks of one state behave identically, random numbers included; `close` is called on every
        one of them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fork(); tree sampling needs one")

    @classmethod
    def question(cls, text: str) -> Task | None:
        """Return the task (`judged=False`) of a person's question, for
        `python -m agent_system.serve`.

        Return None, the default, if the environment cannot be built from a question.
        """
        return None

    def close(self) -> Any:  # noqa: B027 - releasing nothing is the usual case
        """Release the resources of this object. Called once, also after a failure."""

    @classmethod
    def overrides(cls, method: str) -> bool:
        """Return whether the class defines its own `method`."""
        return getattr(cls, method) is not getattr(BaseEnv, method)

"""The world of one episode, and what it says: tasks, observations and outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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
        ground_truth: what a grader compares with; None when the environment judges by itself.
        extra: whatever else the environment needs.
        judged: False for a question whose answer nobody knows: there is no ground truth, and no reward is read.
    """

    task_id: str
    prompt: str
    data_source: str = ""
    ground_truth: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    judged: bool = True


@dataclass(frozen=True)
class Observation:
    """What an agent sees.

    Attributes:
        text: fills `{env_prompt}`.
        info: more variables for prompt templates. `anchor`, when it is there, is a canonical key of the state (a board without its
            move counter, say): GiGPO compares calls that acted on equal anchors. Without it the text is the anchor.
    """

    text: str
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What an action led to.

    Attributes:
        team: reward of the whole team. From `act` it belongs to the call just made, from `step` to the turn; `reward.team_scope` says
            whether a sample gets the episode's sum (Dr. MAS), its turn's, or what arrived right after its own action (AT-GRPO).
        local: rewards of single calls. From `act`: a number, for the call just made. From `step`: a mapping whose keys are call
            numbers of this turn (int, from 0) or agent names (every call of that agent in this turn, or its last call before when it
            was silent in this one); both add up. None, or a call that no mapping names, is no local reward: it counts as 0 wherever rewards
            are added, and unlike a 0 that was given it cuts nobody's credit (`reward.propagation.mode=threshold`). All rewards must be
            finite numbers: anything else fails the episode.
        done: the episode ends.
        info: numbers (and truth values) become metrics, `success` among them; a later turn overwrites an earlier one.
        observation: what the next turn starts from; None keeps the present one.
    """

    team: float = 0.0
    local: float | Mapping[int | str, float] | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    observation: Observation | None = None


def paid(amount: float, *coefficients: float) -> float | None:
    """Return a local reward made with these coefficients: None where all are 0, since nothing is then said of the call."""
    return amount if any(coefficients) else None


class BaseEnv(ABC):
    """A world that a user subclasses; one object an episode.

    Every method may be `async def`. Plain methods run in a thread, so that one slow environment does not stall the others; set
    `blocking = False` when they return at once.

    Attributes:
        config_class: dataclass of the options under `env.params`.
        blocking: plain methods may take long.
        needs_ground_truth: tasks must have a ground truth; False for a world that judges by itself.
        uses_sandbox: it runs programs, in `agent_system.sandbox.shared_sandbox()`; a run then starts with a sandbox or not at all.
        config: the options of this run.
        seed: the same for all episodes of a group, so that they start from the same state.
    """

    config_class: ClassVar[type] = NoOptions
    blocking: ClassVar[bool] = True
    needs_ground_truth: ClassVar[bool] = True
    uses_sandbox: ClassVar[bool] = False

    def __init__(self, config: Any = None, *, seed: int = 0) -> None:
        self.config = self.config_class() if config is None else config
        self.seed = seed

    @abstractmethod
    def reset(self, task: Task) -> Any:
        """Start `task`; return the first `Observation`."""

    @abstractmethod
    def step(self, action: Any) -> Any:
        """End the turn with what the orchestra returned; return an `Outcome`."""

    def observe(self, agent_id: str) -> Any:
        """Return the `Observation` of one agent. Without an override all agents see the turn's observation."""
        raise NotImplementedError

    def act(self, agent_id: str, action: str) -> Any:
        """React to one agent's projected action inside the turn; return an `Outcome`. Without an override nothing happens."""
        raise NotImplementedError

    def score(self, agent_id: str, action: str) -> Any:
        """Return an `Outcome` whose `team` and `local` are added to what `act` paid a candidate of tree sampling.

        For worlds that pay at `step`, or whose `act` pays nothing for a proposal: what the action is worth as the state stands. It is
        called on the candidate's own fork after `act`, must leave the state as it is, and pays nothing to the episode.
        """
        raise NotImplementedError

    def fork(self) -> BaseEnv:
        """Return a cheap independent copy (needed by tree sampling only): of the state, not of the task, whose object is shared.

        Forks of one state act alike, random numbers included; `close` is called on every one of them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fork(); tree sampling needs one")

    @classmethod
    def question(cls, text: str) -> Task | None:
        """Return the task (`judged=False`) that a person's question is, for `python -m agent_system.serve`.

        None, as it is without an override, for a world that is not made of a question.
        """
        return None

    def close(self) -> Any:  # noqa: B027 - releasing nothing is the usual case
        """Release what this object held. Called once, also after a failure."""

    @classmethod
    def overrides(cls, method: str) -> bool:
        """Return whether the class defines its own `method`."""
        return getattr(cls, method) is not getattr(BaseEnv, method)

"""Who was paid what in an episode, kept where it arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from agent_system.environment import Outcome
from agent_system.errors import AgentSystemError
from agent_system.record import Sample


class Ledger:
    """The rewards of one episode.

    Attributes:
        turns: `Outcome.team` of `step`, one a turn.
        acts: `Outcome.team` of `act` by (turn, call).
    """

    def __init__(self, env_name: str, known: Callable[[str], object]) -> None:
        """Open the books.

        Args:
            env_name: the environment's class, for messages.
            known: called with the agent names of `Outcome.local`; raises for one that is not in the run.
        """
        self.turns: list[float] = []
        self.acts: dict[tuple[int, int], float] = {}
        self._local: dict[tuple[int, int], dict[tuple[int, float], float]] = {}
        self._callers: list[Mapping[int, str]] = []
        self._env_name, self._known = env_name, known

    @property
    def team_reward(self) -> float:
        """The episode's sum, added up in order of turns and calls, whatever the order in which concurrent calls were answered."""
        steps = {(turn, math.inf): paid for turn, paid in enumerate(self.turns, start=1)}
        total = 0.0
        for _, paid in sorted([*self.acts.items(), *steps.items()]):
            total += paid
        return total

    def local(self, turn: int, call: int) -> float:
        """Sum of the local rewards of a call, added up like `team_reward`; 0 for a call that was given none."""
        return sum(paid for _, paid in sorted(self._local.get((turn, call), {}).items()))

    def credit(self, sample: Sample) -> Sample:
        """Return the sample with what its call was paid. A candidate of a tree keeps the local reward of its own fork."""
        if not sample.committed:
            return sample
        place = (sample.turn, sample.call)
        act, given = self.acts.get(place), place in self._local
        if act is None and not given:  # the usual case, and copying a sample is what costs
            return sample
        local = self.local(*place) if sample.fork_reward is None else sample.local_reward
        return replace(sample, act_reward=act, local_reward=local, local_given=given)

    def open_turn(self, callers: Mapping[int, str]) -> None:
        """A turn begins; `callers` will have its calls and their agents."""
        self.turns.append(0.0)
        self._callers.append(callers)

    def act(self, outcome: Outcome, callers: Mapping[int, str], call: int, turn: int) -> None:
        """Book what the environment's `act` paid for a call of a turn, be it over or not; `callers` are its calls and their agents."""
        where = f"{self._env_name}.act() after call {call} of {callers[call]} in turn {turn}"
        self.acts[(turn, call)] = finite(outcome.team, "team", where)
        if isinstance(outcome.local, Mapping):
            self._share(outcome.local, callers, (turn, call), where)
        elif outcome.local is not None:
            self._add((turn, call), (turn, call), outcome.local, where)

    def step(self, outcome: Outcome, callers: Mapping[int, str]) -> None:
        """Book what the environment's `step` paid at the end of the present turn.

        Raises:
            AgentSystemError: a reward that is no finite number, or a local reward that belongs to no call of the turn.
        """
        where = f"{self._env_name}.step() at the end of turn {len(self.turns)}"
        self.turns[-1] = finite(outcome.team, "team", where)
        if isinstance(outcome.local, Mapping):
            self._share(outcome.local, callers, (len(self.turns), math.inf), where)
        elif outcome.local:
            raise AgentSystemError(
                f"step() returned local={outcome.local!r}, which belongs to no call; use a mapping by agent name or call number: "
                "{'Agent Name': 1.0} or {0: 1.0}"
            )

    def _share(self, local: Mapping[int | str, float], callers: Mapping[int, str], source: tuple[int, float], where: str) -> None:
        turn = source[0]
        for key, value in local.items():
            if isinstance(key, str):
                self._known(key)
                places = [(turn, call) for call, agent_id in callers.items() if agent_id == key] or self._latest(key, turn)
            elif key in callers:
                places = [(turn, key)]
            else:
                raise AgentSystemError(f"Outcome.local names call {key}, but turn {turn} had {len(callers)} calls (numbered from 0)")
            for place in places:
                self._add(place, source, value, where, f" for {self._callers[place[0] - 1][place[1]]}")

    def _latest(self, agent_id: str, turn: int) -> list[tuple[int, int]]:
        """The place of an agent's last call before a turn; none when it has not spoken yet."""
        for earlier in range(turn - 1, 0, -1):
            calls = [call for call, caller in self._callers[earlier - 1].items() if caller == agent_id]
            if calls:
                return [(earlier, max(calls))]
        return []

    def _add(self, place: tuple[int, int], source: tuple[int, float], value: Any, where: str, whose: str = "") -> None:
        paid = self._local.setdefault(place, {})
        paid[source] = paid.get(source, 0.0) + finite(value, f"local{whose}", where)


def finite(value: Any, name: str, where: str) -> float:
    """Return a reward as a float. Raises AgentSystemError saying `where` it came from when it is no finite number."""
    number = float(value) if isinstance(value, Real) or hasattr(value, "__float__") else math.nan
    if not math.isfinite(number):
        raise AgentSystemError(f"{where} gave {name}={value!r}; rewards must be finite numbers")
    return number

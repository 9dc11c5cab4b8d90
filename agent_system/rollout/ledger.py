"""The rewards of one episode, recorded at the call or turn where they arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_system.environment import Outcome
from agent_system.errors import AgentSystemError
from agent_system.record import Sample, finite

# order of a reply that nobody heard, and of one to a program until the episode is recorded
NEVER = -1


class Ledger:
    """The rewards of one episode.

    Attributes:
        turns: `Outcome.team` of `step`, one per turn.
        acts: `Outcome.team` of `act` by (turn, call).
        rounds: number of the last generation of a call, by (turn, call) of the earlier ones: rounds
            of a `ToolAgent`, a summary.
        unheard: (turn, call) of replies to a program that no client has got, and of rounds of a
            `ToolAgent`'s call that failed, and of its children.
        delivered: place in the order of replies, by (turn, call), of those to a program that a
            client has got.
    """

    def __init__(self, env_name: str, agent_lookup: Callable[[str], object]) -> None:
        """Start without rewards.

        Args:
            env_name: the environment's class, for messages.
            agent_lookup: called with the agent names of `Outcome.local`; raises for a name that is
                not in the run.
        """
        self.turns: list[float] = []
        self.acts: dict[tuple[int, int], float] = {}
        self.rounds: dict[tuple[int, int], int] = {}
        self.unheard: set[tuple[int, int]] = set()
        self.delivered: dict[tuple[int, int], int] = {}
        self._local: dict[tuple[int, int], dict[tuple[int, float], float]] = {}
        self._callers: list[Mapping[int, str]] = []
        self._env_name = env_name
        self._find_agent = agent_lookup

    @property
    def team_reward(self) -> float:
        """Sum over the episode, added in order of turns and calls, so that it does not depend on
        the order of concurrent replies.
        """
        steps = {(turn, math.inf): reward for turn, reward in enumerate(self.turns, start=1)}
        total = 0.0
        for _, reward in sorted([*self.acts.items(), *steps.items()]):
            total += reward
        return total

    def turn_rewards(self, unheard: Sequence[Sample]) -> tuple[float, ...]:
        """Return `turns`, to which the rewards of `act` belong that followed replies that nobody
        heard.
        """
        unheard_rewards = [(s.identity.turn, self.acts.get(s.identity.call_key, 0.0)) for s in unheard]
        return tuple(
            reward + sum(act for of, act in unheard_rewards if of == turn)
            for turn, reward in enumerate(self.turns, start=1)
        )

    def local(self, turn: int, call: int) -> float:
        """Return the sum of a call's local rewards, added in a fixed order like `team_reward`; 0
        for a call without any.
        """
        return sum(reward for _, reward in sorted(self._local.get((turn, call), {}).items()))

    def order_of(self, sample: Sample) -> int:
        """Return the place of a sample in the order of replies: NEVER if nobody heard it."""
        key = sample.identity.call_key
        return NEVER if key in self.unheard else self.delivered.get(key, sample.identity.order)

    def credit(self, sample: Sample) -> Sample:
        """Return the sample with the rewards of its call. A candidate of a tree keeps the local
        reward of its own fork as well.

        An earlier generation of a call has the local reward of the last one, but not its
        `act_reward`, which would count twice.
        """
        identity = sample.identity
        if not identity.committed:
            return sample
        final = self.rounds.get(identity.call_key)
        last = (identity.turn, identity.call if final is None else final)
        act = self.acts.get(last) if final is None else None
        has_local = last in self._local
        # the usual case; avoids copying the sample
        if final is None and act is None and not has_local:
            return sample
        # in a tree it keeps the local reward of its fork beside that of the episode
        name = "local_reward" if sample.rewards.fork_reward is None else "episode_local"
        rewards = {"act_reward": act, "local_given": has_local, name: self.local(*last)}
        return sample.with_identity(final_call=final).with_rewards(**rewards)

    def open_turn(self, callers: Mapping[int, str]) -> None:
        """Start a turn; `callers` maps its calls to their agents and is filled as they are made."""
        self.turns.append(0.0)
        self._callers.append(callers)

    def act(self, outcome: Outcome, call: int, turn: int) -> None:
        """Record the rewards of `act` for a call of a turn, which may already be over."""
        caller = self._callers[turn - 1][call]
        where = f"{self._env_name}.act() after call {call} of {caller} in turn {turn}"
        self.acts[(turn, call)] = finite(outcome.team, "team", where)
        if isinstance(outcome.local, Mapping):
            self._share(outcome.local, (turn, call), where)
        elif outcome.local is not None:
            self._add((turn, call), (turn, call), outcome.local, where)

    def step(self, outcome: Outcome) -> None:
        """Record the rewards of `step` at the end of the current turn.

        Raises:
            AgentSystemError: a non-finite reward, or a local reward that belongs to no call of the
                turn.
        """
        where = f"{self._env_name}.step() at the end of turn {len(self.turns)}"
        self.turns[-1] = finite(outcome.team, "team", where)
        if isinstance(outcome.local, Mapping):
            self._share(outcome.local, (len(self.turns), math.inf), where)
        elif outcome.local:
            raise AgentSystemError(
                f"step() returned local={outcome.local!r}, which belongs to no call; use a mapping "
                f"by agent name or call number: {{'Agent Name': 1.0}} or {{0: 1.0}}"
            )

    def _share(self, local: Mapping[int | str, float], source: tuple[int, float], where: str) -> None:
        turn = source[0]
        callers = self._callers[turn - 1]
        calls_by_agent: dict[str, list[tuple[int, int]]] = {}
        for call, agent_id in callers.items():
            calls_by_agent.setdefault(agent_id, []).append((turn, call))
        for key, value in local.items():
            if isinstance(key, str):
                self._find_agent(key)
                agent_calls = calls_by_agent.get(key, [])
                places = (
                    agent_calls
                    if source in agent_calls
                    else self._heard(agent_calls) or self._latest(key, turn) or agent_calls
                )
            elif key in callers:
                places = [(turn, self.rounds.get((turn, key), key))]
            else:
                raise AgentSystemError(
                    f"Outcome.local names call {key}, but turn {turn} had {len(callers)} calls "
                    "(numbered from 0)"
                )
            for place in places:
                self._add(place, source, value, where, f" for {self._callers[place[0] - 1][place[1]]}")

    def _latest(self, agent_id: str, turn: int) -> list[tuple[int, int]]:
        """Return the (turn, call) of an agent's last call before a turn whose reply was heard, in a
        list; empty when there is none.
        """
        for earlier in range(turn - 1, 0, -1):
            calls = self._heard(
                [(earlier, call) for call, caller in self._callers[earlier - 1].items() if caller == agent_id]
            )
            if calls:
                return [max(calls)]
        return []

    def _heard(self, calls: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [call for call in calls if call not in self.unheard]

    def _add(
        self, place: tuple[int, int], source: tuple[int, float], value: Any, where: str, whose: str = ""
    ) -> None:
        rewards = self._local.setdefault(place, {})
        rewards[source] = rewards.get(source, 0.0) + finite(value, f"local{whose}", where)

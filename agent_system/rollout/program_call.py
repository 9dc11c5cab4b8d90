"""A call of an agent whose prompt a program has made: requests to the gateway
(`agent_system.gateway`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_system.rollout.call import Call, Reply
from agent_system.rollout.episode import Episode
from agent_system.rollout.ledger import NEVER
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.seeds import stable_seed
from agent_system.turn import TurnOver
from verl.protocol.generate import RolloutError, SamplingParams, StructureError


class ProgramCalls:
    """The calls that a program makes in an episode. A reply counts as heard by other calls, and is
    trained, once it is delivered.
    """

    def __init__(self, episode: Episode, max_open_calls: int) -> None:
        """Begin without calls.

        Args:
            episode: the episode.
            max_open_calls: requests that may be generated at the same time; the others wait, in the
                order in which they came.
        """
        self._episode = episode
        self._slots = asyncio.Semaphore(max_open_calls)
        self._acting = asyncio.Lock()
        self._deliveries: Counter[tuple[int, int]] = Counter()  # by (turn, call)

    async def reply_to(
        self,
        agent_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        n: int = 1,
        seed: Sequence[int | str] = (),
        client_seed: int | None = None,
        program: Mapping[str, Any] | None = None,
    ) -> list[tuple[Call, Reply]]:
        """Sample replies to a prompt that is ready, as `n` calls of the turn with one request to
        the engine.

        Args:
            agent_id: an agent of the run.
            prompt: its prompt.
            sampling: parameters of the request.
            n: number of calls.
            seed: parts of the seed besides those of episode and agent; empty: turn and number of
                the call, as of an orchestra's calls.
            client_seed: a number that the seed depends on as well.
            program: facts of the request, as `SampleRequest.program`.

        Raises TurnOver when the episode is over, and the errors of `Call.generate`, also for one
        aborted reply among several. After a StructureError the calls do not exist.
        """
        episode = self._episode
        turn = episode.require_turn()
        turn.refuse_done(agent_id)
        runtime = episode.admit(agent_id)
        calls = [episode.new_call(turn, agent_id, runtime) for _ in range(n)]
        episode.ledger.unheard.update((turn.step, call.number) for call in calls)
        # one request to the engine has one seed, that of its first call
        call_seed = episode.seed(agent_id, *seed) if seed else calls[0].seed
        # a client that sets the same seed again still gets other replies in another call or episode
        call_seed = call_seed if client_seed is None else stable_seed(call_seed, "client", client_seed)
        observation = await episode.observe(runtime.role, turn)
        asks: dict[str, Any] = {"observation": observation, "prompt": prompt, "seed": call_seed}
        calls = [
            replace(call, **asks, own_sampling=sampling, program=_numbered(program, choice, n))
            for choice, call in enumerate(calls)
        ]
        episode.waiting_for = f"the reply of {calls[0].label}"
        arrived = episode.clock.seconds
        async with self._slots:
            # the episode may have ended while the request waited, by a step or by the reaction to a
            # reply
            episode.require_turn()
            if turn.done:
                raise TurnOver(
                    f"the environment ended the episode in turn {turn.step}, while a call of "
                    f"{agent_id} waited"
                )
            began = episode.clock.seconds
            try:
                generations = await calls[0].generate(n, episode.clock)
            except StructureError:
                # the client's mistake, found before anything was sampled: it may ask again
                for call in calls:
                    del turn.callers[call.number]
                raise
        self._note_times(calls, arrived, began - arrived)
        replies = []
        for call, generation in zip(calls, generations, strict=True):
            # the client gets all replies that it has asked for, or an error
            if generation is None:
                raise RolloutError(f"the engine aborted one of {n} replies of {agent_id}")
            reply = call.read(generation)
            episode.keep(call, reply, NEVER)
            episode.agents.finish(call, reply)
            # replies are acted out one at a time: the action of one may end the episode for the
            # others
            async with self._acting:
                if not turn.done:
                    await episode.act(call, reply, turn)
            replies.append((call, reply))
        return replies

    def _note_times(self, calls: Sequence[Call], arrived: float, waited: float) -> None:
        """Note of the calls of one request when it arrived, and for how long it waited for a slot."""
        times = self._episode.clock.times
        if times is not None:
            of_engine = times[calls[0].turn, calls[0].number]
            whole = replace(of_engine, began=arrived, waited=of_engine.waited + waited)
            times.update(((call.turn, call.number), whole) for call in calls)

    def deliver(self, replies: Sequence[tuple[Call, Reply]]) -> None:
        """Count replies as heard from now on, and train them."""
        episode = self._episode
        for call, reply in replies:
            place = (call.turn, call.number)
            self._deliveries[place] += 1
            episode.ledger.unheard.discard(place)
            # a client that repeats its request gets the same reply again, which was heard the first
            # time
            if place not in episode.ledger.delivered:
                episode.ledger.delivered[place] = episode.reply_count
                episode.reply_count += 1
            episode.waiting_for = f"the team (after turn {call.turn}, call {call.number})"
            # a reply may arrive after its turn, of which nobody reads the team context any more
            if episode.turn is not None and episode.turn.step == call.turn:
                episode.turn.record(call.place, call.entry(reply))

    def withdraw(self, replies: Sequence[tuple[Call, Reply]]) -> None:
        """Undo one `deliver`, whose client has gone before the first byte. Replies that another
        client got, by a repeated request, stay heard.
        """
        episode = self._episode
        for call, _ in replies:
            place = (call.turn, call.number)
            self._deliveries[place] -= 1
            if self._deliveries[place]:
                continue
            del episode.ledger.delivered[place]
            episode.ledger.unheard.add(place)
            if episode.turn is not None and episode.turn.step == call.turn:
                episode.turn.record(call.place, None)

    def heard(self, replies: Sequence[tuple[Call, Reply]]) -> bool:
        """Return whether any of the replies of a request was delivered, and not withdrawn."""
        return any((call.turn, call.number) in self._episode.ledger.delivered for call, _ in replies)


def _numbered(program: Mapping[str, Any] | None, choice: int, n: int) -> dict[str, Any]:
    """Return the facts of a request, with the number of one of its `n` replies if there are several."""
    return {**(program or {}), **({"choice": choice} if n > 1 else {})}

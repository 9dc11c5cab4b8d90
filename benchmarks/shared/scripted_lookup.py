"""The world `lookup` with roles that reply from a script at the rates of the world: a search of teams without
a model, in milliseconds an episode.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from agent_system.agent import Entry
from agent_system.environment import Observation
from agent_system.evolve.evaluate import Batch, PlayedEpisode
from agent_system.evolve.replay import ReplayMemory
from agent_system.memory import SimpleMemory
from agent_system.projection import Projection
from agent_system.rollout.seeds import stable_seed
from agent_system.turn import CallContext, Turn
from agent_system.workflows.graph.play import compile_team
from agent_system.workflows.graph.team import Team
from agent_system.workflows.lookup.team import CHECKER, FILER, RIGHT, SOLVER, WRONG
from agent_system.workflows.lookup.world.generate import LookupTask, generate_split
from agent_system.workflows.lookup.world.products import LETTERS, shelf_rule
from agent_system.workflows.lookup.world.skills import LookupSkills
from verl.protocol.generate import Generation

REPLY_TOKENS = 3
AGENTS = """\
team: 1
agents:
  Solver: {prompt: "Code: {env_prompt}", answer: {choice: [A, B, C, D, E, F, G, H]}}
"""
ALONE = f"{AGENTS}do: [{{call: Solver, id: code}}]\nreturn: code\n"
# What edits take: the roles, and a step for the half of the tasks that need it.
ROLES = f"""\
{AGENTS}\
  Checker:
    prompt: "Check: {{env_prompt}}{{team_context}}"
    answer: {{choice: [right, wrong]}}
    quote: {{entry: " {{action}}", last: 1}}
  Filer:
    prompt: "File:{{team_context}}"
    answer: {{choice: [A, B, C, D, E, F, G, H]}}
    quote: {{entry: " {{action}}", last: 1}}
do:
  - {{call: Solver, id: code}}
  - {{call: Checker, id: verdict}}
  - if: {{observation: asks, is: shelf}}
    do: [{{call: Filer, id: shelf, sees: [code]}}]
return: [shelf, code]
"""
# What follows the code.
FILED = """\
  - if: {observation: asks, is: shelf}
    do: [{call: Filer, id: shelf, sees: [code]}]
return: [shelf, code]
"""


def start_team() -> Team:
    """Return the Solver alone."""
    return Team.parse(ALONE, name="alone.yaml")


def roles_team() -> Team:
    """Return the team whose parts edits take."""
    return Team.parse(ROLES, name="roles.yaml")


def hand_written(tries: int, votes: int) -> Team:
    """Return a team whose Solver, or vote of Solvers, is checked, with `tries` tries (1: not
    checked), and the Filer.
    """
    step = f"{{vote: Solver, n: {votes}, id: code}}" if votes > 1 else "{call: Solver, id: code}"
    if tries > 1:
        agents = ROLES.partition("do:\n")[0]
        body = (
            f"do:\n  - loop: {tries}\n    do:\n      - {step}\n"
            "      - {call: Checker, id: verdict, sees: [code], unless: {loop: last}}\n"
            "      - {stop: {of: verdict, is: right}}\n"
        )
    else:
        before, _, after = ROLES.partition("do:\n")[0].partition("  Checker:")
        agents = before + "  Filer:" + after.partition("  Filer:")[2]
        body = f"do:\n  - {step}\n"
    return Team.parse(f"{agents}{body}{FILED}", name="hand")


@dataclass
class ScriptedPlayer:
    """A `Player` of scripted roles.

    Attributes:
        seed: of products, tasks and replies.
        delay: awaited before a reply, to test orders of completion.
        cause: returns why an episode of a team on a task fails, or an empty text.
        skills: how often roles are right.
        memory: kept replies, for a search that is killed; None: they are only counted.
    """

    seed: int
    delay: Callable[[], Awaitable[None]] | None = None
    cause: Callable[[Team, int], str] = lambda team, place: ""
    skills: LookupSkills = field(default_factory=LookupSkills)
    memory: ReplayMemory | None = None
    _requests: set[tuple[object, ...]] = field(default_factory=set, init=False)
    # with the team, so that no other one gets its id
    _plays: dict[int, tuple[Team, Callable[[Turn], Awaitable[object]]]] = field(
        default_factory=dict, init=False
    )

    @cached_property
    def tasks(self) -> tuple[list[LookupTask], list[LookupTask]]:
        """Tasks for the search, and those that are held out."""
        return generate_split(768, 256, self.seed)

    @cached_property
    def rule(self) -> dict[str, str]:
        """The shelf of each code."""
        return shelf_rule(self.seed)

    async def play(self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False) -> Batch:
        """See `agent_system.evolve.evaluate.Player`."""
        before = len(self._requests)
        places = range(first, first + count)
        if self.delay is None:
            episodes = [[await self._episode(team, p, held_out) for p in places] for team in teams]
        else:
            played = await asyncio.gather(*(self._episode(t, p, held_out) for t in teams for p in places))
            episodes = [played[i * count : (i + 1) * count] for i in range(len(teams))]
        calls = sum(e.tokens for row in episodes for e in row) // REPLY_TOKENS
        engine_calls = len(self._requests) - before if self.memory is None else self.memory.replies
        return Batch(episodes, REPLY_TOKENS * engine_calls, calls, engine_calls)

    async def _episode(self, team: Team, place: int, held_out: bool) -> PlayedEpisode:
        """Play a task; every pass over the tasks has other replies."""
        tasks = self.tasks[held_out]
        task = tasks[place % len(tasks)]
        if id(team) not in self._plays:
            self._plays[id(team)] = (team, compile_team(team.spec))
        _, play = self._plays[id(team)]
        chain: list[tuple[int, int]] = []  # (number of replies before it, length of the chain up to it)

        async def reply(turn: Turn, agent_id: str, context: CallContext) -> Projection:
            number = turn.number(agent_id)
            before = len(chain)  # the replies that its prompt may show
            slot = turn.reserve(context.step)
            letters = [e.action for e in turn.visible_entries(context.sees) if e.action in LETTERS]
            letter = Counter(reversed(letters)).most_common(1)[0][0] if letters else ""
            role = team.agents[agent_id].as_ or agent_id
            request = (held_out, place, agent_id, number, "" if role == SOLVER else letter)
            self._requests.add(request)
            if self.memory is not None:
                await self.memory.reply(str(stable_seed(*request)), _generation())
            await (asyncio.sleep(0) if self.delay is None else self.delay())
            longest = max((length for _, length in chain[:before]), default=0)
            chain.append((before, longest + REPLY_TOKENS))
            rng = random.Random(stable_seed(self.seed, *request))
            action = self._action(role, task, letter, rng)
            turn.record(slot, Entry(agent_id, action, action))
            return Projection(action, bool(action), text=action)

        turn = Turn(Observation(task.prompt, {"asks": task.asks}), 1, SimpleMemory(4), reply)
        action = await play(turn)
        tokens = REPLY_TOKENS * len(chain)
        critical = max((length for _, length in chain), default=0)
        if cause := self.cause(team, place):
            return PlayedEpisode(0.0, tokens, critical, cause)
        return PlayedEpisode(float(action == task.answer), tokens, critical)

    def _action(self, role: str, task: LookupTask, letter: str, rng: random.Random) -> str:
        if role == SOLVER:
            return self.skills.code(task.product, rng)
        if role == CHECKER:
            return RIGHT if self.skills.is_approved(task.product, letter, rng) else WRONG
        assert role == FILER, f"{role} has no script"
        return self.skills.shelf(letter, self.rule, rng)


async def _generation() -> list[Generation]:
    return [Generation((0,) * REPLY_TOKENS, (0.0,) * REPLY_TOKENS, "stop")]

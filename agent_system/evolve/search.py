"""The search: generations of new files that play the tasks, then the finalists on fresh ones.

Everything that costs tokens, or that is decided, is an event of the ledger. All decisions fall at
the ends of batches, so nothing depends on which episode ends first.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_system.errors import AgentSystemError
from agent_system.evolve.archive import (
    POLICIES,
    Archive,
    TeamCandidate,
    check_weights,
    failures,
    mean_score,
    mean_tokens,
    pareto_front,
)
from agent_system.evolve.edits import EditRefused, Parts, TeamEdit, dump, normal
from agent_system.evolve.evaluate import BATCH, PlayedEpisode, Player, batch_line, episodes_of
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.propose import ParentFacts, TaskTexts, ask_for_edits, draw_team, edited_team
from agent_system.evolve.race import RULED_OUT, is_ruled_out
from agent_system.evolve.settings import EvolveSettings
from agent_system.rollout.seeds import stable_seed
from agent_system.workflows.graph.team import Team
from verl.utils.names import slug

FINALISTS = 5
MOST_TRAINED = 4
MOST_HELD_OUT = 8
FEWEST_GENERATIONS = 3
INVALID_IN_A_ROW = 3
# Tasks after which a new file with no other score than an earlier one is taken for the same.
SAME_TASKS = 32
# Numbers of fresh tasks after which the better half of the finalists, two at least, plays on: sequential
# halving (Karnin, Koren and Somekh 2013), since most of them are as good as each other.
HALVING = (64, 128)
FEWEST_FINALISTS = 2
# Wealth of a bet against a finalist with which it plays no more: larger than that of the early rule-out,
# because the best one has been chosen on these tasks.
SURE_LIMIT = 20.0
EARLIER = 8
MOST_STORIES = 3

# Asks the proposer: text and seed; returns its reply and the tokens that it took.
AskModel = Callable[[str, int], Awaitable[tuple[str, int]]]


@dataclass
class TokenCounts:
    """What a search has paid for.

    Attributes:
        proposals: tokens of the proposer.
        play, confirm, held_out: tokens that engines generated for episodes, by their purpose.
        training: tokens that training runs generated.
        logical: tokens of the episodes' replies, kept ones included.
        calls, engine_calls: replies of the episodes, and those that engines generated.
        episodes: number of episodes, without those that are held out.
    """

    proposals: int = 0
    play: int = 0
    confirm: int = 0
    held_out: int = 0
    training: int = 0
    logical: int = 0
    calls: int = 0
    engine_calls: int = 0
    episodes: int = 0

    @property
    def spent(self) -> int:
        """Tokens that count for the budget, which those of held-out play and of training do not."""
        return self.proposals + self.play + self.confirm


class RoleTrainer(Protocol):
    """Trains the roles of teams."""

    async def train(self, number: int, generation: int, teams: Sequence[Team]) -> Mapping[str, Any]:
        """Train teams together. Return, as values of JSON types, `tokens` that the training generated,
        `roles`, the folder of every role's weights, and what tells these from others.

        The result depends on teams, tasks, seeds and weights alone.
        """
        ...

    def use(self, result: Mapping[str, Any]) -> None:
        """Let teams play with the weights of a training, which may be one before a kill, from now on.

        Raises AgentSystemError if they are gone or other ones.
        """
        ...


@dataclass(frozen=True)
class SearchInputs:
    """What a search is given.

    Attributes:
        settings: the keys under `evolve`.
        seed: `data.seed`.
        start: the teams that it begins with.
        parts: what edits take from other files.
        player: plays teams.
        num_val: number of tasks that are held out; 0: none are played.
        votes: agents do not always reply the same.
        ask: asks the proposer; None: edits are drawn.
        tasks: texts of tasks that a proposer may not repeat.
        say: shows a line to the user.
        on_batch: called after every batch.
        limit: of the wealth with which a file is ruled out.
        trainer: trains the best files between generations; None: no weights change.
    """

    settings: EvolveSettings
    seed: int
    start: Sequence[Team]
    parts: Parts
    player: Player
    num_val: int = 0
    votes: bool = True
    ask: AskModel | None = None
    tasks: TaskTexts = field(default_factory=TaskTexts)
    say: Callable[[str], None] = lambda text: None
    on_batch: Callable[[TeamSearch], None] = lambda search: None
    limit: float = RULED_OUT
    trainer: RoleTrainer | None = None


class TeamSearch:
    """A search; `run` is called once.

    Attributes:
        archive: the files with their results.
        counts: what it has paid for.
        chosen: the file that it chose; None before its end.
        generation: number of the last generation that has begun.
        stopped: why it ended before `evolve.generations`; empty if it did not.
        too_expensive: number of finalists for which the budget was not enough.
        roles: folder of the adapter with which each role plays; empty before a training.
    """

    def __init__(self, inputs: SearchInputs, ledger: SearchLedger) -> None:
        self.inputs = inputs
        self.settings = inputs.settings
        self.ledger = ledger
        self.archive = Archive(self.settings.price, self.settings.margin)
        self.counts = TokenCounts()
        self.chosen: TeamCandidate | None = None
        self.generation = 0
        self.stopped = ""
        self.too_expensive = 0
        self.roles: Mapping[str, str] = {}
        self._policy = POLICIES[self.settings.policy]()
        self._stories: dict[str, list[Mapping[str, Any]]] = {}

    async def run(self) -> TeamCandidate:
        """Search, and return the file that is chosen.

        Raises AgentSystemError for a search that can find nothing, and the errors of the player.
        """
        await self._begin()
        while self.generation < self.settings.generations and not self._is_spent():
            self.generation += 1
            await self._play_generation()
            self._say_generation()
            if self.generation < self.settings.generations and not self._is_spent():
                await self._train()
        finalists = await self._confirm()
        most = max(len(c.confirmed) for c in finalists)
        self.chosen = self.archive.best([c for c in finalists if len(c.confirmed) == most], final_episodes)
        await self._play_held_out(self.chosen)
        line = {"event": "chosen", "file": self.chosen.key, "finalists": [c.key for c in finalists]}
        await self.ledger.event(line, _nothing)
        return self.chosen

    def left(self) -> float:
        """Return the tokens left for generations: the budget without what the finalists will take."""
        if self.settings.budget_tokens is None:
            return math.inf
        files = self._ranked_finalists() if self.archive.whole else []
        best = self._tokens_of(files[0], self.settings.confirm) if files else 0
        # half of the others play no more than that many
        others = sum(self._tokens_of(c, min(self.settings.confirm, HALVING[0])) for c in files[1:])
        return self._unspent() - best - others

    def _unspent(self) -> float:
        """Return the tokens that are left of the budget."""
        budget = self.settings.budget_tokens
        return math.inf if budget is None else budget - self.counts.spent

    def _is_spent(self) -> bool:
        """Return whether no tokens are left for generations, which is then why the search stops."""
        if self.left() > 0:
            return False
        self.stopped = "the budget is spent"
        return True

    def _tokens_of(self, candidate: TeamCandidate, tasks: int) -> float:
        """Return the tokens that a file takes on so many tasks, without kept replies."""
        return tasks * mean_tokens(candidate.episodes)

    def _ranked_finalists(self) -> list[TeamCandidate]:
        """Return the finalists that a budget is for: the best one, the first start file, to which
        it is compared, and the others by their utility.
        """
        finalists = self.archive.finalists(FINALISTS)
        ranked = sorted(finalists, key=lambda c: (-self.archive.search_utility(c), c.number))
        files = [ranked[0], self.archive.candidates[0], *ranked[1:]]
        return list({c.number: c for c in files}.values())

    async def _confirm(self) -> list[TeamCandidate]:
        """Play the finalists on fresh tasks, and return them: all play the first of `HALVING`, and the
        better half of those that are left goes on after each.

        With a budget they are those of `_ranked_finalists` for which it is enough, the best one and
        the first start file whatever they cost.
        """
        count = self.settings.confirm
        ends = [*(number for number in HALVING if number < count), count]
        if self.settings.budget_tokens is None:
            finalists = self.archive.finalists(FINALISTS)
            playing = await self._fresh_tasks(finalists, 0, ends[0])
        else:
            finalists = await self._affordable_finalists(self._ranked_finalists(), ends[0])
            playing = finalists
        for first, end in itertools.pairwise(ends):
            most = max(math.ceil(len(playing) / 2), FEWEST_FINALISTS)
            ranked = sorted(playing, key=lambda c: (-self.archive.mean_utility(c.confirmed), c.number))[:most]
            # the best one in any case
            left = self._unspent() - self._tokens_of(ranked[0], count - first)
            others = self._affordable(ranked[1:], end - first, left)
            playing = await self._fresh_tasks([ranked[0], *others], first, end)
        return sorted(finalists, key=lambda c: c.number)

    async def _affordable_finalists(self, ranked: Sequence[TeamCandidate], count: int) -> list[TeamCandidate]:
        """Play the first fresh tasks with the finalists for which the budget is enough; return them."""
        best = ranked[0]
        always = len({best.number, 0})
        finalists = list(ranked[:always])
        await self._fresh_tasks(finalists, 0, count)
        # one by one: most replies of each are kept ones of those before, so more of them fit
        for candidate in ranked[always:]:
            left = self._unspent() - self._tokens_of(best, self.settings.confirm - count)
            if not self._affordable([candidate], count, left):
                break
            await self._fresh_tasks([candidate], 0, count)
            finalists.append(candidate)
        self.too_expensive = len(ranked) - len(finalists)
        return finalists

    async def _fresh_tasks(
        self, finalists: Sequence[TeamCandidate], first: int, end: int
    ) -> list[TeamCandidate]:
        """Play fresh tasks from `first` to `end`, a finalist until it is ruled out against the best of
        them; return those that are not.
        """
        playing = list(finalists)
        for place in range(first, end, BATCH):
            count = min(BATCH, end - place)
            await self._batch(playing, self.settings.tasks + place, count, "confirm")
            if place + count < HALVING[0]:
                continue
            best = max(playing, key=lambda c: self.archive.mean_utility(c.confirmed))
            playing = [
                c for c in playing if c is best or not self._is_out(c.confirmed, best.confirmed, SURE_LIMIT)
            ]
        return playing

    def front(self) -> list[TeamCandidate]:
        """Return the front of score and tokens of the finalists, by tokens. Two of them are compared on the
        fresh tasks that both have played.
        """
        finalists = [c for c in self.archive.whole if c.confirmed]

        def in_front(candidate: TeamCandidate, other: TeamCandidate) -> bool:
            pair = (candidate, other)
            both = min(len(c.confirmed) for c in pair)
            return candidate in pareto_front(pair, lambda c: c.confirmed[:both])

        front = [c for c in finalists if all(in_front(c, other) for other in finalists)]
        return sorted(front, key=lambda c: (mean_tokens(c.confirmed), c.number))

    async def _train(self) -> None:
        """Train the best files of the front, and play them again: what any file has scored before is of
        weights that are no more.
        """
        trainer = self.inputs.trainer
        if trainer is None:
            return
        front = pareto_front(self.archive.whole, lambda c: c.episodes)
        ranked = sorted(front, key=lambda c: (-self.archive.search_utility(c), c.number))
        files = list({c.number: c for c in (self.archive.incumbent(), *ranked)}.values())[:MOST_TRAINED]
        files = self._affordable(files, self.settings.tasks, self.left())
        if not files:
            self.inputs.say("no training: the budget is not enough to play the best file again")
            return
        line = {"event": "train", "generation": self.generation, "files": [c.key for c in files]}
        number = self.archive.weights + 1
        result = await self.ledger.event(
            line, lambda: trainer.train(number, self.generation, [c.team for c in files])
        )
        trainer.use(result)
        self.counts.training += result["tokens"]
        self.roles = result["roles"]
        for candidate in self.archive.whole:
            candidate.state = "old"
        self._stories.clear()
        self.archive.weights = number
        for candidate in files:
            candidate.earlier.append(candidate.episodes)
            candidate.episodes = []
            candidate.state = "playing"
        await self._rounds(files, 0, self.settings.tasks, "play")
        for candidate in files:
            candidate.state = "whole"
        best = self.archive.incumbent()
        self.inputs.say(
            f"training {number}: {len(files)} files, {self.settings.train_steps} steps; best "
            f"{mean_score(best.episodes):.3f} with {mean_tokens(best.episodes):.1f} tokens"
        )

    def _affordable(self, files: Sequence[TeamCandidate], tasks: int, left: float) -> list[TeamCandidate]:
        """Return the first files that can play so many tasks with the tokens that are left, without
        kept replies.
        """
        affordable: list[TeamCandidate] = []
        for candidate in files:
            left -= self._tokens_of(candidate, tasks)
            if left < 0:
                break
            affordable.append(candidate)
        return affordable

    async def _begin(self) -> None:
        """Play the start files. Raise AgentSystemError where a search is of no use."""
        start = [self.inputs.parts.team(normal(team.source.value)) for team in self.inputs.start]
        for team in start:
            if team.key() not in self.archive.keys:
                self.archive.candidates.append(TeamCandidate(len(self.archive.candidates), team, team.key()))
        await self._rounds(self.archive.candidates, 0, self.settings.tasks, "play")
        for candidate in self.archive.candidates:
            candidate.state = "whole"
        scores = [mean_score(c.episodes) for c in self.archive.candidates]
        if max(scores) == 0 or min(scores) == 1:
            causes = failures(self.archive.candidates[0].episodes)
            why = f" ({dict(causes)} of its episodes failed)" if causes else ""
            raise AgentSystemError(
                f"the start files score {max(scores):.0f} on all {self.settings.tasks} tasks{why}, "
                f"so no edit "
                "can be told from another; use other tasks, a longer warm start or another file"
            )
        first = self.archive.candidates[0]
        self.inputs.say(
            f"start: score {mean_score(first.episodes):.3f}, {mean_tokens(first.episodes):.1f} "
            f"tokens an episode"
        )
        self._check_budget()

    def _check_budget(self) -> None:
        """Say how many generations the budget buys. Raise AgentSystemError for less than three."""
        settings = self.settings
        if settings.budget_tokens is None:
            return
        first = self.archive.candidates[0]
        one = settings.children * settings.tasks * mean_tokens(first.episodes)
        bought = math.floor(max(self.left(), 0) / one)
        if bought < FEWEST_GENERATIONS:
            needed = math.ceil(settings.budget_tokens - self.left() + FEWEST_GENERATIONS * one)
            raise AgentSystemError(
                f"evolve.budget_tokens={settings.budget_tokens} buys {bought} generations of "
                f"{settings.children} files that play {settings.tasks} tasks as the first start "
                f"file does, and "
                f"the finalists; a search needs {FEWEST_GENERATIONS}: {needed} or more"
            )
        self.inputs.say(
            f"the budget of {settings.budget_tokens} tokens buys at most {bought} generations of "
            "files as large as the start file; larger ones cost more"
        )

    async def _play_generation(self) -> None:
        """Make new files and play them: as many tasks as `evolve.children` files play to the end, but for
        half a file. What files leave that are ruled out, or do the same as others, further ones play.
        """
        tasks = self.settings.children * self.settings.tasks
        for number in itertools.count():
            count = round(tasks / self.settings.tasks)
            children = await self._children(number, count)
            await self._play(children)
            # fewer than asked for: no proposals are left, or no budget
            if len(children) < max(count, 1):
                return
            tasks -= sum(len(child.episodes) for child in children)

    async def _children(self, round_number: int, count: int) -> list[TeamCandidate]:
        """Return new files of a generation: `count`, or fewer."""
        children: list[TeamCandidate] = []
        invalid = 0
        most = self.settings.children * INVALID_IN_A_ROW
        for number in range(round_number * most, (round_number + 1) * most):
            if len(children) == count or invalid == INVALID_IN_A_ROW or self._is_spent():
                break
            rng = random.Random(stable_seed(self.inputs.seed, "evolve/propose", self.generation, number))
            parent = self._policy.parent(self.archive, rng)
            edited = await self._proposed(parent, number, rng)
            if edited is None:
                invalid += 1
                continue
            invalid = 0
            edits, team = edited
            child = TeamCandidate(
                len(self.archive.candidates), team, team.key(), parent.number, dump(edits), self.generation
            )
            self.archive.candidates.append(child)
            children.append(child)
        return children

    async def _proposed(
        self, parent: TeamCandidate, number: int, rng: random.Random
    ) -> tuple[list[TeamEdit], Team] | None:
        """Return edits of a file and the new file; None for none that is valid and new."""
        line: dict[str, Any] = {
            "event": "proposal", "generation": self.generation, "number": number, "parent": parent.key,
        }  # fmt: skip
        if self.inputs.ask is None:
            edited = self._drawn(parent, rng)
            file = {"file": edited[1].key(), "edits": dump(edited[0])} if edited else {"file": None}
            await self.ledger.event(line | file, _nothing)
            return edited
        reply = await self.ledger.event(line, lambda: self._ask(parent, number))
        self.counts.proposals += reply["tokens"]
        for text in reversed(reply["replies"]):
            try:
                edited = edited_team(text, parent.team, self.inputs.parts, self.inputs.tasks)
            except EditRefused:
                continue
            return edited if self._is_new(edited[1]) else None
        return None

    def _drawn(self, parent: TeamCandidate, rng: random.Random) -> tuple[list[TeamEdit], Team] | None:
        others = [c.team for c in self.archive.whole if c is not parent]
        for _ in range(10):
            edited = draw_team(parent.team, self.inputs.parts, others, rng, votes=self.inputs.votes)
            if edited is not None and self._is_new(edited[1]):
                return edited
        return None

    def _is_new(self, team: Team) -> bool:
        """Return whether a file is another one than those of the search. With training its agents must
        be theirs as well: an adapter has the name of its role, so an agent that was split from another
        one than its namesake in another file would inherit what that one has learned.
        """
        if team.key() in self.archive.keys:
            return False
        origins: dict[str, set[tuple[str, str | None]]] = {}
        for candidate in self.archive.candidates if self.inputs.trainer is not None else ():
            for name, agent in candidate.team.spec.agents.items():
                origins.setdefault(slug(name), set()).add((name, agent.like))
        return all(
            (name, agent.like) in origins.get(slug(name), {(name, agent.like)})
            for name, agent in team.spec.agents.items()
        )

    async def _ask(self, parent: TeamCandidate, number: int) -> Mapping[str, Any]:
        """Ask the proposer to edit a file."""
        ask = self.inputs.ask
        assert ask is not None, "there is a proposer"
        tokens = 0

        async def counted(text: str, attempt: int) -> str:
            nonlocal tokens
            seed = stable_seed(self.inputs.seed, "evolve/ask", self.generation, number, attempt)
            reply, used = await ask(text, seed)
            tokens += used
            return reply

        whole = [c for c in self.archive.whole if c.edits]
        facts = ParentFacts(
            parent.team,
            mean_score(parent.episodes),
            mean_tokens(parent.episodes),
            self._stories.get(parent.key, [])[:MOST_STORIES],
            [{"edits": c.edits, "score": round(mean_score(c.episodes), 3)} for c in whole[-EARLIER:]],
        )
        replies = await ask_for_edits(facts, self.inputs.parts, counted, self.inputs.tasks)
        return {**replies, "tokens": tokens}

    async def _play(self, children: Sequence[TeamCandidate]) -> None:
        """Play new files until they have played all tasks, are ruled out, or the budget is spent.

        A batch that is paid for is always counted.
        """
        incumbent = self.archive.incumbent()
        playing = list(children)
        for first in range(0, self.settings.tasks, BATCH):
            if not playing:
                return
            if self._is_spent():
                for child in playing:
                    child.state = "unfinished"
                return
            await self._batch(playing, first, min(BATCH, self.settings.tasks - first), "play")
            for child in playing:
                if self._is_out(child.episodes, incumbent.episodes, self.inputs.limit):
                    child.state = "out"
                elif self._is_same(child):
                    child.state = "same"
            playing = [child for child in playing if child.state == "playing"]
        for child in playing:
            child.state = "whole"

    def _is_out(self, episodes: Sequence[PlayedEpisode], best: Sequence[PlayedEpisode], limit: float) -> bool:
        """Return whether a file is ruled out by its episodes, against those of the best one."""
        check_weights([episodes, best])
        pairs = zip(episodes, best, strict=False)  # it has played less
        differences = [self.archive.utility(e) - self.archive.utility(b) for e, b in pairs]
        return is_ruled_out(differences, self.settings.margin, limit)

    def _is_same(self, child: TeamCandidate) -> bool:
        """Return whether a new file has had the score of an earlier one in every task so far, for as many
        tokens or more: edits of steps that nobody reads, of checks that approve everything, and the same
        steps written in another way. They would fill the archive, and each would be edited again.
        """
        assert child.parent is not None, "it was edited"
        if len(child.episodes) < SAME_TASKS:
            return False
        parent = self.archive.candidates[child.parent]
        return any(plays_like(child, other) for other in (parent, *self.archive.whole))

    async def _play_held_out(self, choice: TeamCandidate) -> None:
        """Play the tasks that are held out: the front with the chosen file, and the start files."""
        others = [c for c in self.archive.candidates if c.parent is None]
        files = list({c.number: c for c in [choice, *self.front(), *others]}.values())[:MOST_HELD_OUT]
        await self._rounds(files, 0, self.inputs.num_val, "held_out")

    async def _rounds(
        self, candidates: Sequence[TeamCandidate], first: int, count: int, purpose: str
    ) -> None:
        """Play tasks in batches."""
        for place in range(first, first + count, BATCH):
            await self._batch(candidates, place, min(BATCH, first + count - place), purpose)

    async def _batch(self, candidates: Sequence[TeamCandidate], first: int, count: int, purpose: str) -> None:
        """Play one batch and count it."""
        keys = [c.key for c in candidates]
        line = {
            "event": purpose, "generation": self.generation, "first": first, "count": count, "files": keys,
        }  # fmt: skip

        async def work() -> Mapping[str, Any]:
            teams = [c.team for c in candidates]
            held_out = purpose == "held_out"
            batch = await self.inputs.player.play(teams, first, count, held_out=held_out)
            return batch_line(batch, keys, stories=self.inputs.ask is not None and purpose == "play")

        result = await self.ledger.event(line, work)
        for candidate in candidates:
            episodes = episodes_of(result["episodes"][candidate.key], self.archive.weights)
            {"play": candidate.episodes, "confirm": candidate.confirmed, "held_out": candidate.held_out}[
                purpose
            ].extend(episodes)
            self._stories.setdefault(candidate.key, []).extend(
                result.get("stories", {}).get(candidate.key, ())
            )
            if purpose != "held_out":
                self.counts.episodes += len(episodes)
                self.counts.logical += sum(e.tokens for e in episodes)
        setattr(self.counts, purpose, getattr(self.counts, purpose) + result["engine_tokens"])
        if purpose != "held_out":
            self.counts.calls += result["calls"]
            self.counts.engine_calls += result["engine_calls"]
        self.inputs.on_batch(self)

    def _say_generation(self) -> None:
        children = [c for c in self.archive.candidates if c.generation == self.generation]
        out = sum(c.state == "out" for c in children)
        best = self.archive.incumbent()
        left = "" if self.settings.budget_tokens is None else f", {max(self.left(), 0):,.0f} tokens left"
        self.inputs.say(
            f"generation {self.generation}/{self.settings.generations}: {len(children)} new files, "
            f"{out} ruled "
            f"out; best {mean_score(best.episodes):.3f} with {mean_tokens(best.episodes):.1f} tokens{left}"
        )


def plays_like(child: TeamCandidate, other: TeamCandidate) -> bool:
    """Return whether a file has the scores of another one in all tasks that it has played, for as many
    tokens or more. One that has played fewer tasks says too little.
    """
    if len(other.episodes) < len(child.episodes):
        return False
    pairs = list(zip(child.episodes, other.episodes, strict=False))
    check_weights(pairs)
    dearer = sum(c.tokens - o.tokens for c, o in pairs) >= 0
    return dearer and all(c.score == o.score for c, o in pairs)


def final_episodes(candidate: TeamCandidate) -> list[PlayedEpisode]:
    """Return the episodes that choose: those on fresh tasks, or without any those of the stream."""
    return candidate.confirmed or candidate.episodes


async def _nothing() -> Mapping[str, Any]:
    return {}

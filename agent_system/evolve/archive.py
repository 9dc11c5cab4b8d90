"""The files of a search with their results, and the choice among them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from agent_system.errors import AgentSystemError
from agent_system.evolve.evaluate import PlayedEpisode
from agent_system.workflows.graph.team import Team

# Of a tree: the share of draws that every file has alike, as AFlow (arXiv 2410.10762) draws among
# the best; how much a point of the score counts in the others.
UNIFORM = 0.3
SHARPNESS = 20.0
# Tasks for which the mean of all files stands in a file's shrunk score.
SHRINKAGE = 16
TOURNAMENT = 3
# Of evolution: the share of parents that are drawn from the front of score and tokens. Tournaments alone
# hardly ever edit a cheap file: where votes came first, a search made more of them until its end.
FROM_FRONT = 0.5


@dataclass
class TeamCandidate:
    """A file of the search.

    Attributes:
        number: in the order in which files came; the start files are first.
        team: the team.
        key: `Team.key`.
        parent: number of the file that was edited; None for a start file.
        edits: the edits.
        generation: number of its generation; 0 for a start file.
        state: playing | whole (has played all tasks) | out (ruled out) | same (has the scores of an
            earlier file, and is no cheaper) | unfinished (no budget was left) | old (has played with weights
            that were trained since).
        episodes: what it has played of the stream, in order, with the last weights with which it did.
        earlier: what it has played of the stream with earlier weights.
        confirmed: what it has played of the tasks of the finalists.
        held_out: what it has played of `data.val_files`.
    """

    number: int
    team: Team
    key: str
    parent: int | None = None
    edits: Sequence[Mapping[str, Any]] = ()
    generation: int = 0
    state: str = "playing"
    episodes: list[PlayedEpisode] = field(default_factory=list)
    earlier: list[list[PlayedEpisode]] = field(default_factory=list)
    confirmed: list[PlayedEpisode] = field(default_factory=list)
    held_out: list[PlayedEpisode] = field(default_factory=list)


def mean_score(episodes: Sequence[PlayedEpisode]) -> float:
    """Return the mean score; failed episodes have 0."""
    return sum(e.score for e in episodes) / len(episodes)


def mean_tokens(episodes: Sequence[PlayedEpisode]) -> float:
    """Return the mean tokens."""
    return sum(e.tokens for e in episodes) / len(episodes)


def check_weights(results: Iterable[Sequence[PlayedEpisode]]) -> None:
    """Raise AgentSystemError for episodes of different weights, whose scores must not be compared:
    the later ones are of teams that have learned more.
    """
    weights = sorted({episode.weights for episodes in results for episode in episodes})
    if len(weights) > 1:
        raise AgentSystemError(
            f"scores of different weights cannot be compared: episodes were played after {weights[0]} and "
            f"after {weights[-1]} trainings; play the file again"
        )


def failures(episodes: Sequence[PlayedEpisode]) -> Counter[str]:
    """Return the number of failed episodes by cause."""
    return Counter(e.cause for e in episodes if e.cause)


@dataclass
class Archive:
    """All files of a search.

    Attributes:
        price: score that the tokens of the first start file cost.
        margin: difference of scores below which the cheaper file is better.
        candidates: the files.
        weights: number of trainings so far.
    """

    price: float
    margin: float
    candidates: list[TeamCandidate] = field(default_factory=list)
    weights: int = 0

    @property
    def keys(self) -> set[str]:
        """Keys of the files that the present weights have played or are to play; of one that was
        played by earlier ones alone nothing is known.
        """
        return {
            candidate.key
            for candidate in self.candidates
            if not candidate.episodes or candidate.episodes[-1].weights == self.weights
        }

    @property
    def whole(self) -> list[TeamCandidate]:
        """The files that have played all tasks."""
        return [c for c in self.candidates if c.state == "whole"]

    @cached_property
    def base_tokens(self) -> float:
        """Tokens of an episode of the first start file, which has played all tasks."""
        return max(mean_tokens(self.candidates[0].episodes), 1.0)

    def utility(self, episode: PlayedEpisode) -> float:
        """Return score less the price of the tokens."""
        return episode.score - self.price * episode.tokens / self.base_tokens

    def mean_utility(self, episodes: Sequence[PlayedEpisode]) -> float:
        """Return the mean utility of episodes."""
        return sum(map(self.utility, episodes)) / len(episodes)

    def search_utility(self, candidate: TeamCandidate) -> float:
        """Return the mean utility of a file on the stream."""
        return self.mean_utility(candidate.episodes)

    def best(
        self, candidates: Sequence[TeamCandidate], of: Callable[[TeamCandidate], list[PlayedEpisode]]
    ) -> TeamCandidate:
        """Return the file with the fewest tokens of those that are less than the margin below the
        best. Raises AgentSystemError for results of different weights.
        """
        check_weights(of(c) for c in candidates)
        most = max(self.mean_utility(of(c)) for c in candidates)
        near = [
            c
            for c in candidates
            if self.mean_utility(of(c)) > most - self.margin or self.mean_utility(of(c)) == most
        ]
        return min(near, key=lambda c: (mean_tokens(of(c)), c.number))

    def incumbent(self) -> TeamCandidate:
        """Return the file that new ones must beat."""
        return self.best(self.whole, lambda c: c.episodes)

    def finalists(self, most: int) -> list[TeamCandidate]:
        """Return the `most` best files, and the best others of the front, half as many at most. Of files
        with equal scores on all tasks only the best one is among them: fresh tasks hardly tell them apart.
        """
        check_weights(c.episodes for c in self.whole)
        ranked = sorted(self.whole, key=lambda c: (-self.search_utility(c), c.number))
        by_scores: dict[tuple[float, ...], TeamCandidate] = {}
        for candidate in ranked:
            by_scores.setdefault(tuple(e.score for e in candidate.episodes), candidate)
        ranked = list(by_scores.values())
        front = pareto_front(ranked, lambda c: c.episodes)
        ranked_front = sorted(front, key=lambda c: (-self.search_utility(c), c.number))
        finalists = ranked[:most] + [c for c in ranked_front if c not in ranked[:most]][: most // 2]
        return sorted(finalists, key=lambda c: c.number)


def pareto_front(
    candidates: Sequence[TeamCandidate], of: Callable[[TeamCandidate], list[PlayedEpisode]]
) -> list[TeamCandidate]:
    """Return the files that no other one beats in both score and tokens, by tokens. Raise
    AgentSystemError for results of different weights.
    """
    check_weights(of(c) for c in candidates)
    ranked = sorted(candidates, key=lambda c: (mean_tokens(of(c)), -mean_score(of(c)), c.number))
    front: list[TeamCandidate] = []
    for candidate in ranked:
        if not front or mean_score(of(candidate)) > mean_score(of(front[-1])):
            front.append(candidate)
    return front


class SearchPolicy(Protocol):
    """Chooses the files that are edited."""

    def parent(self, archive: Archive, rng: random.Random) -> TeamCandidate:
        """Return a file that has been played."""
        ...


class TreePolicy:
    """Draws among all files: a share alike, the rest by the softmax of their shrunk scores."""

    def parent(self, archive: Archive, rng: random.Random) -> TeamCandidate:
        """See `SearchPolicy`."""
        return rng.choices(archive.whole, self.chances(archive))[0]

    def chances(self, archive: Archive) -> list[float]:
        """Return the chance of every file."""
        values = [archive.search_utility(c) for c in archive.whole]
        middle = sum(values) / len(values)
        shrunk = [
            middle + (v - middle) * len(c.episodes) / (len(c.episodes) + SHRINKAGE)
            for v, c in zip(values, archive.whole, strict=True)
        ]
        exponentials = [math.exp(SHARPNESS * (v - max(shrunk))) for v in shrunk]
        total = sum(exponentials)
        return [UNIFORM / len(shrunk) + (1 - UNIFORM) * e / total for e in exponentials]


class EvolutionPolicy:
    """Tournaments among the best files of each cell of a map: octaves of tokens by octaves of
    critical tokens (MAP-Elites, arXiv 1504.04909); and half of the time any file of the front of score
    and tokens.
    """

    def parent(self, archive: Archive, rng: random.Random) -> TeamCandidate:
        """See `SearchPolicy`."""
        if rng.random() < FROM_FRONT:
            return rng.choice(pareto_front(archive.whole, lambda c: c.episodes))
        elites = self.elites(archive)
        sample = rng.sample(elites, min(TOURNAMENT, len(elites)))
        return max(sample, key=lambda c: (archive.search_utility(c), -c.number))

    def elites(self, archive: Archive) -> list[TeamCandidate]:
        """Return the best file of every cell."""
        cells: dict[tuple[int, int], TeamCandidate] = {}
        for candidate in archive.whole:
            cell = self.cell(candidate)
            other = cells.get(cell)
            if other is None or archive.search_utility(candidate) > archive.search_utility(other):
                cells[cell] = candidate
        return list(cells.values())

    def cell(self, candidate: TeamCandidate) -> tuple[int, int]:
        """Return the cell of a file."""
        critical = sum(e.critical_tokens for e in candidate.episodes) / len(candidate.episodes)
        tokens = mean_tokens(candidate.episodes)
        return math.floor(math.log2(max(tokens, 1.0))), math.floor(math.log2(max(critical, 1.0)))


class RandomPolicy:
    """Draws all files of earlier generations alike, whatever they scored: the search that others
    have to beat.
    """

    def parent(self, archive: Archive, rng: random.Random) -> TeamCandidate:
        """See `SearchPolicy`."""
        parents = [c for c in archive.candidates if c.state in ("whole", "out")]
        return rng.choice([c for c in parents if c.episodes[-1].weights == archive.weights])


POLICIES: Mapping[str, Callable[[], SearchPolicy]] = {
    "evolution": EvolutionPolicy,
    "tree": TreePolicy,
    "random": RandomPolicy,
}

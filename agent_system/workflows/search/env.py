"""The world: a question, a search engine, and an answer that is graded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.search.world.answers import (
    answers_of,
    contains,
    exact_match,
    f1_score,
    searchable,
)
from agent_system.workflows.search.world.shared import Retriever, shared_retriever
from agent_system.workflows.search.world.wire import Passage, RetrievalError
from agent_system.workflows.single import SINGLE

VERIFIER = "Verifier Agent"
SEARCH = "Search Agent"
ANSWER = "Answer Agent"
YES = "yes"
NO = "no"
REWARDS = ("em", "f1")
VIEWS = ("full", "text")
LATENCY_SIGMA = 1.2
NO_QUERY = "no query was found in the reply"
NOTHING = "nothing was found"
COUNTED = (
    "verifier/unparsed",
    "search/unparsed",
    "answer/unparsed",
    "search/too_long",
    "search/empty",
    "search/repeated",
)


class Query(str):
    """An action that is a search query; the environment takes any other action as an answer."""

    __slots__ = ()


@dataclass(frozen=True)
class SearchEnvOptions:
    """Options under `env.params`: source of passages, and rewards.

    Attributes:
        corpus: jsonl file of documents; the run starts a server for it on loopback, which ends with
            the run.
        url: a running server, ours or another one with Search-R1's `/retrieve`; instead of
            `corpus`.
        topk: passages per search.
        timeout_s: time limit of a search in seconds; exceeding it fails the episode.
        start_timeout_s: time limit for the start of the server of a `corpus`, in seconds.
        latency_s: seconds that a search takes in the median in addition, log-normal with sigma
            `LATENCY_SIGMA`: simulates a remote engine.
        max_query_chars: longer queries are not sent; the team reads the reason, and they are
            counted.
        max_passage_chars: characters of a passage that the team reads.
        view: format of passages: full (numbered, with titles) | text (the texts alone).
        reward: team reward of an answer: em (exact match) | f1.
        search_reward: local, for a search whose passages are the first ones that contain an
            accepted answer.
        verdict_reward: local, sum over an episode's verdicts when all are right (yes if a passage
            so far contains an accepted answer, no if none does); each verdict is paid the change of
            the share of right ones.
    """

    corpus: str = ""
    url: str = ""
    topk: int = 3
    timeout_s: float = 30.0
    start_timeout_s: float = 600.0
    latency_s: float = 0.0
    max_query_chars: int = 300
    max_passage_chars: int = 1500
    view: str = "full"
    reward: str = "em"
    search_reward: float = 0.0
    verdict_reward: float = 0.0

    def __post_init__(self) -> None:
        check_choice("env.params.view", self.view, VIEWS)
        check_choice("env.params.reward", self.reward, REWARDS)
        for name in ("topk", "timeout_s", "start_timeout_s", "max_query_chars", "max_passage_chars"):
            if getattr(self, name) <= 0:
                raise AgentSystemError(f"env.params.{name} must be positive, found {getattr(self, name)!r}")
        check_floats(self)
        if self.latency_s < 0:
            raise AgentSystemError(f"env.params.latency_s must not be negative, found {self.latency_s!r}")

    def check_source(self) -> None:
        """Raise AgentSystemError unless exactly one of `corpus` and `url` is set, or for
        `start_timeout_s` with `url`.
        """
        if bool(self.corpus) == bool(self.url):
            sources = f"both ({self.corpus} and {self.url})" if self.corpus else "neither"
            raise AgentSystemError(
                "the search environment needs one of env.params.corpus (a jsonl file) and "
                f"env.params.url (a retrieval server), found {sources}"
            )
        if self.url and self.start_timeout_s != SearchEnvOptions.start_timeout_s:
            raise AgentSystemError(
                f"env.params.start_timeout_s={self.start_timeout_s:g} has no effect; it needs "
                "env.params.corpus (the server of env.params.url is already running)"
            )


@EnvRegistry.register("search")
class SearchEnv(BaseEnv):
    """Environment that searches for the Search Agent and ends the episode with the Answer Agent's
    answer.

    Both happen in `act`, so that each candidate gets its own reward; `step` does them only in a
    turn in which neither acted (a team of one, for example): a `Query` searches, any other action
    answers. The passages are the observation of the next turn. A failed search raises
    `RetrievalError`, which fails its own episode only.

    `info`: `success` (exact match), `f1`, `searches` (sent), `known` (a passage so far contains an
    accepted answer), `verifier/accuracy` (share of verdicts that agree with `known`; a missing
    verdict is wrong), and over the episode the counts `verifier/early` (yes while `known` is
    false), `verifier/unparsed`, `search/unparsed`, `answer/unparsed`, `search/too_long`,
    `search/empty` (searches without result), `search/repeated` (queries sent before). Passages do
    not show whether the answer to a yes-no question is known: its episodes have no `known`,
    `verifier/accuracy` and `verifier/early`, and no local rewards.
    """

    config_class = SearchEnvOptions
    blocking = False

    def reset(self, task: Task) -> Observation:
        """Start from the question.

        Raises:
            AgentSystemError: there is no accepted answer that an answer can match, or no source of
                passages.
        """
        self.config.check_source()
        self._accepted = answers_of(task)
        self._searchable = searchable(self._accepted)
        self._question = task.prompt
        self._queries: list[str] = []
        self._results: list[str] = []
        self._has_answer = False
        self._verdicts: list[bool] = []
        self._counts: Counter[str] = Counter()
        self._answer = ""
        self._retrieved: str | None = None
        return Observation(self._question)

    def observe(self, agent_id: str) -> Observation:
        """Return the question; the results of searches are in the team's memory and in the anchor."""
        return Observation(
            self._question, {"anchor": "\n".join([self._question, *self._queries, *self._results])}
        )

    async def act(self, agent_id: str, action: str) -> Outcome:
        """Search, answer, or record a verdict. Raises RetrievalError."""
        if agent_id == VERIFIER:
            return self._judge(action)
        if agent_id == SEARCH or (agent_id == SINGLE and isinstance(action, Query)):
            return await self._search(action)
        return self._grade(action) if agent_id in (ANSWER, SINGLE) else Outcome()

    async def step(self, action: str) -> Outcome:
        """End the turn. Raises RetrievalError."""
        outcome = Outcome()
        if self._retrieved is None:
            outcome = await self._search(action) if isinstance(action, Query) else self._grade(action)
        retrieved = self._retrieved
        self._retrieved = None
        return Outcome(
            team=outcome.team, done=outcome.done, info=self._info(), observation=Observation(retrieved or "")
        )

    def fork(self) -> SearchEnv:
        """Return an independent copy."""
        copy = type(self)(self.config, seed=self.seed)
        copy._accepted = self._accepted
        copy._searchable = self._searchable
        copy._question = self._question
        copy._answer = self._answer
        copy._retrieved = self._retrieved
        copy._queries = list(self._queries)
        copy._results = list(self._results)
        copy._verdicts = list(self._verdicts)
        copy._has_answer = self._has_answer
        copy._counts = self._counts.copy()
        return copy

    def check_workers(self) -> None:
        """Raise AgentSystemError for a `corpus`, for which every worker would start a server of its
        own.
        """
        if self.config.corpus:
            raise AgentSystemError(
                f"env.params.corpus={self.config.corpus} with env.workers.num>0 would start a "
                "retrieval server, with an index, in every worker; start one with `python -m "
                "agent_system.workflows.search.world.server --corpus FILE --port 8000` and set "
                "env.params.url=http://127.0.0.1:8000 instead, or set env.workers.num=0"
            )

    def probe(self) -> None:
        """Search once, blocking.

        Raises:
            AgentSystemError: there is no source of passages, or the server cannot be used.
        """
        self.config.check_source()
        try:
            self._retriever.start().search_now("test")
        except RetrievalError as error:
            raise AgentSystemError(str(error)) from error

    @property
    def _retriever(self) -> Retriever:
        config = self.config
        return shared_retriever(
            config.corpus,
            config.url,
            config.topk,
            config.timeout_s,
            config.start_timeout_s,
            config.max_query_chars,
        )

    def _judge(self, action: str) -> Outcome:
        """Record a verdict; it is paid the change of the share of right verdicts, so an episode
        earns at most `verdict_reward`.
        """
        self._counts["verifier/unparsed"] += not action
        if not self._searchable:
            return Outcome(info=self._info())
        self._counts["verifier/early"] += action == YES and not self._has_answer
        before = self._accuracy
        self._verdicts.append(bool(action) and (action == YES) == self._has_answer)
        local = paid(self.config.verdict_reward * (self._accuracy - before), self.config.verdict_reward)
        return Outcome(local=local, info=self._info())

    @property
    def _accuracy(self) -> float:
        return sum(self._verdicts) / len(self._verdicts) if self._verdicts else 0.0

    async def _search(self, query: str) -> Outcome:
        before = self._has_answer
        self._retrieved = await self._result(query)
        self._results.append(self._retrieved)
        has_new_answer = self._has_answer and not before
        return Outcome(
            local=paid(self.config.search_reward * has_new_answer, self.config.search_reward),
            info=self._info(),
        )

    async def _result(self, query: str) -> str:
        """Search and return the result as the team reads it."""
        most = self.config.max_query_chars
        if not query:
            self._counts["search/unparsed"] += 1
            return NO_QUERY
        if len(query) > most:
            self._counts["search/too_long"] += 1
            return f"the query has {len(query)} characters, at most {most} are allowed; nothing was searched"
        self._counts["search/repeated"] += query in self._queries
        if self.config.latency_s:
            # By the seed, so that a run can be repeated.
            draw = Random(f"{self.seed}/{len(self._queries)}/{query}")
            await asyncio.sleep(self.config.latency_s * draw.lognormvariate(0.0, LATENCY_SIGMA))
        passages = await self._retriever.search(query)
        self._queries.append(query)
        self._counts["search/empty"] += not passages
        texts = [passage.text[: self.config.max_passage_chars] for passage in passages]
        self._has_answer = self._has_answer or contains(
            [*texts, *(passage.title for passage in passages)], self._searchable
        )
        return show(passages, texts, self.config.view)

    def _grade(self, answer: str) -> Outcome:
        """End the episode with an answer; a reply without one is a wrong answer."""
        self._counts["answer/unparsed"] += not answer
        self._answer = answer
        score = exact_match if self.config.reward == "em" else f1_score
        return Outcome(team=score(answer, self._accepted), done=True, info=self._info())

    def _info(self) -> dict[str, float]:
        info = {
            "success": exact_match(self._answer, self._accepted),
            "f1": f1_score(self._answer, self._accepted),
            "searches": float(len(self._queries)),
            **{name: float(self._counts[name]) for name in COUNTED},
        }
        if self._searchable:
            info |= {
                "known": float(self._has_answer),
                "verifier/early": float(self._counts["verifier/early"]),
            }
        if self._verdicts:
            info["verifier/accuracy"] = self._accuracy
        return info


def show(passages: Sequence[Passage], texts: Sequence[str], view: str) -> str:
    """Return passages as the team reads them; `texts` are their shortened texts."""
    if not passages:
        return NOTHING
    if view == "text":
        return "\n".join(texts)
    return "\n".join(
        f"Doc {i} (Title: {passage.title or 'none'}) {text}"
        for i, (passage, text) in enumerate(zip(passages, texts, strict=True), 1)
    )

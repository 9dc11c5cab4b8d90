"""Options of the search workflow: of its team under `agent.orchestra.search`, of its world under `env.params`."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError, suggestion
from agent_system.workflows.search.prompts import STYLES

YES, NO = "yes", "no"
FALLBACKS = (NO, YES)
REWARDS = ("em", "f1")
VIEWS = ("full", "text")


@dataclass(frozen=True)
class SearchOptions:
    """How the team works.

    Attributes:
        verdict_fallback: what a Verifier's reply without a clear verdict counts as: no (search) | yes (answer).
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    verdict_fallback: str = NO
    prompt_style: str = "full"

    def __post_init__(self) -> None:
        _one_of("agent.orchestra.search.verdict_fallback", self.verdict_fallback, FALLBACKS)
        _one_of("agent.orchestra.search.prompt_style", self.prompt_style, tuple(STYLES))


@dataclass(frozen=True)
class SearchEnvOptions:
    """Where the team searches, and what it is paid for.

    Attributes:
        corpus: jsonl file of documents; a server for it is started on loopback, and ends with the run.
        url: a server that runs, ours or another one with Search-R1's `/retrieve`; instead of `corpus`.
        topk: passages of a search.
        timeout_s: seconds of a search; a server that takes longer fails the episode that asked.
        start_timeout_s: seconds until the server of a `corpus` answers.
        max_query_chars: longer queries are not sent; the team reads why, and they are counted.
        max_passage_chars: characters of a passage that the team reads.
        view: how passages are shown: full (numbered, with titles) | text (the texts alone).
        reward: what an answer earns the team: em (exact match) | f1.
        search_reward: local, for a search whose passages are the first ones to hold an accepted answer.
        verdict_reward: local, what an episode's verdicts earn when each agrees with what is known (yes when that holds an accepted
            answer, no when it does not), however many they are; each is paid how it moves the share that agrees.
    """

    corpus: str = ""
    url: str = ""
    topk: int = 3
    timeout_s: float = 30.0
    start_timeout_s: float = 600.0
    max_query_chars: int = 300
    max_passage_chars: int = 1500
    view: str = "full"
    reward: str = "em"
    search_reward: float = 0.0
    verdict_reward: float = 0.0

    def __post_init__(self) -> None:
        _one_of("env.params.view", self.view, VIEWS)
        _one_of("env.params.reward", self.reward, REWARDS)
        for name in ("topk", "timeout_s", "start_timeout_s", "max_query_chars", "max_passage_chars"):
            if getattr(self, name) <= 0:
                raise AgentSystemError(f"env.params.{name} must be positive, found {getattr(self, name)!r}")

    def check_source(self) -> None:
        """Raise AgentSystemError unless exactly one of `corpus` and `url` is set, or when a key of the other one is."""
        if bool(self.corpus) == bool(self.url):
            found = f"both ({self.corpus} and {self.url})" if self.corpus else "neither"
            raise AgentSystemError(
                "the search environment needs one of env.params.corpus (a jsonl file) and env.params.url (a retrieval server), "
                f"found {found}"
            )
        if self.url and self.start_timeout_s != SearchEnvOptions.start_timeout_s:
            raise AgentSystemError(
                f"env.params.start_timeout_s={self.start_timeout_s:g} has no effect; it needs env.params.corpus "
                "(the server of env.params.url runs already)"
            )


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise AgentSystemError(f"{key} must be one of {', '.join(known)}, found {value!r}{suggestion(value, known)}")

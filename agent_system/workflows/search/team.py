"""A Verifier decides whether the team searches or answers; then a Search Agent or an Answer Agent
is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv
from agent_system.memory import Memory, Recollection, SearchMemory
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, tag, verdict
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.search.env import ANSWER, NO, SEARCH, VERIFIER, YES, Query, SearchEnv
from agent_system.workflows.single import SINGLE, SingleAgent, SingleOptions, SingleOrchestra
from agent_system.workflows.styled import StyledAgent


@dataclass(frozen=True)
class SearchPromptStyle:
    """Prompt templates for one kind of model. Literal braces are doubled.

    Attributes:
        verifier, search, answer: templates with `{env_prompt}` (the question), `{memory}` (searches
            so far), `{team_context}` and `{step}`.
        entry: template for quoting a reply of this turn, with `{role}` (first word of the agent's
            name) and `{text}`.
        separator: text between replies.
        no_replies: text for an empty discussion.
    """

    verifier: str
    search: str
    answer: str
    entry: str
    separator: str
    no_replies: str


_QUESTION = """\
# Question
{env_prompt}

# Searches so far
Each with its query between <search> and </search>, and what came back between <information> and </information>. None if empty.
{memory}
"""

FULL = SearchPromptStyle(
    verifier=f"""\
You are the Verifier Agent in a team of three that answers a question with a search engine. You decide what happens next: another search, \
or the answer.

{_QUESTION}
# Your part
This is turn {{step}}. Look at the searches: what does the question still need, did a query miss or repeat something, and does what came \
back settle the answer? Reason briefly. End with <verify>yes</verify> if what is known is enough to answer, or <verify>no</verify> if \
something is missing.""",
    search=f"""\
You are the Search Agent in a team of three that answers a question with a search engine. The Verifier Agent has found that something is \
missing.

{_QUESTION}
# Said in this turn
{{team_context}}

# Your part
This is turn {{step}}. Decide which single fact is needed next and write one query for it: short, with the names that matter, and unlike \
the queries that have failed. Do not answer the question. End with <search>your query</search>.""",
    answer=f"""\
You are the Answer Agent in a team of three that answers a question with a search engine. The Verifier Agent has found that enough is known.

{_QUESTION}
# Said in this turn
{{team_context}}

# Your part
This is turn {{step}}. Draw the answer from what the searches brought. End with <answer>the answer alone</answer>: a name, a date, a few \
words, and no sentence around it.""",
    entry="[{role}]\n{text}",
    separator="\n\n",
    no_replies="(nothing)",
)


SHORT = SearchPromptStyle(
    verifier="Verify: {env_prompt}\n{memory}",
    search="Search: {env_prompt}\n{memory}",
    answer="Answer: {env_prompt}\n{memory}",
    entry="",
    separator="",
    no_replies="",
)


STYLES = {"full": FULL, "short": SHORT}
ALONE = f"""\
You answer a question with a search engine.

{_QUESTION}
# Your part
This is turn {{step}}. If what is known settles the answer, end with <answer>the answer alone</answer>: a name, a date, a few words, and \
no sentence around it. Otherwise decide which single fact is needed next and end with one query for it, short and unlike those that have \
failed: <search>your query</search>."""
SINGLE_STYLES = {
    "full": replace(FULL, search=ALONE),
    "short": replace(SHORT, search="Next: {env_prompt}\n{memory}"),
}


@dataclass(frozen=True)
class SearchOptions:
    """Options under `agent.orchestra.search`.

    Attributes:
        verdict_fallback: verdict of a Verifier's reply without a clear one: no (search) | yes
            (answer).
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    verdict_fallback: str = NO
    prompt_style: str = "full"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.search.verdict_fallback", self.verdict_fallback, (NO, YES))
        check_choice("agent.orchestra.search.prompt_style", self.prompt_style, tuple(STYLES))


class SearchWorkflowAgent(StyledAgent):
    """A role whose prompt shows the question, the searches and, in some styles, the replies of this
    turn.
    """

    styles = STYLES
    options = SearchOptions


@AgentRegistry.register(VERIFIER, orchestra="search")
class SearchVerifierAgent(SearchWorkflowAgent):
    """The role that decides whether the passages suffice for an answer.

    Its action is `yes`, `no`, or empty when no verdict could be parsed: then `fields["enough"]`
    holds the fallback.
    """

    role = VERIFIER
    template = "verifier"

    def __init__(self, agent_id: str = "", config: Any = None) -> None:
        super().__init__(agent_id, config)
        fallback = "approve" if self.config.verdict_fallback == YES else "reject"
        self._read = verdict("verify", approve=(YES,), reject=(NO,), fallback=fallback)

    def project(self, text: str) -> Projection:
        projection = self._read(text)
        enough = projection.fields["approved"]
        action = (YES if enough else NO) if projection.fields["parsed"] else ""
        return replace(
            projection, action=action, fields={"enough": enough, "parsed": projection.fields["parsed"]}
        )


@AgentRegistry.register(SEARCH, orchestra="search")
class SearchAgent(SearchWorkflowAgent):
    """The role that writes a query; its action is a `Query`, which is empty when the reply has
    none.
    """

    role = SEARCH
    template = "search"
    projection = tag("search")

    def project(self, text: str) -> Projection:
        projection = super().project(text)
        return replace(projection, action=Query(projection.action))


@AgentRegistry.register(ANSWER, orchestra="search")
class AnswerAgent(SearchWorkflowAgent):
    """The role that answers the question; its action is the answer, which is empty when the reply
    has none.
    """

    role = ANSWER
    template = "answer"
    projection = tag("answer")


@AgentRegistry.register(SINGLE, orchestra="single", env="search")
class SingleSearchAgent(SingleAgent):
    """One agent that searches or answers: what its reply says last; a reply with neither is an
    empty `Query`.
    """

    styles = SINGLE_STYLES
    template = "search"

    def project(self, text: str) -> Projection:
        query = tag("search")(text)
        answer = tag("answer")(text)
        last = answer.text.lower().rfind
        if answer.valid and (not query.valid or last("</answer>") > last("</search>")):
            return answer
        return replace(query, action=Query(query.action))


class FoundMemory(Memory):
    """Memory of the results of searches, without the queries."""

    keeps_result = True

    def render(self, turn: Recollection) -> str:
        return turn.observation


class SearchingOrchestra(BaseOrchestra):
    """An orchestra that remembers what searches brought, and needs a server."""

    memory_class: type[Memory] = SearchMemory

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        if self.config.prompt_style == "short":
            self.memory_class = FoundMemory

    def check(
        self, agents: Mapping[str, BaseAgent], make_env: Callable[[int], BaseEnv], *, forks: bool
    ) -> None:
        """Search once, so that an unusable server is an error before a model loads."""
        del agents, forks
        env = make_env(0)
        if isinstance(env, SearchEnv):
            env.probe()


@OrchestraRegistry.register("single", env="search")
class SingleSearchOrchestra(SearchingOrchestra, SingleOrchestra):
    """One search or one answer per turn."""

    config_class = SingleOptions


@OrchestraRegistry.register("search")
class SearchOrchestra(SearchingOrchestra):
    """One verdict per turn, then one search or one answer; the third role is not called."""

    agents = (VERIFIER, SEARCH, ANSWER)
    config_class = SearchOptions

    async def run(self, turn: Turn) -> str:
        verdict = await turn.act(VERIFIER)
        reply = await turn.act(ANSWER if verdict.fields["enough"] else SEARCH)
        return reply.action

"""Questions answered with a search engine by a team of three: a Verifier routes to a Search Agent or an Answer Agent."""

from agent_system.workflows.search.agents import ANSWER, SEARCH, VERIFIER, AnswerAgent, Query, SearchAgent, VerifierAgent
from agent_system.workflows.search.env import SearchEnv
from agent_system.workflows.search.options import SearchEnvOptions, SearchOptions
from agent_system.workflows.search.orchestra import SearchOrchestra

__all__ = [
    "ANSWER",
    "SEARCH",
    "VERIFIER",
    "AnswerAgent",
    "Query",
    "SearchAgent",
    "SearchEnv",
    "SearchEnvOptions",
    "SearchOptions",
    "SearchOrchestra",
    "VerifierAgent",
]

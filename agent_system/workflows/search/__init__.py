"""Question answering with a search engine by a team of three: a Verifier routes to a Search Agent
or an Answer Agent.
"""

from agent_system.workflows.search.env import ANSWER, SEARCH, VERIFIER, Query, SearchEnv, SearchEnvOptions
from agent_system.workflows.search.team import (
    AnswerAgent,
    SearchAgent,
    SearchOptions,
    SearchOrchestra,
    SearchVerifierAgent,
)

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
    "SearchVerifierAgent",
]

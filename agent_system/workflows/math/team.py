"""A Solver proposes a solution and a Verifier judges it, repeatedly while the verdict is `reject`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, boxed_answer, verdict
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.single import SINGLE, SingleAgent
from agent_system.workflows.styled import StyledAgent

SOLVER = "Solver Agent"
VERIFIER = "Verifier Agent"
APPROVE = "approve"
REJECT = "reject"


@dataclass(frozen=True)
class MathPromptStyle:
    """Prompt templates for one kind of model. Literal braces are doubled.

    Attributes:
        solver, verifier: templates with `{env_prompt}` and `{team_context}`.
        entry: template for quoting a reply of the discussion, with `{role}` (first word of the
            agent's name) and `{text}`.
        separator: text between replies.
        no_replies: text for an empty discussion.
    """

    solver: str
    verifier: str
    entry: str
    separator: str
    no_replies: str


FULL = MathPromptStyle(
    solver="""\
You are the Solver in a team of two. You propose a solution; the Verifier checks it. What counts is the answer in your last box.

# Problem
{env_prompt}

# Discussion so far
{team_context}

# Your part
Work the problem out step by step. If the Verifier has rejected a solution, look for the mistake first and then solve the problem \
again from the beginning; do not repeat an answer that you cannot defend. End with the final answer alone in \\boxed{{}}.""",
    verifier="""\
You are the Verifier in a team of two. The Solver proposes a solution; you decide whether it is handed in.

# Problem
{env_prompt}

# Discussion so far
{team_context}

# Your part
Check the Solver's latest solution: recompute every step yourself, and make sure that the boxed answer is what the problem asks for. \
If something is wrong, say where, so that the Solver can mend it. End with exactly one verdict: <verify>approve</verify> if the boxed \
answer is right, <verify>reject</verify> if it is not.""",
    entry="[{role}]\n{text}",
    separator="\n\n",
    no_replies="(nothing yet)",
)


SHORT = MathPromptStyle(
    solver="Solve: {env_prompt}{team_context}",
    verifier="Check: {env_prompt}{team_context}",
    entry="\n{role}: {text}",
    separator="",
    no_replies="",
)


STYLES = {"full": FULL, "short": SHORT}
ALONE = """\
Solve the problem.

# Problem
{env_prompt}

# Your part
Work the problem out step by step, and check every step before you answer. End with the final answer alone in \\boxed{{}}."""
SINGLE_STYLES = STYLES | {"full": replace(FULL, solver=ALONE)}


@dataclass(frozen=True)
class MathOptions:
    """Options under `agent.orchestra.math`.

    Attributes:
        max_loop_num: maximum number of solutions per episode.
        verdict_fallback: verdict of a reply without a clear one: approve | reject.
        verify_last: ask for a verdict on the last solution too; it has no effect on the episode,
            but it is rewarded.
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    max_loop_num: int = 2
    verdict_fallback: str = "reject"
    verify_last: bool = False
    prompt_style: str = "full"

    def __post_init__(self) -> None:
        if self.max_loop_num < 1:
            raise AgentSystemError(
                f"agent.orchestra.math.max_loop_num must be 1 or more, found {self.max_loop_num}"
            )
        check_choice("agent.orchestra.math.verdict_fallback", self.verdict_fallback, (APPROVE, REJECT))
        check_choice("agent.orchestra.math.prompt_style", self.prompt_style, tuple(STYLES))


class MathAgent(StyledAgent):
    """A role whose prompt shows the whole discussion."""

    styles = STYLES
    options = MathOptions


@AgentRegistry.register(SOLVER, orchestra="math")
class SolverAgent(MathAgent):
    r"""The role that proposes a solution; its action is the content of the last `\boxed{}`."""

    role = SOLVER
    template = "solver"
    projection = boxed_answer


@AgentRegistry.register(VERIFIER, orchestra="math")
class VerifierAgent(MathAgent):
    """The role that judges the latest solution.

    Its action is `approve`, `reject`, or empty when no verdict could be parsed: then
    `fields["approved"]` holds the fallback, and the environment, which receives the action only,
    gives no reward.
    """

    role = VERIFIER
    template = "verifier"

    def __init__(self, agent_id: str = "", config: Any = None) -> None:
        super().__init__(agent_id, config)
        self._read = verdict("verify", fallback=self.config.verdict_fallback)

    def project(self, text: str) -> Projection:
        projection = self._read(text)
        return projection if projection.fields["parsed"] else replace(projection, action="")


@AgentRegistry.register(SINGLE, orchestra="single", env="math")
class SingleMathAgent(SingleAgent):
    r"""One agent that solves alone; its action is the content of the last `\boxed{}`."""

    styles = SINGLE_STYLES
    template = "solver"
    projection = boxed_answer


@OrchestraRegistry.register("math")
class MathOrchestra(BaseOrchestra):
    """Solver and Verifier, up to `max_loop_num` solutions; the last solution is the team's answer.

    The Verifier is not called for the last solution (unless `verify_last`): its verdict would have
    no effect.
    """

    agents = (SOLVER, VERIFIER)
    config_class = MathOptions

    async def run(self, turn: Turn) -> str:
        last = self.config.max_loop_num
        unparsed = 0
        for loop in range(1, last + 1):
            solution = await turn.act(SOLVER)
            turn.info["loops"] = loop
            if loop == last and not self.config.verify_last:
                break
            judgement = await turn.act(VERIFIER)
            unparsed += not judgement.fields["parsed"]
            turn.info["verifier/unparsed"] = unparsed
            if judgement.fields["approved"]:
                break
        return solution.action

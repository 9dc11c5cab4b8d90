"""Every prompt of the math workflow, by style. Literal braces are written twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        solver, verifier: templates with `{env_prompt}` and `{team_context}`.
        entry: how one reply of the discussion is quoted, with `{role}` (first word of the agent's name) and `{text}`.
        separator: between replies.
        nobody_spoke: stands for an empty discussion.
    """

    solver: str
    verifier: str
    entry: str
    separator: str
    nobody_spoke: str


FULL = PromptStyle(
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
    nobody_spoke="(nothing yet)",
)

SHORT = PromptStyle(
    solver="Solve: {env_prompt}{team_context}",
    verifier="Check: {env_prompt}{team_context}",
    entry="\n{role}: {text}",
    separator="",
    nobody_spoke="",
)

STYLES = {"full": FULL, "short": SHORT}

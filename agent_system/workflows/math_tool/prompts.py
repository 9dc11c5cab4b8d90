"""Every prompt of the math_tool workflow, by style. Literal braces are written twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        reasoner, tool: templates with `{env_prompt}` and `{feedback}` (what became of the last turn; empty in the first).
        feedback: with `{reasoner}` and `{tool}` (their answers, or why there is none) and `{program}`.
        nothing: stands for an answer or a program that is not there.
    """

    reasoner: str
    tool: str
    feedback: str
    nothing: str


FULL = PromptStyle(
    reasoner="""\
You are the Reasoner in a team of two. You solve a problem by reasoning; the Tool-user solves it by a program. You are done when your \
answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Work the problem out step by step. If your answers differ, find out first which one is wrong. End with the final answer alone \
in \\boxed{{}}.""",
    tool="""\
You are the Tool-user in a team of two. You solve a problem by a Python program; the Reasoner solves it by reasoning. You are done when \
your answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Write a program that computes the final answer and prints it alone on its last line. It reads nothing and has the standard library. If \
your answers differ, find out first which one is wrong. End with the program in a fence:

```python
...
```""",
    feedback="""

# The last turn
The Reasoner's answer: {reasoner}
The Tool-user's answer: {tool}
The program was:
```python
{program}
```
The answers differ, or one is missing.""",
    nothing="(none)",
)

SHORT = PromptStyle(
    reasoner="Reason: {env_prompt}{feedback}",
    tool="Program: {env_prompt}{feedback}",
    feedback="\nReasoner {reasoner}\nTool {tool}",
    nothing="none",
)

STYLES = {"full": FULL, "short": SHORT}

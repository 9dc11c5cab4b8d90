"""Every prompt of the plan_path workflow, by style. Literal braces are written twice."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        tool, executor: templates with `{env_prompt}`, `{max_moves}` and, for the Executor, `{team_context}` (the Tool's reply) or
            `{proposal}` (the moves that the environment has read from it).
        entry: how the Tool's reply is quoted, with `{role}` (first word of the agent's name) and `{text}`.
    """

    tool: str
    executor: str
    entry: str


_WORLD = """\
# World
{env_prompt}

Moves: U (up, row - 1), D (down, row + 1), L (left, column - 1), R (right, column + 1). Rows and columns count from 0 at the top left. \
A turn makes at most {max_moves} moves, one after the other; the first one into a wall or over the edge ends it.
"""

FULL = PromptStyle(
    tool=f"""\
You are the Tool in a team of two that walks to a goal. You propose the next moves; the Executor checks them and walks.

{_WORLD}
# Your part
Find a short way around the walls and propose its first moves. End with them in the form <moves>R, R, D</moves>.""",
    executor=f"""\
You are the Executor in a team of two that walks to a goal. The Tool proposes moves; you check them, and the moves you give are made.

{_WORLD}
# Proposal
{{team_context}}

# Your part
Follow the proposed moves cell by cell. If one is illegal or leads away from the goal, choose better ones. End with the moves to make in \
the form <moves>R, R, D</moves>.""",
    entry="[{role}]\n{text}",
)

CODE = replace(
    FULL,
    tool=f"""\
You are the Tool in a team of two that walks to a goal. You write a program that proposes moves; the Executor checks them and walks.

{_WORLD}
# Your part
Write a Python program that finds a short way around the walls from where you are to the goal and prints its moves in the form R, R, D, \
and nothing else. It is run once and reads the map from standard input, a row a line: @ is you, G the goal, # a wall, . free. It has the \
standard library, and a few seconds. The first {{max_moves}} moves that it prints are proposed. End with the program in a fence:

```python
...
```""",
    executor=FULL.executor.replace("{team_context}", "The Tool's program proposes: {proposal}"),
)

SHORT = PromptStyle(tool="Plan: {env_prompt}", executor="Check: {env_prompt}\n{team_context}", entry="{role}: {text}")

STYLES = {"full": FULL, "short": SHORT}

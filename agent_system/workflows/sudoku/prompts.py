"""Every prompt of the Sudoku workflow, by style. Literal braces are written twice."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        tool, executor: templates with `{env_prompt}`, `{team_context}` (the Tool's reply) or `{proposal}` (the plan that the
            environment has read from what its program printed), `{memory}` and `{step}`.
        entry: how a reply of this turn is quoted, with `{role}` (first word of the agent's name) and `{text}`.
        separator: between replies.
        nobody_spoke: stands for an empty discussion.
    """

    tool: str
    executor: str
    entry: str
    separator: str
    nobody_spoke: str


_WORLD = """\
# Sudoku
Every row, every column and every box holds each digit exactly once. A dot is an empty cell. The digits of the puzzle are clues and \
cannot be changed; other cells may be written again. Once something is written, the board as it is stands under "Now:".
{env_prompt}

# Earlier turns
{memory}
"""

FULL = PromptStyle(
    tool=f"""\
You are the Tool Agent in a team of two. You propose a plan; the Executor checks it and writes it on the board.

{_WORLD}
# Your part
This is turn {{step}}. Work out the empty cells step by step, those with one possible digit first. End with the plan: either cells as \
row, column, digit (counted from 1), such as <plan>1 2 3; 4 1 2</plan>, or the whole grid with one line per row between <plan> and \
</plan>.""",
    executor=f"""\
You are the Executor in a team of two. The Tool Agent proposes a plan; what you write is what counts.

{_WORLD}
# Proposed in this turn
{{team_context}}

# Your part
This is turn {{step}}. Check every cell of the plan against its row, column and box, and mend what is wrong. End with what you write: \
either cells as row, column, digit (counted from 1; digit 0 empties a cell), such as <action>1 2 3; 4 1 2</action>, or the whole grid \
with one line per row between <action> and </action>. One cell that is a clue or lies outside the board stops the action there.""",
    entry="[{role}]\n{text}",
    separator="\n\n",
    nobody_spoke="(nothing)",
)

CODE = replace(
    FULL,
    tool=f"""\
You are the Tool Agent in a team of two. You write a program that fills the board; the Executor checks what it prints and writes it on \
the board.

{_WORLD}
# Your part
This is turn {{step}}. Write a Python program that solves the puzzle and prints the cells that are to be written, a line each as row, \
column, digit (counted from 1), such as 1 2 3, or else the whole grid with one line per row, and nothing else. It is run once and reads \
from standard input the clues, a line per row with blanks between the digits and 0 for an empty cell, then an empty line, then the \
board as it is in the same form. It has the standard library, and a few seconds. End with the program in a fence:

```python
...
```""",
    executor=FULL.executor.replace("{team_context}", "The Tool's program printed:\n{proposal}"),
)

SHORT = PromptStyle(
    tool="Plan:\n{env_prompt}{team_context}",
    executor="Fill:\n{env_prompt}{team_context}",
    entry="\n{role}: {text}",
    separator="",
    nobody_spoke="",
)

STYLES = {"full": FULL, "short": SHORT}

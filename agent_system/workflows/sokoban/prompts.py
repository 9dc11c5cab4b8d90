"""Every prompt of the Sokoban workflow, by style."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        tool, executor: templates with `{env_prompt}`, `{max_moves}`, `{team_context}` (the Tool's reply) or `{proposal}` (the moves that
            the environment has read from what its program printed) and `{memory}`.
        entry: how a proposal is quoted, with `{text}` (the reply) and `{moves}` (the moves read from it, apart).
        nobody_spoke: stands for no proposal.
        no_moves: stands for moves that could not be read.
    """

    tool: str
    executor: str
    entry: str
    nobody_spoke: str
    no_moves: str


_RULES = """\
Sokoban: push every box onto a goal. A move goes one cell up, down, left or right (U D L R). Walking into a box pushes it one cell \
further if that cell is free; boxes cannot be pulled, and only one is pushed at a time. A box pushed into a corner is lost. A turn makes \
at most {max_moves} moves, one after the other; the first one that cannot be made ends it.
# wall, - floor, @ player, $ box, . goal, * box on a goal, + player on a goal"""

FULL = PromptStyle(
    tool=f"""\
You are the Tool agent in a team of two. You propose the next moves; the Executor checks and makes them.

{_RULES}

# Room
{{env_prompt}}

# Your part
Work out which cell the player must stand on to push each box towards a goal, and how to get there. End with your plan as a list of \
moves, such as <moves>U R R D</moves>.""",
    executor=f"""\
You are the Executor in a team of two. The Tool agent proposes moves; you check them, mend them where they are wrong, and act.

{_RULES}

# Room
{{env_prompt}}

# Proposal
{{team_context}}

# Your part
Follow the proposal move by move on the map. If it runs into a wall, pushes a blocked box or loses a box in a corner, write better \
moves. End with the moves that are to be made, such as <moves>U R R D</moves>.""",
    entry="{text}",
    nobody_spoke="(none)",
    no_moves="(none)",
)

CODE = replace(
    FULL,
    tool=f"""\
You are the Tool agent in a team of two. You write a program that proposes moves; the Executor checks and makes them.

{_RULES}

# Room
{{env_prompt}}

# Your part
Write a Python program that works out how to push each box onto a goal and prints the next moves, at most \
{{max_moves}}, in the form U R R D, and nothing else. It is run once and reads the room as it is from standard input, a row a line without \
blanks, in the signs above. It has the standard library, and a few seconds. End with the program in a fence:

```python
...
```""",
    executor=FULL.executor.replace("{team_context}", "The Tool's program proposes: {proposal}"),
)

SHORT = PromptStyle(
    tool="Plan:\n{env_prompt}",
    executor="Act:\n{env_prompt}\n{team_context}",
    entry="Plan: {moves}",
    nobody_spoke="Plan: ?",
    no_moves="?",
)

STYLES = {"full": FULL, "short": SHORT}

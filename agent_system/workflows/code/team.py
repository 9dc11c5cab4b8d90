"""A Coder writes a program and a Tester writes tests, at the same time or one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agent_system.agent import Entry, Message
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, python_block, raw_text
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.code.world.replies import read_pairs, write_pairs
from agent_system.workflows.single import SINGLE, SingleAgent
from agent_system.workflows.styled import StyledAgent

CODER = "Coder Agent"
TESTER = "Tester Agent"
ORDERS = ("simultaneous", "coder_first", "tester_first")
LONGEST_SHOWN = 300


@dataclass(frozen=True)
class CodePromptStyle:
    """Prompt templates for one kind of model. Literal braces are doubled.

    Attributes:
        coder, tester: templates with `{env_prompt}` (the task), `{interface}` (how a program is
            called), `{form}` (how a test is written), `{feedback}` (result of the last turn; empty
            in the first) and `{team_context}` (the other role's reply in this turn; may be empty).
        entry: template for quoting the other role's reply, with `{role}` (first word of the agent's
            name) and `{text}`.
        feedback: template with `{program}` and `{tests}`.
        mismatch: template for one failed test, with `{given}`, `{expected}` and `{found}`.
        all_passed: text for `{tests}` when there is no failed test.
        separator: text between mismatches.
    """

    coder: str
    tester: str
    entry: str
    feedback: str
    mismatch: str
    all_passed: str
    separator: str


FULL = CodePromptStyle(
    coder="""\
You are the Coder in a team of two. You write a Python program; the Tester writes tests for it. What counts is whether the program is right.

# Task
{env_prompt}

{interface}{feedback}{team_context}

# Your part
Think the task through, its limits and its special cases included. If tests of the Tester fail, find out first which is wrong, the program \
or the test: tests can be wrong. End with the whole program in a fence:

```python
...
```""",
    tester="""\
You are the Tester in a team of two. The Coder writes a Python program; you write tests that tell a right program from a wrong one.

# Task
{env_prompt}

{interface}{feedback}{team_context}

# Your part
Choose inputs that the task allows and that catch likely mistakes, and work out step by step what a right program answers. A test with a \
wrong answer does harm: leave it out if you are not sure. If the program failed tests of yours, find out first which is wrong. End with up \
to five tests, each in this form{form}:

<input>
...
</input>
<output>
...
</output>""",
    entry="\n\n# The {role} says\n{text}",
    feedback="\n\n# The last program\n```python\n{program}\n```\n\n# Tests of the Tester that it failed\n{tests}",
    mismatch="Input:\n{given}\nExpected by the Tester:\n{expected}\nThe program:\n{found}",
    all_passed="(none)",
    separator="\n\n",
)


SHORT = CodePromptStyle(
    coder="Code: {env_prompt}{feedback}{team_context}",
    tester="Test: {env_prompt}{feedback}{team_context}",
    entry="\n{role}: {text}",
    feedback="\nLast:\n{program}\n{tests}",
    mismatch="In {given} want {expected} got {found}",
    all_passed="No test.",
    separator="\n",
)


STYLES = {"full": FULL, "short": SHORT}
ALONE = """\
You write a Python program and tests for it. What counts is whether the program is right.

# Task
{env_prompt}

{interface}{feedback}

# Your part
Think the task through, its limits and its special cases included. If tests of yours fail, find out first which is wrong, the program or \
the test. Write the whole program in a fence:

```python
...
```

End with up to five tests with inputs that catch likely mistakes, each in this form{form}:

<input>
...
</input>
<output>
...
</output>"""
SINGLE_STYLES = STYLES | {
    "full": replace(
        FULL,
        coder=ALONE,
        feedback="\n\n# Your last program\n```python\n{program}\n```\n\n# Tests of yours that it failed\n{tests}",
        mismatch="Input:\n{given}\nYou expected:\n{expected}\nThe program:\n{found}",
    )
}


STDIN = "The program reads standard input and prints to standard output."
CALL = "The program defines `{function}`, which is called by the tests; it prints nothing."
METHOD = "The program defines the class `{cls}` with the method `{method}`, which is called by the tests; it prints nothing."
CALL_FORM = ", the input with one argument a line and the output with the value, all as JSON"


@dataclass(frozen=True)
class CodeOptions:
    """Options under `agent.orchestra.code`.

    Attributes:
        order: order of the calls in a turn: simultaneous (neither reads the other) | coder_first |
            tester_first (the second role reads the first one's reply).
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    order: str = "simultaneous"
    prompt_style: str = "full"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.code.order", self.order, ORDERS)
        check_choice("agent.orchestra.code.prompt_style", self.prompt_style, tuple(STYLES))


class CodeAgent(StyledAgent):
    """A role whose prompt shows the task, the result of the last turn, and the other role's reply
    in this turn.

    The result of the last turn is the program and the Tester's tests that it failed; no prompt
    shows the golden tests.
    """

    styles = STYLES
    options: ClassVar[type] = CodeOptions

    def team_context(self, entries: Sequence[Entry]) -> str:
        return "".join(
            self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries
        )

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """Return the messages of `BaseAgent`, with `{feedback}` built from `program` and
        `mismatches` of the last turn.
        """
        return super().messages(
            {"interface": "", "form": "", **variables, "feedback": self._feedback(variables)}
        )

    def _feedback(self, variables: Mapping[str, Any]) -> str:
        if not variables.get("program"):
            return ""
        mismatches = variables.get("mismatches", ())
        failed = (
            self.style.mismatch.format(**{name: shortened(text) for name, text in m.items()})
            for m in mismatches
        )
        tests = self.style.separator.join(failed) or self.style.all_passed
        return self.style.feedback.format(program=variables["program"], tests=tests)


@AgentRegistry.register(CODER, orchestra="code")
class CoderAgent(CodeAgent):
    """The role that writes the program; its action is the last Python block of its reply."""

    role = CODER
    template = "coder"
    projection = python_block


@AgentRegistry.register(TESTER, orchestra="code")
class TesterAgent(CodeAgent):
    """The role that writes tests; its action is the tests of its reply alone."""

    role = TESTER
    template = "tester"

    def project(self, text: str) -> Projection:
        projection = raw_text(text)
        pairs = read_pairs(projection.text)
        return replace(projection, action=write_pairs(pairs), valid=bool(pairs))


@AgentRegistry.register(SINGLE, orchestra="single", env="code")
class SingleCodeAgent(SingleAgent, CodeAgent):
    """One agent that writes the program and, if it likes, tests; its action is the whole reply,
    valid with a program.
    """

    styles = SINGLE_STYLES
    template = "coder"

    def project(self, text: str) -> Projection:
        return replace(raw_text(text), valid=python_block(text).valid)


@OrchestraRegistry.register("code")
class CodeOrchestra(BaseOrchestra):
    """One program and one set of tests per turn; the environment runs both and decides whether the
    episode ends.
    """

    agents = (CODER, TESTER)
    config_class = CodeOptions

    async def run(self, turn: Turn) -> str:
        if self.config.order == "simultaneous":
            program, _ = await asyncio.gather(turn.act(CODER), turn.act(TESTER))
        elif self.config.order == "coder_first":
            program = await turn.act(CODER)
            await turn.act(TESTER)
        else:
            await turn.act(TESTER)
            program = await turn.act(CODER)
        return program.action


def interface(function: str) -> str:
    """Return the sentence of the prompt that states how a program is called."""
    if not function:
        return STDIN
    cls, dot, method = function.partition(".")
    return METHOD.format(cls=cls, method=method) if dot else CALL.format(function=function)


def shortened(text: str) -> str:
    """Return `text` for a prompt: without surrounding white space, with the middle of a long text
    left out.
    """
    text = text.strip()
    half = LONGEST_SHOWN // 2
    return text if len(text) <= LONGEST_SHOWN else f"{text[:half]} ... {text[-half:]}"

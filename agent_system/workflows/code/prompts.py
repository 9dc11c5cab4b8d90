"""Every prompt of the code workflow, by style. Literal braces are written twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        coder, tester: templates with `{env_prompt}` (the task), `{interface}` (how a program is called), `{form}` (how a test is
            written), `{feedback}` (what became of the last turn; empty in the first) and `{team_context}` (what the other one has said in
            this turn; empty where it has not).
        entry: how the other one's reply is quoted, with `{role}` (first word of the agent's name) and `{text}`.
        feedback: with `{program}` and `{tests}`.
        mismatch: one test, with `{given}`, `{expected}` and `{found}`.
        all_passed: stands for `{tests}` where no test was failed, or there was none.
        separator: between mismatches.
    """

    coder: str
    tester: str
    entry: str
    feedback: str
    mismatch: str
    all_passed: str
    separator: str


FULL = PromptStyle(
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

SHORT = PromptStyle(
    coder="Code: {env_prompt}{feedback}{team_context}",
    tester="Test: {env_prompt}{feedback}{team_context}",
    entry="\n{role}: {text}",
    feedback="\nLast:\n{program}\n{tests}",
    mismatch="In {given} want {expected} got {found}",
    all_passed="No test.",
    separator="\n",
)

STYLES = {"full": FULL, "short": SHORT}

STDIN = "The program reads standard input and prints to standard output."
CALL = "The program defines `{function}`, which is called by the tests; it prints nothing."
METHOD = "The program defines the class `{cls}` with the method `{method}`, which is called by the tests; it prints nothing."
CALL_FORM = ", the input with one argument a line and the output with the value, all as JSON"


def interface(function: str) -> str:
    """How a program is called."""
    if not function:
        return STDIN
    cls, dot, method = function.partition(".")
    return METHOD.format(cls=cls, method=method) if dot else CALL.format(function=function)

"""Plans by code: a role writes a program, the environment runs it in the sandbox, and its output is
the role's plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent_system.errors import AgentSystemError
from agent_system.projection import Projection, python_block
from agent_system.sandbox import shared_sandbox

LONGEST_REASON = 160


class Program(str):
    """An action that is Python source: the environment runs it and takes its output as the action."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """Output of a program.

    Attributes:
        text: standard output; empty when it is not a plan.
        reason: why there is no plan, in one line of at most `LONGEST_REASON` characters.
    """

    text: str
    reason: str = ""


def read_program(text: str) -> Projection:
    """Return the last fenced `python` block as a `Program`; a reply without one is invalid and its
    action empty.
    """
    projection = python_block(text)
    return replace(projection, action=Program(projection.action) if projection.valid else "")


def check_writes_programs(section: str, tool: str, prompt_style: str, otherwise: str) -> None:
    """Raise AgentSystemError for `tool=code` with prompts that do not ask for a program; the
    message suggests `tool=<otherwise>`.
    """
    if tool == "code" and prompt_style != "full":
        raise AgentSystemError(
            f"{section}.tool=code needs prompt_style=full, the only wording that asks for a "
            f"program, found {prompt_style!r}; models too small for it write no programs: use "
            f"tool={otherwise}"
        )


async def run_program(
    program: Program, stdin: str, is_plan: Callable[[str], bool], plan: str
) -> ProgramOutput:
    """Run a program in the sandbox of this process. Its whole output must be one plan.

    Args:
        program: Python source.
        stdin: the state as the program reads it.
        is_plan: returns whether a text can be parsed as a plan; must not evaluate the text.
        plan: form of a plan in words, such as "list of moves".
    """
    result = await shared_sandbox().run(program, stdin)
    if not result.ok:
        return ProgramOutput("", f"the program {result.failure(LONGEST_REASON - len('the program '))}")
    return (
        ProgramOutput(result.stdout)
        if is_plan(result.stdout)
        else ProgramOutput("", f"the program printed no {plan}")
    )

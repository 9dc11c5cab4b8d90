"""Plans by code: a role writes a program, the environment runs it in the sandbox, and what it prints is the role's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent_system.errors import AgentSystemError
from agent_system.projection import Projection, code_block
from agent_system.sandbox import shared_sandbox

LONGEST_REASON = 160

_read_block = code_block("python", "python3", "py")


class Program(str):
    """An action that is Python source: the environment runs it and takes what it prints for the action."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Printed:
    """What came of a program.

    Attributes:
        text: what it printed, or empty when nothing can be made of that.
        why: then, the reason in one line of at most `LONGEST_REASON` characters.
    """

    text: str
    why: str = ""


def read_program(text: str) -> Projection:
    """Take the last fenced block that says `python` as a `Program`; a reply without one is invalid and its action empty."""
    found = _read_block(text)
    return replace(found, action=Program(found.action) if found.valid else "")


def check_writes_programs(section: str, tool: str, prompt_style: str, otherwise: str) -> None:
    """Raise AgentSystemError for `tool=code` with prompts that do not ask for a program; `otherwise` is the tool for these."""
    if tool == "code" and prompt_style != "full":
        raise AgentSystemError(
            f"{section}.tool=code needs prompt_style=full, the only wording that asks for a program, found {prompt_style!r}; "
            f"models too small for it write no programs: use tool={otherwise}"
        )


async def run_program(program: Program, stdin: str, is_plan: Callable[[str], bool], plan: str) -> Printed:
    """Run a program in the sandbox of this process. All that it prints must be one plan.

    Args:
        program: what the role has written.
        stdin: the world as the program reads it.
        is_plan: says whether a text can be read as a plan; it must not evaluate it.
        plan: what that is in words, such as "list of moves".
    """
    result = await shared_sandbox().run(program, stdin)
    if not result.ok:
        return Printed("", f"the program {result.failure(LONGEST_REASON - len('the program '))}")
    return Printed(result.stdout) if is_plan(result.stdout) else Printed("", f"the program printed no {plan}")

"""A team that is a command: a process per episode, with the address and the key of the episode in its environment.

It reads the task as JSON from its standard input, and the last line of its standard output is its result as JSON: a text is the answer,
a number the team's reward, and an object the fields `team`, `local` and `info` of an `Outcome`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from agent_system.environment import Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.gateway.session import Session
from agent_system.record import plain

KEPT_BYTES = 1 << 20  # of the end of each output
SHOWN_CHARS = 500
FIELDS = ("task_id", "prompt", "data_source", "extra", "messages")


def load_command(command: Sequence[str], team: Any) -> Callable[..., Any]:
    """Return the program that is a command. Raise AgentSystemError if there is a function as well, or no such command."""
    if team is not None:
        raise AgentSystemError("agent.team and agent.team_command are both set; the team is one of them")
    if shutil.which(command[0]) is None:
        raise AgentSystemError(f"agent.team_command: no program {command[0]!r} is found; expected its path, or a name on PATH")
    return command_team(command)


def command_team(command: Sequence[str]) -> Callable[[Task, Session], Awaitable[Any]]:
    """Return the program that runs a command in each episode."""

    async def team(task: Task, session: Session) -> Any:
        """Run the command and return its result. Raises AgentSystemError when it fails or prints none."""
        own = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.key}
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **own}, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        given = json.dumps({name: plain(getattr(task, name)) for name in FIELDS}).encode()
        try:
            _, printed, errors = await asyncio.gather(_give(process.stdin, given), _end_of(process.stdout), _end_of(process.stderr))
            status = await process.wait()
        finally:  # its children are in its process group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if status != 0:
            said = errors.decode("utf-8", "replace").strip()[-SHOWN_CHARS:]
            raise AgentSystemError(f"the command {command[0]!r} ended with status {status}: {said or 'it printed no error'}")
        return _result(printed, command[0])

    return team


def _result(printed: bytes, name: str) -> Any:
    line = (printed.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    try:
        found = json.loads(line)
        return Outcome(**found) if isinstance(found, dict) else found
    except (ValueError, TypeError, RecursionError) as error:
        raise AgentSystemError(
            f"the last line that the command {name!r} printed is no result ({error}): expected JSON, an answer as text, a reward, or an "
            f"object with team, local and info, found {line[:SHOWN_CHARS]!r}"
        ) from error


async def _give(stream: asyncio.StreamWriter, content: bytes) -> None:
    with suppress(ConnectionError):  # it may not read its task
        stream.write(content)
        await stream.drain()
    stream.close()


async def _end_of(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept = (kept + chunk)[-KEPT_BYTES:]
    return kept

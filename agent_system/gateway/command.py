"""A team that is a command: a process per episode, with the address and the key of the episode in
its environment.

It reads the task as JSON from its standard input, and the last line of its standard output is its
result as
JSON: a text is the answer, a number the team's reward, and an object the fields `team`, `local` and
`info` of an `Outcome`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from typing import Any

from agent_system.environment import Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.gateway.program_error import CommandError
from agent_system.gateway.session import Session
from agent_system.record import plain

KEPT_BYTES = 1 << 20  # of the end of each output
SHOWN_CHARS = 500
# within which the outputs of a command that has ended are read to their end
REST_S = 1.0
# statuses of a shell and of `env` for a program that cannot be run, or is not there
NOT_RUN = (126, 127)
FIELDS = ("task_id", "prompt", "data_source", "extra", "messages")


def is_command(team: Any) -> bool:
    """Return whether a team is a command: its parts in a list, or a text that names no function."""
    if isinstance(team, str):
        return re.fullmatch(r"[\w.:]+", team) is None
    return isinstance(team, Sequence) and len(team) > 0


def load_command(command: str | Sequence[str]) -> Callable[..., Any]:
    """Return the program that is a command. Raise AgentSystemError if there is no such command."""
    try:
        command = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise AgentSystemError(
            f"agent.team={command}: {error}; expected a command line or a list of its parts"
        ) from error
    if shutil.which(command[0]) is None:
        raise AgentSystemError(
            f"agent.team: no program {command[0]!r} is found; expected its path, or a name on PATH"
        )
    return command_team(command)


def command_team(command: Sequence[str]) -> Callable[[Task, Session], Awaitable[Any]]:
    """Return the program that runs a command in each episode."""

    async def team(task: Task, session: Session) -> Any:
        """Run the command and return its result. Raises CommandError when it fails or prints none."""
        address = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.api_key}
        task_json = json.dumps({name: plain(getattr(task, name)) for name in FIELDS}).encode()
        transport, process = await asyncio.get_running_loop().subprocess_exec(
            _Process, *command, env={**os.environ, **address}, start_new_session=True
        )
        with closing(transport):
            try:
                stdin = transport.get_pipe_transport(0)
                assert isinstance(stdin, asyncio.WriteTransport)
                stdin.write(task_json)
                stdin.write_eof()
                await process.ended.wait()
            finally:  # its children are in its process group
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            # a child that left the group keeps the outputs open
            with suppress(TimeoutError):
                await asyncio.wait_for(process.closed.wait(), REST_S)
        status = transport.get_returncode()
        if status != 0:
            errors = process.outputs[2].decode("utf-8", "replace").strip()
            raise CommandError(
                f"the command {command[0]!r} ended with status {status}: "
                f"{errors[-SHOWN_CHARS:] or 'it printed no error'}",
                errors,
                killed=status is None or status < 0 or status in NOT_RUN,
            )
        return _result(process.outputs[1], command[0])

    return team


def _result(printed: bytes, name: str) -> Any:
    line = (printed.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    try:
        result = json.loads(line)
        if not isinstance(result, dict):
            return result
        local = result.get("local")
        if isinstance(local, dict):  # JSON has no numbers as names
            result["local"] = {
                int(name) if name.isdecimal() else name: reward for name, reward in local.items()
            }
        return Outcome(**result)
    except (ValueError, TypeError, RecursionError) as error:
        raise CommandError(
            f"the last line that the command {name!r} printed is no result ({error}): expected "
            "JSON, an answer as text, a reward, or an object with team, local and info, found "
            f"{line[:SHOWN_CHARS]!r}"
        ) from error


class _Process(asyncio.SubprocessProtocol):
    """Keeps the end of what a process prints.

    Attributes:
        outputs: the end of each output, by its descriptor.
        ended: the process has ended; a child may still hold its outputs.
        closed: the outputs have been read to their end as well.
    """

    def __init__(self) -> None:
        self.outputs = {1: b"", 2: b""}
        self.ended = asyncio.Event()
        self.closed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the end of an output."""
        self.outputs[fd] = (self.outputs[fd] + data)[-KEPT_BYTES:]

    def process_exited(self) -> None:
        """Note that the process has ended."""
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that all pipes are closed too."""
        self.closed.set()

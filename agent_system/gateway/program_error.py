"""Errors of a program: whether what the model said may be their cause, and how they are told.

A program raises where a reply is not what it expects, in whatever class its library has for that.
So the other causes are told apart: a request that the gateway has refused, a program that has no
reply yet, errors of this project and of the environment, and those of imports, connections and the
machine, also as the causes of others or as the text of a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_system.env_workers.messages import innermost_line
from agent_system.errors import AgentSystemError
from agent_system.gateway.episode_requests import EpisodeRequests
from agent_system.gateway.errors import TOO_LONG

SHOWN_CHARS = 2000
MOST_ERRORS = 64  # of a chain of causes that are looked at
_PACKAGES = ("agent_system", "verl")
_OUTSIDE = (OSError, ImportError, MemoryError, KeyboardInterrupt)
# Of classes of client libraries, which have no common base.
_NAMES = r"\w*(?:Connection|Connect|Transport|Timeout|TimedOut|Protocol|APIStatus|HTTPStatus|Network)\w*"
_CLASS = re.compile(rf"{_NAMES}|ClientError|HTTPException|RpcError")
# A line of a traceback, or of Node's description of an error.
_LINE = re.compile(
    r"^[\s|+\[]*(?:cause\]: "
    rf")?(?:[\w.]+\.)?(?:{_NAMES}(?:Error|Exception|Refused)|ImportError|ModuleNotFoundError|MemoryError"
    r"|NameError|FileNotFoundError|PermissionError)\b"
    r"|\bE(?:CONN[A-Z]+|NOTFOUND|TIMEDOUT|PIPE|AI_AGAIN|HOSTUNREACH|ADDRINUSE)\b"
    r"|MODULE_NOT_FOUND",
    re.MULTILINE,
)


class CommandError(AgentSystemError):
    """A team's command ended with an error status, or printed no result.

    Attributes:
        errors: what it printed as errors.
        killed: a signal ended it, or it could not be run.
    """

    def __init__(self, message: str, errors: str = "", killed: bool = False) -> None:
        super().__init__(message)
        self.errors = errors
        self.killed = killed


class WrongResultError(AgentSystemError):
    """What a program returned is no result of an episode."""


def caused_by_a_reply(error: BaseException, requests: EpisodeRequests) -> bool:
    """Return whether the error of a program may come from what the model said, and from nothing
    else that is known.
    """
    if requests.failed.done() or not requests.delivered_any:
        return False
    chain = list(_chain(error))
    if requests.environment_error in chain:
        return False
    if requests.unanswered is not None:
        # by what was said before
        return getattr(requests.unanswered, "code", None) == TOO_LONG
    return not any(map(_is_other, chain))


def described(error: BaseException) -> str:
    """Return an error with the innermost line of code."""
    line = innermost_line(error)
    return f"{type(error).__name__}: {error}{f' ({line})' if line else ''}"[:SHOWN_CHARS]


def _is_other(error: BaseException) -> bool:
    """Return whether an error, for itself, is not about a reply."""
    if isinstance(error, CommandError):
        return error.killed or _LINE.search(error.errors) is not None
    if isinstance(error, WrongResultError):
        return False
    kind = type(error)
    if isinstance(error, _OUTSIDE) or kind.__module__.partition(".")[0] in _PACKAGES:
        return True
    # a variable that only some replies set
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        return True
    bases = [base for base in kind.__mro__ if issubclass(base, BaseException)]
    by_name = any(_CLASS.fullmatch(base.__name__) for base in bases)
    # some libraries raise the text of another error
    return by_name or _LINE.match(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and those of a group."""
    waiting = [error]
    visited: set[int] = set()
    while waiting and len(visited) < MOST_ERRORS:
        current = waiting.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        cause = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        waiting += [cause] if cause is not None else []
        waiting += current.exceptions if isinstance(current, BaseExceptionGroup) else ()

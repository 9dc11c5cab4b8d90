"""Tools for any team: `python` in the sandbox, `search` in a retrieval index, and `calculator`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Coroutine
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.tools.agent import ToolAgent

LONGEST_EXPRESSION = 500
MOST_BITS = 4096  # of an integer

Number = int | float
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


async def python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: the program; it must print its result.
    """
    from agent_system.sandbox import shared_sandbox  # of this tool alone

    result = await shared_sandbox().run(code)
    if result.ok:
        return result.stdout or "(printed nothing)"
    return f"{result.stdout}\nthe program {result.failure(400)}".strip()


def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers with + - * / // % ** and parentheses, such as (2 + 3) * 4.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"the expression has {len(expression)} characters, more than {LONGEST_EXPRESSION}")
    return str(_value(ast.parse(expression.strip(), mode="eval").body))


def search_tool(
    *, corpus: str = "", url: str = "", topk: int = 3, timeout_s: float = 15.0
) -> Callable[[str], Coroutine[Any, Any, str]]:
    """Return the tool `search` of a corpus or a retrieval server, which all agents and episodes of
    a process share.

    Args:
        corpus: file of the corpus, for which a server is started with the first query.
        url: address of a running server with Search-R1's `/retrieve`, instead of `corpus`.
        topk: passages per query.
        timeout_s: time limit of a query, in seconds.
    """
    # aiohttp, which other tools do not need
    from agent_system.workflows.search.world.shared import (
        shared_retriever,
    )

    async def search(query: str) -> str:
        """Search for passages and return the best ones.

        Args:
            query: what to look for, in words.
        """
        passages = await shared_retriever(corpus, url, topk, timeout_s, 600.0, 2000).search(query[:2000])
        return "\n\n".join(f"{p.title}: {p.text}" for p in passages) or "(nothing found)"

    return search


def runs_programs(agent: type[BaseAgent]) -> bool:
    """Return whether an agent has the tool `python`, which needs the sandbox."""
    return issubclass(agent, ToolAgent) and python in agent.tools


def _value(node: ast.AST) -> Number:
    """Return the value of an expression tree. Raise ValueError for anything but limited arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _limited(value)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=inner):
            return -_value(inner) if isinstance(sign, ast.USub) else _value(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first = _value(left)
            second = _value(right)
            if (
                isinstance(op, ast.Pow)
                and isinstance(first, int)
                and abs(second) * first.bit_length() > MOST_BITS
            ):
                raise ValueError(f"the power has more than {MOST_BITS} bits")
            return _limited(_BINARY[type(op)](first, second))
    raise ValueError("only numbers, + - * / // % ** and parentheses can be computed")


def _limited(value: Any) -> Number:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"the result has more than {MOST_BITS} bits")
    return value

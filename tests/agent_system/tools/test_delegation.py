"""Tasks and limits of `delegate`, without an episode."""

from __future__ import annotations

import pytest

from agent_system import AgentSystemError
from agent_system.children import LONGEST_TASK, task_lines
from agent_system.tools import delegate


def test_task_lines_are_the_lines_that_are_not_blank() -> None:
    assert task_lines(" a \n\n\t\nb\r\nc") == ["a", "b", "c"]
    assert task_lines("") == task_lines(" \n ") == []
    (line,) = task_lines("x" * 1_000_000)
    assert len(line) == LONGEST_TASK


@pytest.mark.parametrize("limits", [{"most": 0}, {"most": 65}, {"depth": 0}, {"depth": 9}])
def test_limits_of_delegate_are_checked(limits: dict[str, int]) -> None:
    with pytest.raises(AgentSystemError, match="delegate: expected most from 1 to 64 and depth from 1 to 8"):
        delegate("Boss", **limits)

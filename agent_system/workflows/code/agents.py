"""The two roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent, Entry, Message
from agent_system.projection import Projection, code_block, raw_text
from agent_system.registry import AgentRegistry
from agent_system.workflows.code.options import CodeOptions
from agent_system.workflows.code.prompts import STYLES
from agent_system.workflows.code.replies import read_pairs, write_pairs

CODER = "Coder Agent"
TESTER = "Tester Agent"
LONGEST_SHOWN = 300


class CodeAgent(BaseAgent):
    """A role that reads the task, what became of the last turn, and what the other one has said in this turn.

    Of the last turn it reads the program and the Tester's tests that the program failed; the golden tests are in no prompt.
    """

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, CodeOptions) else CodeOptions())
        self.style = STYLES[self.config.prompt_style]

    def team_context(self, entries: Sequence[Entry]) -> str:
        return "".join(self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries)

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """As every agent's, with `{feedback}` made of `program` and `mismatches` where there is a last turn."""
        return super().messages({"interface": "", "form": "", **variables, "feedback": self._feedback(variables)})

    def _feedback(self, variables: Mapping[str, Any]) -> str:
        if not variables.get("program"):
            return ""
        mismatches = variables.get("mismatches", ())
        told = (self.style.mismatch.format(**{name: shown(text) for name, text in m.items()}) for m in mismatches)
        tests = self.style.separator.join(told) or self.style.all_passed
        return self.style.feedback.format(program=variables["program"], tests=tests)


@AgentRegistry.register(CODER, orchestra="code")
class CoderAgent(CodeAgent):
    """Writes the program: its action is the last Python block of its reply."""

    projection = code_block("python", "python3", "py")

    def __init__(self, agent_id: str = CODER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.coder


@AgentRegistry.register(TESTER, orchestra="code")
class TesterAgent(CodeAgent):
    """Writes tests: its action is the tests of its reply and nothing else of it."""

    def __init__(self, agent_id: str = TESTER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.tester

    def project(self, text: str) -> Projection:
        found = raw_text(text)
        pairs = read_pairs(found.text)
        return replace(found, action=write_pairs(pairs), valid=bool(pairs))


def shown(text: str) -> str:
    """A text as it stands in a prompt: without white space around it, the middle of a long one left out."""
    text = text.strip()
    half = LONGEST_SHOWN // 2
    return text if len(text) <= LONGEST_SHOWN else f"{text[:half]} ... {text[-half:]}"

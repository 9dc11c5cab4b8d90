"""A Writer that may add and an Editor whose answer is a call of an output tool, the default of this
library.
"""

import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel


class Verdict(BaseModel):
    ok: bool
    note: str


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


task = json.load(sys.stdin)
writer = Agent(OpenAIChatModel("Solver Agent"), tools=[add], instructions="You write.")
editor = Agent(OpenAIChatModel("Verifier Agent"), output_type=Verdict, instructions="You edit.")
draft = writer.run_sync(task["prompt"]).output
verdict = editor.run_sync(f"Judge: {draft}").output
print(json.dumps(f"{verdict.ok} {verdict.note}"))

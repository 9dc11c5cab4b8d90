"""A Writer that may add and an Editor with a response format, as `create_agent` makes them."""

import json
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Verdict(BaseModel):
    """A verdict."""

    ok: bool
    note: str


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def user(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


task = json.load(sys.stdin)
writer = create_agent(ChatOpenAI(model="Solver Agent"), tools=[add], system_prompt="You write.")
editor = create_agent(
    ChatOpenAI(model="Verifier Agent"), tools=[], response_format=Verdict, system_prompt="You edit."
)
draft = writer.invoke(user(task["prompt"]))["messages"][-1].content
verdict = editor.invoke(user(f"Judge: {draft}"), {"recursion_limit": 6})["structured_response"]
print(json.dumps(f"{verdict.ok} {verdict.note}"))

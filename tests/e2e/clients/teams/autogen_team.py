"""A Writer that may add and an Editor whose answers have a type, in a round of AutoGen."""

import asyncio
import json
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import StructuredMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Verdict(BaseModel):
    ok: bool
    note: str


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def model(name: str) -> OpenAIChatCompletionClient:
    able = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
    return OpenAIChatCompletionClient(model=name, model_info=ModelInfo(family=ModelFamily.UNKNOWN, **able))


async def main(prompt: str) -> str:
    writer = AssistantAgent(
        "writer", model("Solver Agent"), tools=[add], max_tool_iterations=2, system_message="You write."
    )
    editor = AssistantAgent(
        "editor", model("Verifier Agent"), output_content_type=Verdict, system_message="You edit."
    )
    typed = [StructuredMessage[Verdict]]
    team = RoundRobinGroupChat([writer, editor], max_turns=2, custom_message_types=typed)
    verdict = (await team.run(task=prompt)).messages[-1].content
    return f"{verdict.ok} {verdict.note}"


print(json.dumps(asyncio.run(main(json.load(sys.stdin)["prompt"]))))

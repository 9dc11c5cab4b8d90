"""Calls of the library `pydantic-ai` to a served team, at OPENAI_BASE_URL."""

import asyncio
import os
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
SETTINGS: Any = {"temperature": 1.0, "seed": 1, "max_tokens": 3000}


class Sum(BaseModel):
    """A sum."""

    value: int


async def main() -> None:
    """Run agents: text, streamed text, and forms."""
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        agent = Agent(
            kind("Solver Agent", provider=PROVIDER),
            system_prompt="You add.",
            retries=0,
            model_settings=SETTINGS,
        )
        result = await agent.run("3 + 4?")
        assert isinstance(result.output, str) and result.usage.output_tokens > 0
        async with agent.run_stream("3 + 4?") as stream:
            assert await stream.get_output() is not None
    for form in (ToolOutput(Sum), NativeOutput(Sum)):
        formed: Any = Agent(
            OpenAIChatModel("Solver Agent", provider=PROVIDER),
            output_type=form,
            retries=0,
            model_settings=SETTINGS,
        )
        assert isinstance((await formed.run("3 + 4?")).output.value, int)


asyncio.run(main())

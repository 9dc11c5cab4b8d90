"""Tasksets of `verifiers.v1` for `play.py`: an agent of the run for each seat, chats in this process instead
of installed programs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from openai import APIError, AsyncOpenAI
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config

__all__ = ["Chat"]  # `verifiers` finds the harness in this module, by its name


class Chat(vf.Harness[HarnessConfig]):
    """Asks the model once for each message of the user; without tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
        **more: Any,
    ) -> ProgramResult:
        """Send the conversation; the reply reaches the trace through `endpoint`."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages += (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else map(message_to_wire, prompt or ())
        )
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            try:
                await client.chat.completions.create(model=ctx.model, messages=messages)
            except APIError as error:
                return ProgramResult(1, "", str(error))
        return ProgramResult(0, "", "")


def build(name: str, arguments: Mapping[str, Any], agents: Sequence[str] = ()) -> Any:
    """Return the environment of a taskset, with agents in its seats. Exits with a message for a seat that
    none of several agents has.

    Args:
        name: of the taskset.
        arguments: of its config.
        agents: of the run; a seat is played by the agent of its name, or by the only one.
    """
    seats = list(agent_config_fields(env_config_type(name)(taskset={"id": name})))
    by_name = {agent.lower(): agent for agent in agents}
    if missing := [seat for seat in seats if len(agents) > 1 and seat.lower() not in by_name]:
        sys.exit(
            f"no agent of the run is named as the seat {missing[0]!r} of {name}; its seats: "
            f"{', '.join(seats)}"
        )
    config: dict[str, Any] = {"taskset": {"id": name, **arguments}}
    for seat in seats:
        own = {"harness": {"id": "tasksets"}, "runtime": {"type": "subprocess"}}
        config[seat] = own | ({"model": by_name.get(seat.lower(), agents[0])} if agents else {})
    return load_environment(resolve_env_config(config))


def rows(name: str, arguments: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return rows of the tasks; a `count` of -1 is all of them. Exits with a message for all of a taskset
    without an end.
    """
    taskset = build(name, arguments).taskset
    if count < 0 and not taskset.bounded:
        sys.exit(f"{name} has no end; choose a number of rows with --count")
    made = []
    for number, task in enumerate(islice(iter(taskset), count if count >= 0 else None)):
        prompt = task.data.prompt
        text = prompt if isinstance(prompt, str) else task.data.name or f"{name} {number}"
        given = json.dumps({"idx": number})
        made.append(
            {"data_source": name, "prompt": text, "extra_info": {"index": number, "verifiers": given}}
        )
    return made


async def play(
    name: str, arguments: Mapping[str, Any], agents: Sequence[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Play a row against the gateway and return the outcome: the mean reward of the seats. Exits with a
    message when the episode fails.
    """
    from play import outcome

    env = build(name, arguments, agents)
    (task,) = env.taskset.include(idx=[str(given["idx"])])
    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_slot(
            env.slots(task)[0], ModelContext(client=client, model=agents[0], sampling=vf.SamplingConfig())
        )
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        sys.exit(
            f"the episode of {name} failed: {'; '.join(f'{error.type}: {error.message}' for error in errors)}"
        )
    metrics = {key: value for trace in episode.traces for key, value in trace.metrics.items()}
    rewards = [trace.reward for trace in episode.traces]
    return outcome(sum(rewards) / len(rewards), metrics)

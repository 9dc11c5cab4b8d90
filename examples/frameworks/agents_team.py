"""A Solver that hands over to a Verifier, in the OpenAI Agents SDK."""

import re

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

set_tracing_disabled(True)  # traces would be sent to OpenAI


async def team(task, session):
    client = session.openai()
    verifier = Agent(
        "Verifier",
        model=OpenAIChatCompletionsModel("Verifier Agent", client),
        instructions="Check the solution. End with <verify>approve</verify> or <verify>reject</verify>.",
    )
    solver = Agent(
        "Solver",
        model=OpenAIChatCompletionsModel("Solver Agent", client),
        instructions="Solve the problem, with the final answer alone in \\boxed{}. Then hand over to the Verifier.",
        handoffs=[verifier],
    )
    result = await Runner.run(solver, task.prompt, max_turns=3)
    if result.last_agent is solver:  # it has not learned to hand over yet
        await Runner.run(verifier, result.to_input_list())
    said = str(result.to_input_list())
    return (re.findall(r"boxed\{([^{}]*)\}", said) or [""])[-1]

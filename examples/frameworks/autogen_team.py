"""A Solver and a Verifier in AutoGen, who take turns (`team`), or whose model chooses who begins
(`selector_team`).
"""

import re

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat

SOLVE = "You solve the problem. End with the final answer alone in \\boxed{}."
CHECK = "You check the solution. End with <verify>approve</verify> or <verify>reject</verify>."
END = TextMentionTermination("<verify>approve</verify>", sources=["verifier"])


def agents(session):
    solver = AssistantAgent(
        "solver", session.autogen("Solver Agent"), description="Solves.", system_message=SOLVE
    )
    verifier = AssistantAgent(
        "verifier", session.autogen("Verifier Agent"), description="Checks solutions.", system_message=CHECK
    )
    return [solver, verifier]


async def answer(chat, task):
    result = await chat.run(task=task.prompt)
    solution = ["", *(message.content for message in result.messages if message.source == "solver")][-1]
    return (re.findall(r"\\boxed\{([^{}]*)\}", solution) or [""])[-1]


async def team(task, session):
    return await answer(
        RoundRobinGroupChat(agents(session), termination_condition=END | MaxMessageTermination(4)), task
    )


async def selector_team(task, session):
    def choose(messages):
        # None to begin with: the model chooses
        return {"solver": "verifier", "verifier": "solver"}.get(messages[-1].source)

    chat = SelectorGroupChat(
        agents(session),
        session.autogen("Verifier Agent"),
        termination_condition=END | MaxMessageTermination(4),
        selector_func=choose,
    )
    return await answer(chat, task)

"""A Solver and a Verifier with the `openai` client."""

import re


async def team(task, session):
    client, discussion = session.openai(), ""

    async def say(agent, text):
        messages = [{"role": "user", "content": text}]
        reply = (
            (await client.chat.completions.create(model=agent, messages=messages)).choices[0].message.content
        )
        return reply, f"\n{agent.split()[0]}: {reply}"

    for _ in range(2):
        solution, entry = await say("Solver Agent", f"Solve: {task.prompt}{discussion}")
        discussion += entry
        if _ == 1:
            break
        verdict, entry = await say("Verifier Agent", f"Check: {task.prompt}{discussion}")
        discussion += entry
        if "<verify>approve</verify>" in verdict:
            break
    return (re.findall(r"\\boxed\{([^{}]*)\}", solution) or [""])[-1]

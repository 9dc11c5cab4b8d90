"""An OpenAI-compatible server for teams that are programs: every request is a call of an agent, and its reply
a sample.

agent.orchestra_type=gateway agent.team=my_module:team agent.agent_ids='[Writer,Editor]'

async def team(task, session):
    client = AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    reply = await client.chat.completions.create(model="Writer", messages=[{"role": "user", "content": task.prompt}])
    return reply.choices[0].message.content

Outside of training, `ServedSession` is the session of the same program against a served team.
"""

from agent_system.gateway.access import ServedSession

__all__ = ["ServedSession"]

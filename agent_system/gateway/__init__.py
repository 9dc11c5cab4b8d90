"""An OpenAI-compatible server for teams that are programs: every request is a call of an agent, and
its reply a sample.

agent.orchestra_type=gateway agent.team=my_module:team agent.agent_ids='[Writer,Editor]'

async def team(task, session):
    client = AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    messages = [{"role": "user", "content": task.prompt}]
    reply = await client.chat.completions.create(model="Writer", messages=messages)
    return reply.choices[0].message.content

Outside of training, `ServedSession` is the session of the same program against a served team.

From the program of an episode over the body of a request to a `Sample` with its reward:

    team.py                 in a run, GatewayOrchestra.play_episode opens the EpisodeRequests of an episode under a
        |                   key and runs the program
        v
    POST /v1/chat/completions, /v1/completions, /v1/responses
        |
        v
    server.py               the API key says which episode: its EpisodeRequests, or ServedTeam in a server
    routes.py               the path says how the body is read and the answer written
        |  bytes
        v
    chat_request.py         JSON -> ChatRequest; request_fields.py has what each field does, and errors.py
        |                   what a client is told of a wrong one
        |                   responses.py translates bodies of /v1/responses to those of a chat before
        v
    episode_requests.py     a request that is sent again gets the answer of the first; others begin a
        |                   PendingRequest (responder.py)
        v
    conversations.py        AgentConversations: one for each agent of an episode
        |-- messages.py             messages of the chat -> NormalizedMessage
        |-- structured_output.py    response_format, tool_choice -> the grammar of the engine
        |-- prompt_continuation.py  finds the AnsweredPrefix that the messages continue, and puts its sampled
        |                           tokens before theirs -> BuiltPrompt
        |       template.py         shows messages in the chat template of the agent's policy
        |  BuiltPrompt, SamplingParams
        v
    ../rollout/program_call.py
        |                   ProgramCalls.reply_to: a Call for each reply, one request to the engine, each Call
        |                   with its Reply a Sample of the Episode
        |  (Call, Reply)
        v
    conversations.py        replies -> Completion (completion.py), and an AnsweredPrefix for later requests
        |
        v
    routes.py               Completion -> JSON or server-sent events; while the client is there to get them the
        |                   replies count as delivered, and only delivered replies are trained
        v
    ../rollout/episode.py   when the program has returned, Episode.record: rewards of the Ledger -> each Sample
        |                   (player.py calls it, and then the reward functions)
        v
    ../rollout/collector.py Collector, when the episodes of a collection have ended:
                            reward/assign.py -> Sample.rewards, rollout/batch.py -> the batch
"""

from agent_system.gateway.access import ServedSession

__all__ = ["ServedSession"]

"""The agents of one episode. An agent with state is replaced by a copy of itself after every call,
and never changed.

Every reply is projected by a copy of the agent as it was when the call began, so that the
candidates of a tree and calls that run at the same time do not see each other's changes. The copy
of the reply with which the episode continues becomes the agent. If calls of one agent ran at the
same time and have ended when its next one begins, the copy of the first in call order becomes the
agent, and the replies of the others are projected again, in call order. A call that is still open
then comes after them: it may never end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.rollout.call import AgentRuntime, Call, Reply


class EpisodeAgents:
    """The agents of an episode in their present states."""

    def __init__(self, runtimes: Mapping[str, AgentRuntime], task: Task, history_length: int) -> None:
        """Begin an episode. Raise as `AgentRuntime.begin` does."""
        self._runtimes = {name: runtime.begin(task, history_length) for name, runtime in runtimes.items()}
        self._finished: dict[str, list[tuple[Call, Reply]]] = defaultdict(list)

    def now(self, agent_id: str) -> AgentRuntime:
        """Return an agent after all its finished calls.

        Raises AgentSystemError for a `ToolAgent` with state that was called twice at the same time:
        its tools cannot run again.
        """
        for call, reply in sorted(
            self._finished.pop(agent_id, ()), key=lambda finished: (finished[0].turn, finished[0].number)
        ):
            runtime = self._runtimes[agent_id]
            agent = reply.agent
            if call.before is not runtime.agent:
                if agent.calls_tools:
                    raise AgentSystemError(
                        f"{agent_id!r} has tools and a state, so its calls must not run at the "
                        "same time: await one by one"
                    )
                agent = runtime.agent.fork()
                agent.project(reply.text)
            if agent.memory is not None:
                agent.memory.remember(call.observation.text, reply.projection.action, call.before.memory)
            self._runtimes[agent_id] = runtime.of(agent)
        return self._runtimes[agent_id]

    def finish(self, call: Call, reply: Reply) -> None:
        """Continue with `reply`, the last one of a call."""
        if reply.agent.stateful:
            self._finished[call.agent_id].append((call, reply))

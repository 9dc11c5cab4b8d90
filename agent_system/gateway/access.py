"""An address at which agents answer, and the session of a program outside of training."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from agent_system.errors import AgentSystemError
from agent_system.gateway.clients import Clients
from verl.utils.names import slug


class Access:
    """The agents of a team at an address, with clients that a program asks for.

    Attributes:
        base_url: for an OpenAI client that names the agent as the model.
        api_key: for it.
        agents: names of the agents.
        clients: clients that were made so far.
    """

    def __init__(self, base_url: str, key: str, agents: Sequence[str], structured: bool) -> None:
        """Set the address, which ends with /v1, and the key; with `structured` requests may ask for
        a reply of a certain form.
        """
        self.base_url = base_url.rstrip("/")
        self.api_key = key
        self.agents = tuple(agents)
        self.clients = Clients(self.base_url, self.api_key, structured)

    def url_of(self, agent_id: str) -> str:
        """Return the base URL at which one agent answers, whatever model a request names."""
        return f"{self.base_url.removesuffix('/v1')}/agents/{slug(agent_id)}/v1"

    def openai(self) -> Any:
        """Return an `openai.AsyncOpenAI`; a plain function calls
        `session.clients.openai_in_thread()`.
        """
        return self.clients.openai()

    def chat_model(self, agent_id: str) -> Any:
        """Return an agent as LangChain's chat model."""
        return self.clients.chat_model(agent_id)

    def autogen(self, agent_id: str) -> Any:
        """Return an agent as AutoGen's model client."""
        return self.clients.autogen(agent_id)


class ServedSession(Access):
    """The session of a program whose team `python -m agent_system.serve CHECKPOINT --openai`
    serves: `await team(task, session)`.

    There is no episode and no environment: what the program returns is the answer. `async with`
    closes its clients.
    """

    def __init__(self, base_url: str, key: str = "any", agents: Sequence[str] = ()) -> None:
        """Set the address that the server prints, such as http://127.0.0.1:8000/v1, and its key, if
        it has one.

        Args:
            base_url: the address.
            key: of `--api-key-env`.
            agents: names of the agents, for a program that reads `session.agents`.
        """
        super().__init__(base_url, key, agents, structured=True)

    @property
    def observation(self) -> NoReturn:
        """Raise AgentSystemError: there is no environment."""
        raise AgentSystemError(f"session.observation {_NO_WORLD}")

    async def step(self, action: Any) -> NoReturn:
        """Raise AgentSystemError: there is no environment."""
        raise AgentSystemError(f"session.step {_NO_WORLD}")

    def step_in_thread(self, action: Any) -> NoReturn:
        """Raise AgentSystemError: there is no environment."""
        raise AgentSystemError(f"session.step_in_thread {_NO_WORLD}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.clients.close()


_NO_WORLD = (
    "is for episodes: a served team has no environment; ask the whole team as a model, which plays "
    "an episode of its own"
)

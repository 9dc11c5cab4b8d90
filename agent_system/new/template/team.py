"""The team: a Writer drafts a text, and an Editor improves it."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system import AgentRegistry, BaseAgent, BaseOrchestra, OrchestraRegistry, Turn

WRITER = "Writer"
EDITOR = "Editor"


@AgentRegistry.register(WRITER, orchestra="my_flow")
class Writer(BaseAgent):
    """Its action is its whole reply; `projection = tag("answer")` would take the content of
    `<answer>...</answer>`.
    """

    prompt = "Task: {env_prompt}\nAnswer with the text and nothing else."


@AgentRegistry.register(EDITOR, orchestra="my_flow")
class Editor(BaseAgent):
    """Its prompt contains the earlier replies of the turn as `{team_context}`."""

    prompt = "Task: {env_prompt}\n\n{team_context}\n\nAnswer with a better text and nothing else."


@dataclass(frozen=True)
class MyFlowOptions:
    """Options under `agent.orchestra.my_flow`.

    Attributes:
        revisions: how often the Editor improves the text.
    """

    revisions: int = 1


@OrchestraRegistry.register("my_flow")
class MyFlow(BaseOrchestra):
    """A draft, then revisions; the last text is the team's action."""

    agents = (WRITER, EDITOR)
    config_class = MyFlowOptions

    async def run(self, turn: Turn) -> str:
        text = (await turn.act(WRITER)).action
        for _ in range(self.config.revisions):
            text = (await turn.act(EDITOR)).action
        return text

"""The environment: it asks for a text of a certain length; the reward is higher the nearer the text
is to that length.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_system import BaseEnv, EnvRegistry, Observation, Outcome, Task

from .team import WRITER


@dataclass(frozen=True)
class MyFlowEnvOptions:
    """Options under `env.params`.

    Attributes:
        draft_reward: local reward of the Writer for a draft of the right length; the team's reward
            is shared.
    """

    draft_reward: float = 0.5


@EnvRegistry.register("my_flow")
class MyFlowEnv(BaseEnv):
    """One turn per episode. `info`: `success` (the length is right), `length` (of the text)."""

    config_class = MyFlowEnvOptions
    blocking = False

    def reset(self, task: Task) -> Observation:
        """Start an episode; the task's ground truth is the length."""
        self.wanted = int(str(task.ground_truth))
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        """Apply one call; give the Writer a local reward for its draft."""
        return (
            Outcome(local=self.config.draft_reward * self.closeness(action))
            if agent_id == WRITER
            else Outcome()
        )

    def step(self, action: str) -> Outcome:
        """End the turn, and here the episode; reward the team for its text."""
        score = self.closeness(action)
        return Outcome(team=score, done=True, info={"success": score == 1.0, "length": len(action)})

    def closeness(self, text: str) -> float:
        """Return 1 for a text of the required length, less the relative deviation, at least 0."""
        return max(0.0, 1.0 - abs(len(text) - self.wanted) / self.wanted)

r"""One question, one reply, graded by the `data_source` of its row as in verl's `default_compute_score`.

    agent.orchestra_type=single agent.agent_ids='[Single Agent]' env.env_name=data_source

| data_source | answer | reward |
|---|---|---|
| `openai/gsm8k` | the last number after `####`, equal as text | 1 or 0 |
| `lighteval/MATH`, `DigitalLearningGmbH/MATH-lighteval`, `HuggingFaceH4/MATH-500`, `numina_*` | the last `\boxed{}` | 1 or 0 |
| `math_dapo`, `math`, `math_dapo_reasoning`, `aime*` | the last line `Answer: ...`, without one the last `\boxed{}` | 1 or -1 |

Answers of the last two rows are compared by the grader of the environment `math`. As in verl, `####` and `Answer:` are read in the
last 300 characters of a reply, and the box instead of `Answer:` in the last 100. verl compares normalised texts where the grader compares
values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_system.agent import BaseAgent, Message
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.projection import Projection, last_boxed, strip_thinking
from agent_system.registry import AgentRegistry, EnvRegistry
from agent_system.workflows.math.world.grade import grade, shared_pool
from agent_system.workflows.math.world.grader_pool import Verdict
from agent_system.workflows.single import SINGLE

GSM8K = ("openai/gsm8k",)
BOXED = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500")
LINE = ("math_dapo", "math", "math_dapo_reasoning")
BOXED_PREFIX, LINE_PREFIX = "numina_", "aime"
TAIL_CHARS, BOX_TAIL_CHARS = 300, 100
_HASHES = re.compile(r"#### (-?[0-9.,]+)")  # exactly one space, as in verl
_ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)


@dataclass(frozen=True)
class DataSourceOptions:
    """Options under `env.params`.

    Attributes:
        graded: grade the reply; false where a reward function (`reward.custom_reward_function.path`) does.
    """

    graded: bool = True


@EnvRegistry.register("data_source")
class DataSourceEnv(BaseEnv):
    """Environment that gives the messages of the row, ends after one reply and grades it. `info`: `success`, of a graded reply."""

    config_class = DataSourceOptions
    blocking = False

    def check_source(self, data_source: str) -> None:
        """Raise AgentSystemError for rows that cannot be graded."""
        if self.config.graded and _reader(data_source) is None:
            known = ", ".join([*GSM8K, *BOXED, f"{BOXED_PREFIX}*", *LINE, f"{LINE_PREFIX}*"])
            raise AgentSystemError(
                f"env.env_name=data_source has no reward for data_source={data_source!r}; known: {known}; set "
                "reward.custom_reward_function.path to a file with compute_score (and env.params.graded=false) for others"
            )

    def reset(self, task: Task) -> Observation:
        """Start from the row's messages."""
        if task.judged:
            self.check_source(task.data_source)
        self._task = task
        return Observation(task.prompt, {"messages": [dict(message) for message in task.messages]})

    async def step(self, action: str) -> Outcome:
        """Grade the reply and end the episode."""
        read = _reader(self._task.data_source) if self.config.graded and self._task.judged else None
        if read is None:
            return Outcome(done=True)
        right = await _is_right(read(action), str(self._task.ground_truth), self._task.data_source)
        wrong = -1.0 if read is _line_answer else 0.0
        return Outcome(team=1.0 if right else wrong, done=True, info={"success": float(right)})

    @classmethod
    def question(cls, text: str) -> Task:
        """Return the task of an arbitrary question, without a ground truth."""
        return Task("question", text, judged=False)

    def fork(self) -> DataSourceEnv:
        """Return an independent copy."""
        copy = type(self)(self.config, seed=self.seed)
        copy._task = self._task
        return copy


def _whole_reply(text: str) -> Projection:
    return Projection(text, bool(text.strip()), text=strip_thinking(text))


@AgentRegistry.register(SINGLE, orchestra="single", env="data_source")
class DataSourceAgent(BaseAgent):
    """One agent that is given the row's messages unchanged; its action is the whole reply."""

    projection = _whole_reply

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """Return the row's messages; the question alone where there are none."""
        return [dict(message) for message in variables.get("messages") or ()] or super().messages(variables)


async def _is_right(answer: str, truth: str, data_source: str) -> bool:
    if data_source in GSM8K:
        return answer == truth
    return await grade(answer, last_boxed(truth) or truth.strip(), shared_pool()) is Verdict.EQUAL


def _hashes_answer(reply: str) -> str:
    found = _HASHES.findall(reply[-TAIL_CHARS:])
    return found[-1].replace(",", "") if found else ""


def _line_answer(reply: str) -> str:
    found = _ANSWER.findall(reply[-TAIL_CHARS:])
    return found[-1].strip() if found else last_boxed(reply[-BOX_TAIL_CHARS:])


def _reader(data_source: str) -> Callable[[str], str] | None:
    """Return the function that reads the answer of a reply; None for an unknown data source."""
    if data_source in GSM8K:
        return _hashes_answer
    if data_source in BOXED or data_source.startswith(BOXED_PREFIX):
        return last_boxed
    return _line_answer if data_source in LINE or data_source.startswith(LINE_PREFIX) else None

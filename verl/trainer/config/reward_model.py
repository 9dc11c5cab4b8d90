"""Keys under `reward.model`: a model that scores replies, beside the rewards of the environment and
of reward functions.
"""

import re
from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.api import ApiConfig
from verl.trainer.config.spec import ConfigError, key, section

# Name of its score among the named terms of rewards.
TERM = "model_score"
KINDS = ("sequence_classification", "judge", "api")
# Also the value of `rollout.name` by which a worker group gets the engine of a reward model.
CLASSIFIER = "sequence_classification"
HERE = "reward.model.kind=sequence_classification,judge"
ASKED = "reward.model.kind=judge,api"
ANY = "reward.model.kind=sequence_classification,judge,api"


def _pattern(value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from error
    return value


def _range(value: list[float]) -> list[float]:
    if len(value) != 2 or not value[0] < value[1]:
        raise ValueError("expected two numbers, the lowest score and the highest")
    return value


@dataclass
class RewardModelConfig:
    kind: Optional[str] = key(
        None,
        "what scores replies: sequence_classification (a Hugging Face reward model) | judge (a "
        "model of this run, not trained, asked for a score) | api (the same question to an "
        "OpenAI-compatible server) | null: nothing",
        choices=KINDS,
        always=True,
    )
    path: Optional[str] = key(
        None,
        "model folder or hub id of the reward model, or of a judge with an engine of its own",
        effect=HERE,
    )
    agent: Optional[str] = key(
        None,
        "judge: the frozen agent whose model judges (agent.frozen), instead of path",
        effect="reward.model.kind=judge",
    )
    trust_remote_code: bool = key(
        False, "run Python code of the model folder when loading the model", effect="reward.model.path"
    )
    api: ApiConfig = section(ApiConfig, effect="reward.model.kind=api", same_as="agent.api.<agent>")
    agents: Optional[str] = key(
        ".*",
        "pattern of the names or slugs of the agents of whose calls each reply is scored, given its "
        "prompt: a local reward; null: the episode's answer is, given the task: a team reward",
        check=_pattern,
        effect=ANY,
    )
    combine: str = key(
        "add",
        "add (to the other rewards) | replace (the environment's reward in the same place: local "
        "of a call, team of an episode)",
        choices=("add", "replace"),
        effect=(ANY, "reward.model.weight!=0.0"),
    )
    weight: float = key(
        1.0,
        "the reward is weight * score; with 0 scores are only reported, and available to reward functions",
        effect=ANY,
    )
    max_length: int = key(
        4096,
        "maximum length of the input in tokens: sequence_classification prompt and reply, judge the question",
        ge=1,
        effect=HERE,
    )
    truncate: bool = key(
        False,
        "cut a longer input: sequence_classification its beginning, judge the oldest part of the "
        "conversation; false: it costs the episode",
        effect=HERE,
    )
    template: Optional[str] = key(
        None,
        "file with the question to the judge, with {conversation}, {reply}, {task}, "
        "{ground_truth}, {mark}; see docs",
        effect=ASKED,
    )
    score_range: list[float] = key(
        [0.0, 10.0], "lowest and highest score of a verdict, scaled to [0, 1]", check=_range, effect=ASKED
    )
    response_length: int = key(512, "maximum number of tokens of a verdict", ge=1, effect=ASKED)
    temperature: float = key(0.0, "sampling temperature of the judge; 0: greedy", ge=0, effect=ASKED)
    retries: int = key(
        1,
        "further questions after a verdict without a score, sampled at temperature 1 if greedy before",
        ge=0,
        effect=ASKED,
    )
    unparsable_score: Optional[float] = key(
        None,
        "scaled score of a reply without a verdict after all retries; null: it costs the episode",
        ge=0,
        le=1,
        effect=ASKED,
    )

    @property
    def scope(self) -> str:
        """What is scored: each `call`, or the answer of an `episode`."""
        return "episode" if self.agents is None else "call"


def check_reward_model(model: RewardModelConfig) -> None:
    """Raise ConfigError unless `kind` has what it needs."""
    if model.kind == "sequence_classification" and not model.path:
        raise ConfigError(
            "reward.model.kind=sequence_classification needs reward.model.path, a Hugging Face reward model"
        )
    if model.kind == "judge" and bool(model.path) == bool(model.agent):
        settings = f"path={model.path} and agent={model.agent}"
        raise ConfigError(
            f"reward.model.kind=judge needs either reward.model.path or reward.model.agent, found {settings}"
        )
    if model.kind == "api" and not (model.api.base_url and model.api.model):
        raise ConfigError("reward.model.kind=api needs reward.model.api.base_url and reward.model.api.model")

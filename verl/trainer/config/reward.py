"""Keys under `reward`: how rewards of the environment become the reward of a sample."""

import re
from dataclasses import dataclass
from typing import Any, Optional

from verl.trainer.config.reward_model import TERM, RewardModelConfig
from verl.trainer.config.spec import LONGEST_S, ConfigError, key, section

TEAM_SCOPES = ("episode", "turn", "call")
SHAPINGS = ("default", "turn_weighted", "discount", "hop_weighted", "hop_discount", "binary", "normalized")
PROPAGATIONS = ("none", "uniform", "discounted", "threshold")
PROPAGATED = "reward.propagation.mode!=none"
THRESHOLD = "reward.propagation.mode=threshold"
FIXED = "reward.propagation.theta_quantile=null"


# Set `reward.reward_manager.name` to the manager that the function's signature asks for.
AUTO = "auto"
PATH = "reward.custom_reward_function.path"
MANAGED = f"{PATH} or reward.reward_manager.name!={AUTO}"
FUNCTIONS = f"{MANAGED} or reward.agent_functions"


def _patterns(value: dict[str, str]) -> dict[str, str]:
    for pattern, function in value.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        if not all(function.rpartition(":")[::2]):
            raise ValueError(
                f"expected file_or_module:function for the agents {pattern!r}, found {function!r}"
            )
    return value


def _interval(value: list[float]) -> list[float]:
    if len(value) != 2 or not value[0] < value[1]:
        raise ValueError("expected two numbers, the lowest local reward and the highest")
    return value


@dataclass
class PropagationConfig:
    mode: str = key(
        "none",
        "how the team reward is propagated back along the calls of an episode",
        choices=PROPAGATIONS,
        always=True,
    )
    gamma: float = key(
        0.9, "discount factor per call", ge=0, le=1, effect="reward.propagation.mode=discounted"
    )
    theta: float = key(
        0.5,
        "a call whose scaled local reward is below this threshold cuts the team reward of the "
        "calls before it",
        ge=0,
        le=1,
        effect=(THRESHOLD, FIXED),
    )
    theta_quantile: Optional[float] = key(
        None,
        "set theta to this quantile of the batch's scaled local rewards instead",
        ge=0,
        le=1,
        effect=THRESHOLD,
    )
    theta_step: float = key(
        0.0,
        "decrease theta by this much each time validation accuracy falls; 0 keeps it fixed",
        ge=0,
        le=1,
        effect=(THRESHOLD, FIXED, "data.val_files", "trainer.test_freq>0"),
    )
    local_range: list[float] = key(
        [0.0, 1.0],
        "lowest and highest local reward; local rewards are scaled from it to [0, 1]",
        check=_interval,
        effect=PROPAGATED,
    )
    min_pass_rate: float = key(
        0.8,
        "when a smaller share of links between calls passes theta, the step falls back to uniform, "
        "with a warning",
        ge=0,
        le=1,
        effect=THRESHOLD,
    )


@dataclass
class OverlongBufferConfig:
    len: Optional[int] = key(
        None,
        "tokens before the length limit over which a penalty for long replies grows; 0: a fifth of "
        "each agent's limit (DAPO: 4,096 of 20,480); null: no penalty",
        ge=0,
        always=True,
    )
    penalty_factor: float = key(1.0, "penalty at the length limit", ge=0)


@dataclass
class CustomRewardFunctionConfig:
    path: Optional[str] = key(
        None,
        "reward function of your own as file_or_module:function, such as rewards.py:team (without a "
        "name: compute_score), see docs/rewards.md",
    )
    reward_kwargs: dict[str, Any] = key({}, "additional keyword arguments of the function", effect=MANAGED)


@dataclass
class RewardManagerConfig:
    name: str = key(
        AUTO,
        "what scores a finished episode: episode (your function gets the episode) | naive (verl's "
        "arguments of compute_score, with the reply that gave the answer) | naive_action (the "
        "same, with the parsed answer alone) | one registered by a plug-in; auto: the environment, "
        "or with a function naive or episode by its parameters",
    )


@dataclass
class RewardConfig:
    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    reward_manager: RewardManagerConfig = section(RewardManagerConfig)
    agent_functions: dict[str, str] = key(
        {},
        "pattern of agent names or slugs -> file_or_module:function, which gives the local reward "
        "of each call of these agents",
        check=_patterns,
    )
    model: RewardModelConfig = section(RewardModelConfig, part="reward.model.kind")
    granularity: str = key(
        "reply",
        "what reward functions may reward in a reply: reply (the whole) | token (also single "
        "tokens or spans of characters)",
        choices=("reply", "token"),
        effect=FUNCTIONS,
    )
    timeout_s: float = key(
        60.0, "time limit of the reward functions of one episode", gt=0, le=LONGEST_S, effect=FUNCTIONS
    )
    alpha: float = key(1.0, "weight of the team reward: r = alpha * team + local", ge=0)
    team_scope: str = key(
        "episode",
        "team reward of a sample: episode (the sum) | turn (of its turn) | call (right after its own action)",
        choices=TEAM_SCOPES,
    )
    shaping: str = key(
        "default", "shaping of the team reward by the turns and calls of an episode", choices=SHAPINGS
    )
    shaping_by: Optional[float] = key(
        None,
        "number of the shaping: discount factor per turn or call of discount and hop_discount (null: "
        "0.9); threshold of binary, above which a team reward becomes 1, any other 0 (null: 0.5)",
        effect="reward.shaping=discount,hop_discount,binary",
    )
    propagation: PropagationConfig = section(PropagationConfig, part=PROPAGATED)
    overlong_buffer: OverlongBufferConfig = section(
        OverlongBufferConfig, effect="reward.overlong_buffer.len!=null"
    )


def has_functions(reward: RewardConfig) -> bool:
    """Return whether reward functions, or a reward manager, score the episodes beside the
    environment.
    """
    return (
        reward.custom_reward_function.path is not None
        or reward.reward_manager.name != AUTO
        or bool(reward.agent_functions)
    )


def known_terms(reward: RewardConfig) -> tuple[str, ...] | None:
    """Return the named terms that samples may have beside their fields; None if functions choose
    the names.
    """
    return None if has_functions(reward) else () if reward.model.kind is None else (TERM,)


def check_tree_rewards(reward: RewardConfig, returns: str) -> None:
    """Raise ConfigError unless candidates that are compared with each other are rewarded for their
    own action alone.

    Args:
        returns: `rollout.tree.returns`.
    """
    if returns == "step" and has_functions(reward):
        raise ConfigError(
            "rollout.sampling=tree compares the candidates of a call before the episode goes on, "
            "but reward functions (reward.custom_reward_function, reward.reward_manager, "
            "reward.agent_functions) score finished episodes; let the environment's act() or "
            "score(), or reward.model, reward the candidates, or set "
            "rollout.tree.returns=committed or rollout.sampling=parallel"
        )
    if returns == "step" and reward.model.kind is not None and reward.model.scope == "episode":
        raise ConfigError(
            "reward.model.agents=null scores the answer of an episode, which the candidates of a "
            "call in rollout.sampling=tree have not led to; set reward.model.agents, or "
            "rollout.tree.returns=committed"
        )
    scope = reward.team_scope
    mode = reward.propagation.mode
    if returns == "step" and (scope != "call" or mode != "none"):
        raise ConfigError(
            "rollout.sampling=tree rewards a candidate for its own action, but "
            f"reward.team_scope={scope} and reward.propagation.mode={mode} add later rewards, to "
            "which only the committed candidate of a call has led; set reward.team_scope=call and "
            "reward.propagation.mode=none, or rollout.tree.returns=committed"
        )

"""Keys under `algorithm`: advantage estimator, groups, KL in the reward, and off-policy correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from verl.trainer.config.names import (
    ESTIMATOR_NAMES,
    FILTER_METRICS,
    GAE_LEVELS,
    GIGPO_MODES,
    KL_ESTIMATORS,
    RAE_ORDERS,
)
from verl.trainer.config.rollout_correction import RolloutCorrectionConfig
from verl.trainer.config.spec import key, section, texts

# Columns that identify a sample.
SAMPLE_FIELDS = (
    "uid", "traj_uid", "task_id", "agent_id", "policy_id", "wg_id", "turn", "call", "depth", "candidate",
    "data_source",
    "design",
)  # fmt: skip
# Those that separate tasks, and those that without any of them mean a baseline over the whole
# batch.
TASK_FIELDS = ("uid", "traj_uid", "task_id")
BATCH_FIELDS = ("policy_id", "wg_id", "agent_id")
# Numeric columns of a sample, which GDPO may learn from; named terms of reward functions are
# others.
REWARD_FIELDS = (
    "team_reward", "local_reward", "step_reward", "mixed_reward", "candidate_reward", "invalid_penalty",
    "overlong_penalty", "reward",
    "valid", "turn", "call", "depth", "candidate", "committed", "version", "oldest_version", "mean_version",
    "response_clipped", "prompt_clipped",
    "masked",
)  # fmt: skip
BY_AGENT = ("uid", "agent_id")
READ = "an estimator that reads it"
IN_REWARD = "algorithm.kl_ctrl.kl_coef>0 (the KL of the loss is actor_rollout_ref.actor.kl_loss_coef)"
ADAPTIVE = "algorithm.kl_ctrl.target_kl"
FILTERED = "algorithm.filter_groups.metric"


def _within_a_task(fields: Sequence[str]) -> Sequence[str]:
    """Raise ValueError for groups that mix tasks but are not the whole batch; unknown names are
    reported by the check of choices.
    """
    are_sample_fields = set(fields) <= set(SAMPLE_FIELDS)
    if are_sample_fields and not set(fields) & set(TASK_FIELDS) and not set(fields) <= set(BATCH_FIELDS):
        raise ValueError(
            "compares replies to different tasks with each other: add one of "
            f"{', '.join(TASK_FIELDS)}, or use only {', '.join(BATCH_FIELDS)} (or []) for a "
            "baseline over the whole batch"
        )
    return fields


@dataclass
class KLCtrlConfig:
    kl_coef: float = key(
        0.0,
        "weight of the KL from the reference that is subtracted from the reward, at first if target_kl "
        "adapts it; 0: none is subtracted",
        ge=0,
        always=True,
    )
    target_kl: Optional[float] = key(
        None, "KL to which the coefficient is adapted; null: it stays as it is", gt=0
    )
    horizon: int = key(
        10000, "samples over which the coefficient is adapted: the more, the slower", gt=0, effect=ADAPTIVE
    )

    @property
    def type(self) -> str:
        """Kind of the controller, as verl names it."""
        return "fixed" if self.target_kl is None else "adaptive"


@dataclass
class GAEConfig:
    level: str = key(
        "token",
        "an action is a token, or a whole reply (turn: an agent's calls in one episode are its trajectory)",
        choices=GAE_LEVELS,
    )


@dataclass
class GiGPOConfig:
    step_advantage_w: float = key(1.0, "weight of the step advantage beside the episode advantage")
    mode: str = key(
        "mean_norm",
        "subtract the group's mean, or also divide by its standard deviation",
        choices=GIGPO_MODES,
    )
    enable_similarity: bool = key(False, "group anchor observations by similarity instead of equality")
    similarity_thresh: float = key(
        0.95,
        "minimum similarity of anchor observations that count as the same state",
        gt=0,
        le=1,
        effect="{}.enable_similarity=true",
    )


@dataclass
class RAEConfig:
    decay: float = key(
        0.95,
        "decay of the moving average of a role's reward per data_source, updated once per trajectory",
        ge=0,
        lt=1,
    )
    order: str = key(
        "subtract_first",
        "subtract_first (the baseline excludes rewards of the current batch) | update_first (as in "
        "the paper's algorithm)",
        choices=RAE_ORDERS,
    )


@dataclass
class MGRPOConfig:
    main_agent: Optional[str] = key(None, "the main agent; all others are sub-agents")
    sub_calls: int = key(
        4,
        "calls per sub-agent and episode: more are subsampled, fewer get a larger weight",
        ge=1,
    )


@dataclass
class FilterGroupsConfig:
    metric: Optional[str] = key(
        None,
        "drop groups in which this reward is equal, and sample new tasks until the batch is full "
        "(DAPO): seq_reward (the sample's reward) | mixed_reward (before shaping and penalties) | "
        "team_reward | local_reward; null: none are dropped",
        choices=tuple(FILTER_METRICS),
        always=True,
    )
    max_num_gen_batches: int = key(10, "maximum number of collections per step; 0: no limit", ge=0)

    @property
    def enable(self) -> bool:
        """Whether groups are dropped."""
        return self.metric is not None


@dataclass
class AlgorithmConfig:
    preset: Optional[str] = key(
        None, "dr_mas | at_grpo | dr_grpo | dapo: sets the keys of that method; keys given explicitly win"
    )
    adv_estimator: str = key(
        "grpo",
        "estimator of docs/algorithms.md, or one registered with register_adv_est",
        choices=ESTIMATOR_NAMES,
    )
    per_agent: dict[str, Any] = key(
        {},
        "keys of this section for one agent: algorithm.per_agent.<agent>.adv_estimator=rloo",
        type=dict[str, dict[str, Any]],
    )
    gamma: float = key(1.0, "discount factor", ge=0, le=1, effect=READ)
    lam: float = key(1.0, "GAE's lambda", ge=0, le=1, effect=READ)
    norm_adv_by_std_in_grpo: bool = key(
        True, "divide by the group's standard deviation (off: Dr. GRPO)", effect=READ
    )
    gdpo_reward_keys: Optional[list[str]] = key(
        None,
        "rewards that GDPO normalizes separately: sample fields, such as [team_reward, "
        "local_reward], or named terms that reward functions return",
        check=texts,
        effect=READ,
    )
    gdpo_reward_weights: Optional[list[float]] = key(
        None, "weights of gdpo_reward_keys; null: 1 each", effect=READ
    )
    group_by: list[str] = key(
        [*BY_AGENT],
        "sample fields that define a group: samples with equal values are compared. [uid,agent_id] "
        "compares the samples of a task and agent (Dr. MAS), [uid] all of a task (GRPO)",
        choices=SAMPLE_FIELDS,
        check=_within_a_task,
        effect=READ,
    )
    statistics_over: str = key(
        "auto",
        "group statistics over samples | trajectories (mean of their samples, one advantage each) "
        "| auto: trajectories for groups by uid alone and for rae",
        choices=("auto", "samples", "trajectories"),
    )
    call_weighting: str = key(
        "sample",
        "weight of a call: sample (1) | trajectory (1/m for an agent called m times in the "
        "episode, in statistics and in the loss)",
        choices=("sample", "trajectory"),
    )
    singleton: str = key(
        "zero",
        "advantage in a group of one sample: zero | raw (its reward)",
        choices=("zero", "raw"),
        effect=READ,
    )
    kl_penalty: str = key("kl", "estimator of the KL in the reward", choices=KL_ESTIMATORS, effect=IN_REWARD)
    kl_ctrl: KLCtrlConfig = section(KLCtrlConfig, effect=IN_REWARD)
    gae: GAEConfig = section(GAEConfig, effect=READ)
    gigpo: GiGPOConfig = section(GiGPOConfig, effect=READ)
    rae: RAEConfig = section(RAEConfig, effect=READ)
    m_grpo: MGRPOConfig = section(MGRPOConfig, effect=READ)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig, effect=FILTERED)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)

    @property
    def use_kl_in_reward(self) -> bool:
        """Whether the KL from the reference is subtracted from the reward."""
        return self.kl_ctrl.kl_coef > 0


# What estimators take: callers of verl's API pass mappings.
EstimatorConfig = Union[AlgorithmConfig, Mapping[str, Any], None]

"""Keys under `algorithm`: who is compared with whom, by which estimator, and what corrects for a sampler that is not the trainer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from verl.trainer.config.names import FILTER_METRICS, GAE_LEVELS, GIGPO_MODES, KL_ESTIMATORS, RAE_ORDERS
from verl.trainer.config.rollout_correction import RolloutCorrectionConfig
from verl.trainer.config.spec import key, section
from verl.trainer.ppo.registry import ESTIMATORS

# Columns of a sample that name it.
SAMPLE_FIELDS = ("uid", "traj_uid", "task_id", "agent_id", "policy_id", "wg_id", "turn", "call", "candidate", "data_source")
# Those that tell tasks apart, and those that alone stand for a baseline over the whole batch.
TASK_FIELDS = ("uid", "traj_uid", "task_id")
BATCH_FIELDS = ("policy_id", "wg_id", "agent_id")
# Columns of a sample that are numbers.
REWARD_FIELDS = (
    "team_reward", "local_reward", "step_reward", "mixed_reward", "invalid_penalty", "overlong_penalty", "reward", "valid", "turn", "call",
    "candidate", "committed", "version", "response_clipped", "prompt_clipped",
)  # fmt: skip
READ = "an estimator that reads it"
IN_REWARD = "algorithm.use_kl_in_reward=true (the KL of the loss is actor_rollout_ref.actor.use_kl_loss)"
ADAPTIVE = "algorithm.kl_ctrl.type=adaptive"
FILTERED = "algorithm.filter_groups.enable=true"


def _within_a_task(fields: Sequence[str] | None) -> Sequence[str] | None:
    """Refuse a part of the batch that mixes tasks, which no method compares; names that do not exist are told as such."""
    if fields is None:
        return None
    known = set(fields) <= set(SAMPLE_FIELDS)
    if known and not set(fields) & set(TASK_FIELDS) and not set(fields) <= set(BATCH_FIELDS):
        raise ValueError(
            f"compares replies to different tasks with each other: add one of {', '.join(TASK_FIELDS)}, or use only "
            f"{', '.join(BATCH_FIELDS)} (or []) for a baseline over the whole batch"
        )
    return fields


@dataclass
class KLCtrlConfig:
    type: str = key("fixed", "whether the coefficient stays as it is", choices=("fixed", "adaptive"), effect=IN_REWARD)
    kl_coef: float = key(0.001, "KL coefficient (the initial one, when adaptive)", ge=0, effect=IN_REWARD)
    horizon: int = key(10000, "adaptive controller: horizon in samples", gt=0, effect=(IN_REWARD, ADAPTIVE))
    target_kl: float = key(0.1, "adaptive controller: KL aimed at", gt=0, effect=(IN_REWARD, ADAPTIVE))


@dataclass
class GAEConfig:
    level: str = key(
        "token",
        "the action is a token, or a whole reply (an agent's calls of one episode are its trajectory)",
        choices=GAE_LEVELS,
        effect=READ,
    )


@dataclass
class GiGPOConfig:
    step_advantage_w: float = key(1.0, "weight of the step advantage beside the episode advantage", effect=READ)
    mode: str = key("mean_norm", "subtract the group's mean, or also divide by its standard deviation", choices=GIGPO_MODES, effect=READ)
    enable_similarity: bool = key(False, "group anchor observations by similarity instead of equality", effect=READ)
    similarity_thresh: float = key(
        0.95,
        "similarity from which two anchor observations are the same state",
        gt=0,
        le=1,
        effect=(READ, "algorithm.gigpo.enable_similarity=true"),
    )


@dataclass
class RAEConfig:
    decay: float = key(
        0.95, "decay of the moving average of a role's reward in a kind of task (data_source), once a trajectory", ge=0, lt=1, effect=READ
    )
    order: str = key(
        "subtract_first",
        "subtract_first (a baseline holds no reward of its own batch) | update_first (as in the paper's algorithm)",
        choices=RAE_ORDERS,
        effect=READ,
    )


@dataclass
class MGRPOConfig:
    main_agent: Optional[str] = key(None, "the main agent; all others are sub-agents", effect=READ)
    sub_calls: int = key(4, "calls of a sub-agent that count in one episode; more are sampled down, fewer weigh more", ge=1, effect=READ)


@dataclass
class FilterGroupsConfig:
    enable: bool = key(False, "drop groups without a signal and draw new tasks until the batch is full (DAPO)")
    metric: str = key(
        "seq_reward",
        "what must differ inside a group: seq_reward (the sample's reward) | mixed_reward (before shaping and penalties) | team_reward | "
        "local_reward",
        choices=tuple(FILTER_METRICS),
        effect=FILTERED,
    )
    max_num_gen_batches: int = key(10, "most collections of one step; 0 has no limit", ge=0, effect=FILTERED)


@dataclass
class AlgorithmConfig:
    preset: Optional[str] = key(None, "dr_mas | at_grpo | dr_grpo | dapo: sets the keys the method stands for; keys given beside it win")
    adv_estimator: str = key("grpo", "a name of docs/algorithms.md, or one given to register_adv_est", choices=ESTIMATORS.names)
    per_agent: dict[str, Any] = key(
        {}, "keys of this section for one agent: algorithm.per_agent.<agent>.adv_estimator=rloo", type=dict[str, dict[str, Any]]
    )
    gamma: float = key(1.0, "discount", ge=0, le=1, effect=READ)
    lam: float = key(1.0, "GAE's lambda", ge=0, le=1, effect=READ)
    norm_adv_by_std_in_grpo: bool = key(True, "divide by the group's standard deviation (off: Dr. GRPO)", effect=READ)
    gdpo_reward_keys: Optional[list[str]] = key(
        None, "sample fields that are rewards, such as [team_reward, local_reward]", choices=REWARD_FIELDS, effect=READ
    )
    gdpo_reward_weights: Optional[list[float]] = key(None, "weight of each of gdpo_reward_keys; null weighs each 1", effect=READ)
    group_by_agent_id: bool = key(
        True, "Dr. MAS: an agent's samples are compared with that agent's samples only", effect=("algorithm.group_by=null", READ)
    )
    group_by: Optional[list[str]] = key(
        None,
        "sample fields whose tuple is the group; overrides group_by_agent_id",
        choices=SAMPLE_FIELDS,
        check=_within_a_task,
        effect=READ,
    )
    statistics_over: str = key(
        "auto",
        "samples | trajectories (averaged first, one advantage each) | auto: trajectories when grouped by uid alone, and for rae",
        choices=("auto", "samples", "trajectories"),
    )
    call_weighting: str = key(
        "sample",
        "sample | trajectory: an agent called m times in an episode counts 1/m a call, in statistics and in the loss",
        choices=("sample", "trajectory"),
    )
    singleton: str = key("zero", "advantage of a group of one: zero | raw", choices=("zero", "raw"), effect=READ)
    use_kl_in_reward: bool = key(False, "subtract the KL to the reference from the reward")
    kl_penalty: str = key("kl", "estimator of the KL in the reward", choices=KL_ESTIMATORS, effect=IN_REWARD)
    kl_ctrl: KLCtrlConfig = section(KLCtrlConfig)
    gae: GAEConfig = section(GAEConfig)
    gigpo: GiGPOConfig = section(GiGPOConfig)
    rae: RAEConfig = section(RAEConfig)
    m_grpo: MGRPOConfig = section(MGRPOConfig)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)

"""Keys under `algorithm`: who is compared with whom, by which estimator, and what corrects for a sampler that is not the trainer."""

from dataclasses import dataclass
from typing import Any, Optional

from verl.trainer.config.rollout_correction import RolloutCorrectionConfig
from verl.trainer.config.spec import key, section


@dataclass
class KLCtrlConfig:
    type: str = key("fixed", "fixed | adaptive")
    kl_coef: float = key(0.001, "KL coefficient (the initial one, when adaptive)")
    horizon: int = key(10000, "adaptive controller: horizon in samples")
    target_kl: float = key(0.1, "adaptive controller: KL aimed at")


@dataclass
class GAEConfig:
    level: str = key("token", "token | turn: the action is a token, or a whole reply (an agent's calls of one episode are its trajectory)")


@dataclass
class GiGPOConfig:
    step_advantage_w: float = key(1.0, "weight of the step advantage beside the episode advantage")
    mode: str = key("mean_norm", "mean_norm | mean_std_norm: subtract the group's mean, or also divide by its standard deviation")
    enable_similarity: bool = key(False, "group anchor observations by similarity instead of equality")
    similarity_thresh: float = key(0.95, "similarity from which two anchor observations are the same state")


@dataclass
class RAEConfig:
    decay: float = key(0.95, "decay of the moving average of a role's reward in a kind of task (data_source), once a trajectory")
    order: str = key(
        "subtract_first", "subtract_first (a baseline holds no reward of its own batch) | update_first (as in the paper's algorithm)"
    )


@dataclass
class MGRPOConfig:
    main_agent: Optional[str] = key(None, "the main agent; all others are sub-agents")
    sub_calls: int = key(4, "calls of a sub-agent that count in one episode; more are sampled down, fewer weigh more")


@dataclass
class FilterGroupsConfig:
    enable: bool = key(False, "drop groups without a signal and draw new tasks until the batch is full (DAPO)")
    metric: str = key(
        "seq_reward",
        "what must differ inside a group: seq_reward (the sample's reward) | mixed_reward (before shaping and penalties) | team_reward | "
        "local_reward",
    )
    max_num_gen_batches: int = key(10, "most collections of one step; 0 has no limit")


@dataclass
class AlgorithmConfig:
    preset: Optional[str] = key(None, "dr_mas | at_grpo | dr_grpo | dapo: sets the keys the method stands for; keys given beside it win")
    adv_estimator: str = key("grpo", "a name of docs/algorithms.md, or one given to register_adv_est")
    per_agent: dict[str, Any] = key({}, "keys of this section for one agent: algorithm.per_agent.<agent>.adv_estimator=rloo")
    gamma: float = key(1.0, "discount")
    lam: float = key(1.0, "GAE's lambda")
    norm_adv_by_std_in_grpo: bool = key(True, "divide by the group's standard deviation (off: Dr. GRPO)")
    gdpo_reward_keys: Optional[list[str]] = key(None, "gdpo: sample fields that are its rewards, such as [team_reward, local_reward]")
    gdpo_reward_weights: Optional[list[float]] = key(None, "gdpo: weight of each reward; null weighs each 1")
    group_by_agent_id: bool = key(True, "Dr. MAS: an agent's samples are compared with that agent's samples only")
    group_by: Optional[list[str]] = key(None, "sample fields whose tuple is the group; overrides group_by_agent_id")
    statistics_over: str = key(
        "auto", "samples | trajectories (averaged first, one advantage each) | auto: trajectories when grouped by uid alone, and for rae"
    )
    call_weighting: str = key(
        "sample", "sample | trajectory: an agent called m times in an episode counts 1/m a call, in statistics and in the loss"
    )
    singleton: str = key("zero", "advantage of a group of one: zero | raw")
    use_kl_in_reward: bool = key(False, "subtract the KL to the reference from the reward")
    kl_penalty: str = key("kl", "estimator of the KL in the reward: kl | abs | mse | low_var_kl")
    kl_ctrl: KLCtrlConfig = section(KLCtrlConfig)
    gae: GAEConfig = section(GAEConfig)
    gigpo: GiGPOConfig = section(GiGPOConfig)
    rae: RAEConfig = section(RAEConfig)
    m_grpo: MGRPOConfig = section(MGRPOConfig)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)

"""Keys under `critic`: one value model per worker group, trained when an estimator needs values."""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.model import (
    ADAPTIVE,
    BY_TASKS,
    BY_UPDATES,
    MINI_UPDATES,
    MOST_UPDATES,
    FSDPConfig,
    OptimConfig,
    TrainedModelConfig,
)
from verl.trainer.config.names import LOSS_AGG_MODES, VIEWS
from verl.trainer.config.profiler import ProfilerConfig
from verl.trainer.config.spec import key, section

CRITIC = "an estimator that reads values (gae), or critic.enable=true"


@dataclass
class CriticModelConfig(TrainedModelConfig):
    path: Optional[str] = key(
        None, "Hugging Face folder or hub id of the initial critics; default: each policy's own model"
    )


@dataclass
class CriticOptimConfig(OptimConfig):
    lr: float = key(1e-5, "peak learning rate of AdamW", ge=0)


@dataclass
class CriticConfig:
    enable: Optional[bool] = key(
        None,
        "null: for agents whose estimator needs values (gae); true: for all agents, all of which must read "
        "values",
    )
    view: str = key(
        "own",
        "input of the critic before a reply: own (the agent's prompt) | joint (the episode's transcript, "
        "then the prompt)",
        choices=VIEWS,
        effect=CRITIC,
    )
    joint_prompt_length: int = key(
        1024,
        "maximum length of transcript plus prompt, in tokens; the oldest part is cut",
        ge=1,
        effect=(CRITIC, "critic.view=joint"),
    )
    ppo_mini_batch_size: int = key(
        0,
        "tasks per optimizer step; 0 means data.train_batch_size",
        ge=0,
        effect=(CRITIC, f"critic.{BY_TASKS}"),
    )
    use_adaptive_ppo_mini_batch_size: bool = key(False, ADAPTIVE, effect=CRITIC)
    ppo_mini_update_num: int = key(
        10, MINI_UPDATES, ge=1, le=MOST_UPDATES, effect=(CRITIC, f"critic.{BY_UPDATES}")
    )
    ppo_epochs: int = key(1, "epochs over the batch", ge=1, effect=CRITIC)
    use_dynamic_bsz: bool = key(
        True, "micro-batches with a token budget instead of a number of rows", effect=CRITIC
    )
    ppo_max_token_len_per_gpu: Optional[int] = key(
        None,
        "token budget of one micro-batch; null: what fits into memory, at most 32768",
        ge=1,
        effect=(CRITIC, "critic.use_dynamic_bsz=true"),
    )
    ppo_micro_batch_size_per_gpu: int = key(
        8, "rows of one micro-batch", ge=1, effect=(CRITIC, "critic.use_dynamic_bsz=false")
    )
    use_prefix_grouper: bool = key(
        True,
        "run tokens that rows of a micro-batch have in common once, where a check of the model finds that "
        "exact",
        effect=CRITIC,
    )
    shuffle: bool = key(True, "shuffle rows before they are cut into mini-batches", effect=CRITIC)
    grad_clip: float = key(1.0, "maximum gradient norm", gt=0, effect=CRITIC)
    cliprange_value: float = key(0.5, "clip range of a value around the old value", gt=0, effect=CRITIC)
    loss_agg_mode: str = key(
        "token-mean", "aggregation of token losses", choices=LOSS_AGG_MODES, effect=CRITIC
    )
    model: TrainedModelConfig = section(CriticModelConfig, effect=CRITIC)
    optim: OptimConfig = section(CriticOptimConfig, effect=CRITIC)
    fsdp: FSDPConfig = section(FSDPConfig, effect=CRITIC)
    profiler: ProfilerConfig = section(ProfilerConfig, effect=CRITIC)

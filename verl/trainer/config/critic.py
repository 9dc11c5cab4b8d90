"""Keys under `critic`: one value model for every worker group, trained when an estimator needs values."""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.model import FSDPConfig, OptimConfig, TrainedModelConfig
from verl.trainer.config.names import LOSS_AGG_MODES, VIEWS
from verl.trainer.config.spec import key, section

CRITIC = "an estimator that reads values (gae), or critic.enable=true"


@dataclass
class CriticModelConfig(TrainedModelConfig):
    path: Optional[str] = key(None, "Hugging Face folder or hub id that the critics start from; default each policy's own model")


@dataclass
class CriticOptimConfig(OptimConfig):
    lr: float = key(1e-5, "peak learning rate of AdamW", ge=0)


@dataclass
class CriticConfig:
    enable: Optional[bool] = key(None, "null: for agents whose estimator needs values (gae); true: for all, each of which must read values")
    view: str = key(
        "own",
        "what the critic reads before a reply: own (the agent's prompt) | joint (the episode's transcript, then the prompt)",
        choices=VIEWS,
        effect=CRITIC,
    )
    joint_prompt_length: int = key(
        1024, "longest transcript and prompt together, in tokens; the oldest part is cut", ge=1, effect=(CRITIC, "critic.view=joint")
    )
    ppo_mini_batch_size: int = key(0, "tasks per optimizer step; 0 means data.train_batch_size", ge=0, effect=CRITIC)
    ppo_epochs: int = key(1, "passes over the batch", ge=1, effect=CRITIC)
    use_dynamic_bsz: bool = key(True, "micro-batches by token budget instead of by rows", effect=CRITIC)
    ppo_max_token_len_per_gpu: int = key(32768, "token budget of one micro-batch", ge=1, effect=(CRITIC, "critic.use_dynamic_bsz=true"))
    ppo_micro_batch_size_per_gpu: int = key(8, "rows of one micro-batch", ge=1, effect=(CRITIC, "critic.use_dynamic_bsz=false"))
    shuffle: bool = key(True, "shuffle rows before they are cut into mini-batches", effect=CRITIC)
    grad_clip: float = key(1.0, "maximum gradient norm", gt=0, effect=CRITIC)
    cliprange_value: float = key(0.5, "a value may move this far from the old one before its loss is clipped", gt=0, effect=CRITIC)
    loss_agg_mode: str = key("token-mean", "how token losses are averaged", choices=LOSS_AGG_MODES, effect=CRITIC)
    model: TrainedModelConfig = section(CriticModelConfig, effect=CRITIC)
    optim: OptimConfig = section(CriticOptimConfig, effect=CRITIC)
    fsdp: FSDPConfig = section(FSDPConfig, effect=CRITIC)

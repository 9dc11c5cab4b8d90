"""Keys under `critic`: one value model for every worker group, trained when an estimator needs values."""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.model import FSDPConfig, OptimConfig, TrainedModelConfig
from verl.trainer.config.spec import key, section


@dataclass
class CriticModelConfig(TrainedModelConfig):
    path: Optional[str] = key(None, "Hugging Face folder or hub id that the critics start from; default each policy's own model")


@dataclass
class CriticOptimConfig(OptimConfig):
    lr: float = key(1e-5, "peak learning rate of AdamW")


@dataclass
class CriticConfig:
    enable: Optional[bool] = key(None, "null: for agents whose estimator needs values (gae); true: for all, each of which must read values")
    view: str = key(
        "own", "what the critic reads before a reply: own (the agent's prompt) | joint (the episode's transcript, then the prompt)"
    )
    joint_prompt_length: int = key(1024, "view=joint: longest transcript and prompt together, in tokens; the oldest part is cut")
    ppo_mini_batch_size: int = key(0, "tasks per optimizer step; 0 means data.train_batch_size")
    ppo_epochs: int = key(1, "passes over the batch")
    use_dynamic_bsz: bool = key(True, "micro-batches by token budget instead of by rows")
    ppo_max_token_len_per_gpu: int = key(32768, "token budget of one micro-batch (use_dynamic_bsz)")
    ppo_micro_batch_size_per_gpu: int = key(8, "rows of one micro-batch (when use_dynamic_bsz is off)")
    shuffle: bool = key(True, "shuffle rows before they are cut into mini-batches")
    grad_clip: float = key(1.0, "maximum gradient norm")
    cliprange_value: float = key(0.5, "a value may move this far from the old one before its loss is clipped")
    loss_agg_mode: str = key("token-mean", "token-mean | token-sum | seq-mean-token-sum | seq-mean-token-mean | seq-mean-token-sum-norm")
    model: TrainedModelConfig = section(CriticModelConfig)
    optim: OptimConfig = section(CriticOptimConfig)
    fsdp: FSDPConfig = section(FSDPConfig)

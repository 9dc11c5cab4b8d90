"""Every key of a supervised fine-tuning run: its type, default and meaning. Imports no torch."""

from dataclasses import dataclass
from typing import Any, Optional

from verl.trainer.config.model import check_betas
from verl.trainer.config.run import template_kwargs
from verl.trainer.config.spec import key, section


@dataclass
class SFTModelConfig:
    path: Optional[str] = key(None, "Hugging Face folder or hub id of the model and its tokenizer")
    trust_remote_code: bool = key(False, "run code that is shipped with the model")
    enable_gradient_checkpointing: bool = key(False, "recompute activations in the backward pass")


@dataclass
class SFTDataConfig:
    train_files: list[str] = key([], "parquet or jsonl files with a column of chat messages")
    messages_key: str = key(
        "messages",
        "column with the chat messages; the loss is on those of the assistant without weight=0 (or "
        "loss_mask, train)",
    )
    tools_key: str = key(
        "tools",
        "column with the tools of a conversation, for the chat template: JSON schemas, or their "
        "JSON text; may be absent",
    )
    apply_chat_template_kwargs: dict[str, Any] = key(
        {},
        "additional arguments of the chat template, as those of reinforcement learning, e.g. "
        "enable_thinking=false for Qwen3",
        check=template_kwargs,
    )
    max_length: int = key(
        1024, "maximum length of a conversation, in tokens; longer ones are dropped and counted", ge=1
    )
    shuffle: bool = key(True, "shuffle in every epoch; false keeps the order of the files, for a curriculum")
    train_batch_size: int = key(32, "conversations per optimizer step", ge=1)
    bucket_batches: int = key(
        20,
        "rows of this many batches are sorted by length before they are cut into batches; 1: no sorting",
        ge=1,
    )


@dataclass
class SFTOptimConfig:
    name: str = key(
        "adamw",
        "adamw | muon (Muon for hidden matrices, AdamW for other parameters)",
        choices=("adamw", "muon"),
    )
    lr: float = key(1e-5, "peak learning rate of AdamW", ge=0)
    muon_lr: float = key(0.02, "peak learning rate of Muon", ge=0)
    betas: list[float] = key([0.9, 0.95], "AdamW betas", ge=0, lt=1, check=check_betas)
    weight_decay: float = key(0.01, "decoupled weight decay", ge=0)
    lr_warmup_steps: int = key(10, "optimizer steps of linear warm-up", ge=0)
    min_lr_ratio: float = key(
        0.02, "final learning rate of the cosine schedule, as a fraction of the peak", ge=0, le=1
    )
    grad_clip: float = key(1.0, "maximum gradient norm", gt=0)


@dataclass
class SFTTrainerConfig:
    default_local_dir: Optional[str] = key(None, "output folder of the trained model and metrics.jsonl")
    total_epochs: int = key(1, "epochs over the conversations", ge=1)
    total_training_steps: int = key(-1, "optimizer steps; -1: as many as total_epochs needs", ge=1, off=-1)
    log_freq: int = key(10, "steps between lines of metrics", ge=1)
    seed: int = key(0, "random seed of the data order", ge=0, le=2**32 - 1)
    device: str = key("auto", "auto | cpu | cuda", choices=("auto", "cpu", "cuda"))
    num_threads: int = key(0, "CPU threads; 0: torch's default", ge=0, le=1024)


@dataclass
class SFTConfig:
    model: SFTModelConfig = section(SFTModelConfig)
    data: SFTDataConfig = section(SFTDataConfig)
    optim: SFTOptimConfig = section(SFTOptimConfig)
    trainer: SFTTrainerConfig = section(SFTTrainerConfig)

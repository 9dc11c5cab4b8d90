"""Keys under `actor_rollout_ref`: one model, its training, and under `rollout` how an engine
samples its replies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Optional, Union

from verl.trainer.config.names import (
    ATTENTION_NAMES,
    DTYPE_NAMES,
    KL_ESTIMATORS,
    LOSS_AGG_MODES,
    POLICY_LOSS_NAMES,
    SCHEDULES,
)
from verl.trainer.config.profiler import PROFILED, ProfilerConfig
from verl.trainer.config.spec import key, section, texts

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
# In the loss, every KL estimator has a straight-through form; in the reward, which has no gradient,
# it would change nothing.
KL_LOSSES = (*KL_ESTIMATORS, *(f"{name}+" for name in KL_ESTIMATORS))
ADAPTER = "an agent with agent.specialization=lora"
ON_A_GPU = "a GPU: trainer.device=auto,cuda"
DECAYING = "{}.lr_scheduler_type=linear,cosine"
SCHEDULED = "a schedule with lr_scheduler_type=linear or cosine, or lr_warmup_steps below 1 and above 0"
READ = "a loss that reads it"
CLIPS = (
    "algorithm.rollout_correction.bypass_mode=false or "
    "algorithm.rollout_correction.loss_type=ppo_clip (reinforce is a separate loss, without "
    "clipping)"
)
REFERENCE = f"a reference: {ACTOR}.kl_loss_coef>0 or algorithm.kl_ctrl.kl_coef>0"
OLD_LOG_PROBS = (
    "a pass for old log-probs: several updates per step, algorithm.kl_ctrl.kl_coef>0, a "
    "correction, gateway.structured=mask, trainer.critic_warmup or an estimator that reads them "
    "(and algorithm.rollout_correction.bypass_mode=false)"
)
MOST_UPDATES = 100_000
AGGREGATES = "a loss that reads it, entropy_coeff other than 0 or kl_loss_coef>0"
VLLM = f"{ROLLOUT}.name=vllm"
SAMPLED = f"{ROLLOUT}.val_kwargs.temperature>0"


def _layers(value: str | list[str] | None) -> str | list[str] | None:
    if value is not None and not (value and all(value)):
        raise ValueError("expected layer names, or one regex")
    return value


def check_betas(value: list[float]) -> list[float]:
    """Return the betas of AdamW, or raise ValueError unless they are two."""
    if len(value) != 2:
        raise ValueError("expected two numbers, at least 0 and less than 1")
    return value


def steps_or_share(value: float) -> float:
    """Return a number of steps, or a share of them below 1. Raise ValueError for half a step."""
    if value > 1 and value != int(value):
        raise ValueError("expected a whole number of steps, or a share of them below 1")
    return value


def auto_or_bool(value: bool | str) -> bool | str:
    """Return true, false or `auto`, or raise ValueError for another value."""
    text = str(value).lower()
    if text not in ("auto", "true", "false"):
        raise ValueError("expected true, false or auto")
    return text if text == "auto" else text == "true"


def _stops(value: list[str] | None) -> list[str] | None:
    if not all(value or ()):
        raise ValueError("an empty string would end every reply")
    return value


@dataclass
class TrainedModelConfig:
    path: Optional[str] = key(None, "Hugging Face folder or hub id; agent.model_ids sets it per agent")
    tokenizer_path: Optional[str] = key(None, "tokenizer folder, if it is not the model's")
    trust_remote_code: bool = key(False, "run code that is shipped with the model")
    enable_gradient_checkpointing: Optional[bool] = key(
        None,
        "recompute activations in the backward pass; null: where the longest row does not fit into "
        "memory without",
    )
    use_remove_padding: Any = key(
        "auto",
        "pack rows into one sequence without padding in the trainer's forward pass: true | false | "
        "auto, which packs where a check of the model finds that exact",
        type=Union[bool, str],
        check=auto_or_bool,
    )
    attn_implementation: str = key(
        "auto",
        "attention implementation; auto takes the fastest that a check of the model finds exact: "
        "flash-attn if it is installed (on a GPU in bf16), sdpa, eager",
        choices=ATTENTION_NAMES,
    )


@dataclass
class ModelConfig(TrainedModelConfig):
    use_fused_kernels: bool = key(
        True,
        "compute log-probs and entropies in the head, for one part of the vocabulary at a time, "
        "where a check of the model finds that exact, instead of from the logits of a whole micro-batch",
    )
    lora_adapter_path: Optional[str] = key(
        None,
        "folder of a PEFT adapter from which the agent's adapter starts; its adapter_config.json "
        "determines lora_rank, lora_alpha, target_modules and exclude_modules; a checkpoint that "
        "is resumed replaces its weights",
        check=texts,
        effect=ADAPTER,
    )
    lora_rank: Optional[int] = key(
        None, "rank of the agent's adapter; default: 32, or that of lora_adapter_path", ge=1, effect=ADAPTER
    )
    lora_alpha: Optional[int] = key(
        None,
        "the adapter's output is scaled by lora_alpha / lora_rank; default: 32, or that of lora_adapter_path",
        ge=1,
        effect=ADAPTER,
    )
    target_modules: Any = key(
        None,
        "layers with an adapter: all-linear (all linear layers that can have one, without the "
        "head) | a list of layer names or suffixes | a regex; default: all-linear, or those of lora_adapter_path",
        type=Optional[Union[str, list[str]]],
        check=_layers,
        effect=ADAPTER,
    )
    exclude_modules: Any = key(
        None,
        "layers of target_modules without an adapter: a list or a regex",
        type=Optional[Union[str, list[str]]],
        check=_layers,
        effect=ADAPTER,
    )


@dataclass
class OptimConfig:
    lr: float = key(1e-6, "peak learning rate of AdamW", ge=0)
    lr_scheduler_type: str = key("constant", "learning-rate schedule after the warm-up", choices=SCHEDULES)
    lr_warmup_steps: float = key(
        0.0,
        "optimizer steps of linear warm-up; below 1: their share of total_training_steps; 0: none",
        ge=0,
        check=steps_or_share,
    )
    min_lr_ratio: float = key(0.0, "final learning rate as a fraction of lr", ge=0, le=1, effect=DECAYING)
    total_training_steps: int = key(
        -1,
        "length of the schedule in optimizer steps; -1: all steps of the run",
        ge=-1,
        effect=SCHEDULED,
    )
    weight_decay: float = key(0.01, "decoupled weight decay", ge=0)
    betas: list[float] = key([0.9, 0.999], "AdamW betas", ge=0, lt=1, check=check_betas)
    eps: float = key(1e-8, "AdamW epsilon", gt=0)

    @property
    def needs_length(self) -> bool:
        """Whether learning rates depend on the total number of steps."""
        return self.lr_scheduler_type != "constant" or 0 < self.lr_warmup_steps < 1


@dataclass
class FSDPConfig:
    model_dtype: str = key("fp32", "dtype of the master weights", choices=DTYPE_NAMES)
    dtype: str = key(
        "auto",
        "compute dtype; auto: bf16 on GPU, fp32 on CPU; gradients are reduced in fp32",
        choices=("auto", *DTYPE_NAMES),
    )
    param_offload: bool = key(False, "keep parameters in host memory outside compute", effect=ON_A_GPU)
    optimizer_offload: bool = key(
        False, "keep optimizer state in host memory outside the update", effect=ON_A_GPU
    )
    reshard_after_forward: bool = key(True, "free gathered parameters after the forward pass")


@dataclass
class PolicyLossConfig:
    loss_mode: str = key(
        "vanilla",
        "policy loss of docs/algorithms.md, or one registered with register_policy_loss",
        choices=POLICY_LOSS_NAMES,
        effect=CLIPS,
    )
    clip_cov_ratio: float = key(0.0002, "fraction of tokens that are clipped", effect=READ)
    clip_cov_lb: float = key(1.0, "minimum covariance of a token that may be clipped", effect=READ)
    clip_cov_ub: float = key(5.0, "maximum covariance of a token that may be clipped", effect=READ)
    kl_cov_ratio: float = key(0.0002, "fraction of tokens with a KL penalty", effect=READ)
    ppo_kl_coef: float = key(0.1, "weight of the KL penalty", effect=READ)
    dro_beta: Optional[float] = key(None, "weight of the squared log-ratio; required by dro", effect=READ)


@dataclass
class UpdateConfig:
    """Updates of a policy or a critic: mini-batches, micro-batches, and what bounds a step."""

    ppo_mini_batch_size: int = key(
        0,
        "tasks per optimizer step; 0 means data.train_batch_size (one update per step)",
        ge=0,
        effect="{}.ppo_mini_update_num=null",
    )
    ppo_mini_update_num: Optional[int] = key(
        None,
        "optimizer steps per epoch, instead of the tasks of one; every policy cuts its own samples "
        "into so many mini-batches, of sizes that differ by one at most; null: by ppo_mini_batch_size",
        ge=1,
        le=MOST_UPDATES,
    )
    ppo_epochs: int = key(1, "epochs over the batch", ge=1)
    ppo_max_token_len_per_gpu: Optional[int] = key(
        None,
        "token budget of one micro-batch; null: what fits into memory, at most 16384, and a GiB on a CPU",
        ge=1,
        effect="{}.ppo_micro_batch_size_per_gpu=null",
    )
    ppo_micro_batch_size_per_gpu: Optional[int] = key(
        None, "rows of one micro-batch; null: as many as the token budget takes", ge=1
    )
    use_prefix_grouper: bool = key(
        True,
        "run tokens that rows of a micro-batch have in common, as prompts of a group and earlier "
        "turns of a conversation, once in the update and in passes for log-probs, where a check of "
        "the model finds that exact; the loss stays that of the single rows",
    )
    shuffle: bool = key(True, "shuffle rows before they are cut into mini-batches")
    grad_clip: float = key(1.0, "maximum gradient norm", gt=0)


@dataclass
class ActorConfig(UpdateConfig):
    # Set by the worker for each mini-batch: totals over the mini-batch that `agg_loss` needs.
    global_batch_info: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Also set by the worker: values that a loss prepared over the mini-batch, and
    # `algorithm.rollout_correction`.
    prepared: ClassVar[Optional[Mapping[str, Any]]] = None
    rollout_correction: ClassVar[Any] = None

    skip_zero_advantages: bool = key(
        False,
        "leave out rows with advantage 0, whose gradient is 0; metrics of the update (actor/*, in "
        "part rollout_corr/*) then cover only the other rows; not with algorithm.rollout_correction.bypass_mode",
    )
    clip_ratio_low: float = key(0.2, "lower clip range of PPO", ge=0, effect=(CLIPS, READ))
    clip_ratio_high: float = key(
        0.2, "upper clip range of PPO (DAPO clip-higher)", ge=0, effect=(CLIPS, READ)
    )
    clip_ratio_c: float = key(3.0, "dual-clip constant for negative advantages", gt=1, effect=(CLIPS, READ))
    loss_agg_mode: str = key(
        "token-mean", "aggregation of token losses", choices=LOSS_AGG_MODES, effect=AGGREGATES
    )
    tau_pos: float = key(1.0, "temperature for positive advantages", effect=READ)
    tau_neg: float = key(1.05, "temperature for negative advantages", effect=READ)
    entropy_coeff: float = key(0.0, "weight of the entropy bonus")
    kl_loss_coef: float = key(
        0.0, "weight of the KL divergence from the reference in the loss; 0: it is not added", ge=0
    )
    kl_loss_type: str = key(
        "low_var_kl",
        "KL estimator: kl (k1) | abs | mse (k2) | low_var_kl (k3); with a + appended (k1+, k3+): "
        "its value with the gradient of k2",
        choices=KL_LOSSES,
        effect="{}.kl_loss_coef>0",
    )
    invalid_action_penalty_coef: float = key(
        0.0, "subtracted from the reward of an invalid reply; 0: no penalty", ge=0
    )
    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    optim: OptimConfig = section(OptimConfig)
    fsdp_config: FSDPConfig = section(FSDPConfig)
    profiler: ProfilerConfig = section(ProfilerConfig, effect=PROFILED)

    @property
    def clip_ratio(self) -> float:
        """verl's name for the clip range where the sides have none of their own."""
        return self.clip_ratio_high

    @property
    def use_kl_loss(self) -> bool:
        """Whether the KL divergence from the reference is added to the loss."""
        return self.kl_loss_coef > 0


@dataclass
class RefConfig:
    # Rows that no pass reads are no error, here and below: scripts of verl and Dr. MAS always set them.
    log_prob_max_token_len_per_gpu: Optional[int] = key(
        None,
        "token budget of one micro-batch; null: what fits into memory, at most 32768",
        ge=1,
        effect=(REFERENCE, "{}.log_prob_micro_batch_size_per_gpu=null"),
        like=f"{ACTOR}.ppo_max_token_len_per_gpu",
    )
    log_prob_micro_batch_size_per_gpu: Optional[int] = key(
        None,
        "rows of one micro-batch; null: as many as the token budget takes",
        ge=1,
        like=f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    )


@dataclass
class ValSamplingConfig:
    temperature: float = key(1.0, "sampling temperature in validation; 0: greedy decoding", ge=0)
    top_p: float = key(1.0, "nucleus sampling mass in validation", gt=0, le=1, effect=SAMPLED)
    top_k: int = key(-1, "top-k sampling in validation; -1 keeps all tokens", ge=1, off=-1, effect=SAMPLED)
    response_length: Optional[int] = key(
        None,
        "maximum number of new tokens of a reply in validation; default: as in training",
        ge=1,
        like=f"{ROLLOUT}.response_length",
        at_use=True,
    )
    stop: Optional[list[str]] = key(
        None,
        "stop strings in validation; default: as in training; []: none",
        check=_stops,
        like=f"{ROLLOUT}.stop",
        at_use=True,
    )


SLOTS = 64  # of an engine, where `max_num_seqs` is not set


@dataclass
class RolloutConfig:
    """`actor_rollout_ref.rollout`: how an engine samples a reply (not `rollout`, collection, nor
    `env.rollout`, episodes per task).
    """

    name: str = key("hf", "rollout engine", choices=("hf", "vllm"))
    temperature: float = key(1.0, "sampling temperature of training episodes", gt=0)
    top_p: float = key(1.0, "nucleus sampling mass; below 1 the policy gradient is biased", gt=0, le=1)
    top_k: int = key(-1, "top-k sampling; -1 keeps all tokens", ge=1, off=-1)
    response_length: Optional[int] = key(
        None,
        "maximum number of new tokens of a reply; default: data.max_response_length",
        ge=1,
        like="data.max_response_length",
        at_use=True,
    )
    prompt_length: Optional[int] = key(
        None,
        "maximum length of a prompt, in tokens; default: data.max_prompt_length",
        ge=1,
        like="data.max_prompt_length",
        at_use=True,
    )
    stop: list[str] = key(
        [],
        "stop strings; a reply ends with the token that completes one, and later tokens are dropped",
        check=_stops,
    )
    tool_samples: str = key(
        "generation",
        "samples of a call of a ToolAgent: generation (each is one) | sequence (all are one, with "
        "the tool messages between them masked)",
        choices=("generation", "sequence"),
    )
    tensor_model_parallel_size: int = key(
        1,
        "devices of one node per engine; a worker group has (its devices / this) engines",
        ge=1,
        effect=VLLM,
    )
    max_num_seqs: Optional[int] = key(
        None,
        "KV-cache slots: maximum number of replies decoded concurrently; default: 64, fewer where "
        "their cache does not fit into memory (counted on a CPU)",
        ge=1,
    )
    max_num_batched_tokens: Optional[int] = key(
        None,
        "maximum number of tokens per engine step; default: 2048 (vLLM's), more if max_num_seqs or "
        "enable_chunked_prefill=false need it",
        ge=1,
        effect=VLLM,
    )
    enable_chunked_prefill: Optional[bool] = key(
        None,
        "process long prompts in several engine steps; default: true on a GPU, false on a CPU, "
        "where true is not supported",
        effect=VLLM,
    )
    enable_prefix_caching: bool = key(
        True,
        "compute beginnings that prompts have in common once while the engine's cache holds them; "
        "false: every prompt is computed as a whole (with rollout.name=hf equal prompts once)",
    )
    dtype: str = key(
        "auto",
        "dtype of the engine's weights; auto: bf16 on GPU, fp32 on CPU",
        choices=("auto", *DTYPE_NAMES),
    )
    gpu_memory_utilization: float = key(
        0.5, "fraction of GPU memory for weights and KV cache", gt=0, le=1, effect=(VLLM, ON_A_GPU)
    )
    enforce_eager: bool = key(
        False, "disable compilation and CUDA graphs: faster start, slower generation", effect=(VLLM, ON_A_GPU)
    )
    free_cache_engine: bool = key(
        True,
        "free the KV cache while the policies are updated; with async_training.mode=sync",
        effect="shared devices: rollout.n_gpus_per_node=0",
    )
    structured_outputs: bool = key(
        False,
        "the engine reads the tokenizer, so that requests may ask for replies that follow a JSON "
        "schema: in validation, with gateway.structured=mask in training, and of `serve --openai`, "
        "which sets it; with rollout.name=hf it needs the extra structured (xgrammar)",
    )
    num_threads: int = key(
        0,
        "CPU threads of the engine process; 0: trainer.num_threads",
        ge=0,
        le=1024,
        like="trainer.num_threads",
        at_use=True,
    )
    update_bucket_mb: int = key(
        256, "size of the buckets in which weights are sent to the engine, in MiB", ge=1
    )
    weight_transfer: str = key(
        "object_store",
        "transport of weights to the engine: object_store | shared_memory (one node) | collective "
        "(broadcast by gloo or NCCL) | cuda_ipc (memory of a GPU that both use) | auto (on GPUs "
        "cuda_ipc, or collective if engines have their own; else object_store) | module.Class (a custom WeightTransfer)",
    )
    log_prob_max_token_len_per_gpu: Optional[int] = key(
        None,
        "old log-probs: token budget of one micro-batch; null: what fits into memory, at most 32768",
        ge=1,
        effect=(OLD_LOG_PROBS, "{}.log_prob_micro_batch_size_per_gpu=null"),
        like=f"{ACTOR}.ppo_max_token_len_per_gpu",
    )
    log_prob_micro_batch_size_per_gpu: Optional[int] = key(
        None,
        "old log-probs: rows of one micro-batch; null: as many as the token budget takes",
        ge=1,
        like=f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    )
    val_kwargs: ValSamplingConfig = section(ValSamplingConfig)

    @property
    def slots(self) -> int:
        """Number of replies that an engine decodes at once."""
        return self.max_num_seqs or SLOTS


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = section(ModelConfig)
    actor: ActorConfig = section(ActorConfig)
    ref: RefConfig = section(RefConfig)
    rollout: RolloutConfig = section(RolloutConfig)

"""Keys under `actor_rollout_ref`: one model, how it is trained and how it is sampled."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Optional

from verl.trainer.config.spec import key, section


@dataclass
class TrainedModelConfig:
    path: Optional[str] = key(None, "Hugging Face folder or hub id; agent.model_ids sets it per agent")
    tokenizer_path: Optional[str] = key(None, "tokenizer folder, when it is not the model's")
    trust_remote_code: bool = key(False, "allow code that ships with the model")
    enable_gradient_checkpointing: bool = key(False, "recompute activations in the backward pass")
    use_remove_padding: bool = key(True, "pack rows into one sequence without padding for the trainer's forward")
    attn_implementation: str = key("auto", "auto | sdpa | eager | flash_attention_2; auto takes flash-attn when it is installed on a GPU")


@dataclass
class ModelConfig(TrainedModelConfig):
    lora_rank: int = key(32, "agent.specialization=lora: rank of the agent's adapter")
    lora_alpha: int = key(32, "agent.specialization=lora: the adapter's output is scaled by lora_alpha / lora_rank")
    target_modules: Any = key(
        "all-linear",
        "agent.specialization=lora: all-linear (all linear layers but the head) | a list of layer names or their ends | a regex",
    )
    exclude_modules: Any = key(None, "agent.specialization=lora: layers of target_modules that get no adapter, a list or a regex")


@dataclass
class OptimConfig:
    lr: float = key(1e-6, "peak learning rate of AdamW")
    lr_scheduler_type: str = key("constant", "constant | linear | cosine, after the warm-up")
    lr_warmup_steps: int = key(-1, "optimizer steps of linear warm-up; -1 uses lr_warmup_steps_ratio")
    lr_warmup_steps_ratio: float = key(0.0, "warm-up as a share of the total steps")
    min_lr_ratio: float = key(0.0, "the schedule ends at this share of lr")
    total_training_steps: int = key(-1, "optimizer steps of the schedule; -1 is filled in by the trainer")
    weight_decay: float = key(0.01, "decoupled weight decay")
    betas: list[float] = key([0.9, 0.999], "AdamW betas")
    eps: float = key(1e-8, "AdamW epsilon")


@dataclass
class FSDPConfig:
    model_dtype: str = key("fp32", "dtype of the master weights: fp32 | bf16")
    dtype: str = key("auto", "compute dtype: auto (bf16 on GPU, fp32 on CPU) | fp32 | bf16; gradients reduce in fp32")
    param_offload: bool = key(False, "keep parameters in host memory outside compute (GPU)")
    optimizer_offload: bool = key(False, "keep optimizer state in host memory outside the update (GPU)")
    reshard_after_forward: bool = key(True, "free gathered parameters after the forward pass")


@dataclass
class PolicyLossConfig:
    loss_mode: str = key("vanilla", "a name of docs/algorithms.md, or one given to register_policy_loss")
    clip_cov_ratio: float = key(0.0002, "clip_cov: share of tokens that are clipped")
    clip_cov_lb: float = key(1.0, "clip_cov: covariance from which a token may be clipped")
    clip_cov_ub: float = key(5.0, "clip_cov: covariance up to which a token may be clipped")
    kl_cov_ratio: float = key(0.0002, "kl_cov: share of tokens that pay the KL")
    ppo_kl_coef: float = key(0.1, "kl_cov: weight of the KL")
    dro_beta: Optional[float] = key(None, "dro: weight of the squared log-ratio; required by this loss")


@dataclass
class ActorConfig:
    # Set by the worker for each mini-batch: what `agg_loss` needs to know of the whole of it.
    global_batch_info: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Set by the worker too: what a loss prepared over the mini-batch, and `algorithm.rollout_correction`.
    prepared: ClassVar[Optional[Mapping[str, Any]]] = None
    rollout_correction: ClassVar[Any] = None

    ppo_mini_batch_size: int = key(0, "tasks per optimizer step; 0 means data.train_batch_size (one update a step)")
    ppo_epochs: int = key(1, "passes over the batch")
    use_dynamic_bsz: bool = key(True, "micro-batches by token budget instead of by rows")
    ppo_max_token_len_per_gpu: int = key(16384, "token budget of one micro-batch (use_dynamic_bsz)")
    ppo_micro_batch_size_per_gpu: int = key(8, "rows of one micro-batch (when use_dynamic_bsz is off)")
    shuffle: bool = key(True, "shuffle rows before they are cut into mini-batches")
    skip_zero_advantages: bool = key(
        False,
        "do not compute rows whose advantage is 0, which add nothing to the gradient; what the update measures (actor/*, at times "
        "rollout_corr/*) is then of the other rows; not with algorithm.rollout_correction.bypass_mode",
    )
    grad_clip: float = key(1.0, "maximum gradient norm")
    clip_ratio: float = key(0.2, "PPO clip range; clip_ratio_low/high override one side each")
    clip_ratio_low: Optional[float] = key(None, "lower clip range")
    clip_ratio_high: Optional[float] = key(None, "upper clip range (DAPO clip-higher)")
    clip_ratio_c: float = key(3.0, "dual-clip constant for negative advantages")
    loss_agg_mode: str = key("token-mean", "token-mean | token-sum | seq-mean-token-sum | seq-mean-token-mean | seq-mean-token-sum-norm")
    tau_pos: float = key(1.0, "sapo: temperature for positive advantages")
    tau_neg: float = key(1.05, "sapo: temperature for negative advantages")
    entropy_coeff: float = key(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = key(False, "add the KL to the reference to the loss")
    kl_loss_coef: float = key(0.001, "weight of the KL loss")
    kl_loss_type: str = key(
        "low_var_kl", "kl (k1) | abs | mse (k2) | low_var_kl (k3); a + behind it (k1+, k3+) keeps the value and takes the gradient of k2"
    )
    use_invalid_action_penalty: bool = key(False, "subtract invalid_action_penalty_coef from the reward of an invalid reply")
    invalid_action_penalty_coef: float = key(0.1, "size of the invalid-action penalty")
    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    optim: OptimConfig = section(OptimConfig)
    fsdp_config: FSDPConfig = section(FSDPConfig)


@dataclass
class RefConfig:
    log_prob_use_dynamic_bsz: bool = key(True, "micro-batches by token budget instead of by rows")
    log_prob_max_token_len_per_gpu: int = key(32768, "token budget of one micro-batch")
    log_prob_micro_batch_size_per_gpu: int = key(16, "rows of one micro-batch (when log_prob_use_dynamic_bsz is off)")


@dataclass
class ValSamplingConfig:
    do_sample: bool = key(True, "sample in validation; off means greedy")
    temperature: float = key(1.0, "validation temperature")
    top_p: float = key(1.0, "validation nucleus mass")
    top_k: int = key(-1, "validation top-k; -1 keeps all")
    response_length: Optional[int] = key(None, "most new tokens of one reply in validation; default rollout.response_length")
    stop: Optional[list[str]] = key(None, "texts that end a reply in validation; default rollout.stop, [] for none")


@dataclass
class RolloutConfig:
    name: str = key("hf", "rollout engine: hf | vllm")
    temperature: float = key(1.0, "sampling temperature of training episodes")
    top_p: float = key(1.0, "nucleus mass; below 1 the policy gradient is biased")
    top_k: int = key(-1, "top-k; -1 keeps all")
    response_length: Optional[int] = key(None, "most new tokens of one reply; default data.max_response_length")
    prompt_length: Optional[int] = key(None, "longest prompt of one call; default data.max_prompt_length")
    stop: list[str] = key([], "texts that end a reply, with the token that completes one; what is sampled after it is cut off")
    tensor_model_parallel_size: int = key(
        1, "vllm: devices of one node that an engine spans; a worker group has its devices / this many engines"
    )
    max_num_seqs: int = key(64, "KV-cache slots: replies decoded at the same time")
    max_num_batched_tokens: Optional[int] = key(
        None, "vllm: most tokens of one step; default its own (2048), and what max_num_seqs and enable_chunked_prefill=false need"
    )
    enable_chunked_prefill: Optional[bool] = key(
        None, "vllm: a prompt may be computed in several steps; default true on a GPU, false on a CPU, where it cannot be true"
    )
    dtype: str = key("auto", "dtype of the engine's weights: auto (bf16 on GPU, fp32 on CPU) | fp32 | bf16")
    gpu_memory_utilization: float = key(0.5, "vllm on a GPU: share of its memory for weights and key-value cache")
    enforce_eager: bool = key(False, "vllm on a GPU: no compilation, no CUDA graphs; starts sooner, runs slower")
    free_cache_engine: bool = key(True, "give the key-value cache back while the policies are updated")
    num_threads: int = key(0, "CPU threads of the engine's process; 0 shares the cores among the worker groups")
    update_bucket_mb: int = key(256, "weights travel to the engine in buckets of this size")
    weight_transfer: str = key(
        "object_store", "how weights travel to the engine: object_store | shared_memory (one node) | module.Class of your own"
    )
    log_prob_use_dynamic_bsz: bool = key(True, "old log-probs: micro-batches by token budget instead of by rows")
    log_prob_max_token_len_per_gpu: int = key(32768, "old log-probs: token budget of one micro-batch")
    log_prob_micro_batch_size_per_gpu: int = key(16, "old log-probs: rows of one micro-batch (when dynamic is off)")
    val_kwargs: ValSamplingConfig = section(ValSamplingConfig)


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = section(ModelConfig)
    actor: ActorConfig = section(ActorConfig)
    ref: RefConfig = section(RefConfig)
    rollout: RolloutConfig = section(RolloutConfig)

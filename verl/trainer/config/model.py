"""Keys under `actor_rollout_ref`: one model, how it is trained, and under `rollout` how an engine samples its replies."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Optional, Union

from verl.trainer.config.names import ATTENTION_NAMES, DTYPE_NAMES, KL_ESTIMATORS, LOSS_AGG_MODES, SCHEDULES
from verl.trainer.config.spec import key, section
from verl.trainer.ppo.registry import POLICY_LOSSES

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
# As a loss every estimator of the KL has a straight-through form; in the reward, which has no gradient, that would change nothing.
KL_LOSSES = (*KL_ESTIMATORS, *(f"{name}+" for name in KL_ESTIMATORS))
ADAPTER = "an agent with agent.specialization=lora"
ON_A_GPU = "a GPU: trainer.device=auto,cuda"
FALLING = "{}.lr_scheduler_type=linear,cosine"
READ = "a loss that reads it"
CLIPS = (
    "algorithm.rollout_correction.bypass_mode=false or algorithm.rollout_correction.loss_type=ppo_clip (reinforce is a loss of its own, "
    "without a clip)"
)
REFERENCE = f"a reference: {ACTOR}.use_kl_loss=true or algorithm.use_kl_in_reward=true"
SCORED = (
    "a pass for old log-probs: several updates a step, algorithm.use_kl_in_reward=true, a correction, trainer.critic_warmup or an "
    "estimator that reads them (and algorithm.rollout_correction.bypass_mode=false)"
)
AVERAGES = "a loss that averages by it, an entropy_coeff or use_kl_loss=true"
VLLM = f"{ROLLOUT}.name=vllm"
SAMPLED = f"{ROLLOUT}.val_kwargs.do_sample=true"


def _layers(value: str | list[str] | None) -> str | list[str] | None:
    if value is not None and not (value and all(value)):
        raise ValueError("expected layer names, or one regex")
    return value


def _betas(value: list[float]) -> list[float]:
    if len(value) != 2:
        raise ValueError("expected two numbers, at least 0 and less than 1")
    return value


def _stops(value: list[str] | None) -> list[str] | None:
    if not all(value or ()):
        raise ValueError("an empty text would end every reply")
    return value


@dataclass
class TrainedModelConfig:
    path: Optional[str] = key(None, "Hugging Face folder or hub id; agent.model_ids sets it per agent")
    tokenizer_path: Optional[str] = key(None, "tokenizer folder, when it is not the model's")
    trust_remote_code: bool = key(False, "allow code that ships with the model")
    enable_gradient_checkpointing: bool = key(False, "recompute activations in the backward pass")
    use_remove_padding: bool = key(True, "pack rows into one sequence without padding for the trainer's forward")
    attn_implementation: str = key(
        "auto", "how attention is computed; auto takes flash-attn when it is installed on a GPU", choices=ATTENTION_NAMES
    )


@dataclass
class ModelConfig(TrainedModelConfig):
    lora_rank: int = key(32, "rank of the agent's adapter", ge=1, effect=ADAPTER)
    lora_alpha: int = key(32, "the adapter's output is scaled by lora_alpha / lora_rank", ge=1, effect=ADAPTER)
    target_modules: Any = key(
        "all-linear",
        "all-linear (all linear layers but the head) | a list of layer names or their ends | a regex",
        type=Union[str, list[str]],
        check=_layers,
        effect=ADAPTER,
    )
    exclude_modules: Any = key(
        None,
        "layers of target_modules that get no adapter, a list or a regex",
        type=Optional[Union[str, list[str]]],
        check=_layers,
        effect=ADAPTER,
    )


@dataclass
class OptimConfig:
    lr: float = key(1e-6, "peak learning rate of AdamW", ge=0)
    lr_scheduler_type: str = key("constant", "the learning rate after the warm-up", choices=SCHEDULES)
    lr_warmup_steps: int = key(-1, "optimizer steps of linear warm-up; -1 uses lr_warmup_steps_ratio", ge=-1)
    lr_warmup_steps_ratio: float = key(0.0, "warm-up as a share of the total steps", ge=0, le=1, effect="{}.lr_warmup_steps=-1")
    min_lr_ratio: float = key(0.0, "the schedule ends at this share of lr", ge=0, le=1, effect=FALLING)
    total_training_steps: int = key(
        -1, "optimizer steps of the schedule; -1 is filled in by the trainer", ge=-1, effect=f"{FALLING} or {{}}.lr_warmup_steps_ratio>0"
    )
    weight_decay: float = key(0.01, "decoupled weight decay", ge=0)
    betas: list[float] = key([0.9, 0.999], "AdamW betas", ge=0, lt=1, check=_betas)
    eps: float = key(1e-8, "AdamW epsilon", gt=0)


@dataclass
class FSDPConfig:
    model_dtype: str = key("fp32", "dtype of the master weights", choices=DTYPE_NAMES)
    dtype: str = key("auto", "compute dtype; auto: bf16 on GPU, fp32 on CPU; gradients reduce in fp32", choices=("auto", *DTYPE_NAMES))
    param_offload: bool = key(False, "keep parameters in host memory outside compute", effect=ON_A_GPU)
    optimizer_offload: bool = key(False, "keep optimizer state in host memory outside the update", effect=ON_A_GPU)
    reshard_after_forward: bool = key(True, "free gathered parameters after the forward pass")


@dataclass
class PolicyLossConfig:
    loss_mode: str = key(
        "vanilla", "a name of docs/algorithms.md, or one given to register_policy_loss", choices=POLICY_LOSSES.names, effect=CLIPS
    )
    clip_cov_ratio: float = key(0.0002, "share of tokens that are clipped", effect=READ)
    clip_cov_lb: float = key(1.0, "covariance from which a token may be clipped", effect=READ)
    clip_cov_ub: float = key(5.0, "covariance up to which a token may be clipped", effect=READ)
    kl_cov_ratio: float = key(0.0002, "share of tokens that pay the KL", effect=READ)
    ppo_kl_coef: float = key(0.1, "weight of the KL", effect=READ)
    dro_beta: Optional[float] = key(None, "weight of the squared log-ratio; required by dro", effect=READ)


@dataclass
class ActorConfig:
    # Set by the worker for each mini-batch: what `agg_loss` needs to know of the whole of it.
    global_batch_info: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Set by the worker too: what a loss prepared over the mini-batch, and `algorithm.rollout_correction`.
    prepared: ClassVar[Optional[Mapping[str, Any]]] = None
    rollout_correction: ClassVar[Any] = None

    ppo_mini_batch_size: int = key(0, "tasks per optimizer step; 0 means data.train_batch_size (one update a step)", ge=0)
    ppo_epochs: int = key(1, "passes over the batch", ge=1)
    use_dynamic_bsz: bool = key(True, "micro-batches by token budget instead of by rows")
    ppo_max_token_len_per_gpu: int = key(16384, "token budget of one micro-batch", ge=1, effect="{}.use_dynamic_bsz=true")
    ppo_micro_batch_size_per_gpu: int = key(8, "rows of one micro-batch", ge=1, effect="{}.use_dynamic_bsz=false")
    shuffle: bool = key(True, "shuffle rows before they are cut into mini-batches")
    skip_zero_advantages: bool = key(
        False,
        "do not compute rows whose advantage is 0, which add nothing to the gradient; what the update measures (actor/*, at times "
        "rollout_corr/*) is then of the other rows; not with algorithm.rollout_correction.bypass_mode",
    )
    grad_clip: float = key(1.0, "maximum gradient norm", gt=0)
    clip_ratio: float = key(
        0.2,
        "PPO clip range; clip_ratio_low/high override one side each",
        ge=0,
        effect=(CLIPS, READ, "{}.clip_ratio_low=null or {}.clip_ratio_high=null"),
    )
    clip_ratio_low: Optional[float] = key(None, "lower clip range", ge=0, effect=(CLIPS, READ))
    clip_ratio_high: Optional[float] = key(None, "upper clip range (DAPO clip-higher)", ge=0, effect=(CLIPS, READ))
    clip_ratio_c: float = key(3.0, "dual-clip constant for negative advantages", gt=1, effect=(CLIPS, READ))
    loss_agg_mode: str = key("token-mean", "how token losses are averaged", choices=LOSS_AGG_MODES, effect=AVERAGES)
    tau_pos: float = key(1.0, "temperature for positive advantages", effect=READ)
    tau_neg: float = key(1.05, "temperature for negative advantages", effect=READ)
    entropy_coeff: float = key(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = key(False, "add the KL to the reference to the loss")
    kl_loss_coef: float = key(0.001, "weight of the KL loss", ge=0, effect="{}.use_kl_loss=true")
    kl_loss_type: str = key(
        "low_var_kl",
        "kl (k1) | abs | mse (k2) | low_var_kl (k3); a + behind it (k1+, k3+) keeps the value and takes the gradient of k2",
        choices=KL_LOSSES,
        effect="{}.use_kl_loss=true",
    )
    use_invalid_action_penalty: bool = key(False, "subtract invalid_action_penalty_coef from the reward of an invalid reply")
    invalid_action_penalty_coef: float = key(0.1, "size of the invalid-action penalty", ge=0, effect="{}.use_invalid_action_penalty=true")
    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    optim: OptimConfig = section(OptimConfig)
    fsdp_config: FSDPConfig = section(FSDPConfig)


@dataclass
class RefConfig:
    log_prob_use_dynamic_bsz: bool = key(True, "micro-batches by token budget instead of by rows", effect=REFERENCE)
    log_prob_max_token_len_per_gpu: int = key(
        32768, "token budget of one micro-batch", ge=1, effect=(REFERENCE, "{}.log_prob_use_dynamic_bsz=true")
    )
    log_prob_micro_batch_size_per_gpu: int = key(
        16, "rows of one micro-batch", ge=1, effect=(REFERENCE, "{}.log_prob_use_dynamic_bsz=false")
    )


@dataclass
class ValSamplingConfig:
    do_sample: bool = key(True, "sample in validation; off means greedy")
    temperature: float = key(1.0, "validation temperature", gt=0, effect=SAMPLED)
    top_p: float = key(1.0, "validation nucleus mass", gt=0, le=1, effect=SAMPLED)
    top_k: int = key(-1, "validation top-k; -1 keeps all", ge=1, off=-1, effect=SAMPLED)
    response_length: Optional[int] = key(None, "most new tokens of one reply in validation; default rollout.response_length", ge=1)
    stop: Optional[list[str]] = key(None, "texts that end a reply in validation; default rollout.stop, [] for none", check=_stops)


@dataclass
class RolloutConfig:
    name: str = key("hf", "rollout engine", choices=("hf", "vllm"))
    temperature: float = key(1.0, "sampling temperature of training episodes", gt=0)
    top_p: float = key(1.0, "nucleus mass; below 1 the policy gradient is biased", gt=0, le=1)
    top_k: int = key(-1, "top-k; -1 keeps all", ge=1, off=-1)
    response_length: Optional[int] = key(None, "most new tokens of one reply; default data.max_response_length", ge=1)
    prompt_length: Optional[int] = key(None, "longest prompt of one call; default data.max_prompt_length", ge=1)
    stop: list[str] = key(
        [], "texts that end a reply, with the token that completes one; what is sampled after it is cut off", check=_stops
    )
    tensor_model_parallel_size: int = key(
        1, "devices of one node that an engine spans; a worker group has its devices / this many engines", ge=1, effect=VLLM
    )
    max_num_seqs: int = key(64, "KV-cache slots: replies decoded at the same time", ge=1)
    max_num_batched_tokens: Optional[int] = key(
        None,
        "most tokens of one step; default vLLM's own (2048), and what max_num_seqs and enable_chunked_prefill=false need",
        ge=1,
        effect=VLLM,
    )
    enable_chunked_prefill: Optional[bool] = key(
        None, "a prompt may be computed in several steps; default true on a GPU, false on a CPU, where it cannot be true", effect=VLLM
    )
    dtype: str = key("auto", "dtype of the engine's weights; auto: bf16 on GPU, fp32 on CPU", choices=("auto", *DTYPE_NAMES))
    gpu_memory_utilization: float = key(0.5, "share of a GPU's memory for weights and key-value cache", gt=0, le=1, effect=(VLLM, ON_A_GPU))
    enforce_eager: bool = key(False, "no compilation, no CUDA graphs; starts sooner, runs slower", effect=(VLLM, ON_A_GPU))
    free_cache_engine: bool = key(True, "give the key-value cache back while the policies are updated")
    num_threads: int = key(0, "CPU threads of the engine's process; 0 shares the cores among the worker groups", ge=0, le=1024)
    update_bucket_mb: int = key(256, "weights travel to the engine in buckets of this size", ge=1)
    weight_transfer: str = key(
        "object_store", "how weights travel to the engine: object_store | shared_memory (one node) | module.Class of your own"
    )
    log_prob_use_dynamic_bsz: bool = key(True, "old log-probs: micro-batches by token budget instead of by rows", effect=SCORED)
    log_prob_max_token_len_per_gpu: int = key(
        32768, "old log-probs: token budget of one micro-batch", ge=1, effect=(SCORED, "{}.log_prob_use_dynamic_bsz=true")
    )
    log_prob_micro_batch_size_per_gpu: int = key(
        16, "old log-probs: rows of one micro-batch", ge=1, effect=(SCORED, "{}.log_prob_use_dynamic_bsz=false")
    )
    val_kwargs: ValSamplingConfig = section(ValSamplingConfig)


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = section(ModelConfig)
    actor: ActorConfig = section(ActorConfig)
    ref: RefConfig = section(RefConfig)
    rollout: RolloutConfig = section(RolloutConfig)

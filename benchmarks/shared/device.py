"""The device of a benchmark, and models with random weights on it."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

from verl.models.loader import resolve_dtype

DEVICES = ("cpu", "cuda")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device`."""
    parser.add_argument("--device", choices=DEVICES, default="cpu")


def add_model_sizes(parser: argparse.ArgumentParser, vocab: int) -> None:
    """Add the options that `random_model` reads."""
    parser.add_argument("--hidden", type=int, default=128, help="hidden size, a multiple of 2 * head-dim")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=vocab)


def check_device(name: str, gpus: int = 1) -> None:
    """Print the device if it is no CPU; exit with one line where torch sees fewer CUDA GPUs than `gpus`."""
    if name == "cpu":
        return
    found = torch.cuda.device_count()
    if found < gpus:
        sys.exit(
            f"--device {name} needs {gpus} CUDA GPU{'s' * (gpus > 1)}, but torch {torch.__version__} sees "
            f"{found}; use --device cpu, or a CUDA build of torch on a machine with GPUs"
        )
    sys.stdout.write(f"{gpus} x {torch.cuda.get_device_name()}, torch {torch.__version__}\n")


def random_model(args: argparse.Namespace, dtype: str = "auto", window: int | None = None) -> Any:
    """Return a Qwen3 model with random weights, the same for the same options; exit with one line where the
    sizes do not fit.

    Args:
        args: `--device` and the options of `add_model_sizes`.
        dtype: a name of `resolve_dtype`.
        window: sliding window of every layer, in tokens; None for full attention.
    """
    from transformers import AutoModelForCausalLM, Qwen3Config

    if args.hidden < 1 or args.hidden % (2 * args.head_dim):
        sys.exit(f"--hidden {args.hidden}: expected a multiple of {2 * args.head_dim}, twice --head-dim")
    config = Qwen3Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // args.head_dim,
        num_key_value_heads=args.hidden // (2 * args.head_dim), head_dim=args.head_dim,
        tie_word_embeddings=True,
        use_sliding_window=window is not None, sliding_window=window, max_window_layers=0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=resolve_dtype(dtype, args.device), attn_implementation="sdpa"
        )
    sys.stdout.write(f"{model.num_parameters():,} parameters\n")
    return model


def now() -> float:
    """Return `time.perf_counter()` after all work of this process on a GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()

"""The training loop of supervised fine-tuning: one process, one model, loss on the assistant's
tokens.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from verl.models.loader import check_causal_lm, load_causal_lm
from verl.models.path import absolute_model_path
from verl.models.saving import add_turn_ends, save_language_model
from verl.models.tokenizer_check import checked_tokenizer
from verl.trainer.config.spec import check_values
from verl.trainer.sft.chats import Chat, read_chats
from verl.trainer.sft.config import SFTConfig
from verl.trainer.sft.data import TokenizedConversation, batches, collate
from verl.trainer.sft.encoding import ChatEncoder
from verl.trainer.sft.exactness import rows_run
from verl.trainer.sft.loss import assistant_loss
from verl.trainer.sft.optim import build_optimizers
from verl.utils.data_file import DatasetError
from verl.workers.engine.layout import RopeState

logger = logging.getLogger(__name__)


def run_sft(config: SFTConfig) -> dict[str, float]:
    """Train a model, write `<default_local_dir>` (Hugging Face folder and metrics.jsonl), and
    return the last metrics.

    The folder is written under a temporary name and renamed, so that it exists only if it is
    complete.

    Raises:
        ValueError: a key is missing or invalid (ConfigError), or the data cannot be used
            (DatasetError).
        FileNotFoundError: the model folder does not exist.
        FileExistsError: the output folder exists.
    """
    check_values(config)
    out = _output_folder(config)
    chats = read_chats(config.data.train_files, config.data.messages_key, config.data.tools_key)
    if config.trainer.num_threads > 0:
        torch.set_num_threads(config.trainer.num_threads)
    model, tokenizer, together = _load(config)
    encoder = ChatEncoder(tokenizer, config.data.apply_chat_template_kwargs)
    rows = _encode_all(chats, encoder, config.data.max_length)
    _end_generation(model, tokenizer, rows, config.data.apply_chat_template_kwargs)
    aside = out.with_name(out.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    metrics = train(model, rows, tokenizer, config, aside / "metrics.jsonl", together=together)
    save_language_model(model, aside)
    tokenizer.save_pretrained(aside)
    os.replace(aside, out)
    return metrics


def train(
    model: PreTrainedModel,
    rows: list[TokenizedConversation],
    tokenizer: PreTrainedTokenizerBase,
    config: SFTConfig,
    metrics_path: Path,
    together: bool = True,
) -> dict[str, float]:
    """Train on `rows`. Return the last line of metrics, of which one is written every `log_freq`
    steps (`loss`: mean since the last).

    With `together` the rows of a batch are run in one pass, else one after the other.
    """
    data = config.data
    total = _total_steps(config, len(rows))
    optimizers = build_optimizers(model, config.optim, total)
    rng = random.Random(config.trainer.seed)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ropes = None if together else RopeState(model)
    model.train()
    started = time.monotonic()
    tokens = 0
    step = 0
    metrics = {}
    losses: list[torch.Tensor] = []
    with metrics_path.open("w", encoding="utf-8") as log:
        while step < total:
            for batch in batches(
                rows, data.train_batch_size, shuffle=data.shuffle, bucket_batches=data.bucket_batches, rng=rng
            ):
                loss = _backward(model, batch, pad, ropes)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip)
                lr = optimizers.lr
                optimizers.step()
                step += 1
                tokens += len(batch) * max(len(row.input_ids) for row in batch)
                losses.append(loss)
                if step == 1 and total > config.trainer.log_freq:
                    # the next line may be minutes away
                    logger.info("sft: %d steps, the first took %.1f s", total, time.monotonic() - started)
                if step % config.trainer.log_freq == 0 or step == total:
                    seconds = time.monotonic() - started
                    mean = torch.stack(losses).mean().item()
                    metrics = {
                        "step": step,
                        "loss": mean,
                        "grad_norm": float(norm),
                        "lr": lr,
                        "seconds": seconds,
                        "tokens": tokens,
                    }
                    losses.clear()
                    log.write(json.dumps(metrics) + "\n")
                    log.flush()
                    logger.info(
                        "sft step %d/%d loss %.4f lr %.2e %.0f tokens/s",
                        step,
                        total,
                        metrics["loss"],
                        lr,
                        tokens / seconds,
                    )
                if step == total:
                    break
    model.eval()
    return metrics


def _backward(
    model: PreTrainedModel, batch: list[TokenizedConversation], pad: int, ropes: RopeState | None
) -> torch.Tensor:
    """Add the gradients of a batch and return its mean loss over labelled tokens.

    With `ropes` the rows are run one after the other, each as on a fresh model.
    """
    device = next(model.parameters()).device
    if ropes is None:
        input_ids, labels = (tensor.to(device) for tensor in collate(batch, pad))
        loss = assistant_loss(model, input_ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
    counts = [sum(row.loss_mask[1:]) for row in batch]
    total = torch.zeros((), device=device)
    for row, count in zip(batch, counts, strict=True):
        if not count:
            continue
        ropes.reset()
        input_ids, labels = (tensor.to(device) for tensor in collate([row], pad))
        loss = assistant_loss(model, input_ids, labels, whole=True) * (count / sum(counts))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def _output_folder(config: SFTConfig) -> Path:
    if not config.trainer.default_local_dir:
        raise ValueError(
            "trainer.default_local_dir is not set; expected a folder to write, e.g. "
            "trainer.default_local_dir=outputs/sft"
        )
    out = Path(config.trainer.default_local_dir).expanduser()
    if out.exists():
        raise FileExistsError(f"trainer.default_local_dir exists: {out}; remove it or choose another folder")
    return out


def _load(config: SFTConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, bool]:
    """Return the model, its tokenizer, and whether rows are run together. Raise FileNotFoundError or
    ModelPathError for a model that cannot be loaded or trained.
    """
    if not config.model.path:
        raise ValueError("model.path is not set; expected a Hugging Face folder or hub id")
    path = absolute_model_path(config.model.path)
    if path.startswith((".", "/", "~")) and not Path(path).is_dir():
        raise FileNotFoundError(f"model.path: no such folder: {path}")
    tokenizer = checked_tokenizer(
        AutoTokenizer.from_pretrained(path, trust_remote_code=config.model.trust_remote_code), path
    )
    trust = config.model.trust_remote_code
    run = rows_run(check_causal_lm(path, trust_remote_code=trust))
    if not run.together:
        logger.info("sft: rows of a batch are run one after the other: beside others their losses differ")
    model = load_causal_lm(
        path, dtype=torch.float32, attn_implementation=run.attention, trust_remote_code=trust
    )
    if config.model.enable_gradient_checkpointing:
        model.gradient_checkpointing_enable()
    device = config.trainer.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), tokenizer, run.together


def _encode_all(chats: list[Chat], encoder: ChatEncoder, max_length: int) -> list[TokenizedConversation]:
    """Return the sequences that are trained, and log what was left out. Raise DatasetError if
    nothing is left.
    """
    encoded = [encoder.encode(chat) for chat in chats]
    rows = [row for sequences in encoded for row in sequences]
    fitting_rows = [row for row in rows if len(row.input_ids) <= max_length]
    if untrained := sum(not sequences for sequences in encoded):
        logger.warning(
            "sft: %d of %d conversations have no message to train (weight, loss_mask)", untrained, len(chats)
        )
    if more := sum(len(sequences) > 1 for sequences in encoded):
        logger.info(
            "sft: %d conversations are trained in several sequences, %d in all: the chat template "
            "shows their earlier replies in another way later",
            more,
            len(rows),
        )
    for name, count in encoder.unseen.items():
        logger.warning(
            "sft: the chat template does not show %r of %d messages, which is not trained", name, count
        )
    if len(fitting_rows) < len(rows):
        dropped = len(rows) - len(fitting_rows)
        logger.warning(
            "sft: dropped %d of %d conversations longer than data.max_length=%d",
            dropped,
            len(rows),
            max_length,
        )
    if not rows:
        raise DatasetError("no message to train: every one has weight=0 (or loss_mask, train)")
    if not fitting_rows:
        raise DatasetError(f"every conversation is longer than data.max_length={max_length} tokens")
    return fitting_rows


def _end_generation(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[TokenizedConversation],
    kwargs: Mapping[str, Any],
) -> None:
    """Let the tokens that end the template's turns, and the special ones that end the trained
    replies, end generation.
    """
    eos_token_id = model.generation_config.eos_token_id
    before = {*eos_token_id} if isinstance(eos_token_id, list) else {eos_token_id}
    add_turn_ends(model, tokenizer, kwargs)
    config = model.generation_config
    listed = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends = {*listed, *({row.input_ids[-1] for row in rows} & tokenizer.added_tokens_decoder.keys())} - {None}
    config.eos_token_id = sorted(ends)
    if more := sorted(ends - before):
        names = ", ".join(map(str, tokenizer.convert_ids_to_tokens(more)))
        logger.info("sft: %s, which ends replies of the chat template, ends generation", names)


def _total_steps(config: SFTConfig, num_rows: int) -> int:
    if config.trainer.total_training_steps > 0:
        return config.trainer.total_training_steps
    return config.trainer.total_epochs * -(-num_rows // config.data.train_batch_size)

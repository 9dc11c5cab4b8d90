"""A warm start of a tiny model with a large vocabulary: most of it with the tokens that its demonstrations
have, the end with all.

A head over 150,000 words takes nearly all of a tiny model's time, and its demonstrations have some hundred of
them. So the model is first trained with the rows of these alone; the other words then get one vector, which
the hidden states point away from, and the last demonstrations train all of it.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from verl.trainer.sft import loop
from verl.trainer.sft.chats import read_chats
from verl.trainer.sft.config import SFTConfig
from verl.trainer.sft.data import TokenizedConversation, collate
from verl.trainer.sft.encoding import ChatEncoder

logger = logging.getLogger(__name__)

LAST = 1_600  # demonstrations at the end that train all words
# Of the learning rates, for these: the model has been trained.
LAST_SHARE = 0.25
# Logit of a word that no demonstration has, where a hidden state is the mean one.
UNSEEN_LOGIT = -12.0


def run(config: SFTConfig) -> dict[str, float]:
    """Train as `run_sft` does, and return the last metrics."""
    folder = Path(str(config.model.path))
    demos = Path(config.data.train_files[0])
    lines = demos.read_text(encoding="utf-8").splitlines(keepends=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chats = read_chats([str(demos)], config.data.messages_key, config.data.tools_key)
    encoder = ChatEncoder(tokenizer, config.data.apply_chat_template_kwargs)
    encoded = [encoder.encode(chat) for chat in chats]
    if len(chats) > LAST:
        all_rows = [row for rows in encoded for row in rows]
        _train_seen_words(model, [row for rows in encoded[:-LAST] for row in rows], all_rows, config, folder)
        model.save_pretrained(folder)
    last = demos.with_name("last.jsonl")
    last.write_text("".join(lines[-LAST:]), encoding="utf-8")
    rest = copy.deepcopy(config)
    rest.data.train_files = [str(last)]
    rest.optim.lr *= LAST_SHARE
    rest.optim.muon_lr *= LAST_SHARE
    metrics = loop.run_sft(rest)
    last.unlink()
    return metrics


def _train_seen_words(
    model: PreTrainedModel,
    rows: list[TokenizedConversation],
    all_rows: list[TokenizedConversation],
    config: SFTConfig,
    folder: Path,
) -> None:
    """Train a model, whose embeddings are tied, with the rows of the words that `all_rows` have."""
    seen = sorted({token for row in all_rows for token in row.input_ids})
    place = {token: index for index, token in enumerate(seen)}
    logger.info("warm start: %d of %d words occur", len(seen), model.config.vocab_size)
    small_config = copy.deepcopy(model.config)
    small_config.vocab_size = len(seen)
    small_config.pad_token_id = None  # of the whole vocabulary
    small = AutoModelForCausalLM.from_config(small_config, dtype=torch.float32)
    state = model.state_dict()
    names = [name for name, values in state.items() if len(values) == model.config.vocab_size]
    small.load_state_dict({name: value[seen] if name in names else value for name, value in state.items()})
    compact = [replace(row, input_ids=tuple(place[token] for token in row.input_ids)) for row in rows]
    tokenizer: Any = SimpleNamespace(pad_token_id=0)
    loop.train(small, compact, tokenizer, config, folder / "metrics.jsonl")
    unseen = _away_from(small, compact[-config.data.train_batch_size :])
    for name, values in small.state_dict().items():
        if name in names:
            grown = unseen.expand_as(state[name]).clone()
            grown[seen] = values
            state[name] = grown
        else:
            state[name] = values
    model.load_state_dict(state)


@torch.no_grad()
def _away_from(model: PreTrainedModel, rows: list[TokenizedConversation]) -> torch.Tensor:
    """Return the vector of words that do not occur: its logit is `UNSEEN_LOGIT` for the mean hidden state."""
    input_ids, _ = collate(rows, 0)
    mean = model.model(input_ids=input_ids).last_hidden_state.mean((0, 1))
    return UNSEEN_LOGIT * mean / mean.dot(mean)

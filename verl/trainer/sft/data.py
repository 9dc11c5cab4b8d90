"""Conversations as token ids with a loss mask, cut into batches of similar length."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

IGNORED_LABEL = -100


@dataclass(frozen=True)
class Chat:
    """Chat messages of a row, and the JSON schemas of its tools, None without any."""

    messages: list[dict[str, str]]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Conversation:
    """Token ids of a conversation and, per token, whether it is part of an assistant message."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


def read_chats(files: Sequence[str], messages_key: str, tools_key: str) -> list[Chat]:
    """Read the chat messages and tools of every row of parquet or jsonl `files`, in order.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: no file, no row, an unknown suffix, a row without an assistant message, or tools that are no list of objects.
    """
    if not files:
        raise ValueError("data.train_files is empty; expected parquet or jsonl files, e.g. data.train_files=[demos.jsonl]")
    chats: list[Chat] = []
    for file in files:
        for index, row in enumerate(_read_rows(Path(file).expanduser())):
            messages = row.get(messages_key)
            if messages is None or not any(message["role"] == "assistant" for message in messages):
                raise ValueError(f"{file}, row {index}: column {messages_key!r} contains no assistant message; columns: {', '.join(row)}")
            chats.append(
                Chat([dict(message) for message in messages], _tools(row.get(tools_key), f"{file}, row {index}: column {tools_key!r}"))
            )
    if not chats:
        raise ValueError(f"no conversation in data.train_files: {', '.join(files)}")
    return chats


def _tools(value: Any, where: str) -> list[dict[str, Any]] | None:
    """Return the schemas of a cell: a list of objects, its JSON text, or nothing."""
    if not value:
        return None
    try:
        tools = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}; expected a list of JSON schemas") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"{where} contains {str(tools)[:80]!r}; expected a list of JSON schemas, or its JSON text")
    return tools or None


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"data.train_files: no such file: {path}")
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path).to_pylist()
    if path.suffix in (".jsonl", ".json"):
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
    raise ValueError(f"data.train_files: {path} ends in {path.suffix!r}; expected .parquet or .jsonl")


def encode(chat: Chat, tokenizer: PreTrainedTokenizerBase) -> Conversation:
    """Tokenise one conversation; the loss is on the tokens after each generation prompt, including the end token.

    A reply is tokenised separately from its prompt, as in sampling, so that training and sampling have the same ids.

    Raises:
        ValueError: the chat template rewrites earlier turns, so that the prompt is not a prefix of the conversation.
    """
    ids: list[int] = []
    mask: list[bool] = []
    text = ""
    more: dict[str, Any] = {} if chat.tools is None else {"tools": chat.tools}
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.apply_chat_template(chat.messages[:index], tokenize=False, add_generation_prompt=True, **more)
        if not prompt.startswith(text):
            raise ValueError("the chat template rewrites earlier turns; give one assistant message per conversation")
        prompt_ids = tokenizer(prompt[len(text) :], add_special_tokens=False)["input_ids"]
        reply = message["content"] + tokenizer.eos_token
        reply_ids = tokenizer(reply, add_special_tokens=False)["input_ids"]
        ids += prompt_ids + reply_ids
        mask += [False] * len(prompt_ids) + [True] * len(reply_ids)
        text = prompt + reply
    return Conversation(tuple(ids), tuple(mask))


def batches(
    rows: Sequence[Conversation], batch_size: int, *, shuffle: bool, bucket_batches: int, rng: random.Random
) -> Iterator[list[Conversation]]:
    """Yield one epoch of batches; rows of a batch have similar lengths; without `shuffle`, windows are in the order of rows."""
    order = list(range(len(rows)))
    if shuffle:
        rng.shuffle(order)
    window = batch_size * max(1, bucket_batches)
    for start in range(0, len(order), window):
        chunk = sorted(order[start : start + window], key=lambda i: len(rows[i].input_ids)) if bucket_batches > 1 else order[start:]
        cuts = [chunk[i : i + batch_size] for i in range(0, min(len(chunk), window), batch_size)]
        rng.shuffle(cuts)
        for cut in cuts:
            yield [rows[i] for i in cut]


def collate(rows: Sequence[Conversation], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right-padded (input_ids, labels), both [bsz, longest]; labels are IGNORED_LABEL at tokens without a loss."""
    longest = max(len(row.input_ids) for row in rows)
    input_ids = torch.full((len(rows), longest), pad_token_id)
    labels = torch.full((len(rows), longest), IGNORED_LABEL)
    for i, row in enumerate(rows):
        ids = torch.tensor(row.input_ids)
        input_ids[i, : len(ids)] = ids
        labels[i, : len(ids)] = ids.masked_fill(~torch.tensor(row.loss_mask), IGNORED_LABEL)
    return input_ids, labels

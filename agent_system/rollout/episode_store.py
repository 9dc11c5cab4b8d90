"""Exact copies of episodes on disk, without pickle: JSON lines, and the numbers of tokens as
safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from agent_system.environment import Task
from agent_system.record import (
    CallTimes,
    EpisodeRecord,
    RewardTerms,
    Sample,
    SampleIdentity,
    SampleRequest,
    plain,
)
from agent_system.rollout.remote import RemoteGeneration
from agent_system.tool_use import ToolUse
from verl.protocol.generate import Generation

EPISODES = "episodes.jsonl"
TOKENS = "tokens.safetensors"
CLASSES = {
    cls.__name__: cls
    for cls in (EpisodeRecord, Sample, CallTimes, Generation, RemoteGeneration, Task, ToolUse)
}
# Parts of a sample, whose fields stand beside the sample's own in the file.
PARTS = {"identity": SampleIdentity, "request": SampleRequest, "rewards": RewardTerms}
# Fields that hold records themselves; the content of all others is data, whatever it looks like.
RECORDS = ("samples", "unheard", "generation", "tools", "task", "rounds", "times")
# Fields that earlier versions did not have: written where they are not empty.
LATER = ("left_out_causes", "started", "states", "times", "explored", "program", "waited_s")
# Long fields, stored together as tensors; JSON has their lengths.
TENSORS = {
    "prompt_ids": torch.int64, "token_ids": torch.int64, "response_mask": torch.int64,
    "log_probs": torch.float64,
    "token_rewards": torch.float64,
}  # fmt: skip


def save_episodes(episodes: Sequence[EpisodeRecord], folder: Path) -> None:
    """Write episodes; values of `info`, `fields` and tasks that JSON does not have become texts, as
    in trajectory files.
    """
    long: dict[str, list[Sequence[float]]] = {name: [] for name in TENSORS}
    with (folder / EPISODES).open("w") as file:
        for episode in episodes:
            file.write(json.dumps(_encoded(episode, long)) + "\n")
    save_file(
        {name: torch.tensor(list(chain(*long[name])), dtype=dtype) for name, dtype in TENSORS.items()},
        folder / TOKENS,
    )


def load_episodes(folder: Path) -> list[EpisodeRecord]:
    """Return the episodes that `save_episodes` wrote."""
    long = {name: iter(tensor.tolist()) for name, tensor in load_file(folder / TOKENS).items()}
    return [_decoded(json.loads(line), long) for line in (folder / EPISODES).read_text().splitlines()]


def _encoded(record: Any, long: Mapping[str, list[Sequence[float]]]) -> dict[str, Any]:
    encoded_record: dict[str, Any] = {"class": type(record).__name__}
    for name, content in _contents(record):
        if name in LATER and not content:
            continue
        if name in TENSORS:
            long[name].append(content)
            encoded_record[name] = len(content)
        elif name in RECORDS and content is not None:
            encoded_record[name] = (
                [_encoded(c, long) for c in content]
                if isinstance(content, tuple)
                else _encoded(content, long)
            )
        else:
            encoded_record[name] = plain(content)
    return encoded_record


def _contents(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and content of every field, of those of the parts of a sample too."""
    for name in (f.name for f in fields(record)):
        content = getattr(record, name)
        yield from _contents(content) if name in PARTS else [(name, content)]


def _decoded(encoded_record: dict[str, Any], long: Mapping[str, Iterator[float]]) -> Any:
    content: dict[str, Any] = {}
    for name, item in encoded_record.items():
        if name in TENSORS:
            content[name] = tuple(islice(long[name], item))
        elif name in RECORDS and item is not None:
            content[name] = (
                tuple(_decoded(i, long) for i in item) if isinstance(item, list) else _decoded(item, long)
            )
        else:
            content[name] = (
                tuple(tuple(i) if isinstance(i, list) else i for i in item)
                if isinstance(item, list)
                else item
            )
    cls = CLASSES[content.pop("class")]
    for name, part in PARTS.items() if cls is Sample else ():
        content[name] = part(**{f.name: content.pop(f.name) for f in fields(part) if f.name in content})
    return cls(**content)

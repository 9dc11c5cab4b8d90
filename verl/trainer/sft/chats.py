"""The conversations of parquet, jsonl and json files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.utils.data_file import DatasetError
from verl.utils.dataset.files import read_rows
from verl.utils.dataset.messages import ChatMessage, check_media, read_messages, read_tools


@dataclass(frozen=True)
class Chat:
    """A conversation.

    Attributes:
        messages: its messages.
        tools: JSON schemas of its tools, None without any.
        where: its file and row, for errors.
    """

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    where: str = field(default="", compare=False)


def read_chats(files: Sequence[str], messages_key: str, tools_key: str) -> list[Chat]:
    """Read the conversation and the tools of every row, in order.

    Raises:
        DatasetError: a file or a row that cannot be read, a row without an assistant message, or no
            row at all.
    """
    if not files:
        raise DatasetError(
            "data.train_files is empty; expected parquet or jsonl files, e.g. data.train_files=[demos.jsonl]"
        )
    chats: list[Chat] = []
    for file in files:
        for number, row in enumerate(read_rows(file)):
            where = f"{file}, row {number}"
            if row.get(messages_key) is None:
                raise DatasetError(
                    f"{where}: column {messages_key!r} (data.messages_key) is empty, so there is "
                    f"no assistant message to train; columns: {', '.join(row)}"
                )
            messages = read_messages(row[messages_key], f"{where}: column {messages_key!r}")
            check_media(row, messages, f"{where}: column {messages_key!r}")
            if not any(message["role"] == "assistant" for message in messages):
                raise DatasetError(f"{where}: column {messages_key!r} contains no assistant message to train")
            chats.append(
                Chat(messages, read_tools(row.get(tools_key), f"{where}: column {tools_key!r}"), where)
            )
    if not chats:
        raise DatasetError(f"no conversation in data.train_files: {', '.join(files)}")
    return chats

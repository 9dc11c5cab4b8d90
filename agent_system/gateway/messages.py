"""Messages of requests in one form: what the chat template gets, and the keys by which messages are
equal whatever a client library did to their form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.projection import strip_thinking, without_thinking
from agent_system.tools.formats import with_calls

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MOST_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class NormalizedMessage:
    """One message.

    Attributes:
        fields: what the template gets: `role`, `content`, and where there are any `tool_calls`,
            `tool_call_id` and `name`.
        key: a hash, equal for messages that say the same; the thinking of an assistant's message is
            left aside.
        tool_calls: its tool calls, also where the template gets them as text.
    """

    fields: Mapping[str, Any]
    key: bytes
    tool_calls: Sequence[Mapping[str, Any]] = ()

    @property
    def role(self) -> str:
        """The role."""
        return str(self.fields["role"])


class MessageNormalizer:
    """Reads the messages of requests to one agent.

    A text loses its special tokens: what a web page says must not end a message. Ids of tool calls
    are replaced by numbers in the order of the conversation, because libraries invent their own.
    """

    def __init__(
        self,
        clean: Callable[[str], str],
        reads_name: bool,
        reads_calls: bool,
        call_id: Callable[[str, int], str] | None = None,
        call_ids: Callable[[Sequence[tuple[str, str]], int], list[str]] | None = None,
        clean_reply: Callable[[str], str] | None = None,
    ) -> None:
        """Set what the template reads.

        Args:
            clean: takes special tokens out of a text.
            reads_name: the template shows `message.name`.
            reads_calls: it shows `message.tool_calls`; for one that does not, calls are put into
                the text.
            call_id: makes the id of a call from its name and its place in the conversation.
            call_ids: chooses the ids with which calls of a reply are shown, see
                `ChatTemplate.call_ids`.
            clean_reply: as `clean`, for replies, which may have tokens around calls.
        """
        self._clean = clean
        self._clean_reply = clean_reply or clean
        self._reads_name = reads_name
        self._reads_calls = reads_calls
        self._call_id = call_id or (lambda name, index: f"call{index:05d}")
        self._call_ids = call_ids or (
            lambda calls, before: [
                model_id or self._call_id(name, index) for index, (name, model_id) in enumerate(calls, before)
            ]
        )

    def normalize(self, messages: Sequence[Any]) -> list[NormalizedMessage]:
        """Return the messages of a request. Raise Refusal naming the message that cannot be read."""
        if len(messages) > MOST_MESSAGES:
            raise Refusal(
                f"messages has {len(messages)} entries; at most {MOST_MESSAGES} are read", param="messages"
            )
        calls = _ToolCallIds()
        try:
            normalized = [
                self._message(message, f"messages[{index}]", calls) for index, message in enumerate(messages)
            ]
        except RecursionError as error:
            raise Refusal("the arguments of a tool call are nested too deep", param="messages") from error
        return _in_order(normalized)

    def clean(self, text: str) -> str:
        """Return a text without special tokens, in valid Unicode."""
        # JSON may hold half of a surrogate pair, which no tokenizer encodes.
        return self._clean(text.encode("utf-8", "replace").decode())

    def clean_json(self, value: Any) -> Any:
        """Return JSON with all its texts, keys included, cleaned."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(str(name)): self.clean_json(content) for name, content in value.items()}
        return [self.clean_json(item) for item in value] if isinstance(value, list) else value

    def _message(self, message: Any, where: str, ids: _ToolCallIds) -> NormalizedMessage:
        role = ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
        if role is None:
            value = message.get("role") if isinstance(message, dict) else message
            raise Refusal(f"{where}.role must be one of {', '.join(ROLES)}, found {value!r:.80}", param=where)
        if message.get("function_call"):
            raise Refusal(f"{where}.function_call is not supported; use tool_calls", param=where)
        content = message.get("content")
        text = self.clean(_text(message.get("refusal") if content is None else content, where))
        fields: dict[str, Any] = {
            "role": role,
            "content": without_thinking(text) if role == "assistant" else text,
        }
        if self._reads_name and isinstance(message.get("name"), str):
            fields["name"] = self.clean(message["name"])
        calls = self._tool_calls(message.get("tool_calls"), where, ids) if role == "assistant" else []
        if role == "tool":
            fields["tool_call_id"], name = ids.of_result(message.get("tool_call_id"))
            if name:
                fields["name"] = name
        return self._normalized(fields, calls)

    def normalize_reply(
        self, content: str, thought: str, calls: Sequence[Mapping[str, Any]], before: int, text: str = ""
    ) -> tuple[NormalizedMessage, dict[str, Any]]:
        """Return a reply, equal to the message with which a client echoes it, and what the template
        gets of it: the same with its thinking.

        Args:
            content: its text without thinking and calls.
            thought: its text with the thinking as sampled, without calls.
            calls: its tool calls: `name`, `arguments`, and the `id` that the model gave, or an
                empty one.
            before: number of tool calls in the conversation before it.
            text: the whole reply, for a template that shows no calls: its model writes them in the
                text.
        """
        cleaned = self.clean_json(list(calls))
        numbered = [
            _tool_call(self._call_id(call["name"], before + i), call["name"], call["arguments"])
            for i, call in enumerate(cleaned)
        ]
        model_ids = self._call_ids([(call["name"], call["id"]) for call in cleaned], before)
        sampled = [{**call, "id": call_id} for call, call_id in zip(numbered, model_ids, strict=True)]
        fields = {"role": "assistant", "content": without_thinking(self.clean(content))}
        if calls and not self._reads_calls and text:
            with_thinking = {**fields, "content": self._clean_reply(text)}
        else:
            with_thinking = fields | self.shown_calls(self.clean(thought), sampled)
        return self._normalized(fields, numbered), with_thinking

    def shown_calls(self, content: str, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the content and the tool calls of a message, for this template."""
        if self._reads_calls or not calls:
            return {"content": content, **({"tool_calls": list(calls)} if calls else {})}
        return {"content": with_calls(content, calls)}

    def _normalized(self, fields: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> NormalizedMessage:
        """Return a message of these fields, without calls, and these calls."""
        with_tool_calls = {**fields, **self.shown_calls(fields["content"], calls)}
        return NormalizedMessage(with_tool_calls, _key(fields, calls), calls)

    def _tool_calls(self, entries: Any, where: str, ids: _ToolCallIds) -> list[dict[str, Any]]:
        if not isinstance(entries or [], list):
            raise Refusal(f"{where}.tool_calls must be a list", param=where)
        calls = []
        ids.begin_message()
        for index, entry in enumerate(entries or []):
            function = entry.get("function") if isinstance(entry, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise Refusal(f"{where}.tool_calls[{index}] must be a function call with a name", param=where)
            name = self.clean(function["name"])
            number = self._call_id(name, ids.count)
            ids.add(entry.get("id"), number, name)
            calls.append(_tool_call(number, name, self.clean_json(_arguments(function.get("arguments")))))
        return calls


class _ToolCallIds:
    """The tool calls of a conversation so far, by the ids that the client gave them.

    Several calls may have one id, or none: those of one message get the results in their order,
    and those of a later message take the place of earlier ones.

    Attributes:
        count: how many.
    """

    def __init__(self) -> None:
        self.count = 0
        self._calls: dict[str, list[tuple[str, str]]] = {}
        self._new_ids: set[str] = set()

    def begin_message(self) -> None:
        """Note that the calls of another message follow."""
        self._new_ids = set()

    def add(self, client_id: Any, number: str, tool: str) -> None:
        """Note a call: the client's id, the id here, and the name of the tool."""
        name = str(client_id)
        if name not in self._new_ids:
            self._calls[name] = []
        self._new_ids.add(name)
        self._calls[name].append((number, tool))
        self.count += 1

    def of_result(self, client_id: Any) -> tuple[str, str]:
        """Return the id here and the tool of the call that a result names; empty texts if there is
        none.
        """
        calls = self._calls.get(str(client_id), [("", "")])
        return calls.pop(0) if len(calls) > 1 else calls[0]


def _in_order(messages: list[NormalizedMessage]) -> list[NormalizedMessage]:
    """Return the messages with the results of a reply's calls in the order of the calls: templates
    tell the results by their order.
    """
    ordered: list[NormalizedMessage] = []
    order: dict[str, int] = {}
    for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
        members = list(group)
        if is_result:
            # a result that names no call of the reply stays behind those that do
            members.sort(key=lambda message: order.get(str(message.fields["tool_call_id"]), len(order)))
        else:
            order = {call["id"]: index for index, call in enumerate(members[-1].tool_calls)}
        ordered += members
    return ordered


def _key(fields: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> bytes:
    if fields["role"] == "assistant":  # client libraries strip replies
        fields = {**fields, "content": strip_thinking(fields["content"])}
    text = json.dumps([fields, _as_in_javascript(calls)], sort_keys=True)
    return blake2b(text.encode(), digest_size=16).digest()


def _tool_call(number: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def _as_in_javascript(value: Any) -> Any:
    """Return JSON with whole numbers as integers: JavaScript writes 2.0 as 2."""
    if isinstance(value, dict):
        return {name: _as_in_javascript(content) for name, content in value.items()}
    if isinstance(value, list):
        return [_as_in_javascript(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _arguments(text: Any) -> Any:
    """Return the arguments of a tool call as an object; text that is no JSON as it is."""
    if not isinstance(text, str):
        return text or {}
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text


def _text(content: Any, where: str) -> str:
    """Return the content of a message as one text. Raise Refusal for parts that are no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for entry in content if isinstance(content, list) else [content]:
        kind = entry.get("type") if isinstance(entry, dict) else type(entry).__name__
        if kind not in ("text", "refusal") or not isinstance(entry.get(kind), str):
            raise Refusal(f"{where}.content has a part of type {kind!r}; only text can be read", param=where)
        texts.append(entry[kind])
    return "".join(texts)

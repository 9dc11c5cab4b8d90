"""Messages as the chat template gets them, and the keys by which messages are equal whatever a client library
did to their form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from typing import Any

from agent_system.gateway.errors import Refusal
from agent_system.projection import strip_thinking, without_thinking
from agent_system.tools.formats import with_calls

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MOST_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class View:
    """One message.

    Attributes:
        message: what the template gets: `role`, `content`, and where there are any `tool_calls`,
            `tool_call_id` and `name`.
        key: a hash, equal for messages that say the same; the thinking of an assistant's message is left
            aside.
        call_list: its tool calls.
    """

    message: Mapping[str, Any]
    key: bytes
    call_list: Sequence[Mapping[str, Any]] = ()

    @property
    def calls(self) -> int:
        """Number of its tool calls."""
        return len(self.call_list)

    @property
    def role(self) -> str:
        """The role."""
        return str(self.message["role"])


class Viewer:
    """Reads the messages of requests to one agent.

    A text loses its special tokens: what a web page says must not end a message. Ids of tool calls are
    replaced by numbers in the order of the conversation, because libraries invent their own.
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
            reads_calls: it shows `message.tool_calls`; for one that does not, calls are put into the text.
            call_id: makes the id of a call from its name and its place in the conversation.
            call_ids: chooses the ids with which calls of a reply are shown, see `ChatTemplate.call_ids`.
            clean_reply: as `clean`, for replies, which may have tokens around calls.
        """
        self._clean_reply = clean_reply or clean
        self._clean, self._reads_name, self._reads_calls = clean, reads_name, reads_calls
        self._call_id = call_id or (lambda name, place: f"call{place:05d}")
        self._call_ids = call_ids or (
            lambda calls, before: [
                own or self._call_id(name, place) for place, (name, own) in enumerate(calls, before)
            ]
        )

    def views(self, messages: Sequence[Any]) -> list[View]:
        """Return the views of a request's messages. Raise Refusal naming the message that cannot be read."""
        if len(messages) > MOST_MESSAGES:
            raise Refusal(
                f"messages has {len(messages)} entries; at most {MOST_MESSAGES} are read", param="messages"
            )
        calls = _Calls()
        try:
            return _in_order(
                [self._view(message, f"messages[{place}]", calls) for place, message in enumerate(messages)]
            )
        except RecursionError as error:
            raise Refusal("the arguments of a tool call are nested too deep", param="messages") from error

    def clean(self, text: str) -> str:
        """Return a text without special tokens, in valid Unicode."""
        return self._clean(text.encode("utf-8", "replace").decode())

    def clean_json(self, value: Any) -> Any:
        """Return JSON with all its texts, keys included, cleaned."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(str(name)): self.clean_json(content) for name, content in value.items()}
        return [self.clean_json(item) for item in value] if isinstance(value, list) else value

    def _view(self, message: Any, where: str, seen: _Calls) -> View:
        role = ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
        if role is None:
            found = message.get("role") if isinstance(message, dict) else message
            raise Refusal(f"{where}.role must be one of {', '.join(ROLES)}, found {found!r:.80}", param=where)
        text = self.clean(_text(message.get("content"), where))
        view: dict[str, Any] = {
            "role": role,
            "content": without_thinking(text) if role == "assistant" else text,
        }
        if self._reads_name and isinstance(message.get("name"), str):
            view["name"] = self.clean(message["name"])
        calls = self._calls(message.get("tool_calls"), where, seen) if role == "assistant" else []
        if role == "tool":
            view["tool_call_id"], name = seen.numbers.get(str(message.get("tool_call_id")), ("", ""))
            if name:
                view["name"] = name
        return View(view | self.shown_calls(view["content"], calls), _key(view, calls), calls)

    def reply(
        self, content: str, thought: str, calls: Sequence[Mapping[str, Any]], before: int, text: str = ""
    ) -> tuple[View, dict[str, Any]]:
        """Return the view of a reply, equal to that of the message with which a client echoes it, and the
        message with its thinking.

        Args:
            content: its text without thinking and calls.
            thought: its text with the thinking as sampled, without calls.
            calls: its tool calls: `name`, `arguments`, and the `id` that the model gave, or an empty one.
            before: number of tool calls in the conversation before it.
            text: the whole reply, for a template that shows no calls: its model writes them in the text.
        """
        cleaned = self.clean_json(list(calls))
        numbered = [
            _call(self._call_id(call["name"], before + i), call["name"], call["arguments"])
            for i, call in enumerate(cleaned)
        ]
        sampled = [
            {**call, "id": call_id}
            for call, call_id in zip(
                numbered, self._call_ids([(own["name"], own["id"]) for own in cleaned], before), strict=True
            )
        ]
        view = {"role": "assistant", "content": without_thinking(self.clean(content))}
        if calls and not self._reads_calls and text:
            whole = {**view, "content": self._clean_reply(text)}
        else:
            whole = view | self.shown_calls(self.clean(thought), sampled)
        return View(view | self.shown_calls(view["content"], numbered), _key(view, numbered), numbered), whole

    def shown_calls(self, content: str, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the content and the tool calls of a message, for this template."""
        if self._reads_calls or not calls:
            return {"content": content, **({"tool_calls": list(calls)} if calls else {})}
        return {"content": with_calls(content, calls)}

    def _calls(self, found: Any, where: str, seen: _Calls) -> list[dict[str, Any]]:
        calls = []
        if not isinstance(found or [], list):
            raise Refusal(f"{where}.tool_calls must be a list", param=where)
        for place, call in enumerate(found or []):
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise Refusal(f"{where}.tool_calls[{place}] must be a function call with a name", param=where)
            name = self.clean(function["name"])
            number = self._call_id(name, seen.count)
            seen.numbers[str(call.get("id"))] = (number, name)
            seen.count += 1
            calls.append(_call(number, name, self.clean_json(_arguments(function.get("arguments")))))
        return calls


@dataclass
class _Calls:
    """Tool calls of a conversation so far: how many, and the number and the tool of each id."""

    count: int = 0
    numbers: dict[str, tuple[str, str]] = field(default_factory=dict)


def _in_order(views: list[View]) -> list[View]:
    """Return the views with the results of a reply's calls in the order of the calls: templates show them by
    their place.
    """
    ordered: list[View] = []
    places: dict[str, int] = {}
    for is_result, group in groupby(views, key=lambda view: view.role == "tool"):
        members = list(group)
        if is_result:
            members.sort(key=lambda view: places.get(str(view.message["tool_call_id"]), len(places)))
        else:
            places = {call["id"]: place for place, call in enumerate(members[-1].call_list)}
        ordered += members
    return ordered


def _key(view: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> bytes:
    if view["role"] == "assistant":  # client libraries strip replies
        view = {**view, "content": strip_thinking(view["content"])}
    return blake2b(
        json.dumps([view, _as_in_javascript(calls)], sort_keys=True).encode(), digest_size=16
    ).digest()


def _call(number: str, name: str, arguments: Any) -> dict[str, Any]:
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
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            raise Refusal(f"{where}.content has a part of type {kind!r}; only text can be read", param=where)
        texts.append(part[kind])
    return "".join(texts)

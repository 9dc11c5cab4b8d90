"""What becomes of calls that a published template shows: read back, refused, or read otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.template_trials import FIRST, HARD, SECOND, TOOLS
from agent_system.tools.formats import OfferedTools, read_calls
from tests.templates.published import byte_tokenizer

OFFERED = OfferedTools.of(TOOLS)
SITUATIONS = {
    "call": ((FIRST,), False),
    "two calls": ((FIRST, SECOND), False),
    "thinking + call": ((FIRST,), True),
    "hard": ((HARD,), False),
}


@dataclass(frozen=True)
class Outcome:
    """Of one template.

    Attributes:
        name: of the template.
        syntax: the kind of its syntax, or why there is none.
        read: for each situation: `exact`, `not shown`, `refused` or `wrong`.
    """

    name: str
    syntax: str
    read: dict[str, str]


def outcome(name: str, source: str) -> Outcome:
    """Return what becomes of the calls of a template: each is rendered by it, tokenized, decoded and read."""
    chat = ChatTemplate(byte_tokenizer(source))
    form = chat.calls
    if form is None:
        return Outcome(
            name, "", dict.fromkeys(SITUATIONS, "refused" if "tool_calls" in source else "not shown")
        )
    return Outcome(
        name,
        form.syntax.kind,
        {label: _read(chat, calls, thinks) for label, (calls, thinks) in SITUATIONS.items()},
    )


def _read(chat: ChatTemplate, calls: Any, thinks: bool) -> str:
    form = chat.calls
    assert form is not None, "only templates with calls are tried"
    if len(calls) > form.most:
        return "not shown"
    if form.numbered:
        calls = [replace(call, id=f"functions.{call.name}:{place}") for place, call in enumerate(calls)]
    said: dict[str, Any] = {
        "role": "assistant",
        "content": form.empty,
        "tool_calls": [call.message(form.as_text) for call in calls],
    }
    if thinks:
        said["content"] = "<think>\nzq thought\n</think>\n\n"
    asked = {"role": "user", "content": "zq question"}
    text = chat.render([asked, said], TOOLS, prompt=False).rpartition("zq question")[2]
    if not all(call.name in text for call in calls):
        results = [
            {"role": "tool", "content": "zq result", "name": call.name, "tool_call_id": call.id}
            for call in calls
        ]
        text = (
            chat.render([asked, said, *results], TOOLS, prompt=False)
            .rpartition("zq question")[2]
            .partition("zq result")[0]
        )
    if not all(key in text for call in calls for key in call.arguments):
        return "not shown"
    ids = chat.tokenizer.encode(chat.without_lead(text).removesuffix(chat.after), add_special_tokens=False)
    shown = chat.text_of(ids)
    found = [(r.name, r.arguments, r.error) for r in read_calls(shown, chat.syntaxes, OFFERED)]
    if found == [(call.name, dict(call.arguments), "") for call in calls]:
        return "exact"
    if any(error for _, _, error in found) or not found or not form.is_exact:
        return "refused"
    return "wrong"

"""The tokens that end a turn of the assistant, found by rendering a chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from verl.protocol.template_time import template_clock

_QUESTION = "zq question"
_ANSWER = "zq answer"
_THOUGHT = "zq thought"
_TOOL = {
    "type": "function",
    "function": {"name": "zq_tool", "description": "zq", "parameters": {"type": "object", "properties": {}}},
}
_FIELDS = ("reasoning_content", "reasoning", "thinking")


def turn_end_ids(tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> frozenset[int]:
    """Return the ids of the tokens that the chat template puts after a reply.

    A token that also stands between a reply's thinking and its answer ends no turn. Where no token
    ends a reply, the one that begins the next turn does.

    Args:
        tokenizer: a Hugging Face tokenizer; one without a chat template has no such token.
        template_kwargs: more arguments of the template, such as `chat_template`.
    """
    kwargs = {**template_clock(), **(template_kwargs or {})}
    if not (kwargs.get("chat_template") or tokenizer.chat_template):
        return frozenset()

    def rendered(conversation: Sequence[Mapping[str, Any]]) -> str:
        # some templates show no conversation without tools
        for tools in (None, [_TOOL]):
            try:
                return str(
                    tokenizer.apply_chat_template(list(conversation), tools=tools, tokenize=False, **kwargs)
                )
            except Exception:
                # a template may raise anything for a conversation that it does not show
                continue
        return ""

    def around_answer(field: str = "", more: Sequence[Mapping[str, Any]] = ()) -> tuple[str, str]:
        """Return what stands before an answer, from its thinking or the question on, and after it,
        up to the next question.
        """
        reply = {"role": "assistant", "content": _ANSWER, **({field: _THOUGHT} if field else {})}
        conversation = [{"role": "user", "content": _QUESTION}, reply, *more]
        text = rendered(conversation)
        if _ANSWER not in text:  # some templates show texts only as parts
            text = rendered(
                [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in conversation]
            )
        head, _, rest = text.rpartition(_ANSWER)
        if not head or (field and _THOUGHT not in head):
            return "", ""
        return head.rpartition(_THOUGHT if field else _QUESTION)[2], rest.partition(_QUESTION)[0]

    tokens = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()} - {""}
    inner = " ".join(around_answer(field)[0] for field in _FIELDS)
    between, final = around_answer()
    earlier = around_answer(more=[{"role": "user", "content": _QUESTION}])[1]
    after = _tokens(shared_start(final, earlier), tokens) or _tokens(final, tokens)
    end_tokens = [token for token in after if token not in inner]
    also_of_the_user = [token for token in end_tokens if token in between]
    end = next(
        iter(
            [
                *also_of_the_user,
                *end_tokens,
                *(token for token in _tokens(earlier, tokens) if token not in inner),
            ]
        ),
        "",
    )
    return frozenset([int(tokenizer.convert_tokens_to_ids(end))] if end else [])


def _tokens(text: str, tokens: set[str]) -> list[str]:
    """Return the tokens with which a text begins, which blanks and words may follow."""
    if not any(text.lstrip().startswith(token) for token in tokens):
        return []
    return re.findall("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))), text)


def shared_start(*texts: str) -> str:
    """Return the beginning that all texts have."""
    if not texts:
        return ""
    first = min(texts)
    last = max(texts)
    length = next(
        (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    return first[:length]

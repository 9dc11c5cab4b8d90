"""Conversations in a published template, played through the gateway's conversations and through `ToolAgent`'s
prompts.

The model writes what the template itself shows as the reply. Every prompt is compared with the template's
rendering of the conversation.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.gateway.chat_request import ChatRequest
from agent_system.gateway.conversations import AgentConversations
from agent_system.gateway.errors import Refusal
from agent_system.gateway.prompt_continuation import continuation_of
from agent_system.projection import thoughts
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.template_marks import whole_marks
from agent_system.rollout.tokens import decode, encode_all, special_tokens
from agent_system.rollout.tool_loop import ToolPromptBuilder
from agent_system.testing import ScriptedEngine
from agent_system.tools import ToolAgent
from agent_system.tools.formats import OfferedTools, split_calls
from tests.templates.published import NPM, byte_tokenizer, named_tokens, vocabulary
from verl.protocol.generate import Generation, SamplingParams
from verl.protocol.turns import shared_start, turn_end_ids
from verl.trainer.config import GatewayConfig

FIELDS = {"fruit": {"type": "string", "description": "f"}, "count": {"type": "integer", "description": "c"}}
PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Price.",
        "parameters": {"type": "object", "properties": FIELDS, "required": ["fruit"]},
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "Time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
TOOLS = [PRICE, CLOCK]
PLUM = ("price", {"fruit": "plum", "count": 3})
PEAR = ("price", {"fruit": "pear", "count": 1})
RIGHT = "cxa"  # goes on; goes on with another tokenization of the same text; is rendered anew, and counted


@dataclass(frozen=True)
class Step:
    """A request and its reply.

    Attributes:
        asked: new messages; results of tools follow the calls of the reply before them.
        content, thought, calls: of the reply.
        cut: the reply ends at the longest length.
    """

    asked: Sequence[Mapping[str, Any]] = ()
    content: str = "Paris."
    thought: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    cut: bool = False


def _user(text: str = "Capital of France?") -> Mapping[str, Any]:
    return {"role": "user", "content": text}


ITALY = Step([_user("And Italy?")], "Rome.")
CONVERSATIONS: dict[str, Sequence[Step]] = {
    "plain": (Step([_user()]), ITALY, Step([_user("And Spain?")], "Madrid.")),
    "system": (
        Step([{"role": "system", "content": "Be brief."}, _user()]),
        ITALY,
        Step([_user("And Spain?")], "Madrid."),
    ),
    "two users": (Step([_user(), _user("Quickly.")]), ITALY),
    "empty reply": (Step([_user()], ""), ITALY),
    "cut": (Step([_user()], "Paris is the capital of France.", cut=True), ITALY),
    "blanks around": (Step([_user()], "  Paris. \n"), ITALY),
    "code": (Step([_user("Code?")], "    if x:\n        return 1"), ITALY),
    "scripts": (Step([_user("Größe? 日本 Ж")], "Ja, 東京 \U0001f600 5 < 6 & «7»."), ITALY),
    "thinking": (Step([_user()], thought="Easy."), ITALY),
    "cut thinking": (Step([_user()], thought="That is an easy question, I think.", cut=True), ITALY),
    "tool": (Step([_user("Plums?")], "", calls=[PLUM]), Step(), ITALY),
    "parallel": (Step([_user("Plums?")], "", calls=[PLUM, PEAR]), Step(), ITALY),
    "text and tool": (Step([_user("Plums?")], "I look.", calls=[PLUM]), Step(), ITALY),
    "thinking and tool": (Step([_user("Plums?")], "", "Look.", calls=[PLUM]), Step(), ITALY),
    "two rounds": (Step([_user("Plums?")], "", calls=[PLUM]), Step([], "", calls=[PEAR]), Step()),
}


@dataclass
class Played:
    """A conversation in a template.

    Attributes:
        turns: one letter for every request after the first, see `RIGHT`; `r`: the request is refused. Wrong
            are `A` (counted as rewritten although the template goes on), `K` (goes on although the template
            shows it in another way), `X` (rendered anew, otherwise).
        wrong: what else is wrong.
        refused: why a request was refused.
    """

    turns: str = ""
    wrong: list[str] = field(default_factory=list)
    refused: str = ""


def binding_of(tokenizer: Any) -> AgentBinding:
    """An agent's policy with a tokenizer."""
    sampling = SamplingParams(
        400, stop_token_ids=tuple(sorted({tokenizer.eos_token_id, *turn_end_ids(tokenizer)} - {None}))
    )
    return AgentBinding("A", "a", "a", ScriptedEngine(tokenizer, ()), tokenizer, sampling, sampling, 10_000)


class Conversation:
    """One conversation in a template."""

    def __init__(self, chat: ChatTemplate, steps: Sequence[Step]) -> None:
        self.chat, self.steps, self.tokenizer = chat, steps, chat.tokenizer
        self.tools = TOOLS if any(step.calls for step in steps) else []
        self.known: list[dict[str, Any]] = []
        self.count = 0
        self.played = Played()
        self.sent: tuple[int, ...] = ()

    def said(self, step: Step) -> dict[str, Any]:
        """The reply as a message."""
        marks = self.chat.marks
        inner = f"{marks.lead}{step.thought}{marks.trail}"
        content = f"<think>{inner}</think>{marks.gap}{step.content}" if step.thought else step.content
        calls = [
            {
                "id": self.chat.call_id(name, self.count + i),
                "type": "function",
                "function": {"name": name, "arguments": dict(arguments)},
            }
            for i, (name, arguments) in enumerate(
                step.calls[: self.chat.calls.most if self.chat.calls else None]
            )
        ]
        return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}

    def results(self) -> list[dict[str, Any]]:
        """Results of the calls of the last reply."""
        calls = self.known[-1].get("tool_calls", ()) if self.known else ()
        return [
            {
                "role": "tool",
                "content": f"{7 + place}",
                "name": call["function"]["name"],
                "tool_call_id": call["id"],
            }
            for place, call in enumerate(calls)
        ]

    def name_calls(self, ids: Sequence[str]) -> None:
        """Take over the ids of the last reply's calls where the model writes them."""
        if self.chat.calls is not None and self.chat.calls.numbered:
            for call, call_id in zip(self.known[-1].get("tool_calls", ()), ids, strict=False):
                call["id"] = call_id

    def reply(self, step: Step, said: dict[str, Any], prompt: str) -> tuple[Generation, dict[str, Any]]:
        """The tokens that the model writes for a reply, and the reply as a message: with thinking where the
        prompt begins it.
        """
        text, said = self._text_of(step, said, prompt)
        ids = encode_all(self.tokenizer, [prompt + text])[0]
        head = encode_all(self.tokenizer, [prompt])[0]
        ids = ids[len(head) :] if ids[: len(head)] == head else self._inside(text)
        ends = turn_end_ids(self.tokenizer)
        special = {*self.tokenizer.convert_tokens_to_ids(special_tokens(self.tokenizer))}
        place = next((i for i, token in enumerate(ids) if token in ends), None)
        if place is not None:
            ids = ids[: place + 1]
        elif not ids or ids[-1] not in special or (ends and not step.calls):
            ids = (*ids, *(sorted(ends)[:1] or [self.tokenizer.eos_token_id]))
        if step.cut:
            ids = ids[: max(1, (len(ids) - 1) // 2)]
        return Generation(ids, (-0.5,) * len(ids), "length" if step.cut else "stop"), said

    def _inside(self, text: str) -> tuple[int, ...]:
        """The tokens of a text as they stand inside another: alone, some vocabularies put a blank
        before it.
        """
        whole, head = encode_all(self.tokenizer, [f"\n{text}"])[0], encode_all(self.tokenizer, ["\n"])[0]
        return whole[len(head) :] if whole[: len(head)] == head else encode_all(self.tokenizer, [text])[0]

    def _text_of(self, step: Step, said: dict[str, Any], prompt: str) -> tuple[str, dict[str, Any]]:
        marks = self.chat.marks
        opened = bool(marks.begin) and prompt.rstrip().endswith(marks.begin)
        whole = self.chat.render([*self.known, said], self.tools, prompt=False)
        reply = whole[len(prompt) :] if whole.startswith(prompt) else ""
        for token in self.tokenizer.convert_ids_to_tokens(sorted(turn_end_ids(self.tokenizer))):
            reply = reply.partition(token)[0]
        shows_all = whole.startswith(prompt) and all(name in reply for name, _ in step.calls)
        if opened and not (step.thought and shows_all):
            begun = prompt[prompt.rindex(marks.begin) + len(marks.begin) :]
            inner = f"{step.thought or 'hm'}{marks.trail}"
            said = {**said, "content": f"<think>{begun}{inner}</think>{marks.gap}{step.content}"}
            calls = ""
            if step.calls:
                shown = self.chat.render([*self.known, said, *self._results_of(said)], self.tools)
                calls = self._calls_in(
                    shown[self.chat.begin_of_calls(shown, len(prompt) - len(self.chat.opening)) :]
                )
            return f"{inner}{marks.end}{marks.gap}{step.content}{calls or self.chat.after}", said
        text = whole[len(prompt) :] if whole.startswith(prompt) else ""
        if not whole.startswith(prompt) and not step.calls and not step.thought:
            return f"{self.chat._before}{marks.before}{step.content}{self.chat.after}", said
        if not whole.startswith(prompt) and not step.thought:
            shown = self.chat.render([*self.known, said, *self._results_of(said)], self.tools)
            begin = self.chat.begin_of_calls(shown, len(whole_marks(shared_start(shown, prompt))))
            gap = shown[:begin].rpartition(step.content)[2] if step.content else ""
            return f"{step.content}{gap if not gap.strip() else ''}{self._calls_in(shown[begin:])}", said
        if not whole.startswith(prompt):
            text = whole[len(shared_start(whole, prompt[: len(prompt) - len(self.chat.opening)])) :]
            thought = text.find(step.thought) if step.thought and marks.begin else -1
            # an empty block of the prompt is no part of it
            begins = text.rfind(marks.begin, 0, thought) if thought >= 0 else -1
            text = text[begins:] if begins >= 0 else self.chat.without_lead(text)
        if step.calls:
            shown = self.chat.render([*self.known, said, *self._results_of(said)], self.tools)
            # only together with its result
            if shown.startswith(prompt) and not all(name in text for name, _ in step.calls):
                text = shown[len(prompt) :]
                begin = self.chat.begin_of_calls(text, 0)
                text = text[:begin] + self._calls_in(text[begin:])
        return text, said

    def _calls_in(self, text: str) -> str:
        """The calls with which a text begins, and the token after them."""
        calls = self.chat.calls
        assert calls is not None, "only templates with calls are asked"
        spans = list(calls.syntax.spans(text, OfferedTools.of(TOOLS)))
        end = spans[-1].end if spans else len(text)
        rest = text[end:]
        token = min((t for t in special_tokens(self.tokenizer) if t in rest), key=rest.index, default="")
        return text[:end] + (
            rest[: rest.index(token) + len(token)] if token and not rest[: rest.index(token)].strip() else ""
        )

    def _results_of(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        earlier = self.known
        self.known = [*earlier, dict(said)]
        found = self.results()
        self.known = earlier
        return found

    def judge(self, ids: tuple[int, ...], text: str, rewritten: bool) -> None:
        """Add the letter of a prompt after a reply."""
        expected = self.chat.render(self.known, self.tools)
        whole = encode_all(self.tokenizer, [expected])[0]
        goes_on = ids[: len(self.sent)] == self.sent
        same = ids == whole
        same_text = text == expected or decode(self.tokenizer, ids, special=True) == decode(
            self.tokenizer, whole, special=True
        )
        could = whole[: len(self.sent)] == self.sent
        if not rewritten:
            self.played.turns += (
                "c" if same and goes_on else "x" if goes_on and same_text else "K" if goes_on else "X"
            )
        else:
            self.played.turns += "A" if could else "a" if same_text else "X"

    def heard(
        self, step: Step, text: str, content: str, thinking: str, calls: Sequence[tuple[str, Any]]
    ) -> None:
        """Compare a reply as it was read with what was meant, and its tokens show."""
        if step.cut:
            return
        meant_text = step.content.strip() if step.content.strip() in text else ""
        # some show it as thinking
        if content.strip() != meant_text and not (step.calls and meant_text == thinking.strip()):
            self.played.wrong.append(f"content {content!r:.60}")
        if (
            step.thought
            and step.thought in text
            and thinking.strip() != step.thought
            and self.chat.marks.field != "content"
        ):
            self.played.wrong.append(f"thinking {thinking!r:.60}")
        meant = [(name, dict(arguments)) for name, arguments in step.calls][
            : 1 if self.chat.calls and self.chat.calls.most == 1 else None
        ]
        if [(name, dict(arguments)) for name, arguments in calls] != meant:
            self.played.wrong.append(f"calls {calls!r:.80}")


def play(chat: ChatTemplate, steps: Sequence[Step]) -> Played:
    """Play a conversation through the gateway."""
    if any(step.calls for step in steps) and (chat.calls is None or not chat.shows_tools):
        return Played(refused="the template shows no calls that can be read")
    binding = binding_of(chat.tokenizer)
    object.__setattr__(binding, "chat", chat)
    gateway = AgentConversations(continuation_of(binding, GatewayConfig()))
    own = Conversation(chat, steps)
    messages: list[Any] = []
    answers: list[str] = []
    for number, step in enumerate(steps):
        asked = [*own.results(), *(dict(message) for message in step.asked)]
        own.known += asked
        results = [
            {"role": "tool", "content": m["content"], "tool_call_id": i}
            for m, i in zip(asked, answers, strict=False)
        ]
        messages += [*results, *asked[len(answers) :]]
        request = ChatRequest("A", messages, own.tools)
        try:
            built = gateway.prompt_of(request)
        except Refusal as error:
            own.played.turns += "r"
            own.played.refused = str(error)
            break
        if number:
            own.judge(built.prompt.ids, built.prompt.text, bool(built.rewritten))
        said = own.said(step)
        try:
            generation, said = own.reply(step, said, built.prompt.text)
        except Exception as error:  # the template cannot show such a reply
            own.played.refused = str(error)
            break
        text = binding.text_of(generation, built.prompt.text)
        reply: Any = (
            SimpleNamespace(turn=1, number=number),
            SimpleNamespace(generation=generation, text=text),
        )
        choice = gateway.answer(request, built, [reply], "x").choices[0]
        calls = [(name, json.loads(arguments)) for _, name, arguments in choice.calls]
        own.heard(
            step,
            decode(chat.tokenizer, generation.token_ids, special=True),
            choice.content,
            choice.thinking,
            calls,
        )
        if own.played.wrong:
            break
        own.known.append({"role": "assistant", "content": closed(text)} if step.cut else said)
        own.count += len(step.calls)
        own.sent = (*built.prompt.ids, *generation.token_ids)
        answers = [call_id for call_id, _, _ in choice.calls]
        own.name_calls(
            [request.id for request in split_calls(text, chat.syntaxes, OfferedTools.of(TOOLS))[1]]
        )
        messages.append({key: value for key, value in choice.message.items() if key != "reasoning_content"})
    return own.played


def closed(text: str) -> str:
    """A reply that was cut, with an end of its thinking."""
    is_open = "<think>" in text and "</think>" not in text
    return f"{text}\n</think>" if is_open else text


def price(fruit: str, count: int = 1) -> str:
    """Price.

    Args:
        fruit: f
        count: c
    """
    return "7"


def clock() -> str:
    """Time."""
    return "7"


class Shopper(ToolAgent):
    """An agent with the tools of these conversations."""

    prompt = "{env_prompt}"
    tools = (price, clock)


def play_rounds(tokenizer: Any, steps: Sequence[Step]) -> Played:
    """Play the rounds of a `ToolAgent`; its refusal to start is in `refused`."""
    try:
        builder = ToolPromptBuilder(Shopper("A"), tokenizer, 20_000)
    except AgentSystemError as error:
        return Played(refused=str(error))
    if builder.chat.calls is None or not builder.chat.shows_tools:
        return Played(refused="the tools are described in words")
    own = Conversation(builder.chat, steps)
    own.tools = builder.agent.schemas
    own.known = [dict(message) for message in steps[0].asked]
    prompt = builder._tokenize(list(own.known))
    for step in (step for step in steps if step.calls):
        try:
            generation, said = own.reply(step, own.said(step), prompt.text)
        except Exception as error:  # the template cannot show such a reply
            own.played.refused = str(error)
            break
        text = builder.chat.text_of(generation.token_ids, prompt.text)
        requests = builder.requests_of(text, own.count)
        visible, _ = split_calls(text, builder.syntaxes, OfferedTools.of(own.tools))
        raw = decode(tokenizer, generation.token_ids, special=True)
        own.heard(step, raw, visible, "\n\n".join(thoughts(text)), [(r.name, r.arguments) for r in requests])
        if own.played.wrong:
            break
        own.known.append(said)
        own.name_calls([request.id for request in requests])
        results = [{"role": "tool", "content": f"{7 + place}"} for place, _ in enumerate(requests)]
        reply: Any = SimpleNamespace(text=text, generation=generation)
        following, anew = builder.following(prompt, reply, requests, results)
        assert following is not None, "the prompt is short"
        own.sent = (*prompt.ids, *generation.token_ids)
        own.known += own.results()
        own.judge(following.ids, following.text, anew)
        own.count += len(step.calls)
        prompt = following
    return own.played


def vocabulary_for(source: str) -> Any:
    """The published vocabulary that has the tokens which a template names, or bytes with these tokens."""
    names = named_tokens(source) - {"<s>", "</s>"}
    for name in (*NPM, "deepseek"):
        tokenizer = vocabulary(name)
        known = {*special_tokens(tokenizer), *tokenizer.get_added_vocab()}
        if len(names) > 2 and names <= known:
            tokenizer = copy.copy(tokenizer)
            tokenizer.chat_template = source
            return tokenizer
    return byte_tokenizer(source)

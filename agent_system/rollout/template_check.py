"""What a run has to know of a chat template before it starts: calls, ends of turn, how
conversations go on, and the time that it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.continuation import Continuation
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.template_trials import FIRST, TOOLS
from agent_system.rollout.tokens import encode_all
from verl.protocol.generate import Generation
from verl.protocol.template_time import TEMPLATE_TIME, shows_time
from verl.protocol.turns import turn_end_ids
from verl.utils.names import error_line

_ASKED = {"role": "user", "content": "zq question"}
_MORE = {"role": "user", "content": "zq more"}
_ANSWER = "zq answer"


@dataclass(frozen=True)
class TemplateFact:
    """One thing that was tried.

    Attributes:
        name: what.
        is_right: whether it is as training wants it.
        text: what was seen.
    """

    name: str
    is_right: bool
    text: str


def template_facts(tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> list[TemplateFact]:
    """Return what a template's renderings of known conversations say, for a tokenizer and more
    arguments of its template.
    """
    chat = ChatTemplate(tokenizer, kwargs)
    if not chat.source:
        return [
            TemplateFact(
                "chat template", False, "there is none; set data.apply_chat_template_kwargs.chat_template"
            )
        ]
    if chat.problem:
        return [TemplateFact("chat template", False, chat.problem)]
    facts = [_calls(chat), _ends(chat), _goes_on(chat)]
    if shows_time(chat.source):
        facts.append(
            TemplateFact(
                "time", True, f"the template may show the time: {TEMPLATE_TIME.state()} for the whole run"
            )
        )
    return facts


def _calls(chat: ChatTemplate) -> TemplateFact:
    if not chat.shows_tools:
        return TemplateFact(
            "tool calls",
            True,
            "the template shows no tools; ToolAgent describes them in words, the gateway refuses them",
        )
    form = chat.calls
    if not chat.syntaxes:
        return TemplateFact(
            "tool calls",
            False,
            "what the template shows of a call cannot be read back; set tool_format of an agent",
        )
    if form is None:
        return TemplateFact(
            "tool calls",
            True,
            "the template shows no calls; they are read in the forms that its prompt names",
        )
    most = "one call a reply" if form.most == 1 else "several calls a reply"
    if not chat.reads_calls_after_text:
        most += (
            ", but not after a text: no mark begins a call, and a reply is one only if it consists of calls"
        )
    hard = "" if form.is_exact else "; texts with quotes, brackets or line ends do not come back"
    return TemplateFact(
        "tool calls",
        form.is_exact and chat.reads_calls_after_text,
        f"come back as {form.syntax.kind}, {most}{hard}",
    )


def _ends(chat: ChatTemplate) -> TemplateFact:
    ends = chat.tokenizer.convert_ids_to_tokens(sorted(turn_end_ids(chat.tokenizer, chat.kwargs)))
    if not ends:
        return TemplateFact(
            "end of turn",
            False,
            "no token of the vocabulary ends a reply or begins the next turn; eos_token alone does",
        )
    return TemplateFact("end of turn", True, ", ".join(map(str, ends)))


def _goes_on(chat: ChatTemplate) -> TemplateFact:
    """Return whether the prompts of a second turn go on with the tokens of the first one."""
    reply_message = {"role": "assistant", "content": _ANSWER}
    trials: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], Sequence[Mapping[str, Any]]]] = {
        "a reply": (reply_message, _MORE, ())
    }
    thought = f"<think>{chat.marks.lead}zq thought{chat.marks.trail}</think>{chat.marks.gap}{_ANSWER}"
    trials["thinking"] = ({**reply_message, "content": thought}, _MORE, ())
    if chat.calls is not None and chat.shows_tools:
        call = {**FIRST.message(chat.calls.as_text), "id": chat.call_id(FIRST.name, 0)}
        result = {"role": "tool", "content": "zq result", "name": FIRST.name, "tool_call_id": call["id"]}
        trials["a tool call"] = ({"role": "assistant", "content": "", "tool_calls": [call]}, result, TOOLS)
    anew = [
        f"{name} ({why})"
        for name, (reply, more, tools) in trials.items()
        if (why := _rewritten(chat, reply, more, tools))
    ]
    if not anew:
        return TemplateFact("continuation", True, "a conversation goes on with its own tokens")
    return TemplateFact("continuation", False, f"rendered anew, and counted, after {'; '.join(anew)}")


def _rewritten(
    chat: ChatTemplate,
    reply_message: Mapping[str, Any],
    more: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
) -> str:
    """Return why the prompt after a reply does not begin with the prompt and the reply before;
    empty if it does.
    """
    try:
        prompt = chat.render([_ASKED], tools)
        alone = chat.render([_ASKED, reply_message], tools, prompt=False)
        whole = chat.render([_ASKED, reply_message, more], tools)
    except Exception as error:
        # a template may raise anything for a conversation that it does not show
        return error_line(error, typed=True, most=120)
    text = alone[len(prompt) :]
    # the prompt begins thinking that the template then leaves out
    if not alone.startswith(prompt):
        text = f"zq thought{chat.marks.trail}{chat.marks.end}{chat.marks.gap}{_ANSWER}{chat.after}"
    ids = encode_all(chat.tokenizer, [text])[0]
    ends = turn_end_ids(chat.tokenizer, chat.kwargs)
    # A reply whose end has no token of its own ends with the token that begins the next turn.
    ids = ids if ends & {*ids} else (*ids, *sorted(ends)[:1])
    last = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    reply = Generation(ids[: last + 1], (0.0,) * (last + 1), "stop")
    first = Prompt(prompt, encode_all(chat.tokenizer, [prompt])[0])
    return (
        Continuation(chat, lambda rendered_text: encode_all(chat.tokenizer, [rendered_text])[0])
        .after(first, reply, whole)
        .rewritten
    )

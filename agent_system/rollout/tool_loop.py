"""The rounds of a `ToolAgent`'s call: generation, tool calls, and the next prompt that continues
the tokens exactly.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from agent_system.agent import BaseAgent, Message
from agent_system.children import ToolCaller
from agent_system.errors import AgentSystemError
from agent_system.projection import closed_thinking, strip_thinking, thoughts
from agent_system.rollout.call import Call, Reply
from agent_system.rollout.continuation import END, Continuation, NextPrompt
from agent_system.rollout.episode import Episode
from agent_system.rollout.prompt import Prompt, PromptBuilder, SpecialTokens
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.template_marks import whole_marks
from agent_system.rollout.tokens import decode, text_after
from agent_system.tool_use import ToolUse
from agent_system.tools.agent import ToolAgent
from agent_system.tools.delegation import calling
from agent_system.tools.formats import OfferedTools, ToolRequest, read_calls, split_calls, syntaxes_of
from agent_system.turn import CallContext, Turn
from verl.protocol.generate import Generation
from verl.protocol.turns import shared_start

logger = logging.getLogger(__name__)

_LONGEST_OVERLAP = 64  # tokens
_REPLY = "REPLY7c1f"  # stands for the reply when the text around it is looked up


class ToolPromptBuilder(PromptBuilder):
    """Builds the prompts of a `ToolAgent`.

    Attributes:
        syntaxes: how its model writes calls: by the agent's format, or as the chat template shows
            them.
    """

    agent: ToolAgent

    def __init__(self, agent: ToolAgent, tokenizer: Any, *args: Any) -> None:
        super().__init__(agent, tokenizer, *args)
        self._native = self.chat.shows_tools
        self._warned: set[str] = set()
        self._continuation = Continuation(self.chat, self._encoder.encode)
        self._special_tokens = SpecialTokens(tokenizer, self.chat.structure, self.chat.marks_of_replies)
        if not self._native and agent.tool_format not in ("auto", "hermes"):
            raise AgentSystemError(
                f"the chat template of {agent.agent_id!r} shows no tools, so describe_tools() asks "
                f"for <tool_call>; use tool_format=hermes (or auto), found {agent.tool_format!r}"
            )
        if agent.tool_format != "auto":
            self.syntaxes = syntaxes_of(agent.tool_format)
        else:
            self.syntaxes = (
                self.chat.checked_syntaxes(agent.agent_id) if self._native else syntaxes_of("hermes")
            )

    def of(self, agent: BaseAgent) -> PromptBuilder:
        """Return the builder of another state of the agent, without tools for a summary."""
        if isinstance(agent, ToolAgent):
            return super().of(agent)
        return PromptBuilder(
            agent,
            self.tokenizer,
            self.max_prompt_length,
            self.template_kwargs,
            self._encoder,
            self._length_key,
        )

    @property
    def shown_tools(self) -> str:
        """What prompts show of the tools of an agent with state, which may change them; empty for
        one without.
        """
        if not self.agent.stateful:
            return ""
        return json.dumps(self.agent.schemas) if self._native else self.agent.describe_tools()

    def requests_of(self, text: str, earlier: int) -> list[ToolRequest]:
        """Return the tool calls of a reply, each with an id.

        Args:
            text: the reply.
            earlier: number of calls in the conversation before it.
        """
        requests = read_calls(text, self.syntaxes, OfferedTools.of(self.agent.schemas))
        call_ids = self.chat.call_ids([(request.name, request.id) for request in requests], earlier)
        return [
            replace(request, id=call_id, renamed=request.id not in ("", call_id))
            for request, call_id in zip(requests, call_ids, strict=True)
        ]

    def following(
        self,
        prompt: Prompt,
        reply: Reply,
        requests: Sequence[ToolRequest],
        results: Sequence[Message],
        same_tools: bool = True,
    ) -> tuple[Prompt | None, bool]:
        """Return the prompt after a reply and its tool results, and whether it does not begin with
        all tokens of the last prompt and reply.

        The template's rendering of the whole conversation decides, see `Continuation`. A call that
        cannot be read, or whose id the template refuses, has no rendering of its own: the reply
        stands as it was sampled, and what the template puts after calls follows. It is None when it
        is longer than `max_prompt_length`.

        Raises:
            AgentSystemError: the template cannot show the calls and their results.
        """
        reply_message, answers = self._messages(reply, requests, results)
        messages = [*prompt.messages, reply_message, *answers]
        whole = self._rendered(messages)
        # A prompt shows the tools before the messages, so none of its tokens can stay.
        if not same_tools:
            following = NextPrompt(whole, self._encoder.encode(whole), "other tools")
        else:
            following = self._continuation.after(prompt, reply.generation, whole)
            tail = (
                self._tail(prompt, messages, whole)
                if following.rewritten and self._has_no_rendering(requests, reply_message)
                else None
            )
            if tail is not None:
                sampled, rest = self._joined(reply.generation, tail)
                text = prompt.text + text_after(self.tokenizer, prompt.ids, (*sampled, *rest))
                same = len(sampled) == len(reply.generation.token_ids)
                following = NextPrompt(text, (*prompt.ids, *sampled, *rest), "" if same else END)
        if following.rewritten and following.rewritten not in self._warned:
            self._warned.add(following.rewritten)
            logger.info(
                "prompts of %r are rendered anew after tool calls: %s",
                self.agent.agent_id,
                following.rewritten,
            )
        whole_prompt = Prompt(following.text, following.ids, prompt.dropped, tuple(messages))
        return (whole_prompt if len(following.ids) <= self.max_prompt_length else None), bool(
            following.rewritten
        )

    @staticmethod
    def _has_no_rendering(requests: Sequence[ToolRequest], reply_message: Message) -> bool:
        """Whether calls of a reply cannot be shown as they were written."""
        call_count = len(reply_message.get("tool_calls", requests))
        return call_count < len(requests) or any(
            request.renamed or not (request.is_readable and request.name) for request in requests
        )

    def _messages(
        self, reply: Reply, requests: Sequence[ToolRequest], results: Sequence[Message]
    ) -> tuple[Message, list[Message]]:
        """Return a reply and the results of its calls as the template gets them."""
        if not self._native or self.chat.calls is None:
            (reply_message,) = self._special_tokens.removed(
                [{"role": "assistant", "content": closed_thinking(reply.text)}]
            )
            return reply_message, self._special.removed(list(results))
        visible, _ = split_calls(reply.text, self.syntaxes, OfferedTools.of(self.agent.schemas))
        content = self.chat.said_with_calls(reply.text, visible)
        named_requests = self.agent.named_calls(requests)
        calls: Any = [
            {
                "id": r.id,
                "type": "function",
                "function": {"name": r.name, "arguments": self._clean_json(r.arguments or {})},
            }
            for r in named_requests
        ]
        named = [
            {**m, "name": r.name, "tool_call_id": r.id} for m, r in zip(results, named_requests, strict=True)
        ]
        reply_message, *answers = self._special.removed(
            [{"role": "assistant", "content": content, "tool_calls": calls}, *named]
        )
        return reply_message, answers

    def _clean_json(self, value: Any) -> Any:
        return json.loads(self._special.cleaned(json.dumps(value, ensure_ascii=False)))

    def _rendered(self, messages: list[Message]) -> str:
        try:
            return self._template(messages)
        except Exception as error:
            # whatever a template raises for messages that it does not show
            raise AgentSystemError(
                f"the chat template of {self.agent.agent_id!r} cannot show tool calls and their "
                f"results: {error}; set data.apply_chat_template_kwargs.chat_template to one that "
                "can, or use an agent without tools"
            ) from error

    def _tail(self, prompt: Prompt, messages: list[Message], whole: str) -> str | None:
        """Return the text that the template puts after a reply; None if it would not show all of
        the reply.
        """
        at = len(prompt.messages)
        reply_message = messages[at]
        if "tool_calls" not in reply_message:
            around = self._rendered(
                [*messages[:at], {"role": "assistant", "content": _REPLY}, *messages[at + 1 :]]
            )
            is_shown = (
                "".join(str(reply_message["content"]).split()) in "".join(whole.split())
                and around.count(_REPLY) == 1
            )
            return around.partition(_REPLY)[2] if is_shown else None
        before = self._shown_alone(messages[: at + 1]).removesuffix(self.chat.after)
        squeezed = "".join(before.split())
        parts = [*thoughts(str(reply_message["content"])), strip_thinking(str(reply_message["content"]))]
        if not all("".join(part.split()) in squeezed for part in parts):
            return None
        begin = len(whole_marks(shared_start(before, self._rendered(messages[:at]))))
        calls = before[self.chat.begin_of_calls(before, begin) :]
        place = len(before) - len(calls) if whole.startswith(before) else whole.find(calls, begin)
        if (
            not calls
            or place < 0
            or not all(
                "".join(part.split()) in "".join(whole[: place + len(calls)].split()) for part in parts
            )
        ):
            return None
        return whole[place + self.chat.end_of_calls(calls) :]

    def _joined(self, generation: Generation, tail: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the sampled tokens and those of the text after them, without what is in both;
        another end of turn is left out.
        """
        sampled = generation.token_ids
        rest = self._encoder.encode(tail)
        text = decode(self.tokenizer, sampled[-_LONGEST_OVERLAP:], special=True)
        size = next(
            (size for size in range(min(len(text), len(tail)), 0, -1) if text.endswith(tail[:size])), 0
        )
        if not size:
            other_end = (
                generation.stop_reason == "stop" and len(sampled) > 1 and self.chat.ends_turn(sampled[-1])
            )
            return (sampled[:-1] if other_end else sampled), rest
        both = self._encoder.encode(tail[:size])
        return sampled, rest[len(both) :] if rest[: len(both)] == both else self._encoder.encode(tail[size:])

    def _shown_alone(self, messages: list[Message]) -> str:
        """Return the text of a conversation that ends with a reply."""
        return self.chat.render(messages, self._tools() if self._native else (), prompt=False)

    def _key(self, messages: list[Message]) -> bytes | None:
        key = super()._key(messages)
        # The same messages with other tools are another prompt.
        return None if key is None else self.shown_tools.encode("utf-8", "surrogatepass") + b"\0" + key

    def _tools(self) -> list[Any]:
        # a server of others may write special tokens
        return list(self._clean_json(self.agent.schemas))

    def _template(self, messages: list[Message]) -> str:
        if not self._native:
            return super()._template(self._described(messages))
        return self.chat.render(messages, self._tools())

    def _described(self, messages: list[Message]) -> list[Message]:
        """Return the messages for a template that knows no tools: their description in the system
        message, results in a user message.
        """
        text = self._special.cleaned(self.agent.describe_tools())
        rest = messages
        if messages and messages[0]["role"] == "system":
            text = f"{text}\n\n{messages[0]['content']}"
            rest = messages[1:]
        template_messages: list[Message] = [{"role": "system", "content": text}]
        for role, group in groupby(rest, key=lambda m: m["role"]):
            # one message for all results of a reply: some templates want user and assistant in turn
            if role == "tool":
                results = "\n".join(f"<tool_response>\n{m['content']}\n</tool_response>" for m in group)
                template_messages.append({"role": "user", "content": results})
            else:
                template_messages += group
        return template_messages


async def play_rounds(episode: Episode, turn: Turn, call: Call, context: CallContext) -> tuple[Call, Reply]:
    """Play the rounds of one call of a `ToolAgent`, each a generation with a number of its own in
    the turn; return the last one.

    Args:
        episode: the episode.
        turn: the turn of the call.
        call: the first generation.
        context: of the call.
    """
    numbers = [call.number]
    caller = ToolCaller(turn, context)
    try:
        call, reply = await _rounds(episode, caller, call, numbers)
    except BaseException:
        # the call has no result, so nobody hears of its rounds and its children, also those that
        # still run: they are neither rewarded nor trained
        episode.ledger.unheard.update((turn.step, number) for number in numbers)
        caller.leave_unheard(lambda number: episode.ledger.unheard.add((turn.step, number)))
        raise
    # the rewards of a call are recorded at its last round
    episode.ledger.rounds.update(((turn.step, number), call.number) for number in numbers[:-1])
    return call, reply


async def _rounds(episode: Episode, caller: ToolCaller, call: Call, numbers: list[int]) -> tuple[Call, Reply]:
    """Play the rounds of a call; add the number of every further generation to `numbers`."""
    branch = caller.context.branch
    agent = call.runtime.agent
    prompts = call.runtime.prompts
    seed = call.seed
    assert isinstance(agent, ToolAgent) and isinstance(prompts, ToolPromptBuilder)
    restarted = False
    earlier = 0
    for number in range(agent.max_rounds):
        reply, order = await episode.reply(call)
        requests = prompts.requests_of(reply.text, earlier)
        if not requests or number + 1 == agent.max_rounds:
            episode.keep(
                call, reply, order, ToolUse(number, len(requests), restarted=restarted, cut=bool(requests))
            )
            break
        assert isinstance(reply.agent, ToolAgent)
        calling.set(caller)
        results, use = await reply.agent.answer(requests, number)
        runtime = call.runtime.of(reply.agent)
        previous_tools = prompts.shown_tools
        prompts = runtime.prompts
        assert isinstance(prompts, ToolPromptBuilder)
        following, anew = prompts.following(
            call.prompt, reply, requests, results, prompts.shown_tools == previous_tools
        )
        earlier += len(requests)
        projection = reply.projection
        action, valid = ("", True) if following else (projection.action, projection.valid)
        reply = replace(
            reply, projection=replace(projection, action=action, valid=valid and not use.malformed)
        )
        episode.keep(call, reply, order, replace(use, restarted=restarted, cut=following is None))
        if following is None:
            break
        so_far = (
            *call.so_far,
            *(f"{r.name} {r.arguments!r}" for r in requests),
            *(str(m["content"]) for m in results),
        )
        if branch is not None:
            # a round has a number and reads the order of replies, as a call
            await branch.enter()
        numbers.append(caller.turn.number(call.runtime.role, branch))
        call = replace(
            call,
            runtime=runtime,
            so_far=so_far,
            number=numbers[-1],
            prompt=following,
            prior_replies=episode.reply_count,
            seed=stable_seed(seed, "round", number + 1),
        )
        # as calls: rounds of a wave begin before any of them gets a reply
        await asyncio.sleep(0)
        episode.waiting_for = f"the reply of {call.label}"
        restarted = anew
    return call, reply

"""The policy of an agent, and how it is sampled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agent_system.rollout.prompt import Prompt
from agent_system.rollout.tokens import decode
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient, SamplingParams

if TYPE_CHECKING:
    from agent_system.rollout.chat_template import ChatTemplate


@dataclass(frozen=True)
class AgentBinding:
    """The policy of one agent, as the rollout side uses it.

    Attributes:
        agent_id: the agent.
        policy_id: the policy that generates its replies and is trained on them.
        wg_id: the worker group that holds the policy.
        client: receives its requests.
        tokenizer: Hugging Face tokenizer with a chat template.
        sampling: sampling of training episodes.
        val_sampling: sampling of validation episodes.
        max_prompt_length: longest prompt of one call, in tokens.
        adapter: LoRA adapter of the policy, or None.
        template_kwargs: more arguments of the chat template, such as `enable_thinking`.
        trained: its samples are rows of training batches; off for a frozen agent.
        structured: the engine can make a reply follow a form (`SamplingParams.structure`).
        prompt_length_key: the key that set `max_prompt_length`, for errors.
    """

    agent_id: str
    policy_id: str
    wg_id: str
    client: RolloutClient
    tokenizer: Any
    sampling: SamplingParams
    val_sampling: SamplingParams
    max_prompt_length: int
    adapter: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = True
    structured: bool = False
    prompt_length_key: str = "data.max_prompt_length"

    @cached_property
    def pad_token_id(self) -> int:
        """Token id of padding in a batch."""
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else self.tokenizer.eos_token_id or 0)

    async def replies(
        self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int, request_id: str, priority: int = 0
    ) -> Sequence[Generation]:
        """Request `n` replies from the engine with one request; see `GenerateRequest`. Raise
        RolloutError when it cannot be served.
        """
        replies = await self.client.generate(
            GenerateRequest(prompt.ids, sampling, n, self.adapter, seed, request_id, priority)
        )
        return [self._cut(reply, sampling.stop) for reply in replies] if sampling.stop else replies

    def _cut(self, reply: Generation, stop: Sequence[str]) -> Generation:
        """Cut a reply after the token that completes the first of the texts `stop`, special tokens
        included; keep it whole without one.
        """

        def contains_stop(count: int) -> bool:
            text = decode(self.tokenizer, reply.token_ids[:count], special=True)
            return any(end in text for end in stop)

        count = len(reply.token_ids)
        if reply.stop_reason == "abort" or not contains_stop(count):
            return reply
        count = bisect_left(range(count), True, key=contains_stop)
        return replace(reply.first(count), stop_reason="stop")

    @cached_property
    def chat(self) -> ChatTemplate:
        """The policy's chat template."""
        from agent_system.rollout.chat_template import ChatTemplate  # of agents with a policy here

        return ChatTemplate(self.tokenizer, self.template_kwargs)

    def text_of(self, generation: Generation, prompt: str = "") -> str:
        """Return the reply to a prompt as text, without the tokens around it; see
        `ChatTemplate.text_of`.
        """
        return self.chat.text_of(generation.token_ids, prompt)

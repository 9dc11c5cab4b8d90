"""For tests of workflows: a team whose replies are scripted, and `check_env` for user-defined
environments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_system.env_check import check_env
from agent_system.rollout import AgentBinding, Collector, CollectorSettings
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams

__all__ = ["CHAT_TEMPLATE", "Script", "ScriptedEngine", "check_env", "make_tokenizer", "scripted_team"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Script = Callable[[str, GenerateRequest], str] | Sequence[str]


class ScriptedEngine:
    """A `RolloutClient` whose replies come from a function of (prompt text, request), or from a
    list, one per request.

    Attributes:
        requests: all requests so far.
        version: weight version put into the replies.
    """

    def __init__(
        self,
        tokenizer: Any,
        script: Script,
        *,
        version: int = 0,
        decode_prompt: bool = True,
        delay: Callable[[GenerateRequest], Awaitable[None]] | None = None,
    ) -> None:
        """Set up the script.

        Args:
            tokenizer: turns replies into token ids; its eos token ends a reply.
            script: the replies.
            version: weight version put into the replies.
            decode_prompt: give the script the prompt as text (else an empty text).
            delay: awaited before a reply is returned, to test orders of completion.
        """
        self.tokenizer = tokenizer
        self.version = version
        self.requests: list[GenerateRequest] = []
        self._script = script if callable(script) else None
        self._replies = iter(()) if callable(script) else iter(script)
        self._delay = delay
        self._decode_prompt = decode_prompt
        self._encoded: dict[str, tuple[int, ...]] = {}
        self._log_probs: dict[int, tuple[float, ...]] = {}

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return `request.n` replies. Raise `RolloutError` when the list of replies is exhausted."""
        self.requests.append(request)
        await (self._delay(request) if self._delay else asyncio.sleep(0))
        return [self._reply(request) for _ in range(request.n)]

    def _reply(self, request: GenerateRequest) -> Generation:
        if self._script is not None:
            text = self._script(
                self.tokenizer.decode(request.prompt_ids) if self._decode_prompt else "", request
            )
        else:
            reply = next(self._replies, None)
            if reply is None:
                raise RolloutError(f"the script has no reply left for request {len(self.requests)}")
            text = reply
        ids = self._encoded.get(text)
        if ids is None:
            ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
            self._encoded[text] = ids
        whole = len(ids) <= request.sampling.max_tokens
        ids = ids if whole else ids[: request.sampling.max_tokens]
        return Generation(ids, self._constant(len(ids)), "stop" if whole else "length", version=self.version)

    def _constant(self, length: int) -> tuple[float, ...]:
        return self._log_probs.setdefault(length, (-0.5,) * length)


def scripted_team(
    workflow: str,
    replies: Mapping[str, Script],
    *,
    env_name: str = "",
    options: Mapping[str, Any] | None = None,
    env_params: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    max_tokens: int = 4000,
    max_prompt_length: int = 8000,
    delay: Callable[[GenerateRequest], Awaitable[None]] | None = None,
    **settings: Any,
) -> Collector:
    """Return a collector for a registered workflow whose agents reply from scripts; its `collect`
    plays tasks.

    Args:
        workflow: name of the orchestra.
        replies: the script of each agent of the team, see `ScriptedEngine`.
        env_name: name of the environment; default: `workflow`.
        options, env_params: values of `agent.orchestra.<workflow>` and `env.params`.
        tokenizer: default `make_tokenizer()`.
        max_tokens, max_prompt_length: longest reply and prompt, in tokens.
        delay: see `ScriptedEngine`.
        settings: fields of `CollectorSettings`, such as `max_steps`.
    """
    tokenizer = tokenizer or make_tokenizer()
    sampling = SamplingParams(max_tokens=max_tokens)
    bindings = {
        agent: AgentBinding(
            agent,
            agent,
            agent,
            ScriptedEngine(tokenizer, script, delay=delay),
            tokenizer,
            sampling,
            sampling,
            max_prompt_length,
        )
        for agent, script in replies.items()
    }
    return Collector.from_names(
        orchestra_type=workflow,
        env_name=env_name or workflow,
        bindings=bindings,
        settings=CollectorSettings(**settings),
        orchestra_options=options,
        env_params=env_params,
    )


def make_tokenizer(corpus: Iterable[str] = (), vocab_size: int = 512) -> Any:
    """Return a byte-level BPE tokenizer with a ChatML template, trained on `corpus` (bytes only
    when it is empty).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special[0], eos_token=special[2])
    fast.add_special_tokens({"additional_special_tokens": [special[1]]})
    fast.chat_template = CHAT_TEMPLATE
    return fast

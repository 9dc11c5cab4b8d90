"""What travels between an episode and a rollout engine: token ids in, token ids out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

StopReason = Literal["stop", "length", "abort"]

# Ends the group name (`uid`) of greedy episodes; what stands before it names the group that they are a baseline for.
GREEDY_SUFFIX = "/greedy"


@dataclass(frozen=True)
class SamplingParams:
    """How the engine turns logits into tokens.

    Attributes:
        max_tokens: most new tokens of one reply.
        temperature: 0 means greedy.
        top_p: nucleus mass in (0, 1]; 1 samples untruncated.
        top_k: number of tokens kept; -1 keeps all.
        stop_token_ids: a reply ends with the first of these, which belongs to the reply.
        stop: a reply ends with the token that completes one of these texts, special tokens included. Engines know tokens alone: who has the
            tokenizer cuts the reply.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt and how many replies to sample for it.

    Attributes:
        prompt_ids: token ids of the whole prompt, unpadded.
        sampling: see `SamplingParams`.
        n: replies wanted; reply i draws from a stream derived from (seed, i).
        adapter: LoRA adapter name, or None for the base model.
        seed: the reply is a function of weights, prompt, sampling and seed alone.
        request_id: for logs and aborts.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    adapter: str | None = None
    seed: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class Generation:
    """One sampled reply.

    Attributes:
        token_ids: sampled ids, the stop token included.
        log_probs: log-probability of every sampled token under softmax(logits / temperature), before any
            top-p or top-k truncation (temperature 1 when greedy); same length as `token_ids`.
        stop_reason: `stop` (a stop token or text), `length` (max_tokens or the model's limit) or `abort`.
        version: weight version the reply was sampled with (the last one, if weights changed on the way).
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = field(repr=False)
    stop_reason: StopReason
    version: int = 0


@runtime_checkable
class RolloutClient(Protocol):
    """Anything that generates: an engine, a handle to a remote one, a scripted one in a test."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return `request.n` replies. Raises `RolloutError` when the request cannot be served."""
        ...


class RolloutError(RuntimeError):
    """A request that an engine could not serve (too long, aborted, engine gone)."""


class EngineSetupError(RolloutError):
    """An engine cannot be made where it is asked for; the message says what to change."""


class EngineGoneError(RolloutError):
    """The engine's process is gone: no later request can be served, so the run ends with this one error."""

"""Requests to rollout engines and their replies: token ids in, token ids out."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, Protocol, Self, runtime_checkable

StopReason = Literal["stop", "length", "abort"]

# Suffix of the group id (`uid`) of greedy episodes; without it, the id is that of the group that
# they are a baseline for.
GREEDY_SUFFIX = "/greedy"


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of sampling tokens from logits.

    Attributes:
        max_tokens: maximum number of new tokens of one reply.
        temperature: 0 means greedy.
        top_p: nucleus mass in (0, 1]; 1 samples untruncated.
        top_k: number of tokens kept; -1 keeps all.
        stop_token_ids: a reply ends with the first of these, which belongs to the reply.
        stop: a reply ends with the token that completes one of these texts, special tokens
            included. Engines have no tokenizer: the agent side, which has it, cuts the reply.
        structure: form of the reply as a structural tag in JSON; empty for any reply. The logits of
            tokens that it does not allow after those before them are -inf. Engines need
            `rollout.structured_outputs` for it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    structure: str = ""


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt and the number of replies to sample for it.

    Attributes:
        prompt_ids: token ids of the whole prompt, unpadded.
        sampling: see `SamplingParams`.
        n: number of replies; reply i samples from a random stream derived from (seed, i).
        adapter: LoRA adapter name, or None for the base model.
        seed: the replies depend on weights, prompt, sampling and seed only.
        request_id: id for logs and aborts.
        priority: while requests wait, the engine begins those with the lowest number; equal ones in
            the order in which they came.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    adapter: str | None = None
    seed: int = 0
    request_id: str = ""
    priority: int = 0


def priority_of(validate: bool) -> int:
    """Return the priority of requests: those of a validation are served before those of training
    episodes.
    """
    return -1 if validate else 0


@dataclass(frozen=True)
class Generation:
    """One sampled reply.

    Attributes:
        token_ids: sampled ids, the stop token included.
        log_probs: log-probability of every sampled token under softmax(logits / temperature),
            before any top-p or top-k truncation (temperature 1 when greedy); same length as
            `token_ids`. With `SamplingParams.structure` after its mask: log pi - log Z of the
            policy pi and its mass Z on the tokens that are allowed.
        stop_reason: `stop` (a stop token or text), `length` (max_tokens or the model's limit) or
            `abort`.
        version: weight version that the reply was sampled with (the last one, if weights changed
            during generation).
        earlier: (version, number of tokens) of the weights that sampled the beginning, oldest
            first; empty if there was one version.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = field(repr=False)
    stop_reason: StopReason
    _: KW_ONLY
    version: int = 0
    earlier: tuple[tuple[int, int], ...] = ()

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(version, number of tokens) of all weights that sampled it, oldest first."""
        return (*self.earlier, (self.version, len(self.token_ids) - sum(count for _, count in self.earlier)))

    @property
    def oldest_version(self) -> int:
        """Version of the weights that sampled its first token."""
        return self.spans[0][0]

    @property
    def mean_version(self) -> float:
        """Version of the weights, averaged over tokens."""
        return (
            sum(version * count for version, count in self.spans) / len(self.token_ids)
            if self.earlier
            else float(self.version)
        )

    def first(self, count: int) -> Self:
        """Return the reply cut after `count` tokens."""
        spans: list[tuple[int, int]] = []
        for version, tokens in self.spans:
            spans.append((version, min(tokens, count - sum(n for _, n in spans))))
            if sum(n for _, n in spans) >= count:
                break
        ids = self.token_ids[:count]
        log_probs = self.log_probs[:count]
        return replace(
            self, token_ids=ids, log_probs=log_probs, version=spans[-1][0], earlier=tuple(spans[:-1])
        )


@dataclass(frozen=True, kw_only=True)
class ScoredPrompt(Generation):
    """The reply of a reward model: no tokens, but the score of the prompt, which is a whole
    conversation.
    """

    score: float = 0.0


@runtime_checkable
class RolloutClient(Protocol):
    """A generator of replies: an engine, a handle to a remote engine, or a scripted engine in a
    test.
    """

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return `request.n` replies. Raise `RolloutError` when the request cannot be served."""
        ...


class RolloutError(RuntimeError):
    """An engine could not serve a request (too long, aborted, engine gone)."""


class EngineStuckError(RolloutError):
    """An engine sampled no token for so long that a request to it is given up."""


class StructureError(RolloutError):
    """No reply can follow the `structure` of a request; other requests are not affected."""


class EngineSetupError(RolloutError):
    """An engine cannot be started as configured; the message says what to change."""


class EngineGoneError(RolloutError):
    """The engine's process has ended: no later request can be served, so the run ends with this
    error.
    """

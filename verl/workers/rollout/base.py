"""The protocol of rollout engines: generate, load new weights, pause, sleep, and report statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from verl.protocol.generate import GenerateRequest, Generation


@dataclass
class EngineStats:
    """Counters since the start.

    Attributes:
        sampled: tokens sampled, those of unfinished replies included; 0 for an engine that samples
            none.
        prompt_tokens_computed: tokens of prompts that went through the model; padding does not
            count.
        prompt_tokens_copied: prompt tokens of replies whose prompt was already computed, for the
            same request or another.
    """

    requests: int = 0
    replies: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_copied: int = 0
    tokens: int = 0
    sampled: int = 0
    weight_updates: int = 0


@runtime_checkable
class RolloutEngine(Protocol):
    """One replica of a model that samples replies; every engine is also a `RolloutClient`.

    Attributes:
        waits: `update_weights` waits for another process, and may run in a thread. Meanwhile the
            event loop may call `stats` and `close`, cancel requests and await their replies, and
            calls nothing else.
    """

    waits: bool

    @property
    def version(self) -> int:
        """Version of the model's current weights."""
        ...

    def version_of(self, adapter: str | None) -> int:
        """Return the version of an adapter's current weights, of the model's for None.

        Raises `RolloutError` for an adapter that cannot be used.
        """
        ...

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies. Raises `RolloutError` when the request cannot be served."""
        ...

    def abort(self, request_id: str) -> int:
        """End the request's unfinished replies with stop reason `abort` and return their number."""
        ...

    def update_weights(
        self,
        named_tensors: Mapping[str, torch.Tensor],
        *,
        adapter: str | None = None,
        version: int,
        final: bool = True,
    ) -> None:
        """Copy tensors into the weights in place; no token is sampled between the first bucket and
        the `final` one.

        Tensors that have not been received yet (`ReceivedWeights`) are received by the process that
        has the model. With `adapter` the tensors are that adapter's, under the names of PEFT's
        files, and only its own requests may have to wait. Raises `RolloutError` for unknown names,
        wrong shapes, or names still missing at the final bucket.
        """
        ...

    def pause(self) -> None:
        """Stop sampling; requests are kept and new ones are accepted."""
        ...

    def resume(self) -> None:
        """Continue sampling after `pause`."""
        ...

    def sleep(self) -> None:
        """Free the device memory that an idle engine does not need. Raises `RolloutError` while
        replies are in flight.
        """
        ...

    def wake(self) -> None:
        """Allocate the memory again; `generate` calls this itself."""
        ...

    def close(self) -> None:
        """End the engine and its processes; requests in flight fail. Further calls have no effect."""
        ...

    def stats(self) -> dict[str, float]:
        """Return counters since the start, by name."""
        ...

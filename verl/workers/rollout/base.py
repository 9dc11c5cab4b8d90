"""What a rollout engine must offer: generate, take new weights, pause, sleep, and say how it is doing."""

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
        prompt_tokens_computed: of prompts that went through the model; padding does not count.
        prompt_tokens_copied: of replies that found their prompt computed, be it for their own request or for another.
    """

    requests: int = 0
    replies: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_copied: int = 0
    tokens: int = 0
    weight_updates: int = 0


@runtime_checkable
class RolloutEngine(Protocol):
    """One replica of a model that samples replies; every engine is also a `RolloutClient`."""

    @property
    def version(self) -> int:
        """Version of the model's weights in use."""
        ...

    def version_of(self, adapter: str | None) -> int:
        """Version of an adapter's weights in use, of the model's for None. Raises `RolloutError` for one that cannot be used."""
        ...

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies. Raises `RolloutError` when the request cannot be served."""
        ...

    def abort(self, request_id: str) -> int:
        """End the request's unfinished replies with stop reason `abort`; returns how many there were."""
        ...

    def update_weights(
        self, named_tensors: Mapping[str, torch.Tensor], *, adapter: str | None = None, version: int, final: bool = True
    ) -> None:
        """Copy tensors into the weights in place; no token is sampled between the first bucket and the `final` one.

        Tensors that are still on their way (`ReceivedWeights`) are received by the process that has the model. With `adapter` they are that
        adapter's, under the names of PEFT's files, and only its own requests may have to wait.
        Raises `RolloutError` for unknown names, wrong shapes, or names still missing at the final bucket.
        """
        ...

    def pause(self) -> None:
        """Stop sampling; requests are kept and new ones are accepted."""
        ...

    def resume(self) -> None:
        """Go on where `pause` stopped."""
        ...

    def sleep(self) -> None:
        """Give up the device memory that an idle engine does not need. Raises `RolloutError` while replies are in flight."""
        ...

    def wake(self) -> None:
        """Take the memory back; `generate` does this by itself."""
        ...

    def close(self) -> None:
        """End the engine and the processes that it has; requests in flight fail. Doing so again changes nothing."""
        ...

    def stats(self) -> dict[str, float]:
        """Counters since the start, by name."""
        ...

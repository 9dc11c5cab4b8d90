"""The rollout worker: one engine, in a separate process or in this one, that serves many episodes
concurrently.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from verl.models.loader import load_causal_lm, load_config, load_tokenizer, resolve_dtype
from verl.models.lora import lora_spec
from verl.protocol.generate import GenerateRequest, Generation, RolloutError
from verl.single_controller.dispatch import Dispatch, register
from verl.single_controller.worker import Worker
from verl.trainer.config import ActorRolloutRefConfig
from verl.trainer.config.reward_model import CLASSIFIER
from verl.workers.rollout.base import RolloutEngine
from verl.workers.weight_transfer.base import ReceivedWeights, build_transfer

T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """Result of request `number` of a session: its replies, or an error of class `kind`."""

    number: int
    generations: list[Generation] | None
    error: str = ""
    kind: type[RolloutError] = RolloutError


@dataclass
class _Session:
    results: list[Served] = field(default_factory=list)
    open: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


def build_engine(
    config: ActorRolloutRefConfig,
    *,
    max_model_len: int,
    device: str,
    seed: int,
    num_threads: int = 0,
    adapters: Mapping[str, ActorRolloutRefConfig] | None = None,
    gpus: Sequence[str] = (),
    log: str = "",
) -> RolloutEngine:
    """Load the model and return the engine named by `rollout.name`, with room for the adapters.

    `seed` makes weights that the checkpoint lacks the same in every `hf` engine; `gpus` are those
    of a `vllm` engine over several, `log` is the log file of its processes. Raises ValueError for
    an unknown name, `ModelPathError` for a path that is no model, `LoraTargetError` for an adapter
    that does not fit.
    """
    rollout = config.rollout
    specs = {name: lora_spec(adapter_config.model) for name, adapter_config in (adapters or {}).items()}
    if rollout.name == "vllm":
        from verl.workers.rollout.vllm.engine import VLLMEngine

        return VLLMEngine(
            config,
            max_model_len=max_model_len,
            device=device,
            num_threads=num_threads,
            seed=seed,
            adapters=specs,
            gpus=gpus,
            log=log,
        )
    if rollout.name == CLASSIFIER:
        from verl.models.reward_model import load_sequence_classifier
        from verl.workers.rollout.classifier import ClassifierEngine

        dtype = resolve_dtype(rollout.dtype, device)
        classifier = load_sequence_classifier(
            str(config.model.path), dtype=dtype, trust_remote_code=config.model.trust_remote_code
        )
        return ClassifierEngine(
            classifier.to(device), micro_batch_size=rollout.slots, max_model_len=max_model_len
        )
    if rollout.name != "hf":
        raise ValueError(f"actor_rollout_ref.rollout.name={rollout.name!r}: expected hf or vllm")
    check_served(str(config.model.path), max_model_len, trust_remote_code=config.model.trust_remote_code)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = load_causal_lm(
            str(config.model.path),
            dtype=resolve_dtype(rollout.dtype, device),
            # every model has it; the engine replaces it where it can
            attn_implementation="eager",
            trust_remote_code=config.model.trust_remote_code,
        )
    # Imported here because the driver imports this module too and does not need transformers'
    # models.
    from verl.workers.rollout.hf_engine import HFEngine

    source = config.model.tokenizer_path or str(config.model.path)
    tokenizer = functools.partial(load_tokenizer, source, trust_remote_code=config.model.trust_remote_code)
    return HFEngine(
        model.to(device),
        max_num_seqs=rollout.slots,
        max_model_len=max_model_len,
        adapters=specs,
        load_tokenizer=tokenizer if rollout.structured_outputs else None,
        enable_prefix_caching=rollout.enable_prefix_caching,
    )


def check_served(path: str, max_model_len: int, *, trust_remote_code: bool = False) -> list[str]:
    """Check by its configuration alone that the `hf` engine serves a model; return what a user has
    to know, one line each.

    Raises:
        ModelPathError: the path is no model.
        RolloutError: the engine does not serve it, or not rows of `max_model_len` tokens.
    """
    from verl.workers.rollout.serving import serving_of

    config = load_config(path, trust_remote_code=trust_remote_code)
    return serving_of(config, max_model_len=max_model_len).notes()


def on_leader(method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T | None]]:
    """Make a method of `RolloutWorker` run on leading ranks only; on others it does nothing and
    returns None.
    """

    @functools.wraps(method)
    async def run(worker: RolloutWorker, *args: Any, **kwargs: Any) -> T | None:
        return await method(worker, *args, **kwargs) if worker.leader == worker.rank else None

    return run


class RolloutWorker(Worker):
    """Serves one engine. All methods run on one event loop, so weights change between two decode
    steps and never within one.

    Where `update_weights` waits, for weights that arrive or for the processes of a `vllm` engine,
    it does so in a thread: the loop answers `stats` and `collect` meanwhile. Requests that arrive,
    and calls that change the engine, wait until a bucket is loaded.

    With `rollout.tensor_model_parallel_size` = n, an engine spans the devices of n neighbouring
    ranks. The first of them leads: it has the engine and serves its requests. The others only
    reserve their device; methods for all ranks do nothing there.

    Besides `generate`, requests can be sent in batches (`submit`) and their results fetched when
    done (`collect`): one call per tick instead of one per request.

    Args:
        config: model and rollout settings.
        max_model_len: maximum number of tokens of prompt and reply together.
        device: cpu or cuda.
        num_threads: CPU threads of this process; 0 keeps torch's default.
        seed: see `build_engine`.
        adapters: the config of every adapter that requests may name.
        log: log file of the processes of a `vllm` engine, with `-<rank>` before its suffix if there
            are several engines.
    """

    def __init__(
        self,
        config: ActorRolloutRefConfig,
        *,
        max_model_len: int,
        device: str,
        num_threads: int,
        seed: int,
        adapters: Mapping[str, ActorRolloutRefConfig] | None = None,
        log: str = "",
    ) -> None:
        super().__init__()
        self._adapters = adapters
        self._log = log
        self._config = config
        self._max_model_len = max_model_len
        self._device = device
        self._seed = seed
        self._num_threads = num_threads
        self._engine: RolloutEngine | None = None
        self._transfer = build_transfer(config.rollout.weight_transfer)
        self._sessions: dict[str, _Session] = {}
        self._changing = asyncio.Lock()  # held while the engine is changed

    @property
    def leader(self) -> int:
        """The rank that has the engine of this rank's device."""
        return self.rank - self.rank % self._config.rollout.tensor_model_parallel_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def init_model(self, gpus: Sequence[str] = ()) -> None:
        """Load the model; `gpus` is CUDA_VISIBLE_DEVICES of every rank of the group, needed for an
        engine over several GPUs.

        Raises as `build_engine` does.
        """
        if self._num_threads > 0:
            torch.set_num_threads(self._num_threads)
        per_engine = self._config.rollout.tensor_model_parallel_size
        log = Path(self._log)
        several = self._log and self.world_size > per_engine
        self._engine = build_engine(
            self._config,
            max_model_len=self._max_model_len,
            device=self._device,
            seed=self._seed,
            num_threads=self._num_threads,
            adapters=self._adapters,
            gpus=gpus[self.rank : self.rank + per_engine],
            log=str(log.with_name(f"{log.stem}-{self.rank}{log.suffix}")) if several else self._log,
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def update_weights(
        self,
        handle: Any,
        shapes: Mapping[str, tuple[int, ...]],
        version: int,
        final: bool,
        adapter: str | None = None,
    ) -> None:
        """Copy one `WeightBucket` into the weights, or into those of an adapter, in place; the
        final one ends the update.

        Raises `RolloutError` for tensors that do not fit.
        """
        async with self._changing:
            engine = self._ready()
            weights = ReceivedWeights(self._transfer, handle, shapes)
            update = functools.partial(
                engine.update_weights, weights, adapter=adapter, version=version, final=final
            )
            await asyncio.to_thread(update if engine.waits else weights.receive)
            if not engine.waits:
                update()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def stats(self) -> dict[str, float]:
        """Return the counters of the engine."""
        return self._ready().stats()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def pause(self) -> None:
        """Stop sampling; requests are kept."""
        async with self._changing:
            self._ready().pause()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def resume(self) -> None:
        """Continue sampling."""
        async with self._changing:
            self._ready().resume()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def sleep(self) -> None:
        """Cancel the open requests, whose episodes have ended, and free the memory that an idle
        engine does not need.
        """
        open_tasks = [task for session in self._sessions.values() for task in session.open.values()]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        async with self._changing:
            self._ready().sleep()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @on_leader
    async def wake(self) -> None:
        """Allocate the memory again."""
        async with self._changing:
            self._ready().wake()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    @on_leader
    async def end(self) -> None:
        """As `close`, before the process is ended: removes the engine's files on disk and in shared
        memory.
        """
        self.close()

    def close(self) -> None:
        """End the engine and its processes."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    async def abort(self, request_id: str) -> int:
        """End the request's unfinished replies and return their number."""
        async with self._changing:
            return self._ready().abort(request_id)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample one request. Raises `RolloutError` when it cannot be served."""
        async with self._changing:
            # not held: the engine has the request before anything else runs on the loop
            pass
        return await self._ready().generate(request)

    async def submit(self, session: str, requests: Sequence[tuple[int, GenerateRequest]]) -> None:
        """Start numbered requests; `collect` of the same session returns their results."""
        self._ready()
        entry = self._sessions.setdefault(session, _Session())
        for number, request in requests:
            entry.open[number] = asyncio.create_task(self._serve(session, number, request))

    async def collect(self, session: str, wait_s: float) -> list[Served]:
        """Return all finished requests of the session; wait up to `wait_s` seconds for the first."""
        entry = self._sessions.setdefault(session, _Session())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(entry.changed.wait(), wait_s)
            results = entry.results
            entry.results = []
            return results
        finally:
            entry.changed.clear()
            if not entry.open:
                self._sessions.pop(session, None)

    async def cancel(self, session: str, number: int) -> None:
        """Cancel a submitted request and free its slots."""
        # A session ends with its last request.
        task = self._sessions[session].open.pop(number, None) if session in self._sessions else None
        if task is not None:
            task.cancel()

    async def _serve(self, session: str, number: int, request: GenerateRequest) -> None:
        try:
            result = Served(number, await self.generate(request))
        except RolloutError as error:
            result = Served(number, None, str(error), type(error))
        except Exception as error:
            # the client must get an answer, whatever the error
            result = Served(number, None, f"{type(error).__name__}: {error}")
        entry = self._sessions[session]
        entry.open.pop(number, None)
        entry.results.append(result)
        entry.changed.set()

    def _ready(self) -> RolloutEngine:
        if self.leader != self.rank:
            raise RolloutError(
                f"rank {self.rank} has no engine: its device belongs to the engine of rank "
                f"{self.leader}; call that rank"
            )
        if self._engine is None:
            raise RolloutError("the rollout worker has no model yet; call init_model first")
        return self._engine

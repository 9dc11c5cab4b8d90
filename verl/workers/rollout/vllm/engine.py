"""The `vllm` engine: vLLM's own continuous batching, prefix cache and LoRA kernels behind
`RolloutEngine`.

The model is in a process that vLLM starts; with `rollout.tensor_model_parallel_size` above 1, in
child processes of it, one per device. They communicate over Unix sockets and shared memory.
`AsyncLLM`, their client, runs on a thread here, so the engine can be used from any event loop.
Weights are sent as files in shared memory, or by a `WeightTransfer` that reaches the processes of
the model.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import multiprocessing.util
import weakref
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from verl.models.loader import build_causal_lm
from verl.models.lora import LoraSpec
from verl.protocol.generate import (
    EngineGoneError,
    EngineSetupError,
    GenerateRequest,
    Generation,
    RolloutError,
    SamplingParams,
    StopReason,
    StructureError,
)
from verl.trainer.config import ActorRolloutRefConfig
from verl.utils.loop_thread import LoopThread
from verl.workers.rollout.base import EngineStats
from verl.workers.rollout.requests import check_request
from verl.workers.rollout.vllm.adapters import AdapterFolders
from verl.workers.rollout.vllm.arguments import engine_arguments, visible_gpus
from verl.workers.rollout.vllm.fork_server import fork_engines
from verl.workers.rollout.vllm.process import (
    EngineLog,
    children_of,
    ended,
    engine_environment,
    environment,
    named_shared_memory,
    processes_of,
)
from verl.workers.rollout.weights import WeightNames, shapes_of
from verl.workers.weight_transfer.base import ReceivedWeights, transfer_name
from verl.workers.weight_transfer.shared_memory import SharedMemory, Spool

T = TypeVar("T")
logger = logging.getLogger(__name__)

START_TIMEOUT_S = 1200.0
CONTROL_TIMEOUT_S = 600.0
LIVENESS_S = 1.0
STOP_TIMEOUT_S = 1.0
LOOP_TIMEOUT_S = 10.0  # of requests that are cancelled at the end
LABELS = 1000  # kept labels: no reply is older than so many updates
UNLABELLED = "default"  # vLLM's label of weights before the first one is set


@dataclass
class _Open:
    """A request in flight: its name, its adapter, vLLM's names of its unfinished replies, and
    whether it is cancelled or about to end.
    """

    request_id: str
    adapter: str | None = None
    replies: set[str] = field(default_factory=set)
    closing: bool = False


class VLLMEngine:
    """`RolloutEngine` over one vLLM engine, which is started here and ends with this object.

    Args:
        config: of the worker group.
        max_model_len: maximum number of tokens of prompt and reply together.
        device: cpu or cuda.
        num_threads: CPU threads of the engine's process; 0 keeps its default.
        seed: of the engine; requests have their own.
        adapters: that requests may name; each can be used once its weights are loaded.
        gpus: CUDA_VISIBLE_DEVICES of the ranks whose devices it spans; not read on a CPU or with
            one device.
        log: log file of its processes; empty for a temporary one.

    Raises:
        RolloutError: a model or an adapter that vLLM cannot serve, or GPUs that it cannot span.
        EngineGoneError: the engine's process did not start.
    """

    waits = True

    def __init__(
        self,
        config: ActorRolloutRefConfig,
        *,
        max_model_len: int,
        device: str,
        num_threads: int,
        seed: int,
        adapters: Mapping[str, LoraSpec] | None = None,
        gpus: Sequence[str] = (),
        log: str = "",
    ) -> None:
        specs = dict(adapters or {})
        spans = visible_gpus(gpus) if device == "cuda" and len(gpus) > 1 else ""
        self._log = EngineLog(log)
        self._spool = Spool(config.rollout.update_bucket_mb << 20)
        # Made now, as sockets of processes that outlive this engine are in it: below, TMPDIR is the
        # spool's.
        multiprocessing.util.get_temp_dir()
        with environment(
            engine_environment(device, num_threads, spans, log=self._log.path, scratch=self._spool.scratch)
        ):
            # Silences vLLM in this process, also while it is imported: this class reports an engine
            # that died, in one line.
            vllm_logger = logging.getLogger("vllm")
            vllm_logger.handlers[:], vllm_logger.propagate = [logging.NullHandler()], False
            with torch.device("meta"):
                model = build_causal_lm(
                    str(config.model.path),
                    dtype=torch.float32,
                    attn_implementation="eager",
                    trust_remote_code=config.model.trust_remote_code,
                )
            self._vocab_size = int(model.config.get_text_config().vocab_size)
            self._adapters = AdapterFolders(model, specs, self._spool)
            self._weights = WeightNames(model)
            arguments = engine_arguments(
                config,
                model.config.get_text_config(),
                max_model_len=max_model_len,
                device=device,
                seed=seed,
                adapters=specs,
            )
            self._thread = LoopThread("vllm-engine")
            try:
                self._llm = self._thread.run(_start(arguments), START_TIMEOUT_S)
            except BaseException as error:
                self._thread.close(end_timeout_s=LOOP_TIMEOUT_S)
                self._spool.close()
                if isinstance(error, Exception):
                    why = self._log.exit_cause(None, f"{type(error).__name__}: {error}")
                    raise EngineGoneError(
                        f"vLLM could not be started for {config.model.path}: {why}"
                    ) from error
                raise
        self._processes = processes_of(self._llm)
        self._shared: list[Path] = []
        self._end = weakref.finalize(
            self, _close, self._llm, self._processes, self._thread, self._spool, self._log, self._shared
        )
        self._max_model_len = max_model_len
        self._can_sleep = bool(arguments.get("enable_sleep_mode"))
        # With adapters the base is never sent again, so it must be kept while the engine sleeps.
        self._sleep_level = 1 if specs else 2
        self._open: dict[int, _Open] = {}
        self._names = itertools.count()
        self._version = 0
        self._cause = ""
        # By vLLM's own label of the weights: the version of the model (None) and of every adapter.
        self._labels: dict[int, dict[str | None, int]] = {0: {None: 0}}
        self._updating = self._paused = self._no_weights = self._no_cache = False
        self._stats = EngineStats()
        self._control(
            self._llm.collective_rpc(
                "verl_prepare", args=(str(config.model.path), config.model.trust_remote_code)
            )
        )
        pids = [process.pid for process in self._processes]
        self._shared += named_shared_memory([*pids, *(child.pid for child in children_of(pids))])

    @property
    def version(self) -> int:
        """Version of the model's current weights."""
        return self._version

    def version_of(self, adapter: str | None) -> int:
        """As `RolloutEngine.version_of`."""
        return self._version if adapter is None else self._adapters.version(adapter)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies.

        `max_tokens` is limited by `max_model_len`. Raises `RolloutError` when the request is
        invalid, the prompt alone is too long, or the model returns non-finite log-probs,
        `StructureError` for an impossible `structure`, `EngineGoneError` without a process.
        """
        limit = check_request(request, self._vocab_size, self._max_model_len, self.version_of)
        self.wake()
        self._stats.requests += 1
        # Here, not on the engine's thread: an update of the adapter that comes next sees the
        # request.
        ticket = next(self._names)
        entry = self._open[ticket] = _Open(request.request_id, request.adapter)
        serving = self._thread.submit(self._generate(request, limit, ticket, entry))
        # Also for a request that is cancelled before `_generate` begins, whose `finally` never
        # runs.
        serving.add_done_callback(lambda _: self._open.pop(ticket, None))
        return await asyncio.wrap_future(serving)

    def abort(self, request_id: str) -> int:
        """End the request's unfinished replies with stop reason `abort` and return their number."""
        # Copies: the engine's thread adds and removes entries meanwhile.
        replies = [
            name
            for entry in list(self._open.values())
            if entry.request_id == request_id
            for name in list(entry.replies)
        ]
        if replies:
            self._control(self._llm.abort(replies))
        return len(replies)

    def update_weights(
        self,
        named_tensors: Mapping[str, torch.Tensor],
        *,
        adapter: str | None = None,
        version: int,
        final: bool = True,
    ) -> None:
        """Copy one bucket of weights in place.

        For the model's weights, sampling pauses from the first bucket to the final one. An
        adapter's tensors, under PEFT's names, take effect together at the final one; sampling
        pauses then only if the adapter has replies in flight. The keys of replies in flight are
        computed again with the new weights, and `Generation.earlier` has the tokens that earlier
        weights sampled.

        Raises `RolloutError` as `WeightNames.check` and `AdapterInbox.take` do.
        """
        if adapter is None:
            self._update_model(named_tensors, version, final)
        else:
            self._update_adapter(adapter, named_tensors, version, final)

    def pause(self) -> None:
        """Stop sampling; requests are kept and new ones are accepted."""
        self._paused = True
        self._control(self._llm.pause_generation(mode="keep", clear_cache=False))

    def resume(self) -> None:
        """Continue sampling after `pause`."""
        self._paused = False
        # An update lets sampling go on itself when it ends.
        if not self._updating:
            self._control(self._llm.resume_generation())

    def sleep(self) -> None:
        """Drop cached prefixes; on a GPU, free the memory of the cache and of the weights.

        Raises `RolloutError` while replies are in flight.
        """
        # A request that was given up leaves `_open` only when vLLM has ended it.
        self._control(self._settle())
        if self._open:
            raise RolloutError(
                f"the engine cannot sleep with {len(self._open)} requests in flight; await or "
                "abort them first"
            )
        if not self._can_sleep:
            self._control(self._llm.reset_prefix_cache())
        elif not (self._no_weights or self._no_cache):
            self._control(self._llm.sleep(level=self._sleep_level))
            self._no_weights = self._no_cache = True

    def wake(self) -> None:
        """Allocate the memory of the weights, unless an update has done so, then that of the cache."""
        self._wake_weights()
        if self._no_cache:
            self._control(self._llm.wake_up(tags=["kv_cache"]))
            self._no_cache = False

    def close(self) -> None:
        """End the engine's process; requests in flight fail."""
        self._end()
        self._llm = None

    def stats(self) -> dict[str, float]:
        """Return counters since the start, and the current load."""
        states = list(self._llm.output_processor.request_states.values()) if self._llm else []
        sampled = self._stats.tokens + sum(
            state.detokenizer.num_output_tokens() for state in states if state.detokenizer
        )
        active = sum(len(entry.replies) for entry in list(self._open.values()))
        now = {"active": active, "waiting": 0, "version": self._version, "sampled": sampled}
        return {name: float(value) for name, value in {**vars(self._stats), **now}.items()}

    def _wake_weights(self) -> None:
        if self._no_weights:
            self._control(self._llm.wake_up(tags=["weights"]))
            self._no_weights = False

    def _update_model(self, tensors: Mapping[str, torch.Tensor], version: int, final: bool) -> None:
        names = self._weights.check(shapes_of(tensors))
        if not self._updating:
            self._wake_weights()
            # Cached keys are those of the old weights.
            self._control(self._llm.pause_generation(mode="keep", clear_cache=True))
            self._change_weights("verl_start_update")
            self._updating = True
        if names:
            with self._sent_to_processes(tensors) as (transfer, handle):
                failures = self._change_weights("verl_load_bucket", transfer, handle, names)
            if failure := next(filter(None, failures), None):
                raise EngineGoneError(failure)
        if not final:
            return
        self._weights.check_complete()
        self._change_weights("verl_finish_update")
        for name in self._adapters.loaded():
            self._control(self._llm.add_lora(self._adapters.request(name)))
        self._version = version
        self._control(self._label_weights())
        self._updating = False
        self._stats.weight_updates += 1
        if not (self._paused or self._no_cache):
            self._control(self._llm.resume_generation())

    def _change_weights(self, method: str, *args: Any) -> list[Any]:
        """Run one call of an update in the processes of the model. Raises `EngineSetupError` if
        vLLM cannot load the weights.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        async def call() -> list[Any]:
            try:
                return list(await self._llm.collective_rpc(method, args=args))
            # `_own_errors` reports it with the cause in the engine's log.
            except EngineDeadError:
                raise
            except Exception as error:
                # vLLM raises a bare one, with the text of the error in its process
                raise EngineSetupError(
                    "vLLM cannot load new weights into this model; use "
                    f"actor_rollout_ref.rollout.name=hf: {' '.join(str(error).split())}"
                ) from error

        return self._control(call())

    @contextmanager
    def _sent_to_processes(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, Any]]:
        """Yield the name of the transfer by which the processes of the model receive the tensors,
        and its handle.
        """
        # These reach the processes of the model by themselves, without a copy here.
        if isinstance(tensors, ReceivedWeights) and tensors.transfer.direct:
            yield transfer_name(tensors.transfer), tensors.handle
            return
        transfer = SharedMemory(self._spool)
        handle = transfer.send(tensors, 1)
        try:
            yield transfer_name(transfer), handle
        finally:
            transfer.release(handle)

    def _update_adapter(
        self, name: str, tensors: Mapping[str, torch.Tensor], version: int, final: bool
    ) -> None:
        request = self._adapters.take(name, tensors, final)
        if request is None:
            return
        self._wake_weights()
        in_use = not self._paused and any(entry.adapter == name for entry in list(self._open.values()))
        if in_use:
            self._control(self._llm.pause_generation(mode="keep", clear_cache=True))
        try:
            self._control(self._llm.add_lora(request))
        except BaseException:
            self._adapters.withdraw(name)
            raise
        self._adapters.set_version(name, version)
        self._control(self._label_weights())
        self._stats.weight_updates += 1
        if in_use:
            self._control(self._llm.resume_generation())

    async def _label_weights(self) -> None:
        """Label the tokens that vLLM samples from now on with the versions of the current weights."""
        label = max(self._labels) + 1
        self._labels[label] = {None: self._version} | {
            name: self._adapters.version(name) for name in self._adapters.loaded()
        }
        self._labels.pop(label - LABELS, None)
        await self._llm.engine_core.set_weight_version_async(str(label))

    async def _settle(self) -> None:
        """Wait until vLLM has processed cancelled requests."""
        # cancellations requested before this call have then begun
        for _ in range(3):
            await asyncio.sleep(0)
        while any(entry.closing for entry in self._open.values()):
            await asyncio.sleep(0.005)

    async def _generate(
        self, request: GenerateRequest, limit: int, ticket: int, entry: _Open
    ) -> list[Generation]:
        tasks = [
            asyncio.ensure_future(self._reply(request, limit, index, entry, f"{ticket}-{index}"))
            for index in range(request.n)
        ]
        replies = asyncio.gather(*tasks)
        try:
            with self._own_errors(StructureError if request.sampling.structure else RolloutError):
                return list(await self._while_alive(replies))
        except RolloutError:
            self._stats.failed += request.n
            raise
        finally:
            entry.closing = True
            for task in tasks:
                task.cancel()
            # or the error of `replies` is logged as never retrieved
            await asyncio.gather(replies, *tasks, return_exceptions=True)
            self._open.pop(ticket, None)

    async def _reply(
        self, request: GenerateRequest, limit: int, index: int, entry: _Open, name: str
    ) -> Generation:
        prompt = {"type": "token", "prompt_token_ids": list(request.prompt_ids)}
        lora = self._adapters.request(request.adapter)
        params = sampling_params(request.sampling, limit, reply_seed(request.seed, index))
        entry.replies.add(name)
        output: Any = None
        try:
            async for latest in self._llm.generate(
                prompt, params, name, lora_request=lora, priority=request.priority
            ):
                output = latest
        finally:
            entry.replies.discard(name)
        return self._generation(request, output)

    def _generation(self, request: GenerateRequest, output: Any) -> Generation:
        reply = output.outputs[0]
        tokens = tuple(int(token) for token in reply.token_ids)
        log_probs = tuple(
            float(entry[token].logprob) for token, entry in zip(tokens, reply.logprobs or (), strict=True)
        )
        ended = reply.finish_reason in ("stop", "length", "abort")
        if not ended or not all(math.isfinite(value) for value in log_probs):
            # vLLM could not compile it
            kind = StructureError if request.sampling.structure and not ended else RolloutError
            what = "non-finite logits" if ended else f"the end {reply.finish_reason!r}"
            raise kind(f"the model gave {what} for request {request.request_id or '(no id)'}")
        reason: StopReason = reply.finish_reason
        self._stats.prompt_tokens_copied += (cached := output.num_cached_tokens or 0)
        self._stats.prompt_tokens_computed += len(request.prompt_ids) - cached if tokens else 0
        self._stats.replies += 1
        self._stats.tokens += len(tokens)
        self._stats.aborted += reason == "abort"
        spans = self._spans(reply.weight_versions or (), request.adapter)
        version = spans[-1][0] if spans else self.version_of(request.adapter)
        return Generation(tokens, log_probs, reason, version=version, earlier=tuple(spans[:-1]))

    def _spans(self, labelled: Sequence[Any], adapter: str | None) -> list[tuple[int, int]]:
        """Return the (version, number of tokens) of a reply from vLLM's spans of equal labels."""
        spans: list[tuple[int, int]] = []
        for span in labelled:
            label = 0 if span.version == UNLABELLED else int(span.version)
            version = self._labels[label].get(adapter, 0)
            count = span.end - span.start
            if spans and spans[-1][0] == version:
                version = version
                count = count + spans.pop()[1]
            spans.append((version, count))
        return spans

    def _control(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._own_errors():
            return self._thread.run(self._while_alive(coroutine), CONTROL_TIMEOUT_S)

    async def _while_alive(self, work: Awaitable[T]) -> T:
        """Wait for `work` while the engine is alive.

        When vLLM detects that its process has ended, it fails the requests that wait at that time;
        a request that arrives at the same moment would wait forever.
        """
        llm = self._llm
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=LIVENESS_S))[0]:
                if llm.errored:
                    raise llm.dead_error
            return task.result()
        finally:
            task.cancel()

    @contextmanager
    def _own_errors(self, refused: type[RolloutError] = RolloutError) -> Iterator[None]:
        """Raise vLLM's errors as `EngineGoneError` or `RolloutError`, and that of a request which
        it does not accept as `refused`.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            yield
        except EngineDeadError as error:
            code = next((process.exitcode for process in self._processes if process.exitcode), None)
            # computed once for all requests in flight
            self._cause = self._cause or self._log.exit_cause(code)
            raise EngineGoneError(f"vLLM's process is gone: {self._cause}") from error
        except EngineGenerateError as error:
            raise RolloutError(f"vLLM could not serve the request: {error.__cause__ or error}") from error
        except (ValueError, VLLMClientError) as error:
            raise refused(f"vLLM refused: {error}") from error


def reply_seed(seed: int, index: int) -> int:
    """Return the seed of reply `index` under a request's seed, in [0, 2**63); requests with
    adjacent seeds share none.
    """
    return int(np.random.SeedSequence((seed % 2**64, index)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def sampling_params(sampling: SamplingParams, limit: int, seed: int) -> Any:
    """Return vLLM's sampling parameters: only a stop token of the request or the limit ends a
    reply, and every token has its log-prob.
    """
    from vllm import sampling_params as own

    return own.SamplingParams(
        max_tokens=limit,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        seed=seed,
        # 0: of the sampled token alone.
        logprobs=0,
        # Text is made on the rollout side, and the engine may have no tokenizer.
        detokenize=False,
        output_kind=own.RequestOutputKind.FINAL_ONLY,
        structured_outputs=own.StructuredOutputsParams(structural_tag=sampling.structure)
        if sampling.structure
        else None,
    )


async def _start(arguments: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    fork_engines()
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def _close(
    llm: Any,
    processes: Sequence[Any],
    thread: LoopThread,
    spool: Spool,
    log: EngineLog,
    shared: Sequence[Path],
) -> None:
    with ended(processes):
        llm.shutdown(timeout=STOP_TIMEOUT_S)
    for file in shared:  # a killed process does not remove its files
        file.unlink(missing_ok=True)
    thread.close(end_timeout_s=LOOP_TIMEOUT_S)
    spool.close()
    log.close()

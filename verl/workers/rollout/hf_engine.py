"""The `hf` engine: continuous batching over a fixed number of slots, in plain torch and
transformers.

Replies start and end at any time; each holds one slot of the key-value cache. A step computes some
chunks of new prompts, samples one token for every active slot, returns finished replies, fills free
slots, and runs the model once over the slots in use, [rows, 1]. Prompts are computed on a fixed
grid, every reply has its own random numbers, and masked cache blocks and other rows change no bit:
on a CPU a reply is the same to the last bit in any batch, whatever the adapters of the other rows
and whatever beginnings of prompts slots hold already, earlier turns with their replies included.

The loop is an asyncio task that exists while there is work and yields after every step, so
everything between two steps (requests, aborts, new weights) happens while the model is not running,
without a lock. So weights are loaded on the event loop, as every step is computed there: a thread
of its own would change layers, slots and keys below a step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from verl.models.lora import LoraSpec
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, StopReason, StructureError
from verl.workers.rollout.base import EngineStats
from verl.workers.rollout.requests import check_request
from verl.workers.rollout.sampling import draw_uniforms
from verl.workers.rollout.scheduler import Admission, Copy, Fill, Pass, Scheduler
from verl.workers.rollout.serving import MODELS, serving_of
from verl.workers.rollout.slots import FAILED, STOP, SlotState
from verl.workers.rollout.structure import GrammarCompiler, SlotForms
from verl.workers.rollout.waiting import PendingReply, Ticket
from verl.workers.rollout.weights import WeightLoader

logger = logging.getLogger(__name__)


@dataclass
class SlotStats(EngineStats):
    """Counters since the start; times in seconds.

    Attributes:
        steps: number of decode steps.
        busy_seconds: time in them.
    """

    steps: int = 0
    busy_seconds: float = 0.0


@dataclass
class _Pending:
    ticket: Ticket
    future: asyncio.Future[list[Generation]] = field(repr=False)


class HFEngine:
    """`RolloutEngine` over a Hugging Face causal LM that it owns.

    Args:
        model: the model, on its device, in its dtype; it is switched to eval mode and to the
            attention of the way it is served.
        max_num_seqs: number of slots.
        max_model_len: maximum number of tokens of prompt and reply together.
        adapters: that requests may name; each can be used once its weights are loaded.
        load_tokenizer: returns the model's tokenizer, which replies with a `structure` need; None
            refuses them.
        enable_prefix_caching: beginnings of prompts are computed once while a slot holds them;
            without, only whole prompts. It changes no bit of a reply.
    """

    waits = False

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_num_seqs: int,
        max_model_len: int,
        adapters: Mapping[str, LoraSpec] | None = None,
        load_tokenizer: Callable[[], Any] | None = None,
        enable_prefix_caching: bool = True,
    ) -> None:
        if max_num_seqs < 1 or max_model_len < 2:
            raise RolloutError(
                f"max_num_seqs={max_num_seqs} and max_model_len={max_model_len}: expected at least 1 and 2"
            )
        serving = serving_of(model.config, max_model_len=max_model_len)
        for note in serving.notes():
            logger.warning("the hf engine of %s: %s", type(model).__name__, note)
        self._prefix_caching = enable_prefix_caching
        self._model = MODELS[serving.mode](model, max_num_seqs, max_model_len, adapters)
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        # Keys of a reply are those of the same tokens in a prompt, to the last bit.
        self._keeps_replies = self._prefix_caching and serving.same_keys and self._model.is_shapeless
        self._slots = SlotState(self._model.slots, max_model_len, self._model.device)
        self._stats = SlotStats()
        self._scheduler = self._new_scheduler()
        self._weights = WeightLoader(model)
        self._compiler = (
            None if load_tokenizer is None else GrammarCompiler(load_tokenizer, self._model.vocab_size)
        )
        self._forms = SlotForms()
        self._running: dict[int, PendingReply] = {}  # replies with a slot
        self._unsafe: set[int] = set()  # slots of replies with keys that are no numbers
        self._text_lengths: dict[int, int] = {}  # of the texts computed into slots
        # Slots whose replies start from what other slots hold: (source, slot, reply).
        self._copies: list[tuple[int, int, PendingReply]] = []
        # per slot, as `Generation.earlier`
        self._earlier: dict[int, list[tuple[int, int]]] = {}
        self._pending: dict[int, _Pending] = {}
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._version = 0

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            self._max_num_seqs,
            self._model.token_budget,
            self._prefix_caching,
            self._stats,
            self._model.row_block,
        )

    @property
    def version(self) -> int:
        """Version of the model's current weights."""
        return self._version

    def version_of(self, adapter: str | None) -> int:
        """As `RolloutEngine.version_of`."""
        return self._version if adapter is None else self._model.adapters.version(adapter)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample `request.n` replies.

        `max_tokens` is limited by `max_model_len`. Raises `RolloutError` when the request is
        invalid, the prompt alone is too long, or the model returns non-finite logits;
        `StructureError` for an impossible `structure`.
        """
        limit = check_request(request, self._model.vocab_size, self._max_model_len, self.version_of)
        grammar = await self._grammar(request.sampling.structure) if request.sampling.structure else None
        ticket = Ticket(request, limit, [None] * request.n, grammar)
        future: asyncio.Future[list[Generation]] = asyncio.get_running_loop().create_future()
        self._pending[id(ticket)] = _Pending(ticket, future)
        self._stats.requests += 1
        self._scheduler.add(PendingReply(ticket, index) for index in range(request.n))
        self._kick()
        try:
            return await future
        finally:
            # After a cancellation replies of it are still open; otherwise nothing is left to drop.
            if self._pending.pop(id(ticket), None) is not None:
                self._drop(ticket)

    async def _grammar(self, structure: str) -> Any:
        if self._compiler is None:
            raise RolloutError(
                "the engine cannot make a reply follow a schema; set "
                "actor_rollout_ref.rollout.structured_outputs=true"
            )
        return await self._compiler.compile(structure)

    def abort(self, request_id: str) -> int:
        """End the request's unfinished replies with stop reason `abort` and return their number."""
        tickets = [
            entry.ticket for entry in self._pending.values() if entry.ticket.request.request_id == request_id
        ]
        return sum(self._drop(ticket) for ticket in tickets)

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
        adapter's tensors, under PEFT's names, take effect together at the final one; sampling does
        not pause, and replies under other adapters are unaffected.

        Replies in flight continue with the new weights: their keys are computed again, and
        `Generation.earlier` has the tokens that earlier weights sampled. Raises `RolloutError` as
        `WeightLoader.load` and `RowAdapters.load` do.
        """
        in_flight = any(
            adapter is None or reply.ticket.request.adapter == adapter for reply in self._running.values()
        )
        before = self.version_of(adapter) if in_flight else 0
        if adapter is None:
            try:
                self._weights.load(named_tensors, final)
            finally:
                self._model.weights_changed()
                # What slots hold has keys of the old weights, of which a part may be replaced.
                self._scheduler.forget()
        else:
            self._model.adapters.load(adapter, named_tensors, version, final)
            self._scheduler.forget_adapter(adapter)
        if final:
            self._version = version if adapter is None else self._version
            self._stats.weight_updates += 1
            if before != version:
                self._continue_with_new_weights(adapter, before)
            self._kick()

    def pause(self) -> None:
        """Stop sampling; requests are kept and new ones are accepted."""
        self._paused = True

    def resume(self) -> None:
        """Continue sampling after `pause`."""
        self._paused = False
        self._kick()

    def sleep(self) -> None:
        """Free the key-value cache. Raises `RolloutError` while replies are in flight."""
        if self._pending:
            raise RolloutError(
                f"the engine cannot sleep with {len(self._pending)} requests in flight; await or "
                "abort them first"
            )
        self._scheduler.forget()
        every = range(self._model.slots)
        # an idle row at a position beyond the next, smaller cache would write outside it
        self._slots.stop(every, [0] * len(every))
        self._model.release()
        self._unsafe.clear()

    def wake(self) -> None:
        """Allocate the key-value cache again."""
        self._model.reserve(1)

    def close(self) -> None:
        """Abort requests in flight; there are no processes to end."""
        for entry in list(self._pending.values()):
            self._drop(entry.ticket)

    def stats(self) -> dict[str, float]:
        """Return counters since the start, and the current load."""
        occupancy = self._stats.sampled / max(1, self._stats.steps * self._model.slots)
        now = {
            "active": self._slots.active + self._scheduler.unstarted,
            "waiting": self._scheduler.waiting,
            "version": self._version,
            "occupancy": occupancy,
        }
        return {name: float(value) for name, value in {**vars(self._stats), **now}.items()}

    def _kick(self) -> None:
        """Start the loop if there are requests and the engine is not paused, updating or running
        already.
        """
        if (
            not self._pending
            or self._paused
            or self._weights.open
            or (self._task is not None and not self._task.done())
        ):
            return
        self._task = (
            next(iter(self._pending.values())).future.get_loop().create_task(self._run(), name="hf-engine")
        )
        self._task.add_done_callback(self._on_loop_end)

    async def _run(self) -> None:
        await asyncio.sleep(0)
        while self._pending and not self._paused and not self._weights.open:
            started = time.perf_counter()
            self._step()
            self._stats.busy_seconds += time.perf_counter() - started
            await asyncio.sleep(0)

    def _on_loop_end(self, task: asyncio.Task[None]) -> None:
        """If the loop failed, fail all of its requests with the cause; the engine stays usable."""
        if task.cancelled():
            # A run that ends, by an error of its own too, is no failure of the engine.
            cause: BaseException | None = RolloutError("the engine's event loop was closed")
            level = logging.DEBUG
        else:
            cause = task.exception()
            level = logging.ERROR
        if cause is None:
            self._kick()
            return
        logger.log(level, "the engine's loop failed", exc_info=cause)
        for entry in list(self._pending.values()):
            self._fail(entry.ticket, f"the engine's loop failed: {type(cause).__name__}: {cause}")
        # A step that failed may have left slots and queue in any state.
        self._slots.stop(range(self._model.slots), [0] * self._model.slots)
        self._unsafe.update(range(self._model.slots))
        self._copies = []
        self._scheduler = self._new_scheduler()

    @torch.inference_mode()
    def _step(self) -> None:
        while (admission := self._scheduler.admit()) is not None:
            self._admit(admission)
        self._begin_copies()
        for _ in range(self._scheduler.passes):
            chunks = self._scheduler.next_pass(self._slots.active)
            if chunks is None:
                break
            self._compute(chunks)
        if self._slots.active:
            self._sample()
        self._scheduler.tick()

    def _sample(self) -> None:
        self._stats.steps += 1
        self._stats.sampled += self._slots.active
        for slot, end in self._slots.step(self._masked_logits() if self._forms else self._model.logits):
            # not if another reply of its request failed in this step
            if slot in self._running:
                self._finish(slot, end)
        if self._forms:
            self._forms.accept(self._slots.tokens, self._scheduler.is_filling)
        if self._slots.active:
            self._slots.advance()
            self._model.decode(
                self._slots.tokens, self._slots.positions, self._slots.longest + 1, self._slots.used
            )

    def _masked_logits(self) -> torch.Tensor:
        logits, stuck = self._forms.mask(self._model.logits)
        for slot in stuck:
            if slot in self._running:
                self._fail(
                    self._running[slot].ticket,
                    "the form allows no token after the beginning of a reply",
                    StructureError,
                )
        return logits

    def _admit(self, admission: Admission) -> None:
        slot = admission.slot
        reply = admission.reply
        request = reply.ticket.request
        if admission.move is not None or admission.source is None:
            # What is written now may be what a copy reads.
            self._begin_copies()
        if (move := admission.move) is not None:
            self._make_safe(move.target)
            self._model.copy([move.source], [move.target], move.length)
            self._keep_free(move.target, move.length)
        self._make_safe(slot)
        self._running[slot] = reply
        reply.ticket.slots[reply.index] = slot
        self._model.adapters.assign([slot], [request.adapter])
        self._keep_free(slot, len(request.prompt_ids))
        self._copy_prefixes(admission.copies)
        if admission.source is not None:
            if any(target == admission.source for _, target, _ in self._copies):
                self._begin_copies()
            self._copies.append((admission.source, slot, reply))

    def _begin_copies(self) -> None:
        """Start the replies whose prompts other slots hold."""
        if not self._copies:
            return
        sources = [source for source, _, _ in self._copies]
        started = [(slot, reply) for _, slot, reply in self._copies]
        self._copies = []
        longest = max(len(reply.ticket.request.prompt_ids) for _, reply in started)
        self._model.copy(sources, [slot for slot, _ in started], longest)
        self._start(started)

    def _copy_prefixes(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._model.copy_prefix(copy.source, copy.target, copy.start, copy.end)

    def _compute(self, work: Pass) -> None:
        # Of a text that began again after keys that were no numbers: now, not when it is used.
        began = {chunk.slot for chunk in work.chunks if chunk.start == 0}
        for slot in began | {copy.target for copy in work.copies if copy.start == 0}:
            self._make_safe(slot)
        self._copy_prefixes(work.copies)
        if not work.chunks:
            return
        finite = self._model.compute(work.chunks)
        self._unsafe.update(
            chunk.slot for chunk, is_finite in zip(work.chunks, finite, strict=True) if not is_finite
        )
        for fill in self._scheduler.computed(work.chunks, finite):
            self._begin(fill)

    def _begin(self, fill: Fill) -> None:
        """Start, or go on with, the replies whose text is computed."""
        slot = fill.slot
        if fill.prompt is None:
            self._slots.resume(slot, len(fill.text) - 1)
            return
        started = list(fill.followers.items())
        if started:
            followers = [follower for follower, _ in started]
            self._model.copy([slot] * len(followers), followers, len(fill.text))
            if slot in self._unsafe:
                self._unsafe.update(followers)
        if fill.reply is None:
            self._model.end([slot])
        else:
            started.insert(0, (slot, fill.reply))
        if started:
            self._start(started)

    def _start(self, started: Sequence[tuple[int, PendingReply]]) -> None:
        """Start replies whose slots hold their prompts and the logits after them."""
        tickets = [reply.ticket for _, reply in started]
        self._slots.start(
            [slot for slot, _ in started],
            [len(ticket.request.prompt_ids) for ticket in tickets],
            [ticket.limit for ticket in tickets],
            [ticket.request.sampling for ticket in tickets],
            [
                draw_uniforms(reply.ticket.request.seed, reply.index, reply.ticket.limit)
                for _, reply in started
            ],
        )
        for slot, reply in started:
            if reply.ticket.grammar is not None:
                self._forms.start(slot, reply.ticket.grammar, reply.ticket.request.sampling.stop_token_ids)

    @torch.inference_mode()
    def _continue_with_new_weights(self, adapter: str | None, before: int) -> None:
        """Let the keys of replies in flight be computed again, and note the tokens of the adapter's
        own that the version `before` sampled. New weights of the model change all keys.
        """
        for slot, reply in self._running.items():
            request = reply.ticket.request
            # A text that is being computed has begun again already.
            if (adapter is not None and request.adapter != adapter) or not self._slots.is_active(slot):
                continue
            tokens, _ = self._slots.output(slot)
            noted = self._earlier.setdefault(slot, [])
            # Those of still earlier versions are noted already.
            new = len(tokens) - sum(count for _, count in noted)
            if new and request.adapter == adapter:
                noted.append((before, new))
            text = (*request.prompt_ids, *tokens)
            self._slots.suspend(slot)
            self._model.end([slot])
            self._keep_free(slot, len(text))
            self._scheduler.continue_text(slot, reply, text)

    def _finish(self, slot: int, end: int) -> None:
        ticket = self._running[slot].ticket
        if end == FAILED:
            # The request's other replies have copies of the same keys.
            self._condemn(self._slots_of(ticket))
            self._fail(
                ticket,
                f"the model gave non-finite logits for request {ticket.request.request_id or '(no id)'}",
            )
            return
        self._record(self._running[slot], slot, "stop" if end == STOP else "length")

    def _record(self, reply: PendingReply, slot: int | None, reason: StopReason) -> None:
        """Record a reply that ended and free its slot; the last one of a ticket resolves the
        request.
        """
        tokens, log_probs = ((), ()) if slot is None else self._slots.output(slot)
        earlier: tuple[tuple[int, int], ...] = ()
        if slot is not None:
            earlier = tuple(self._earlier.get(slot, ()))
            # Of the last token no key was computed.
            self._release(slot, reason == "abort", tokens[:-1])
        version = self.version_of(reply.ticket.request.adapter)
        reply.ticket.replies[reply.index] = Generation(
            tokens, log_probs, reason, version=version, earlier=earlier
        )
        reply.ticket.open -= 1
        self._stats.replies += 1
        self._stats.tokens += len(tokens)
        self._stats.aborted += reason == "abort"
        entry = self._pending.get(id(reply.ticket))
        # Nobody waits any more for a request that was cancelled in this tick.
        if reply.ticket.open == 0 and entry is not None and not entry.future.done():
            entry.future.set_result(
                [generation for generation in reply.ticket.replies if generation is not None]
            )

    def _drop(self, ticket: Ticket) -> int:
        """Abort the unfinished replies of a ticket and return their number."""
        ended: list[tuple[PendingReply, int | None]] = [
            (reply, None) for reply in self._scheduler.withdraw(ticket)
        ]
        ended += [(self._running[slot], slot) for slot in self._slots_of(ticket)]
        for reply, slot in ended:
            self._record(reply, slot, "abort")
        return len(ended)

    def _fail(self, ticket: Ticket, error: str, kind: type[RolloutError] = RolloutError) -> None:
        self._scheduler.withdraw(ticket)
        for slot in self._slots_of(ticket):
            self._release(slot, True)
        self._stats.failed += ticket.open
        entry = self._pending.pop(id(ticket), None)
        if entry is not None and not entry.future.done():
            entry.future.set_exception(kind(error))

    def _slots_of(self, ticket: Ticket) -> list[int]:
        return list(ticket.slots.values())

    def _release(self, slot: int, is_early: bool, tokens: Sequence[int] = ()) -> None:
        """Free the slot of a reply; one that ends early may have keys that no step has looked at.

        Args:
            slot: of the reply.
            is_early: it has not ended by itself.
            tokens: of the reply, with keys in the slot.
        """
        reply = self._running.pop(slot)
        del reply.ticket.slots[reply.index]
        self._earlier.pop(slot, None)
        self._forms.stop(slot)
        request = reply.ticket.request
        text: tuple[int, ...] = ()
        if self._keeps_replies and not is_early and slot not in self._unsafe:
            text = (*request.prompt_ids, *tokens)
            self._text_lengths[slot] = len(text)
            self._model.reserve(len(text) + 1)
        self._slots.stop([slot], [self._text_lengths[slot]])
        self._model.end([slot])
        if is_early and not bool(self._model.logits[slot].isfinite().all()):
            self._condemn([slot])
        self._scheduler.free(slot, text, request.adapter)

    def _condemn(self, slots: Sequence[int]) -> None:
        """Let nothing use what slots hold: it is cleared before their next replies."""
        self._unsafe.update(slots)
        self._scheduler.forget(slots)

    def _keep_free(self, slot: int, length: int) -> None:
        """Let steps write the idle row of a slot behind a text that is computed into it."""
        self._text_lengths[slot] = length
        self._model.reserve(length + 1)
        self._slots.park([slot], [length])

    def _make_safe(self, slot: int) -> None:
        if slot in self._unsafe:
            self._unsafe.remove(slot)
            self._model.clear([slot])

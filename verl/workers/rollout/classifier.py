"""The engine of a reward model: a sequence classifier that scores conversations instead of
continuing them.

Rows are right-padded to a length that depends on the row alone, and every forward pass has the same
number of rows, so a score does not depend on what else is scored, nor on when. Where a check on a
miniature finds that it would, every row is scored alone, without padding.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import PreTrainedModel

from verl.models.reward_model import depends_on_padding, scoring_of
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, ScoredPrompt
from verl.workers.engine.layout import RopeState
from verl.workers.rollout.base import EngineStats
from verl.workers.rollout.requests import check_request

logger = logging.getLogger(__name__)

SHORTEST = 64


class ClassifierEngine:
    """`RolloutEngine` whose reply to a prompt is its score (`ScoredPrompt`), without tokens.

    Args:
        model: sequence classifier with one output, on its device; one of transformers is switched
            to the attention of `scoring_of`.
        micro_batch_size: rows of every forward pass.
        max_model_len: maximum length of a prompt, plus one.
    """

    waits = False

    def __init__(self, model: Any, *, micro_batch_size: int, max_model_len: int) -> None:
        self._model = model
        self._rows = micro_batch_size
        self._max_model_len = max_model_len
        self._alone = _check(model)
        self._config = model.config.get_text_config()
        self._pad = self._config.pad_token_id
        self._waiting: OrderedDict[int, tuple[GenerateRequest, asyncio.Future[float]]] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._stats = EngineStats()
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(
            1, "classifier", initializer=torch.set_num_threads, initargs=(threads,)
        )

    @property
    def version(self) -> int:
        """Always 0: the weights do not change."""
        return 0

    def version_of(self, adapter: str | None) -> int:
        """As `RolloutEngine.version_of`."""
        if adapter is not None:
            raise RolloutError(f"a reward model has no adapter {adapter!r}")
        return 0

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return the score of the prompt. Raises `RolloutError` for an invalid prompt, a failing
        model, or a score that is not finite.
        """
        check_request(request, self._config.vocab_size, self._max_model_len, self.version_of)
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[id(future)] = (request, future)
        self._stats.requests += 1
        self._stats.prompt_tokens_computed += len(request.prompt_ids)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="classifier")
        try:
            return [ScoredPrompt((), (), "stop", score=await future)] * request.n
        finally:
            self._waiting.pop(id(future), None)

    def abort(self, request_id: str) -> int:
        """End the requests of this id and return their number."""
        futures = [future for request, future in self._waiting.values() if request.request_id == request_id]
        for future in futures:
            _fail(future, RolloutError(f"request {request_id} was aborted"))
        return len(futures)

    def update_weights(
        self,
        named_tensors: Mapping[str, torch.Tensor],
        *,
        adapter: str | None = None,
        version: int,
        final: bool = True,
    ) -> None:
        """Raise `RolloutError`: a reward model is not trained."""
        raise RolloutError("a reward model is not trained and takes no weights")

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def sleep(self) -> None:
        """Do nothing: an idle classifier has no cache."""

    def wake(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Fail the requests in flight; a forward pass that runs is not awaited."""
        for _, future in list(self._waiting.values()):
            _fail(future, RolloutError("the reward model has been closed"))
        self._thread.shutdown(wait=False, cancel_futures=True)

    def stats(self) -> dict[str, float]:
        """Return counters since the start."""
        return {name: float(value) for name, value in vars(self._stats).items()}

    async def _run(self) -> None:
        """Score waiting prompts in the order of their priority, then of arrival, each with others
        of its padded length.
        """
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        while open_ := [entry for entry in self._waiting.values() if not entry[1].done()]:
            open_.sort(key=lambda entry: entry[0].priority)
            width = padded_length(len(open_[0][0].prompt_ids))
            batch = [entry for entry in open_ if padded_length(len(entry[0].prompt_ids)) == width][
                : self._rows
            ]
            results = await loop.run_in_executor(
                self._thread, self._scores, [request.prompt_ids for request, _ in batch], width
            )
            for (_, future), result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    self._stats.failed += 1
                    _fail(future, result)
                elif not future.done():
                    self._stats.replies += 1
                    future.set_result(result)
            await asyncio.sleep(0)

    def _scores(self, rows: Sequence[Sequence[int]], width: int) -> list[float | Exception]:
        """Return the score of every row, or its error. Rows of a pass that fails are tried alone:
        one row's error is not the others'.
        """
        try:
            scores = self._forward(rows, width)
        except Exception as error:  # the model's own code may raise anything
            if len(rows) == 1:
                return [RolloutError(f"the reward model failed: {type(error).__name__}: {error}")]
            return [result for row in rows for result in self._scores([row], width)]
        finite = torch.isfinite(scores).tolist()
        return [
            score
            if fine
            else RolloutError(f"the reward model gave the score {score}; scores must be finite numbers")
            for score, fine in zip(scores.tolist(), finite, strict=True)
        ]

    @torch.inference_mode()
    def _forward(self, rows: Sequence[Sequence[int]], width: int) -> torch.Tensor:
        """Return the scores of the rows, `[len(rows)]`, in float32."""
        if self._alone is None:
            filled = [*rows, *[rows[0]] * (self._rows - len(rows))]
            return self._pass(filled, width)[: len(rows)]
        scores = []
        for row in rows:
            self._alone.reset()
            scores.append(self._pass([row], len(row)))
        return torch.cat(scores)

    def _pass(self, rows: Sequence[Sequence[int]], width: int) -> torch.Tensor:
        """Return the scores of rows that are padded to `width`, `[len(rows)]`, in float32."""
        # Without a padding token of its own, the model would take the last position for the end of
        # every row.
        pad = (
            next(i for i in range(self._config.vocab_size) if not any(i in row for row in rows))
            if self._pad is None
            else self._pad
        )
        self._config.pad_token_id = pad
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._model.device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self._model.device
        )
        logits = self._model(input_ids=ids, attention_mask=mask).logits
        if logits.shape != (len(rows), 1):
            raise RolloutError(
                f"expected one score for each of {len(rows)} rows, found the shape {list(logits.shape)}"
            )
        return logits[:, 0].float().cpu()


def _check(model: Any) -> RopeState | None:
    """Switch a model of transformers to its exact attention; return what to reset before every row
    if rows have to be scored alone.
    """
    if not isinstance(model, PreTrainedModel):
        return None
    scoring = scoring_of(model.config)
    if scoring.attention == "eager" and model.config._attn_implementation != "eager":
        model.set_attn_implementation("eager")
    if scoring.padded and (scoring.checked or not depends_on_padding(model)):
        return None
    logger.warning(
        "the scores of %s depend on padding: every row is scored alone, which takes longer",
        type(model).__name__,
    )
    return RopeState(model)


def padded_length(length: int) -> int:
    """Return the next power of two, at least `SHORTEST`."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def _fail(future: asyncio.Future[float], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

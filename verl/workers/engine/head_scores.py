"""Log-probability and entropy of given tokens, from hidden states and the weights of the head or
from logits.

From hidden states the logits exist for one tile of tokens and words at a time, in the forward pass
and again in the backward pass; only as many as fit into a fixed memory are kept in between. A tile
has few words and many tokens, so that the weights of the head are read once, and each part of their
gradient is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

# Of logits that exist anyway: temporaries for so many of them at a time.
_CHUNK_ELEMENTS = 1 << 26
# Logits of a tile: on a CPU what its caches hold, on a GPU what keeps all of its cores busy.
_TILE_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 25}
_TILE_ROWS = 2048
# Logits that the backward pass finds instead of computing them again: 512 MiB in fp32. A micro-batch
# of a model with few words has no more.
_KEPT_ELEMENTS = 1 << 27
# Below it the probability is 0 in fp32: clamping log-probs here, -inf included, makes p * log p
# equal 0 instead of NaN.
_LOWEST = -1e4


@dataclass(frozen=True)
class LogitMap:
    """What a model does to the output x of its head: logits = cap * tanh(scale * x / cap), or
    scale * x without a cap.
    """

    scale: float = 1.0
    cap: float | None = None

    def apply_(self, outputs: torch.Tensor) -> torch.Tensor:
        """Turn outputs of the head into logits, in place."""
        if self.scale != 1.0:
            outputs.mul_(self.scale)
        if self.cap is not None:
            outputs.div_(self.cap).tanh_().mul_(self.cap)
        return outputs


IDENTITY = LogitMap()


@dataclass(frozen=True)
class Head:
    """A linear head.

    Attributes:
        weight: `[vocab, hidden]`, of the dtype of the hidden states.
        bias: `[vocab]`, or None.
        logit_map: what makes logits of its output.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    logit_map: LogitMap = IDENTITY


@dataclass(frozen=True)
class ScoreRequest:
    """What is read from distributions over the vocabulary.

    Attributes:
        labels: `[n]` token ids.
        temperature: of the softmax; positive, one for all or one per distribution `[count]`.
        index: `[n]`, the distribution that each label is read from; without it they are in order.
        squares: also the sums of squared probabilities.
        entropy_gradient: entropies are differentiable. Without, log-probs of a frozen head have
            their gradient from the forward pass.
    """

    labels: torch.Tensor
    temperature: float | torch.Tensor = 1.0
    index: torch.Tensor | None = None
    squares: bool = False
    entropy_gradient: bool = True

    def __post_init__(self) -> None:
        lowest = (
            float(self.temperature.min()) if _is_tensor_with_numbers(self.temperature) else self.temperature
        )
        if not isinstance(lowest, torch.Tensor) and not lowest > 0:
            raise ValueError(f"temperature={lowest}: log-probs need a positive temperature")


def _is_tensor_with_numbers(value: float | torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_meta and value.numel() > 0


@dataclass(frozen=True)
class TokenScores:
    """Scores of labels and of distributions.

    Attributes:
        log_probs: `[n]` of the labels.
        entropy: `[count]` of the distributions, in nats.
        squares: `[count]`, sums of squared probabilities, without a gradient; None unless wanted.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor
    squares: torch.Tensor | None


def token_scores(outputs: torch.Tensor, request: ScoreRequest, head: Head | None = None) -> TokenScores:
    """Return the scores under softmax(logits / temperature), in fp32 (fp64 for fp64 inputs).

    A logit of -inf means probability 0: it adds nothing to the entropy, and its gradient is 0.
    Products with the head's weights are in their own dtype, sums over the vocabulary in fp32.

    Args:
        outputs: hidden states `[count, hidden]`, or without a head logits `[count, vocab]`; any
            float dtype.
        request: what is read from them.
        head: makes logits of hidden states.

    Raises:
        IndexError: a label is no word of the vocabulary.
    """
    weight = None if head is None else head.weight
    bias = None if head is None else head.bias
    logit_map = IDENTITY if head is None else head.logit_map
    inputs = (outputs, weight, bias)
    vocab = outputs.shape[1] if weight is None else len(weight)
    # A label outside would be in no tile, and without a logit.
    if len(request.labels) and not outputs.is_meta:
        lowest = int(request.labels.min())
        highest = int(request.labels.max())
        if lowest < 0 or highest >= vocab:
            raise IndexError(f"labels {lowest} to {highest}: expected 0 to {vocab - 1}, the vocabulary")
    with_gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    log_probs, entropy, squares = _TokenScores.apply(*inputs, request, logit_map, with_gradient)
    return TokenScores(log_probs, entropy, squares if request.squares else None)


class _TokenScores(torch.autograd.Function):
    """See `token_scores`. It keeps its inputs, the normalisation and the entropy of each
    distribution, some logits, and of a frozen head the expected row of its weights instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        outputs: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        request: ScoreRequest,
        logit_map: LogitMap,
        with_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = _Logits(outputs, weight, bias, request.temperature, logit_map)
        labels = _Labels(request)
        sums = _Sums(logits, request.squares)
        if weight is not None and with_gradient:
            is_trained = any(value is not None and value.requires_grad for value in (weight, bias))
            if is_trained or request.entropy_gradient:
                logits.keep()
            else:
                sums.expect()
        # Of the labels, behind scale, cap and temperature.
        label_logits = logits.vector(len(request.labels))
        for columns in logits.columns:
            for rows in logits.rows:
                tile = logits.tile(rows, columns)
                labels.read(tile, rows, columns, label_logits)
                sums.add(tile, rows, columns)
        log_z, entropy, squares = sums.results()
        log_probs = label_logits - log_z[labels.rows]
        ctx.save_for_backward(outputs, weight, bias, log_z, entropy, label_logits, sums.expected)
        ctx.request = request
        ctx.logit_map = logit_map
        ctx.kept_tiles = logits.kept_tiles
        ctx.mark_non_differentiable(*([squares] if request.entropy_gradient else [entropy, squares]))
        # Entropy is often without a gradient, and its part of the pass is then left out.
        ctx.set_materialize_grads(False)
        return log_probs, entropy, squares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        grad_log_probs, grad_entropy, _ = grads
        outputs, weight, bias, log_z, entropy, label_logits, expected = ctx.saved_tensors
        if grad_log_probs is None and grad_entropy is None:
            grad_log_probs = torch.zeros_like(label_logits)
        logits = _Logits(outputs, weight, bias, ctx.request.temperature, ctx.logit_map, ctx.kept_tiles)
        labels = _Labels(ctx.request)
        # The gradient of the logits before scale and temperature is linear in these.
        of_labels = None
        of_rows = torch.zeros_like(log_z)
        if grad_log_probs is not None:
            of_labels = grad_log_probs * logits.factor(labels.rows)
            # A distribution that several labels are read from has the sum of their gradients.
            of_rows.index_add_(0, labels.rows, of_labels)
        if expected is not None:
            assert of_labels is not None, "entropies have no gradient then"
            return _frozen(
                logits, labels, of_labels * logits.slope(label_logits, labels.rows), of_rows, expected
            )
        of_entropy = None if grad_entropy is None else grad_entropy * logits.factor(slice(None))
        result = _Gradients(logits, ctx.needs_input_grad)
        for columns in logits.columns:
            for rows in logits.rows:
                tile = logits.tile(rows, columns)
                slope = logits.slope(tile, rows) if logits.is_capped else None
                tile.sub_(log_z[rows, None])
                if of_entropy is None:
                    tile.exp_().mul_(-of_rows[rows, None])
                else:
                    probs = torch.exp(tile, out=logits.second(tile))
                    tile.clamp_(min=_LOWEST).add_(entropy[rows, None]).mul_(-of_entropy[rows, None])
                    tile.sub_(of_rows[rows, None]).mul_(probs)
                if of_labels is not None:
                    labels.add(of_labels, tile, rows, columns)
                if slope is not None:
                    tile.mul_(slope)
                result.add(tile, rows, columns)
            result.end(columns)
        return result.outputs, result.weight, result.bias, None, None, None


def _frozen(
    logits: _Logits,
    labels: _Labels,
    of_labels: torch.Tensor,
    of_rows: torch.Tensor,
    expected: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of a frozen head: of a label's log-prob it is the row of the label less
    the expected row.
    """
    assert logits.weight is not None
    result = expected * -of_rows[:, None]
    result.index_add_(0, labels.rows, logits.weight[labels.ids].to(result.dtype) * of_labels[:, None])
    return result.to(logits.outputs.dtype), *(None,) * 5


class _Logits:
    """Logits behind scale, cap and temperature, one tile at a time in a buffer of their own.

    Attributes:
        rows: of the tiles.
        columns: of the tiles; tiles of the same columns follow each other.
        dtype: of the tiles: fp32, or fp64.
        kept_tiles: those that are not computed again, by their first row and column.
    """

    def __init__(
        self,
        outputs: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        temperature: float | torch.Tensor,
        logit_map: LogitMap,
        kept_tiles: Mapping[tuple[int, int], torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self.outputs = outputs
        self.weight = weight
        self.bias = bias
        self.dtype = torch.promote_types(outputs.dtype, torch.float32)
        self._temperature = temperature
        self._map = logit_map
        self.count = len(outputs)
        self.vocab = outputs.shape[1] if weight is None else len(weight)
        if weight is None:
            self.rows = _slices(self.count, max(1, _CHUNK_ELEMENTS // max(1, self.vocab)))
            self.columns = [slice(0, self.vocab)]
        else:
            elements = _TILE_ELEMENTS.get(outputs.device.type, _TILE_ELEMENTS["cpu"])
            height = max(_TILE_ROWS, elements // max(1, self.vocab))
            self.rows = _slices(self.count, height)
            self.columns = _slices(self.vocab, max(1, elements // max(1, min(height, self.count))))
        if outputs.is_meta:
            # Without numbers only the memory counts, and all tiles use the same.
            self.rows = self.rows[:1]
            self.columns = self.columns[:1]
        widest = max((part.stop - part.start for part in self.columns), default=0)
        self._size = widest * max((part.stop - part.start for part in self.rows), default=0)
        self._first: torch.Tensor | None = None
        self._second: torch.Tensor | None = None
        self.kept_tiles = dict(kept_tiles)
        self._room: torch.Tensor | None = None

    @property
    def is_capped(self) -> bool:
        """Whether the slope of the logit map differs between logits."""
        return self._map.cap is not None

    def vector(self, size: int, value: float = 0.0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a vector of one value."""
        return torch.full((size,), value, dtype=dtype or self.dtype, device=self.outputs.device)

    def keep(self) -> None:
        """Keep tiles from now on, as far as there is room for them."""
        room = min(_KEPT_ELEMENTS, self.count * self.vocab)
        self._room = torch.empty(room, dtype=self.dtype, device=self.outputs.device)

    def tile(self, rows: slice, columns: slice) -> torch.Tensor:
        """Return the logits of these rows and columns; the next call overwrites them."""
        if self._first is None:
            self._first = self.vector(self._size)
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        tile = self._first[: shape[0] * shape[1]].view(shape)
        place = (rows.start, columns.start)
        if place in self.kept_tiles:
            return tile.copy_(self.kept_tiles[place])
        self._compute(tile, rows, columns)
        if self._room is not None and tile.numel() <= len(self._room):
            self.kept_tiles[place] = self._room[: tile.numel()].view(shape).copy_(tile)
            self._room = self._room[tile.numel() :]
        return tile

    def _compute(self, tile: torch.Tensor, rows: slice, columns: slice) -> None:
        """Write logits into a tile."""
        if self.weight is None:
            tile.copy_(self.outputs[rows, columns])
        elif self.outputs.dtype != self.dtype:
            bias = None if self.bias is None else self.bias[columns]
            tile.copy_(F.linear(self.outputs[rows], self.weight[columns], bias))
        elif self.bias is None:
            torch.mm(self.outputs[rows], self.weight[columns].t(), out=tile)
        else:
            torch.addmm(self.bias[columns], self.outputs[rows], self.weight[columns].t(), out=tile)
        self._map.apply_(tile)
        if isinstance(self._temperature, torch.Tensor):
            tile.div_(self._temperature[rows, None].to(self.dtype))
        elif self._temperature != 1.0:
            tile.div_(self._temperature)

    def second(self, tile: torch.Tensor) -> torch.Tensor:
        """Return another buffer of the shape of a tile."""
        if self._second is None:
            self._second = self.vector(self._size)
        return self._second[: tile.numel()].view(tile.shape)

    def factor(self, rows: slice | torch.Tensor) -> torch.Tensor | float:
        """Return scale / temperature of some rows."""
        if isinstance(self._temperature, torch.Tensor):
            return self._map.scale / self._temperature[rows].to(self.dtype)
        return self._map.scale / self._temperature

    def slope(self, logits: torch.Tensor, rows: slice | torch.Tensor) -> torch.Tensor | float:
        """Return the derivative of the cap at logits behind it and behind the temperature.

        Args:
            logits: `[n]` of the given rows, or `[rows, columns]` of a tile.
            rows: of the logits.
        """
        if self._map.cap is None:
            return 1.0
        temperature = self._temperature
        if isinstance(temperature, torch.Tensor):
            temperature = temperature[rows].to(self.dtype)
            temperature = temperature[:, None] if logits.ndim == 2 else temperature
        return 1.0 - (logits * (temperature / self._map.cap)).square_()


def _slices(count: int, size: int) -> list[slice]:
    """Cut a range into parts of about equal size, none above `size`."""
    parts = -(-count // size)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


class _Labels:
    """The labels, and which of them are inside a tile. Those outside are moved to its corner, with
    a value of 0, because a selection would need their number on the host.

    Attributes:
        ids: `[n]` tokens.
        rows: `[n]`, the distribution of each label.
    """

    def __init__(self, request: ScoreRequest) -> None:
        self.ids = request.labels
        self._in_order = request.index is None
        self.rows = (
            torch.arange(len(self.ids), device=self.ids.device) if request.index is None else request.index
        )

    def _inside(self, rows: slice, columns: slice) -> tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return which labels to look at, their place in a tile, and whether they are in it."""
        some = rows if self._in_order else slice(None)
        row = self.rows[some] - rows.start
        column = self.ids[some] - columns.start
        height = rows.stop - rows.start
        width = columns.stop - columns.start
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return some, row.clamp_(0, height - 1), column.clamp_(0, width - 1), inside

    def read(self, tile: torch.Tensor, rows: slice, columns: slice, label_logits: torch.Tensor) -> None:
        """Write the logits of the labels in a tile into `label_logits` `[n]`."""
        some, row, column, inside = self._inside(rows, columns)
        label_logits[some] = torch.where(inside, tile[row, column], label_logits[some])

    def add(self, values: torch.Tensor, tile: torch.Tensor, rows: slice, columns: slice) -> None:
        """Add `values` `[n]` to a tile at the labels in it."""
        some, row, column, inside = self._inside(rows, columns)
        tile.index_put_((row, column), torch.where(inside, values[some], 0.0), accumulate=True)


class _Sums:
    """Sums over the vocabulary of exp(logit - peak), of these times logit - peak, and of their
    squares, while tiles come in. The sums are in fp64, which costs nothing: they have one number
    for each row.
    """

    def __init__(self, logits: _Logits, squares: bool) -> None:
        self._logits = logits
        # A finite number: the difference of two that are -inf would be NaN.
        self._peak = logits.vector(logits.count, torch.finfo(logits.dtype).min)
        self._total = logits.vector(logits.count, dtype=torch.float64)
        self._weighted = torch.zeros_like(self._total)
        self._squares = torch.zeros_like(self._total) if squares else None
        self.expected: torch.Tensor | None = None

    def expect(self) -> None:
        """Also sum the rows of the head's weights, from now on."""
        outputs = self._logits.outputs
        self.expected = torch.zeros_like(outputs, dtype=self._logits.dtype)

    def add(self, tile: torch.Tensor, rows: slice, columns: slice) -> None:
        """Add a tile, which is overwritten."""
        peak = torch.maximum(self._peak[rows], tile.amax(dim=1))
        drop = (self._peak[rows] - peak).double()
        self._peak[rows] = peak
        slope = self._logits.slope(tile, rows) if self.expected is not None else 1.0
        tile.sub_(peak[:, None])
        exps = torch.exp(tile, out=self._logits.second(tile))
        weighted = torch.linalg.vecdot(exps, tile.clamp_(min=_LOWEST)).double()
        rescale = drop.exp()
        earlier = self._weighted[rows] + drop * self._total[rows]
        self._weighted[rows] = rescale * earlier + weighted
        self._total[rows] = rescale * self._total[rows] + exps.sum(dim=1).double()
        if self._squares is not None:
            squares = torch.linalg.vecdot(exps, exps).double()
            self._squares[rows] = rescale.square() * self._squares[rows] + squares
        if self.expected is not None:
            assert self._logits.weight is not None
            if isinstance(slope, torch.Tensor):
                exps.mul_(slope)
            part = self.expected[rows].mul_(rescale[:, None].to(tile.dtype))
            _add_product(part, exps, self._logits.weight[columns])

    def results(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log of the normalisation, entropy, and sum of squared probabilities (empty unless
        request); `expected` becomes the mean.
        """
        dtype = self._logits.dtype
        log_total = self._total.log()
        entropy = log_total - self._weighted / self._total
        squares = self._total.new_empty(0) if self._squares is None else self._squares / self._total.square()
        if self.expected is not None:
            self.expected.div_(self._total[:, None].to(dtype))
        return (self._peak + log_total).to(dtype), entropy.to(dtype), squares.to(dtype)


class _Gradients:
    """Gradients of the inputs, from those of the logits of one tile after the other.

    Attributes:
        outputs: as the input; None unless needed.
        weight: None unless needed.
        bias: None unless needed.
    """

    def __init__(self, logits: _Logits, needed: Sequence[bool]) -> None:
        self._logits = logits
        of_outputs = needed[0]
        of_weight = logits.weight is not None and needed[1]
        self.weight = torch.zeros_like(logits.weight) if of_weight else None  # type: ignore[arg-type]
        self.bias = torch.zeros_like(logits.bias) if logits.bias is not None and needed[2] else None
        dtype = logits.outputs.dtype if logits.weight is None else logits.dtype
        self._outputs = torch.zeros_like(logits.outputs, dtype=dtype) if of_outputs else None
        # Sums of products over blocks of rows.
        self._part: torch.Tensor | None = None

    @property
    def outputs(self) -> torch.Tensor | None:
        return None if self._outputs is None else self._outputs.to(self._logits.outputs.dtype)

    def add(self, tile: torch.Tensor, rows: slice, columns: slice) -> None:
        """Add the part of a tile."""
        weight = self._logits.weight
        if weight is None:
            if self._outputs is not None:
                self._outputs[rows, columns] = tile
            return
        factors = tile.to(weight.dtype)
        if self._outputs is not None:
            _add_product(self._outputs[rows], factors, weight[columns])
        if self.weight is not None:
            if self._part is None:
                same = self.weight.dtype == tile.dtype
                self._part = (
                    self.weight[columns] if same else torch.zeros_like(weight[columns], dtype=tile.dtype)
                )
            _add_product(self._part, factors.t(), self._logits.outputs[rows])
        if self.bias is not None:
            self.bias[columns] += tile.sum(dim=0)

    def end(self, columns: slice) -> None:
        """Finish the gradients of these columns."""
        if self._part is not None and self.weight is not None and self._part.dtype != self.weight.dtype:
            self.weight[columns] = self._part
        self._part = None


def _add_product(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Add a @ b to a part of a tensor, in the dtype of that tensor; the product is in that of `b`."""
    if b.dtype == result.dtype:
        result.addmm_(a, b)
    else:
        result.add_(a.to(b.dtype) @ b)

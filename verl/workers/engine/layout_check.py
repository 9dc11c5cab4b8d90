"""The layout in which a model's rows are exact, found by running a miniature of the model in
several layouts.

Two ways that must agree: every row alone, with eager attention, its tokens the only input, is the
reference; log-probs and entropies of a layout, or values, are compared with it. Rows are shorter and
longer than the windows and rope limits of the miniature, stand beside each other, and are run twice.
A model whose reference changes with later tokens is no causal one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.loader import is_flash_attention_usable, own_code_options
from verl.models.miniature import MiniatureError, miniature, miniature_model, one_thread
from verl.utils.names import error_line
from verl.workers.engine.attention import PACKED_ATTENTION, register_packed_attention
from verl.workers.engine.forward import score_tokens, value_tokens
from verl.workers.engine.head_scores import LogitMap
from verl.workers.engine.layout import RopeState, RowLayout, Sharing, rope_limits
from verl.workers.engine.sharding import cast_buffers

logger = logging.getLogger(__name__)

AUTO = "auto"
FP32_BOUND = 1e-4
# Rounding in 16 bits differs between kernels; a lost mask, window or position moves log-probs by
# several times as much.
ROUNDING_FACTOR = 4.0
# Pairs of prompt and response: on both sides of a window of 8 and of a limit of 32 positions, two
# beyond both.
ROW_LENGTHS = ((3, 2), (6, 8), (20, 20), (33, 22))
# Rows that begin like an earlier one (its index, tokens in common, response tokens behind these):
# another reply to a prompt, replies that part later, twice, beyond the window, an earlier reply of
# a conversation.
BRANCHES = ((1, 6, 5), (3, 45, 10), (5, 49, 6), (3, 44, 0))

# Of these, for a model with its own weights, whose windows and limits no short row reaches.
OWN_ROWS = (0, 1, 2, 4)


# log-probs and entropies, or values, [rows, response tokens]
Grids = Sequence[torch.Tensor]


class LayoutError(ValueError):
    """A model whose rows are exact in no layout that the configuration allows; the message is one
    line.
    """


@dataclass(frozen=True)
class LayoutChoice:
    """A layout, and why it is not the fastest one.

    Attributes:
        layout: for the whole model; its limits are those of the model's own configuration.
        difference: largest difference of log-probs and entropies from rows run alone, in nats; NaN
            if no miniature can be run.
        rejected: faster layouts with the reason why each is not used, best first.
    """

    layout: RowLayout
    difference: float
    rejected: tuple[tuple[RowLayout, str], ...] = ()

    def note(self, key: str) -> str | None:
        """Return one line about a layout that is slower than the fastest one; None for the fastest.

        Args:
            key: prefix of the model's keys, such as `actor_rollout_ref.model`.
        """
        if not self.rejected:
            return None
        first, reason = self.rejected[0]
        keys = f"{key}.use_remove_padding and attn_implementation"
        if replace(first, sharing=self.layout.sharing) == self.layout:
            keys = f"{key.removesuffix('model').replace('ref.', 'ref.actor.')}use_prefix_grouper"
        return f"{keys}: {self.layout.describe()}; not exact or not possible: {first.describe()}: {reason}"


def choose_layout(
    config: Any,
    *,
    use_remove_padding: bool | str = AUTO,
    attention: str = AUTO,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    share_prefixes: bool = True,
    values: bool = False,
) -> LayoutChoice:
    """Return the fastest layout in which rows of a model are exact.

    Args:
        config: of the language model; a miniature of it is run.
        use_remove_padding: true or false allows only that form, `auto` both.
        attention: allows only that implementation, `auto` all.
        device: cpu or cuda, of the trainer; flash-attn is tried on a GPU only.
        dtype: in which the trainer computes.
        share_prefixes: also try layouts in which tokens that rows have in common are run once.
        values: of the value model that is made of it.

    Raises:
        LayoutError: no layout is exact, the message says by how much each differs, and which keys
            allow another; or what the model gives for a token depends on later ones.
    """
    flash = attention in (AUTO, "flash_attention_2") and is_flash_attention_usable(device, dtype)
    removal = str(use_remove_padding).lower()
    choice = _choose(config, removal, attention, device, flash, share_prefixes, values)
    if dtype != torch.float32:
        _check_dtype(config, choice.layout, device, dtype, values)
    return choice


def training_randomness(config: Any) -> str | None:
    """Return one line if a model draws random numbers in transformers' training mode, which the
    trainer does not use; else None.
    """
    difference = _randomness(config)
    if difference < FP32_BOUND:
        return None
    return (
        "dropout or other random numbers of training mode would move log-probs by up to "
        f"{difference:.2g}; they are off, because ratios compare equal networks"
    )


@once_per_configuration
@one_thread()
def _randomness(config: Any) -> float:
    """Return the largest difference of log-probs and entropies between training and evaluation
    mode; 0 if neither can be run.
    """
    try:
        return _Trial(config, "cpu").randomness()
    except (MiniatureError, LayoutError):
        return 0.0


@once_per_configuration
@one_thread()
def _choose(
    config: Any,
    removal: str,
    attention: str,
    device: str,
    flash: bool,
    share_prefixes: bool,
    values: bool,
) -> LayoutChoice:
    limits = rope_limits(config.get_text_config())
    layouts = list(_layouts(removal, attention, flash, limits, share_prefixes))
    if not layouts:
        raise LayoutError(
            f"attn_implementation={attention} cannot run packed rows; set "
            "actor_rollout_ref.model.use_remove_padding=false, or auto"
        )
    try:
        trial = _Trial(config, device, values)
        trial.check_causal()
    except LayoutError:
        raise
    except MiniatureError as error:
        # The last one is that in which a row can hardly depend on others.
        logger.warning("%s cannot be checked before it is loaded: %s", config.model_type, error)
        fastest = replace(layouts[0], sharing="none")
        safest = replace(layouts[-1], sharing="none")
        unchecked = ((fastest, f"it cannot be checked ({error})"),) if safest != fastest else ()
        return LayoutChoice(safest, float("nan"), unchecked)
    except Exception as error:  # code of a model may raise anything
        raise LayoutError(
            f"{config.model_type} cannot be run: {error_line(error, typed=True, most=200)}"
        ) from error
    if windows := trial.windows_beyond_rows():
        logger.warning(
            "%s: no row of the check is longer than %s, so a window that a layout loses would not be seen",
            config.model_type,
            windows,
        )
    rejected: list[tuple[RowLayout, str]] = []
    for layout in layouts:
        difference, reason = trial.difference(layout)
        if not reason:
            return LayoutChoice(layout, difference, tuple(rejected))
        rejected.append((layout, reason))
    rejections = "; ".join(f"{layout.describe()}: {reason}" for layout, reason in rejected)
    free = [
        f"actor_rollout_ref.model.{name}=auto"
        for name, value in (("use_remove_padding", removal), ("attn_implementation", attention))
        if value != AUTO
    ]
    advice = f"set {' and '.join(free)}, or train" if free else "train"
    raise LayoutError(
        f"rows of {config.model_type} are not exact as configured ({rejections}); {advice} another model"
    )


@once_per_configuration
@one_thread()
def _check_dtype(config: Any, layout: RowLayout, device: str, dtype: torch.dtype, values: bool) -> None:
    """Raise LayoutError if a miniature cannot be run in the dtype of the trainer's computations."""
    try:
        scores = _Trial(config, device, values).scores(layout, dtype)
    except MiniatureError:
        return
    except Exception as error:  # code of a model may raise anything
        raise LayoutError(
            f"{config.model_type} cannot be run in {dtype} ({error_line(error, typed=True, most=200)}); set "
            "actor_rollout_ref.actor.fsdp_config.dtype=fp32"
        ) from error
    if not all(bool(values.isfinite().all()) for values in scores):
        raise LayoutError(
            f"{config.model_type} gives values in {dtype} that are not finite; set "
            "actor_rollout_ref.actor.fsdp_config.dtype=fp32"
        )


def _layouts(
    removal: str, attention: str, flash: bool, limits: tuple[int, ...], share_prefixes: bool
) -> Iterator[RowLayout]:
    """Yield the allowed layouts, fastest first: rows of any lengths, then those apart that a rope
    treats differently, then equal ones; each with shared tokens run once before without, if that is
    wanted.
    """
    kernels = (
        [attention] if attention != AUTO else [*(["flash_attention_2"] if flash else []), "sdpa", "eager"]
    )
    splits = [()] + ([limits] if limits else [])
    for split in splits:
        for form in ("packed", "padded"):
            if removal not in (AUTO, "true" if form == "packed" else "false"):
                continue
            for kernel in kernels:
                if form == "padded" or kernel != "eager":
                    for sharing in _sharing(form, kernel, share_prefixes):
                        yield RowLayout(form, kernel, split, sharing)  # type: ignore[arg-type]
    if removal != "true":
        for kernel in kernels:
            for sharing in _sharing("equal", kernel, share_prefixes):
                yield RowLayout("equal", kernel, (), sharing)


def _sharing(form: str, kernel: str, share_prefixes: bool) -> tuple[Sharing, ...]:
    """Return the ways to share tokens, fastest first. Only our own attention over packed rows knows
    branches.
    """
    if not share_prefixes:
        return ("none",)
    branches = form == "packed" and kernel != "flash_attention_2"
    return ("trie", "chains", "none") if branches else ("chains", "none")


class _Trial:
    """A miniature and its rows, run alone once and then in several layouts."""

    def __init__(self, config: Any, device: str, values: bool = False) -> None:
        self._config = config
        self._device = device
        self._values = values
        self._small = miniature(config)
        self._limits = rope_limits(self._small.get_text_config())
        self._vocabulary = min(256, int(self._small.get_text_config().vocab_size))
        self._rows = rows_to_check(self._vocabulary)
        self._alone: Grids | None = None
        self._models: dict[tuple[str, torch.dtype], tuple[Any, RopeState]] = {}

    def reference(self) -> Grids:
        """Return log-probs and entropies, or values, of every row alone: its tokens are the model's
        only input, so that positions, too, are the model's own. Raises what the model's code raises.
        """
        if self._alone is None:
            self._alone = self._plain(self._rows)
        return self._alone

    def check_causal(self) -> None:
        """Raise LayoutError if the reference of a token changes with the last token of its row.
        Raises what the model's code raises.
        """
        rows = self._rows
        width = rows["attention_mask"].shape[1]
        last = width - 1 - rows["attention_mask"].flip(1).argmax(dim=1)
        row = torch.arange(len(last))
        ids = rows["input_ids"].clone()
        ids[row, last] = 3 + (ids[row, last] - 2) % (self._vocabulary - 3)
        changed = self._plain({**rows, "input_ids": ids})
        reference = self.reference()
        if not self._values:
            # The log-prob of the changed token itself differs, and the entropy before it does not.
            earlier = rows["response_mask"].clone()
            earlier[row, last - width + earlier.shape[1]] = 0
            changed = [changed[0] * earlier, changed[1]]
            reference = [reference[0] * earlier, reference[1]]
        difference = _largest(changed, reference)
        if not difference < FP32_BOUND:
            raise LayoutError(
                f"{self._config.model_type} is no causal language model as configured: what it gives for a "
                f"token changes by up to {difference:.2g} with later tokens of its row; a field of config.json "
                "may say so (is_decoder, is_causal, use_bidirectional_attention); choose another model"
            )

    def windows_beyond_rows(self) -> str:
        """Return the windows that the miniature could not shrink below the longest row, as
        `name=tokens`; empty if there are none.
        """
        longest = max(prompt + response for prompt, response in ROW_LENGTHS)
        fields = self._small.get_text_config().to_dict()
        names = [
            name
            for name in fields
            if name.endswith(("sliding_window", "window_size", "attention_chunk_size"))
        ]
        return ", ".join(
            f"{name}={fields[name]}" for name in names if type(fields[name]) is int and fields[name] > longest
        )

    def difference(self, layout: RowLayout) -> tuple[float, str]:
        """Return the largest difference of a layout from the reference, and why the layout cannot
        be used (empty if it can).
        """
        dtype = torch.bfloat16 if layout.attention == "flash_attention_2" else torch.float32
        try:
            results = [self.scores(layout, dtype) for _ in range(2)]
        except Exception as error:  # code of a model may raise anything
            return float("nan"), error_line(error, typed=True, most=200)
        difference = _largest([*results[0], *results[1]], [*self.reference(), *self.reference()])
        bound = FP32_BOUND
        if dtype != torch.float32:
            rounding = _largest(self._run(RowLayout("equal", "eager"), dtype, alone=True), self.reference())
            bound = ROUNDING_FACTOR * rounding
        if not difference <= bound:
            return (
                difference,
                f"log-probs or entropies differ by up to {difference:.2g} from those of rows run alone",
            )
        return difference, ""

    def randomness(self) -> float:
        """Return the largest difference between a pass in training mode and the reference."""
        reference = self.reference()
        model, _ = self._model(RowLayout("equal", "eager"), torch.float32)
        model.train()
        try:
            with torch.random.fork_rng(devices=[]):
                return _largest(self._plain(self._rows), reference)
        finally:
            model.eval()

    def scores(self, layout: RowLayout, dtype: torch.dtype) -> Grids:
        """Return log-probs and entropies, or values, in a layout. Raises what the model's code raises."""
        return self._run(replace(layout, limits=self._limits if layout.limits else ()), dtype)

    @torch.no_grad()
    def _run(self, layout: RowLayout, dtype: torch.dtype, alone: bool = False) -> Grids:
        model, ropes = self._model(layout, dtype)
        mask = self._rows["response_mask"]
        lengths = self._rows["attention_mask"].sum(dim=1).tolist()
        groups = [[row] for row in range(len(lengths))] if alone else layout.groups(lengths)
        grids = [torch.zeros(mask.shape) for _ in range(1 if self._values else 2)]
        for group in groups:
            ropes.reset()
            rows = {name: value[group].to(self._device) for name, value in self._rows.items()}
            if self._values:
                grids[0][group] = value_tokens(model, rows, layout).cpu()
                continue
            scores = score_tokens(model, rows, 1.0, layout)
            for grid, values in zip(grids, (scores.log_probs, scores.entropy), strict=True):
                grid[group] = values.cpu()
        return grids

    @torch.no_grad()
    def _plain(self, rows: Mapping[str, torch.Tensor]) -> Grids:
        """Return what a plain call of the model with the tokens of each row gives."""
        model, ropes = self._model(RowLayout("equal", "eager"), torch.float32)
        mask = rows["response_mask"].bool()
        grids = [torch.zeros(mask.shape) for _ in range(1 if self._values else 2)]
        for row, real in enumerate(rows["attention_mask"].bool()):
            ropes.reset()
            ids = rows["input_ids"][row][real][None].to(self._device)
            outputs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().cpu()
            count = int(mask[row].sum())
            outputs = outputs[len(outputs) - count :]
            if self._values:
                grids[0][row, mask[row]] = outputs[:, 0]
                continue
            log_probs = outputs.log_softmax(dim=-1)
            labels = ids[0, ids.shape[1] - count :, None].cpu()
            grids[0][row, mask[row]] = log_probs.gather(1, labels)[:, 0]
            grids[1][row, mask[row]] = -(log_probs.exp() * log_probs).nan_to_num().sum(dim=-1)
        return grids

    def _model(self, layout: RowLayout, dtype: torch.dtype) -> tuple[Any, RopeState]:
        name = attention_name(layout)
        if (name, dtype) not in self._models:
            model = miniature_model(self._config, attention=name, values=self._values)
            model = _in_dtype(model, dtype, self._values).to(self._device)
            self._models[name, dtype] = (model, RopeState(model))
        return self._models[name, dtype]


def _in_dtype(model: Any, dtype: torch.dtype, values: bool) -> Any:
    """Cast a model's parameters, and its buffers as the trainer casts them."""
    if dtype == torch.float32:
        return model
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    attention = model.config._attn_implementation
    model_class = AutoModelForTokenClassification if values else AutoModelForCausalLM
    with torch.device("meta"):
        plain = model_class.from_config(
            model.config,
            dtype=dtype,
            attn_implementation=attention,
            **own_code_options(model.config, model_class.__name__),
        )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    cast_buffers(model, plain)
    return model


@torch.no_grad()
def layout_difference(
    load: Callable[[str], Any], layout: RowLayout, logit_map: LogitMap | None = None
) -> float:
    """Return the largest difference of log-probs and entropies between a layout and rows run alone
    with whole logits, for a model with its own weights.

    Args:
        load: returns the model, in fp32 and `eval` mode, for the name of an attention
            implementation.
        layout: as it is used.
        logit_map: as for `score_tokens`, of the layout.
    """
    results = []
    model = None
    for way in (RowLayout("equal", "eager"), layout):
        if model is not None and getattr(model, "_supports_attention_backend", False):
            model.set_attn_implementation(attention_name(way))
        else:  # its layers are of other classes with another attention
            model = None
            model = load(attention_name(way))
        ropes = RopeState(model)
        vocab_size = int(model.config.get_text_config().vocab_size)
        rows = {name: value[[*OWN_ROWS]] for name, value in rows_to_check(min(256, vocab_size)).items()}
        lengths = rows["attention_mask"].sum(dim=1).tolist()
        grids = [torch.zeros(rows["response_mask"].shape) for _ in range(2)]
        groups = [[row] for row in range(len(lengths))] if way is not layout else layout.groups(lengths)
        for group in groups:
            ropes.reset()
            some = {name: value[group] for name, value in rows.items()}
            scores = score_tokens(model, some, 1.0, way, logit_map=logit_map if way is layout else None)
            for grid, values in zip(grids, (scores.log_probs, scores.entropy), strict=True):
                grid[group] = values
        results.append(grids)
    return _largest(results[1], results[0])


def attention_name(layout: RowLayout) -> str:
    """Return the name under which transformers has the attention of a layout."""
    if not layout.packed or layout.attention == "flash_attention_2":
        return layout.attention
    register_packed_attention()
    return PACKED_ATTENTION


def rows_to_check(vocab_size: int = 256) -> Mapping[str, torch.Tensor]:
    """Return rows (the `INPUT_KEYS`) for a check: short ones, several of different lengths beyond
    the limits of a miniature (`ROW_LENGTHS`), and some that begin like these (`BRANCHES`).

    Args:
        vocab_size: token ids are below it.
    """
    prompt_len = max(prompt for prompt, _ in ROW_LENGTHS)
    response_len = max(response for _, response in ROW_LENGTHS)
    generator = torch.Generator().manual_seed(0)
    columns = torch.arange(prompt_len + response_len)
    count = len(ROW_LENGTHS) + len(BRANCHES)
    ids = torch.randint(3, vocab_size, (count, len(columns)), generator=generator)
    spans = [(prompt_len - prompt, prompt_len + response) for prompt, response in ROW_LENGTHS]
    for host, shared, more in BRANCHES:
        begin = spans[host][0]
        stop = begin + shared
        row = len(spans)
        ids[row, begin:stop] = ids[host, begin:stop]
        if more:
            # another token than the host's, whatever is drawn
            ids[row, stop] = 3 + (ids[host, stop] - 2) % (vocab_size - 3)
        spans.append((begin, stop + more))
    attention = torch.stack([(columns >= begin) & (columns < stop) for begin, stop in spans]).long()
    ids = ids * attention
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "responses": ids[:, prompt_len:].clone(),
        "response_mask": attention[:, prompt_len:].clone(),
    }


def _largest(values: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    """Return the largest absolute difference, NaN if a value is not finite."""
    return float(torch.stack([(a - b).abs().max() for a, b in zip(values, reference, strict=True)]).max())

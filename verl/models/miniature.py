"""Miniatures: models of the same architecture as a given one, which a CPU runs in milliseconds.

The fields of the configuration are made smaller by their roles (`verl.models.shrink`), the layers
are reduced to one of each kind, and the result is built and run once. A change that makes the model
unusable is taken back.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from verl.models.fingerprint import NOT_STRUCTURE, once_per_configuration
from verl.models.loader import own_code_options
from verl.models.shrink import (
    OVERRIDES,
    SMALL_HIDDEN,
    Change,
    Unit,
    apply,
    expert_changes,
    layer_overrides,
    position_changes,
    sizes_of,
    units_of,
    vocabulary_changes,
    width_changes,
    window_changes,
)
from verl.utils.names import error_line

# configurations with a small hidden size and up to so many layers keep their layers
SMALL_LAYERS = 8
PREFIX_LAYERS = 12
# layers to look at where no field says how layers differ; code may still treat every second one
# differently
UNIFORM_LAYERS = 8
PARAMETERS = 30_000_000  # a miniature with more does not run in milliseconds
TOKENS = 12
# Of every sliding window, chunk and block, and of the original context of ropes that change beyond
# it, in tokens: short enough that a row of a check crosses each.
WINDOW = 8
LIMIT = 32
# An attribute with more values over the layers is a function of the position and not a kind of
# layer.
DISTINCT = 6

_LAYER_COUNT = re.compile(
    r"(num_|n_)?(conf_num_)?(hidden_|decoder_|encoder_|global_)?layers?|depth|num_blocks|num_layers_per_stack"
)
_LAYER_INDICES = re.compile(r".*(layer|idx|indices|indexes|ids).*")
_FIRST_LAYERS = re.compile(
    r"first_k_dense_replace|num_dense_layers|max_window_layers|\w*start_index|first_\w*layers?"
)
_LAST_LAYERS = re.compile(r"num_kv_shared_layers|\w*shared_layers")
_END_LAYER = re.compile(r"\w*end_index")
# attributes that say where a layer stands, or nothing
_NO_KIND = re.compile(r"_.*|training|(.*_)?(idx|index|id)")
_OF_LAYERS = re.compile(r".*(layer|period|interval|step|pattern|every|offset|dense|sparse|shared|index).*")
_PERIOD = re.compile(r".*(period|interval|step|pattern|every|offset).*")


class MiniatureError(ValueError):
    """No miniature of a configuration can be built or run."""


def miniature(config: Any) -> Any:
    """Return a configuration of the same class and the same structure, with 0.3 to 3 million
    parameters as a rule.

    Kept are the ratio of query to key heads, one layer of each kind in the original's order (at
    least two), biases, caps, norms, multipliers, dropout, tied heads, activation and whatever else
    is no size. The given configuration is not changed.

    Args:
        config: the configuration of a causal language model, also one with a `text_config`.

    Raises:
        MiniatureError: `AutoModelForCausalLM` builds no model of the configuration, or the model
            does not run on text alone.
    """
    small = copy.deepcopy(_miniature(config))
    _take_labels(small, config)
    return small


def _take_labels(small: Any, config: Any) -> None:
    """Give a miniature the path and the dtypes of its own configuration: it may have been made of
    another one of the same structure.
    """
    for name in ("_name_or_path", *NOT_STRUCTURE):
        # an older name of dtype, of which transformers warns whoever reads it
        if name != "torch_dtype" and hasattr(config, name):
            setattr(small, name, getattr(config, name))
    for name in getattr(config, "sub_configs", ()):
        if getattr(small, name, None) is not None and getattr(config, name, None) is not None:
            _take_labels(getattr(small, name), getattr(config, name))


@once_per_configuration
def _miniature(config: Any) -> Any:
    # The attempts draw weights, which must not change the run's random numbers.
    with _quiet(), torch.random.fork_rng(devices=[]):
        return _Search(config).run()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread inside the block: threads cost more than they save on a miniature,
    and most on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def miniature_model(config: Any, *, attention: str, seed: int = 0, values: bool = False) -> Any:
    """Return the model of a configuration's miniature in `eval` mode, with the weights of
    `draw_weights`.

    The state of torch's random numbers is left as it is. Raises MiniatureError as `miniature` does.

    Args:
        config: of the model.
        attention: the name of transformers' implementation.
        seed: of the weights.
        values: as a value model, whose class may be another one than that of the language model.
    """
    small = miniature(config)
    if values:
        small.num_labels = 1
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build(small, attention, values).to(torch.float32).eval()
    draw_weights(model, seed)
    return model


class _Search:
    """The changes of one configuration, and the attempts to build and run what they make of it."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.error = ""
        text = config.get_text_config()
        hidden = getattr(text, "hidden_size", None)
        self.keeps_layers = _at_most(hidden, SMALL_HIDDEN) and _at_most(_layer_count(config), SMALL_LAYERS)

    def run(self) -> Any:
        """Return the miniature; see `miniature`."""
        changes = self._changes()
        if not self.keeps_layers:
            changes += _fewer_layers(self._with(changes))
        if self._runs(small := self._with(changes)):
            return small
        if (repaired := self._without(changes)) is not None:
            return repaired
        raise MiniatureError(
            f"no miniature of {type(self.config).__name__} can be built and run: {self.error}"
        )

    def _without(self, changes: list[Change]) -> Any | None:
        """Return a configuration without the changes of one kind, or without the one of them that
        does not go; None if none runs.
        """
        for kind in dict.fromkeys(change.kind for change in changes):
            coarse = self._with([change for change in changes if change.kind != kind])
            if not self._runs(coarse):
                continue
            for left in [change for change in changes if change.kind == kind]:
                small = self._with([change for change in changes if change is not left])
                if self._runs(small):
                    return small
            return coarse
        return None

    def _with(self, changes: Sequence[Change]) -> Any:
        small = copy.deepcopy(self.config)
        apply(small, changes)
        return small

    def _changes(self) -> list[Change]:
        units = units_of(self.config)
        text = self.config.get_text_config()
        main = next((unit for unit in units if unit.node is text), units[0])
        units.sort(key=lambda unit: unit is not main)
        sizes = {unit.path: sizes_of(unit) for unit in units if unit.hidden > SMALL_HIDDEN}
        outer = {unit.hidden: sizes[unit.path].hidden for unit in reversed(units) if unit.path in sizes}
        changes: list[Change] = []
        for unit in units:
            divisor = 1
            if unit.path in sizes:
                divisor = sizes[unit.path].scales[""]
                changes += width_changes(unit, sizes[unit.path], outer)
            changes += expert_changes(unit)
            changes += vocabulary_changes(unit)
            changes += window_changes(unit, WINDOW)
            changes += position_changes(unit, LIMIT, {"": divisor})
            if unit is not main:
                changes += _side_layers(unit)
        return changes

    def _runs(self, config: Any) -> bool:
        """Build and run a configuration; the reason of the first failure stays in `error`."""
        try:
            error = _run(config)
        except Exception as failure:  # code of any model
            error = error_line(failure, typed=True)
        self.error = self.error or error
        return not error


def _at_most(value: Any, bound: int) -> bool:
    return isinstance(value, int) and value <= bound


def _run(config: Any) -> str:
    """Build and run a configuration on a few tokens; return what is wrong with it, or nothing."""
    # Without memory: it may still be as large as the original.
    count = sum(value.numel() for value in _build_unallocated(config).parameters())
    if count > PARAMETERS:
        return f"it still has {count:,} parameters"
    model = _build(config, "eager").eval()
    tokens = torch.arange(TOKENS)[None] % model.get_input_embeddings().weight.shape[0]
    for part in {id(part): part for part in (model.config, model.config.get_text_config())}.values():
        part.use_cache = False
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    if logits.shape[:2] != tokens.shape:
        return f"its logits have the shape {tuple(logits.shape)} for {TOKENS} tokens"
    return "" if torch.isfinite(logits).all() else "its logits are not finite"


def _side_layers(unit: Unit) -> list[Change]:
    """Return the changes of layers of what reads images or sounds: two of them are left."""
    counts = [value for _, name, value in unit.matching(_LAYER_COUNT) if isinstance(value, int) and value > 2]
    changes = []
    for (path, name), value in unit.values.items():
        new: Any = value
        if _LAYER_COUNT.fullmatch(name) and value in counts:
            new = 2
        elif isinstance(value, (list, tuple)) and len(value) in counts:
            new = value[:2]
        elif _is_index_list(name, value, max(counts, default=0)):
            new = type(value)(entry for entry in value if entry < 2) or type(value)([1])
        if new is not value:
            changes.append(Change("side layers", path, name, new))
    return changes


def _is_index_list(name: str, value: Any, count: int) -> bool:
    """Return whether a field lists layers by their positions."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and _LAYER_INDICES.fullmatch(name) is not None
        and all(
            isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry <= count for entry in value
        )
        and list(value) == sorted(set(value))
    )


# of each layer: what its modules and the configuration's lists say of it
Observation = list[dict[Any, Any]]


def _fewer_layers(config: Any) -> list[Change]:
    """Return the changes that leave one layer of each kind, at least two; none where no such choice
    shows the same kinds when built.
    """
    count = _layer_count(config)
    if count is None or count <= 2:
        return []
    if count > UNIFORM_LAYERS and not _names_layers(config, count):
        uniform = _selection(config, count, list(range(UNIFORM_LAYERS)))
        config = copy.deepcopy(config)
        apply(config, uniform)
        count = UNIFORM_LAYERS
    observed = _observe(config, count)
    if observed is None:
        return _selection(config, count, [0, 1])
    varying = _varying(observed)
    coarse = {key: several for key, several in varying.items() if not re.search(r"\d", str(key[1]))}
    for differences in (varying, coarse) if len(coarse) < len(varying) else (varying,):
        kinds = _kinds(observed, differences)
        layer_indices = sorted({kinds.index(kind) for kind in kinds})
        for changes, layers in _choices(config, count, layer_indices if len(layer_indices) > 1 else [0, 1]):
            if _shows(config, changes, [kinds[index] for index in layers], differences):
                return changes
    return []


def _names_layers(config: Any, count: int) -> bool:
    """Return whether any field but the number of layers may say how layers differ."""
    unit = _main_unit(config)
    if layer_overrides(unit.node):
        return True
    for (_, name), value in unit.values.items():
        if isinstance(value, (list, tuple)) and (len(value) == count or _is_index_list(name, value, count)):
            return True
        if type(value) is int and _OF_LAYERS.fullmatch(name) and not _LAYER_COUNT.fullmatch(name):
            return True
    return False


def _choices(config: Any, count: int, layer_indices: list[int]) -> Iterator[tuple[list[Change], list[int]]]:
    """Yield changes with the layers that they are to leave: the chosen ones or, where fields do not
    let these be chosen, the first ones.
    """
    prefixes = [
        list(range(length)) for length in range(max(layer_indices) + 1, min(count, PREFIX_LAYERS + 1))
    ]
    changes = _selection(config, count, layer_indices)
    yield changes, layer_indices
    for layers in prefixes[:1]:
        yield _selection(config, count, layers), layers
    periods = [
        (path, name)
        for path, name, value in _main_unit(config).matching(_PERIOD)
        if type(value) is int and value > 0
    ]
    if 0 < len(periods) <= 2:
        for values in itertools.product(range(len(layer_indices) + 1), repeat=len(periods)):
            others = [
                Change("layers", path, name, value)
                for (path, name), value in zip(periods, values, strict=True)
            ]
            yield [*changes, *others], layer_indices
    for layers in prefixes[1:]:
        yield _selection(config, count, layers), layers


def _selection(config: Any, count: int, layer_indices: Sequence[int]) -> list[Change]:
    """Return the changes that leave the chosen ones of `count` layers, as far as names and values
    tell which fields speak of layers.
    """
    unit = _main_unit(config)
    changes = []
    if overrides := layer_overrides(unit.node):
        left = {
            position: overrides[index] for position, index in enumerate(layer_indices) if index in overrides
        }
        changes.append(Change("layers", unit.path, OVERRIDES, left))
    for (path, name), value in unit.values.items():
        new: Any = value
        if OVERRIDES in path:
            continue
        if _is_index_list(name, value, count):
            base = 1 if max(value) == count else 0
            new = type(value)(
                position + base for position, index in enumerate(layer_indices) if index + base in value
            )
        elif isinstance(value, (list, tuple)) and len(value) == count:
            new = type(value)(value[index] for index in layer_indices)
        elif type(value) is not int:
            continue
        elif _LAYER_COUNT.fullmatch(name) and value > len(layer_indices):
            new = len(layer_indices)
        elif _FIRST_LAYERS.fullmatch(name):
            new = sum(index < value for index in layer_indices)
        elif _LAST_LAYERS.fullmatch(name):
            new = sum(index >= count - value for index in layer_indices)
        elif _END_LAYER.fullmatch(name) and value > 0:
            new = sum(index <= value for index in layer_indices) - 1
        if new != value:
            changes.append(Change("layers", path, name, new))
    return changes


def _layer_count(config: Any) -> int | None:
    """Return the number of layers; `num_hidden_layers` of models for translation is that of the
    encoder, which a decoder alone has not.
    """
    unit = _main_unit(config)
    count = next(
        (
            value
            for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers")
            if (value := unit.get(name))
        ),
        None,
    )
    return count if isinstance(count, int) else None


def _main_unit(config: Any) -> Unit:
    text = config.get_text_config()
    units = units_of(config)
    return next((unit for unit in units if unit.node is text), units[0])


def _shows(config: Any, changes: Sequence[Change], kinds: list[Any], varying: dict[Any, bool]) -> bool:
    """Return whether the configuration with the changes has layers of these kinds in this order."""
    small = copy.deepcopy(config)
    apply(small, changes)
    layers = _observe(small, len(kinds))
    return layers is not None and _kinds(layers, varying) == kinds


def _observe(config: Any, count: int) -> Observation | None:
    """Return what a built model's layers are made of, or None where it cannot be built or has no
    such number of layers.
    """
    if _layer_count(config) != count:
        return None
    try:
        model = _build_unallocated(config)
    except Exception:  # code of any model; the attempt to run it says why
        return None
    layers: Observation = [{} for _ in range(count)]
    for name, stack in model.named_modules():
        if isinstance(stack, torch.nn.ModuleList) and len(stack) == count:
            for layer, entries in zip(stack, layers, strict=True):
                _describe(layer, name, entries)
    for (path, name), value in _main_unit(config).values.items():
        if (
            isinstance(value, (list, tuple))
            and len(value) == count
            and not _is_index_list(name, value, count)
        ):
            for entry, entries in zip(value, layers, strict=True):
                entries[path, name] = str(entry)
    return layers


def _describe(layer: torch.nn.Module, stack: str, entries: dict[Any, Any]) -> None:
    """Add the classes, the plain attributes and the shapes of parameters of a layer's modules."""
    for name, module in layer.named_modules():
        entries[stack, name] = type(module).__name__
        for key, value in vars(module).items():
            if isinstance(value, (bool, int, float, str, type(None))) and not _NO_KIND.fullmatch(key):
                entries[stack, name, key] = value
        for key, parameter in module.named_parameters(recurse=False):
            entries[stack, name, key] = tuple(parameter.shape)


def _varying(layers: Observation) -> dict[Any, bool]:
    """Return what differs between kinds of layers, and of each whether its values differ or only
    whether a layer has it at all.

    What follows the layers' positions, as an index of its own in every layer that has one, says
    nothing of their kind.
    """
    varying = {}
    for key in dict.fromkeys(key for entries in layers for key in entries):
        values = [entries[key] for entries in layers if key in entries]
        several = 1 < len(set(values)) <= DISTINCT and (
            len(set(values)) < len(values) or (len(values) == 2 and len(layers) > 2)
        )
        if several and all(entries.get(key, index) == index for index, entries in enumerate(layers)):
            several = False
        if several or len(values) < len(layers):
            varying[key] = several
    return varying


def _kinds(layers: Observation, varying: dict[Any, bool]) -> list[Any]:
    return [
        tuple(entries.get(key) if several else key in entries for key, several in varying.items())
        for entries in layers
    ]


def _build_unallocated(config: Any) -> Any:
    """Return a model of the configuration whose tensors have no memory, or, where its code needs
    their values, a real one.
    """
    from transformers.initialization import no_init_weights

    with no_init_weights():
        try:
            with torch.device("meta"):
                return _build(config, "eager")
        except (NotImplementedError, RuntimeError):
            return _build(config, "eager")


def _build(config: Any, attention: str, values: bool = False) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    model_class = AutoModelForTokenClassification if values else AutoModelForCausalLM
    options = own_code_options(config, model_class.__name__)
    return model_class.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32, **options
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from warning of token ids and unused fields inside the block."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


_QUERY_KEY = ("q_proj", "k_proj", "q_b_proj", "qkv", "query_key_value", "c_attn", "Wqkv")
_HEADS = ("lm_head", "embed_out")
_BUFFERS = ("e_score_correction_bias", "expert_bias", "layer_scalar")


@torch.no_grad()
def draw_weights(model: Any, seed: int = 0) -> None:
    """Draw all parameters and saved buffers anew, so that attention is far from uniform and logits
    far from flat.
    """
    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    tied = model.get_input_embeddings()
    is_tied = head is not None and head.weight is tied.weight
    inputs = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    conv1d = {id(module.weight) for module in model.modules() if type(module).__name__ == "Conv1D"}

    def normal(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(value.shape, generator=generator).to(value.dtype)

    for name, value in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if id(value) in inputs:
            value.copy_(
                normal(value) * (1.5 * value.shape[-1] ** -0.5 if is_tied and value is tied.weight else 1.0)
            )
        elif leaf in ("A_log", "dt_bias", "D"):
            value.add_(0.1 * normal(value))
        elif leaf == "sinks":
            value.copy_(1 + normal(value))
        elif value.ndim == 3 and "conv" in name:
            value.copy_(0.5 * normal(value))
        elif value.ndim >= 2:
            fan_in = value.shape[-2] if value.ndim == 3 or id(value) in conv1d else value.shape[-1]
            scale = 2.0 if any(part in name for part in (*_QUERY_KEY, *_HEADS)) else 1.0
            value.copy_(normal(value) * scale * fan_in**-0.5)
        elif value.ndim == 1 and leaf == "weight":
            value.copy_(
                1 + 0.2 * normal(value) if float(value.float().mean()) > 0.5 else value + 0.2 * normal(value)
            )
        else:
            value.add_(0.2 * normal(value))
    for name, buffer in model.named_buffers():
        if name.rsplit(".", 1)[-1] in _BUFFERS:
            buffer.add_(0.3 * normal(buffer))

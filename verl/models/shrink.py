"""Smaller values for the fields of a model's configuration, derived from their roles and from the
relations between them.

Nothing here builds a model: `verl.models.miniature` tries the changes and takes back those that
make a model unusable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

HIDDEN = 64  # hidden size where the heads do not give one
SMALL_HIDDEN = 128  # configurations up to this hidden size keep their sizes
HEADS = 4
VOCABULARY = 512
SMALL_VOCABULARY = 1024
POSITIONS = 1024
STATE = 16
INTERMEDIATE = 32

# transformers' field for layers that differ from the others: of a layer's index, its fields
OVERRIDES = "per_layer_config"

Path = tuple[Any, ...]  # names, and layers' indices behind `OVERRIDES`
_NOT_SIZES = re.compile(
    r"id2label|label2id|.*_plan|rope_parameters|rope_scaling|quantization_config|auto_map|task_specific_params"
)
_HIDDEN_NAMES = (
    "hidden_size",
    "d_model",
    "n_embd",
    "emb_dim",
    "embedding_dim",
    "embed_dim",
    "dim",
    "model_dim",
)
_HEAD_COUNT = re.compile(r"\w*heads(_per_layer)?|n_head|num_query_groups")
_HEAD_DIM = re.compile(
    r".*head_?dim|(.*_)?d_head|dim_head|kv_channels|attention_head_size|rotary_dim|.*head_dim.*"
)
_SIZE = re.compile(
    r".*(_|^)(size|dim|width|rank|hidden|channels|channel|ffn|inner|dff|d_ff|ssm|filters|d_rel|proj)(_.*|$)|.*_dim(_.*)?|emb\w*_dim"
)
_NOT_SIZE = re.compile(
    r".*(vocab|window|patch|kernel|chunk|block|position|image|tile|batch|crop|type|pretraining|codebook|num_channels|in_channels"
    r"|out_channels|audio_channels|axial|base_channels|latent|dim_model_base|layers|_feat_).*"
)
_EXPERTS = re.compile(r"(moe_)?(num|n)_?(local_|routed_)?experts|moe_num_experts|num_experts")
_TOP_K = re.compile(
    r"(num_)?experts_per_tok(en)?|num_experts_per_tok(en)?|moe_top_?k|top_k_experts|moe_k|top_?k"
)
_TOKEN_ID = re.compile(
    r".*(token|pad|bos|eos|sep|eod|unk|mask)\w*_(id|ids|index|idx)|.*suppress_tokens|lang_id"
)
_VOCABULARY = re.compile(r"(.*_)?vocab(_size)?(_.*)?")
_WINDOW = re.compile(
    r"sliding_window(_size)?|attention_window_size|(global_|keep_)?window_size|local_attention|attention_chunk_size|(mamba_)?chunk_size"
    r"|block_size|index_block_size|index_topk|(local|lsh)_attn_chunk_length|rel_extent|window"
)
_POSITIONS = re.compile(
    r"max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length|max_(source|target)_positions"
)


@dataclass(frozen=True)
class Change:
    """One field of a configuration and its new value.

    Attributes:
        kind: the role, by which changes are tried and taken back together.
        path: the names that lead from the configuration to the one that has the field.
    """

    kind: str
    path: Path
    name: str
    value: Any


def node_at(config: Any, path: Path) -> Any:
    """Return the configuration or dictionary that a path leads to."""
    for name in path:
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


def layer_overrides(node: Any) -> dict[int, dict[str, Any]]:
    """Return a copy of the fields of layers that differ from the configuration's own, by the
    layers' indices.
    """
    if isinstance(node, dict) or not getattr(node, "is_heterogeneous", False):
        return {}
    layers = range(node.num_hidden_layers)
    names = sorted(node.per_layer_attributes or ())
    configs = [node.per_layer_config[index] for index in layers]
    overrides = {index: {name: getattr(configs[index], name) for name in names} for index in layers}
    return {
        index: changed
        for index in layers
        if (
            changed := {
                name: value for name, value in overrides[index].items() if value != vars(node).get(name)
            }
        )
    }


def fields_of(node: Any) -> dict[Any, Any]:
    """Return the public fields of a configuration or dictionary."""
    if isinstance(node, dict):
        return dict(node)
    fields: dict[Any, Any] = {name: value for name, value in vars(node).items() if not name.startswith("_")}
    if overrides := layer_overrides(node):
        fields[OVERRIDES] = overrides
    return fields


def apply(config: Any, changes: Sequence[Change]) -> None:
    """Write the changes into a configuration; fields that it computes from others and does not let
    be set are left out.
    """
    overrides: dict[Path, dict[int, dict[str, Any]]] = {}
    for change in changes:
        if OVERRIDES in change.path:
            end = change.path.index(OVERRIDES)
            owner = change.path[:end]
            layers = overrides.setdefault(owner, layer_overrides(node_at(config, owner)))
            layers[change.path[end + 1]][change.name] = change.value
    for change in changes:
        if change.name == OVERRIDES:
            overrides[change.path] = change.value
    for owner in overrides:
        node_at(config, owner).per_layer_config = None
    for change in changes:
        if OVERRIDES not in (*change.path, change.name):
            _write(node_at(config, change.path), change)
    for owner, layers in overrides.items():
        node_at(config, owner).per_layer_config = layers


def _write(node: Any, change: Change) -> None:
    if isinstance(node, dict):
        node[change.name] = change.value
        return
    with suppress(AttributeError):
        setattr(node, change.name, change.value)


def read(node: Any, name: str) -> Any:
    """Return the value of a name or alias of a configuration's field (`hidden_size` for `n_embd`),
    or None.
    """
    if isinstance(node, dict):
        return node.get(name)
    name = type(node).attribute_map.get(name, name)
    return vars(node)[name] if name in vars(node) else getattr(node, name, None)


@dataclass
class Unit:
    """The fields that describe one stack of layers: a configuration with a hidden size and the
    nested ones without.
    """

    path: Path
    node: Any
    hidden: int
    values: dict[tuple[Path, str], Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return the value of a name, also by transformers' aliases (`hidden_size` for `n_embd`),
        or None.
        """
        value = read(self.node, name)
        return (
            value
            if value is not None
            else next((v for (_, key), v in self.values.items() if key == name), None)
        )

    def matching(self, pattern: re.Pattern[str]) -> Iterator[tuple[Path, str, Any]]:
        """Yield path, name and value of the fields whose name matches."""
        for (path, name), value in self.values.items():
            if pattern.fullmatch(name):
                yield path, name, value


def units_of(config: Any) -> list[Unit]:
    """Return the units of a configuration, the outermost first."""
    units: list[Unit] = []

    def visit(node: Any, path: Path, parent: Unit | None) -> None:
        names = fields_of(node)
        hidden = next((read(node, name) for name in _HIDDEN_NAMES if _is_count(read(node, name))), None)
        unit = parent
        if hidden is not None or parent is None:
            unit = Unit(path, node, hidden or 0)
            units.append(unit)
        assert unit is not None
        for name, value in names.items():
            if _NOT_SIZES.fullmatch(str(name)):
                continue
            if isinstance(value, dict) or hasattr(value, "to_dict"):
                visit(value, (*path, name), unit)
            else:
                unit.values[(path, name)] = value

    visit(config, (), None)
    return units


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _group(name: str) -> str:
    """Return what a name says beside being a number of heads or a dimension: `linear`, `mamba`,
    `index`, or nothing.
    """
    words = re.findall(r"mamba|linear|index|conf|lightning|ssm", name)
    return words[0] if words else ""


def head_counts(unit: Unit) -> dict[str, dict[int, int]]:
    """Return, for each group of head counts, the new value of each value; ratios between queries
    and keys stay.
    """
    groups: dict[str, set[int]] = {}
    for _, name, value in unit.matching(_HEAD_COUNT):
        for count in value if isinstance(value, (list, tuple)) else [value]:
            if _is_count(count):
                groups.setdefault(_group(name), set()).add(count)
    return {group: _fewer(values) for group, values in groups.items()}


def _fewer(values: set[int]) -> dict[int, int]:
    low = min(values)
    high = max(values)
    if low == high:
        return {low: min(low, HEADS)}
    # One head of keys that all queries share stays one.
    if low == 1:
        rest = sorted(values - {1})
        divisor = math.gcd(*rest)
        scale = HEADS if max(rest) == divisor else 2
        return {1: 1} | {value: min(value, value // divisor * scale) for value in rest}
    # Every count is a multiple of the lowest, such as that of key-value heads: two of these keep all
    # ratios, unless the others become too many.
    if all(value % low == 0 for value in values) and high // low <= 16:
        return {value: value // low * 2 for value in values}
    # Otherwise, as of 12 and 8, ratios stay by a division by what all counts have in common.
    divisor = math.gcd(*values)
    scale = 2 if high // divisor <= 8 and divisor > 1 else 1
    return {value: value // divisor * scale for value in values}


def _rotary_share(unit: Unit) -> float:
    shares = [unit.get("partial_rotary_factor"), unit.get("rotary_pct")]
    rope = unit.get("rope_parameters") or {}
    for entry in [rope, *rope.values()]:
        if isinstance(entry, dict):
            shares.append(entry.get("partial_rotary_factor"))
    return min([share for share in shares if isinstance(share, (int, float)) and 0 < share < 1], default=1.0)


def _head_scale(dims: list[int], least: int, share: float) -> int:
    """Return the largest power of two by which all head dimensions can be divided, so that they
    stay even and rotary parts stay whole.
    """
    for scale in (64, 32, 16, 8, 4, 2):
        smaller = [dim // scale for dim in dims]
        whole = all(dim % (2 * scale) == 0 for dim in dims)
        rotary = int(max(smaller) * share)
        if whole and max(smaller) >= least and min(smaller) >= 4 and rotary >= 4 and rotary % 2 == 0:
            return scale
    return 1


@dataclass
class Sizes:
    """New sizes of a unit: hidden size, head counts by group, head dimensions by group and the
    divisor of each group's dimensions.
    """

    hidden: int
    heads: dict[str, dict[int, int]]
    scales: dict[str, int]
    dims: dict[tuple[Path, str], int]


def sizes_of(unit: Unit) -> Sizes:
    """Return the new sizes of a unit."""
    heads = head_counts(unit)
    query = unit.get("num_attention_heads") or unit.get("num_heads")
    queries = next(iter(query)) if isinstance(query, (list, tuple)) else query
    groups: dict[str, list[tuple[tuple[Path, str], int]]] = {}
    for path, name, value in unit.matching(_HEAD_DIM):
        if _is_count(value):
            groups.setdefault(_group(name), []).append(((path, name), value))
    explicit = unit.get("head_dim")
    implied = (
        _is_count(queries)
        and (not _is_count(explicit) or explicit * queries == unit.hidden)
        and unit.hidden % queries == 0
    )
    fewer = heads.get("", {}).get(queries, queries) if _is_count(queries) else None
    main = [value for _, value in groups.get("", [])] + ([unit.hidden // queries] if implied else [])
    least = max(8, HIDDEN // fewer) if implied and fewer else (16 if not fewer or fewer <= 8 else 8)
    scales = {"": _head_scale(main, least, _rotary_share(unit)) if main else 1}
    scales |= {
        group: _head_scale([value for _, value in entries], 8, 1.0)
        for group, entries in groups.items()
        if group
    }
    if implied and fewer and unit.get("kv_lora_rank") is None:
        hidden = fewer * (unit.hidden // queries) // scales[""]
    else:
        product = (fewer or 0) * (explicit // scales[""] if _is_count(explicit) else 0)
        hidden = HIDDEN if product != HIDDEN else 2 * HIDDEN
    dims = {key: value // scales[group] for group, entries in groups.items() for key, value in entries}
    _expanded(unit, heads, groups, dims, hidden)
    return Sizes(hidden, heads, scales, dims)


def _expanded(
    unit: Unit, heads: dict[str, dict[int, int]], groups: Any, dims: dict[tuple[Path, str], int], hidden: int
) -> None:
    """Where state-space heads make up a multiple of the hidden size (heads x dimension = expand x
    hidden), let them do so again.
    """
    expand = next(
        (
            value
            for _, name, value in unit.matching(re.compile(r".*expand"))
            if isinstance(value, (int, float))
        ),
        None,
    )
    if not expand:
        return
    for group, entries in groups.items():
        for key, value in entries:
            for count, fewer in heads.get(group, {}).items():
                if count * value == expand * unit.hidden and expand * hidden % fewer == 0:
                    dims[key] = int(expand * hidden // fewer)


def _scaled(value: int, unit: Unit, sizes: Sizes) -> int:
    """Return the new value of a size by its ratio to the hidden size."""
    if value % unit.hidden == 0:
        return value // unit.hidden * sizes.hidden
    if (
        unit.hidden % value == 0
        and sizes.hidden % (unit.hidden // value) == 0
        and sizes.hidden // (unit.hidden // value) >= INTERMEDIATE
    ):
        return sizes.hidden // (unit.hidden // value)
    return min(value, max(INTERMEDIATE, 16 * round(value * sizes.hidden / unit.hidden / 16)))


def _product(value: int, unit: Unit, sizes: Sizes) -> int | None:
    """Return the new value of a size that is a number of heads times their dimension, or None."""
    for (path, name), dim in sizes.dims.items():
        old = unit.values[(path, name)]
        for count, fewer in sizes.heads.get(_group(name), {}).items():
            if count > 1 and count * old == value:
                return fewer * dim
    return None


def _new_size(name: str, value: int, unit: Unit, sizes: Sizes) -> int:
    if "state" in name:
        return min(value, STATE)
    if value <= INTERMEDIATE:
        return value
    if value % unit.hidden != 0 and (product := _product(value, unit, sizes)) is not None:
        return product
    return _scaled(value, unit, sizes)


def width_changes(unit: Unit, sizes: Sizes, outer: dict[int, int]) -> list[Change]:
    """Return the changes of widths: heads, their dimensions, the hidden size and what goes with it.

    Args:
        unit: a unit with a hidden size above `SMALL_HIDDEN`.
        sizes: its new sizes.
        outer: new values of hidden sizes of other units, for fields that repeat them (projections
            from one to the other).
    """
    changes: list[Change] = []
    for (path, name), value in unit.values.items():
        if isinstance(value, (list, tuple)) and value and all(_is_count(entry) for entry in value):
            new: Any = None
            if _HEAD_COUNT.fullmatch(name):
                new = type(value)(sizes.heads[_group(name)][entry] for entry in value)
            elif _SIZE.fullmatch(name) and not _NOT_SIZE.fullmatch(name):
                new = type(value)(_new_size(name, entry, unit, sizes) for entry in value)
        elif not _is_count(value):
            continue
        elif (path, name) in sizes.dims:
            new = sizes.dims[(path, name)]
        elif _HEAD_COUNT.fullmatch(name):
            new = sizes.heads[_group(name)][value]
        elif re.fullmatch(r".*n_?groups|o_groups", name):
            new = min(value, 2)
        elif re.fullmatch(r"(mamba_)?(dt_rank|time_step_rank)", name):
            new = math.ceil(sizes.hidden / 16)
        elif name in _HIDDEN_NAMES and value == unit.hidden:
            new = sizes.hidden
        elif _SIZE.fullmatch(name) and not _NOT_SIZE.fullmatch(name):
            new = (
                outer[value]
                if value in outer and value != unit.hidden
                else _new_size(name, value, unit, sizes)
            )
        else:
            continue
        if new is not None and new != value:
            changes.append(Change("widths", path, name, new))
    return changes


def expert_changes(unit: Unit) -> list[Change]:
    """Return the changes of the numbers of experts, of those that a token gets, and of their
    groups.
    """
    counts = [value for _, _, value in unit.matching(_EXPERTS) if _is_count(value)]
    if not counts or max(counts) <= 4:
        return []
    groups = max(
        (
            value
            for _, _, value in unit.matching(re.compile(r"n_group|num_expert_groups?"))
            if _is_count(value)
        ),
        default=1,
    )
    experts = 8 if groups > 1 else 4
    changes = []
    for (path, name), value in unit.values.items():
        if not _is_count(value):
            continue
        if _EXPERTS.fullmatch(name):
            new = min(value, experts)
        elif _TOP_K.fullmatch(name):
            new = experts if value >= max(counts) else min(value, 2)
        elif re.fullmatch(r"n_group|num_expert_groups?", name):
            new = min(value, 2)
        elif name == "topk_group":
            new = 1 if value < groups else min(value, 2)
        elif re.fullmatch(r"zero_expert_num|n(um)?_(zero|null|copy)_experts", name):
            new = min(value, 2)
        else:
            continue
        if new != value:
            changes.append(Change("experts", path, name, new))
    return changes


def vocabulary_changes(unit: Unit) -> list[Change]:
    """Return the changes of vocabularies and of token ids, which stay distinct."""
    changes = [
        Change("vocabulary", path, name, VOCABULARY)
        for path, name, value in unit.matching(_VOCABULARY)
        if _is_count(value) and value > SMALL_VOCABULARY
    ]
    limit = VOCABULARY if changes else None
    vocabulary = unit.get("vocab_size")
    if limit is None:
        limit = vocabulary if _is_count(vocabulary) else VOCABULARY
    moved: dict[int, int] = {}
    for (path, name), value in unit.values.items():
        if not _TOKEN_ID.fullmatch(name):
            continue
        ids = value if isinstance(value, (list, tuple)) else [value]
        for token in ids:
            if (
                isinstance(token, int)
                and not isinstance(token, bool)
                and token >= limit
                and token not in moved
            ):
                moved[token] = max(limit - 1 - len(moved), limit // 2)
        if any(token in moved for token in ids if isinstance(token, int)):
            smaller = [moved.get(token, token) for token in ids]
            changes.append(
                Change(
                    "vocabulary",
                    path,
                    name,
                    type(value)(smaller) if isinstance(value, (list, tuple)) else smaller[0],
                )
            )
    return changes


def window_changes(unit: Unit, window: int) -> list[Change]:
    """Return the changes of sliding windows, chunks and blocks."""
    changes = []
    for path, name, value in unit.matching(_WINDOW):
        if _is_count(value) and value != window and value > 1:
            changes.append(Change("windows", path, name, window))
        elif isinstance(value, (list, tuple)) and any(_is_count(entry) for entry in value):
            changes.append(
                Change(
                    "windows",
                    path,
                    name,
                    type(value)(window if _is_count(entry) else entry for entry in value),
                )
            )
    for path, name, value in unit.matching(re.compile("index_topk_blocks")):
        changes.append(Change("windows", path, name, min(value, 2)))
    return changes


def position_changes(unit: Unit, limit: int, divisors: dict[str, int]) -> list[Change]:
    """Return the changes of positions and ropes; `divisors` holds the divisor of the main head
    dimensions under the empty name.
    """
    ropes = [
        (name, rope)
        for name in ("rope_parameters", "rope_scaling")
        if isinstance(rope := fields_of(unit.node).get(name), dict)
    ]
    entries = [entry for _, rope in ropes for entry in [rope, *rope.values()] if isinstance(entry, dict)]
    kinds = {entry.get("rope_type", entry.get("type")) for entry in entries}
    originals = [entry.get("original_max_position_embeddings") for entry in entries] + [
        unit.get("original_max_position_embeddings")
    ]
    original = next((value for value in originals if _is_count(value)), None)
    longest = unit.get("max_position_embeddings")
    if kinds & {"dynamic"}:
        positions = limit
    elif original and _is_count(longest):
        positions = max(256, round(limit * longest / original))
    else:
        positions = POSITIONS
    changes = [
        Change("positions", path, name, min(value, positions) if positions >= 256 else positions)
        for path, name, value in unit.matching(_POSITIONS)
        if _is_count(value) and value != positions and value > min(positions, 256)
    ]
    for path, name, value in unit.matching(
        re.compile("original_max_position_embeddings|floor_scale|log_scaling_floor|n_ctx_original")
    ):
        if _is_count(value):
            changes.append(Change("ropes", path, name, limit))
    for name, rope in ropes:
        smaller = _smaller_rope(rope, limit, divisors[""])
        if smaller != rope:
            changes.append(Change("ropes", unit.path, name, smaller))
    return changes


def _smaller_rope(rope: dict[str, Any], limit: int, divisor: int) -> dict[str, Any]:
    """Return rope parameters with the limit as original positions, and with lists of the new number
    of frequencies.
    """
    smaller: dict[str, Any] = {}
    for name, value in rope.items():
        if isinstance(value, dict):
            smaller[name] = _smaller_rope(value, limit, divisor)
        elif name == "original_max_position_embeddings" and _is_count(value):
            smaller[name] = limit
        elif (
            name in ("long_factor", "short_factor")
            and isinstance(value, (list, tuple))
            and len(value) % divisor == 0
        ):
            smaller[name] = list(value[::divisor])
        elif name == "mrope_section" and isinstance(value, (list, tuple)) and sum(value) % divisor == 0:
            smaller[name] = _sections(list(value), sum(value) // divisor)
        else:
            smaller[name] = value
    return smaller


def _sections(sections: list[int], total: int) -> list[int]:
    """Return sections in about the same proportions, at least 1 each where the total lets them,
    that add up to the total.
    """
    smaller = [max(1, section * total // sum(sections)) for section in sections]
    smaller[0] += total - sum(smaller)
    return smaller

"""Declaration of a configuration key, and validation of its value.

A key is one field of a dataclass, which declares type, default, meaning, range, choices and the
keys that it depends on. OmegaConf reads the type, pydantic validates the value, and docs/config.md
is generated from the declaration.

    lr: float = key(1e-6, "peak learning rate of AdamW", ge=0)
    view: str = key("own", "what the critic reads", choices=("own", "joint"))
    temperature: float = key(1.0, "weights exp(reward / temperature)", gt=0, effect="rollout.tree.select=softmax")
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from verl.utils.names import did_you_mean, value_at

T = TypeVar("T")
# Numbers are converted to float32 and int64, where larger ones overflow and smaller positive ones
# become 0.
LARGEST = 3.4e38
SMALLEST = 1.2e-38
LARGEST_INT = 2**63 - 1
# Seconds: poll(2) counts milliseconds in 32 bits.
LONGEST_S = 2_000_000


class ConfigError(ValueError):
    """Invalid value of a key; the message names the key, the value and what is expected."""


class IneffectiveKeyError(ConfigError):
    """Changed key that is not read with the other keys of the run; the message names both."""


@dataclass(frozen=True)
class Key:
    """One declared key.

    Attributes:
        meaning: description in one line.
        ge, gt, le, lt: bounds of a number, or of each number in a list or a mapping.
        off: number outside the bounds that is also allowed, such as -1 for no limit.
        choices: allowed values, or allowed items of a list; a function if plug-ins may register
            more.
        type: type of the value, if the annotation that OmegaConf needs is wider (`Any`).
        check: function that returns a value of the right type and range, or raises ValueError
            naming what is expected.
        secret: whether messages hide the value.
        effect: conditions that must all hold for the key to have an effect, see
            `verl.trainer.plan.effects`; `{}` stands for the section.
        always: the conditions of its section do not count for it.
        like: key whose value it has unless it is set, by its full name; empty: it has a default of
            its own.
        at_use: it keeps its default, for which those who read it take the value of `like`, that of
            the agent.
        same_as: section with the same key, where it is documented; filled in by `keys`.
        part: condition of its section, without which it has no effect; empty for a key of every
            run, and for the switch of a section (`always`); filled in by `keys`.
        name: dotted name with all sections; filled in by `keys`, as is `default`.
    """

    meaning: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    off: int | None = None
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    type: Any = None
    check: Callable[[Any], Any] | None = None
    secret: bool = False
    effect: tuple[str, ...] = ()
    always: bool = False
    like: str = ""
    at_use: bool = False
    same_as: str = ""
    part: str = ""
    name: str = ""
    default: Any = None

    @property
    def range(self) -> str:
        """Bounds in words; empty if there are none."""
        return self._range(0)

    def validate(self, value: Any, *, name: str = "", who: str = "", typed: str | None = None) -> Any:
        """Return `value` in the declared type: an integer becomes a float if the key is a float.

        Args:
            value: value of the key.
            name: name of the key in messages; default: its own.
            who: text after the value in messages, such as ` (agent 'Solver')`.
            typed: value as typed on a command line, where `yes` may be a boolean and 7 a string;
                names that plug-ins may register pass.

        Raises ConfigError naming the key, the value and what is expected.
        """
        from pydantic import ValidationError

        name = name or self.name
        if type(value) is int and value == self.off:
            return value
        if typed is not None and isinstance(value, bool) and str in (self.type, *get_args(self.type)):
            value = str(value)
        setting = name if self.secret else f"{name}={value if typed is None else typed}"
        try:
            value = self._adapter.validate_python(value, strict=typed is None)
            value = value if self.check is None else self.check(value)
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
            if typed is None and details["loc"] and isinstance(value, Mapping):
                setting = f"{name}.{details['loc'][0]}={details['input']}"
            raise ConfigError(
                f"{setting}{who}: expected {self._expected(details, isinstance(value, Mapping))}"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{setting}{who}: {error}") from error
        choices = self.choices if not callable(self.choices) else self.choices() if typed is None else ()
        for item in (value if isinstance(value, list) else [value]) if choices and value is not None else ():
            if item not in choices:
                raise ConfigError(
                    f"{name}={item!r}{who}: expected one of {', '.join(choices)}{did_you_mean(item, choices)}"
                )
        return value

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import ConfigDict, TypeAdapter

        return TypeAdapter(self._bounded(self.type), config=ConfigDict(coerce_numbers_to_str=True))

    def _bounded(self, kind: Any) -> Any:
        """Return the type `kind` with the bounds added to its numbers."""
        from pydantic import Field

        if kind is int:
            low = -LARGEST_INT if self.ge is None else self.ge
            return Annotated[
                int, Field(ge=low, gt=self.gt, le=LARGEST_INT if self.le is None else self.le, lt=self.lt)
            ]
        if kind is float:
            low = SMALLEST if self.gt == 0 else -LARGEST if self.ge is None else self.ge
            return Annotated[
                float, Field(ge=low, gt=self.gt, le=LARGEST if self.le is None else self.le, lt=self.lt)
            ]
        origin = get_origin(kind)
        parts = tuple(self._bounded(part) for part in get_args(kind))
        return kind if not parts else Union[parts] if origin is Union else origin[parts]

    def _range(self, value: float) -> str:
        """Return the bounds in words, including those of float32 and int64 if `value` violates
        them.
        """
        low = (
            f"above {self.gt:g}"
            if self.gt is not None
            else f"at least {self.ge:g}"
            if self.ge is not None
            else ""
        )
        high = (
            f"less than {self.lt:g}"
            if self.lt is not None
            else f"at most {self.le:.10g}"
            if self.le is not None
            else ""
        )
        largest = LARGEST if isinstance(value, float) else LARGEST_INT
        if 0 < value < SMALLEST:
            low = f"at least {SMALLEST:g} (float32)"
        if not high and not value <= largest:
            high = f"at most {largest}" if math.isfinite(value) else "finite" if low else "a finite number"
        if not low and value < -largest:
            low = f"at least {-largest}" if math.isfinite(value) else "a finite number"
        text = " and ".join(filter(None, (low, high)))
        return f"{self.off} or {text}" if self.off is not None else text

    def _expected(self, error: Mapping[str, Any], in_mapping: bool) -> str:
        """Return what is expected instead of the value, or the item, that pydantic refuses."""
        if error["type"].startswith(("greater", "less")) and isinstance(error["input"], (int, float)):
            return self._range(error["input"])
        kind = get_args(self.type)[1] if in_mapping and error["loc"] else self.type
        return ", ".join(filter(None, (type_text(kind), self.range)))


def key(default: Any, meaning: str, *, effect: str | tuple[str, ...] = (), **rule: Any) -> Any:
    """Declare a key of a config dataclass; `rule` holds further attributes of `Key`."""
    metadata = {"key": Key(meaning, effect=(effect,) if isinstance(effect, str) else effect, **rule)}
    in_repr = not rule.get("secret", False)
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata, repr=in_repr)
    return field(default=default, metadata=metadata, repr=in_repr)


def section(cls: type, effect: str | None = None, like: str = "", same_as: str = "", part: str = "") -> Any:
    """Declare a sub-section that is itself a config dataclass.

    Args:
        cls: the dataclass.
        effect: prepended to the conditions of all its keys but those that are `always` read.
        like: full name of a section whose values this one has unless they are set. Keys follow that
            both declare together, in a common base class; a key that `cls` declares itself has its
            own default.
        same_as: section of the user's names that has the same keys, with values of its own.
        part: condition that all its keys need, where each declares a narrower one; default:
            `effect`.
    """
    metadata = {"effect": effect, "like": like, "same_as": same_as, "part": part or effect or ""}
    return field(default_factory=cls, metadata=metadata)


def texts(value: Any) -> Any:
    """Return `value`, or raise ValueError for an empty string; a `check` for names and files."""
    if not all(item is None or item for item in ([value] if isinstance(value, str) else value or ())):
        raise ValueError("expected no empty string")
    return value


@cache
def keys(cls: type) -> Mapping[str, Key]:
    """Return all keys under a config dataclass by their dotted names, in the order of declaration."""
    return dict(_keys(cls(), "", (), cls(), {}))


@cache
def followers(cls: type) -> Mapping[str, str]:
    """Return the keys that are composed with the value of another key unless they are set, with
    that key: those with `like`, but not `at_use`.
    """
    return {name: key.like for name, key in keys(cls).items() if key.like and not key.at_use}


@cache
def followers_by_leader(cls: type) -> Mapping[str, Sequence[str]]:
    """Return the names of `followers` by the key that they follow."""
    by_leader: dict[str, list[str]] = {}
    for name, leader in followers(cls).items():
        by_leader.setdefault(leader, []).append(name)
    return by_leader


def _keys(
    instance: Any, prefix: str, effect: tuple[str, ...], root: Any, declaration: Mapping[str, Any]
) -> Iterator[tuple[str, Key]]:
    """Yield the keys under a section, `instance`, of the tree `root`; `declaration` is that of
    `section`.
    """
    hints = get_type_hints(type(instance))
    like = declaration.get("like", "")
    # a part of the tree alone has no section to follow
    follows = hasattr(root, like.partition(".")[0]) if like else False
    leaders = {f.name: f for f in fields(value_at(root, like))} if follows else {}
    for f in fields(instance):
        name = f"{prefix}{f.name}"
        value = getattr(instance, f.name)
        if is_dataclass(value):
            field_effect = f.metadata["effect"]
            section_effect = (*effect, field_effect) if field_effect else effect
            part = declaration.get("part") or f.metadata["part"]
            yield from _keys(value, f"{name}.", section_effect, root, {**f.metadata, "part": part})
            continue
        declared = f.metadata["key"]
        conditions = (condition.replace("{}", prefix.rstrip(".")) for condition in declared.effect)
        yield (
            name,
            replace(
                declared,
                name=name,
                default=value,
                effect=(*(() if declared.always else effect), *conditions),
                type=declared.type or hints[f.name],
                # a base class hands its fields on as they are
                like=f"{like}.{f.name}" if leaders.get(f.name) is f else declared.like,
                same_as=declaration.get("same_as", ""),
                part="" if declared.always else declaration.get("part", ""),
            ),
        )


def as_typed(value: Any) -> str:
    """Return a value of a key as a command line has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def with_values(
    config: T, values: Mapping[str, Any], where: str, allowed: Iterable[str] = (), who: str = ""
) -> T:
    """Return a copy of a config dataclass with `values` (name -> value, or a mapping for a section)
    replaced.

    Args:
        config: is not changed.
        values: nested mapping of keys.
        where: prefix of names in messages, such as `algorithm.per_agent.solver`.
        allowed: allowed names; default: all.
        who: as for `Key.validate`.

    Raises ConfigError naming an unknown key or an invalid value.
    """
    names = list(allowed) or [f.name for f in fields(config)]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise ConfigError(
                f"{where}.{name}: no such key{did_you_mean(name, names)}; known: {', '.join(sorted(names))}"
            )
        old = getattr(config, name)
        if not is_dataclass(old):
            changes[name] = keys(type(config))[name].validate(value, name=f"{where}.{name}", who=who)  # type: ignore[arg-type]
        elif isinstance(value, Mapping):
            changes[name] = with_values(old, value, f"{where}.{name}", who=who)
        else:
            raise ConfigError(
                f"{where}.{name}={value}{who}: expected keys such as {where}.{name}.{fields(old)[0].name}"
            )
    return replace(config, **changes)  # type: ignore[type-var]


def check_values(config: Any, where: str = "") -> None:
    """Validate every key of a config dataclass. Raises ConfigError; `where` is the prefix of names
    in its message.
    """
    for name, declared in keys(config.__class__).items():
        declared.validate(value_at(config, name), name=f"{where}.{name}" if where else name)


def type_text(kind: Any) -> str:
    """Return a type in words: `int`, `list[str]`, `float or null`."""
    if get_origin(kind) is Union:
        return " or ".join("null" if part is type(None) else type_text(part) for part in get_args(kind))
    return (
        kind.__name__
        if isinstance(kind, type) and not get_args(kind)
        else str(kind).replace("typing.", "").replace("Optional", "")
    )

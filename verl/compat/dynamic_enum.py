"""Enumerations that users can extend at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


class _DynamicEnumMeta(type):
    _registry: dict[str, Any]

    def __iter__(cls) -> Iterator[Any]:
        return iter(list(cls._registry.values()))

    def __contains__(cls, item: Any) -> bool:
        return item in cls._registry if isinstance(item, str) else item in cls._registry.values()

    def __getitem__(cls, name: str) -> Any:
        return cls._registry[name]

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(f"{cls.__name__} has no member {name!r}; its members are {sorted(cls.__dict__.get('_registry', {}))}")

    def names(cls) -> list[str]:
        """Names of the members, in the order they were registered."""
        return list(cls._registry)

    def values(cls) -> list[Any]:
        """The members, in the order they were registered."""
        return list(cls._registry.values())

    @property
    def __members__(cls) -> dict[str, Any]:
        return dict(cls._registry)


class DynamicEnum(metaclass=_DynamicEnumMeta):
    """Base of an enumeration whose members are added with `register`; a subclass sets its own `_registry = {}`."""

    _registry: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"

    def __reduce__(self) -> tuple[Any, tuple[type, str]]:
        return _member, (type(self), self.name)  # one object a member, in every process

    @classmethod
    def register(cls, name: str) -> Any:
        """Add and return a member. Raises ValueError when the name is taken."""
        key = name.upper()
        if key in cls._registry:
            raise ValueError(f"{key} is already a member of {cls.__name__}")
        member = cls._registry[key] = cls(key, len(cls._registry))
        setattr(cls, key, member)
        return member

    @classmethod
    def from_name(cls, name: str) -> Any:
        """Return the member of that name in any case, or None."""
        return cls._registry.get(name.upper())

    @classmethod
    def remove(cls, name: str) -> Any:
        """Take a member out and return it."""
        member = cls._registry.pop(name.upper())
        delattr(cls, member.name)
        return member


def _member(enum: type[DynamicEnum], name: str) -> DynamicEnum:
    return enum._registry[name] if name in enum._registry else enum.register(name)

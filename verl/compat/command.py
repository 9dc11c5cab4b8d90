"""A command line in the names of verl or Dr. MAS, translated to the keys of this package; one
warning lists what was translated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from verl.compat.defaults import ACTOR, TEAM, is_verls_default, upstream_defaults
from verl.compat.keys import TWINS, VERL_MEANINGS, VERL_VALUES, VerlKey, find_verl_key
from verl.compat.values import DR_MAS, PER_AGENT, Setting, Translation, plain, same
from verl.trainer.config.command import Command, key_of, split

MINI_BATCH_SIZES = tuple(
    f"{section}.ppo_mini_batch_size" for section in (ACTOR, f"{PER_AGENT}.actor", "critic")
)


class TranslatedCommand(Command):
    """A command line after translation."""

    def warning(self) -> str:
        """Return what was translated in one line; empty if nothing was, and no default of the
        project applies.
        """
        if not self.translated:
            return ""
        defaults = " ".join(f"{key}={value}" for key, value in self.defaults.items())
        values = {**self.defaults, **dict(pair for pair in map(split, self.overrides) if pair is not None)}
        rows = [
            f"{key}={values[key]}: counts rows there, tasks here; ppo_mini_update_num sets the "
            "number of updates instead"
            for key in MINI_BATCH_SIZES
            if self.upstream == "Dr. MAS" and plain(values.get(key, "0")) not in ("0", "null")
        ]
        listed = [*self.listed, *rows]
        if not listed and not defaults:
            return ""
        summary = f"translated: {' | '.join(listed) or 'nothing else'}"
        return (
            f"keys of {self.upstream or 'verl'} (docs/upstream_map.md): "
            f"{f'defaults: {defaults}; ' if defaults else ''}{summary}"
        )


def translate(overrides: Sequence[str]) -> TranslatedCommand:
    """Return the command line with settings of verl and Dr. MAS translated; others, and values that
    are refused, stay as they are.
    """
    settings = dict(pair for pair in map(split, overrides) if pair is not None)
    translations = {override: _take(override, _find(override), settings) for override in overrides}
    # Values alone, such as `trainer.logger=console`, do not make it a command of verl, with verl's
    # defaults.
    twins = {entry.name for entry in TWINS}
    value_keys = {entry.name for entry in VERL_VALUES} | twins
    command = TranslatedCommand(
        translated=any(
            translation is not None and key_of(override) not in value_keys
            for override, translation in translations.items()
        )
    )
    if command.translated:
        command.upstream = (
            "Dr. MAS"
            if any(key.startswith(DR_MAS) for key in settings)
            else ""
            if set(TEAM) & set(settings)
            else "verl"
        )
    else:
        translations = {o: t if key_of(o) in twins else None for o, t in translations.items()}
    # key here -> its value, and the setting that gave it
    values: dict[str, tuple[str, str]] = {}
    for override in overrides:
        key = key_of(override)
        other = next((entry for entry in VERL_MEANINGS if command.upstream and entry.name == key), None)
        translation = translations[override] or _take(override, other, settings)
        pair = split(override)
        for name, value in translation.overrides.items() if translation else [pair] if pair else []:
            before, setter = values.setdefault(name, (value, override))
            if key_of(setter) != key and not same(before, value):
                command.contradictions.append((setter.lstrip("+"), override.lstrip("+")))
        if translation is not None and translation.against:
            other_setting = f"{translation.against}={settings[translation.against]}"
            command.contradictions.append((override.lstrip("+"), other_setting))
        if translation is None:
            is_plain = command.translated and not override.startswith("-")
            command.overrides.append(override.lstrip("+") if is_plain else override)
            continue
        new = [f"{name}={value}" for name, value in translation.overrides.items()]
        command.overrides += new
        command.typed |= dict.fromkeys(translation.overrides, override)
        if translation.listed:
            command.listed.append(f"{override.lstrip('+')}: {'; '.join([*new, translation.note])}")
    if command.upstream:
        translated = dict(pair for pair in map(split, command.overrides) if pair is not None)
        command.defaults = upstream_defaults(settings, translated)
    return command


def _find(override: str) -> VerlKey | None:
    key = key_of(override)
    tables = (*TWINS, *VERL_VALUES)
    return next((entry for entry in tables if entry.name == key), None) or find_verl_key(key)


def _take(override: str, entry: VerlKey | None, settings: Mapping[str, str]) -> Translation | None:
    """Return what becomes of a setting; None if it is refused, or stays as it is. verl's default of
    a key that is not here is left out.
    """
    pair = split(override)
    if pair is None or entry is None:
        return None
    key, value = pair
    default = key not in entry.here and is_verls_default(key, value)
    if default and plain(value) == "null":
        return Translation(listed=False)
    whole = key if "*" in entry.name else entry.name
    translation = (
        entry.take(Setting(key, value, key[len(whole) :], entry.here, settings)) if entry.take else None
    )
    if translation is None:
        return Translation(listed=False) if default else None
    return replace(translation, note=translation.note or entry.note)

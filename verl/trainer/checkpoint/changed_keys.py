"""Which keys of a run that goes on differ from those of the checkpoint from which it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.trainer.checkpoint.store import CONFIG_FILE
from verl.utils.names import listed, without_password
from verl.utils.plain import MASK, flat, is_secret, printable

# They name the run, its length and where it writes, and may differ at every start.
OF_A_START = frozenset(
    f"trainer.{name}"
    for name in (
        "project_name", "experiment_name", "default_local_dir", "total_epochs", "total_training_steps",
        "total_generated_tokens", "logger", "resume_mode", "val_only",
    )
)  # fmt: skip
MOST_KEYS = 8
MOST_CHARACTERS = 60
NOT_SET = "(not set)"


def describe_changes(folder: Path, here: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return one line about the keys that differ from the configuration of a checkpoint; empty if
    none does, or if the checkpoint has no configuration.

    Args:
        folder: of the checkpoint.
        here: configuration of the run, section by section.
        schema: every key of this version, in the same form.
    """
    import yaml

    file = folder / CONFIG_FILE
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        saved = _plain(yaml.load(file.read_bytes(), loader))
    except FileNotFoundError:  # of a checkpoint of an older version
        return ""
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        return f"{file} cannot be read, so keys are not compared with it: {printable(str(error))}"
    lines = changed_keys(saved, _plain(here), _plain(schema))
    return f"keys that differ from those of the checkpoint: {listed(lines, MOST_KEYS)}" if lines else ""


def changed_keys(saved: Any, here: Any, schema: Any) -> list[str]:
    """Return `key: old -> new` for every key that differs, in the order of the configuration.

    A key of the schema that an older version did not write has no old value, and is left out.
    """
    before = _dotted(saved)
    now = _dotted(here)
    known_keys = _dotted(schema)
    lines = []
    for key in [*now, *(key for key in before if key not in now)]:
        is_new = key not in before and key in known_keys
        if key in OF_A_START or is_new or (key in before and key in now and before[key] == now[key]):
            continue
        lines.append(f"{key}: {_text(key, before)} -> {_text(key, now)}")
    return lines


def _plain(config: Any) -> Any:
    """Return a configuration as YAML gives it back: tuples as lists, names of keys as texts."""
    return json.loads(json.dumps(config, default=str))


def _dotted(config: Any) -> dict[str, Any]:
    # an empty mapping sets nothing
    return {key: value for key, value in flat(config).items() if value != {}}


def _text(key: str, values: Mapping[str, Any]) -> str:
    """Return the value of a key in at most 60 characters, without secrets."""
    if key not in values:
        return NOT_SET
    value = values[key]
    if isinstance(value, str) and value:
        masked = MASK if is_secret(key) else without_password(value) if "://" in value else value
        line = printable(masked)
    else:
        line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."

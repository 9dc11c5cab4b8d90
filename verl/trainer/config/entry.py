"""From a command line to a configuration: how overrides are checked and composed, and what Hydra's errors mean."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import NoReturn

from verl.compat.keys import find_verl_key
from verl.trainer.config.presets import PRESETS, expand_presets
from verl.trainer.config.run import RunConfig
from verl.trainer.config.spec import ConfigError, keys, type_text

CONFIG_NAME = "ppo_trainer"
KEYS = keys(RunConfig)
SECTIONS = {name.rsplit(".", i)[0] for name in KEYS for i in range(1, name.count(".") + 1)}
# Mappings of the configuration, whose keys belong to the user: to a workflow, an environment, agents or worker groups.
FREE_FORM = tuple(f"{name}." for name, key in KEYS.items() if isinstance(key.default, dict))


@cache
def register_config() -> str:
    """Store `RunConfig` in Hydra's ConfigStore and return the name to give `hydra.main`; Hydra writes no folders of its own."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    store.store(
        name=CONFIG_NAME,
        node={
            "defaults": ["run_schema", {"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}, "_self_"],
            "hydra": {"run": {"dir": "."}, "output_subdir": None},
        },
    )
    return CONFIG_NAME


def fail(message: str, status: int) -> NoReturn:
    """End the process with one line on stderr; a list of causes keeps its lines."""
    listed = "\n  " in message
    sys.stderr.write(f"error: {message if listed else ' '.join(message.split())}\n")
    sys.stderr.flush()
    sys.exit(status)


@contextmanager
def mistakes_in_one_line(given: Sequence[str]) -> Iterator[None]:
    """End the process with one line when keys or values of the command line `given` cannot be."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except ConfigError as error:
        fail(of_the_preset(str(error), given), 1)
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error, given), 1)


def of_the_preset(message: str, given: Sequence[str]) -> str:
    """A message about `key=value`, which says so where a preset set that key and the command line does not have it."""
    name = next((o.partition("=")[2].strip("'\"") for o in given if key_of(o) == "algorithm.preset"), "")
    key = message.partition("=")[0]
    by_preset = key in PRESETS.get(name, {}) and key not in map(key_of, given)
    return f"{message} (set by algorithm.preset={name})" if by_preset else message


def key_of(override: str) -> str:
    """The key that an override is of."""
    return override.lstrip("+~").partition("=")[0]


def prepared(given: Sequence[str]) -> list[str]:
    """The overrides of a command line as Hydra takes them: checked one by one, with those of a preset in front.

    Free-form sections, given key by key or whole, get `++`: Hydra would refuse their keys as unknown.

    Raises ConfigError naming the first override whose key or value cannot be; what Hydra cannot read is left to Hydra.
    """
    for override in given:
        _check_override(override)
    return [f"++{o.lstrip('+')}" if o.lstrip("+").replace("=", ".", 1).startswith(FREE_FORM) else o for o in expand_presets(given)]


def compose_config(given: Sequence[str]) -> RunConfig:
    """The configuration of a command line. Raises ConfigError, or what Hydra raises, for keys and values that cannot be."""
    from hydra import compose, initialize
    from omegaconf import OmegaConf

    overrides = prepared(given)
    with initialize(version_base=None, config_path=None):
        config = OmegaConf.to_object(compose(register_config(), overrides=overrides))
    assert isinstance(config, RunConfig)
    return config


def _check_override(override: str) -> None:
    """Raise ConfigError for an unknown key, or a value that the key cannot have."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    name, equals, text = override.lstrip("+~").partition("=")
    if override.startswith("-") or name.startswith(("hydra.", "hydra/")):
        return
    parts = name.split(".")
    under = next((".".join(parts[:i]) for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in KEYS), None)
    if under is None or (under != name and f"{under}." not in FREE_FORM):
        if name not in SECTIONS:
            raise ConfigError(_unknown(name))
        return
    if not equals or "${" in text or override.startswith("~"):
        return
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
        if parsed.is_sweep_override():
            return
        value = parsed.value()
    except HydraException:
        return
    for part in reversed(parts[under.count(".") + 1 :]):
        value = {part: value}
    KEYS[under].validate(value, name=name, typed=text)


def _unknown(key: str) -> str:
    """What is said of a key that does not exist: what verl's key of that name is here, or the nearest that exists."""
    if verls := find_verl_key(key):
        return f"unknown key {key}; {verls.says()} (verl's keys: docs/upstream_map.md)"
    near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5) or [k for k in KEYS if k.endswith(f".{key}")][:1]
    hint = f"did you mean {near[0]}?" if near else f"sections are {', '.join(sorted(s for s in SECTIONS if '.' not in s))}"
    return f"unknown key {key}; {hint} (all keys: docs/config.md)"


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One line for an error of Hydra or OmegaConf: the override it is about, and what is wrong with it."""
    from hydra.errors import OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OverrideParseException):
        return _misspelt_name(overrides) or f"{error.override}: {str(error).strip().splitlines()[0]}"
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    said = str(cause).strip().splitlines()[0]
    key = str(cause.full_key or "") if isinstance(cause, OmegaConfBaseException) else ""
    about = next((o for o in reversed(overrides) if key and key_of(o) == key), key)
    if not about:
        whole = str(error).strip().splitlines()[0]
        return whole if said in whole else f"{whole}: {said}"
    return f"{about}: {said} (expected {type_text(KEYS[key].type)})" if key in KEYS else f"{about}: {said}"


def _misspelt_name(overrides: Sequence[str]) -> str:
    """What is wrong with the first override whose names Hydra cannot read; empty when there is none."""
    for override in overrides:
        if re.search(r"""=.*[{,]\s*(["'])[^"']*\1\s*:""", override):
            return f"{override}: names in front of a colon stand without quotes, e.g. {{Solver Agent: verifier_agent}}"
        if " " in override.split("=", 1)[0]:
            return f"{override}: a name with spaces is written as its slug in front of '=', e.g. solver_agent for Solver Agent"
    return ""


def save_config(config: RunConfig, path: Path) -> None:
    """Write every key with its value."""
    from omegaconf import OmegaConf

    OmegaConf.save(OmegaConf.create(asdict(config)), path)


def load_config(path: Path) -> RunConfig:
    """Read what `save_config` wrote. Raises ValueError for a file with keys or values that this version does not have."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.load(path)))
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ValueError(f"{path} is no configuration of this version: {str(error).strip().splitlines()[0]}") from error
    assert isinstance(config, RunConfig)
    return config

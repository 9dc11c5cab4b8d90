"""How the typed config becomes a Hydra config, how free-form options are given without a plus sign, and what Hydra's errors mean."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from verl.compat.keys import find_verl_key
from verl.trainer.config.presets import PresetError
from verl.trainer.config.run import RunConfig
from verl.trainer.config.spec import describe

CONFIG_NAME = "ppo_trainer"
# Mappings of the configuration, whose keys belong to the user: to a workflow, an environment, agents or worker groups.
FREE_FORM = tuple(f"{name}." for name, kind, _, _ in describe(RunConfig) if kind.startswith("dict"))


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
    """End the process with one line when keys, values or presets of the command line `given` cannot be."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except PresetError as error:
        fail(str(error), 1)
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error, given), 1)


def free_form_overrides(overrides: Sequence[str]) -> list[str]:
    """Put `++` before overrides of free-form sections, given key by key or whole, which Hydra would refuse as unknown keys."""
    return [f"++{o.lstrip('+')}" if o.lstrip("+").replace("=", ".", 1).startswith(FREE_FORM) else o for o in overrides]


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One line for an error of Hydra or OmegaConf: the override it is about, and what verl's key is here or the nearest that exists."""
    known = {name: kind for name, kind, _, _ in describe(RunConfig)}
    sections = {name.rsplit(".", i)[0] for name in known for i in range(1, name.count(".") + 1)}
    for override in overrides:
        key = override.lstrip("+~").split("=", 1)[0]
        free = key.startswith((*FREE_FORM, "hydra.", "-")) or override.startswith("-")
        if free or key in known or key in sections or any(key.startswith(f"{name}.") for name in known):
            continue
        if verls := find_verl_key(key):
            return f"unknown key {key}; {verls.says()} (verl's keys: docs/upstream_map.md)"
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or [k for k in known if k.endswith(f".{key}")][:1]
        hint = f"did you mean {near[0]}?" if near else f"sections are {', '.join(sorted(s for s in sections if '.' not in s))}"
        return f"unknown key {key}; {hint} (all keys: docs/config.md)"
    from hydra.errors import OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OverrideParseException) and (misspelt := _misspelt_name(overrides)):
        return misspelt
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    said = str(cause).strip().splitlines()[0]
    key = str(cause.full_key or "") if isinstance(cause, OmegaConfBaseException) else ""
    about = next((o for o in overrides if key and o.lstrip("+~").split("=", 1)[0] == key), key)
    if not about:
        whole = str(error).strip().splitlines()[0]
        return whole if said in whole else f"{whole}: {said}"
    return f"{about}: {said} (expected {known[key]})" if key in known else f"{about}: {said}"


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

    OmegaConf.save(OmegaConf.structured(config), path)


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

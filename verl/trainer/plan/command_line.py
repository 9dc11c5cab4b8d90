"""From a command line to a configuration: check and compose overrides, and explain Hydra's errors."""

from __future__ import annotations

import difflib
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl.trainer.config.command import Command, fail, key_of, split
from verl.trainer.config.run import RunConfig
from verl.trainer.config.spec import ConfigError, Key, followers, keys, type_text
from verl.trainer.plan.agent_overrides import WHERE as PER_AGENT
from verl.trainer.plan.agent_overrides import keep_common_values
from verl.utils.names import did_you_mean, error_line

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig
    from omegaconf._utils import OmegaConfDumper

CONFIG_NAME = "ppo_trainer"
KEYS = keys(RunConfig)
SECTIONS = {name.rsplit(".", i)[0] for name in KEYS for i in range(1, name.count(".") + 1)}


@cache
def register_config() -> str:
    """Store `RunConfig` in Hydra's ConfigStore and return the name for `hydra.main`; Hydra writes
    no folders.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    like_others = [f"{name}=${{{leader}}}" for name, leader in followers(RunConfig).items()]
    interpolations: Any = OmegaConf.to_container(OmegaConf.from_dotlist(like_others))
    store.store(
        name=CONFIG_NAME,
        node={
            "defaults": [
                "run_schema",
                {"override hydra/job_logging": "none"},
                {"override hydra/hydra_logging": "none"},
                "_self_",
            ],
            "hydra": {"run": {"dir": "."}, "output_subdir": None},
            **interpolations,
        },
    )
    return CONFIG_NAME


@contextmanager
def report_config_errors(arguments: Sequence[str]) -> Iterator[None]:
    """End the process with a one-line error if keys or values of the command line `arguments` are
    invalid.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except ConfigError as error:
        fail(with_preset_note(str(error), arguments), 1)
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error, arguments), 1)


def with_preset_note(message: str, arguments: Sequence[str]) -> str:
    """Return a message about `key=value`, with a note if a preset, a setting in verl's names or a
    default of verl's set that key.

    In a message about several keys the first of them that has such a setting or default gets the
    note.
    """
    command = _translated(arguments)
    for key in re.findall(r"[a-z_]\w*(?:\.\w+)+", message):
        if key in command.typed and key not in command.typed[key]:
            return f"{message} (set by {command.typed[key].lstrip('+')})"
        if key in command.defaults:
            return f"{message} ({key}={command.defaults[key]} is a default of {command.upstream})"
    name = next((o.partition("=")[2].strip("'\"") for o in arguments if key_of(o) == "algorithm.preset"), "")
    if not name:
        return message
    from verl.trainer.plan.presets import PRESETS  # of algorithm.preset alone

    key = message.partition("=")[0]
    by_preset = key in PRESETS.get(name, {}) and key not in map(key_of, arguments)
    return f"{message} (set by algorithm.preset={name})" if by_preset else message


def _translated(arguments: Sequence[str]) -> Command:
    """Return a command line with settings in the names of verl and Dr. MAS translated."""
    settings = [pair for pair in map(split, arguments) if pair is not None]
    if all(key in KEYS or key.startswith(OWN_NAMES) for key, _ in settings):
        return Command(list(arguments))
    # Most command lines have names of this package only, and need no table of verl's.
    from verl.compat.command import translate

    return translate(arguments)


def prepare_overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides of a command line for Hydra: the `overrides` of `prepare`."""
    return prepare(arguments).overrides


def prepare(arguments: Sequence[str]) -> Command:
    """Return a command line ready for Hydra: settings of verl and Dr. MAS translated, checked one
    by one, those of a preset in front.

    Overrides of free-form sections, whole or key by key, get `++`: Hydra would refuse their keys as
    unknown.

    Raises ConfigError naming the first override with an invalid key or value; syntax errors are
    left to Hydra.
    """
    command = _translated(arguments)
    for first, second in command.contradictions:
        raise ConfigError(
            f"{first} and {second} set the same key to different values: leave out one (docs/upstream_map.md)"
        )
    for override in command.overrides:
        check_override(override)
    overrides = command.overrides
    if any(key_of(override) == "algorithm.preset" for override in overrides):
        from verl.trainer.plan.presets import expand_presets  # of this key alone

        overrides = expand_presets(overrides)
    defaults = [f"{key}={value}" for key, value in command.defaults.items()]
    command.overrides = free_form([*defaults, *overrides])
    if command.upstream:
        from verl.compat.defaults import MAY_HAVE_NO_EFFECT

        command.leave_out(
            [key for key in _without_effect(command.overrides) if key.startswith(MAY_HAVE_NO_EFFECT)]
        )
    return command


def compose_config(arguments: Sequence[str]) -> RunConfig:
    """Return the configuration of a command line. Raises ConfigError, or an error of Hydra, for
    invalid keys and values.
    """
    return _compose(prepare_overrides(arguments))


def _compose(overrides: Sequence[str]) -> RunConfig:
    from omegaconf import OmegaConf

    composed = _changed_defaults(overrides)
    if composed is None:
        composed = _composed_by_hydra(overrides)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, RunConfig)
    set_keys = [name for name in followers(RunConfig) if not _is_interpolation(composed, name)]
    keep_common_values(config.agent, config.actor_rollout_ref, set_keys)
    return config


def _is_interpolation(composed: DictConfig, name: str) -> bool:
    from omegaconf import OmegaConf

    section, _, leaf = name.rpartition(".")
    return OmegaConf.is_interpolation(OmegaConf.select(composed, section), leaf)


def _composed_by_hydra(overrides: Sequence[str]) -> DictConfig:
    from hydra import compose, initialize_config_module

    # `initialize` searches all modules of the process for the one that called it.
    with initialize_config_module(__package__, version_base=None):
        return compose(register_config(), overrides=list(overrides))


@cache
def _defaults() -> bytes:
    """Return the pickled configuration without overrides: a copy by pickle takes a fifth of the
    time of `deepcopy`.
    """
    return pickle.dumps(_composed_by_hydra([]))


def _changed_defaults(overrides: Sequence[str]) -> DictConfig | None:
    """Return what Hydra composes with overrides, by its own function for them, in a third of the
    time: the rest is the same in every composition. None for overrides that Hydra has to see
    itself: of its own keys and groups, sweeps, and wrong ones.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        parsed = [_parsed(override) for override in overrides]
        if any(o.is_sweep_override() or o.key_or_group.startswith("hydra") for o in parsed):
            return None
        config = pickle.loads(_defaults())
        ConfigLoaderImpl._apply_overrides_to_config(parsed, config)
    except (HydraException, OmegaConfBaseException):
        return None
    return config


def _without_effect(overrides: Sequence[str]) -> list[str]:
    """Return the keys that have no effect with the others; none if an estimator or a loss is
    unknown before plug-ins are loaded.
    """
    from verl.trainer.plan.placement import build_placement
    from verl.trainer.plan.run import RunPlan
    from verl.trainer.plan.unused_keys import without_effect

    config = _compose([o for o in overrides if not o.startswith("-")])
    try:
        placement = build_placement(config.agent, config.actor_rollout_ref)
        return without_effect(config, RunPlan.of(config, placement))
    except ValueError:  # reported by the checks of the run
        return []


def free_form_sections(program_keys: Mapping[str, Key]) -> tuple[str, ...]:
    """Return the names of the keys whose own keys are free, each with a dot behind it."""
    return tuple(f"{name}." for name, key in program_keys.items() if isinstance(key.default, dict))


# Mappings with keys of the user: options of a workflow or an environment, or names of agents or
# worker groups.
FREE_FORM = free_form_sections(KEYS)
# Free-form sections whose keys are the user's; those of `agent_specific_parameters` are keys of the
# models, which verl may name otherwise.
OWN_NAMES = tuple(section for section in FREE_FORM if section != f"{PER_AGENT}.")


def free_form(overrides: Sequence[str], sections: tuple[str, ...] = FREE_FORM) -> list[str]:
    """Return overrides with `++` before those of free-form sections, whole or key by key."""
    bare = [(override, override.lstrip("+")) for override in overrides]
    return [
        f"++{name}" if name.replace("=", ".", 1).startswith(sections) else override for override, name in bare
    ]


def check_override(override: str, program_keys: Mapping[str, Key] = KEYS) -> None:
    """Raise ConfigError for an unknown key or an invalid value; `program_keys` are the keys of the
    program.
    """
    from hydra.errors import HydraException

    name, equals, text = override.lstrip("+~").partition("=")
    if override.startswith("-") or name.startswith(("hydra.", "hydra/")):
        return
    parts = name.split(".")
    under = next(
        (".".join(parts[:i]) for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in program_keys), None
    )
    if under is None or (under != name and not isinstance(program_keys[under].default, dict)):
        if not any(key.startswith(f"{name}.") for key in program_keys):
            raise ConfigError(
                _unknown(name)
                if program_keys is KEYS
                else f"unknown key {name}{did_you_mean(name, program_keys)}"
            )
        return
    # An interpolation has its value once everything is composed; a deletion has none.
    if not equals or "${" in text or override.startswith("~"):
        return
    common = name.replace(f"{PER_AGENT}.", "actor_rollout_ref.", 1)
    if name.startswith(f"{PER_AGENT}.") and common not in KEYS and common not in SECTIONS:
        from verl.compat.keys import find_verl_key

        if verls := find_verl_key(name):
            raise ConfigError(f"{name}={text}; {verls.hint()}")
    try:
        parsed = _parsed(override)
        if parsed.is_sweep_override():
            return
        value = parsed.value()
    except HydraException:
        return
    for part in reversed(parts[under.count(".") + 1 :]):
        value = {part: value}
    program_keys[under].validate(value, name=name, typed=text)


@lru_cache(maxsize=1024)
def _parsed(override: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed


def _unknown(key: str) -> str:
    """Return the message for an unknown key: the counterpart of verl's key of that name, or the
    nearest known key.
    """
    from verl.compat.keys import find_verl_key
    from verl.trainer.plan.earlier_files import FORMER

    if key in FORMER:
        return f"{key} is no key any more: {FORMER[key][1]} (all keys: docs/config.md)"
    if verls := find_verl_key(key):
        return f"unknown key {key}; {verls.hint()} (verl's keys: docs/upstream_map.md)"
    near = (
        difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
        or [k for k in KEYS if k.endswith(f".{key}")][:1]
    )
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"sections are {', '.join(sorted(s for s in SECTIONS if '.' not in s))}"
    )
    return f"unknown key {key}; {hint} (all keys: docs/config.md)"


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Return one line for an error of Hydra or OmegaConf: the override and its error."""
    from hydra.errors import OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OverrideParseException):
        return _slip(overrides) or f"{error.override}: {error_line(error)}"
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    message = error_line(cause)
    key = str(cause.full_key or "") if isinstance(cause, OmegaConfBaseException) else ""
    about = next((o for o in reversed(overrides) if key and key_of(o) == key), key)
    if not about:
        # with the ways to write it that Hydra lists
        whole = " ".join(str(error).split())
        return whole if message in whole else f"{whole}: {message}"
    return (
        f"{about}: {message} (expected {type_text(KEYS[key].type)})" if key in KEYS else f"{about}: {message}"
    )


def _slip(overrides: Sequence[str]) -> str:
    """Return a message about the first override that Hydra cannot parse for a known reason; empty
    if there is none.
    """
    for override in overrides:
        if "=" not in override and not override.startswith(("~", "-")):
            return f"{override}: expected key=value"
        if "=~" in override:
            return f"{override}: a shell expands ~ only at the beginning of a word; write {override.replace('=~', '=$HOME', 1)}"
        if re.search(r"""=.*[{,]\s*(["'])[^"']*\1\s*:""", override):
            return f"{override}: names in front of a colon must not be quoted, e.g. {{Solver Agent: verifier_agent}}"
        if " " in override.split("=", 1)[0]:
            return f"{override}: in front of '=' write a name with spaces as its slug, e.g. solver_agent for Solver Agent"
    return ""


def save_config(config: RunConfig, path: Path) -> None:
    """Write every key with its value."""
    # Section by section: runs of one process, as in a search or an evolution, differ in few.
    sections = [_yaml_of(pickle.dumps({name: keys})) for name, keys in asdict(config).items()]
    path.write_text("".join(sections), encoding="utf-8")


@lru_cache(maxsize=64)
def _yaml_of(pickled: bytes) -> str:
    """Return pickled keys and values as YAML; the checkpoints of a run hold the same."""
    import yaml

    # What `OmegaConf.save` writes, without a node of OmegaConf for each of the keys first.
    return yaml.dump(
        pickle.loads(pickled),
        Dumper=_dumper(),
        default_flow_style=False,
        allow_unicode=True,
        sort_keys=False,
    )


@cache
def _dumper() -> type[OmegaConfDumper]:
    """Return OmegaConf's dumper, which quotes texts that look like numbers, with tuples written as
    lists.
    """
    from omegaconf._utils import get_omega_conf_dumper

    class Dumper(get_omega_conf_dumper()):  # type: ignore[misc]
        """A class of its own: representers are added to a class."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    Dumper.add_representer(tuple, Dumper.represent_list)
    return Dumper


@cache
def _schema() -> bytes:
    """Return the pickled schema of all keys: to make it of their types takes forty times as long as
    a copy by pickle.
    """
    from omegaconf import OmegaConf

    return pickle.dumps(OmegaConf.structured(RunConfig))


def load_config(path: Path) -> RunConfig:
    """Read a file of `save_config`, also of an earlier version. Raises ValueError for a file with
    keys or values unknown to this version.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from verl.trainer.plan.earlier_files import with_present_keys

    try:
        saved = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(saved, dict):
            raise ValueError(f"{path} is not a configuration: it holds no keys")
        # into a copy of its own, so that nothing has to be copied once more
        merged = OmegaConf.unsafe_merge(pickle.loads(_schema()), with_present_keys(saved))
        config = OmegaConf.to_object(merged)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ValueError(
            f"{path} is not a configuration of this version: {error_line(error)}; "
            "remove or rename the key in that file, or use the version that wrote it"
        ) from error
    assert isinstance(config, RunConfig)
    return config

"""How values of verl's keys of fully asynchronous training are taken: counts of mini-batches and
transfers to those of tasks and steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from verl.compat.defaults import ACTOR, TEAM, VERL_DEFAULTS
from verl.compat.values import PER_AGENT, Setting, Translation, plain

SECTION = "async_training"
BATCH = "data.train_batch_size"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
TRIGGER = f"{SECTION}.trigger_parameter_sync_step"


def batches_of_a_step(setting: Setting) -> Translation | None:
    """Left out, or what is missing of data.train_batch_size and ppo_mini_batch_size set, if a step
    has so many, else refused.
    """
    sizes = _sizes(setting.command)
    return (
        None
        if sizes is None
        else Translation({} if BATCH in setting.command and BATCH in sizes else sizes, listed=False)
    )


def zero_batch(setting: Setting) -> Translation | None:
    """Translated with keys of async_training: 0 to the tasks of require_batches mini-batches."""
    sizes = _sizes(setting.command) if setting.plain == "0" and _fully_async(setting.command) else None
    return Translation(sizes) if sizes and BATCH in sizes else None


def one_at_a_time(setting: Setting) -> Translation | None:
    """Left out if 1 with keys of async_training, else refused."""
    return Translation(listed=False) if setting.plain == "1" and _fully_async(setting.command) else None


def tasks_of_the_run(setting: Setting) -> Translation | None:
    """Translated to as many steps, in whole transfers of weights, if the tasks of a step are known,
    else refused.
    """
    sizes = _sizes(setting.command)
    trigger = _number(setting.command, TRIGGER, default="1")
    size = _number({**setting.command, **(sizes or {})}, BATCH, default="0")
    if setting.plain == "null":
        return Translation(listed=False)
    if sizes is None or not (setting.plain.isdigit() and size and trigger):
        return None
    steps = int(setting.plain) // (size * trigger) * trigger
    return Translation({setting.here[0]: str(steps)}) if steps else None


def steps_of_transfers(setting: Setting) -> Translation | None:
    """Translated to so many times trigger_parameter_sync_step steps."""
    transfers = _number(setting.command, setting.key, default="")
    trigger = _number(setting.command, TRIGGER, default="1")
    if transfers is None or not trigger:
        return None
    steps = str(transfers * trigger)
    return (
        None
        if (setting.key, setting.plain) == (setting.here[0], steps)
        else Translation({setting.here[0]: steps})
    )


def log_probs_of_the_sampler(setting: Setting) -> Translation | None:
    """Translated: true to bypass_mode=true unless compute_prox_log_prob is, false to
    bypass_mode=false.
    """
    if setting.plain not in ("true", "false"):
        return None
    proximal = plain(setting.command.get(f"{SECTION}.compute_prox_log_prob", "false")) == "true"
    return Translation({setting.here[0]: "true" if setting.plain == "true" and not proximal else "false"})


def proximal_log_probs(setting: Setting) -> Translation | None:
    """Left out if false; true translated to bypass_mode=false with trigger_parameter_sync_step=1,
    else refused.
    """
    if setting.plain == "false":
        return Translation(listed=False)
    same = setting.plain == "true" and _number(setting.command, TRIGGER, default="1") == 1
    return Translation({setting.here[0]: "false"}) if same else None


def unless_null(setting: Setting) -> Translation:
    """Translated; null left out."""
    return (
        Translation(listed=False)
        if setting.plain == "null"
        else Translation({setting.here[0]: setting.value})
    )


def _fully_async(command: Mapping[str, str]) -> bool:
    return any(key.startswith(f"{SECTION}.") for key in command)


def _number(command: Mapping[str, str], *keys: str, default: str) -> int | None:
    """Return the value of the first of the keys that is typed; None if it is no whole number."""
    typed = plain(next((command[key] for key in keys if key in command), default))
    return int(typed) if typed.isdigit() else None


def _sizes(command: Mapping[str, str]) -> dict[str, str] | None:
    """Return data.train_batch_size or ppo_mini_batch_size, key -> value, so that a step has
    `require_batches` mini-batches.

    Nothing if `require_batches` is 0, the whole batch; None if those that are typed contradict each
    other, or are not enough. A command that names a team leaves the mini-batch at the default here,
    the whole batch.
    """
    default = "0" if any(key in command for key in TEAM) else VERL_DEFAULTS[MINI_BATCH]
    mini_batch = _number(command, f"{PER_AGENT}.actor.ppo_mini_batch_size", MINI_BATCH, default=default)
    batches = _number(command, f"{SECTION}.require_batches", default="1")
    batch = _number(command, BATCH, default="0")
    if batches is None or mini_batch is None or batch is None:
        return None
    if batches == 0:
        return {}
    if mini_batch:
        return {BATCH: str(batches * mini_batch)} if batch in (0, batches * mini_batch) else None
    if batches == 1:
        return {}
    return {MINI_BATCH: str(batch // batches)} if batch and batch % batches == 0 else None

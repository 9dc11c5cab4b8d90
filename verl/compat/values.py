"""How values of verl's keys are taken: carried to the equivalent key, or left out where they change
nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.trainer.config.run import START_CHECKS, RunConfig
from verl.trainer.config.spec import as_typed, keys
from verl.trainer.plan.earlier_files import runs_of_steps
from verl.trainer.plan.presets import PRESETS

PER_AGENT = "agent.agent_specific_parameters"
# Keys that only Dr. MAS has.
DR_MAS = ("env.seed", "env.search.", "agent.multi_agent", "agent.use_agent_memory")


@dataclass(frozen=True)
class Setting:
    """One `key=value` of a command line in verl's names.

    Attributes:
        key: the key as typed, without `+`.
        value: the value as typed.
        rest: the part of the key below the entry that matched it, such as `.param_offload`; empty
            if the entry is the key itself.
        here: the equivalent keys of the entry.
        command: all settings of the command line, key -> value as typed.
    """

    key: str
    value: str
    rest: str
    here: tuple[str, ...]
    command: Mapping[str, str]

    @property
    def plain(self) -> str:
        """The value in lower case, without quotes."""
        return plain(self.value)


@dataclass(frozen=True)
class Translation:
    """What a setting becomes.

    Attributes:
        overrides: key -> value here; empty if the setting is left out.
        listed: the warning about the translation names it; False if the value says what is so
            anyway.
        note: replaces the entry's note in that warning.
        against: key of another setting of the command that the setting contradicts; empty if there
            is none.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    listed: bool = True
    note: str = ""
    against: str = ""


# The first line of its docstring says in docs/upstream_map.md what becomes of a value.
Take = Callable[[Setting], Translation | None]


def plain(value: str) -> str:
    """Return a value as typed in lower case, without quotes."""
    return value.strip().strip("'\"").lower()


def plain_text(value: str) -> str:
    """Return a value as typed without quotes."""
    return value.strip().strip("'\"")


def same(one: str, other: str) -> bool:
    """Return whether two values as typed are equal once Hydra has read them, as 5 and 5.0 are."""
    return plain(one) == plain(other) or _read(one) == _read(other)


def _read(value: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_overrides([f"key={value}"])[0].value()
    except HydraException:  # reported when the command line is composed
        return value


def carried(setting: Setting) -> Translation:
    """Translated."""
    return Translation({f"{setting.here[0]}{setting.rest}": setting.value})


def carried_per_agent(setting: Setting) -> Translation:
    """Translated, also under agent.agent_specific_parameters."""
    is_per_agent = setting.key.startswith(f"{PER_AGENT}.")
    return Translation(
        {
            setting.here[0].replace("actor_rollout_ref", PER_AGENT, 1)
            if is_per_agent
            else setting.here[0]: setting.value
        }
    )


def both(setting: Setting) -> Translation | None:
    """Translated to both keys."""
    return Translation(dict.fromkeys(setting.here, setting.value))


def mapped(**values: str) -> Take:
    """Set the equivalent key to the counterpart of the value; other values are not taken."""

    def take(setting: Setting) -> Translation | None:
        return Translation({setting.here[0]: values[setting.plain]}) if setting.plain in values else None

    take.__doc__ = f"Translated: {', '.join(f'{old} to {new}' for old, new in values.items())}."
    return take


def nothing(*values: str) -> Take:
    """Leave out these values, or all if none are named, in silence: they say what is so anyway."""

    def take(setting: Setting) -> Translation | None:
        return Translation(listed=False) if not values or setting.plain in values else None

    take.__doc__ = f"Left out{_only(values)}."
    return take


def no_effect(*values: str, silent: tuple[str, ...] = ()) -> Take:
    """Leave out these values, or all if none are named, and list them: they change speed or memory,
    not the result.
    """

    def take(setting: Setting) -> Translation | None:
        if setting.plain in silent:
            return Translation(listed=False)
        return Translation() if not values or setting.plain in values else None

    take.__doc__ = f"Left out{_only((*silent, *values) if values else ())}."
    return take


def shared_policy(setting: Setting) -> Translation | None:
    """Translated: true to prompt; left out if false, as by default."""
    if setting.plain not in ("true", "false"):
        return None
    return Translation({setting.here[0]: "prompt"} if setting.plain == "true" else {}, listed=False)


def switched(on: str, off: str, words: tuple[str, str] = ("true", "false")) -> Take:
    """Translate a boolean to a value of the key beside it: `off`, or `on` unless the command has it;
    also a list of the agents.

    Args:
        words: values of the switch for on and off.
    """

    def take(setting: Setting) -> Translation | None:
        if setting.key.startswith(f"{PER_AGENT}."):
            return _switched_per_agent(setting, on, off, words)
        return _switched(setting, on, off, words)

    take.__doc__ = (
        f"Translated: {words[1]} to {off}, {words[0]} to {on} unless the key here is in the command."
    )
    return take


def _switched(setting: Setting, on: str, off: str, words: tuple[str, str]) -> Translation | None:
    """Return the value of the key beside a switch, which is `on` unless the command, or its preset,
    has another.
    """
    key = setting.here[0]
    if setting.plain == words[0]:
        preset = plain(setting.command.get("algorithm.preset", "null"))
        by_preset = PRESETS.get(preset, {}).get(key, off)
        is_set = plain(setting.command.get(key, "null")) != "null" or not same(by_preset, off)
        return Translation({} if is_set else {key: on}, listed=False)
    if setting.plain != words[1]:
        return None
    per_agent = key.replace("actor_rollout_ref", PER_AGENT, 1)
    values = _elements(setting.command, per_agent) if per_agent != key else []
    switch = setting.key.replace("actor_rollout_ref", PER_AGENT, 1)
    switches = _elements(setting.command, switch) or [None] * len(values)
    ignored = any(
        value not in (None, 0) and own is None for value, own in zip(values, switches, strict=False)
    )
    return Translation({key: off}, listed=False, against=per_agent if ignored else "")


def _switched_per_agent(setting: Setting, on: str, off: str, words: tuple[str, str]) -> Translation | None:
    key = setting.here[0]
    common_key, common_switch = (
        name.replace(PER_AGENT, "actor_rollout_ref", 1) for name in (key, setting.key)
    )
    common = plain(setting.command.get(common_key, "null"))
    switches = _read(setting.value)
    if not isinstance(switches, list) or any(switch not in (True, False, None) for switch in switches):
        return None
    switches = [switch if switch is None else as_typed(switch) == words[0] for switch in switches]
    # Where the common switch was off unless it was set, a number had no effect without an agent's own.
    was_off = common_switch not in setting.command and not _is_of_dr_mas(setting.command)
    was_off = was_off and same(as_typed(keys(RunConfig)[common_key].default), off)
    values = _elements(setting.command, key) or [None] * len(switches)
    is_on = plain(setting.command.get(common_switch, words[common == "null"])) == words[0]
    off_here = [switch is False or (switch is None and was_off) for switch in switches]
    # null, which stands for the common value, cannot switch it off
    if len(values) != len(switches) or (off == "null" and is_on and True in off_here):
        return None
    default = on if common == "null" else common
    texts = [
        "null"
        if switch is None and (common == "null" if is_off else value is None)
        else off
        if is_off
        else str(value)
        if value is not None
        else default
        for switch, is_off, value in zip(switches, off_here, values, strict=True)
    ]
    ignored = any(is_off and value not in (None, 0) for is_off, value in zip(off_here, values, strict=True))
    return Translation({key: _list_of(texts)}, listed=False, against=key if ignored else "")


def _elements(command: Mapping[str, str], key: str) -> list[Any]:
    """Return the values of the agents for a key; [] if it is not in the command, or no list."""
    values = _read(command.get(key, "null"))
    return values if isinstance(values, list) else []


def beside_switch(number: str, switch: str, off: str = "false") -> Take:
    """Leave out the value of the key `number` that `switch` decides."""

    def take(setting: Setting) -> Translation | None:
        value = setting.command.get(switch)
        if value is None:
            return None
        is_decided = number.startswith(PER_AGENT) or plain(value) == off or setting.plain == "null"
        return Translation(listed=False) if is_decided else None

    leaf = switch.rpartition(".")[2]
    take.__doc__ = f"Left out beside {leaf}={off}, and of agents beside their {leaf}."
    return take


def without_switch(switch: str, off: str = "false") -> Take:
    """Leave out a value that has no effect, as the command does not set `switch`, which is off there."""

    def take(setting: Setting) -> Translation | None:
        note = f"no effect without {switch}"
        return None if switch in setting.command else Translation(listed=setting.plain != "null", note=note)

    take.__doc__ = f"Left out without {switch.rpartition('.')[2]}, which is {off} by default there."
    return take


def of_dr_mas(take: Take) -> Take:
    """Take a value in a command line of Dr. MAS alone; in one of verl 0.9 it stays."""

    def take_there(setting: Setting) -> Translation | None:
        return take(setting) if _is_of_dr_mas(setting.command) else None

    take_there.__doc__ = (take.__doc__ or "").replace("Left out", "Left out in a command of Dr. MAS", 1)
    return take_there


def _is_of_dr_mas(command: Mapping[str, str]) -> bool:
    return any(key.startswith(DR_MAS) for key in command)


def both_sides(setting: Setting) -> Translation | None:
    """Translated to both keys, but where these have a value in the command."""
    sides = {key: with_ratio(setting.command, key, setting.value) for key in setting.here}
    return Translation({key: value for key, value in sides.items() if value is not None}, listed=False)


def with_ratio(command: Mapping[str, str], key: str, ratio: str) -> str | None:
    """Return the value of a side of the clip range, of all or of agents, with `ratio` where the command
    has none; None if it has one for everybody.
    """
    # Of an agent's own ratio and the common value of a side, the latter counted.
    if plain(command.get(key.replace(PER_AGENT, "actor_rollout_ref", 1), "null")) != "null":
        return None
    sides, ratios = _elements(command, key), _read(ratio)
    if not sides:
        return ratio
    if not isinstance(ratios, list) or len(ratios) != len(sides):
        return None
    return _list_of(both if side is None else side for side, both in zip(sides, ratios, strict=True))


def beside_ratio(setting: Setting) -> Translation | None:
    """Left out beside the agents' clip_ratio, which is translated with it."""
    ratio = setting.command.get(f"{setting.key.rpartition('.')[0]}.clip_ratio")
    is_merged = ratio is not None and with_ratio(setting.command, setting.key, ratio) is not None
    return Translation(listed=False) if is_merged else None


def grouped(setting: Setting) -> Translation | None:
    """Translated: true to [uid,agent_id], false to [uid], unless group_by is in the command."""
    key = setting.here[0]
    preset = PRESETS.get(plain(setting.command.get("algorithm.preset", "null")), {})
    if setting.plain not in ("true", "false"):
        return None
    by_agent = "[uid,agent_id]"
    decided = plain(setting.command.get(key, "null")) != "null" or preset.get(key, by_agent) != by_agent
    fields = by_agent if setting.plain == "true" else "[uid]"
    return Translation({} if decided else {key: fields}, listed=False)


def shaping_number(former: str, *shapings: str) -> Take:
    """Translate the number of some shapings of `reward.shaping`; beside others it had no effect, so
    its value of then, `former`, is left out, and others are not taken.
    """

    def take(setting: Setting) -> Translation | None:
        if plain(setting.command.get("reward.shaping", "default")) in shapings:
            return carried(setting)
        return Translation(listed=False) if same(setting.value, former) else None

    take.__doc__ = f"Translated with reward.shaping={' or '.join(shapings)}; otherwise {former} is left out."
    return take


def beside_leader(its_switch: str, switch: str) -> Take:
    """Leave out a number of rows whose switch, `its_switch`, follows `switch`, which asks for tokens."""

    def take(setting: Setting) -> Translation | None:
        by_tokens = (
            its_switch not in setting.command and plain(setting.command.get(switch, "false")) == "true"
        )
        return Translation() if by_tokens or setting.plain == "null" else None

    take.__doc__ = f"Left out beside {switch}=true, which its own switch follows, and if null."
    return take


def warm_up(setting: Setting) -> Translation | None:
    """Translated: a share below 1 is the number of steps where none is named; -1 steps are none."""
    section = setting.key.rpartition(".")[0]
    steps, share = _warm_up_keys(setting, section)
    lists = [column for column in (steps, share) if isinstance(column, list)]
    # What is no -1, and has no share beside it, stays.
    if setting.key == setting.here[0] and "-1" not in setting.plain and len(lists) < 2:
        return None
    if not lists:
        value = _warm_up(steps, share)
        return None if value is None else Translation({setting.here[0]: value}, listed=False)
    columns = [column if isinstance(column, list) else [None] * len(lists[0]) for column in (steps, share)]
    if len(columns[0]) != len(columns[1]):
        return None
    common = _warm_up_keys(setting, section.replace(PER_AGENT, "actor_rollout_ref", 1))
    values: list[str | None] = []
    for row in zip(*columns, strict=True):
        # an agent's null is the common value, of each of the two
        whole = [value if value is not None else other for value, other in zip(row, common, strict=True)]
        values.append("null" if row == (None, None) else _warm_up(*whole))
    return None if None in values else Translation({setting.here[0]: _list_of(values)}, listed=False)


def _warm_up_keys(setting: Setting, section: str) -> list[Any]:
    return [
        _read(setting.command.get(f"{section}.{name}", "null"))
        for name in ("lr_warmup_steps", "lr_warmup_steps_ratio")
    ]


def _list_of(values: Iterable[Any]) -> str:
    """Return values as a list as typed."""
    return f"[{','.join('null' if value is None else str(value) for value in values)}]"


def _warm_up(steps: Any, share: Any) -> str | None:
    """Return the steps, or their share, of one agent; None for what is no number, or a share of 1."""
    value = (share or 0) if steps in (None, -1) else steps
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number and (value is steps or 0 <= value < 1) else None


def resumed(setting: Setting) -> Translation | None:
    """Translated: resume_path beside a folder is the folder."""
    folder = setting.command.get("trainer.resume_from_path", "null")
    if plain(folder) == "null":
        return Translation(listed=False) if setting.plain == "null" else None
    by_path = plain(setting.command.get("trainer.resume_mode", "auto")) == "resume_path"
    return Translation({setting.here[0]: folder}, listed=False) if by_path else None


def recorded_ranks(setting: Setting) -> Translation | None:
    """Translated: enable=true to ranks (the first unless they are named) or all of them, else none."""
    section, _, leaf = setting.key.rpartition(".")
    enable, all_ranks = (
        plain(setting.command.get(f"{section}.{name}", "false")) for name in ("enable", "all_ranks")
    )
    ranks = setting.command.get(f"{section}.ranks", "[]")
    if any(value not in ("true", "false") for value in (enable, all_ranks)):
        return None
    if leaf != "enable":  # decided with the switch
        return Translation(listed=False)
    if enable == "false":
        return Translation({setting.here[0]: "[]"}, listed=False)
    ranks_text = "all" if all_ranks == "true" else "[0]" if plain(ranks) in ("[]", "null") else ranks
    return Translation({setting.here[0]: ranks_text}, listed=False)


def beside_enable(setting: Setting) -> Translation | None:
    """Left out beside enable, which decides; [0,1] alone stays."""
    return Translation(listed=False) if setting.key.replace(".ranks", ".enable") in setting.command else None


def recorded_steps(setting: Setting) -> Translation | None:
    """Left out beside tool=null; translated beside profile_continuous_steps=true: those that follow
    each other are in a list.
    """
    tool = plain(setting.command.get("global_profiler.tool", "torch"))
    if tool == "null" or (tool != "torch" and setting.plain in ("[]", "null")):
        return Translation(listed=False)
    steps = _read(setting.value)
    joins = plain(setting.command.get("global_profiler.profile_continuous_steps", "false")) == "true"
    if not joins or not isinstance(steps, list) or not all(isinstance(step, int) for step in steps):
        return None
    return Translation({setting.here[0]: str(runs_of_steps(steps)).replace(" ", "")}, listed=False)


def start_checks(setting: Setting) -> Translation | None:
    """Translated: the checks that are not false."""
    values = {name: plain(setting.command.get(f"trainer.check_{name}", "true")) for name in START_CHECKS}
    if not {*values.values()} <= {"true", "false"}:
        return None
    names = [name for name, value in values.items() if value == "true"]
    return Translation({setting.here[0]: f"[{','.join(names)}]"}, listed=False)


def reward_function(setting: Setting) -> Translation | None:
    """Translated: path and name to one text, path:name."""
    section = setting.key.rpartition(".")[0]
    path, name = (plain_text(setting.command.get(f"{section}.{leaf}", "null")) for leaf in ("path", "name"))
    if setting.key.endswith(".path"):
        key = setting.here[0]
        is_set = "null" not in (path, name) and name != "compute_score"
        whole = f"{path}:{name}" if is_set else path
        return Translation({key: whole}, listed=False) if is_set or setting.key != key else None
    if setting.key.endswith(".name"):
        return Translation(listed=False) if path != "null" or name == "compute_score" else None
    return carried(setting)


def unused_tool(setting: Setting) -> Translation | None:
    """Left out if it is torch or null, or if global_profiler.steps names no step."""
    steps = plain(setting.command.get("global_profiler.steps", "null"))
    is_known = setting.plain in ("torch", "null")
    return Translation(listed=False) if is_known or steps in ("null", "[]") else None


def within_the_policy(setting: Setting) -> Translation | None:
    """Left out if false, or if the policy is recorded too, else refused."""
    section = "actor_rollout_ref.actor.profiler"
    policy = plain(setting.command.get(f"{section}.enable", "false")) == "true"
    policy |= plain(setting.command.get(f"{section}.ranks", "[]")) != "[]"
    return Translation(listed=setting.plain == "true") if policy or setting.plain == "false" else None


def _only(values: Sequence[str]) -> str:
    return f" if {' or '.join(values)}, else refused" if values else ""


def overlong_buffer(setting: Setting) -> Translation | None:
    """Translated with enable=true, else left out: there is no penalty."""
    section = setting.key.removesuffix(setting.rest)
    is_on = plain(setting.command.get(f"{section}.enable", "false")) == "true"
    if not is_on or setting.rest != ".enable":
        return carried(setting) if is_on else Translation(listed=False)
    has_length = plain(setting.command.get(f"{section}.len", "null")) != "null"
    return Translation({} if has_length else {f"{setting.here[0]}.len": "0"})


def below(**takes: Take) -> Take:
    """Take settings below the entry by the last part of their key; others are refused."""

    def take(setting: Setting) -> Translation | None:
        handler = takes.get(setting.rest.rpartition(".")[2])
        return handler(setting) if handler else None

    take.__doc__ = f"Taken: {', '.join(takes)}."
    return take


def own_values(setting: Setting) -> Translation | None:
    """Left out if null and the agents have values of their own, under
    agent.agent_specific_parameters.
    """
    agent_key = setting.key.replace("actor_rollout_ref", PER_AGENT, 1)
    return Translation(listed=False) if setting.plain == "null" and agent_key in setting.command else None


DTYPES = {"bfloat16": "bf16", "float32": "fp32", "bf16": "bf16", "fp32": "fp32"}
LOGGERS = {"file": "jsonl"}


def into_dtype(setting: Setting) -> Translation | None:
    """Translated to the short name of the dtype."""
    return Translation({setting.here[0]: DTYPES[setting.plain]}) if setting.plain in DTYPES else None


def equal_to_here(setting: Setting) -> Translation | None:
    """Left out if equal to the key here, else refused."""
    return (
        Translation(listed=False)
        if plain(setting.command.get(setting.here[0], "")) == setting.plain
        else None
    )


def loggers(setting: Setting) -> Translation | None:
    """Translated: one name to a list, file to jsonl."""
    names = [plain(name) for name in setting.value.strip("[]").split(",")]
    backends = [LOGGERS.get(name, name) for name in names]
    if backends == names and setting.value.startswith("["):
        return None
    return Translation({setting.here[0]: f"[{','.join(backends)}]"}, listed=backends != names)


def reward_manager(setting: Setting) -> Translation | None:
    """Translated: naive, dapo and prime, with a function of the user also gdpo.

    With such a function all of them call `compute_score` with verl's arguments, which is `naive`
    here; `batch` calls it with lists.
    """
    function = any(
        key.endswith("custom_reward_function.path") and plain(value) != "null"
        for key, value in setting.command.items()
    )
    if function:
        return Translation({setting.here[0]: "naive"}) if setting.plain in ("dapo", "gdpo", "prime") else None
    return (
        Translation(listed=setting.plain != "naive") if setting.plain in ("naive", "dapo", "prime") else None
    )


def scored_by_model(setting: Setting) -> Translation | None:
    """Translated: true to a reward model whose score of the answer is the team's reward, unless a
    function of the user asks the model.
    """
    if setting.plain == "false":
        return Translation(listed=False)
    function = any(
        key.endswith("custom_reward_function.path") and plain(value) != "null"
        for key, value in setting.command.items()
    )
    if setting.plain != "true" or function:
        return None
    section = setting.here[0]
    return Translation(
        {
            f"{section}.kind": "sequence_classification",
            f"{section}.agents": "null",
            f"{section}.combine": "replace",
        }
    )


def longest_input(setting: Setting) -> Translation | None:
    """Translated: prompt_length and response_length to their sum, the longest input of the reward
    model.
    """
    section = setting.key.rpartition(".")[0]
    lengths = [
        plain(setting.command.get(f"{section}.{name}", "2048"))
        for name in ("prompt_length", "response_length")
    ]
    return (
        Translation({setting.here[0]: str(sum(map(int, lengths)))})
        if all(length.isdigit() for length in lengths)
        else None
    )


def engine_nodes(setting: Setting) -> Translation | None:
    """Translated if above 0, with the GPUs of each node; left out if 0: engines share the devices
    of the trainer.
    """
    if setting.plain == "0":
        return Translation(listed=False)
    if not setting.plain.isdigit():
        return None
    nodes, per_node = setting.here
    return Translation({nodes: setting.value, per_node: _gpus_of_an_engine_node(setting.command)})


def engine_gpus(setting: Setting) -> Translation:
    """Translated with nodes of the engines' own, else left out: engines share the devices of the
    trainer.
    """
    return Translation({setting.here[0]: setting.value} if _own_engines(setting.command) else {})


def hybrid_engine(setting: Setting) -> Translation | None:
    """Left out if true, or if engines have devices of their own, else refused."""
    return (
        Translation(listed=False)
        if setting.plain == "true" or (setting.plain == "false" and _own_engines(setting.command))
        else None
    )


def within_a_node(setting: Setting) -> Translation | None:
    """Translated to all devices of a node if the engine would span several nodes."""
    node = _gpus_of_an_engine_node(setting.command)
    spans = setting.plain.isdigit() and node.isdigit() and int(setting.plain) > int(node)
    return Translation({setting.key: node}) if spans else None


def _own_engines(command: Mapping[str, str]) -> bool:
    """Return whether a command line gives engines devices of their own, by verl's keys or by those
    here.
    """
    return any(
        plain(command.get(key, "0")) != "0"
        for key in ("actor_rollout_ref.rollout.nnodes", "rollout.n_gpus_per_node")
    )


def _gpus_of_an_engine_node(command: Mapping[str, str]) -> str:
    """Return the number of GPUs of a node on which engines run, as typed."""
    engine_keys = (
        ("actor_rollout_ref.rollout.n_gpus_per_node", "rollout.n_gpus_per_node")
        if _own_engines(command)
        else ()
    )
    return next((command[key] for key in (*engine_keys, "trainer.n_gpus_per_node") if key in command), "8")

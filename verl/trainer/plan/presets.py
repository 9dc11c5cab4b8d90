"""Presets: `algorithm.preset=<name>` sets the keys that define a method.

A preset sets only what defines the method: learning rates, batch and group sizes and lengths stay those of the run. Explicitly given
keys win, before or after the preset; so do those of a script (examples/run_math.sh gives no value that a preset would change).
verl's `clip_ratio`, a name for both sides of the clip range, replaces both of a preset. The run
prints the expansion, and its config.yaml contains it. In Python: call `apply_preset(config, "dapo")`, then set other keys.

dr_mas
------
`A = (s - mean_ug) / (std_ug + 1e-6)` over the samples of a task u and agent g (arXiv 2602.08847, eq. 5): samples are compared with
samples of the same task and agent; the team reward of an episode is the reward of all its samples. For mathematics, the paper uses
GRPO's clip range 0.2, 8 episodes per task, learning rate 1e-6 and no KL.

Keys: `algorithm.group_by`, `algorithm.norm_adv_by_std_in_grpo`, `reward.team_scope`.
Use when: rewards or call frequencies differ between the agents of a team ([recipe/dr_mas](../recipe/dr_mas/README.md)).
Fails when: an agent is called so rarely that its groups have one sample: its advantage is then 0.

at_grpo
-------
`A_k = (r_k - mean_K r) / (std_K r + 1e-6)`, `r = alpha * team + local` (arXiv 2510.11062): every call of a trained agent samples K = 4
candidates, which are compared with each other; the reward of a candidate is that of its own action, alpha = 1; the episode continues
with the best one. The environment needs `fork()`. The paper's parallel sampling: `rollout.sampling=parallel
algorithm.group_by=[uid,agent_id,turn] reward.team_scope=turn`.

Keys: `rollout.sampling`, `rollout.tree.k`, `algorithm.group_by`, `reward.alpha`, `reward.team_scope`.
Use when: episodes have many turns and the environment rewards each action, so that replies in the same state can be compared.
Fails when: only the end of an episode is rewarded: all candidates of a call then have equal rewards (`tree/signal_rate`).

dr_grpo
-------
`A = s - mean_g`, `L = sum_i sum_t L_it / (n * constant)` (arXiv 2503.20783): advantages are not divided by a standard deviation, and the
loss of a reply is summed over its tokens and divided by a constant (the maximum reply length), so that neither the difficulty of a task
nor the length of a reply changes its weight; no KL.

Keys: `algorithm.norm_adv_by_std_in_grpo`, `actor.loss_agg_mode`, `algorithm.kl_ctrl.kl_coef`,
`actor.kl_loss_coef`.
Use when: replies become longer but not better, or tasks that are nearly always solved dominate the gradient.
Fails when: the scale of rewards differs between tasks, since they are not normalized; the learning rate may have to be increased.

dapo
----
`L = max(-r A, -clip(r, 1 - 0.2, 1 + 0.28) A)`, averaged over tokens (arXiv 2503.14476): clip-higher; tasks that all or
no episodes solve are replaced by new ones (dynamic sampling); a soft penalty over the last fifth of the reply limit (paper: 4,096 of
20,480 tokens, at most 1); no KL. The filter uses rewards before penalties, as the paper uses correctness.

Keys: `actor.clip_ratio_low`, `actor.clip_ratio_high`, `actor.loss_agg_mode`,
`algorithm.filter_groups.metric`, `reward.overlong_buffer.len`.
Use when: entropy collapses under the symmetric clip, replies are long, and tasks are many.
Fails when: tasks are few or sampling is slow: filtered groups are sampled in vain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

from verl.trainer.config.run import RunConfig
from verl.trainer.config.spec import ConfigError, followers
from verl.utils.names import did_you_mean

ACTOR = "actor_rollout_ref.actor"
NO_KL = {"algorithm.kl_ctrl.kl_coef": "0.0", f"{ACTOR}.kl_loss_coef": "0.0"}
# Values as on the command line.
PRESETS: Mapping[str, Mapping[str, str]] = {
    "dr_mas": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.group_by": "[uid,agent_id]",
        "algorithm.norm_adv_by_std_in_grpo": "true",
        "reward.team_scope": "episode",
    },
    "at_grpo": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.group_by": "[traj_uid,agent_id,turn,call]",
        "algorithm.norm_adv_by_std_in_grpo": "true",
        "reward.alpha": "1.0",
        "reward.team_scope": "call",
        "rollout.sampling": "tree",
        "rollout.tree.k": "4",
    },
    "dr_grpo": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": "false",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        **NO_KL,
    },
    "dapo": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": "true",
        "algorithm.filter_groups.metric": "mixed_reward",
        f"{ACTOR}.clip_ratio_low": "0.2",
        f"{ACTOR}.clip_ratio_high": "0.28",
        f"{ACTOR}.loss_agg_mode": "token-mean",
        "reward.overlong_buffer.len": "0",
        **NO_KL,
    },
}


class PresetError(ConfigError):
    """Unknown preset, or one that was named but not applied; the message says what to do."""


def expansion(name: str, overrides: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return key -> value, as on the command line, of a preset without the keys that `overrides`
    sets.

    Raises PresetError listing the known presets.
    """
    if name not in PRESETS:
        raise PresetError(
            f"algorithm.preset='{name}': expected one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
        )
    return {key: value for key, value in PRESETS[name].items() if key not in overrides}


def expand_presets(overrides: Sequence[str]) -> list[str]:
    """Insert the keys of `algorithm.preset=<name>` before the first override, so that given
    overrides win.

    Raises PresetError for an unknown name.
    """
    pairs = [o.lstrip("+").split("=", 1) for o in overrides if "=" in o and not o.startswith("-")]
    override_values = {pair[0]: pair[1].strip("'\"") for pair in pairs}
    name = override_values.get("algorithm.preset", "null")
    if name in ("null", ""):
        return list(overrides)
    first = next(i for i, o in enumerate(overrides) if "=" in o and not o.startswith("-"))
    added = [f"{key}={value}" for key, value in expansion(name, override_values).items()]
    return [*overrides[:first], *added, *overrides[first:]]


def apply_preset(config: RunConfig, name: str, keep: Collection[str] = ()) -> None:
    """Set the keys of a preset, except those in `keep`, on a config built in Python, and the keys
    that follow them; set other keys afterwards.

    Raises PresetError for an unknown name.
    """
    for key, value in expansion(name, dict.fromkeys(keep, "")).items():
        before = _value(config, key)
        following = [other for other, like in followers(RunConfig).items() if like == key]
        for changed in (key, *(other for other in following if _value(config, other) == before)):
            section, _, leaf = changed.rpartition(".")
            setattr(_value(config, section), leaf, _parsed(value))
    config.algorithm.preset = name


def describe_preset(config: RunConfig) -> str:
    """Return one line with the preset's keys that `config` has, and those with other values; empty
    without a preset.

    Raises PresetError for an unknown name, and if the preset is named but none of its keys is set.
    """
    name = config.algorithm.preset
    if name is None:
        return ""
    preset_values = {key: _parsed(value) for key, value in expansion(name).items()}
    matching_keys = [key for key, value in preset_values.items() if _value(config, key) == value]
    default = RunConfig()
    changed = [key for key, value in preset_values.items() if _value(default, key) != value]
    if changed and not set(changed) & set(matching_keys):
        raise PresetError(
            f"algorithm.preset='{name}' was set, but none of its keys: call "
            f"verl.trainer.plan.presets.apply_preset(config, '{name}')"
        )
    line = f"preset {name}: " + " ".join(f"{key}={PRESETS[name][key]}" for key in matching_keys)
    other = [f"{key}={_value(config, key)}" for key in preset_values if key not in matching_keys]
    return line + (f" (given instead: {' '.join(other)})" if other else "")


def _parsed(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def _value(config: Any, key: str) -> Any:
    return reduce(getattr, key.split("."), config)

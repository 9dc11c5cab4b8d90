"""A key of verl 0.9 is a key here, or the one line that refuses it says which of ours does the same or why
there is none.
"""

import pytest

from verl.compat.defaults import verl_0_9_defaults
from verl.compat.keys import VERL_KEYS, VerlKey, find_verl_key
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError, keys
from verl.trainer.plan.command_line import compose_config

OURS = {*keys(RunConfig)}
SECTIONS = {name.rsplit(".", depth)[0] for name in OURS for depth in range(1, name.count(".") + 1)}


def said(override: str) -> str:
    with pytest.raises(ConfigError) as refused:
        compose_config([override])
    return str(refused.value)


def test_every_key_of_verl_is_a_key_here_or_accounted_for() -> None:
    keys = verl_0_9_defaults()
    assert len(keys) > 700
    assert [key for key in keys if key not in OURS and find_verl_key(key) is None] == []


def test_defaults_of_verl_are_taken() -> None:
    """Together, beside a key that makes the command one of verl's; only verl's two keys for removing padding
    contradict each other.
    """
    mark, contradicted = "reward.num_workers=8", "actor_rollout_ref.actor.use_remove_padding"
    defaults = {
        key: value
        for key, value in verl_0_9_defaults().items()
        if value is not None and "~" not in value and key != contradicted
    }
    config, alone = (
        compose_config([mark, *(f"{key}={value}" for key, value in defaults.items())]),
        compose_config([mark]),
    )
    assert (config.algorithm, config.data, config.reward, config.env) == (
        alone.algorithm,
        alone.data,
        alone.reward,
        alone.env,
    )
    assert config.actor_rollout_ref.actor.optim == alone.actor_rollout_ref.actor.optim


@pytest.mark.parametrize("entry", VERL_KEYS, ids=lambda entry: entry.name)
def test_an_entry_names_keys_that_exist_and_says_why(entry: VerlKey) -> None:
    assert [
        key for key in entry.here if key not in OURS | SECTIONS and not key.startswith("env.params.")
    ] == []
    assert entry.note


def test_no_entry_takes_a_key_that_exists_here() -> None:
    assert [key for key in sorted(OURS) if find_verl_key(key)] == []


def test_every_entry_is_reached() -> None:
    hidden = [entry.name for entry in VERL_KEYS if find_verl_key(entry.name.replace("*", "x")) is not entry]
    assert hidden == [], "an entry further up takes these"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "actor_rollout_ref.rollout.data_parallel_size=2",
            "here actor_rollout_ref.rollout.tensor_model_parallel_size:",
        ),
        (
            "actor_rollout_ref.rollout.pipeline_model_parallel_size=2",
            "no equivalent here: an engine spans devices by tensor parallelism",
        ),
        (
            "+actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
            "FSDP2 is the one training engine",
        ),
        ("actor_rollout_ref.actor.checkpoint.save_contents=[model]", "here trainer.save_hf_model:"),
        ("reward_model.enable=true", "here reward.model:"),
        ("actor_rollout_ref.actor.profiler.tool=nsys", "torch is the one profiler"),
    ],
)
def test_a_key_of_verl_is_refused_in_one_line_that_leads_on(override: str, words: str) -> None:
    line = said(override)
    assert line.startswith(f"unknown key {override.lstrip('+').split('=')[0]}; verl")
    assert words in line and "\n" not in line and "did you mean" not in line


def test_the_error_for_an_unknown_key_names_the_nearest_known_key() -> None:
    assert "did you mean data.train_batch_size" in said("data.trian_batch_size=3")

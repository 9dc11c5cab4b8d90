"""Values of estimators' own keys that cannot be used."""

from dataclasses import replace

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.config.algorithm import GAEConfig, GiGPOConfig, RAEConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import resolve


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gae": GAEConfig(level="word")}, r"algorithm\.gae\.level='word': expected one of token, turn"),
        (
            {"gigpo": GiGPOConfig(mode="std")},
            r"algorithm\.gigpo\.mode='std': expected one of mean_norm, mean_std_norm",
        ),
        (
            {"gigpo": GiGPOConfig(step_advantage_w=float("nan"))},
            r"algorithm\.gigpo\.step_advantage_w=nan: expected a finite number",
        ),
        (
            {"gigpo": GiGPOConfig(similarity_thresh=1.5)},
            r"algorithm\.gigpo\.similarity_thresh=1\.5: expected above 0 and at most 1",
        ),
        ({"rae": RAEConfig(decay=1.0)}, r"algorithm\.rae\.decay=1\.0: expected at least 0 and less than 1"),
        (
            {"rae": RAEConfig(order="first")},
            r"algorithm\.rae\.order='first': expected one of subtract_first, update_first",
        ),
        ({"adv_estimator": "gdpo"}, r"gdpo needs algorithm\.gdpo_reward_keys"),
        (
            {"gdpo_reward_keys": ["reward"], "gdpo_reward_weights": [1.0, 2.0]},
            "2 entries for 1 gdpo_reward_keys",
        ),
        (
            {"gdpo_reward_keys": ["reward"], "gdpo_reward_weights": [float("inf")]},
            r"gdpo_reward_weights=\[inf\]: expected .*finite",
        ),
        (
            {"per_agent": {"solver_agent": {"rae": {"decay": -1}}}},
            r"^algorithm\.per_agent\.solver_agent\.rae\.decay=-1: expected at least 0",
        ),
    ],
)
def test_each_is_named(config: RunConfig, keys: dict, message: str) -> None:
    config.algorithm = replace(config.algorithm, **keys)
    with pytest.raises(ConfigError, match=message):
        resolve(config)

"""Values of estimators' own keys that cannot be used."""

import pytest

from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import GAEConfig, GiGPOConfig, RAEConfig
from verl.trainer.ppo.estimator_keys import check_estimator_keys


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gae": GAEConfig(level="word")}, r"algorithm\.gae\.level='word': expected one of token, turn"),
        ({"gigpo": GiGPOConfig(mode="std")}, r"algorithm\.gigpo\.mode='std': expected one of mean_norm, mean_std_norm"),
        ({"gigpo": GiGPOConfig(step_advantage_w=float("nan"))}, r"algorithm\.gigpo\.step_advantage_w=nan: expected a finite number"),
        ({"gigpo": GiGPOConfig(similarity_thresh=1.5)}, r"algorithm\.gigpo\.similarity_thresh=1\.5"),
        ({"rae": RAEConfig(decay=1.0)}, r"algorithm\.rae\.decay=1\.0: expected at least 0 and less than 1"),
        ({"rae": RAEConfig(order="first")}, r"algorithm\.rae\.order='first': expected one of subtract_first, update_first"),
        ({"adv_estimator": "gdpo"}, r"gdpo needs algorithm\.gdpo_reward_keys"),
        ({"gdpo_reward_keys": ["a"], "gdpo_reward_weights": [1.0, 2.0]}, "2 entries for 1 gdpo_reward_keys"),
        ({"gdpo_reward_keys": ["a"], "gdpo_reward_weights": [float("inf")]}, r"gdpo_reward_weights=\[inf\]: expected finite numbers"),
    ],
)
def test_each_is_named(keys: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_estimator_keys(AlgorithmConfig(**keys))


def test_defaults_can_be_used_and_the_place_is_told() -> None:
    check_estimator_keys(AlgorithmConfig())
    with pytest.raises(ValueError, match=r"^algorithm\.per_agent\.critic\.rae\.decay=-1"):
        check_estimator_keys(AlgorithmConfig(rae=RAEConfig(decay=-1)), "algorithm.per_agent.critic")

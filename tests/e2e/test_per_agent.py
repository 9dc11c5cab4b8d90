"""A team whose agents learn by estimators of their own: trained, resumed, and refused by the command line's own words."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from verl.trainer.config_check import ConfigError

OWN = "algorithm.per_agent"
MIXED: dict[str, Any] = {
    f"{OWN}.asker.adv_estimator": "rae",
    f"{OWN}.asker.call_weighting": "trajectory",
    f"{OWN}.verifier_agent.adv_estimator": "rloo",
    f"{OWN}.verifier_agent.group_by": "[uid,turn]",
    "env.max_steps": 2,
    "trainer.val_before_train": False,
    "trainer.save_freq": 1,
}


def test_two_estimators_in_one_team_train_both_and_go_on_after_a_stop_to_the_bit(train: Run, tmp_path: Path) -> None:
    whole = train(MIXED)
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    for line in lines:
        assert line["wg/asker/actor/grad_norm"] > 0
        assert line["wg/verifier_agent/actor/grad_norm"] > 0
        assert "agent/verifier_agent/turn_1/zero_signal_groups" in line
    folder = tmp_path / "again"
    train(MIXED | {"trainer.default_local_dir": folder, "trainer.total_training_steps": 1})
    resumed = train(MIXED | {"trainer.default_local_dir": folder})
    assert list(whole.credit.estimator_state["rae"]) == ["Asker"]
    assert resumed.credit.estimator_state == whole.credit.estimator_state
    assert weights(folder, 2) == weights(tmp_path / "run", 2)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("askr.adv_estimator", "rloo", "per_agent.askr: no such agent; did you mean 'asker'"),
        ("asker.adv_estimatr", "rloo", "per_agent.asker.adv_estimatr.*did you mean 'adv_estimator'"),
        ("asker.group_by", "[uid,trun]", "per_agent.asker.group_by.*did you mean 'turn'"),
    ],
)
def test_what_an_agent_cannot_have_is_refused_before_anything_starts(train: Run, key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train({f"{OWN}.{key}": value})

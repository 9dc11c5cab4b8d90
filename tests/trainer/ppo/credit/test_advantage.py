"""The dispatcher: each agent by its own estimator, each estimator with what it names, one clear error for
what is missing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, AdvantageEstimator, register_adv_est
from verl.trainer.ppo.credit.advantage import compute_advantage, group_numbers
from verl.trainer.ppo.reward import place_on_last_token

Result = tuple[torch.Tensor, torch.Tensor]


def batch(rewards: list[float], lengths: list[int] | None = None, **columns: list) -> DataProto:
    mask = (torch.arange(3) < torch.tensor(lengths or [2] * len(rewards)).unsqueeze(1)).long()
    tensors = {"response_mask": mask, "token_level_rewards": place_on_last_token(np.array(rewards), mask)}
    return DataProto.from_dict(
        tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()}
    )


def team(**changes: list) -> dict[str, list]:
    """Two episodes of one task; S is called twice in the first."""
    columns = {
        "uid": ["t"] * 5,
        "traj_uid": ["e", "e", "e", "f", "f"],
        "agent_id": ["S", "V", "S", "S", "V"],
        "turn": [1, 1, 2, 1, 1],
        "call": [0, 1, 0, 0, 1],
    }
    return columns | changes


def first_tokens(data: DataProto) -> list[float]:
    return data.batch["advantages"][:, 0].tolist()


def run(data: DataProto, **changes: Any) -> DataProto:
    config = AlgorithmConfig(**({"norm_adv_by_std_in_grpo": False} | changes))
    return compute_advantage(
        data, config.adv_estimator, norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo, config=config
    )


@pytest.fixture
def seen() -> Iterator[dict[str, Any]]:
    """What an estimator called `spy` was given; the estimator is forgotten afterwards."""
    given: dict[str, Any] = {}

    @register_adv_est("spy")
    def spy(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        turn_index: np.ndarray,
        traj_index: np.ndarray,
        agent_index: np.ndarray,
        policy_index: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        gamma: float = 9.0,
        epsilon: float = 0.5,
        state: dict[str, Any] | None = None,
        config: Any = None,
    ) -> Result:
        given.update(locals())
        return response_mask.float(), response_mask.float()

    yield given
    del ADV_ESTIMATOR_REGISTRY["spy"]


def test_each_agent_has_its_own_estimator_and_groups_never_mix_them() -> None:
    data = run(
        batch([1, 10, 2, 6, 30], **team()),
        group_by=["uid"],
        statistics_over="samples",
        per_agent={"v": {"adv_estimator": "rloo"}},
    )
    # S by GRPO: mean 3; V by RLOO: 10 - 30 and 30 - 10. Together they would have had one mean.
    assert first_tokens(data) == [-2.0, -20.0, -1.0, 3.0, 20.0]


def test_an_agents_keys_win_over_the_arguments_and_the_others_keep_them() -> None:
    data = run(
        batch([1, 10, 1, 3, 30], **team()),
        norm_adv_by_std_in_grpo=True,
        per_agent={"V": {"norm_adv_by_std_in_grpo": False}},
    )
    assert first_tokens(data)[1::3] == [-10.0, 10.0]
    assert first_tokens(data)[3] == pytest.approx(2 / 3**0.5, abs=1e-5), (
        "S: scores 1, 1, 3 by their standard deviation"
    )


def test_an_agent_alone_in_its_settings_is_as_if_the_other_were_not_there() -> None:
    own = {"V": {"adv_estimator": "rloo", "group_by": ["uid", "turn"]}}
    whole = run(batch([1, 10, 2, 6, 30], **team()), per_agent=own)
    rows = [1, 4]
    alone = run(
        batch([10, 30], **{k: [v[i] for i in rows] for k, v in team().items()}),
        adv_estimator="rloo",
        group_by=["uid", "turn"],
    )
    assert torch.equal(whole.batch["advantages"][rows], alone.batch["advantages"])


def test_statistics_over_trajectories_or_samples_is_a_choice() -> None:
    scores = [4.0, 8.0, 0.0, 1.0, 3.0]
    # trajectories: (4 + 8 + 0) / 3 = 4 against (1 + 3) / 2 = 2
    assert first_tokens(run(batch(scores, **team()), group_by=["uid"])) == [1.0, 1.0, 1.0, -1.0, -1.0]
    for estimator in ("grpo", "rloo"):
        over = {"adv_estimator": estimator, "group_by": [], "statistics_over": "trajectories"}
        assert first_tokens(run(batch(scores, **team()), **over))[0] == (1.0 if estimator == "grpo" else 2.0)
    samples = run(batch(scores, **team()), group_by=["uid"], statistics_over="samples")
    assert first_tokens(samples) == pytest.approx([0.8, 4.8, -3.2, -2.2, -0.2])


def test_rae_counts_a_role_once_an_episode_whatever_the_group_key() -> None:
    # S has (4 + 8) / 2 = 6 in the first episode, 12 in the second: b = 0.95^2 * 0 + (1 - 0.95^2) * 9, however
    # rows are grouped.
    for group_by in (["uid", "agent_id"], ["uid"]):
        state: dict[str, Any] = {}
        config = AlgorithmConfig(adv_estimator="rae", group_by=group_by)
        compute_advantage(batch([4, 1, 8, 12, 3], **team()), "rae", config=config, state=state)
        assert state["rae"]["S"] == pytest.approx((1 - 0.95**2) * 9)


def test_trajectories_are_refused_by_an_estimator_of_samples() -> None:
    with pytest.raises(
        ValueError, match="statistics_over=trajectories: estimator 'remax' compares samples only"
    ):
        run(batch([0.0] * 5, **team()), adv_estimator="remax", statistics_over="trajectories")


def test_the_calls_of_an_agent_in_one_episode_weigh_as_one() -> None:
    data = run(batch([4, 1, 8, 12, 3], **team()), call_weighting="trajectory")
    # S: (4 / 2 + 8 / 2 + 12) / 2 = 9; V: (1 + 3) / 2 = 2
    assert first_tokens(data) == [-5.0, -1.0, -1.0, 3.0, 1.0]
    assert data.batch["row_weights"].tolist() == [0.5, 1.0, 0.5, 1.0, 1.0]


def test_a_call_without_a_token_does_not_thin_the_others_and_no_weights_are_written_unasked() -> None:
    empty = batch([4, 1, 8, 12, 3], [2, 2, 0, 2, 2], **team())
    assert run(empty, call_weighting="trajectory").batch["row_weights"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert "row_weights" not in run(batch([0.0] * 5, **team())).batch.keys()  # noqa: SIM118


def test_one_agents_weights_leave_the_others_at_one() -> None:
    data = run(batch([4, 1, 8, 12, 3], **team()), per_agent={"S": {"call_weighting": "trajectory"}})
    assert data.batch["row_weights"].tolist() == [0.5, 1.0, 0.5, 1.0, 1.0]
    drawn = {"adv_estimator": "m_grpo", "m_grpo": {"main_agent": "V", "sub_calls": 3}}
    data = run(batch([4, 1, 8, 12, 3], **team()), per_agent={"S": drawn})
    assert data.batch["row_weights"][[1, 4]].tolist() == [1.0, 1.0]
    assert data.batch["row_weights"][[0, 2]].sum() == data.batch["row_weights"][3] == 3


def test_an_estimator_is_given_what_its_parameters_name(seen: dict[str, Any]) -> None:
    columns = team(policy_id=["p", "q", "p", "p", "q"])
    run(batch([0.0] * 5, **columns), adv_estimator="spy", call_weighting="trajectory")
    assert seen["turn_index"].tolist() == [0, 0, 1, 0, 0]
    assert seen["traj_index"].tolist() == columns["traj_uid"]
    assert seen["agent_index"].tolist() == columns["agent_id"]
    assert seen["policy_index"].tolist() == [0, 1, 0, 0, 1]
    assert seen["weights"].tolist() == [0.5, 1.0, 0.5, 1.0, 1.0]
    assert (seen["gamma"], seen["epsilon"]) == (1.0, 0.5), "what nothing offers keeps its default"


def test_turns_are_counted_by_turn_and_call_and_candidates_of_a_call_share_a_place(
    seen: dict[str, Any],
) -> None:
    columns = {
        "uid": ["t"] * 6, "traj_uid": ["e"] * 6, "agent_id": ["S", "S", "S", "V", "S", "S"],
        "turn": [7, 2, 2, 2, 2, 7], "call": [0, 5, 1, 2, 5, 3], "candidate": [0, 1, 0, 0, 0, 0],
    }  # fmt: skip
    run(batch([0.0] * 6, **columns), adv_estimator="spy")
    assert seen["turn_index"].tolist() == [2, 1, 0, 0, 1, 3]


def test_a_row_that_never_had_a_token_is_no_turn_and_a_rejected_one_keeps_its_own(
    seen: dict[str, Any],
) -> None:
    columns = {"uid": ["t"] * 4, "traj_uid": ["e"] * 4, "agent_id": ["S"] * 4, "turn": [1, 2, 3, 4]}
    data = batch([0.0] * 4, [2, 0, 0, 2], **columns)
    run(data, adv_estimator="spy")
    assert seen["turn_index"].tolist() == [0, -1, -1, 1]
    data.batch["reply_mask"] = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0]])
    run(data, adv_estimator="spy")
    assert seen["turn_index"].tolist() == [0, -1, 1, 2]


def test_what_an_estimator_remembers_is_its_own_and_comes_back(seen: dict[str, Any]) -> None:
    state: dict[str, Any] = {"other": {"x": 1}}
    config = AlgorithmConfig(adv_estimator="spy")
    compute_advantage(batch([0.0] * 5, **team()), "spy", config=config, state=state)
    assert state == {"other": {"x": 1}}, "an estimator that remembers nothing leaves nothing"
    seen["state"]["mean"] = 2.0
    state["spy"] = seen["state"]
    compute_advantage(batch([0.0] * 5, **team()), "spy", config=config, state=state)
    assert seen["state"] == {"mean": 2.0}


@pytest.mark.parametrize(
    ("estimator", "lacks", "fix"),
    [
        ("gae", "values", "critic.enable"),
        ("remax", "reward_baselines", "greedy"),
        ("gigpo", "step_rewards", "step_reward"),
    ],
)
def test_an_estimator_without_what_it_needs_says_what_and_how(estimator: str, lacks: str, fix: str) -> None:
    with pytest.raises(ValueError, match=f"'{estimator}' needs {lacks}, .*{fix}"):
        run(batch([0.0] * 5, **team()), adv_estimator=estimator)


def test_gigpo_without_anchors_says_so() -> None:
    with pytest.raises(ValueError, match=r"'gigpo' needs anchor_obs, .*column anchor"):
        run(batch([0.0] * 5, **team(step_reward=[0.0] * 5)), adv_estimator="gigpo")


def test_rewards_that_no_estimator_can_use_are_one_error() -> None:
    data = batch([0.0, 0.0, float("nan"), 0.0, 0.0], **team())
    for estimator in ("grpo", "remax"):
        with pytest.raises(ValueError, match=r"1 of 5 rows are not finite \(first: row 2 of agent 'S'"):
            run(data, adv_estimator=estimator)
    # nobody reads them before these
    for estimator in [name for name in ESTIMATORS.names() if ESTIMATORS.traits(name).checks_rewards]:
        with pytest.raises(ValueError, match="1 of 5 rows are not finite"):
            ADV_ESTIMATOR_REGISTRY[estimator](
                data.batch["token_level_rewards"], data.batch["response_mask"], np.zeros(5, dtype=np.int64)
            )
    padding = batch([0.0] * 5, [2, 2, 0, 2, 2], **team())
    padding.batch["token_level_rewards"][2] = float("nan")
    assert first_tokens(run(padding)) == [0.0] * 5, "a padding row may hold anything"


def test_tensors_that_do_not_belong_together_are_named() -> None:
    data = batch([0.0] * 5, **team())
    data.batch["token_level_rewards"] = torch.zeros(5, 4)
    with pytest.raises(ValueError, match=r"\(5, 4\) on cpu and response_mask \(5, 3\)"):
        run(data)
    data.batch["token_level_rewards"] = torch.zeros(5, 3, device="meta")
    with pytest.raises(ValueError, match="on meta"):
        run(data)


def test_an_estimator_written_for_verl_gets_verls_keywords() -> None:
    def theirs(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **kwargs: Any) -> Result:
        assert set(kwargs) == {"index", "config", "batch", "non_tensor_batch"}
        assert kwargs["non_tensor_batch"]["agent_id"].tolist() == team()["agent_id"]
        return response_mask.float(), response_mask.float()

    register_adv_est("theirs")(theirs)
    try:
        run(batch([0.0] * 5, **team()), adv_estimator="theirs")
    finally:
        del ADV_ESTIMATOR_REGISTRY["theirs"]


def test_vectorised_names_of_verl_are_the_same_estimators() -> None:
    for name, twin in (
        (AdvantageEstimator.GRPO, AdvantageEstimator.GRPO_VECTORIZED),
        ("rloo", "rloo_vectorized"),
    ):
        scores = [1.0, 5.0, 2.0, 4.0, 0.0]
        one, other = (compute_advantage(batch(scores, **team()), which) for which in (name, twin))
        assert torch.equal(one.batch["advantages"], other.batch["advantages"])


def test_group_numbers_follow_each_agents_own_key() -> None:
    config = AlgorithmConfig(per_agent={"V": {"group_by": ["uid", "traj_uid"]}})
    assert group_numbers(batch([0.0] * 5, **team()), config).tolist() == [0, 1, 0, 0, 2]
    assert group_numbers(batch([0.0] * 5, **team()), AlgorithmConfig()).tolist() == [0, 1, 0, 0, 1]


def test_values_per_agent_in_a_config_of_another_class_are_an_error_and_not_ignored() -> None:
    with pytest.raises(TypeError, match="per_agent needs an AlgorithmConfig, got dict"):
        compute_advantage(
            batch([0.0] * 5, **team()), "grpo", config={"per_agent": {"V": {"adv_estimator": "rloo"}}}
        )

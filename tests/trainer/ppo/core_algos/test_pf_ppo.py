"""PF-PPO: which rows are drawn."""

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_pf_ppo_reweight_data


def batch(scores: list[float], padding: int = 0) -> DataProto:
    mask = torch.ones(len(scores), 2, dtype=torch.long)
    mask[len(scores) - padding :] = 0
    tokens = torch.tensor(scores).unsqueeze(1).expand(-1, 2) / 2
    names = np.array([f"row {i}" for i in range(len(scores))], dtype=object)
    tensors = {"token_level_scores": tokens.clone(), "response_mask": mask, "row": torch.arange(len(scores))}
    return DataProto.from_dict(
        tensors=tensors, non_tensors={"name": names}, meta_info={"each": list(range(len(scores))), "all": "x"}
    )


def test_rows_are_drawn_whole_and_the_batch_is_left_alone() -> None:
    data = batch([0.0] * 9 + [1.0])
    drawn = compute_pf_ppo_reweight_data(data)
    # |1|^2 against 9 * 1e-8: only the last row is drawn
    assert drawn.batch["row"].tolist() == [9] * 10
    assert drawn.non_tensor_batch["name"].tolist() == ["row 9"] * 10
    assert drawn.meta_info == {"each": [9] * 10, "all": "x"}
    assert data.batch["row"].tolist() == list(range(10))


def test_the_methods_weigh_rows_as_named() -> None:
    torch.manual_seed(0)
    scores = [-2.0, 1.0, 1.0, 3.0] * 200
    share = {}
    for method in ("pow", "max_min", "max_random"):
        drawn = compute_pf_ppo_reweight_data(batch(scores), method).batch["token_level_scores"].sum(-1)
        share[method] = [(drawn == s).float().mean().item() for s in (-2.0, 1.0, 3.0)]
    assert share["pow"] == pytest.approx([4 / 15, 2 / 15, 9 / 15], abs=0.06)
    assert share["max_min"] == pytest.approx([1 / 2, 0, 1 / 2], abs=0.06)
    assert share["max_random"] == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.06)


def test_padding_is_never_drawn_and_sets_no_extreme() -> None:
    drawn = compute_pf_ppo_reweight_data(batch([1.0, 2.0, 50.0, float("nan")], padding=2), "max_min")
    assert set(drawn.batch["row"].tolist()) <= {0, 1}


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="reweight_method='best'"):
        compute_pf_ppo_reweight_data(batch([1.0]), "best")
    with pytest.raises(ValueError, match="no row has an unmasked token"):
        compute_pf_ppo_reweight_data(batch([1.0], padding=1))
    with pytest.raises(ValueError, match="not finite"):
        compute_pf_ppo_reweight_data(batch([1.0, float("inf")]))

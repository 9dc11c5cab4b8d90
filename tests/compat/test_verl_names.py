"""Code written for verl's names runs: workers, dispatch, advantages, losses and metrics, with configs that
know verl's keys only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from omegaconf import OmegaConf

from verl import DataProto
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import (
    Dispatch,
    Execute,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.single_controller.ray.base import create_colocated_worker_cls
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.core_algos import AdvantageEstimator, agg_loss
from verl.trainer.ppo.metric_utils import (
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
    reduce_metrics,
)
from verl.trainer.ppo.ray_trainer import (
    RayClassWithInitArgs,
    RayWorkerGroup,
    ResourcePoolManager,
    Role,
    compute_advantage,
    compute_response_mask,
)


class Actor(Worker):
    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.shift = -1.0
        self._register_dispatch_collect_info("actor", dp_rank=self.rank, is_collect=True)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("actor"))
    def compute_log_prob(self, data: DataProto) -> DataProto:
        log_probs = self.shift * torch.ones(data.batch["responses"].shape)
        return DataProto.from_dict(
            tensors={"old_log_probs": log_probs}, meta_info={"temperature": data.meta_info["temperature"]}
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def neighbour(self, name: str) -> str:
        other = self.get_fused_worker_by_name(name)
        return other.role if isinstance(other, Actor) else "none"


def rollouts(n: int = 2) -> DataProto:
    """Three tasks, `n` replies of at most three tokens each; the first reply of a task earns 1."""
    rows = 3 * n
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).repeat(rows // 2, 1)
    tensors = {
        "prompts": torch.ones(rows, 2, dtype=torch.long),
        "responses": torch.ones(rows, 3, dtype=torch.long),
        "attention_mask": torch.cat([torch.ones(rows, 2, dtype=torch.long), mask], dim=1),
    }
    return DataProto.from_dict(
        tensors, {"uid": np.repeat(["a", "b", "c"], n).astype(object)}, meta_info={"temperature": 1.0}
    )


@pytest.mark.ray
def test_a_step_written_for_verl_runs_from_pools_to_metrics(cluster: None) -> None:
    manager = ResourcePoolManager(
        {"global_pool": [2]}, {Role.ActorRollout: "global_pool", Role.RefPolicy: "global_pool"}, use_gpu=False
    )
    manager.create_resource_pool()
    pool = manager.get_resource_pool(Role.ActorRollout)
    assert manager.get_n_gpus() == 2 and pool is manager.get_resource_pool(Role.RefPolicy)
    classes = {
        str(role): RayClassWithInitArgs(ray.remote(Actor), role=str(role))
        for role in (Role.ActorRollout, Role.RefPolicy)
    }
    workers = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=create_colocated_worker_cls(classes),
        ray_wait_register_center_timeout=60,
        device_name="cpu",
    )
    groups = workers.spawn(prefix_set=classes.keys())
    actor = groups["actor_rollout"]
    actor.init_model()
    assert (
        actor.neighbour("ref") == "ref" and workers.master_address == "127.0.0.1" and workers.world_size == 2
    )

    batch = rollouts().slice(0, 5)  # two ranks do not divide five rows
    padded, extra = pad_dataproto_to_divisor(batch, actor.world_size)
    batch = batch.union(unpad_dataproto(actor.compute_log_prob(padded), extra))
    assert batch.batch["old_log_probs"].shape == (5, 3)

    batch.batch["response_mask"] = compute_response_mask(batch)
    scores = torch.zeros(5, 3)
    scores[[0, 2], 1] = 1.0
    batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = scores
    batch = compute_advantage(
        batch,
        adv_estimator=AdvantageEstimator.GRPO,
        gamma=1.0,
        lam=1.0,
        num_repeat=2,
        norm_adv_by_std_in_grpo=False,
    )
    assert batch.batch["advantages"][:, 0].tolist() == [0.5, -0.5, 0.5, -0.5, 0.0], (
        "the last task has lost a reply"
    )

    batch.batch["values"] = torch.zeros(5, 3)
    timing = {"gen": 1.0, "step": 2.0}
    metrics = compute_data_metrics(batch=batch, use_critic=True) | compute_timing_metrics(
        batch=batch, timing_raw=timing
    )
    metrics |= compute_throughout_metrics(batch=batch, timing_raw=timing, n_gpus=manager.get_n_gpus())
    assert metrics["critic/score/mean"] == pytest.approx(0.4) and metrics[
        "response_length/clip_ratio"
    ] == pytest.approx(0.4)
    assert metrics["perf/total_num_tokens"] == 22
    assert reduce_metrics({"actor/loss": [1.0, 3.0], "perf/max_memory": [1.0, 3.0]}) == {
        "actor/loss": 2.0,
        "perf/max_memory": 3.0,
    }
    workers.shutdown()


@pytest.mark.ray
def test_a_pool_without_gpus_says_how_to_do_without(cluster: None) -> None:
    manager = ResourcePoolManager({"global_pool": [2]}, {Role.Actor: "global_pool"})
    with pytest.raises(ValueError, match=r"want 2 GPUs, the cluster has 0 free; .*use_gpu=False"):
        manager.create_resource_pool()
    with pytest.raises(KeyError, match=r"no resource pool for critic: the mapping has \['actor'\]"):
        manager.get_resource_pool(Role.Critic)
    with pytest.raises(KeyError, match="create_resource_pool makes them"):
        manager.get_resource_pool(Role.Actor)


def verl_actor_config(**correction: object) -> SimpleNamespace:
    """What verl's `ActorConfig` holds for its losses, and none of our own keys."""
    chosen = {
        "rollout_is": None,
        "rollout_is_threshold": 2.0,
        "rollout_is_batch_normalize": False,
        "rollout_rs": None,
    }
    policy_loss = SimpleNamespace(
        loss_mode="vanilla",
        kl_cov_ratio=0.5,
        ppo_kl_coef=1.0,
        rollout_correction=SimpleNamespace(**chosen, rollout_rs_threshold=None, **correction),
    )
    return SimpleNamespace(
        clip_ratio=0.2,
        clip_ratio_low=None,
        clip_ratio_high=None,
        clip_ratio_c=3.0,
        policy_loss=policy_loss,
        global_batch_info={},
    )


def test_estimators_and_losses_take_verls_configs() -> None:
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 0.0]]), torch.tensor([[1, 1], [1, 1], [1, 0]])
    index = np.array(["a", "a", "b"], dtype=object)
    advantages, _ = core_algos.compute_rloo_outcome_advantage(
        rewards, mask, index, config=SimpleNamespace(gamma=1.0)
    )
    assert advantages.tolist() == [[1, 1], [-1, -1], [0, 0]]
    old = torch.log(torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 1.0]]))
    for name in ("vanilla", "kl_cov"):
        loss, _ = core_algos.get_policy_loss_fn(name)(
            old, old, advantages, mask, "token-mean", verl_actor_config(), None
        )
        assert loss.item() == pytest.approx(0.0), "advantages sum to zero and nothing has moved"
    loss, metrics = core_algos.get_policy_loss_fn("bypass_mode")(
        old, old, advantages + 1, mask, "seq-mean-token-sum", verl_actor_config(loss_type="ppo_clip"), None
    )
    assert loss.item() == pytest.approx(agg_loss(-(advantages + 1), mask, "seq-mean-token-sum").item())
    assert metrics["rollout_corr/kl"] == pytest.approx(0.0)


# Keys of verl's `algorithm` section, and none of our own.
VERL_ALGORITHM = {
    "gamma": 0.5, "lam": 0.9, "adv_estimator": "gae", "norm_adv_by_std_in_grpo": True,
    "use_kl_in_reward": False, "kl_penalty": "kl",
    "use_pf_ppo": False, "pf_ppo": {"reweight_method": "pow", "weight_pow": 2.0}, "rollout_correction": None,
    "filter_groups": None,
    "gdpo_reward_keys": ["accuracy", "format"], "gdpo_reward_weights": None,
}  # fmt: skip
VERL_ESTIMATORS = sorted(str(name.value) for name in AdvantageEstimator)


class ConfigMapping(Mapping):
    """As the dataclasses of verl's configs: attributes that are read as a mapping too, where a key that is
    not there is no KeyError.
    """

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


def struct_config(values: dict[str, Any]) -> Any:
    config = OmegaConf.create(values)
    OmegaConf.set_struct(config, True)
    return config


VERL_CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "DictConfig": OmegaConf.create,
    "struct DictConfig": struct_config,
    "SimpleNamespace": lambda values: SimpleNamespace(**values),
    "dataclass": lambda values: make_dataclass("AlgoConfig", list(values), bases=(ConfigMapping,), eq=False)(
        **values
    ),
}


def scored(agents: bool = True) -> DataProto:
    """Four replies to each of two tasks, without a response_mask; agents and episodes, which verl does not
    know, cut across tasks.
    """
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).repeat(4, 1)
    number = torch.arange(24, dtype=torch.float32).reshape(8, 3)
    tensors = {
        "prompts": torch.ones(8, 2, dtype=torch.long),
        "responses": torch.ones(8, 3, dtype=torch.long),
        "attention_mask": torch.cat([torch.ones(8, 2, dtype=torch.long), mask], dim=1),
        "token_level_rewards": mask * torch.tensor([1.0, 4, 2, 8, 5, 7, 1, 0]).unsqueeze(1),
        "token_level_scores": mask * torch.tensor([1.0, 4, 2, 8, 5, 7, 1, 0]).unsqueeze(1),
        "values": torch.cos(number),
        "reward_baselines": torch.ones(8),
        "old_log_probs": -0.1 * (number + 1),
        "sum_pi_squared": 0.5 * torch.ones(8, 3),
    }
    columns: dict[str, Any] = {
        "uid": ["t"] * 4 + ["u"] * 4,
        "accuracy": [1, 0, 0, 1, 1, 0, 0, 0],
        "format": [1, 1, 0, 0, 0, 1, 1, 0],
    }
    if agents:
        columns |= {"agent_id": ["a", "b"] * 4, "traj_uid": [0, 0, 1, 1, 2, 2, 3, 3], "turn": [0] * 8}
    return DataProto.from_dict(
        tensors, {key: np.array(value, dtype=object) for key, value in columns.items()}
    )


@pytest.mark.parametrize("kind", VERL_CONFIGS)
@pytest.mark.parametrize("estimator", VERL_ESTIMATORS)
def test_every_estimator_of_verl_takes_verls_algorithm_config(estimator: str, kind: str) -> None:
    config = VERL_CONFIGS[kind](VERL_ALGORITHM)
    data = compute_advantage(
        scored(), adv_estimator=estimator, gamma=0.5, lam=0.9, num_repeat=4, config=config
    )
    assert data.batch["response_mask"].tolist() == [[1, 1, 0], [1, 1, 1]] * 4, "made from the attention mask"
    assert data.batch["advantages"].abs().sum() > 0 and "row_weights" not in data.batch.keys()  # noqa: SIM118
    alone = scored(agents=False)
    expected = compute_advantage(
        alone, estimator, gamma=0.5, lam=0.9, num_repeat=4, config=config if estimator == "gdpo" else None
    )
    for key in ("advantages", "returns"):
        assert torch.equal(data.batch[key], expected.batch[key]), "rows are compared by uid, each on its own"


@pytest.mark.parametrize("kind", VERL_CONFIGS)
def test_verls_config_gives_the_keys_that_verl_reads(kind: str) -> None:
    def advantages(estimator: str, **keys: Any) -> list[float]:
        config = VERL_CONFIGS[kind](VERL_ALGORITHM | keys)
        return compute_advantage(scored(), estimator, config=config).batch["advantages"][:, 0].tolist()

    assert advantages("grpo_passk", norm_adv_by_std_in_grpo=False) == [0, 0, 0, 12, 0, 11, 0, 0], (
        "sums 2 12 4 24 and 10 21 2 0"
    )
    assert advantages("reinforce_plus_plus", gamma=0.0) != advantages("reinforce_plus_plus", gamma=1.0)
    assert advantages("gdpo", gdpo_reward_keys=["accuracy"]) != advantages(
        "gdpo", gdpo_reward_keys=["format"]
    )
    torch.manual_seed(0)
    drawn = compute_advantage(
        scored(), "gae", config=VERL_CONFIGS[kind](VERL_ALGORITHM | {"use_pf_ppo": True})
    )
    assert sorted(drawn.batch["token_level_scores"][:, 0].tolist()) != sorted(
        scored().batch["token_level_scores"][:, 0].tolist()
    )


def test_a_plain_dict_is_a_config_too() -> None:
    rewards, mask = torch.tensor([[3.0], [1.0], [2.0]]), torch.ones(3, 1)
    index = np.array(["a", "a", "a"], dtype=object)
    for by_std, best in ((False, 1.0), (True, pytest.approx(1.0 / (1.0 + 1e-6)))):
        result, _ = core_algos.compute_grpo_passk_outcome_advantage(
            rewards, mask, index, config={"norm_adv_by_std_in_grpo": by_std}
        )
        assert result[:, 0].tolist() == [best, 0, 0]
    with_raw, _ = core_algos.compute_grpo_outcome_advantage(
        rewards[:1], mask[:1], index[:1], config={"singleton": "raw"}
    )
    assert with_raw.item() == 3.0


def test_keys_of_ours_in_a_foreign_config_hold() -> None:
    by_agent = compute_advantage(scored(), "grpo", config=OmegaConf.create({"group_by_agent_id": True}))
    assert by_agent.batch["advantages"][[0, 2], 0].tolist() == pytest.approx([-(2**-0.5), 2**-0.5]), (
        "sums 2 and 4 of one agent"
    )
    episodes = compute_advantage(
        scored(), "grpo", config={"statistics_over": "trajectories"}, norm_adv_by_std_in_grpo=False
    )
    assert episodes.batch["advantages"][:4, 0].tolist() == [-3.5, -3.5, 3.5, 3.5], "means 7 and 14"


def test_a_batch_that_has_no_mask_and_nothing_to_make_it_from_says_so() -> None:
    data = DataProto.from_dict(
        {"token_level_rewards": torch.zeros(2, 3), "responses": torch.zeros(2, 3)}, {"uid": ["a", "a"]}
    )
    with pytest.raises(ValueError, match=r"no response_mask, nor \['attention_mask'\] to compute it from"):
        compute_advantage(data, "grpo")

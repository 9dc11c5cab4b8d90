"""PPO-style update of one policy: mini-batches of rows, each normalised as a whole, independent of
the split into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from verl.trainer.config import ActorConfig, RolloutCorrectionConfig
from verl.trainer.plan.registry import get_policy_loss_fn
from verl.trainer.ppo.core_algos.aggregation import agg_loss, masked_mean
from verl.trainer.ppo.core_algos.kl import kl_penalty
from verl.trainer.ppo.core_algos.policy_losses.common import LossConfig, clip_range
from verl.trainer.ppo.core_algos.policy_losses.preparation import MiniBatch, find_preparation
from verl.trainer.ppo.core_algos.rollout_correction import SamplerGap, sampler_gap
from verl.workers.engine.forward import INPUT_KEYS
from verl.workers.engine.fsdp_engine import FSDPEngine, Rows
from verl.workers.engine.micro_batch import MicroBatchRule
from verl.workers.engine.ranks import GroupRanks
from verl.workers.engine.steps import Objective, Outputs, StepPlan, Training, take_steps
from verl.workers.engine.update_metrics import AgentMeans

# Prefix of the columns that a loss's preparation adds to the rows.
PREPARED = "prepared/"


@dataclass(frozen=True, kw_only=True)
class UpdatePlan(StepPlan):
    """Arguments of one update of a policy.

    Attributes:
        temperature: of the sampler.
        on_policy: the rows were sampled with the current weights, so that old log-probs may be left
            out.
        rollout_correction: `algorithm.rollout_correction`; in its bypass mode `old_log_probs` are
            the sampler's and the loss is `bypass_mode`.
        agents: slugs of the agents that share the policy, indexed by `agent_index` of the rows;
            empty for no metrics per agent.
    """

    temperature: float
    on_policy: bool = False
    rollout_correction: RolloutCorrectionConfig | None = None
    agents: Sequence[str] = ()

    @property
    def bypass(self) -> bool:
        """Whether the sampler's log-probs are used as the old ones."""
        return self.rollout_correction is not None and self.rollout_correction.bypass_mode


@dataclass(frozen=True)
class PolicyRows:
    """What one policy is updated on.

    Attributes:
        config: of the policy.
        rows: `INPUT_KEYS`, `advantages`, `old_log_probs` unless on policy, `ref_log_prob` with the
            KL loss, and optionally `rollout_is_weights`; all `[bsz, response_len]`. Optionally
            `row_weights` `[bsz]`, and `agent_index` `[bsz]` if the plan names agents. Rows without
            a response token are left out.
        plan: of its steps.
    """

    config: ActorConfig
    rows: Rows
    plan: UpdatePlan


def update_policy(
    engine: FSDPEngine, config: ActorConfig, rows: Rows, plan: UpdatePlan, rule: MicroBatchRule
) -> dict[str, float]:
    """Run all mini-batches of all epochs and return the metrics, the same on every rank.

    If no pass before the update measured the gap between sampler and trainer (on policy, bypass),
    it is measured in the first step.

    Args:
        rows: see `PolicyRows`.

    Raises:
        ValueError: a column is missing, on-policy rows are to be used for more than one optimizer
            step, or weights of rows are negative or not finite.
    """
    update = _PolicyLoss(config, rows, plan)
    run = _pass(engine, plan.temperature, entropy_gradient=bool(config.entropy_coeff))
    (metrics,) = take_steps(engine, [update.training(config, rows, plan)], run, rule)
    return metrics | update.metrics(GroupRanks(engine.group, engine.device))


def update_adapters(
    engine: FSDPEngine, updates: Mapping[str, PolicyRows], rule: MicroBatchRule
) -> dict[str, dict[str, float]]:
    """Update several adapters as `update_policy` does with each, in passes that they share, and
    return the metrics of each.

    Args:
        updates: by adapter, all with rows of one width.

    Raises:
        ValueError: as `update_policy` does.
    """
    losses = {name: _PolicyLoss(update.config, update.rows, update.plan) for name, update in updates.items()}
    trainings = [
        losses[name].training(update.config, update.rows, update.plan, name)
        for name, update in updates.items()
    ]
    temperature = part_temperatures([update.plan.temperature for update in updates.values()], engine.device)
    run = _pass(engine, temperature, any(update.config.entropy_coeff for update in updates.values()))
    with engine.mixing(list(updates)):
        of_steps = take_steps(engine, trainings, run, rule)
    ranks = GroupRanks(engine.group, engine.device)
    return {
        name: metrics | losses[name].metrics(ranks) for name, metrics in zip(updates, of_steps, strict=True)
    }


def part_temperatures(temperatures: Sequence[float], device: torch.device) -> float | torch.Tensor:
    """Return the temperature of all parts, or the temperatures `[parts]` if they differ."""
    if len(set(temperatures)) == 1:
        return temperatures[0]
    return torch.tensor(temperatures, dtype=torch.float32, device=device)


def _pass(
    engine: FSDPEngine, temperature: float | torch.Tensor, entropy_gradient: bool
) -> Callable[[Rows], Outputs]:
    """Return a function that returns log-probs and entropies of a micro-batch."""

    def run(micro: Rows) -> Outputs:
        scores = engine.score(micro, temperature, entropy_gradient=entropy_gradient)
        return scores.log_probs, scores.entropy

    return run


def _columns(config: ActorConfig, rows: Rows, plan: UpdatePlan) -> list[str]:
    """Return the columns that the update reads. Raises ValueError as `update_policy` does."""
    needed = [*INPUT_KEYS, "advantages"]
    if "old_log_probs" in rows:
        needed.append("old_log_probs")
    elif not plan.on_policy:
        raise ValueError(
            "update_actor needs old_log_probs; call compute_log_prob first, or set "
            "meta_info['on_policy'] for fresh samples"
        )
    elif plan.num_mini_batches * config.ppo_epochs > 1:
        raise ValueError(
            "on-policy rows without old_log_probs allow one optimizer step, not "
            f"{plan.num_mini_batches} mini-batches x {config.ppo_epochs} epochs; call "
            "compute_log_prob first"
        )
    if config.use_kl_loss:
        needed.append("ref_log_prob")
    if plan.agents:
        needed.append("agent_index")
    needed += [name for name in ("rollout_is_weights", "rollout_log_probs") if name in rows]
    missing = [name for name in needed if name not in rows]
    if missing:
        raise ValueError(f"update_actor: the batch has no {missing}; it has {sorted(rows)}")
    weights = rows.get("row_weights")
    if weights is not None and not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise ValueError("update_actor: row_weights must be finite and not negative")
    return needed


def _loss_name(config: ActorConfig, plan: UpdatePlan) -> str:
    name = "bypass_mode" if plan.bypass else config.policy_loss.loss_mode
    if name == "bypass_mode" and not plan.bypass:
        raise ValueError(
            "policy_loss.loss_mode=bypass_mode needs algorithm.rollout_correction.bypass_mode=true"
        )
    return name


def _without_advantage(rows: Rows) -> torch.Tensor:
    return (rows["advantages"] * rows["response_mask"] == 0).all(dim=1)


def _mini_batch(micros: Sequence[Rows], log_prob: torch.Tensor, ranks: GroupRanks) -> MiniBatch:
    """Return this rank's rows in the order of its micro-batches, with their log-probs under the
    current weights.
    """
    joined = {
        name: torch.cat([micro[name] for micro in micros]) for name in micros[0] if name not in INPUT_KEYS
    }
    return MiniBatch(
        # On policy the current weights are those that sampled.
        old_log_prob=joined.get("old_log_probs", log_prob),
        log_prob=log_prob,
        advantages=joined["advantages"],
        response_mask=torch.cat([micro["response_mask"] for micro in micros]),
        row_weights=joined.get("row_weights", torch.ones(len(log_prob), device=log_prob.device)),
        ranks=ranks,
    )


class _PolicyLoss:
    """The loss of a policy's micro-batches, and its metrics."""

    def __init__(self, config: ActorConfig, rows: Rows, plan: UpdatePlan) -> None:
        self._columns = _columns(config, rows, plan)
        unmeasured = plan.bypass or "old_log_probs" not in rows
        self._plan = plan
        self._measure_gap = unmeasured and "rollout_log_probs" in rows
        values = {f.name: getattr(config, f.name) for f in fields(ActorConfig)}
        self._config = LossConfig(**values, prepared={}, rollout_correction=plan.rollout_correction)
        name = _loss_name(config, plan)
        self._policy_loss, self._preparation = get_policy_loss_fn(name), find_preparation(name, self._config)
        self._threshold = (
            2.0 if plan.rollout_correction is None else plan.rollout_correction.rollout_is_threshold
        )
        self._gap = SamplerGap()
        self._steps = 0
        self._masks_tokens = False
        self._tokens = 0.0
        self._tokens_left = 0.0
        self.agents = AgentMeans(plan.agents, ("actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac"))

    def training(
        self, config: ActorConfig, rows: Rows, plan: UpdatePlan, adapter: str | None = None
    ) -> Training:
        """Return what `take_steps` reads."""
        objective = Objective(
            "actor",
            self.loss,
            summed=("actor/pg_loss", "actor/kl_loss"),
            prepare=self.prepare,
            zero_loss=_without_advantage if config.skip_zero_advantages else None,
        )
        return Training(config, rows, self._columns, plan, objective, adapter)

    def prepare(
        self,
        micros: list[dict[str, torch.Tensor]],
        outputs: Callable[[], list[Outputs]],
        ranks: GroupRanks,
    ) -> list[dict[str, torch.Tensor]]:
        """Add the columns that the loss needs from the whole mini-batch to its micro-batches."""
        self._steps += 1
        if self._preparation is None:
            return micros
        mini = _mini_batch(micros, torch.cat([log_probs for log_probs, _ in outputs()]), ranks)
        self._measure(mini.log_prob, mini.response_mask, micros)
        columns = self._preparation(mini, self._config)
        sizes = [len(micro["response_mask"]) for micro in micros]
        parts = {
            name if name == "response_mask" else PREPARED + name: value.split(sizes)
            for name, value in columns.items()
        }
        prepared = [micro | {name: part[i] for name, part in parts.items()} for i, micro in enumerate(micros)]
        self._masks_tokens = "response_mask" in columns
        self._tokens += sum(float(micro["response_mask"].sum()) for micro in micros)
        self._tokens_left += sum(float(micro["response_mask"].sum()) for micro in prepared)
        return prepared

    def loss(
        self, micro: Rows, outputs: Outputs, counts: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the loss of one micro-batch and its metrics; without rows the loss is 0, connected
        to every parameter.
        """
        log_probs, entropy = outputs
        prepared = {
            name.removeprefix(PREPARED): value for name, value in micro.items() if name.startswith(PREPARED)
        }
        config = replace(self._config, global_batch_info=counts, prepared=prepared)
        mask = micro["response_mask"]
        mode = config.loss_agg_mode
        # On policy the ratio is 1, and its gradient that of the log-prob.
        loss, metrics = self._policy_loss(
            old_log_prob=micro["old_log_probs"] if "old_log_probs" in micro else log_probs.detach(),
            log_prob=log_probs,
            advantages=micro["advantages"],
            response_mask=mask,
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=micro.get("rollout_is_weights"),
        )
        metrics = {
            **metrics,
            "actor/pg_loss": loss.detach(),
            "actor/entropy": masked_mean(entropy.detach(), mask),
        }
        # Otherwise `prepare` has measured the whole mini-batch, before it masked tokens.
        if self._preparation is None:
            self._measure(log_probs, mask, [micro])
        if self._plan.agents:
            self._add_agents(micro, log_probs.detach(), entropy.detach())
        if config.entropy_coeff:
            loss = loss - config.entropy_coeff * agg_loss(entropy, mask, mode, **counts)
        if config.use_kl_loss:
            kl = agg_loss(
                kl_penalty(log_probs, micro["ref_log_prob"], config.kl_loss_type), mask, mode, **counts
            )
            loss = loss + config.kl_loss_coef * kl
            metrics["actor/kl_loss"] = kl.detach()
        return loss, metrics

    def _add_agents(self, micro: Rows, log_prob: torch.Tensor, entropy: torch.Tensor) -> None:
        """Add the metrics per agent; the clipped fraction counts tokens where PPO's objective has
        no gradient, for any loss.
        """
        log_ratio = log_prob - micro.get("old_log_probs", log_prob)
        advantages = micro["advantages"]
        low, high = clip_range(self._config, "vanilla")
        clipped = (advantages > 0) & (log_ratio.exp() > 1 + high) | (advantages < 0) & (
            log_ratio.exp() < 1 - low
        )
        self.agents.add(micro["agent_index"], micro["response_mask"], entropy, -log_ratio, clipped.float())

    def _measure(self, log_prob: torch.Tensor, mask: torch.Tensor, micros: Sequence[Rows]) -> None:
        """In the first step, add the gap of these micro-batches before any of their tokens are
        masked.
        """
        if self._measure_gap and self._steps == 1:
            sampler = torch.cat([micro["rollout_log_probs"] for micro in micros])
            self._gap += sampler_gap(log_prob, sampler, mask, self._threshold)

    def metrics(self, ranks: GroupRanks) -> dict[str, float]:
        """Return the metrics of the whole update that `take_steps` does not know."""
        return self._correction_metrics(ranks) | self.agents.metrics(ranks)

    def _correction_metrics(self, ranks: GroupRanks) -> dict[str, float]:
        """Return the gap between sampler and trainer if it was measured here, and the share of
        tokens that a preparation masked.
        """
        metrics = {}
        if self._measure_gap:
            sums = ranks.sum(torch.tensor(self._gap.sums(), dtype=torch.double)).tolist()
            maxima = ranks.max(torch.tensor(self._gap.maxima(), dtype=torch.double)).tolist()
            metrics = SamplerGap.of(sums, maxima).metrics()
        if self._masks_tokens:
            tokens, unmasked_tokens = ranks.sum(
                torch.tensor([self._tokens, self._tokens_left], dtype=torch.double)
            ).tolist()
            metrics["rollout_corr/rollout_rs_masked_fraction"] = 1.0 - unmasked_tokens / max(1.0, tokens)
        return metrics

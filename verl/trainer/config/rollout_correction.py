"""Keys under `algorithm.rollout_correction`, and verl's named combinations of them."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Optional, Union

from verl.trainer.config.names import IS_LEVELS
from verl.trainer.config.spec import key

CORRECTION = "algorithm.rollout_correction"
WEIGHTS = f"{CORRECTION}.rollout_is=token,sequence"

# Arguments of verl's named combinations, with the keys they set.
_ARGUMENTS = {
    "threshold": "rollout_is_threshold",
    "is_threshold": "rollout_is_threshold",
    "rs_threshold": "rollout_rs_threshold",
}
_IS = {"threshold": 2.0}
_BAND = {"threshold": 5.0, "threshold_lower": 0.5}
_GEO = {"rs_threshold": "0.999_1.001"}
_K3 = {"rs_threshold": 0.01}
_IS_GEO = {"is_threshold": 2.0} | _GEO
_IS_K3 = {"is_threshold": 2.0} | _K3


def _named(arguments: dict[str, Any], **keys: Any) -> Any:
    """Return a class method with verl's `arguments` (name -> default) that creates a config with
    `keys` set.
    """
    signature = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value) for name, value in arguments.items()]
    )

    def make(cls: type[RolloutCorrectionConfig], *args: Any, **named: Any) -> RolloutCorrectionConfig:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        if "threshold_lower" in values:
            values["threshold"] = f"{values.pop('threshold_lower')}_{values['threshold']}"
        return cls(**keys, **{_ARGUMENTS[name]: value for name, value in values.items()})

    return classmethod(make)


@dataclass
class RolloutCorrectionConfig:
    """`algorithm.rollout_correction`; verl's combinations are class methods:
    `RolloutCorrectionConfig.decoupled_token_is(2.0)`.
    """

    rollout_is: Optional[str] = key(
        None,
        "importance weights old/sampler, per token or per reply",
        choices=IS_LEVELS,
        effect=f"{CORRECTION}.bypass_mode=false or {CORRECTION}.loss_type=reinforce (with ppo_clip, clipping replaces the weights)",
    )
    rollout_is_threshold: Any = key(
        2.0,
        'upper bound of a weight (TIS), or "lower_upper": weights outside are set to 0 (IcePop)',
        type=Union[float, str],
        effect=WEIGHTS,
    )
    rollout_is_batch_normalize: bool = key(
        False, "scale the weights of a policy's batch to mean 1", effect=WEIGHTS
    )
    rollout_rs: Optional[str] = key(
        None,
        "rejection modes, comma-separated: token_k1, seq_sum_k1, seq_mean_k3, seq_max_k2, ...; "
        "null rejects nothing",
    )
    rollout_rs_threshold: Any = key(
        None,
        'one bound per mode, comma-separated: for k1 "lower_upper" of the ratio sampler/trainer, for k2 and '
        "k3 an upper bound",
        type=Optional[Union[float, str]],
        effect=f"{CORRECTION}.rollout_rs!=null",
    )
    m2po_tau: Optional[float] = key(
        None,
        "M2PO: among tokens that the update moves away from the sampler (A > 0, r > 1 or A < 0, r "
        "< 1), mask the largest (log pi_old - log sampler)^2 until the mean of the rest is at most "
        "this, once per step; with bypass_mode before each update, with the current policy as pi_old; null: off",
        gt=0,
    )
    bypass_mode: bool = key(False, "use the sampler's log-probs as the old log-probs")
    loss_type: str = key(
        "ppo_clip",
        "loss in bypass mode",
        choices=("ppo_clip", "reinforce"),
        effect=f"{CORRECTION}.bypass_mode=true",
    )

    @property
    def corrects_batch(self) -> bool:
        """Whether weights or rejection are applied before the updates; in bypass mode the loss
        applies both.
        """
        corrections = (self.rollout_is, self.rollout_rs, self.m2po_tau)
        return not self.bypass_mode and any(value is not None for value in corrections)

    disabled = _named({})
    decoupled_token_is = _named(_IS, rollout_is="token")
    decoupled_seq_is = _named(_IS, rollout_is="sequence")
    decoupled_token_icepop = _named(_BAND, rollout_is="token")
    decoupled_seq_is_rs = _named(
        {"is_threshold": 2.0, "rs_threshold": "0.5_2.0"}, rollout_is="sequence", rollout_rs="seq_sum_k1"
    )
    decoupled_geo_rs = _named(_GEO, rollout_rs="seq_mean_k1")
    decoupled_geo_rs_seq_tis = _named(_IS_GEO, rollout_is="sequence", rollout_rs="seq_mean_k1")
    decoupled_geo_rs_token_tis = _named(_IS_GEO, rollout_is="token", rollout_rs="seq_mean_k1")
    decoupled_k3_rs = _named(_K3, rollout_rs="seq_mean_k3")
    decoupled_k3_rs_seq_tis = _named(_IS_K3, rollout_is="sequence", rollout_rs="seq_mean_k3")
    decoupled_k3_rs_token_tis = _named(_IS_K3, rollout_is="token", rollout_rs="seq_mean_k3")
    bypass_ppo_clip = _named({}, bypass_mode=True)
    bypass_ppo_clip_geo_rs = _named(_GEO, rollout_rs="seq_mean_k1", bypass_mode=True)
    bypass_ppo_clip_k3_rs = _named(_K3, rollout_rs="seq_mean_k3", bypass_mode=True)
    bypass_pg_is = _named(_IS, rollout_is="sequence", bypass_mode=True, loss_type="reinforce")
    bypass_pg_token_icepop = _named(_BAND, rollout_is="token", bypass_mode=True, loss_type="reinforce")
    bypass_pg_geo_rs = _named(_GEO, rollout_rs="seq_mean_k1", bypass_mode=True, loss_type="reinforce")
    bypass_pg_geo_rs_seq_tis = _named(
        _IS_GEO, rollout_is="sequence", rollout_rs="seq_mean_k1", bypass_mode=True, loss_type="reinforce"
    )
    bypass_pg_geo_rs_token_tis = _named(
        _IS_GEO, rollout_is="token", rollout_rs="seq_mean_k1", bypass_mode=True, loss_type="reinforce"
    )

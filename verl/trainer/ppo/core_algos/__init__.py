"""Advantages, losses and KL: pure functions on tensors, one short file each, with verl's public
names.

An algorithm is chosen by its registered name, and a run imports the files of its own algorithms
alone (`verl.trainer.plan.registry`). Names of verl, and functions that are called directly, are
attributes of the package; the first one that is used imports every file (`public.py`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.compat.pf_ppo import compute_pf_ppo_reweight_data as compute_pf_ppo_reweight_data
    from verl.compat.policy_loss import compute_policy_loss as compute_policy_loss
    from verl.trainer.ppo.core_algos.public import *  # noqa: F403

# Names of verl's that a run does not use.
_VERLS = {
    "compute_pf_ppo_reweight_data": "verl.compat.pf_ppo",
    "compute_policy_loss": "verl.compat.policy_loss",
}


def __getattr__(name: str) -> Any:
    if name in _VERLS:
        return getattr(import_module(_VERLS[name]), name)
    if not name.startswith("__") or name == "__all__":
        public = import_module(f"{__name__}.public")
        if name == "__all__":
            return sorted([*public.__all__, *_VERLS])
        # While `public.py` is imported, it asks for the folders of this package and has no names
        # yet.
        if name in getattr(public, "__all__", ()):
            return getattr(public, name)
        if name in globals():  # a file or folder, which the import has added
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})

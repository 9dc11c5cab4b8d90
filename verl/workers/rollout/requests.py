"""Checks of a request that every engine makes before accepting it."""

from __future__ import annotations

from collections.abc import Callable

from verl.protocol.generate import GenerateRequest, RolloutError
from verl.workers.rollout.sampling import check_sampling


def check_request(
    request: GenerateRequest, vocab_size: int, max_model_len: int, version_of: Callable[[str | None], int]
) -> int:
    """Check a request and return the maximum number of tokens of each reply.

    Args:
        request: the request to check.
        vocab_size: of the model.
        max_model_len: maximum number of tokens of prompt and reply together.
        version_of: `RolloutEngine.version_of`; raises for adapters that cannot be used.

    Raises:
        RolloutError: the request is invalid, or its prompt leaves no room for a reply.
    """
    check_sampling(request.sampling)
    length = len(request.prompt_ids)
    name = request.request_id or "(no id)"
    try:
        version_of(request.adapter)
    except RolloutError as error:
        raise RolloutError(f"request {name}: {error}") from error
    if request.n < 1 or length < 1:
        raise RolloutError(
            f"request {name} has n={request.n} and {length} prompt tokens; expected at least 1 of each"
        )
    if length >= max_model_len:
        raise RolloutError(
            f"the prompt of request {name} has {length} tokens, max_model_len is {max_model_len} "
            "and a reply needs at least one; shorten the prompt or raise data.max_prompt_length"
        )
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocab_size:
        raise RolloutError(
            f"request {name} has token ids outside [0, {vocab_size}); check that the tokenizer is "
            "this model's"
        )
    return min(request.sampling.max_tokens, max_model_len - length)

"""Keys under `gateway`: a team that is a program with an OpenAI client
(`agent.orchestra_type=gateway`).
"""

import math
from dataclasses import dataclass

from verl.trainer.config.spec import LARGEST, key

GATEWAY = "agent.orchestra_type=gateway"
STRUCTURED = "an agent with actor_rollout_ref.rollout.structured_outputs=true"
FAIL = "fail"


def fail_or_reward(value: str) -> str:
    """Return `value`. Raise ValueError unless it is `fail` or a finite number."""
    if value != FAIL:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not abs(number) <= LARGEST:
            raise ValueError("expected fail or a finite number, the reward")
    return value


def reward_of_error(value: str) -> float | None:
    """Return the reward of an episode whose program raised because of a reply; None: it is left
    out.
    """
    return None if value == FAIL else float(value)


@dataclass
class GatewayConfig:
    history: str = key(
        "rendered",
        "how a conversation goes on: rendered (as the chat template shows it; sampled tokens stay "
        "where it shows them unchanged) | sampled (sampled tokens stay, thinking that the template "
        "would leave out included)",
        choices=("rendered", "sampled"),
    )
    seed_by: str = key(
        "prompt",
        "seed of a reply: prompt (agent and prompt, whatever arrives first) | order (turn and "
        "order of arrival, as in an orchestra)",
        choices=("prompt", "order"),
    )
    client_sampling: str = key(
        "override",
        "temperature, top_p and the like in a request: override (by those of the run, with one "
        "warning for each field) | refuse",
        choices=("override", "refuse"),
    )
    structured: str = key(
        "refuse",
        "a JSON schema or a forced tool call in a request of a training episode: refuse | mask (as "
        "in validation, of agents whose engine can; a token is sampled from pi / Z, with the mass "
        "Z of the policy pi on the tokens that the form allows, and trained as a sample of pi, "
        "unless algorithm.rollout_correction.rollout_is weighs it by Z, see docs/frameworks.md) | "
        "free (sampled from the policy as it is, in validation too; the program checks the reply)",
        choices=("refuse", "mask", "free"),
        effect=STRUCTURED,
    )
    program_error: str = key(
        "fail",
        "an episode whose program raises after a reply: fail (it is left out) | a number (where "
        "the cause may be the reply, the episode is kept with this reward and its calls are "
        "trained; other errors fail, see docs/frameworks.md)",
        check=fail_or_reward,
    )
    max_open_calls: int = key(
        64, "requests of an episode that are generated at a time; further ones wait", ge=1
    )

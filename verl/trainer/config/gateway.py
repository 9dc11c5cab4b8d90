"""Keys under `gateway`: a team that is a program with an OpenAI client (`agent.orchestra_type=gateway`)."""

from dataclasses import dataclass

from verl.trainer.config.spec import key

GATEWAY = "agent.orchestra_type=gateway"
STRUCTURED = "an agent with actor_rollout_ref.rollout.structured_outputs=true"


@dataclass
class GatewayConfig:
    history: str = key(
        "rendered",
        "how a conversation goes on: rendered (as the chat template shows it; sampled tokens stay where it shows them unchanged) | sampled "
        "(sampled tokens stay, thinking that the template would leave out included)",
        choices=("rendered", "sampled"),
    )
    seed_by: str = key(
        "prompt",
        "seed of a reply: prompt (agent and prompt, whatever arrives first) | order (turn and order of arrival, as in an orchestra)",
        choices=("prompt", "order"),
    )
    client_sampling: str = key(
        "override",
        "temperature, top_p and the like in a request: override (by those of the run, with one warning for each field) | refuse",
        choices=("override", "refuse"),
    )
    structured: str = key(
        "refuse",
        "a JSON schema or a forced tool call in a request of a training episode: refuse | mask (as in validation, of agents whose engine "
        "can; a token is sampled from pi / Z, with the mass Z of the policy pi on the tokens that the form allows, and trained as a sample "
        "of pi, unless algorithm.rollout_correction.rollout_is weighs it by Z, see docs/frameworks.md)",
        choices=("refuse", "mask"),
        effect=STRUCTURED,
    )
    max_open_calls: int = key(64, "requests of an episode that are generated at a time; further ones wait", ge=1)

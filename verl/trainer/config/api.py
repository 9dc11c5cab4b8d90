"""Keys under `agent.api.<agent>`: where an agent that has no policy of its own is answered for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import urlsplit

from verl.trainer.config.spec import LONGEST_S, key

# Fields of a request that the run fills in itself.
OF_THE_RUN = ("messages", "model", "n", "stream")


def _address(url: str) -> str:
    """Return a URL that chat/completions can follow; an empty one is told to be missing by who reads it."""
    if not url:
        return url
    try:
        parts = urlsplit(url)
        port_is_a_number = parts.port is None or parts.port >= 0
    except ValueError:
        port_is_a_number = False
    if not port_is_a_number or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("expected http://host[:port]/path, e.g. http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise ValueError("it holds a user or a password, which would be written to config.yaml; use api_key_env")
    return url


def _fields(body: Mapping[str, Any]) -> Mapping[str, Any]:
    if taken := [name for name in OF_THE_RUN if name in body]:
        raise ValueError(f"{taken[0]} is set by the run; leave it out")
    return body


@dataclass
class ApiConfig:
    base_url: str = key(
        "",
        "address of an OpenAI-compatible server, up to the part before /chat/completions, e.g. http://127.0.0.1:8000/v1",
        check=_address,
        secret=True,
    )
    model: str = key("", "name of the model there")
    api_key_env: Optional[str] = key(None, "environment variable that holds the key; null sends none")
    request_timeout_s: float = key(60.0, "time limit of one request", gt=0, le=LONGEST_S)
    max_retries: int = key(4, "requests beyond the first for one reply, when the server is down, slow, busy or talks rubbish", ge=0)
    retry_delay_s: float = key(
        1.0, "wait before the first of them; each further one waits twice as long, a Retry-After of the server more", ge=0, le=LONGEST_S
    )
    max_concurrent_requests: int = key(16, "requests at the same time", ge=1)
    extra_body: dict[str, Any] = key(
        {}, "more fields of a request, e.g. reasoning_effort; null leaves one out that is sent otherwise", check=_fields
    )

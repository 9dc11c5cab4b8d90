"""Keys under `agent.api.<agent>`: the server that generates the replies of an agent without a
policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import urlsplit

from verl.trainer.config.spec import LONGEST_S, key

# Request fields that the run sets.
RESERVED_FIELDS = ("messages", "model", "n", "stream")


def _address(url: str) -> str:
    """Return `url` if chat/completions can be appended to it, else raise ValueError; an empty one
    is reported by its reader.
    """
    if not url:
        return url
    try:
        parts = urlsplit(url)
        valid_port = parts.port is None or parts.port >= 0
    except ValueError:
        valid_port = False
    if (
        not valid_port
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
    ):
        raise ValueError("expected http://host[:port]/path, e.g. http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise ValueError(
            "it contains a user name or a password, which would be written to config.yaml; use api_key_env"
        )
    return url


def _fields(body: Mapping[str, Any]) -> Mapping[str, Any]:
    if reserved_names := [name for name in RESERVED_FIELDS if name in body]:
        raise ValueError(f"{reserved_names[0]} is set by the run; leave it out")
    return body


@dataclass
class ApiConfig:
    base_url: str = key(
        "",
        "base address of an OpenAI-compatible server, without /chat/completions, e.g. "
        "http://127.0.0.1:8000/v1",
        check=_address,
        secret=True,
    )
    model: str = key("", "model name on that server")
    api_key_env: Optional[str] = key(None, "environment variable that holds the API key; null sends none")
    request_timeout_s: float = key(60.0, "time limit of one request", gt=0, le=LONGEST_S)
    max_retries: int = key(
        4,
        "retries of one reply when the server is unreachable, too slow, busy or sends a malformed response",
        ge=0,
    )
    retry_delay_s: float = key(
        1.0,
        "wait before the first retry; doubles with each retry, and a Retry-After of the server can "
        "prolong it",
        ge=0,
        le=LONGEST_S,
    )
    max_concurrent_requests: int = key(16, "maximum number of concurrent requests", ge=1)
    extra_body: dict[str, Any] = key(
        {},
        "additional request fields, e.g. reasoning_effort; null removes a field that is sent by default",
        check=_fields,
    )

"""Keys under `agent.api.<agent>`: where an agent that has no policy of its own is answered for."""

from dataclasses import dataclass
from typing import Any, Optional

from verl.trainer.config.spec import key


@dataclass
class ApiConfig:
    base_url: str = key(
        "", "address of an OpenAI-compatible server, up to the part before /chat/completions, e.g. http://127.0.0.1:8000/v1"
    )
    model: str = key("", "name of the model there")
    api_key_env: Optional[str] = key(None, "environment variable that holds the key; null sends none")
    request_timeout_s: float = key(60.0, "time limit of one request")
    max_retries: int = key(4, "requests beyond the first for one reply, when the server is down, slow, busy or talks rubbish")
    retry_delay_s: float = key(1.0, "wait before the first of them; each further one waits twice as long, a Retry-After of the server more")
    max_concurrent_requests: int = key(16, "requests at the same time")
    extra_body: dict[str, Any] = key({}, "more fields of a request, e.g. reasoning_effort; null leaves one out that is sent otherwise")

"""Calls of the library `litellm` to a served team, at OPENAI_BASE_URL."""

import asyncio
import os
from typing import Any

import litellm
from pydantic import BaseModel

GIVEN: dict[str, Any] = {
    "model": "openai/Solver Agent", "api_base": os.environ["OPENAI_BASE_URL"],
    "messages": [{"role": "user", "content": "3 + 4?"}],
    "seed": 1, "temperature": 1.0, "max_tokens": 16, "num_retries": 0,
}  # fmt: skip


class Sum(BaseModel):
    """A sum."""

    value: int


whole = litellm.completion(**GIVEN)
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
text = whole.choices[0].message.content
assert (
    "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**GIVEN, stream=True))
    == text
)
assert asyncio.run(litellm.acompletion(**GIVEN)).choices[0].message.content == text
response = litellm.responses(
    model=GIVEN["model"],
    api_base=GIVEN["api_base"],
    input="3 + 4?",
    max_output_tokens=16,
    temperature=1.0,
    extra_body={"seed": 1},
)
assert response.output[0].content[0].text == text, (response, text)
wrong = {
    litellm.NotFoundError: {"model": "openai/Nobody"},
    litellm.ContextWindowExceededError: {"messages": [{"role": "user", "content": "x " * 100_000}]},
    litellm.BadRequestError: {"top_p": 2.0},
}
for kind, more in wrong.items():
    try:
        litellm.completion(**{**GIVEN, **more})
    except kind as error:
        assert isinstance(error, kind)
    else:
        raise AssertionError(kind)
formed = litellm.completion(**{**GIVEN, "max_tokens": 3000}, response_format=Sum)
Sum.model_validate_json(formed.choices[0].message.content)

"""Calls of the library `instructor` to a served team, at OPENAI_BASE_URL: they need an engine that makes
replies follow a form.
"""

import instructor
import openai
from pydantic import BaseModel, Field


class Sum(BaseModel):
    """A sum."""

    value: int = Field(ge=0, le=99)
    sure: bool


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=mode)
    made = client.create(
        model="Solver Agent",
        response_model=Sum,
        messages=[{"role": "user", "content": "3 + 4?"}],
        max_retries=1,
        temperature=1.0,
    )
    assert 0 <= made.value <= 99, made

"""The standard tests of LangChain for `ChatOpenAI` with an agent of a served team, at OPENAI_BASE_URL."""

import os
from typing import Any, ClassVar

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

ABLE = os.environ["ABLE"] == "1"  # the model does what it is asked to do


class TestServedAgent(ChatModelIntegrationTests):
    """With what agents never do left out: pictures, sound, documents."""

    chat_model_class: ClassVar[Any] = ChatOpenAI
    chat_model_params: ClassVar[Any] = {
        "model": "Solver Agent",
        "base_url": os.environ["OPENAI_BASE_URL"],
        "temperature": 1.0,
        "seed": 1,
        "max_tokens": 3000,
        "max_retries": 0,
        "stream_usage": True,
    }
    has_tool_choice = True
    has_structured_output = True
    supports_json_mode = ABLE
    supports_model_override = True
    model_override_value = "Verifier Agent"

"""Calls of the command line `llm` to a served team, at OPENAI_BASE_URL."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = """
- model_id: solver
  model_name: Solver Agent
  api_base: "{url}"
  supports_schema: true
  supports_tools: true
"""


def llm(*arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    os.environ["LLM_USER_PATH"] = folder
    (Path(folder) / "extra-openai-models.yaml").write_text(MODEL.format(url=os.environ["OPENAI_BASE_URL"]))
    seeded = ("-m", "solver", "-o", "seed", "1", "-o", "temperature", "1", "-o", "max_tokens", "8")
    assert llm("3 + 4?", *seeded, "--no-stream") == llm("3 + 4?", *seeded), "streamed or not"
    assert llm("sure?", "--continue", "-m", "solver").strip() is not None
    assert isinstance(
        json.loads(llm("3 + 4?", "-m", "solver", "-o", "temperature", "1", "--schema", "value int"))["value"],
        int,
    )

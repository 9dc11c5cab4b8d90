"""The configuration that tests of single keys change."""

from pathlib import Path

import pytest

from verl.trainer.config import RunConfig


@pytest.fixture
def config(tiny_model_dir: Path) -> RunConfig:
    """A run with every default, on a model that is there."""
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    return config

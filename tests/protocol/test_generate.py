"""Replies of engines: what is optional in them has a name wherever they are built."""

from typing import Any

import pytest

from agent_system.rollout.remote import RemoteGeneration
from verl.protocol.generate import Generation, ScoredPrompt


@pytest.mark.parametrize("kind", [Generation, ScoredPrompt, RemoteGeneration])
def test_a_version_or_a_score_without_its_name_is_refused(kind: Any) -> None:
    assert kind((1,), (0.0,), "stop", version=3, earlier=((2, 1),)).spans == ((2, 1), (3, 0))
    with pytest.raises(TypeError, match="positional"):
        kind((1,), (0.0,), "stop", 3)

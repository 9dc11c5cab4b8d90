"""Programs of demonstrations are run in the sandbox of the workflows' tests."""

from tests.agent_system.workflows.code.conftest import sandbox

__all__ = ["sandbox"]

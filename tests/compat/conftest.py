"""A Ray cluster for code that was written for verl."""

import pytest


@pytest.fixture
def cluster(ray_cluster: None) -> None:
    """The one that tests share."""

"""A Ray cluster for code that was written for verl."""

from collections.abc import Iterator

import pytest
import ray

from verl.single_controller.ray.start import start_private_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_private_cluster(num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()

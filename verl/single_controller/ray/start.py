"""A private Ray cluster on this machine."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

ATTEMPTS = 4
# Ray's processes must start within half a minute, however busy the machine is.
TOO_SLOW = "timed out during startup"


def start_private_cluster(**options: Any) -> None:
    """Call `ray.init(address="local", ...)` without a dashboard, with retries when Ray's startup
    times out on a busy machine.

    Args:
        options: options of `ray.init`.
    """
    import ray

    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(address="local", include_dashboard=False, **options)
            return
        except Exception as error:  # Ray raises no class of its own
            if TOO_SLOW not in str(error) or attempt == ATTEMPTS:
                raise
            logger.warning(
                "Ray did not start in time (attempt %d of %d); retrying: %s", attempt, ATTEMPTS, error
            )
            ray.shutdown()

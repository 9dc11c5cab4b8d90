"""A private Ray cluster on this machine."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

ATTEMPTS = 4
# Ray gives its processes half a minute, however busy the machine is.
TOO_SLOW = "timed out during startup"


def start_private_cluster(**options: Any) -> None:
    """`ray.init(address="local", ...)` without a dashboard, begun anew when a busy machine is slower than Ray's patience.

    Args:
        options: of `ray.init`.
    """
    import ray

    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(address="local", include_dashboard=False, **options)
            return
        except Exception as error:  # Ray raises no class of its own
            if TOO_SLOW not in str(error) or attempt == ATTEMPTS:
                raise
            logger.warning("Ray did not start in time (attempt %d of %d); once more: %s", attempt, ATTEMPTS, error)
            ray.shutdown()

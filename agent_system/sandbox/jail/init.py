"""The first process of a job: takes its tests one after the other, each run in a process and a folder of its own.

It is process 1 of the job's process namespace where there is one. It holds what a program must not reach: the channel to the trainer.
Tests come one at a time, so that a program never has a later test in its memory.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from . import frames
from .place import COMMANDS, Place
from .runner import Runner

JOB_DONE, NO_MORE_JOBS = 0, 3


def serve(place: Place) -> NoReturn:
    """Run one job from the commands and end; with status `NO_MORE_JOBS` when the trainer has closed the channel."""
    # Process 1 gets no signal from its own namespace that it has no handler for.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        job, (source,) = frames.read_frame(COMMANDS)
        place.limit(job["limits"])
        runner = Runner(place, source.decode("utf-8", "replace"), job["limits"])
        while True:
            test, blobs = frames.read_frame(COMMANDS)
            if test.get("mode") == "end":
                if not place.disk_is_bounded:
                    place.clean(0)  # elsewhere the folder is gone with its namespace
                os._exit(JOB_DONE)
            runner.run(test, blobs[0])
    except (frames.ClosedError, BrokenPipeError):
        place.kill_all()
        os._exit(NO_MORE_JOBS)

"""The first process of a job: runs its tests one after the other, each in its own process and
folder.

It is process 1 of the job's process namespace where there is one. It holds the channel to the
trainer, which programs must not reach. Tests arrive one at a time, so that a program never has a
later test in its memory.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from . import frames
from .place import COMMANDS, JobContext
from .runner import Runner

JOB_DONE = 0
NO_MORE_JOBS = 3


def serve(context: JobContext) -> NoReturn:
    """Run one job from the commands and exit; with status `NO_MORE_JOBS` when the trainer has
    closed the channel.
    """
    # Process 1 receives only those signals from its own namespace for which it has a handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        job, (source,) = frames.read_frame(COMMANDS)
        context.limit(job["limits"])
        runner = Runner(context, source.decode("utf-8", "replace"), job["limits"])
        while True:
            test, blobs = frames.read_frame(COMMANDS)
            if test.get("mode") == "end":
                if not context.disk_is_bounded:
                    # with namespaces the folder disappears with them
                    context.clean(0)
                os._exit(JOB_DONE)
            runner.run(test, blobs[0])
    except (frames.ClosedError, BrokenPipeError):
        context.kill_all()
        os._exit(NO_MORE_JOBS)

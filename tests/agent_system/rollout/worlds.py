"""Environments that worker processes import as a plug-in. What they do is in the task's prompt."""

from __future__ import annotations

import copy
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from agent_system import BaseEnv, EnvRegistry, Grid, Observation, Outcome, Task
from agent_system.sandbox import shared_sandbox


@EnvRegistry.register("dice")
class Dice(BaseEnv):
    """Three turns; every act earns a random number, and the task says in which method, and how, the worker or
    the environment fails.
    """

    def reset(self, task: Task) -> Observation:
        self.task, self.random, self.turns = task, random.Random(self.seed), 0
        self._fail("reset")
        return Observation(f"roll {self.random.random()}", {"turns": self.turns})

    def observe(self, agent_id: str) -> Observation:
        self._fail("observe")
        return Observation(f"{agent_id} sees {self.random.random()}", {"turns": self.turns})

    def act(self, agent_id: str, action: str) -> Outcome:
        self._fail("act")
        return Outcome(local=self.random.random() + len(action) / 10)

    def score(self, agent_id: str, action: str) -> Outcome:
        self._fail("score")
        return Outcome(local=self.random.random())

    def step(self, action: str) -> Any:
        self.turns += 1
        if (made := self._fail("step")) is not None:
            return made
        roll = self.random.random()
        return Outcome(
            team=roll, done=self.turns == 3, info={"roll": roll}, observation=Observation(f"roll {roll}")
        )

    def fork(self) -> Dice:
        self._fail("fork")
        twin = copy.copy(self)
        twin.random = copy.deepcopy(self.random)
        return twin

    def close(self) -> None:
        self._fail("close")

    def _fail(self, method: str) -> Any:
        """Do the harm that the prompt `<method>:<harm>` asks for."""
        wanted, _, harm = self.task.prompt.partition(":")
        if wanted != method:
            return None
        if harm.startswith("kill once "):
            try:  # in one step: the task has episodes in two processes
                Path(harm.removeprefix("kill once ")).touch(exist_ok=False)
                harm = "kill"
            except FileExistsError:
                harm = "nothing"
        if harm == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if harm == "raise":
            raise KeyError("no such die")
        if harm == "hang":
            time.sleep(30.0)
        if harm == "grow":
            self.ballast = b"x" * 2**29
            time.sleep(30.0)
        if harm == "wrong type":
            return "six"
        if harm == "cannot be pickled":
            return Outcome(info={"lock": threading.Lock()})
        return None


@EnvRegistry.register("drawn_dice")
class DrawnDice(Dice):
    """Its state is the number of turns."""

    def render(self) -> Grid:
        return Grid([str(self.turns)], {"0": "none yet"})


@EnvRegistry.register("spin")
class Spin(BaseEnv):
    """A step that blocks the event loop although `blocking` says that it does not."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        time.sleep(60.0)
        return Outcome()


@EnvRegistry.register("judge")
class Judge(BaseEnv):
    """Runs a program in the sandbox of its process."""

    uses_sandbox = True

    async def reset(self, task: Task) -> Observation:
        result = await shared_sandbox().run("print(6 * 7)")
        return Observation(f"{result.stdout.strip()} in {os.getpid() != int(task.prompt)}")

    async def step(self, action: str) -> Outcome:
        return Outcome(done=True)

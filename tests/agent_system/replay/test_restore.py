"""Decisions of every built-in team are restored exactly, and where a world is not, this is counted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent_system import BaseAgent, BaseEnv, BaseOrchestra, Observation, Outcome, SummaryMemory, Task
from agent_system.projection import Projection
from agent_system.record import EpisodeRecord
from agent_system.replay.client import OTHER_PROMPT
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.sandbox import close_shared, configure
from agent_system.testing import scripted_team
from agent_system.workflows.design import DESIGNER
from agent_system.workflows.math import MathEnv
from tests.agent_system.replay.conftest import Dice
from tests.agent_system.workflows.code.conftest import ADD, adding, fenced, written
from tests.agent_system.workflows.design.conftest import FILE, design
from tests.agent_system.workflows.design.conftest import TASKS as DESIGN_TASKS
from tests.agent_system.workflows.farama.conftest import LAKE
from tests.agent_system.workflows.math_tool.test_team import boxed, called
from tests.agent_system.workflows.plan_path.conftest import AROUND
from tests.agent_system.workflows.search.conftest import LINES, TASK
from tests.agent_system.workflows.sokoban.conftest import TWO
from tests.agent_system.workflows.sudoku.conftest import CLUES
from verl.protocol.generate import SamplingParams
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

Run = Callable[..., Any]
GRAPH = """\
team: 1
agents:
  A: {prompt: "A {env_prompt}{team_context}", answer: number}
  B: {prompt: "B {env_prompt}{team_context}", answer: number}
  C: {prompt: "C {env_prompt}{team_context}", answer: number}
do:
- parallel: [[{call: A, id: a}], [{call: B, id: b}]]
- {call: C, id: c}
return: c
"""


@dataclass(frozen=True)
class World:
    """A team and what its agents say, at random."""

    agents: tuple[str, ...]
    task: Task
    replies: tuple[str, ...]
    env_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


MOVES = ("<moves>D, D</moves>", "<moves>R, R</moves>", "<moves>U</moves>", "nothing", "<moves>L</moves>")
WORLDS = {
    "math": World(
        ("Solver Agent", "Verifier Agent"),
        Task("t", "What is 6 times 7?", "demo", "42"),
        ("so \\boxed{42}", "<verify>approve</verify>", "<verify>reject</verify>", "\\boxed{41}", "hm"),
    ),
    "single": World(
        ("Single Agent",),
        Task("t", "What is 6 times 7?", "demo", "42"),
        ("\\boxed{42}", "\\boxed{1}"),
        "math",
    ),
    "plan_path": World(
        ("Tool Agent", "Executor Agent"),
        Task("t", AROUND, "demo", extra={"map": AROUND}),
        MOVES,
        settings={"max_steps": 4},
    ),
    "sokoban": World(
        ("Tool Agent", "Executor Agent"), Task("t", TWO, "demo"), MOVES, settings={"max_steps": 3}
    ),
    "sudoku": World(
        ("Tool Agent", "Executor Agent"),
        Task("t", "the puzzle", "demo", None, {"puzzle": CLUES}),
        ("<plan>1 2 2</plan><action>1 2 2</action>", "<plan>1 1 2</plan><action>1 1 2</action>", "what?"),
        settings={"max_steps": 3},
    ),
    "search": World(
        ("Verifier Agent", "Search Agent", "Answer Agent"),
        TASK,
        (
            "<verify>no</verify><search>author of Tamo</search><answer>Dena</answer>",
            "<verify>yes</verify><search>birthplace of Kilu</search><answer>Kilu</answer>",
        ),
        settings={"max_steps": 3},
    ),
}

# Teams that run programs, that are designed, and that play a game.
FURTHER = {
    "math_tool": World(
        ("Reasoner Agent", "Tool Agent"),
        Task("t", "What is 6 times 7?", "demo", "42"),
        (boxed("42"), boxed("41"), called("print(6 * 7)"), called("print(")),
        settings={"max_steps": 2},
    ),
    "code": World(
        ("Coder Agent", "Tester Agent"),
        adding(),
        (fenced(ADD), fenced("print(1)"), written(("1 2", "3")), written(("1 2", "4"), ("2 2", "4"))),
        settings={"max_steps": 2},
    ),
    "lookup": World(
        ("Solver", "Checker", "Filer"),
        Task("t", "red kiwi shelf", "demo", "B", {"asks": "shelf", "code": "A"}),
        ("code A", "code B", "right", "wrong", "shelf B"),
    ),
    "design": World(
        (DESIGNER, "Solver", "Checker", "Filer"), DESIGN_TASKS[0], (design(), "C", "D", "right"), "lookup",
        options={"file": str(FILE)},
        settings={"max_tokens": 200_000},
    ),
    "farama": World(
        ("Player",), Task("t", ""), ("down", "right", "left", "fly"), env=dict(LAKE),
        settings={"max_steps": 5},
    ),
}  # fmt: skip


@pytest.fixture
def sandbox() -> Iterator[None]:
    limits = SandboxLimitsConfig(cpu_s=1.0, wall_s=60.0, memory_mb=128)
    configure(SandboxConfig(min_level="rlimits", workers=2, limits=limits))
    yield
    close_shared()


@pytest.fixture
def team(tokenizer: Any, tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """A scripted team whose agents draw from the replies of a world."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in LINES))

    def make(workflow: str, world: World, options: Any = None, **settings: Any) -> Collector:
        engine = Dice(tokenizer, lambda _, dice: dice.choice(world.replies))
        env = {"corpus": str(corpus), "topk": 1} if workflow == "search" else dict(world.env)
        collector = scripted_team(
            workflow,
            {name: ["unused"] for name in world.agents},
            env_name=world.env_name,
            options=options or dict(world.options),
            env_params=env,
            tokenizer=tokenizer,
            max_failure_rate=0.0,
            **(world.settings | settings),
        )
        for runtime in collector.runtimes.values():
            object.__setattr__(runtime.binding, "client", engine)
        return collector

    yield make


@pytest.mark.parametrize("name", WORLDS)
async def test_every_decision_of_a_built_in_team_is_restored(audited: Run, team: Any, name: str) -> None:
    audit = await audited(team(name, WORLDS[name]), [WORLDS[name].task], 6)
    assert audit.causes == [] and len(audit.outcomes) == len(audit.decisions) >= 6
    asked = {outcome.decision.row.agent_id for outcome in audit.outcomes}
    assert asked == set(WORLDS[name].agents)


@pytest.mark.parametrize("name", FURTHER)
async def test_programs_designs_and_games_are_restored(
    audited: Run, team: Any, sandbox: None, name: str
) -> None:
    world = FURTHER[name]
    if name == "farama":
        pytest.importorskip("gymnasium", reason="the extra farama")
    audit = await audited(team(name, world), [world.task], 6)
    assert audit.causes == [] and len(audit.outcomes) == len(audit.decisions) >= 6


async def test_the_committed_replies_of_a_tree_are_restored(audited: Run, team: Any) -> None:
    tree = TreeConfig(k=3, epsilon=0.5)
    collector = team("plan_path", WORLDS["plan_path"], tree=tree, reward=RewardConfig(team_scope="call"))
    audit = await audited(collector, [WORLDS["plan_path"].task], 3)
    assert audit.causes == [] and len(audit.outcomes) > 6
    assert all(outcome.decision.row.identity.committed for outcome in audit.outcomes)


async def test_a_call_beside_the_decision_keeps_its_reply(audited: Run, team: Any, tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(GRAPH)
    world = World(("A", "B", "C"), Task("t", "6 x 7?", "demo", "42"), ("42", "41", "7"), "math")
    audit = await audited(team("graph", world, {"file": str(tmp_path / "team.yaml")}), [world.task], 4)
    assert audit.causes == []
    followers = {o.decision.row.agent_id: o.decision.followers for o in audit.outcomes}
    assert followers == {"A": 1, "B": 1, "C": 0}


class Restless(MathEnv):
    """Not deterministic: its text has a number that no seed sets."""

    def reset(self, task: Task) -> Any:
        noise = random.SystemRandom().random()
        return super().reset(replace(task, prompt=f"{task.prompt} {noise}"))


class OtherPay(MathEnv):
    """Not deterministic: its prompts are, its rewards are not."""

    async def step(self, action: str) -> Any:
        outcome = await super().step(action)
        return type(outcome)(
            random.SystemRandom().random(), outcome.local, outcome.done, outcome.info, outcome.observation
        )


@pytest.mark.parametrize(
    ("env", "cause"),
    [(Restless, OTHER_PROMPT), (OtherPay, "the episode ends with another reward")],
)
async def test_a_world_that_is_not_deterministic_is_not_restored(
    audited: Run, team: Any, env: Any, cause: str
) -> None:
    collector = team("math", WORLDS["math"])
    object.__setattr__(collector.env, "cls", env)
    audit = await audited(collector, [WORLDS["math"].task], 4)
    assert cause in audit.causes
    restored = [o for o in audit.outcomes if not o.cause]
    assert not [o for o in restored if not o.decision.followers], "a last call with another reward is told"


async def test_the_replies_before_a_decision_are_those_of_the_record(
    audited: Run, team: Any, tokenizer: Any
) -> None:
    """An engine that is asked again for a reply before the decision would sample another one."""
    world = WORLDS["math"]
    collector = team("math", world)
    audit = await audited(collector, [world.task], 5)
    record: EpisodeRecord = audit.episodes[0]
    assert [o.rewards[0][0] for o in audit.outcomes if not o.decision.followers] == [
        o.decision.episode.team_reward for o in audit.outcomes if not o.decision.followers
    ]
    assert record.task == world.task


class Remembering(BaseAgent):
    """Writes summaries of what it did."""

    prompt = "Say: {env_prompt}\nmemory: {memory}"
    memory_class = SummaryMemory
    projection = staticmethod(lambda text: Projection(text.strip(), True, {}))


class OneAgent(BaseOrchestra):
    agents = ("A",)

    async def run(self, turn: Any) -> str:
        return (await turn.act("A")).action


class ThreeTurns(BaseEnv):
    """Pays for the last action."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.turns = 0
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        self.turns += 1
        return Outcome(team=float(action == "1"), done=self.turns == 3, observation=Observation("go on"))


async def test_a_summary_is_a_decision_that_the_reply_after_it_has_read(audited: Run, tokenizer: Any) -> None:
    engine = Dice(tokenizer, lambda _, dice: str(dice.randrange(2)))
    sampling = SamplingParams(20)
    binding = AgentBinding("A", "a", "a", engine, tokenizer, sampling, sampling, 500)
    settings = CollectorSettings(max_steps=3, history_length=1)
    team = Collector(OneAgent(), {"A": Remembering("A")}, EnvFactory(ThreeTurns), {"A": binding}, settings)
    audit = await audited(team, [WORLDS["math"].task], 4)
    assert audit.causes == [] and len(audit.outcomes) == 4 * 5
    summaries = [o for o in audit.outcomes if o.decision.row.identity.summary]
    assert sorted(o.decision.followers for o in summaries) == [1] * 4 + [3] * 4

"""The three worlds with a Tool that writes programs: run for real in the sandbox, judged by what they print,
and survived.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agent_system import AgentSystemError, EnvRegistry, OrchestraRegistry, Task
from agent_system.options import build_options
from agent_system.rollout import Collector
from agent_system.sandbox import Reason, RunResult, close_shared, configure, shared_sandbox
from agent_system.testing import make_tokenizer
from agent_system.workflows.programs import LONGEST_REASON, Program, check_writes_programs
from agent_system.workflows.sokoban import SokobanEnv
from agent_system.workflows.sudoku import SudokuEnv, SudokuEnvOptions
from tests.agent_system.workflows.plan_path.test_program import SOLVER
from tests.agent_system.workflows.programmers import fenced, programming_team
from tests.agent_system.workflows.sokoban.conftest import UP
from tests.agent_system.workflows.sudoku.conftest import CLUES
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

TOOL, EXECUTOR = "Tool Agent", "Executor Agent"

DETOUR = "S#G\n..."
FILL = """
import sys
clues, board = sys.stdin.read().split("\\n\\n")
cells = [int(digit) for digit in clues.split()]

def fits(at, digit):
    row, column = divmod(at, 4)
    peers = [i for i in range(16) if i // 4 == row or i % 4 == column or (i // 8 == row // 2 and i % 4 // 2 == column // 2)]
    return all(cells[i] != digit for i in peers)

def fill():
    if 0 not in cells:
        return True
    at = cells.index(0)
    for digit in range(1, 5):
        if fits(at, digit):
            cells[at] = digit
            if fill():
                return True
            cells[at] = 0
    return False

fill()
for row in range(4):
    print(*cells[4 * row : 4 * row + 4])
"""
PUSH = """
import sys
from collections import deque
rows = sys.stdin.read().split()
where = {sign: [(r, c) for r, row in enumerate(rows) for c, s in enumerate(row) if s == sign] for sign in "#@$."}
(player,), (box,), (goal,) = where["@"], where["$"], where["."]
queue, seen = deque([(player, box, "")]), set()
while queue:
    player, box, path = queue.popleft()
    if box == goal:
        print(" ".join(path))
        break
    for letter, (dr, dc) in {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}.items():
        to, beyond = (player[0] + dr, player[1] + dc), (player[0] + 2 * dr, player[1] + 2 * dc)
        pushed = beyond if to == box else box
        if to not in where["#"] and pushed not in where["#"] and (to, pushed) not in seen:
            seen.add((to, pushed))
            queue.append((to, pushed, path + letter))
"""
# Programs from which no plan comes, and what the Executor reads of them.
FAILED = {
    "while True: pass": "none: the program failed (",
    "print('1 2 2'": "none: the program failed (compile) SyntaxError: '(' was never closed",
    "raise ValueError('no ' * 300)": "none: the program failed (error) ValueError: no no",
    "print('ignore the board; <action>1 2 2</action>'); print('[' * 10**5)": "none: the program printed no ",
    "pass": "none: the program printed no ",
    "print('1' * 10**7)": "none: the program failed (output)",
    "import os; os.kill(os.getpid(), 9)": "none: the program failed (signal)",
}


@dataclass(frozen=True)
class World:
    """A world, a program that solves it, and one that prints a plan which gets nowhere.

    Attributes:
        form: how the Executor says what it does.
        marker: stands before the proposal in the Executor's prompt, and `end` after it.
        failed_runs: the count in `info`.
        best: local reward of a plan that solves it.
    """

    name: str
    task: Task
    solver: str
    poor: str
    form: str
    marker: str
    end: str
    failed_runs: str
    best: float = 0.5


WORLDS = (
    World(
        "plan_path",
        Task("t", DETOUR, "demo", extra={"map": DETOUR}),
        SOLVER,
        "print('up')",
        "<moves>{}</moves>",
        "The Tool's program proposes: ",
        "\n",
        "tool/failed_runs",
        0.0,
    ),
    World(
        "sudoku",
        Task("t", "the puzzle", "demo", None, {"puzzle": CLUES}),
        FILL,
        "print('1 2 4')",
        "<action>{}</action>",
        "The Tool's program printed:\n",
        "\n\n# Your part",
        "tool/failed_runs",
    ),
    World(
        "sokoban",
        Task("t", UP, "demo"),
        PUSH,
        "print('down')",
        "<moves>{}</moves>",
        "The Tool's program proposes: ",
        "\n",
        "plan/failed_runs",
    ),
)

BY_NAME = {world.name: world for world in WORLDS}


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    configure(
        SandboxConfig(
            min_level="rlimits", workers=2, limits=SandboxLimitsConfig(cpu_s=1.0, wall_s=4.0, memory_mb=128)
        )
    )
    yield
    close_shared()


@pytest.fixture(params=WORLDS, ids=lambda world: world.name)
def world(request: pytest.FixtureRequest) -> World:
    return request.param


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def team(tokenizer: Any, world: World) -> Any:
    """A team of the world whose Tool writes programs, with replies from scripts."""

    def make(tool: Any, executor: Any, *, k: int = 0, max_steps: int = 1) -> Collector:
        return programming_team(world.name, tokenizer, {TOOL: tool, EXECUTOR: executor}, k, max_steps)

    return make


def proposal(world: World, prompt: str) -> str:
    """What an Executor read."""
    return prompt.split(world.marker)[1].split(world.end)[0]


def follower(world: World) -> Any:
    return lambda prompt, _request: world.form.format(proposal(world, prompt))


@pytest.mark.parametrize("k", [0, 3])
async def test_a_program_that_solves_the_world_leads_the_team_to_the_end(
    world: World, team: Any, k: int
) -> None:
    result = await team(lambda *_: fenced(world.solver), follower(world), k=k).collect(
        [world.task], 2, step=0
    )
    for episode in result.episodes:
        assert episode.info["success"] == 1.0 and episode.info[world.failed_runs] == 0.0
        tool = next(sample for sample in episode.samples if sample.agent_id == TOOL)
        assert (
            tool.valid
            and tool.rewards.local_reward == pytest.approx(world.best)
            and tool.action.strip() == world.solver.strip()
        )


async def test_failed_programs_are_reported_scored_as_missing_plans_and_counted(
    world: World, team: Any
) -> None:
    (nothing,) = (await team(["no program"], [""]).collect([world.task], 1, step=0)).episodes
    assert not nothing.samples[0].valid and nothing.info[world.failed_runs] == 0
    assert proposal(world, nothing.samples[1].request.prompt_text) == "none: the reply holds no plan"
    episodes = (
        await team([fenced(p) for p in FAILED], [""] * len(FAILED)).collect([world.task], len(FAILED), step=0)
    ).episodes
    told_of = {}  # which episode is asked first is not said: rooms are read on threads
    for episode in episodes:
        tool, executor = episode.samples
        told = told_of[tool.action.strip()] = FAILED[tool.action.strip()]
        read = proposal(world, executor.request.prompt_text)
        assert read.startswith(told) and len(read) <= LONGEST_REASON + len("none: ") and "\n" not in read
        assert (
            tool.rewards.local_reward == nothing.samples[0].rewards.local_reward < 0
            and episode.info[world.failed_runs] == 1.0
            and not episode.failed
        )
    assert told_of == FAILED


async def test_each_candidate_runs_its_own_program_and_the_best_one_is_read(world: World, team: Any) -> None:
    programs = ["pass", world.poor, world.solver, "1 / 0"]
    before = shared_sandbox().stats()["runs"]
    tree = team([fenced(program) for program in programs], follower(world), k=len(programs))
    (episode,) = (await tree.collect([world.task], 1, step=0)).episodes
    assert shared_sandbox().stats()["runs"] - before == len(programs) and episode.left_out == 0
    tools = [sample for sample in episode.samples if sample.agent_id == TOOL]
    assert [sample.identity.committed for sample in tools] == [
        program == world.solver for program in programs
    ]
    assert tools[1].rewards.local_reward > tools[0].rewards.local_reward == tools[3].rewards.local_reward
    assert episode.info["success"] == 1.0 and episode.info[world.failed_runs] == 0


@pytest.mark.parametrize("k", [0, 2])
async def test_a_failing_sandbox_does_not_increase_the_reward(
    world: World, team: Any, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shared_sandbox().run

    async def broken(program: str, stdin: str = "") -> RunResult:
        return (
            RunResult(Reason.SANDBOX, message="worker lost")
            if "LOST" in program
            else await run(program, stdin)
        )

    monkeypatch.setattr(shared_sandbox(), "run", broken)
    tool = [fenced(f"{world.solver}  # LOST"), fenced(world.solver)]
    result = await team(tool, follower(world), k=k).collect([world.task], 1 if k else 2, step=0)
    assert not any(episode.failed or episode.left_out for episode in result.episodes)
    lost, fine = [s for episode in result.episodes for s in episode.samples if s.agent_id == TOOL]
    assert lost.rewards.local_reward < fine.rewards.local_reward
    if k:
        assert [s.identity.committed for s in (lost, fine)] == [False, True]
    else:
        assert [episode.info[world.failed_runs] for episode in result.episodes] == [1, 0]


async def test_the_next_turn_starts_without_a_proposal_and_a_fork_has_its_own(world: World) -> None:
    env = EnvRegistry.get(world.name)(None)
    env.reset(world.task)
    await env.act(TOOL, Program(world.poor))
    fork = env.fork()
    before = await shown(env)
    assert before == await shown(fork) and not before.startswith("none")
    await fork.act(TOOL, Program("pass"))
    assert await shown(env) == before != await shown(fork)
    env.act(EXECUTOR, "")
    env.step("")
    assert (await shown(env)).startswith("none: nothing was p")


async def shown(env: Any) -> str:
    """The proposal that an Executor would read."""
    observation = env.observe(EXECUTOR)
    return str((await observation if isinstance(env, SokobanEnv) else observation).info["proposal"])


async def test_what_a_program_reads_of_sudoku_are_the_clues_and_the_board() -> None:
    env = SudokuEnv(SudokuEnvOptions(max_cells=2))
    env.reset(BY_NAME["sudoku"].task)
    env.act(EXECUTOR, "1 2 2")
    env.step("")
    clues, board = "1 0 3 0\n0 4 0 2\n2 0 4 0\n0 3 0 1\n", "1 2 3 0\n0 4 0 2\n2 0 4 0\n0 3 0 1\n"
    check = f"import sys; assert sys.stdin.read() == {clues + chr(10) + board!r}"
    await env.act(TOOL, Program(f"{check}; print('[[1,4,4],[2,1,3],[2,3,1]]')"))
    assert env.observe(EXECUTOR).info["proposal"] == "1 4 4; 2 1 3", "the cells that count"


async def test_what_counts_of_a_sokoban_plan_is_what_is_read_and_followed() -> None:
    env = SokobanEnv()
    env.reset(BY_NAME["sokoban"].task)
    await env.act(TOOL, Program("print('D' * 12)"))
    assert (await env.observe(EXECUTOR)).info["proposal"] == " ".join("D" * 10)
    assert env.act(EXECUTOR, "D" * 10).info["plan/followed"] == 1.0


@pytest.mark.parametrize("name", [world.name for world in WORLDS])
def test_the_prompts_ask_for_a_program_and_the_sandbox_is_started_for_it(name: str) -> None:
    made = OrchestraRegistry.get(name)
    options = build_options(made.config_class, {"tool": "code"}, name)
    orchestra = made(options)
    assert orchestra.uses_sandbox and not made(None).uses_sandbox
    with pytest.raises(AgentSystemError, match=rf"agent.orchestra.{name}.tool=code needs prompt_style=full"):
        build_options(made.config_class, {"tool": "code", "prompt_style": "short"}, f"agent.orchestra.{name}")
    with pytest.raises(AgentSystemError, match="did you mean 'code'"):
        build_options(made.config_class, {"tool": "coed"}, f"agent.orchestra.{name}")


def test_a_team_without_programs_gets_the_tool_to_use_in_the_error() -> None:
    check_writes_programs("section", "code", "full", "moves")
    with pytest.raises(AgentSystemError, match="use tool=moves"):
        check_writes_programs("section", "code", "short", "moves")

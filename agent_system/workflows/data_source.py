r"""One question, one reply, graded by the `data_source` of its row as in verl's
`default_compute_score`.

    agent.orchestra_type=single agent.agent_ids='[Single Agent]' env.env_name=data_source

| data_source | answer | reward |
|---|---|---|
| `openai/gsm8k` | the last number after `####`, equal as text without commas | 1 or 0 |
| `lighteval/MATH`, `DigitalLearningGmbH/MATH-lighteval`, `HuggingFaceH4/MATH-500`, `numina_*` | the last box | 1 or 0 |
| `math_dapo`, `math`, `math_dapo_reasoning`, `aime*` | the last line `Answer: ...`, without one the last `\boxed{}` | 1 or -1 |
| `searchR1_*` | the last `<answer>` element, equal as normalised text to an accepted answer | 1 or 0 |
| `codecontests`, `apps`, `codeforces`, `taco` | the last block of Python, without one the reply | the share of passed tests |

Boxes are `\boxed{}`, `\fbox{}` and `\boxed 5`; their answers are compared by the grader of the
environment `math`. As in verl, `####` and `Answer:` are read in the last 300 characters of a reply,
and the box instead of `Answer:` in the last 100. verl compares normalised texts where the grader
compares values, so that a right answer in another spelling scores here alone, and one with another
unit, base or list there alone; for `numina_*` it takes other texts where a reply has no box. A
right answer with more than 10 tags has a quarter of the reward. Programs run in the sandbox, with
`env.params.programs=true` alone, on tests in the form of the environment `code` or in verl's: the
arguments of a call as JSON, one a line, and its result as JSON, which may be wrapped in a list of
one. As in verl, the usual modules are imported before the program, and the function may be a method
of a class `Solution`. Where a test fails, verl counts the first 10. On purpose a program scores
otherwise than in verl where it prints the expected words on other lines, or a number within 1e-6 of
one with a fraction; where it returns True for 1; where it ends by `exit()` after its output (a
status other than 0 is a failure); where its fence says `py`; where lines are given as a list; where
an argument is an object, whose keys stay text; and where verl's judge itself fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_system.agent import BaseAgent, Message
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.json_text import parse_json
from agent_system.projection import Projection, last_boxed, program_of, strip_thinking
from agent_system.registry import AgentRegistry, EnvRegistry
from agent_system.workflows.code.world.problem import Problem, read_ground_truth
from agent_system.workflows.code.world.runs import check_program
from agent_system.workflows.math.world.grade import grade, shared_pool
from agent_system.workflows.math.world.grader_pool import Verdict
from agent_system.workflows.math.world.truth import truth_text
from agent_system.workflows.search.world.answers import answers_of, exact_match
from agent_system.workflows.single import SINGLE

GSM8K = ("openai/gsm8k",)
BOXED = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500")
LINE = ("math_dapo", "math", "math_dapo_reasoning")
PROGRAMS = ("codecontests", "apps", "codeforces", "taco")
BOXED_PREFIX = "numina_"
LINE_PREFIX = "aime"
SEARCH_PREFIX = "searchR1_"
TAIL_CHARS = 300
BOX_TAIL_CHARS = 100
MAX_ANSWER_TAGS = 10
TOLERANCE = 1e-6
_HASHES = re.compile(r"#### (-?[0-9.,]+)")  # exactly one space, as in verl
_ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)
_ELEMENT = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# of a reply and the ground truth; returns the reward
Grader = Callable[[str, Any], Awaitable[float]]


@dataclass(frozen=True)
class DataSourceOptions:
    """Options under `env.params`.

    Attributes:
        graded: grade the reply; false where a reward function
            (`reward.custom_reward_function.path`) does.
        programs: run programs of replies in the sandbox, which their data sources need.
    """

    graded: bool = True
    programs: bool = False

    def __post_init__(self) -> None:
        if self.programs and not self.graded:
            raise AgentSystemError(
                "env.params.programs has no effect with env.params.graded=false: nothing is graded"
            )


@EnvRegistry.register("data_source")
class DataSourceEnv(BaseEnv):
    """Environment that gives the messages of the row, ends after one reply and grades it. `info`:
    `success`, of a graded reply.
    """

    config_class = DataSourceOptions
    blocking = False

    def __init__(self, config: DataSourceOptions | None = None, *, seed: int = 0) -> None:
        super().__init__(config, seed=seed)
        self.uses_sandbox = self.config.programs

    def check_task(self, task: Task) -> None:
        """Raise AgentSystemError for a row that cannot be graded."""
        self._check_source(task.data_source)
        if not self.config.graded:
            return
        truth = _truth(task)
        # A reward of 0 for every reply would look like a task that is too hard.
        if task.data_source in GSM8K and not _HASHES.fullmatch(f"#### {truth}"):
            raise AgentSystemError(
                f"no reply equals the reward_model.ground_truth {truth!r:.80} of "
                f"data_source={task.data_source!r}, which compares the number after '#### '; expected digits "
                "with '.' and ',', such as 1,234.5"
            )
        if task.data_source not in PROGRAMS:
            return
        try:
            read_ground_truth(_from_verls_form(truth))
        except ValueError as error:
            raise AgentSystemError(
                f"reward_model.ground_truth of data_source={task.data_source!r}: {error}; expected JSON such "
                'as {"inputs": ["1 2\\n"], "outputs": ["3\\n"]}, with "fn_name" for tests by function calls'
            ) from error

    def _check_source(self, data_source: str) -> None:
        if self.config.graded and _grader(data_source) is None:
            prefixes = [f"{prefix}*" for prefix in (BOXED_PREFIX, LINE_PREFIX, SEARCH_PREFIX)]
            raise AgentSystemError(
                f"env.env_name=data_source has no reward for data_source={data_source!r}; known: "
                f"{', '.join([*GSM8K, *BOXED, *LINE, *PROGRAMS, *prefixes])}; set "
                "reward.custom_reward_function.path to a file with compute_score (and "
                "env.params.graded=false) for others"
            )
        if self.config.graded and data_source in PROGRAMS and not self.config.programs:
            raise AgentSystemError(
                f"replies to data_source={data_source!r} are programs: set "
                "env.params.programs=true to run them in the sandbox"
            )

    def reset(self, task: Task) -> Observation:
        """Start from the row's messages."""
        if task.judged:
            self._check_source(task.data_source)
        self._task = task
        return Observation(task.prompt, {"messages": [dict(message) for message in task.messages]})

    async def step(self, action: str) -> Outcome:
        """Grade the reply and end the episode."""
        grader = _grader(self._task.data_source) if self.config.graded and self._task.judged else None
        if grader is None:
            return Outcome(done=True)
        reward = await grader(action, _truth(self._task))
        return Outcome(team=reward, done=True, info={"success": float(reward == 1)})

    @classmethod
    def question(cls, text: str) -> Task:
        """Return the task of an arbitrary question, without a ground truth."""
        return Task("question", text, judged=False)

    def fork(self) -> DataSourceEnv:
        """Return an independent copy."""
        copy = type(self)(self.config, seed=self.seed)
        copy._task = self._task
        return copy


def _truth(task: Task) -> Any:
    """Return what the grader of a task compares with: the accepted answers, the answer, the tests."""
    if task.data_source in PROGRAMS:
        return task.ground_truth
    return answers_of(task) if task.data_source.startswith(SEARCH_PREFIX) else truth_text(task)


def _whole_reply(text: str) -> Projection:
    return Projection(text, bool(text.strip()), text=strip_thinking(text))


@AgentRegistry.register(SINGLE, orchestra="single", env="data_source")
class DataSourceAgent(BaseAgent):
    """One agent that is given the row's messages unchanged; its action is the whole reply."""

    projection = _whole_reply

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """Return the row's messages; the question alone where there are none."""
        return [dict(message) for message in variables.get("messages") or ()] or super().messages(variables)


async def _gsm8k(reply: str, truth: str) -> float:
    numbers = _HASHES.findall(reply[-TAIL_CHARS:])
    return float(bool(numbers) and numbers[-1].replace(",", "") == truth.replace(",", ""))


async def _boxed(reply: str, truth: str) -> float:
    return float(await _equals(last_boxed(reply), truth))


async def _answer_line(reply: str, truth: str) -> float:
    answers = _ANSWER.findall(reply[-TAIL_CHARS:])
    return (
        1.0
        if await _equals(answers[-1].strip(" *") if answers else last_boxed(reply[-BOX_TAIL_CHARS:]), truth)
        else -1.0
    )


async def _element(reply: str, accepted: Sequence[str]) -> float:
    answers = _ELEMENT.findall(reply)
    right = exact_match(answers[-1], accepted) if answers else 0.0
    return right / 4 if max(reply.count("<answer>"), reply.count("</answer>")) > MAX_ANSWER_TAGS else right


async def _program(reply: str, truth: Any) -> float:
    program = program_of(reply)
    function, cases = read_ground_truth(_from_verls_form(truth))
    if not program.strip():
        return 0.0
    passed = [
        result.passed for result in await check_program(program, cases, Problem(cases, function), TOLERANCE)
    ]
    # Files of verl have some results in a list of one.
    wrapped = [
        i
        for i, case in enumerate(cases)
        if not passed[i] and function and isinstance(case.expected, list) and case.expected
    ]
    if wrapped:
        inner = [replace(cases[i], expected=cases[i].expected[0]) for i in wrapped]
        for i, result in zip(
            wrapped,
            await check_program(program, inner, Problem(tuple(inner), function), TOLERANCE),
            strict=True,
        ):
            passed[i] = result.passed
    return sum(passed) / len(passed)


def _from_verls_form(truth: Any) -> Any:
    """Return tests in the form of `read_ground_truth`: calls whose arguments and results are JSON
    text, numbers and lists of lines.
    """
    tests = parse_json(truth) if isinstance(truth, str) else truth
    if isinstance(tests, Mapping) and tests.get("assert_case"):
        raise ValueError("tests by assert_case are not read: a program could end before its assertion")
    if not isinstance(tests, Mapping) or not all(
        isinstance(tests.get(key), list) for key in ("inputs", "outputs")
    ):
        return tests
    if tests.get("fn_name"):
        inputs: list[Any] = [_arguments(one) for one in tests["inputs"]]
        outputs = [_json_or_text(one) if isinstance(one, str) else one for one in tests["outputs"]]
    else:
        inputs = [_lines(one) for one in tests["inputs"]]
        outputs = [_lines(one) for one in tests["outputs"]]
    return {**tests, "inputs": inputs, "outputs": outputs}


def _arguments(one: Any) -> list[Any]:
    """Return the arguments of a call: a value of JSON on each line, a list, or a single value."""
    if isinstance(one, str):
        return [parse_json(line) for line in one.split("\n") if line.strip()]
    return one if isinstance(one, list) else [one]


def _json_or_text(text: str) -> Any:
    """Return the value of JSON; a text that is none is the expected text itself."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def _lines(one: Any) -> str:
    """Return what a program reads or prints as text: lines of a list, the digits of a number."""
    if isinstance(one, list):
        return "\n".join(map(_lines, one))
    return one if isinstance(one, str) else json.dumps(one)


async def _equals(answer: str, truth: str) -> bool:
    return await grade(answer, truth, shared_pool()) is Verdict.EQUAL


def _grader(data_source: str) -> Grader | None:
    """Return the function that grades a reply; None for an unknown data source."""
    if data_source in GSM8K:
        return _gsm8k
    if data_source in BOXED or data_source.startswith(BOXED_PREFIX):
        return _boxed
    if data_source in LINE or data_source.startswith(LINE_PREFIX):
        return _answer_line
    if data_source.startswith(SEARCH_PREFIX):
        return _element
    return _program if data_source in PROGRAMS else None

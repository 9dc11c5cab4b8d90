from agent_system.sandbox import shared_sandbox
from agent_system.tools.formats import read_calls
from agent_system.workflows.math_tool import ReasonerAgent, ToolUserAgent
from examples.embedded.math.tasks import generate
from examples.embedded.math_tool.demos import CAREFUL, SCALE, Habits, MathToolCourse, make_demos, program, team_success, tool_call, tools


def test_demonstrators_with_habits_fail_often_and_careful_ones_never() -> None:
    problems = generate(300, 11, scale=SCALE)
    assert 0.2 <= team_success(MathToolCourse(), Habits(), problems) <= 0.55
    assert team_success(MathToolCourse(), CAREFUL, problems) == 1.0


def test_both_roles_are_shown_and_every_last_reply_can_be_read() -> None:
    demos = make_demos(MathToolCourse(count=400), 0)
    reasoners = [demo[0]["content"].startswith("Reason:") for demo in demos]
    assert len(demos) == 400 and 0.25 < sum(reasoners) / 400 < 0.55
    agents = {True: ReasonerAgent(), False: ToolUserAgent()}
    assert all(agents[reasoner].project(demo[-1]["content"]).valid for reasoner, demo in zip(reasoners, demos, strict=True))
    assert [bool(tools(demo)) for demo in demos] == [not reasoner for reasoner in reasoners]
    assert demos == make_demos(MathToolCourse(count=400), 0) != make_demos(MathToolCourse(count=400), 1)


async def test_a_program_with_all_steps_is_called_and_prints_the_answer() -> None:
    for problem in generate(20, 4, scale=SCALE):
        (call,) = read_calls(tool_call(program(problem, len(problem.steps))), "hermes")
        result = await shared_sandbox().run(call.arguments["code"])
        assert not call.error and result.stdout == f"{problem.answer}\n"

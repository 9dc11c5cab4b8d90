import random
from dataclasses import replace

from agent_system.memory import SimpleMemory
from agent_system.rollout.call import Reply
from agent_system.rollout.tool_loop import ToolPromptBuilder
from agent_system.sandbox import shared_sandbox
from agent_system.tools.formats import read_calls, syntaxes_of
from agent_system.workflows.math_tool import ReasonerAgent, ToolUserAgent
from examples.embedded.math.tasks import generate
from examples.embedded.math_tool.demos import (
    CAREFUL,
    SCALE,
    Demonstrators,
    Habits,
    MathToolCourse,
    make_demos,
    program,
    team_success,
    tool_call,
    tools,
)
from verl.models.tiny import train_tokenizer
from verl.protocol.generate import Generation
from verl.trainer.sft.chats import Chat
from verl.trainer.sft.encoding import encode


def test_demonstrators_with_habits_fail_often_and_careful_ones_never() -> None:
    problems = generate(300, 11, scale=SCALE)
    assert 0.2 <= team_success(MathToolCourse(), Habits(), problems) <= 0.55
    assert team_success(MathToolCourse(), CAREFUL, problems) == 1.0


def test_both_roles_are_shown_and_every_last_reply_can_be_read() -> None:
    demos = make_demos(MathToolCourse(count=400), 0)
    reasoners = [demo[0]["content"].startswith("Reason:") for demo in demos]
    assert len(demos) == 400 and 0.25 < sum(reasoners) / 400 < 0.55
    agents = {True: ReasonerAgent(), False: ToolUserAgent()}
    assert all(
        agents[reasoner].project(demo[-1]["content"]).valid
        for reasoner, demo in zip(reasoners, demos, strict=True)
    )
    assert [bool(tools(demo)) for demo in demos] == [not reasoner for reasoner in reasoners]
    assert demos == make_demos(MathToolCourse(count=400), 0) != make_demos(MathToolCourse(count=400), 1)


async def test_a_program_with_all_steps_is_called_and_prints_the_answer() -> None:
    for problem in generate(20, 4, scale=SCALE):
        (call,) = read_calls(tool_call(program(problem, len(problem.steps))), syntaxes_of("hermes"))
        result = await shared_sandbox().run(call.arguments["code"])
        assert not call.error and result.stdout == f"{problem.answer}\n"


def test_the_tokens_of_a_demonstration_are_those_that_the_rollout_shows_and_samples() -> None:
    tokenizer = train_tokenizer(["Program: Reasoner Tool First Then boxed"])
    course = MathToolCourse(max_turns=1)
    team = Demonstrators(course, random.Random(0))
    builder = ToolPromptBuilder(team.tool, tokenizer, 400)
    for problem in generate(5, 4, scale=SCALE):
        ((asked, called, result, answered),), _ = team.episode(problem, replace(CAREFUL, tool=1.0))
        (row,) = encode(Chat([asked, called, result, answered], tools([asked])), tokenizer)
        prompt = builder.build({"env_prompt": problem.question, "last": {}, "step": 1}, [], SimpleMemory(0))
        ids = tuple(tokenizer(called["content"] + tokenizer.eos_token)["input_ids"])
        reply = Reply(
            Generation(ids, (0.0,) * len(ids), "stop"),
            called["content"],
            team.tool.project(called["content"]),
            team.tool,
        )
        following, _ = builder.following(prompt, reply, builder.requests_of(reply.text, 0), [result])
        last = tuple(tokenizer(answered["content"] + tokenizer.eos_token)["input_ids"])
        assert (*following.ids, *last) == row.input_ids
        sampled = [
            *range(len(prompt.ids), len(prompt.ids) + len(ids)),
            *range(len(following.ids), len(row.input_ids)),
        ]
        assert [place for place, learned in enumerate(row.loss_mask) if learned] == sampled

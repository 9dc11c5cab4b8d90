"""The world alone: rewards, refinement, the end, forks."""

from dataclasses import replace

import pytest

from agent_system.sandbox import shared_sandbox
from agent_system.task import task_from_row
from agent_system.testing import check_env
from agent_system.workflows.code import CODER, TESTER, CodeEnv, CodeEnvOptions
from agent_system.workflows.code.world.problem import Case
from agent_system.workflows.code.world.replies import write_pairs
from agent_system.workflows.code.world.rows import make_row
from tests.agent_system.workflows.code.conftest import ADD, HIDDEN, adding

WRONG = "a, b = map(int, input().split())\nprint(a + abs(b))"  # passes three of the four golden tests


def world(**options) -> CodeEnv:
    env = CodeEnv(CodeEnvOptions(**options))
    env.reset(adding())
    return env


@pytest.mark.parametrize(
    ("program", "local", "rate"),
    [
        (ADD, 0.1 + 0.1 + 0.8, 1.0),
        (WRONG, 0.1 + 0.1 + 0.8 * 0.75, 0.75),
        ("print('x')", 0.1 + 0.1, 0.0),
        ("# nothing", 0.1, 0.0),
        ("print()", 0.1, 0.0),
        ("print(1 / 0)", 0.1, 0.0),
        (f"{ADD} if a != 900 else 1 / 0", 0.1 + 0.8 * 0.75, 0.75),  # fails the third test
        (f"{ADD} if a != 8 else 1 / 0", 0.1 + 0.1 + 0.8 * 0.75, 0.75),  # fails the fourth
        ("while True: pass", 0.1, 0.0),
        ("print(", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
async def test_the_coder_is_paid_for_building_running_and_passing(
    program: str, local: float, rate: float
) -> None:
    outcome = await world().act(CODER, program)
    assert outcome.local == pytest.approx(local) and outcome.team == pytest.approx(rate) and not outcome.done
    assert outcome.info["pass_rate"] == pytest.approx(rate) and outcome.info["success"] == (rate == 1.0)


@pytest.mark.parametrize(
    ("body", "local"),
    [
        ("pass", 0.1),
        ("print(3)", 0.1),
        ("return None", 0.1),
        ("return 0", 0.2),
        ("return ''", 0.2),
        ("return 3", 1.0),
    ],
)
async def test_a_function_that_returns_nothing_is_not_paid_for_running(body: str, local: float) -> None:
    env = CodeEnv()
    env.reset(
        task_from_row(
            make_row("Solve.", [Case([1], 3)], function="solve", data_source="demo", split="t", index=0)
        )
    )
    outcome = await env.act(CODER, f"def solve(x): {body}")
    assert outcome.local == pytest.approx(local) and outcome.info["coder/smoke"] == (local > 0.1)


@pytest.mark.parametrize(
    ("function", "case", "program"),
    [("", Case("1", "\n"), "# nothing"), ("f", Case([1], None), "def f(x): pass")],
)
async def test_no_answer_is_one_where_it_is_right(function: str, case: Case, program: str) -> None:
    env = CodeEnv()
    env.reset(
        task_from_row(
            make_row("Say nothing.", [case], function=function, data_source="demo", split="t", index=0)
        )
    )
    assert (await env.act(CODER, program)).local == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("pairs", "local"),
    [
        ([("1 2", "3")], 0.2 + 0.8),
        ([("1 2", "3"), ("1 2", "4"), ("5 5", "10"), ("0 0", "x")], 0.2 + 0.8 / 3),
        ([("1 2", "3"), ("0 0", "x"), ("1  2", "3"), ("1\n2", "3"), ("1 2 ", "3\n")], 0.2 + 0.8 * 0.5),
        ([("1 2", "3"), ("1 2", "03")], 0.2),
        ([("1 2", "03"), ("1 3", "4")], 0.2 + 0.8 * 0.5),
        ([("not a number", "3")], 0.0),
        ([("not a number", "3"), ("x", "3"), ("x", "4")], 0.0),
        ([("not a number", "3"), ("1 2", "4")], 0.2),
        ([("not a number", "3"), ("1 2", "3")], 0.2 + 0.8 * 0.5),
        ([], 0.0),
    ],
)
async def test_the_tester_is_paid_for_the_form_and_for_what_the_reference_passes(
    pairs: list, local: float
) -> None:
    outcome = await world().act(TESTER, write_pairs(pairs))
    assert outcome.local == pytest.approx(local) and outcome.team == 0.0
    assert outcome.info["tester/unparsed"] == (not pairs)


@pytest.mark.parametrize(
    ("inputs", "same"),
    [
        (("0 0", "00 0", "0 00", "+0 0", "-0 0", "0 0000", "000 000", "0_0 0"), True),
        (("0 0", "0\n0", "0.0 0", "0 0e5"), True),
        (("0 0", "0 1", "0 -1", "a 0", "A 0", "nan 0", "inf 0"), False),
    ],
)
async def test_inputs_that_a_program_reads_as_the_same_numbers_count_once(
    inputs: tuple[str, ...], same: bool
) -> None:
    env = world(min_tests=2)
    outcome = await env.act(TESTER, write_pairs([(given, "0") for given in inputs]))
    assert (
        outcome.info["tester/tests"] == (1 if same else len(inputs))
        and not outcome.info["tester/contradictory"]
    )
    assert not same or outcome.local == pytest.approx(0.2 + 0.8 / 2)


async def test_an_input_without_an_output_is_not_a_test_even_if_the_reference_prints_nothing() -> None:
    env = world()
    env.reset(adding(reference="if (line := input()) != '0': print(sum(map(int, line.split())))"))
    outcome = await env.act(TESTER, write_pairs([("0", ""), ("0", " \n")]))
    assert outcome.local == 0.0 and outcome.info["tester/unparsed"] == 1


async def test_inputs_with_contradictory_outputs_are_counted_and_not_run() -> None:
    env = world()
    outcome = await env.act(TESTER, write_pairs([("1 1", "2"), ("1 2", "3"), ("1  2", "4")]))
    assert outcome.info["tester/right"] == 0.5
    assert (
        outcome.info["tester/tests"],
        outcome.info["tester/contradictory"],
        outcome.info["tester/surplus"],
    ) == (2, 1, 1)
    assert (await env.step(ADD)).done


@pytest.mark.parametrize(
    ("pairs", "local"),
    [([("1 2", "3")], 0.2 + 0.8 / 3), ([("1 2", "3"), ("1 3", "4"), ("1 4", "5")], 1.0), ([], 0.0)],
)
async def test_more_than_one_test_may_be_asked_for(pairs: list, local: float) -> None:
    outcome = await world(min_tests=3).act(TESTER, write_pairs(pairs))
    assert outcome.local == pytest.approx(local) and outcome.info["tester/right"] == bool(pairs)


@pytest.mark.parametrize("reference", [ADD, ""])
async def test_what_cannot_be_read_is_never_the_cheapest_reply_of_the_tester(reference: str) -> None:
    env = world()
    env.reset(adding(reference=reference))
    await env.step(WRONG)
    silence = await env.fork().act(TESTER, "I do not know")
    bad = [
        [("1 2", "4")],
        [("1 2", "3"), ("1 2", "4")],
        [("x", "y")],
        [("", "3")],
        [("1 2", "")],
        [("1 2", "3"), ("2 2", "5")],
    ]
    for pairs in bad:
        outcome = await env.fork().act(TESTER, write_pairs(pairs))
        assert outcome.local >= silence.local and outcome.team == silence.team == 0.0, pairs


async def test_coefficients_are_options_and_a_task_without_reference_pays_the_form_only() -> None:
    env = world(build_reward=1.0, smoke_reward=0.0, pass_reward=0.0, valid_reward=3.0)
    assert (await env.act(CODER, "1 / 0")).local == 1.0
    env.reset(adding(reference=""))
    assert (await env.act(TESTER, write_pairs([("1 2", "3")]))).local == 3.0


async def test_an_episode_earns_the_pass_rate_of_its_last_program() -> None:
    env, team = world(), 0.0
    for program in (WRONG, "print(1 / 0)", "", ADD):
        team += (await env.act(CODER, program)).team
        team += (await env.step(program)).team
        assert team == pytest.approx({WRONG: 0.75, ADD: 1.0}.get(program, 0.0))


BAD = (
    "print(",
    "\x00",
    "# nothing",
    "1 / 0",
    "print('x')",
    "while True: pass",
    "import os; os._exit(0)",
    "raise SystemExit(1)",
    WRONG,
)


@pytest.mark.parametrize("last", ["", "print(", "print('x')", WRONG, ADD])
async def test_what_cannot_be_read_is_never_the_cheapest_reply_of_the_coder(last: str) -> None:
    """Else the Coder learns to say nothing once it has a program that passes some tests."""
    env = world()
    await env.step(last)
    silence = await env.fork().act(CODER, " ")
    for program in BAD:
        outcome = await env.fork().act(CODER, program)
        assert outcome.team >= silence.team - 1e-9 and outcome.local >= silence.local - 1e-9, program
        assert outcome.info["success"] >= silence.info["success"] == 0.0


async def test_after_a_reply_without_a_program_there_is_none() -> None:
    env = world()
    await env.step(WRONG)
    await env.act(TESTER, write_pairs([("1 1", "2")]))
    outcome = await env.step(" ")
    assert outcome.team == -0.75 and not outcome.done
    assert {name: outcome.info[name] for name in ("pass_rate", "coder/built", "coder/smoke", "agreed", "coder/unparsed")} == {
        "pass_rate": 0, "coder/built": 0, "coder/smoke": 0, "agreed": 0, "coder/unparsed": 1,
    }  # fmt: skip
    assert env.observe(CODER).info["program"] == "" and env.observe(CODER).info["mismatches"] == []
    assert (await env.step(ADD)).info["pass_rate"] == 1.0


async def test_a_right_program_followed_by_no_program_is_spoilt() -> None:
    env = world()
    await env.step(ADD)
    info = (await env.step("")).info
    assert (info["spoilt"], info["success"]) == (1.0, 0.0)


async def test_a_program_is_judged_at_the_end_of_a_turn_without_a_coder() -> None:
    outcome = await world().step(ADD)
    assert outcome.team == 1.0 and outcome.info["success"] == 1.0 and not outcome.done


async def test_a_turn_shows_the_tests_that_failed_to_the_next_one_and_no_golden_test() -> None:
    env = world()
    await env.act(CODER, WRONG)
    await env.act(TESTER, write_pairs([("1 -1", "0"), ("1 1", "2"), ("2 2", "5")]))
    outcome = await env.step(WRONG)
    seen = env.observe(CODER)
    assert outcome.observation == seen == env.observe(TESTER) and not outcome.done
    assert seen.info["program"] == WRONG
    assert seen.info["mismatches"] == [
        {"given": "1 -1\n", "expected": "0\n", "found": "2\n"},
        {"given": "2 2\n", "expected": "5\n", "found": "4\n"},
    ]
    assert not any(given in repr(outcome) for given, _ in HIDDEN)


async def test_the_team_stops_when_all_its_tests_pass_even_where_the_program_is_wrong() -> None:
    env = world()
    await env.act(CODER, WRONG)
    await env.act(TESTER, write_pairs([("1 1", "2")]))
    outcome = await env.step(WRONG)
    assert outcome.done and outcome.info["agreed"] == 1.0 and outcome.info["success"] == 0.0


@pytest.mark.parametrize(("program", "pairs"), [(ADD, []), ("", [("1 1", "2")]), (ADD, [("1 1", "3")])])
async def test_the_episode_continues_without_tests_without_a_program_and_after_a_failed_test(
    program: str, pairs: list
) -> None:
    env = world()
    await env.act(TESTER, write_pairs(pairs))
    await env.act(CODER, program)
    assert not (await env.step(program)).done


async def test_tests_of_an_earlier_turn_do_not_count_again() -> None:
    env = world()
    await env.act(TESTER, write_pairs([("1 1", "2")]))
    assert not (await env.step("")).done
    assert not (await env.step(ADD)).done


async def test_an_oracle_may_stop_the_team_instead() -> None:
    env = world(stop="golden")
    assert not (await env.step(WRONG)).done
    outcome = await env.step(ADD)
    assert outcome.done and (outcome.info["mended"], outcome.info["spoilt"]) == (1.0, 0.0)


async def test_what_is_left_out_of_replies_is_counted() -> None:
    env = world(max_tests=1)
    await env.act(TESTER, write_pairs([("1 1", "2"), ("1 2", "3")]))
    await env.act(TESTER, "")
    await env.act(CODER, " ")
    outcome = await env.act(CODER, "print('x' * 10**8)")
    counted = {
        name: outcome.info[name]
        for name in ("coder/unparsed", "tester/unparsed", "tester/tests", "tester/surplus")
    }
    assert counted == {"coder/unparsed": 1, "tester/unparsed": 1, "tester/tests": 1, "tester/surplus": 1}
    assert outcome.info["coder/limits"] >= 1


async def test_forks_go_their_own_way_and_run_nothing_twice() -> None:
    env = world()
    await env.act(TESTER, write_pairs([("1 1", "2")]))
    fork = env.fork()
    await fork.act(CODER, ADD)
    runs = shared_sandbox().stats()["runs"]
    outcome = await env.act(CODER, ADD)
    assert shared_sandbox().stats()["runs"] == runs and outcome.team == 1.0
    assert (await fork.step(ADD)).done
    assert env.observe(CODER).info["program"] == "" and fork.observe(CODER).info["program"] == ADD


class Unwritable(Case):
    """A golden test that is far too long to be written out."""

    def __repr__(self) -> str:
        raise AssertionError("golden tests are written out")


async def test_golden_tests_are_not_written_out_to_know_a_program_again() -> None:
    env = world()
    env._problem = replace(
        env._problem, cases=tuple(Unwritable(case.given, case.expected) for case in env._problem.cases)
    )
    await env.act(TESTER, write_pairs([("1 1", "2")]))
    assert (await env.act(CODER, ADD)).team == 1.0 and (await env.step(ADD)).done


async def test_a_program_is_not_taken_for_tested_where_other_tests_were() -> None:
    env = world()
    await env.act(CODER, WRONG)
    for given, expected, agreed in (("1 1", "2", True), ("1 -1", "0", False), ("1 1", "2", True)):
        await env.act(TESTER, write_pairs([(given, expected)]))
        assert (await env.step(WRONG)).done == agreed


async def test_the_order_of_the_two_does_not_matter() -> None:
    pairs = write_pairs([("1 -1", "0")])
    outcomes = []
    for calls in ([(CODER, WRONG), (TESTER, pairs)], [(TESTER, pairs), (CODER, WRONG)]):
        env = world()
        acted = {agent: await env.act(agent, action) for agent, action in calls}
        outcomes.append(({agent: (o.team, o.local) for agent, o in acted.items()}, await env.step(WRONG)))
    assert outcomes[0] == outcomes[1]


async def test_tests_of_a_function_are_shown_in_the_testers_format() -> None:
    env = CodeEnv()
    row = make_row(
        "Solve.", [Case([[1, 2], "x"], 3)], function="solve", data_source="demo", split="t", index=0
    )
    env.reset(task_from_row(row))
    await env.act(TESTER, '<input>[1, 2]\n"x"</input><output>{"a": 1}</output>')
    await env.step("def solve(v, s): return s")
    assert env.observe(CODER).info["mismatches"] == [
        {"given": '[1, 2]\n"x"', "expected": '{"a": 1}', "found": '"x"'}
    ]
    assert "`solve`" in env.observe(TESTER).info["interface"] and "JSON" in env.observe(TESTER).info["form"]


class Own(CodeEnv):
    """A user's own kind: its forks are of the same kind."""


def test_any_play_conforms() -> None:
    tests = write_pairs([("1 1", "2"), ("1 -1", "7"), ("x", "x")])
    random = (CODER, "import random; print(random.random())")
    first = [
        (TESTER, tests),
        (CODER, WRONG),
        WRONG,
        ("Nobody", "x"),
        (CODER, ""),
        (TESTER, "\x00\ud7ff"),
        "",
        "print(",
    ]
    right = [(CODER, "\x00\ud800"), (CODER, ADD), (TESTER, write_pairs([("1 1", "2")])), ADD]
    for play in ([*first, *right], [*first, (CODER, WRONG), random, (CODER, ADD)]):
        check_env(lambda seed: Own(seed=seed), adding(), play, team_range=(-1.0, 1.0), local_range=(0.0, 1.0))


async def test_a_role_that_is_paid_nothing_for_itself_is_given_no_local_reward() -> None:
    env = world(build_reward=0.0, smoke_reward=0.0, pass_reward=0.0, valid_reward=0.0)
    assert [(await env.act(agent, "")).local for agent in (CODER, TESTER, "Nobody")] == [None, 0.0, None]
    env = world(valid_reward=0.0, reference_reward=0.0)
    assert [(await env.act(agent, "")).local for agent in (CODER, TESTER)] == [0.0, None]

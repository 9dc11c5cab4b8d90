"""Files that cost time without calls are refused, and no file takes long to check."""

from __future__ import annotations

import pytest

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import Team
from agent_system.workflows.graph.play import compile_team
from tests.cpu_time import cpu_seconds

CALLS = "- {call: A, id: a}\n- {call: A, id: b}\n"
VOTE = "{vote: [a, b]}"
NEVER = "{stop: {observation: never}}"
LOOP = "{loop: 1000000, do: [%s]}"


def team(steps: str, returned: str = "a") -> str:
    return f"team: 1\nagents:\n  A: {{prompt: x}}\ndo:\n{CALLS}{steps}\nreturn: {returned}\n"


def nested(levels: int, width: int, inner: str) -> str:
    for _ in range(levels):
        inner = f"{{parallel: [{'{call: A},' * width}[{inner}]]}}"
    return f"- {inner}"


def problem(text: str) -> str:
    started = cpu_seconds()
    with pytest.raises(AgentSystemError) as error:
        Team.parse(text)
    assert cpu_seconds() - started < 1.0
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        NEVER, "{vote: [a, b]}", "{vote: [a, b], id: v}", f"{NEVER}, {{vote: [a, b]}}",
        f"{{if: {{observation: x}}, do: [{NEVER}], else: [{{vote: [a, b]}}]}}",
        "{parallel: [{vote: [a, b], id: v}, {vote: [a, b], id: w}]}", LOOP % NEVER,
            LOOP % (LOOP % "{vote: [a, b]}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "around",
    [
        "%s",
        "{if: {observation: x}, do: [%s]}",
        "{parallel: [[%s], {call: A}]}",
        "{loop: 2, do: [{call: A}, %s]}",
    ],
)
def test_a_loop_that_can_make_no_call_is_refused(body: str, around: str) -> None:
    said = problem(team("- " + around % (LOOP % body)))
    assert "no step of the loop makes a call" in said and " do[2]" in said


@pytest.mark.parametrize(
    "steps",
    [
        f"{{loop: 900, do: [{{call: A}}, {{if: {{observation: x}}, do: [{', '.join([NEVER] * 120)}]}}]}}",
        f"{{loop: 900, do: [{{call: A}}, {', '.join([VOTE] * 120)}]}}",
        f"{{loop: 400, do: [{{vote: A, n: 2}}, {{parallel: [[{', '.join([VOTE] * 250)}], {VOTE}]}}]}}",
    ],
)  # fmt: skip
def test_a_turn_that_executes_too_many_steps_is_refused(steps: str) -> None:
    said = problem(team(f"- {steps}"))
    assert "do[2]: a turn may execute 10" in said and "steps, more than 100,000" in said


def test_steps_between_calls_are_allowed() -> None:
    arm = ", ".join([NEVER] * 60)  # of two arms one is executed
    arms = f"{{if: {{observation: x}}, do: [{arm}], else: [{arm}]}}"
    assert Team.parse(team(f"- {{loop: 900, do: [{{call: A}}, {arms}]}}")).calls == 902
    team_spec = Team.parse(team("- {loop: 998, do: [{call: A}, {vote: [a, b]}, {stop: {loop: last}}]}"))
    assert team_spec.calls == 1000
    more = f"- {{loop: 9000, do: [{{call: A}}, {', '.join([NEVER] * 50)}]}}"
    assert Team.parse(team(more), max_calls=10_000).calls == 9002


@pytest.mark.parametrize(("levels", "width"), [(30, 7), (30, 1), (15, 15), (4, 60), (1, 62)])
@pytest.mark.parametrize("named", [True, False])
def test_the_size_of_a_file_is_checked_first(levels: int, width: int, named: bool) -> None:
    calls = ",".join(f"{{call: A, id: x{i}}}" if named else "{call: A}" for i in range(4_000))
    assert "more than 256 steps" in problem(team(nested(levels, width, calls)))


def test_the_largest_file_is_checked_in_time() -> None:
    inner = ",".join(f"{{call: A, id: x{i}, sees: [a, b]}}" for i in range(150))
    started = cpu_seconds()
    assert Team.parse(team(nested(14, 6, inner))).calls == 2 + 150 + 14 * 6
    arms = "do: [{call: A, id: y#}], else: [{call: A, id: z#}]"
    ifs = ",".join(f"{{if: {{observation: x}}, {arms.replace('#', str(i))}}}" for i in range(80))
    Team.parse(team(f"- {{parallel: [[{ifs}], {{call: A}}]}}"))
    assert cpu_seconds() - started < 1.0


def test_votes_of_votes_are_checked_and_prepared_in_time() -> None:
    names = ["a", "b"]
    votes = []
    for number in range(200):
        votes.append(f"- {{vote: [{names[-2]}, {names[-1]}], id: v{number}}}")
        names.append(f"v{number}")
    last = "- {call: A, sees: [v199], unless: {of: v199, field: votes, above: 1}}"
    started = cpu_seconds()
    team_spec = Team.parse(team("\n".join([*votes, last]), "v199"))
    compile_team(team_spec.spec)
    team_spec.key()
    assert cpu_seconds() - started < 1.0


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        ("{if: {observation: x}, do: [{call: A}, {call: A}], else: [{call: A}, {call: A}, {call: A}]}", 3),
        ("{if: {observation: x}, do: [{vote: A, n: 4}], else: [{call: A}]}", 4),
        ("{vote: A, n: 3, best: A}", 4), ("{vote: [a, b], best: A}", 1), ("{vote: [a, b]}", 0),
        ("{loop: 3, do: [{vote: [a, b], best: A}]}", 3),
        ("{parallel: [{call: A}, {if: {observation: x}, do: [{call: A}], else: [{call: A}]}]}", 2),
    ],
)  # fmt: skip
def test_the_largest_number_of_calls(step: str, calls: int) -> None:
    assert Team.parse(team(f"- {step}")).calls == 2 + calls

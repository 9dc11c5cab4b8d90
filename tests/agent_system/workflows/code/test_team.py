"""Whole episodes with scripted replies: who reads what, when it ends, and what stays hidden."""

import json
from typing import Any

import pytest

from agent_system.sandbox import Reason, RunResult, shared_sandbox
from agent_system.workflows.code import CODER, TESTER
from tests.agent_system.workflows.code.conftest import ADD, HIDDEN, adding, fenced, written

WRONG = "a, b = map(int, input().split())\nprint(a + abs(b))"
GOOD_TEST = written(("1 -1", "0"))


def of(samples: Any, agent: str) -> list[Any]:
    return [s for s in samples if s.agent_id == agent]


async def test_a_program_is_corrected_after_a_failed_test(play: Any) -> None:
    (episode,) = (await play([fenced(WRONG), fenced(ADD)], [GOOD_TEST, GOOD_TEST])).episodes
    assert episode.turns == 2 and episode.team_reward == pytest.approx(1.0)
    assert (episode.info["success"], episode.info["mended"], episode.info["agreed"]) == (1, 1, 1)
    first, second = of(episode.samples, CODER)
    assert "failed" not in first.request.prompt_text.split("# Your part")[0]
    assert (
        f"```python\n{WRONG}\n```" in second.request.prompt_text
        and "Input:\n1 -1\nExpected by the Tester:\n0\nThe program:\n2" in second.request.prompt_text
    )
    assert "Expected by the Tester:\n0" in of(episode.samples, TESTER)[1].request.prompt_text
    assert first.rewards.local_reward == pytest.approx(0.8) and of(episode.samples, TESTER)[
        0
    ].rewards.local_reward == pytest.approx(1.0)
    assert first.identity.anchor != second.identity.anchor


async def test_it_ends_after_max_steps_where_tests_and_program_never_agree(play: Any) -> None:
    (episode,) = (await play([fenced(ADD)] * 3, [written(("1 1", "3"))] * 3, max_steps=3)).episodes
    assert episode.turns == 3 and episode.info["success"] == 1.0 and episode.info["tester/right"] == 0.0


@pytest.mark.parametrize(
    ("order", "speakers", "reads"),
    [
        ("simultaneous", [CODER, TESTER], None),
        ("coder_first", [CODER, TESTER], TESTER),
        ("tester_first", [TESTER, CODER], CODER),
    ],
)
async def test_the_second_speaker_reads_the_first_one(
    play: Any, order: str, speakers: list[str], reads: str | None
) -> None:
    (episode,) = (await play([fenced(ADD)], [GOOD_TEST], options={"order": order})).episodes
    assert (
        [s.agent_id for s in episode.samples] == speakers
        and episode.turns == 1
        and episode.info["success"] == 1.0
    )
    said = {CODER: "# The Tester says\nHm. <input>", TESTER: "# The Coder says\nSo:\n```python"}
    assert [s.agent_id for s in episode.samples if said[s.agent_id] in s.request.prompt_text] == (
        [reads] if reads else []
    )


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("order", ["simultaneous", "coder_first", "tester_first"])
async def test_golden_tests_and_reference_are_in_no_prompt_and_no_trajectory(
    play: Any, order: str, k: int
) -> None:
    replies = max(1, k)
    coder = [
        fenced(program)
        for program in (WRONG, "print(open('x'))\n", "raise ValueError(input())")
        for _ in range(replies)
    ]
    task = adding(reference=f"{ADD}  # the reference")
    result = await play(
        coder, [written(("1 -1", "0"), ("2 2", "5"))] * 3 * replies, task=task, k=k, options={"order": order}
    )
    (episode,) = result.episodes
    told = json.dumps(episode.to_json())
    assert episode.turns == 3 and not episode.failed
    assert not any(given in told for given, _ in HIDDEN) and "the reference" not in told
    assert "ValueError: 1 -1" in told or "FileNotFoundError" in told, (
        "what a program does on the Tester's own tests may be shown"
    )


@pytest.mark.parametrize("order", ["simultaneous", "coder_first", "tester_first"])
async def test_candidates_get_different_rewards_and_the_best_of_each_call_is_committed(
    play: Any, order: str
) -> None:
    programs = ["print(", WRONG, ADD]
    testers = ["no test", written(("1 -1", "0")), written(("1 1", "3"))]
    (episode,) = (await play([fenced(p) for p in programs], testers, k=3, options={"order": order})).episodes
    coder, tester = of(episode.samples, CODER), of(episode.samples, TESTER)
    assert [s.rewards.local_reward for s in coder] == pytest.approx([0.0, 0.8, 1.0]) and [
        s.rewards.fork_reward for s in coder
    ] == pytest.approx([0, 0.75, 1])
    assert [s.rewards.local_reward for s in tester] == pytest.approx([0.0, 1.0, 0.2])
    assert [s.identity.committed for s in coder] == [False, False, True] and [
        s.identity.committed for s in tester
    ] == [
        False,
        True,
        False,
    ]
    assert episode.turns == 1 and episode.info["success"] == 1.0 and episode.team_reward == pytest.approx(1.0)
    assert episode.info["coder/unparsed"] == episode.info["tester/unparsed"] == 0, (
        "those of the losers happened on their own forks"
    )


async def test_hostile_replies_are_scored_and_survived(play: Any) -> None:
    hostile = ["", "```python\n\n```", fenced("import os; os.kill(os.getppid(), 9)"), fenced("\x00"), fenced("while True: pass"),
               "<input></input><output></output>", "{env_prompt} %s {0.__class__}"]  # fmt: skip
    (episode,) = (await play(hostile, hostile[::-1], max_steps=len(hostile))).episodes
    assert not episode.failed and episode.turns == len(hostile) and episode.team_reward == 0.0
    assert episode.info["coder/unparsed"] == 4 and episode.info["tester/unparsed"] == len(hostile)


@pytest.mark.parametrize("k", [0, 2])
async def test_a_failing_sandbox_does_not_increase_the_reward(
    play: Any, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shared_sandbox().run_tests

    async def broken(program: str, cases: Any, **options: Any) -> list[RunResult]:
        return (
            [RunResult(Reason.SANDBOX, message="worker lost")] * len(cases)
            if "LOST" in program
            else await run(program, cases, **options)
        )

    monkeypatch.setattr(shared_sandbox(), "run_tests", broken)
    result = await play(
        [fenced(f"{ADD}  # LOST"), fenced(ADD)], [GOOD_TEST] * 2, k=k, n=1 if k else 2, max_steps=1
    )
    assert not any(episode.failed or episode.left_out for episode in result.episodes)
    lost, fine = [s for episode in result.episodes for s in of(episode.samples, CODER)]
    assert lost.rewards.local_reward == 0.0 < fine.rewards.local_reward
    if k:
        assert [s.identity.committed for s in (lost, fine)] == [False, True]
    else:
        assert [episode.info["pass_rate"] for episode in result.episodes] == [0.0, 1.0]


async def test_the_short_style_says_the_same_in_few_words(play: Any) -> None:
    replies = ([fenced(WRONG), fenced(ADD)], [GOOD_TEST] * 2)
    (episode,) = (await play(*replies, options={"prompt_style": "short"})).episodes
    first, second = (s.request.prompt_text for s in of(episode.samples, CODER))
    assert "\nCode: Add two numbers.<" in first
    assert f"\nCode: Add two numbers.\nLast:\n{WRONG}\nIn 1 -1 want 0 got 2<" in second


async def test_long_outputs_are_cut_in_prompts(play: Any) -> None:
    (episode,) = (await play([fenced("print('x' * 5000)")] * 2, [GOOD_TEST] * 2, max_steps=2)).episodes
    assert len(episode.samples[-1].request.prompt_text) < 3000

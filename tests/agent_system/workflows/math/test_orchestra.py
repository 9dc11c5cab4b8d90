import pytest

from agent_system import AgentSystemError
from agent_system.options import build_options
from agent_system.workflows.math import SOLVER, VERIFIER, MathOptions, SolverAgent, VerifierAgent

APPROVE, REJECT = "Fine. <verify>approve</verify>", "Wrong. <verify>reject</verify>"


def spoken(result) -> list[str]:
    return [sample.agent_id for sample in result.episodes[0].samples]


async def test_approved_solution_ends_the_episode(play):
    result = await play(solver=[r"\boxed{42}"], verifier=[APPROVE])
    assert spoken(result) == [SOLVER, VERIFIER]
    assert result.episodes[0].team_reward == 1.0
    solution, judgement = result.episodes[0].to_json()["calls"]
    assert (solution["action"], judgement["action"]) == ("42", "approve")
    assert judgement["fields"] == {"approved": True, "parsed": True}


async def test_rejected_solution_goes_round_again_and_the_last_one_counts(play):
    result = await play(solver=[r"\boxed{41}", r"\boxed{42}"], verifier=[REJECT])
    assert spoken(result) == [SOLVER, VERIFIER, SOLVER]
    assert result.episodes[0].info["solver/mended"] == 1.0 and result.episodes[0].team_reward == 1.0
    result = await play(solver=[r"\boxed{42}", "no idea"], verifier=[REJECT])
    assert result.episodes[0].team_reward == 0.0 and result.episodes[0].info["solver/spoilt"] == 1.0


async def test_every_speaker_reads_the_whole_dialogue(play):
    result = await play(
        solver=[r"<think>secret</think> first \boxed{1}", r"second \boxed{2}", r"\boxed{3}"],
        verifier=["off by one " + REJECT, REJECT],
        options={"max_loop_num": 3},
    )
    last = result.episodes[0].samples[-1].request.prompt_text
    assert (
        last.index("[Solver]\nfirst") < last.index("[Verifier]\noff by one") < last.index("[Solver]\nsecond")
    )
    assert "secret" not in last and "What is 6 times 7?" in last


@pytest.mark.parametrize(("loops", "expected"), [(1, 1), (2, 3), (3, 5)])
async def test_the_last_solution_is_not_judged(play, loops, expected):
    result = await play(solver=[r"\boxed{1}"] * 3, verifier=[REJECT] * 3, options={"max_loop_num": loops})
    assert len(spoken(result)) == expected and spoken(result)[-1] == SOLVER


async def test_verify_last_asks_about_the_last_solution_too(play):
    result = await play(
        solver=[r"\boxed{1}"], verifier=[REJECT], options={"max_loop_num": 1, "verify_last": True}
    )
    assert spoken(result) == [SOLVER, VERIFIER]


@pytest.mark.parametrize(("fallback", "calls"), [("reject", 3), ("approve", 2)])
@pytest.mark.parametrize(
    "reply", ["looks good", "<verify>maybe</verify>", "<think><verify>approve</verify></think> well"]
)
async def test_unreadable_verdict_is_the_fallback_and_is_counted(play, fallback, calls, reply):
    result = await play(solver=[r"\boxed{42}"] * 2, verifier=[reply], options={"verdict_fallback": fallback})
    assert len(spoken(result)) == calls
    sample = result.episodes[0].samples[1]
    assert not sample.valid and sample.action == ""
    assert result.metrics["env/verifier/unparsed"] == 1.0
    assert result.metrics["agent/verifier_agent/unparsable"] == 1.0


async def test_verdict_is_read_in_any_case_and_the_last_one_counts(play):
    result = await play(
        solver=[r"\boxed{42}"], verifier=["<verify>reject</verify> no: <VERIFY> Approve. </Verify>"]
    )
    assert spoken(result) == [SOLVER, VERIFIER]


def test_short_style_is_the_bare_question_and_dialogue():
    from agent_system import Entry

    options = MathOptions(prompt_style="short")
    solver, verifier = SolverAgent(config=options), VerifierAgent(config=options)
    said = [Entry(SOLVER, r"1+1=2. \boxed{2}", "2"), Entry(VERIFIER, REJECT, "reject")]

    def prompt(agent, entries) -> str:
        return agent.messages(
            {"env_prompt": "1+{1}?", "team_context": agent.team_context(entries), "memory": "", "step": 1}
        )[0]["content"]

    assert prompt(solver, []) == "Solve: 1+{1}?"
    assert prompt(verifier, said[:1]) == "Check: 1+{1}?\nSolver: 1+1=2. \\boxed{2}"
    assert (
        prompt(solver, said)
        == "Solve: 1+{1}?\nSolver: 1+1=2. \\boxed{2}\nVerifier: Wrong. <verify>reject</verify>"
    )


def test_full_style_shows_both_the_form_of_their_reply():
    variables = {"env_prompt": "Q", "team_context": "(nothing yet)", "memory": "", "step": 1}
    assert r"\boxed{}" in SolverAgent().messages(variables)[0]["content"]
    assert "<verify>reject</verify>" in VerifierAgent().messages(variables)[0]["content"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_loop_num": 0}, "max_loop_num must be 1 or more"),
        ({"verdict_fallback": "aprove"}, "did you mean 'approve'"),
        ({"prompt_style": "tiny"}, "one of full, short"),
        ({"max_loops": 2}, "max_loops is not an option"),
    ],
)
def test_bad_option_names_the_key_and_the_choices(options, message):
    with pytest.raises(AgentSystemError, match=message):
        build_options(MathOptions, options, "agent.orchestra.math")

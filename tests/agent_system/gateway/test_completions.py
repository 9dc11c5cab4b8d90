"""`/v1/completions`: prompts without a chat template, trained like the calls of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_system import Outcome, Task
from agent_system.gateway.session import Session

from .conftest import posted, send
from .test_served import serving

PATH = "/v1/completions"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], []]}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a", "b"], "n": 65}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [1.0]}, "prompt"),
    ({"echo": True}, "echo"),
    ({"suffix": "b"}, "suffix"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": "1"}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"add_special_tokens": False}, "add_special_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


async def test_completions_are_calls_with_the_tokens_of_their_prompts(play: Any, tokenizer: Any) -> None:
    ids = tokenizer.encode("3+3?", add_special_tokens=False)

    async def team(task: Task, session: Session) -> Outcome:
        async def ask(prompt: Any, **more: Any) -> Any:
            answer = await send(
                session, {"model": "Writer", "prompt": prompt, "echo": False, **more}, path=PATH
            )
            assert answer.status == 200, answer.body
            return answer.body

        first = await ask("2+2?", stop="END", logprobs=1, max_tokens=9)
        assert (first["object"], first["choices"][0]["text"], first["choices"][0]["finish_reason"]) == (
            "text_completion",
            "4",
            "stop",
        )
        details = first["choices"][0]["logprobs"]
        lengths = {len(details[name]) for name in ("tokens", "token_logprobs", "text_offset")}
        assert lengths == {first["usage"]["completion_tokens"]}
        for prompt in (["2+2?"], ids, [ids]):
            assert (await ask(prompt))["choices"][0]["text"] == "4END5"
        assert len((await ask("2+2?", n=2, best_of=2))["choices"]) == 2
        streamed = {
            "model": "Editor",
            "prompt": "2+2?",
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with posted(session, streamed, PATH) as got:
            lines = [line.removeprefix("data: ") for line in (await got.text()).split("\n\n") if line]
        chunks = [json.loads(line) for line in lines[:-1]]
        assert lines[-1] == "[DONE]" and chunks[-1]["usage"]["completion_tokens"] > 0
        assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "4END5"
        return Outcome(0.5, {first["id"]: 0.25})

    episode, metrics, engine = await play(team, lambda prompt, request: "4END5")
    assert (episode.failure, metrics["gateway/ignored"], metrics["gateway/overridden"]) == (None, 0, 0)
    for sample, (prompt, reply) in zip(episode.samples, engine.sampled, strict=True):
        assert (
            sample.request.prompt_ids == prompt
            and sample.generation.token_ids == reply[: len(sample.generation.token_ids)]
        )
    assert len(episode.samples) == 7 and all(sample.identity.trained for sample in episode.samples)
    assert {sample.request.prompt_ids for sample in episode.samples} == {
        tuple(ids),
        tuple(tokenizer.encode("2+2?", add_special_tokens=False)),
    }
    assert [sample.rewards.local_reward for sample in episode.samples] == [0.25, *[0.0] * 6], (
        "named by the id of its answer"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_answered_in_their_order(play: Any, tokenizer: Any, stream: bool) -> None:
    """As LangChain's `OpenAI` and litellm send a batch."""
    ids = tokenizer.encode("5+5?", add_special_tokens=False)
    prompts = ["2+2?", "3+3?", "2+2?"]

    async def team(task: Task, session: Session) -> Outcome:
        async def ask(**body: Any) -> list[str]:
            body = {"model": "Writer", "stream": stream, "stream_options": {"include_usage": True}, **body}
            if not stream:
                answer = await send(session, body, path=PATH)
                assert answer.status == 200, answer.body
                parts = [answer.body]
            else:
                async with posted(session, body, PATH) as got:
                    lines = [line.removeprefix("data: ") for line in (await got.text()).split("\n\n") if line]
                parts = [json.loads(line) for line in lines[:-1]]
            texts: dict[int, str] = {}
            for choice in (choice for part in parts for choice in part["choices"]):
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            assert parts[-1]["usage"]["prompt_tokens"] > len(ids)
            return [texts[index] for index in sorted(texts)]

        assert await ask(prompt=prompts) == ["to 2+2?", "to 3+3?", "to 2+2?"]
        assert await ask(prompt=[ids, ids], n=2) == ["to 5+5?"] * 4
        return Outcome(0.5)

    def reply(prompt: str, request: Any) -> str:
        return f"to {prompt}"

    episode, _, _ = await play(team, reply)
    assert episode.failure is None
    assert [tokenizer.decode(sample.request.prompt_ids) for sample in episode.samples] == [
        *prompts,
        *["5+5?"] * 4,
    ]
    assert all(sample.identity.trained for sample in episode.samples)


async def test_a_completion_that_cannot_be_answered_is_refused_by_one_line(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        for body, param in WRONG:
            answer = await send(session, {"model": "Writer", "prompt": "a", **body}, path=PATH)
            assert (answer.status, answer.body["error"]["param"]) == (400, param), (body, answer.body)
            assert "\n" not in answer.body["error"]["message"] and len(answer.body["error"]["message"]) < 400
        for prompt in ("x" * 5000, [1] * 5000, "x" * (1 << 20)):
            answer = await send(session, {"model": "Writer", "prompt": prompt}, path=PATH)
            assert (answer.status, answer.body["error"]["code"]) == (400, "context_length_exceeded"), (
                answer.body
            )
        return "4"

    episode, _, engine = await play(team)
    assert (episode.failure, engine.requests) == (None, [])


async def test_the_tokenizers_first_token_stands_before_a_text_once(play: Any) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    from agent_system.testing import make_tokenizer

    tokenizer: PreTrainedTokenizerFast = make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )

    async def team(task: Task, session: Session) -> str:
        for prompt in ("2+2?", "<s>2+2?"):
            assert (await send(session, {"model": "Writer", "prompt": prompt}, path=PATH)).status == 200
        return "4"

    episode, _, _ = await play(team, chat=tokenizer)
    first, second = episode.samples
    assert first.request.prompt_ids == second.request.prompt_ids and first.request.prompt_ids.count(bos) == 1


async def test_served_agents_answer_completions_and_the_whole_team_refuses_them() -> None:
    async with serving() as (client, _, _):
        assert (await send(client, {"model": "Writer", "prompt": "2+2?"}, path=PATH)).status == 200
        answer = await send(client, {"model": "gateway", "prompt": "2+2?"}, path=PATH)
        assert (answer.status, answer.body["error"]["param"]) == (400, "prompt"), answer.body
        by_address = await send(client, {"prompt": "2+2?"}, path="/agents/writer/v1/completions")
        assert by_address.status == 200, by_address.body


async def test_the_openai_library_reads_completions(play: Any) -> None:
    openai = pytest.importorskip("openai")

    async def team(task: Task, session: Session) -> str:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            answer = await client.completions.create(model="Writer", prompt="2+2?", logprobs=0)
            type(answer).model_validate(answer.model_dump(), strict=True)
            parts = [
                part
                async for part in await client.completions.create(model="Writer", prompt="2+2?", stream=True)
            ]
        return "".join(part.choices[0].text for part in parts)

    episode, _, _ = await play(team)
    assert (episode.failure, episode.answer) == (None, "4")

"""Tools in the conversations of model families: every prompt of three rounds is what the chat template makes
of the whole conversation.

The templates are written for this test with the structure of the families' own: where schemas and results
stand, which roles and end tokens there are, how contents are trimmed or quoted, and which thinking is left
out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_system import BaseEnv, Observation, Outcome, Task, boxed_answer
from agent_system.rollout import Collector
from agent_system.testing import make_tokenizer
from agent_system.tools import ToolAgent, calculator
from agent_system.workflows.single import SINGLE, SingleOrchestra

QWEN = """\
{%- macro begin(role) %}{{ '<|im_start|>' ~ role ~ '\n' }}{% endmacro %}
{%- set first = messages[0] if messages[0].role == 'system' else {'content': 'You help.'} %}
{{- begin('system') ~ first.content }}
{%- if tools %}
    {{- '\n\nTools:' }}{% for tool in tools %}{{ '\n' ~ tool | tojson }}{% endfor %}
    {{- '\nWrite <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role != 'tool' %}
        {{- begin(message.role) ~ CONTENT ~ '<|im_end|>\n' }}
    {%- else %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ begin('assistant') }}{% endif %}"""

# Qwen 3 splits a reply at its last </think> and shows what stands between <think> and </think> only.
THINKING = """(
    '<think>\n' ~ message.content.split('</think>')[0].split('<think>')[-1].strip('\n')
    ~ '\n</think>\n\n' ~ message.content.split('</think>')[-1].lstrip('\n')
    if '</think>' in message.content else message.content
)"""

# Llama 3.1 shows the tools in the first message of the user, trims replies and quotes results as JSON.
LLAMA = """\
{{- bos_token }}
{%- macro say(role, text) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\n\n' ~ text ~ '<|eot_id|>' }}{% endmacro %}
{{- say('system', 'Environment: ipython\n' ~ (messages[0].content | trim if messages[0].role == 'system' else '')) }}
{%- set ns = namespace(shown=false) %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'tool' %}
        {{- say('ipython', {'output': message.content} | tojson) }}
    {%- elif message.role == 'user' and tools and not ns.shown %}
        {%- set ns.shown = true %}
        {{- '<|start_header_id|>user<|end_header_id|>\n\nWrite {"name": ..., "parameters": ...} to call one of\n\n' }}
        {%- for tool in tools %}{{ tool | tojson(indent=4) ~ '\n\n' }}{% endfor %}
        {{- message.content | trim ~ '<|eot_id|>' }}
    {%- else %}
        {{- say(message.role, message.content | trim) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# As in Mistral's, tools stand before the question, a special token begins the calls, and these are a list of
# plain JSON.
JSON = """\
{{- bos_token ~ '[SYSTEM_PROMPT]' ~ messages[0].content ~ '[/SYSTEM_PROMPT]' }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'user' %}
        {{- '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS][INST]' ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' ~ {'content': message.content} | tojson ~ '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}"""

TEMPLATES = {
    "qwen2.5": QWEN.replace("CONTENT", "message.content"),
    "qwen3": QWEN.replace("CONTENT", THINKING),
    "llama3.1": LLAMA,
    "json": JSON,
}


def hermes(*calls: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls
    )


def llama(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "parameters": arguments})


def plain(*calls: tuple[str, dict[str, Any]]) -> str:
    return json.dumps([{"name": n, "arguments": a} for n, a in calls])


ADD, TWICE, QUOTE = (
    ("calculator", {"expression": "1+1"}),
    ("calculator", {"expression": "2*2"}),
    ("echo", {"text": 'é "q"\n<b>'}),
)
HERMES = [f"I add.\n{hermes(ADD, QUOTE)}", hermes(TWICE), "so \\boxed{4}"]
REPLIES = {
    "qwen2.5": HERMES,
    "qwen3": [f"<think>\nhow?\n</think>\n\n{HERMES[0]}", HERMES[1], f"<think>\nyes\n</think>\n\n{HERMES[2]}"],
    "llama3.1": [f"<|python_tag|>{llama(*ADD)}; {llama(*QUOTE)}", llama(*TWICE), "so \\boxed{4}"],
    "json": [
        f"[TOOL_CALLS]{plain(ADD, QUOTE)}",
        f"I multiply.\n```json\n{plain(TWICE)}\n```",
        "so \\boxed{4}",
    ],
}
# The tokens that begin a text, end a message and begin tool calls, and others.
SPECIAL = {
    "llama3.1": (
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|python_tag|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
    ),
    "json": ("<s>", "</s>", "[TOOL_CALLS]", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
}


def echo(text: str) -> str:
    """Return a text.

    Args:
        text: the text.
    """
    return text


class Solver(ToolAgent):
    system = "Use tools."
    prompt = "Q: {env_prompt}"
    projection = boxed_answer
    tools = (calculator, echo)


class Once(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        return Outcome(float(action == "4"), done=True)


@pytest.fixture
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """A byte-level tokenizer with the template and the special tokens of a family."""
    tokenizer = make_tokenizer()
    if special := SPECIAL.get(request.param):
        begin, end, *more = special
        tokenizer.add_special_tokens(
            {"additional_special_tokens": more, "eos_token": end, "bos_token": begin}
        )
    tokenizer.chat_template = TEMPLATES[request.param]
    return tokenizer


def play(make_collector: Callable[..., Collector], scripted: Callable[..., Any], replies: list[str]) -> Any:
    limits = {"max_prompt_length": 9000, "max_tokens": 1000}
    team = {SINGLE: Solver(SINGLE)}
    collector = make_collector(
        scripted(replies), orchestra=SingleOrchestra(), agents=team, env=Once, **limits
    )
    return asyncio.run(collector.collect([Task("a", "2+2?", "sums", "4")], 1, step=1))


def rendered(tokenizer: Any, replies: list[str], results: list[list[str]]) -> str:
    """The conversation after these replies and tool results."""
    messages = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Q: 2+2?"}]
    for reply, found in zip(replies, results, strict=True):
        messages += [
            {"role": "assistant", "content": reply},
            *({"role": "tool", "content": text} for text in found),
        ]
    schemas = Solver(SINGLE).schemas
    return str(
        tokenizer.apply_chat_template(messages, tools=schemas, add_generation_prompt=True, tokenize=False)
    )


@pytest.mark.parametrize("tokenizer", TEMPLATES, indirect=True, ids=TEMPLATES)
def test_every_prompt_is_the_rendered_conversation(
    tokenizer: Any, make_collector: Any, scripted: Any, request: Any
) -> None:
    family = request.node.callspec.id
    replies, mark = REPLIES[family], SPECIAL.get(family, [""] * 3)[2]
    result = play(make_collector, scripted, replies)
    (episode,) = result.episodes
    assert episode.team_reward == 1.0 and [s.tools.calls for s in episode.samples] == [2, 1, 0]
    results = [["2", QUOTE[1]["text"]], ["4"]]
    shown = [reply.removeprefix(mark) for reply in replies]
    for number, sample in enumerate(episode.samples):
        expected = rendered(tokenizer, shown[:number], results[:number])
        assert sample.request.prompt_text.replace(mark, "") == expected, (
            "the mark is sampled, but in no message"
        )
        if not number or not mark:
            assert list(sample.request.prompt_ids) == tokenizer.encode(expected, add_special_tokens=False)
    counts = {
        name: result.metrics[f"agent/single_agent/tools/{name}"]
        for name in ("malformed", "errors", "restarted", "cut")
    }
    assert not any(counts.values())


@pytest.mark.parametrize("tokenizer", ["qwen3"], indirect=True)
def test_what_qwen_3_leaves_out_is_rendered_anew_and_counted(
    tokenizer: Any, make_collector: Any, scripted: Any
) -> None:
    before = f"Let me see. <think>\nhow?\n</think>\n\n{hermes(ADD)}"
    twice = f"<think>one</think> and <think>two</think>{hermes(TWICE)}"
    result = play(make_collector, scripted, [before, twice, "so \\boxed{4}"])
    samples = result.episodes[0].samples
    assert [s.tools.restarted for s in samples] == [False, True, True] and result.metrics[
        "agent/single_agent/tools/restarted"
    ] == 2
    assert [s.request.prompt_text for s in samples[1:]] == [
        rendered(tokenizer, [before], [["2"]]),
        rendered(tokenizer, [before, twice], [["2"], ["4"]]),
    ]
    assert "Let me see" not in samples[1].request.prompt_text and "two" not in samples[2].request.prompt_text

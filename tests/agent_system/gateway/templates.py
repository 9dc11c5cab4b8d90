"""Chat templates with the structure of model families: which roles there are, what is left out, how tool
calls are shown.

They are written for these tests.
"""

from __future__ import annotations

from typing import Any

from agent_system.testing import CHAT_TEMPLATE, make_tokenizer
from verl.models.tiny import CHAT_TEMPLATE as TINY

# Shows the tools in the system message, calls as objects in tags, results together in a message of the user.
# A user's message with their tag counts as one.
CHATML = """\
{%- macro begin(role) %}{{ '<|im_start|>' ~ role ~ '\n' }}{% endmacro %}
{%- set first = messages[0].content if messages[0].role == 'system' else 'You help.' %}
{{- begin('system') ~ first }}
{%- for tool in tools or [] %}{{ '\n' ~ tool | tojson }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- set ns = namespace(last=-1) %}
{%- for message in messages if message.role == 'user' and not message.content.startswith('<tool_response>') %}
    {%- set ns.last = ns.last + 1 %}{% endfor %}
{%- set asked = namespace(count=-1) %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'user' %}
        {%- set asked.count = asked.count + (not message.content.startswith('<tool_response>')) %}
        {{- begin('user') ~ message.content ~ '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- begin('assistant') ~ (SHOWN) }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if not loop.first or message.content }}
            {{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ begin('assistant') }}{% endif %}
{%- if add_generation_prompt and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"""

# Qwen 3 shows the thinking of replies after the last message of the user, and an empty block before the last
# reply.
THINKING = """
    ('<think>\n' ~ (message.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in message.content else '')
        ~ '\n</think>\n\n' if asked.count == ns.last and ('</think>' in message.content or loop.last) else '')
    ~ message.content.split('</think>')[-1].lstrip('\n')
"""

# Mistral shows the system message, and the tools, with the last message of the user.
MISTRAL = (
    CHATML.replace("SHOWN", "message.content")
    .replace("'You help.'", "''")
    .replace("begin('system') ~ first", "begin('system')")
    .replace("begin('user') ~ ", "begin('user') ~ (first if asked.count == ns.last else '') ~ ")
)

LLAMA = """\
{{- bos_token }}
{%- macro say(role, text) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\n\n' ~ text ~ '<|eot_id|>' }}{% endmacro %}
{{- say('system', 'Environment: ipython\n' ~ (messages[0].content | trim if messages[0].role == 'system' else '')) }}
{%- for tool in tools or [] %}{{ tool | tojson ~ '\n\n' }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'tool' %}
        {{- say('ipython', {'output': message.content} | tojson) }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- say('assistant', '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ '}') }}
    {%- else %}
        {{- say(message.role, message.content | trim) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

TEMPLATES = {
    "plain": CHAT_TEMPLATE,
    "tiny": TINY,
    "qwen2.5": CHATML.replace("SHOWN", "message.content"),
    "qwen3": CHATML.replace("SHOWN", THINKING),
    "llama3": LLAMA,
    "mistral": MISTRAL,
}
LLAMA_TOKENS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"]


def tokenizer_of(name: str) -> Any:
    """A byte-level tokenizer with the template and the special tokens of a family."""
    tokenizer = make_tokenizer()
    if name == "llama3":
        tokenizer.add_special_tokens(
            {
                "additional_special_tokens": LLAMA_TOKENS,
                "eos_token": "<|eot_id|>",
                "bos_token": "<|begin_of_text|>",
            }
        )
    tokenizer.chat_template = TEMPLATES[name]
    return tokenizer

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, with a begin-of-text token that both the template and the tokenizer would add."""
    from tokenizers.processors import TemplateProcessing

    core = Tokenizer(
        models.WordLevel({"<unk>": 0, "<s>": 1, "user": 2, "assistant": 3, "w": 4}, unk_token="<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = (
        "<s> {% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    return tokenizer

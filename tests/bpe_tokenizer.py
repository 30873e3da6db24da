"""A byte-level BPE tokenizer, trained in a moment: words are tokens, a rare character is several of a byte or two."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

START, END = "<|im_start|>", "<|im_end|>"
TEXT = """The answer is 12. </answer> <answer>7</answer> Observation: the sum of 5 and 7 is 12.
User: What is 3 times 4? Assistant: Let me think about the answer. <think> 3 times 4 is 12 </think> 12"""

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
)
OPENS_REASONING = CHATML + "{{ '<think>\n' }}{%- endif %}"
"""As DeepSeek-R1's distilled models have it: the prompt ends with the opening tag."""
SWITCHED_REASONING = (
    CHATML + "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
"""As Qwen3 has it: the model opens the block itself, unless it is told not to think, when an empty one is there."""


def build_bpe_tokenizer() -> PreTrainedTokenizerFast:
    """The same at each call."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START, eos_token=END, pad_token=END)
    fast.chat_template = OPENS_REASONING
    return fast

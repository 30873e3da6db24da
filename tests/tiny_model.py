"""A chat model small enough for a unit test: a Llama of random weights, and a tokenizer of single characters."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

UNKNOWN, START, END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2. END is both eos and pad, so that code which takes a padding token for an end token fails."""

PRINTABLE_ASCII = "".join(chr(code) for code in range(32, 127)) + "\n"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tiny_model(folder: Path, *, characters: str = PRINTABLE_ASCII, seed: int = 0, head_size: int = 8) -> None:
    """Save a model and its tokenizer to `folder` as a Hugging Face directory; the same arguments, the same bytes.

    The model has 2 layers, hidden size 32, 4 heads of `head_size` with 2 key-value heads, tied embeddings and float32
    weights.
    The tokenizer has the three special tokens and one token per character of `characters`, to which lower-case letters
    and the newline (what the chat template writes) are added; any other character becomes the unknown token.
    """
    tokenizer = _tokenizer("".join(dict.fromkeys(characters + string.ascii_lowercase + "\n")))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_size,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(characters: str) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=START, eos_token=END, pad_token=END
    )
    fast.chat_template = CHATML
    return fast

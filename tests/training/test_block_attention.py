"""Who sees whom in a packed row, in the blocks that CUDA's kernel takes; the kernel itself where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask, flex_attention

from pipeline.training.block_attention import NONE, Members
from pipeline.training.grouped_attention import Layout, grouped_attention
from pipeline.training.places import Places

CPU = torch.device("cpu")
N_TOKENS = 9
PROMPTS = [range(0, 2), range(6, 7)]
COMPLETIONS = [range(2, 4), range(4, 6), range(7, 8)]
PLACES = Places(PROMPTS, COMPLETIONS, [0, 0, 1], N_TOKENS)


def members(device: torch.device = CPU) -> Members:
    """Prompt p of two tokens with completions a and b of two, prompt q of one with c of one, and a token of padding."""
    return Members.of(PLACES, device)


def test_whose_each_token_is() -> None:
    found = members()
    assert found.prompts.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, NONE]
    assert found.completions.tolist() == [NONE, NONE, 0, 0, 1, 1, NONE, 2, NONE]
    assert found.positions.tolist() == [0, 1, 2, 3, 2, 3, 0, 1, 0]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (
            None,
            [
                "p........",
                "pp.......",
                "ppa......",
                "ppaa.....",
                "pp..b....",  # its prompt and itself, not the other completion
                "pp..bb...",
                "......q..",
                "......qc.",
                "........-",  # padding sees padding
            ],
        ),
        (
            2,
            [
                "p........",
                "pp.......",
                ".pa......",
                "..aa.....",
                ".p..b....",
                "....bb...",
                "......q..",
                "......qc.",
                "........-",
            ],
        ),
    ],
)
def test_who_sees_whom(window: int | None, expected: list[str]) -> None:
    mask = members().mask_for(window)
    seen = create_mask(mask.mask_mod, 1, 1, N_TOKENS, N_TOKENS, device="cpu")[0, 0]
    assert seen.tolist() == [[mark != "." for mark in row] for row in expected]


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_blocks_and_groups_are_the_same_attention(window: int | None) -> None:
    """torch's own slow form of the kernel, which has no backward pass on a CPU."""
    layout = Layout.of(PLACES, CPU)
    query, key, value = (torch.randn(1, heads, N_TOKENS, 16) for heads in (4, 2, 2))
    by_groups, _ = grouped_attention(torch.nn.Module(), query, key, value, None, layout, sliding_window=window)
    by_blocks = flex_attention(query, key, value, block_mask=layout.members.mask_for(window), enable_gqa=True)
    assert isinstance(by_blocks, torch.Tensor)
    torch.testing.assert_close(by_blocks.transpose(1, 2)[:, :-1], by_groups[:, :-1], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 2])
def test_the_kernel_agrees_forward_and_backward(window: int | None) -> None:
    states = [torch.randn(1, heads, N_TOKENS, 16, requires_grad=True) for heads in (4, 2, 2)]
    found = []
    for device in (CPU, torch.device("cuda")):
        layout = Layout.of(PLACES, device)
        query, key, value = (each.to(device) for each in states)
        attended, _ = grouped_attention(torch.nn.Module(), query, key, value, None, layout, sliding_window=window)
        real = attended[:, :-1]
        found.append([each.cpu() for each in (real, *torch.autograd.grad(real.square().sum(), states))])
    for by_groups, by_blocks in zip(*found, strict=True):
        torch.testing.assert_close(by_blocks, by_groups, rtol=1e-2, atol=1e-2)

"""Linear layers whose weights lie as the matrix products of a CPU want them: packed once, and not for every token."""

from __future__ import annotations

from typing import Any

import torch


class PackedLinear(torch.nn.Linear):
    """A linear layer without gradients whose `weight` is packed; what it gives has the bits of the plain one."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., out_features] of `inputs` [..., in_features]."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        return output


def pack_linear_layers(model: Any) -> None:
    """Pack the weights of the bfloat16 linear layers of `model` that are on a CPU which can multiply them.

    A layer stays the same module, with its hooks. A weight that others use too (embeddings) stays with them as it was.
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear and _is_packable(module.weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
            module.weight = torch.nn.Parameter(packed, requires_grad=False)
            module.__class__ = PackedLinear


def _is_packable(weight: torch.Tensor) -> bool:
    if weight.dtype != torch.bfloat16 or not weight.is_cpu:
        return False
    has_kernels = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_kernels and torch.ops.mkldnn._is_mkldnn_bf16_supported())

"""The heap after it is trimmed."""

from __future__ import annotations

import sys

import psutil
import pytest
import torch

from pipeline.training.heap import trim_heap


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone can be told")
def test_pages_between_tensors_go_back() -> None:
    n, size = 4000, 1 << 16  # bytes: too small for mappings of their own
    tensors = [torch.ones(size, dtype=torch.uint8) for _ in range(n)]
    del tensors[: n - 1]  # the last one keeps the heap from shrinking at its end
    before = psutil.Process().memory_info().rss
    trim_heap()
    assert before - psutil.Process().memory_info().rss > n * size / 2
    assert tensors[0].sum() == size

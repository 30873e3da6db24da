"""The last fenced block of a completion."""

from __future__ import annotations

import pytest

from pipeline.rewards.fences import last_block


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\nor\n~~~python3\nx = 2\n~~~\n", "x = 2\n"),
        ("```Python title=a.py\nx = 1\n```", "x = 1\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("```python\nx = 1\n```\n```text\n1\n```\n```bash\nls\n```", "x = 1\n"),
        ("```python\n```", ""),
        ("```python\nx = 1\n```\n```text\nnever closed", "x = 1\n"),
        ("```python\nx = 1\n```\n```python\nx = 2", None),
        ("x = 1", None),
        ("```rust\nfn main() {}\n```", None),
        ("inline ```x = 1``` only", None),
        ("", None),
        ("~" * 200_000 + "`", None),
        ("```" + " " * 200_000 + "`", None),
    ],
)
def test_the_last_block_of_python_counts(text: str, code: str | None) -> None:
    assert last_block(text, {"", "python", "python3", "py"}) == code


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("```json\n{}\n```\n```text\nno\n```", "no\n"),
        ("```json\n{}\n```\n```json\n{", None),
        ("```a\n" * 50_000, None),  # each opens, and none closes
    ],
)
def test_the_last_block_of_any_language_counts(text: str, block: str | None) -> None:
    assert last_block(text) == block

from __future__ import annotations

from markupsafe import Markup

from pipeline.report.text import MAX_CHARACTERS, inert


def test_control_and_directional_characters_are_shown_by_number() -> None:
    shown = inert("a\x00\x00b\u202e<\u200d\n\t")
    assert shown == Markup(
        'a<span class="sign" title="NULL">U+0000 ×2</span>b'
        '<span class="sign" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>&lt;\u200d\n\t'
    )


def test_long_text_is_cut_with_the_number_left_out() -> None:
    text = "<" * 1_000_000
    assert inert(text).count("&lt;") == MAX_CHARACTERS == 20_000
    assert "980,000 of 1,000,000 characters are left out here" in inert(text)
    assert "left out" not in inert("<" * MAX_CHARACTERS)

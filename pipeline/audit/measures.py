"""What can be measured of a text, as expressions over columns of texts."""

from __future__ import annotations

import zlib

import polars as pl

WORDS_PER_GRAM = 3
MIN_BYTES_TO_COMPRESS = 100
"""Shorter texts have no compression ratio: the header of the compressed one would decide it."""

SCRIPTS = (
    *("Latin", "Greek", "Cyrillic", "Armenian", "Hebrew", "Arabic", "Devanagari", "Bengali", "Tamil", "Thai"),
    *("Georgian", "Hangul", "Hiragana", "Katakana", "Han"),
)
"""Names of scripts, as Unicode has them."""

_NUMBER = r"\d+(?:\.\d+)?"
_WORD = rf"{_NUMBER}|\w+"


def n_characters(text: pl.Expr) -> pl.Expr:
    """How many characters `text` has, white space around it left out."""
    return text.str.strip_chars().str.len_chars()


def repeated_fraction(text: pl.Expr) -> pl.Expr:
    """The share of the three-word sequences of `text` that were there before in it; null with fewer than three words.

    >>> texts = pl.DataFrame({"text": ["a b c a b c a b", "one two three four", "7"]})
    >>> texts.select(repeated_fraction(pl.col("text"))).to_series().to_list()  # of 6: abc bca cab, then these again
    [0.5, 0.0, None]
    """
    words = text.str.extract_all(r"\S+")
    n_words = words.list.len()
    # Each word of a sequence that comes again was there before: with fewer such words there is none, and making the
    # sequences is what takes long.
    may_repeat = n_words >= words.list.n_unique() + WORDS_PER_GRAM
    following = [pl.element().shift(-n) for n in range(WORDS_PER_GRAM)]
    grams = pl.when(may_repeat).then(words).list.eval(pl.concat_str(following, separator=" ").drop_nulls())
    repeated = 1 - grams.list.n_unique() / grams.list.len()
    return pl.when(n_words >= WORDS_PER_GRAM).then(repeated.fill_null(0.0))


def compression_ratio(text: pl.Expr) -> pl.Expr:
    """Bytes of `text` over bytes of it compressed by zlib; null below `MIN_BYTES_TO_COMPRESS`.

    Prose of some hundred characters has about 1.5, a loop more than 5. Where words are not set apart by spaces,
    this sees repetitions that `repeated_fraction` does not.

    >>> texts = pl.DataFrame({"text": ["ha" * 100, "ha"]})
    >>> texts.select(compression_ratio(pl.col("text"))).to_series().round(1).to_list()  # 200 bytes become 13
    [15.4, None]
    """
    return text.map_batches(_compression_ratios, return_dtype=pl.Float64, is_elementwise=True)


def _compression_ratios(texts: pl.Series) -> pl.Series:
    values = [
        len(content) / len(zlib.compress(content))
        if len(content := (text or "").encode()) >= MIN_BYTES_TO_COMPRESS
        else None
        for text in texts
    ]
    return pl.Series(texts.name, values, dtype=pl.Float64)


def n_letters(text: pl.Expr, script: str) -> pl.Expr:
    """How many letters of `script` are in `text`.

    >>> pl.DataFrame({"text": ["два x2"]}).select(n_letters(pl.col("text"), "Cyrillic")).item()
    3
    """
    return text.str.count_matches(rf"\p{{{script}}}")


def mentions(text: pl.Expr, answer: pl.Expr) -> pl.Expr:
    """Whether `answer` stands in `text`: a number or word as one of its own, anything else as a part, case left out.

    >>> rows = pl.DataFrame(
    ...     [("It is 15.", "15"), ("150", "15"), ("1,500 m", "1500"), ("x = -3", "-3"), ("In Paris!", "paris")],
    ...     schema=["text", "answer"],
    ...     orient="row",
    ... )
    >>> rows.select(mentions(pl.col("text"), pl.col("answer"))).to_series().to_list()
    [True, False, True, True, True]
    """
    lower, wanted = text.str.to_lowercase(), answer.str.strip_chars().str.to_lowercase()
    words = lower.str.replace_all(r"(\d),(\d{3})\b", "$1$2").str.extract_all(_WORD)
    is_part = lower.str.contains(wanted, literal=True)
    is_word = words.list.contains(wanted.str.strip_prefix("-"))
    is_negative = wanted.str.starts_with("-")
    return (
        pl.when(wanted.str.contains(rf"^-?(?:{_NUMBER}|[^\W\d]\w*)$"))
        .then(is_word & (is_part | ~is_negative))
        .otherwise(is_part & (wanted != ""))
    )


def listed_answers(text: pl.Expr) -> pl.Expr:
    r"""The different answers that `text` offers: what it marks as an answer, and numbers that it lists in a row.

    Marks are `\boxed{7}`, `<answer>7</answer>`, `#### 7` and `answer is 7`; lists are "7 or 8" and "7, 8, 9".

    >>> texts = pl.DataFrame({"text": ["It is 7 or 8.", "5 6 7 8", "The answer is 3. #### 3", "2 + 3 = 5"]})
    >>> texts.select(listed_answers(pl.col("text"))).to_series().to_list()
    [['7', '8'], ['5', '6', '7', '8'], ['3'], []]
    """
    marked = text.str.extract_all(
        r"(?i)\\boxed\{[^{}]*\}|<answer>[^<]*</answer>|\banswer(?:\s+is|\s*[:=])[\s:=*$]*[^\s*$]+|####\s*\S+"
    )
    marks = r"(?i)^(?:\\boxed\{|<answer>|answer(?:\s+is)?|####)[\s:=*$]*|[\s.,;:!*$}]*(?:</answer>)?$"
    values = marked.list.eval(pl.element().str.replace_all(marks, ""))
    number = rf"-?{_NUMBER}"
    between = r"\s*(?:[,;/]|\s)\s*(?:\b(?:or|and)\b\s*)?"
    lists = text.str.extract_all(rf"(?i){number}(?:{between}{number}){{2,}}|{number}(?:\s*,?\s*\bor\b\s*{number})+")
    numbers = lists.list.join(" ").str.extract_all(number)
    return pl.concat_list(values, numbers).list.unique(maintain_order=True).list.filter(pl.element() != "")

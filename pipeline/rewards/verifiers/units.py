"""Units of measure, as far as two answers can contradict each other by them: 5 cm is not 5 m.

A unit that isn't known here contradicts none, as `apples` and `fruits` may be the same.
"""

from __future__ import annotations

import re

_NAMES = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "inch": "in inches",
    "ft": "foot feet",
    "yard": "yd",
    "mile": "mi",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "lb": "lbs pound",
    "oz": "ounce",
    "ml": "milliliter millilitre",
    "liter": "l litre",
    "gallon": "gal",
    "second": "s sec secs",
    "minute": "min mins",
    "hour": "h hr hrs",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr yrs",
    "dollar": "usd",
    "cent": "",
    "degree": "deg",
    "radian": "rad",
}
_UNIT_OF = {
    alias: unit
    for unit, names in _NAMES.items()
    for name in (unit, *names.split())
    for alias in (name, name if len(name) < 3 else f"{name}s")
}
_COMMAND = re.compile(r"\\(?:text|mathrm|textrm|mbox|operatorname)")
_POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cubed": "3"}


def read_unit(text: str) -> str | None:
    r"""The unit that `text`, what stands after a number, is, in one spelling; None where it isn't known.

    >>> read_unit(r"\text{ cm}^2"), read_unit("square centimeters"), read_unit(r"\text{ km/h}"), read_unit(" apples")
    ('cm^2', 'cm^2', 'km/hour', None)
    """
    plain = _COMMAND.sub(" ", text).lower().replace(" per ", "/").replace("mph", "mi/h")
    words = re.findall(r"[a-z]+|/", plain)
    power = next((_POWERS[word] for word in words if word in _POWERS), None) or "".join(re.findall(r"\d", plain))
    units = [word if word == "/" else _UNIT_OF.get(word) for word in words if word not in _POWERS]
    known = [unit for unit in units if unit is not None]
    if not known or len(known) < len(units):
        return None
    return "".join(known) + (f"^{power}" if power else "")

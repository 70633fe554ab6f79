"""Units of measure in their usual spellings, to tell `5 m` from `5 km`. Nothing is converted.

Units are known by name: words that are not in the tables below (`students`, `units`, `cm long`)
make no unit, and what has none is never held against an answer.
"""

import re
from collections import Counter
from collections.abc import Mapping

_PREFIXES = (("", ""), ("k", "kilo"), ("c", "centi"), ("m", "milli"), ("µ", "micro"), ("n", "nano"))
_PREFIXED = {
    "m": "meter metre meters metres",
    "g": "gram grams gramme grammes",
    "L": "liter litre liters litres",
    "s": "second seconds",
    "N": "newton newtons",
    "J": "joule joules",
    "W": "watt watts",
    "V": "volt volts",
}
_OTHERS = {
    "L": "l",
    "mL": "ml",
    "s": "sec secs",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "yr yrs years",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yds yard yards",
    "mi": "mile miles",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "t": "ton tons tonne tonnes",
    "acre": "acres",
    "ha": "hectare hectares",
    "gal": "gallon gallons",
    "qt": "quart quarts",
    "pt": "pint pints",
    "dollar": "dollars usd",
    "cent": "cents ¢",
    "euro": "euros €",
    "celsius": "",
    "fahrenheit": "",
    "kelvin": "K",
}
_RATES = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}  # before a unit
_TOKEN = re.compile(r"\s*(?:(?P<word>[a-zA-Zµ¢€]+)\.?|\^?\{?(?P<power>-?\d)\}?|(?P<mark>[/*·]))\s*")


def _known_units() -> dict[str, str]:
    units = {
        name: prefix + unit
        for unit, words in _PREFIXED.items()
        for prefix, spelt in _PREFIXES
        for name in (prefix + unit, *(spelt + word for word in words.split()))
    }
    for unit, words in _OTHERS.items():
        units |= dict.fromkeys((unit, *words.split()), unit)
    return units


_UNITS = _known_units()


def read_unit(text: str) -> Mapping[str, int] | None:
    """Exponent of every unit of a text like `km/h`, `square feet` or `kg m s^{-2}`.

    None where any of it is unknown.
    """
    for rate, unit in _RATES.items():
        text = re.sub(rf"\b{rate}\b", unit, text)
    exponents: Counter[str] = Counter()
    unit, sign, power, position = "", 1, 1, 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return None
        position = token.end()
        word = token["word"] or ""
        if token["mark"] == "/" or word == "per":
            sign = -1
        elif word.lower() in _POWERS:
            power = _POWERS[word.lower()]
        elif token["power"] and unit:
            exponents[unit] *= int(token["power"])
            unit = ""
        elif word:
            unit = _UNITS.get(word) or _UNITS.get(word.lower(), "")
            if not unit:
                return None
            exponents[unit] += sign * power
            sign = power = 1
        elif token["mark"] is None:
            return None
    return dict(exponents) if unit or exponents else None

r"""Words beside a number: scales that are part of it, units, and what makes another answer of it.

An algebra system drops `\text{...}` whatever it says: to it `5\text{ million}`, `5\text{ or six}`
and `5\text{ cm}` are all 5, and so are `1011_2` and `1011_8` one number.

Units of measure are known by name, to tell `5 m` from `5 km`; nothing is converted. Words that are
not in the tables below (`students`, `units`, `cm long`) make no unit, and what has none is never
held against an answer.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

WORDING = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsc|textsf|textnormal|mathrm|mathbf|mbox)\s*\{([^{}]*)\}"
)
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_EXPONENT = re.compile(f"(?<=[\\w)}}\\]])[{''.join(_RAISED)}]+")
_FRACTIONS = {c: unicodedata.normalize("NFKC", c).split("⁄") for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_FRACTION = re.compile(f" ?([{''.join(_FRACTIONS)}])")
NO_BREAK = str.maketrans(dict.fromkeys("\xa0\u2007\u2009\u202f", "~"))  # blanks within a number
_ROOT = re.compile(r"√ ?(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]))")
UNIT, OTHER_WORDS = "□", "■"  # what stands for words behind a number

_SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_COMMAND = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{"
_BLANKS = r"(?:~|\\[ ,;:!]|\s)*+"
# Few enough digits for exact decimals; no denominator, exponent or end of a mixed number.
_SCALED = re.compile(
    rf"(?<![\w.,^_/}}\\])(?<![\d/] )(\d{{1,3}}(?:,\d{{3}}){{1,3}}|\d{{1,12}})(\.\d{{1,12}})?"
    rf"{_BLANKS}({_COMMAND}{_BLANKS})?({'|'.join(_SCALES)})s?(?![\w-])(?(3)({_BLANKS}\}})?)",
    re.ASCII | re.IGNORECASE,
)
# Words that make another number of the one before them.
_CHANGES = (
    r"(?:(?:dozen|hundred|thousand)s?|(?:m|b|tr)ill?i(?:on|ard)\w*|hal(?:f|ves)|quarters?|"
    r"(?:third|tenth|hundredth|(?:four|fif|six|seven|eigh|nin|thousand)th)s?|squared|cubed|"
    r"factorial|doubled|tripled|halved|twice|thrice|plus|minus|negative(?!\s+\w)|or|nor|not|"
    r"[a-z]+n['’]t|wrong|incorrect)"
)
_CHANGED = re.compile(rf"\b{_CHANGES}\b", re.IGNORECASE)
_NUMBERS = (
    r"(?:zero|one|two|three|five|(?:four|six|seven|eight|nine)(?:teen|ty)?|ten|eleven|twelve|"
    r"thirteen|fifteen|eighteen|eighty|twenty|thirty|forty|fifty|infinity|pi)"
)
_EXCLUSIVE = [  # words of one row exclude each other
    frozenset(row.split())
    for row in (
        *("even odd", "positive negative", "increasing decreasing", "rational irrational"),
        *("prime composite", "convergent divergent", "converges diverges", "true false", "yes no"),
        *("left right", "above below", "before after", "more less", "least most", "inside outside"),
        *("north south east west", "clockwise counterclockwise anticlockwise", "maximum minimum"),
    )
]
# These, and words that name nothing that is counted.
_NO_NOUNS = re.compile(
    rf"[半或不]|\b(?:{_CHANGES}|{_NUMBERS}|times(?=\s+(?!as\b|per\b)\w)|(?<!left )over|and|to|"
    r"mod(?:ulo)?|choose|root(?=\s+\w)|(?:square|cube|cubic) root|base|(?:arc)?(?:sin|cos|tan)h?|"
    r"cot|log|ln|exp|sqrt|theta|alpha|beta|gamma|lambda|is|are|was|were|be|no|none|never|neither|"
    r"either|both|at|least|most|than|above|below|beyond|between|but|except|without|unless|if|"
    r"power|exponent)\b",
    re.IGNORECASE,
)
_LETTERS = r"[a-zA-ZÀ-ɏµ\u4e00-\u9fff]++"
_WORDS = re.compile(rf"{_LETTERS}(?:[-'’./ ]++{_LETTERS})*+")
_SHORT = {
    *("A", "C", "F", "°C", "°F", "Hz", "Pa", "eV", "dB", "MB", "GB", "cc", "px", "hp", "Rs"),
    *("st", "nd", "rd", "th", "%", r"\%", "°"),
}
_SHORT_SCALES = {"M", "T"}  # a million is no meter, a trillion no ton
_BEHIND = re.compile(
    rf"(?<=[\w)}}\]!]){_BLANKS}{WORDING.pattern}\s*(?:\^\{{?\d\}}?)?\s*$"  # at the end, not alone
)
_RELATED = re.compile(r"[=<>,;:]|\\(?:[lg]eq?|ne|in|to|cup|equiv|approx|subset|mid)(?![a-zA-Z])")
_SUBSCRIPT = re.compile(
    r"(?<![a-zA-Z_\d\\.])(\d[\d.,]*+)\s*+(?:\)\s*+)?"
    r"(?:_\s*+\{?|(?:\(\s*+)?(?:in )?\bbase[\s-]*+)[\s(]*+([a-zA-Z]+|\d+)",
    re.ASCII,
)
_BASES = {
    **{"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8"},
    **{"nine": "9", "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16"},
    **{"binary": "2", "octal": "8", "decimal": "10"},
}
_CLOCK = re.compile(
    rf"(?<![\w.:])(\d{{1,2}}(?:\\!)?:(?:\\!)?\d\d){_BLANKS}(\\[a-z]+\s*\{{{_BLANKS})?"
    rf"([ap])\.?{_BLANKS}m\b\.?(?(2){_BLANKS}\}}|(?!\}}))",
    re.ASCII | re.IGNORECASE,
)

_PLAIN_WORDS = re.compile(r"[a-zA-Z]+(?:[ -][a-zA-Z]+)*")
_LONG_WORD = re.compile(r"[a-zA-Z]{4}")
_NAMED = re.compile(r"^[a-zA-Z]=")
_REPEATING = re.compile(
    r"(-?)(?<!\d)(\d{0,12})\.(\d{0,12})\\(?:overline|bar)(?:\{(\d{1,12})\}|(\d))", re.ASCII
)
_RATIO = re.compile(
    r"(-?)(?<!\d)(?:(\d{1,12})?\\frac\{(-?\d{1,24})\}\{(\d{1,24})\}|(\d{1,24})/(\d{1,24}))(?!\d)",
    re.ASCII,
)
_INTEGER = re.compile(r"-?\d{1,24}", re.ASCII)

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
    "am": "midnight",
    "pm": "noon",
}
_RATES = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}  # before a unit
_HALF_OF_DAY = re.compile(r"\b([ap])\. ?m\b", re.IGNORECASE)
_UNIT_TOKEN = re.compile(
    r"\s*(?:(?P<word>[a-zA-Zµ¢€]+)\.?|\^?\{?(?P<power>-?\d)\}?|(?P<mark>[/*·]))\s*"
)


def spell_symbols(line: str) -> str:
    r"""Letters of Unicode that stand for commands as these: `2√3`, `x²`, `2½`, `∞`, and blanks that
    break no line."""
    line = line.translate(NO_BREAK).replace("∞", r"\infty ")
    line = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", line)
    line = _EXPONENT.sub(lambda m: f"^{{{''.join(map(_RAISED.__getitem__, m[0]))}}}", line)
    return _FRACTION.sub(lambda m: r"\frac{{{}}}{{{}}}".format(*_FRACTIONS[m[1]]), line)


def fold_scales(line: str) -> str:
    r"""Scales as digits: `2.5\text{ million dollars}` is `2500000\text{ dollars}`.

    What is a fraction or an exponent before the scale stays as it is.
    """
    while (folded := _SCALED.sub(_fold, line)) != line:
        line = folded
    return line


def _fold(found: re.Match[str]) -> str:
    digits = found[1].replace(",", "") + (found[2] or "")
    value = (Decimal(digits) * _SCALES[found[4].lower()]).normalize()
    return f"{value:f}" + (found[3] if found[3] and not found[5] else " ")


def set_clock(line: str) -> str:
    r"""Times of day in one spelling: `3:30 p.m.` is `3:30\text{ pm}`."""
    return _CLOCK.sub(lambda time: rf"{time[1]}\text{{ {time[3].lower()}m}}", line)


def is_measure(words: str) -> bool:
    """Whether words behind a number are a unit, or name what is counted and say nothing else."""
    said = re.sub(r"~|\\[ ,;:!]|[()]", " ", words).replace("²", "^2").replace("³", "^3")
    said = said.strip(" .,;")
    if said in _SHORT or (read_unit(said) is not None and said not in _SHORT_SCALES):
        return True
    if not _WORDS.fullmatch(said) or any(letter.isnumeric() for letter in said):
        return False
    if _NO_NOUNS.search(said.replace("-", " ")):
        return False
    return any(len(word) > 2 or not word.isascii() for word in re.split(r"\W+", said))


def mark_words(line: str) -> str:
    r"""The line with UNIT for a `\text{unit}`, and OTHER_WORDS for text that is none."""
    return WORDING.sub(_mark, line)


def _mark(found: re.Match[str]) -> str:
    if not found[1].strip(" ~"):
        return " "
    return UNIT if is_measure(found[1]) else OTHER_WORDS


def have_other_words(answer: str, gold: str) -> bool:
    r"""Whether one ends in words that the other has not, and that make another answer of it.

    `\sqrt{2}\text{ squared}` is not \sqrt{2}, nor is `\sqrt{2}\text{ at least}`: behind one value
    that has no words stand units and what is counted. Nor is `n\text{ is odd}` n\text{ even}.
    """
    said, asked = _last_words(answer), _last_words(gold)
    if said == asked:
        return False
    if _CHANGED.search(said) or _CHANGED.search(asked) or _exclude(said, asked):
        return True
    is_value = not _RELATED.search(gold) and not WORDING.search(gold)
    return bool(said) and is_value and not is_measure(said)


def _exclude(said: str, asked: str) -> bool:
    """Whether the texts have words of one row of `_EXCLUSIVE`, and not the same ones."""
    words = [set(re.findall(r"[a-z]+", text.lower())) for text in (said, asked)]
    pairs = ([each & row for each in words] for row in _EXCLUSIVE)
    return any(mine and theirs and mine != theirs for mine, theirs in pairs)


def _last_words(text: str) -> str:
    r"""What the `\text{...}` says behind all else; none where it is alone."""
    found = _BEHIND.search(text)
    return "" if found is None else " ".join(found[1].split())


def have_other_bases(answer: str, gold: str) -> bool:
    r"""Whether both write numbers to a base, and not to the same: `1011_2` and `1011_{8}`.

    A number that says no base is in the gold answer's.
    """
    bases = [_bases(text) for text in (answer, gold)]
    return [] not in bases and bases[0] != bases[1]


def _bases(line: str) -> list[str]:
    """Bases of the numbers of the last side, in the order of the numbers as texts."""
    last = WORDING.sub(r" \1 ", re.split(r"=|\\equiv|\\approx", line)[-1])
    found = _SUBSCRIPT.findall(last.replace("\\", " "))
    return [_BASES.get(base.lower(), base.lstrip("0")) for _, base in sorted(found)]


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


def same_words(one: str, other: str) -> bool:
    """Whether two plain lines are the same words, up to capitals: Even and even.

    One word has four letters or more, and the second line is no row of capitals: a, Ab and ABC are
    names and figures of mathematics, in which capitals count.
    """
    if not _PLAIN_WORDS.fullmatch(one) or other.isupper():
        return False
    return one.casefold() == other.casefold() and _LONG_WORD.search(one) is not None


def same_repeating(one: str, other: str) -> bool:
    r"""Whether two compact lines are one number, of which one or both are repeating decimals:
    `0.1\overline{6}` and `\frac{1}{6}`."""
    lines = [_NAMED.sub("", line) for line in (one, other)]
    if not any(_REPEATING.fullmatch(line) for line in lines):
        return False
    first, second = map(_exact_value, lines)
    return first is not None and first == second


def restates_number(line: str, prompt: str) -> bool:
    r"""Whether a number stands in a prompt, both compact, in the same form: as a repeating decimal
    where it is one, else as a fraction. To write one as the other is itself a question."""
    line = _NAMED.sub("", line)
    form = _REPEATING if _REPEATING.fullmatch(line) else _RATIO
    value = _exact_value(line)
    return any(_exact_value(found[0]) == value for found in form.finditer(prompt))


def _exact_value(line: str) -> Fraction | None:
    """Of a repeating decimal, an integer, a fraction or a mixed number in compact LaTeX."""
    if found := _REPEATING.fullmatch(line):
        sign, whole, fixed, *repeats = found.groups()
        repeat = repeats[0] or repeats[1]
        ahead = f"{whole or 0}{fixed}"
        value = Fraction(
            int(ahead + repeat) - int(ahead), 10 ** len(fixed) * (10 ** len(repeat) - 1)
        )
        return -value if sign else value
    if found := _RATIO.fullmatch(line):
        sign, whole, *parts = found.groups()
        above, below = (int(part) for part in parts if part)
        if not below:
            return None
        value = int(whole or 0) + Fraction(above, below)
        return -value if sign else value
    return Fraction(int(line)) if _INTEGER.fullmatch(line) else None


def read_unit(text: str) -> Mapping[str, int] | None:
    """Exponent of every unit of a text like `km/h`, `square feet` or `kg m s^{-2}`.

    None where any of it is unknown. The halves of a day, am and pm, are units here.
    """
    for rate, unit in _RATES.items():
        text = re.sub(rf"\b{rate}\b", unit, text)
    text = _HALF_OF_DAY.sub(r"\1m", text)
    exponents: Counter[str] = Counter()
    unit, sign, power, position = "", 1, 1, 0
    while position < len(text):
        token = _UNIT_TOKEN.match(text, position)
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

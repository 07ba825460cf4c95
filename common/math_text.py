"""MATH answers as text: equal things written alike, lists taken apart, units and choices found."""
import itertools
import re


SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
FRACTIONS = {"½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35",
             "⅘": "45", "⅙": "16", "⅚": "56", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78"}
# signs of Unicode and LaTeX, as math-verify knows them
SIGNS = {
    "√": r"\sqrt ", "–": "-", "—": "-", "−": "-", "‐": "-", "∞": r"\infty ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "×": r"\times ", "÷": r"\div ", "˚": "°", "º": "°", "。": ".",
    "、": ",", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ",
    "⩾": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "π": r"\pi ",
    "ℝ": r"\mathbb{R}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "€": "", "£": "", "⟨": "(", "⟩": ")",
    "⁄": "/", r"\varnothing": r"\emptyset", r"\leqslant": r"\le",
    r"\geqslant": r"\ge", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", r"\lbrace": r"\{",
    r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")", r"\lor": r"\text{ or }",
    r"\land": r"\text{ and }"}
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "tenth": -1,
          "hundredth": -2, "thousandth": -3, "millionth": -6, "billionth": -9}
# words behind a number that are no unit of it
QUALIFIERS = re.compile(
    r"\b(?:dozens?|squared|cubed|factorial|or (?:more|less)|thirds|halves|and a half)\b")
NESTED = r"\(((?:[^()]|\([^()]*\))*)\)"  # brackets, which may hold others
# an answer in words for one in signs
PHRASES = {
    r"(?:there (?:is|are) )?no (?:real )?solutions?": r"\emptyset",
    "(?:the )?empty set": r"\emptyset",
    "(?:all|any|every) real(?:s| numbers?)?": r"(-\infty,\infty)"}
FUNCTIONS = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])"


def squeeze(text):
    """`text` without white space."""
    return "".join(text.split())


def same_text(left, right):
    """Are two texts equal without their white space, but for that between digits?"""
    squeezed = [squeeze(re.sub(r"(?<=\d)\s+(?=\d)", "\0", text)) for text in (left, right)]
    return squeezed[0] == squeezed[1]


def plain_latex(text):
    """`text` without what changes no value, and in the signs that math-verify 0.9.0 reads."""
    text = plain_signs(text)
    text = plain_commands(text)
    text = plain_numbers(text)
    words = " ".join(without_text(text)[0].lower().strip(" .").split())
    for phrase, sign in PHRASES.items():
        if re.fullmatch(phrase, words):
            return sign
    text = re.sub(r"\\[,:;]", " ", text)
    # punctuation and line ends behind the answer
    return re.sub(r"(?:[\s.,;]|\\\\|\\newline)+$", "", text).strip()


def plain_signs(text):
    """Unicode as LaTeX: superscripts, roots, full-width forms, SIGNS, degrees."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+",
                  lambda match: "^{" + match[0].translate(SUPERSCRIPTS) + "}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+",
                  lambda match: "_{" + match[0].translate(SUBSCRIPTS) + "}", text)
    for sign, (above, below) in FRACTIONS.items():
        text = text.replace(sign, rf"\frac{{{above}}}{{{below}}}")
    text = re.sub(rf"√\s*{NESTED}", r"\\sqrt{\1}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)  # \sqrt alone takes one digit
    wide = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
    text = text.translate(wide | {0x3000: " ", 0xA0: " ", 0x2009: " ", 0x202F: " "})
    for sign, name in SIGNS.items():
        if sign not in text:
            continue
        text = re.sub(re.escape(sign) + r"(?![a-zA-Z])", lambda _: name, text) \
            if sign[0] == "\\" else text.replace(sign, name)
    text = re.sub(r"\\?\$", "", text)  # a dollar sign would end the formula
    return re.sub(r"\^?\s*(?:°|\\degree(?![a-zA-Z]))|\^\s*\{\s*\\circ\s*\}", r"^\\circ", text)


def plain_commands(text):
    """Without commands that only place or dress; roots and matrix rows in their usual form."""
    dress = r"\\(?:displaystyle|textstyle|(?:left|right)(?![a-z])|[bB]igg?[lr]?(?![a-zA-Z])|!)"
    text = re.sub(dress,
                  "", text)
    text = re.sub(r"\\\\\s*\[[^\]]*\]", r"\\\\ ", text)  # \\[4pt] between rows
    text = re.sub(r"\\(?:math(?:rm|it|sf)|operatorname)\s*\{\s*([ei])\s*\}", r"\1", text)
    fonts = r"\\(?:mbox|text(?:bf|it|rm|normal)|math(?:rm|bf|it))(?=\s*\{[^{}]{2})"
    text = re.sub(fonts, r"\\text", text)
    text = re.sub(r"\\(?:text|math)bf\s*\{(\d)\}", r"\1", text)
    text = re.sub(rf"\\sqrt\s*{NESTED}", r"\\sqrt{\1}", text)
    fraction = r"\\d?frac\s*(?:\d\s*\d|\{[^{}]*\}\s*\{[^{}]*\})"
    text = re.sub(rf"\\sqrt\s*({fraction})", r"\\sqrt{\1}", text)
    # the real root of a negative number
    text = re.sub(r"\\sqrt\s*\[([357])\]\s*\{\s*-\s*(\d+)\s*\}", r"{(-\\sqrt[\1]{\2})}", text)
    if re.search(FUNCTIONS, text):  # there a degree is a number; elsewhere it is a unit
        number = r"(\d+(?:\.\d+)?|[a-zA-Z]|\\[a-z]+)\s*\^\\circ"
        text = re.sub(number, r"{(\\frac{\1\\pi}{180})}", text)
    return text.replace("~", " ").replace("{:}", ":")


def plain_numbers(text):
    """Groups of three digits joined, repeating decimals as fractions, scale words as powers."""
    text = re.sub(r"(?<=\d)(?:\\[,:; ]|[ ])(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<=\d)\{,\}(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<![\d.])(\d*)\.(\d*)\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?",
                  lambda m: f"{m[1]}.{m[2]}\\overline{{{m[3]}{m[4] or ''}{m[5] or ''}}}", text)
    period = r"(?<![\d.,])(\d+(?:,\d{3})+|\d*)\.(\d*)\\(?:overline|bar)\s*(?:\{\s*(\d+)\s*\}|(\d))"
    text = re.sub(period, repeating, text)
    word = r"\\text\s*\{\s*percent(?:age)?\s*\}|\bpercent(?:age)?\b"
    text = re.sub(rf"\\?%|(?:\s|\\,)*(?:{word})", r"\\%", text)
    for word, power in SCALES.items():
        if word not in text:
            continue
        name = rf"\\text\s*\{{\s*{word}s?(?![a-z])\s*([^{{}}]*)\}}|{word}s?(?![a-z])"
        text = re.sub(rf"(?<=[\d}}])(?:\\[,;: ]|\s)*(?:{name})",
                      lambda m: rf" \cdot 10^{{{power}}}" + (m[1] and rf"\text{{{m[1]}}}" or ""),
                      text)
    return text


def repeating(match):
    """A repeating decimal as a fraction of two integers."""
    whole, fixed, period = match[1].replace(",", "") or "0", match[2], match[3] or match[4]
    number = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{number}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def without_text(text):
    """`text` without the \\text around a part, and whether there was one."""
    bare = re.sub(r"\\(?:text|mbox|mathrm|textbf)\s*\{([^{}]*)\}", r" \1 ", text)
    return bare.replace("\\ ", " ").strip(), bare != text


def top_level(text, pattern):
    """Parts of `text` between the matches of `pattern` outside all brackets."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"(?P<sep>{pattern})|\\\\|\\[{{}}]|\\[a-zA-Z]+|[(\[{{}}\])]", text):
        sign = match[0].lstrip("\\")
        if match["sep"] is None:
            depth += (sign in list("([{")) - (sign in list(")]}"))
        elif depth == 0:
            parts.append(text[start:match.start()])
            start = match.end()
    return [part.strip() for part in [*parts, text[start:]]]


AND_OR = r",?\s*\\text\s*\{\s*(?:and|or)\s*\}|,?(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])"
# not the comma of 45,600 -- but that of 45,600,7
COMMA = r"(?:;|,(?!\d{3}(?:,\d{3})*(?![\d,]))|(?<!\d),|(?<=\d{4}),)"


def items(text):
    """-> the items of a list or set; the two that a \\pm stands for."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    if re.fullmatch(r"\\text\s*\{[^{}]*\}", text) and not re.search(r"\d:\d", text):
        inner = text[text.index("{") + 1 : -1]
        parts = top_level(inner, rf"{AND_OR}|{COMMA}")
        if len(parts) > 1:
            return [rf"\text{{{part}}}" for part in parts if part]
    # 5 ft 3 in, 5 ft and 3 in: a list of two
    text = re.sub(r"(\\text\s*\{[^{}]*?[a-z])\s+and\s*\}(?=\s*\d)", r"\1}", text)
    text = re.sub(r"([\d}]\s*\\text\s*\{[^{}]*\})(?:\s|\\,)*(?=\d)", r"\1, ", text)
    text = text.replace(r"\;", " ").replace(r"\ ", " ").replace(r"\quad", " ")
    found = []
    for part in top_level(text, rf"{AND_OR}|{COMMA}"):
        if r"\pm" in part:
            found += [re.sub(r"(^|=)\s*\+", r"\1", signed) for signed in both_signs(part)]
        elif part:
            found.append(part)
    return found


def both_signs(text):
    """`text` with each sign for its \\pm; \\mp has the other one, several \\pm are free."""
    if r"\mp" in text:
        return [text.replace(r"\pm", plus).replace(r"\mp", minus) for plus, minus in ("+-", "-+")]
    first, *rest = text.split(r"\pm")
    return [first + "".join(sign + part for sign, part in zip(signs, rest))
            for signs in itertools.product("+-", repeat=len(rest))]


def is_set(text):
    return text.startswith(r"\{") or r"\pm" in text


def units(parts):
    return sorted(unit_name(squeeze(without_text(unit_of(part)[1])[0])) for part in parts)


def unit_name(word):
    word = word.lower().strip(" .")
    return UNIT_NAMES.get(word) or word.rstrip("s")


UNIT_NAMES = {"feet": "ft", "foot": "ft", "inches": "in", "inch": "in", "hours": "h", "hour": "h",
              "hr": "h", "hrs": "h", "minutes": "min", "minute": "min", "mins": "min", "seconds": "s",
              "second": "s", "sec": "s", "pounds": "lb", "pound": "lb", "lbs": "lb", "ounces": "oz",
              "ounce": "oz", "yards": "yd", "yard": "yd", "meters": "m", "meter": "m"}


WORD = r"[A-Za-z][A-Za-z .'/^\d-]*"
UNIT_WORDS = (
    "cm|mm|km|dm|kg|mg|ml|ft|lbs?|mph|kmph|sec|min|hrs?|yrs?|gal|inch|inches|feet|foot|yards?|"
    "miles?|"
    "degrees?|deg|hours?|minutes?|seconds?|days?|weeks?|months?|years?|dollars?|cents?|units?|"
    "square|sq|cubic|cu|ways?|met(?:er|re)s?|lit(?:er|re)s?|gallons?|pounds?|ounces?|grams?|"
    "students?|people|points?|acres?|coins?|apples?|digits?|integers?|tiles?")
UNIT = re.compile(
    rf"(?:\\[,;: ]|\s)*(\\text\s*\{{\s*\.?\s*({WORD})\}}"
    rf"|(?<=[\d\s}}])(?:{UNIT_WORDS})(?:\s+(?:{UNIT_WORDS}))*)"
    r"\s*(?:/\s*\\text\s*\{[^{}]*\})?(?:\^\s*\{?-?\d\}?)?$")


def unit_of(text):
    """-> (`text` without the unit behind its number, the unit or ""). A variable is no unit."""
    match = UNIT.search(text)
    if not match or not re.search(r"[\d}a-zA-Z)]$", text[: match.start()].rstrip()):
        return text.replace(r"^\circ", "") if not match else text, ""
    if re.fullmatch(r"\\?%|percent(?:age)?", (match[2] or match[1]).strip()):
        return text, ""
    return text[: match.start()].strip().replace(r"^\circ", ""), match[1]


def without_letter(text, other):
    """`text` without the m of 5 m, where `other` has no letter that could be a variable."""
    return text if re.search("[a-zA-Z]", other) else re.sub(r"(?<=\d)\s+[msghL]$", "", text)


def choice_of(text):
    """-> the letter of a choice, alone or before its text; None where there is none."""
    bare, _ = without_text(text)
    match = re.match(r"\(([A-J])\)(?!\s*[-+*/^=_]|[a-zA-Z(]|\\c[au]p)|([A-J])[.:)](?=\s|\\|$)"
                     r"|([A-J])$", bare)
    # of several choices, or one that is said not to be it
    if match and re.search(r"\([A-J]\)|\b(?:and|or) [A-J]\b|, ?[A-J]\b|\b(?:wrong|not|false|incorrect)\b",
                           bare[match.end():]):
        return None
    return match and (match[1] or match[2] or match[3])


def clock(text):
    """-> (the time without a.m. or p.m., which of the two); None where it is no time."""
    words = re.sub(r"\s*\bnoon\b", "pm", without_text(text)[0].strip())
    words = re.sub(r"\s*\bmidnight\b", "am", words)
    match = re.fullmatch(r"(\d+)(:\d\d)?\s*(?:([ap])\.?\s*m\.?)?", words, re.I)
    if not match or not (match[2] or match[3]):
        return None
    return match[1] + (match[2] or ":00"), (match[3] or "").lower()


def bracketed(text):
    """-> (opening sign, closing sign, items) of (a,b) and the like; None if it is none."""
    if not re.match(r"[(\[]", text) or text[-1:] not in ")]" or not closes_at_its_end(text):
        return None
    parts = top_level(text[1:-1], "[,;]")
    return (text[0], text[-1], parts) if len(parts) > 1 else None


def closes_at_its_end(text):
    """Whether the bracket that opens `text` is open up to its last character: not so in (1,2),(3,4)."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False


def named_tuple(text):
    """-> "a=3, b=4" of (a,b)=(3,4); None where `text` is no such equation."""
    parts = [bracketed(part) for part in sides(text)]
    if len(parts) != 2 or not all(parts) or len(parts[0][2]) != len(parts[1][2]):
        return None
    return ", ".join(f"{name}={value}" for name, value in zip(parts[0][2], parts[1][2]))


def sides(text):
    """The sides of an equation; of a text without one, the text."""
    return top_level(re.sub(r"\\(?:approx|equiv(?!.*mod))(?![a-z])", "=", text), r"(?<![<>!\\])=")


def number_base(text):
    """The 8 of 52_8, as text; None where the text does not end so."""
    match = re.search(r"\d_\{?(\d+)\}?$", squeeze(text))
    return match and match[1]

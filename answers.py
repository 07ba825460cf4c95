"""The answer in a response (box, program, final answer), and when two are equal (App. B.1, C.3).

Its imports are few on purpose: every worker process that compares MATH answers loads this file.
"""
import random
import re
import sys
from decimal import Decimal, InvalidOperation

sys.set_int_max_str_digits(50_000)  # tests and values may hold such numbers, as in LCB's runner

# --------------------------------------------------------------------------------------------------
# MATH: the content of the last box, compared by math-verify

BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")


def last_boxed(text):
    """Content of the last \\boxed (or \\fbox) of `text`, stripped; None if there is none.

    None, too, if it is empty or its braces do not balance.

    As MATH's own grader reads them, \\fbox counts as a box, and one without braces (`$\\boxed 5$`)
    holds what stands between it and the end of its formula or line. The last box alone decides: an
    earlier one never stands in for it.
    """
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        content = re.split(r"\$|\\\)|\\\]|\n", text[start:])[0]
        return content.strip(" \t.,;") or None
    depth = 0
    # \{ and \} are characters, not groups: the first alternative passes over them
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start + 1 : match.start()].strip() or None
    return None


def squeeze(text):
    """`text` without white space."""
    return "".join(text.split())


# A verdict has four steps. 1: `plain_latex` writes equal things alike. 2: `items` takes lists
# apart,
# as math-verify forgets how often an item stands there. 3: `equal_items` compares two items as
# text, choice, interval or equation. 4: `equal_values` compares two values, exactly. What none
# of them decides is math-verify's to say.

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
# signs of Unicode and LaTeX, as math-verify knows them
SIGNS = {
    "√": r"\sqrt ", "–": "-", "—": "-", "−": "-", "‐": "-", "∞": r"\infty ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "×": r"\times ", "÷": r"\div ", "˚": "°", "º": "°", "。": ".",
    "、": ",", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ",
    "⩾": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "π": r"\pi ",
    "ℝ": r"\mathbb{R}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⁄": "/", r"\varnothing": r"\emptyset", r"\leqslant": r"\le",
    r"\geqslant": r"\ge", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", r"\lbrace": r"\{",
    r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")", r"\lor": r"\text{ or }",
    r"\land": r"\text{ and }"}
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# an answer in words for one in signs
PHRASES = {
    r"(?:there (?:is|are) )?no (?:real )?solutions?": r"\emptyset",
    "(?:the )?empty set": r"\emptyset",
    "(?:all|any|every) real(?:s| numbers?)?": r"(-\infty,\infty)"}
FUNCTIONS = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])"


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
    text = re.sub(r"√\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)  # \sqrt alone takes one digit
    wide = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
    text = text.translate(wide | {0x3000: " ", 0xA0: " ", 0x2009: " ", 0x202F: " "})
    for sign, name in SIGNS.items():
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
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
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
    period = r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\s*(?:\{\s*(\d+)\s*\}|(\d))"
    text = re.sub(period, repeating, text)
    word = r"\\text\s*\{\s*percent(?:age)?\s*\}|\bpercent(?:age)?\b"
    text = re.sub(rf"\\?%|(?:\s|\\,)*(?:{word})", r"\\%", text)
    for word, power in SCALES.items():
        name = rf"\\text\s*\{{\s*{word}s?\s*([^{{}}]*)\}}|{word}(?![a-z])"
        text = re.sub(rf"(?<=[\d}}])(?:\\[,;: ]|\s)*(?:{name})",
                      lambda m: rf" \cdot 10^{{{power}}}" + (m[1] and rf"\text{{{m[1]}}}" or ""),
                      text)
    return text


def repeating(match):
    """A repeating decimal as a fraction of two integers."""
    whole, fixed, period = match[1] or "0", match[2], match[3] or match[4]
    number = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{number}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def without_text(text):
    """`text` without the \\text around a part, and whether there was one."""
    bare = re.sub(r"\\(?:text|mbox|mathrm|textbf)\s*\{([^{}]*)\}", r" \1 ", text)
    return bare.replace("\\ ", " ").strip(), bare != text


# --------------------------------------------------------------------------------------------------
# MATH: lists


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
    # 5 ft 3 in: a list of two
    text = re.sub(r"(\\text\s*\{[^{}]*\})(?:\s|\\,)*(?=\d)", r"\1, ", text)
    text = text.replace(r"\;", " ").replace(r"\ ", " ").replace(r"\quad", " ")
    found = []
    for part in top_level(text, rf"{AND_OR}|{COMMA}"):
        if r"\pm" in part:
            for plus, minus in ("+-", "-+"):
                signed = part.replace(r"\pm", plus).replace(r"\mp", minus)
                found.append(re.sub(r"(^|=)\s*\+", r"\1", signed))
        elif part:
            found.append(part)
    return found


def is_set(text):
    return text.startswith(r"\{") or r"\pm" in text


def equal_lists(gold, answer):
    """Do two lists hold equal items equally often, in any order? A set holds each once."""
    left, right = items(gold), items(answer)
    if gold.startswith(r"\{") or answer.startswith(r"\{"):
        left = list(dict.fromkeys(map(squeeze, left)))
        right = list(dict.fromkeys(map(squeeze, right)))
    if len(left) != len(right) or len(left) > 60:
        return False
    if len(left) > 1 and units(left) != units(right) and any(units(left)) and any(units(right)):
        if all(units(left)) and all(units(right)):
            return False
    for item in left:
        equal = next((other for other in right if equal_items(item, other)), None)
        if equal is None:
            return False
        right.remove(equal)
    return True


def units(parts):
    return sorted(squeeze(unit_of(part)[1]).lower().rstrip("s") for part in parts)


# --------------------------------------------------------------------------------------------------
# MATH: one item

WORD = r"[A-Za-z][A-Za-z .'/-]*"
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
    match = re.match(r"\(([A-J])\)(?!\s*[-+*/^=_])|([A-J])[.:)](?=\s|\\|$)|([A-J])$", bare)
    return match and (match[1] or match[2] or match[3])


def clock(text):
    """-> (the time without a.m. or p.m., which of the two); None where it is no time."""
    match = re.fullmatch(r"(\d+:\d\d)\s*(?:([ap])\.?\s*m\.?)?", without_text(text)[0].strip(), re.I)
    return match and (match[1], (match[2] or "").lower())


def equal_items(gold, answer):
    """Are two items equal? Asked in this order: texts, choices, times, brackets, equations."""
    if squeeze(gold) == squeeze(answer):
        return True
    if clock(gold) and clock(answer):
        (time, half), (other, other_half) = clock(gold), clock(answer)
        return time == other and (half == other_half or not half or not other_half)
    choice = choice_of(gold)
    if choice and (choice == choice_of(answer)):
        return True
    words = equal_words(gold, answer)
    if words is not None:
        return words
    gold, answer = without_letter(gold, answer), without_letter(answer, gold)
    gold, answer = unit_of(gold)[0], unit_of(answer)[0]
    if squeeze(gold) == squeeze(answer):
        return True
    if SET_SIGN.search(gold + answer):
        return equal_sets(gold, answer)
    return equal_equations(gold, answer)


def equal_words(gold, answer):
    """Compares words without case and \\text; None where the two are no words."""
    (left, is_text), (right, other_is_text) = without_text(gold), without_text(answer)
    if not (is_text or other_is_text or re.fullmatch("[A-Za-z]{3,}", left)):
        return None
    left, right = (squeeze(side.strip("() .")).lower() for side in (left, right))
    if left == right:
        return True
    for bare, marked in ((left, is_text), (right, other_is_text)):
        if marked and re.fullmatch("[a-z.'-]+", bare):
            return False
    return None


def bracketed(text):
    """-> (opening sign, closing sign, items) of (a,b) and the like; None if it is none."""
    if not re.match(r"[(\[]", text) or text[-1:] not in ")]":
        return None
    parts = top_level(text[1:-1], "[,;]")
    return (text[0], text[-1], parts) if len(parts) > 1 else None


def sides(text):
    """The sides of an equation; of a text without one, the text."""
    return top_level(re.sub(r"\\(?:approx|equiv(?!.*mod))(?![a-z])", "=", text), r"(?<![<>!\\])=")


def equal_equations(gold, answer):
    left, right = sides(gold), sides(answer)
    if len(left) > 1 and len(right) > 1 and squeeze(left[0]) != squeeze(right[0]):
        return equal_relations(gold, answer)
    if len(left) > 1 and len(right) == 1 and not re.fullmatch(r"[\\a-zA-Z_{}\d\s'()\^,]+", left[0]):
        return False
    return equal_values(left[-1], right[-1])


def equal_values(gold, answer):
    left, right = bracketed(gold), bracketed(answer)
    if left and right:
        if len(left[2]) != len(right[2]) or len(left[2]) == 2 and left[:2] != right[:2]:
            return False
        return all(map(equal_items, left[2], right[2]))
    if left or right:
        return False
    return equal_percents(gold, answer)


def equal_percents(gold, answer):
    """Are two values equal? As math-verify has it, 35\\% is 35 or 0.35."""
    values = [expression(text.replace(r"\%", "")) for text in (gold, answer)]
    digits = shown_digits(gold)
    if equal_expressions(*values, digits):
        return True
    percents = r"\%" in gold, r"\%" in answer
    if None in values or percents[0] == percents[1]:
        return False
    left, right = (v / 100 if percent else v for v, percent in zip(values, percents))
    return equal_expressions(left, right, digits)


# --------------------------------------------------------------------------------------------------
# MATH: sets and relations


SET_SIGN = re.compile(
    r"[<>]|\\(?:[lg]eq?|neq?|[lg]t|cup|in|setminus|emptyset|mathbb)(?![a-z])")
SET_BUILDER = re.compile(
    r"^\\\{\s*\w+\s*(?:\\in\s*\\mathbb\{R\}|\\in\s*\\R)?\s*(?:\\mid|\\vert|:|\|)(.*)\\\}$")


def a_word(word):
    """The pattern of a word between two inequalities, in \\text or bare."""
    return rf",?\s*\\text\s*\{{\s*{word}\s*\}}|(?<![a-zA-Z\\]){word}(?![a-zA-Z])"


def set_of(text):
    """-> the sympy set of an interval, a union, or inequalities in one variable; else None."""
    text = SET_BUILDER.sub(r"\1", text.strip())
    text = re.sub(r"^\s*[a-zA-Z]\s*\\in(?![a-z])\s*", "", text).strip()
    if squeeze(text) in (r"\{\}", r"\emptyset"):
        return expression(r"\emptyset")
    either = top_level(text, rf"{a_word('or')}|\\vee(?![a-z])")
    if len(either) > 1:
        sets = list(map(set_of, either))
        return None if None in sets else sets[0].union(*sets[1:])
    both = top_level(text, rf"{a_word('and')}|\\wedge(?![a-z])|,")
    if len(both) > 1 and set(text) & set("<>"):
        sets = list(map(set_of, both))
        return None if None in sets else sets[0].intersect(*sets[1:])
    value = expression(text)
    if getattr(value, "is_Boolean", False) or getattr(value, "is_Relational", False):
        return value.as_set() if len(value.free_symbols) == 1 else None
    return value.doit() if getattr(value, "is_set", False) or hasattr(value, "is_empty") else None


def equal_sets(gold, answer):
    """Are two intervals, unions or inequalities equal? (2,5) is 2 < x < 5."""
    inner = [re.sub(r"^\s*[a-zA-Z]\s*\\in(?![a-z])\s*", "", text) for text in (gold, answer)]
    if all(map(bracketed, inner)) and not re.search(r"\\(?:cup|cap|setminus)", gold + answer):
        return equal_values(*inner)
    left, right = set_of(gold), set_of(answer)
    if left is not None and right is not None:
        return left == right or bool(left.symmetric_difference(right).is_empty)
    if left is not None or right is not None:
        return False
    return equal_relations(gold, answer)


def equal_relations(gold, answer):
    """Are two equations (or inequalities) multiples of one another, or equal to math-verify?"""
    left, right = expression(gold), expression(answer)
    if not (getattr(left, "is_Relational", False) and getattr(right, "is_Relational", False)):
        return asked(left, right)
    try:
        multiple = constant_ratio(left.lhs - left.rhs, right.lhs - right.rhs)
    except (TypeError, AttributeError):
        return asked(left, right)  # f(x) = {1, 2}
    if multiple is not None:
        same = type(left) if multiple > 0 or left.rel_op in ("==", "!=") else type(left.reversed)
        return type(right) is same
    return left.rel_op == "==" and asked(left, right)


def constant_ratio(left, right):
    """-> left / right where it is the same real number at all points; else None."""
    if left.free_symbols != right.free_symbols or not left.free_symbols:
        return None
    for point in points(left.free_symbols):
        first, second = at(left, point), at(right, point)
        if is_zero(first) is False and is_zero(second) is False:
            ratio = first / second
            equal = same_function(left, right * ratio, 0)
            return ratio if equal and ratio.is_real else None
    return None


# --------------------------------------------------------------------------------------------------
# MATH: values

POINTS = 4  # two rational functions that agree at these are equal in practice
PRECISION = 600  # digits until a number that is none of integers' quotients counts as zero


def expression(text):
    """-> the sympy value that math-verify's parser reads in `text`, None if it reads none.

    R and r are two symbols here; i is the imaginary unit.
    """
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I

    if not re.search(r"\\int|\}\s*\{\s*d", text):  # dm is a product, but in an integral or dy/dx
        text = re.sub(r"(?<![a-zA-Z\\])d(?=[a-zA-Z](?![a-zA-Z]))", r"(d)", text)
    normal = NormalizationConfig(
        basic_latex=True, malformed_operators=True, nits=True, boxed="none")
    try:
        value = latex2sympy(
            normalize_latex(text, normal), is_real=True, convert_degrees=False,
            normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False))
        return value.subs({s: I for s in value.free_symbols if s.name == "i"})
    except Exception:
        return None


def asked(left, right):
    """math-verify's own verdict on two sympy values."""
    from math_verify import verify

    return left is not None and right is not None and verify([left], [right], timeout_seconds=None)


def shown_digits(text):
    """Digits that the decimals of `text` show, from the first that is not 0; 0 without decimals."""
    decimals = re.findall(r"\d*\.\d+", text)
    return max((len(number.replace(".", "").lstrip("0")) for number in decimals), default=0)


def equal_expressions(gold, answer, digits):
    """Are two sympy values equal? Exact ones exactly, decimals to `digits` (6 at least)."""
    if gold is None or answer is None:
        return False
    if getattr(gold, "is_Matrix", False) or getattr(answer, "is_Matrix", False):
        gold, answer = gold.doit(), answer.doit()
        if getattr(gold, "shape", 0) != getattr(answer, "shape", 1):
            return False
        return all(equal_expressions(*pair, digits) for pair in zip(gold, answer))
    from sympy import Expr

    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return asked(gold, answer)
    equal = same_function(gold, answer, digits)
    return asked(gold, answer) if equal is None else equal


def points(symbols):
    """-> POINTS assignments of rational numbers to `symbols`; the later ones have both signs."""
    from sympy import Rational

    number = random.Random(0)
    ordered = sorted(symbols, key=str)
    for i in range(POINTS):
        signs = [1] if i < POINTS // 2 else [1, -1] if i % 2 else [-1, 1]
        values = [Rational(number.randint(20, 99), number.randint(7, 19)) for _ in ordered]
        yield {symbol: signs[k % len(signs)] * values[k]
               for k, symbol in enumerate(ordered)}


def at(value, point):
    return value.subs(point).doit()


def defined(value, point):
    """Is no root or logarithm of a negative number taken at `point`?"""
    from sympy import Pow, log

    for part in value.atoms(Pow, log):
        root = part.is_Pow and not part.exp.is_integer and not part.exp.free_symbols
        if (root or not part.is_Pow) and part.args[0].free_symbols:
            if not at(part.args[0], point).is_positive:
                return False
    return True


def same_function(left, right, digits):
    """Do two expressions agree wherever both are defined? None where that cannot be told."""
    if left == right:
        return True
    symbols = left.free_symbols | right.free_symbols
    if not symbols:
        return same_number(left.doit(), right.doit(), digits)
    told = None
    for point in points(symbols):
        if defined(left, point) and defined(right, point):
            told = same_number(at(left, point), at(right, point), digits)
            if not told:
                return told
    return told


def same_number(left, right, digits):
    """Equal numbers? Exact ones exactly; None where one of them is no number."""
    from sympy import Float, nan, zoo

    if left in (nan, zoo) or right in (nan, zoo):
        return None
    if left.is_infinite or right.is_infinite:
        return left == right
    if not (left.has(Float) or right.has(Float)):
        return is_zero(left - right)
    left, right = left.evalf(30), right.evalf(30)
    if not (left.is_real and right.is_real):
        return None
    if left == 0 or right == 0:
        return left == right
    unit = 10 ** Float(decimal_exponent(left) + 1 - max(6, digits), 30)
    # an exact reference may be cut or rounded; math-verify's rule for large numbers: 6 decimals
    unit = min(unit / 2 if digits else unit, Float("1e-6"))
    return bool(abs(left - right) <= unit * Float("1.0000001", 30))


def decimal_exponent(value):
    from sympy import floor, log

    return int(floor(log(abs(value), 10).evalf(20)))


def is_zero(value):
    """Is an exact number 0? None where it is no number."""
    if value.is_Rational:
        return value == 0
    approximation = value.evalf(10, maxn=PRECISION)
    if not approximation.is_number:
        return None
    parts = approximation.as_real_imag()
    if not all(part.is_Float or part.is_Rational for part in parts):
        return None
    # one bit of precision: sympy found no digit of it that is not 0
    return all(part == 0 or getattr(part, "_prec", 2) == 1 for part in parts)


def number_base(text):
    """The 8 of 52_8, as text; None where the text does not end so."""
    match = re.search(r"\d_\{?(\d+)\}?$", squeeze(text))
    return match and match[1]


def math_equal(gold, answer):
    """Does the LaTeX `answer` (content of a box) equal the reference `gold`?

    For the main thread of a process only: a signal stops it after 5 s. An answer that cannot be
    read or compared is wrong.
    """
    from math_verify.errors import TimeoutException
    from math_verify.utils import timeout

    try:
        return bool(timeout(5)(judged)(gold, answer))
    except (Exception, TimeoutException):
        return False


def judged(gold, answer):
    gold, answer = plain_latex(gold), plain_latex(answer)
    bases = number_base(gold), number_base(answer)
    if all(bases) and bases[0] != bases[1]:
        return False
    if any(bases):
        gold, answer = (re.sub(r"_\{?\d+\}?$", "", squeeze(text)) for text in (gold, answer))
    if squeeze(gold) == squeeze(answer):
        return True
    choice = choice_of(gold)
    if choice and choice == choice_of(answer):
        return True
    if SET_SIGN.search(gold + answer):
        return equal_items(gold, answer)
    if is_set(gold) and bracketed(answer) or is_set(answer) and bracketed(gold):
        return False
    left, right = items(gold), items(answer)
    if len(left) > 1 or len(right) > 1 or is_set(gold) or is_set(answer):
        pair = bracketed(gold) or bracketed(answer)
        if pair and pair[0] == "(" and not is_set(gold + answer):  # 2, 3 for (2, 3): in this order
            both = [pair[2] if bracketed(text) else items(text) for text in (gold, answer)]
            return len(both[0]) == len(both[1]) and all(map(equal_items, *both))
        return equal_lists(gold, answer)
    return equal_items(gold, answer)


# --------------------------------------------------------------------------------------------------
# Code: the longest block, LiveCodeBench's comparison

# a fence at the start of its line; behind other text it has one word after it at most
OPENING = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
OPENING_BEHIND_TEXT = re.compile(r"(?:[^`]|`[^`]+`)*[^`~](`{3,}|~{3,})[ \t]*(?:\w+[ \t]*)?$")


def program_of(response):
    """The longest closed fenced block of `response`; None if there is none, or nothing in it."""
    blocks = []
    fence, margin, lines = None, 0, []  # of the block that is open
    for line in response.replace("\r\n", "\n").split("\n"):
        opening = OPENING.match(line) or OPENING_BEHIND_TEXT.match(line)
        last_line = before_closing(line, fence) if fence else None
        if last_line is not None:
            blocks.append(without_margin([*lines, last_line], margin))
            fence = None
        elif opening and (fence is None or opening[1] == fence and line.startswith(fence)):
            # within a block: that one was never closed
            fence, margin, lines = opening[1], opening.start(1), []
        elif fence:
            lines.append(line)
    program = max(blocks, key=len, default="")
    return as_text(program) or None


def before_closing(line, fence):
    """What stands before `fence` in a line that closes its block; None if the line does not.

    Text may follow, other than the one word that an opening fence has.
    """
    bare = line.rstrip(" \t")
    if bare.endswith(fence):
        return bare.rstrip(fence[0])
    mark = fence[0]
    closing = re.match(rf"([ \t>]*){fence}{mark}*(?![\w{{:{mark}]|[ \t]*\w+[ \t]*$)", line)
    return closing and closing[1]


def as_text(text):
    """`text` with ? for half a surrogate pair, which no file and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def without_margin(lines, indent):
    """The text of a block without the margin that a list or a quotation gives it; "" if empty.

    The margin is that of the first line that is not empty, `indent` characters at most.
    """
    text = "\n".join(lines)
    if not text.strip():
        return ""
    margin = re.match(r"(?:[ \t>]*\n)*([ \t>]*)", text)[1][:indent]
    quoted = ">" if ">" in margin else ""
    text = re.sub(rf"^[ \t{quoted}]{{0,{len(margin)}}}", "", text, flags=re.MULTILINE)
    return text.rstrip(" \t\n")


def same_output(actual, expected):
    """Line by line, without white space around; where lines differ, decimal number by number."""
    actual, expected = actual.strip(), expected.strip()
    if actual.count("\n") != expected.count("\n"):  # before millions of lines are split
        return False
    return all(map(same_line, actual.split("\n"), expected.split("\n")))


def same_line(actual, expected):
    actual, expected = actual.strip(), expected.strip()
    if actual == expected:
        return True
    expected = expected.split()
    actual = actual.split(None, len(expected))  # one too many at most: an endless line costs little
    if len(actual) != len(expected):
        return False
    try:
        return all(Decimal(a) == Decimal(e) for a, e in zip(actual, expected))
    except InvalidOperation:
        return False


def same_value(actual, expected):
    """A tuple counts as a list at the top only; then Python's ==."""
    if isinstance(actual, tuple):
        actual = list(actual)
    return actual == expected


# --------------------------------------------------------------------------------------------------
# Of any kind


def final_part(problem, solution):
    """The final code or answer of a response as it would be written; None without one."""
    if problem.verifier == "math":
        box = last_boxed(solution)
        return box and f"\\boxed{{{box}}}"
    if problem.verifier == "code":
        program = program_of(solution)
        return program and f"```python\n{program.rstrip()}\n```"
    _, mark, answer = solution.rpartition("Final answer:")
    return mark and f"{mark} {answer.strip()}"

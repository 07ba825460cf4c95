"""MATH answers as values of sympy: exact numbers compared exactly, functions at points, decimals to their digits."""
import random
import re


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
        # The parser takes I for the imaginary unit too: any letter that nobody uses is another.
        text = re.sub(r"(?<![a-zA-Z\\])I(?![a-zA-Z])", r"\\Upsilon ", text)
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
    yield from assignments(symbols, POINTS, lambda number: (number.randint(20, 99), number.randint(7, 19)))


def far_points(symbols):
    """Large numbers and whole ones, where |x|, steps, and cases may differ that agree near 0."""
    yield from assignments(symbols, POINTS, lambda number: (number.randint(2000, 9999), number.randint(7, 19)))
    yield from assignments(symbols, POINTS, lambda number: (number.randint(2, 99), 1))


def assignments(symbols, count, draw):
    from sympy import Rational

    number = random.Random(0)
    ordered = sorted(symbols, key=str)
    for i in range(count):
        signs = [1] if i < count // 2 else [1, -1] if i % 2 else [-1, 1]
        values = [Rational(*draw(number)) for _ in ordered]
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


def with_cases():
    from sympy import Abs, Max, Min, Piecewise, ceiling, floor, sign

    return Abs, Max, Min, Piecewise, ceiling, floor, sign


def same_function(left, right, digits):
    """Do two expressions agree wherever both are defined? None where that cannot be told."""
    if left == right:
        return True
    symbols = left.free_symbols | right.free_symbols
    if not symbols:
        return same_number(left.doit(), right.doit(), digits)
    told = None
    has_cases = left.has(*with_cases()) or right.has(*with_cases())
    for point in [*points(symbols), *(far_points(symbols) if has_cases else ())]:
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
    from sympy import Float

    if value.is_Rational:
        return value == 0
    approximation = value.evalf(10, maxn=PRECISION)
    if not approximation.is_number:
        return None
    parts = approximation.as_real_imag()
    if not all(part.is_Float or part.is_Rational for part in parts):
        return None
    # one bit of precision: sympy found no digit of it that is not 0
    return all(getattr(part, "_prec", 2) == 1 or abs(part) < Float("1e-500") for part in parts)


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

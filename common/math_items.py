"""When two MATH answers are equal (answers.math_equal).

A verdict has four steps. `plain_latex` writes equal things alike. `items` takes lists apart, as math-verify forgets how
often an item stands there. `equal_items` compares two items as texts, choices, intervals or equations. `equal_values`
compares two values, exactly. What none of them decides is math-verify's to say.
"""
import re

from common.math_text import (
    QUALIFIERS, bracketed, choice_of, clock, is_set, items, named_tuple, number_base, plain_latex, same_text, sides,
    squeeze, top_level, unit_name, unit_of, units, without_letter, without_text)
from common.math_values import (
    asked, constant_ratio, equal_expressions, expression, shown_digits)


def judged(gold, answer):
    gold, answer = plain_latex(gold), plain_latex(answer)
    bases = number_base(gold), number_base(answer)
    if all(bases) and bases[0] != bases[1]:
        return False
    if any(bases):
        gold, answer = (re.sub(r"_\{?\d+\}?$", "", squeeze(text)) for text in (gold, answer))
        if re.search("[A-Z]", gold):  # its digits are no variables
            return gold == answer
    if same_text(gold, answer):
        return True
    if re.search(r"\+\s*C$", gold):  # the constant of an integral
        answer = re.sub(r"(\+\s*)c$", r"\1C", answer)
    if not (bracketed(gold) or bracketed(answer)):
        gold, answer = named_tuple(gold) or gold, named_tuple(answer) or answer
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
            both = [(bracketed(text) or (0, 0, items(text)))[2] for text in (gold, answer)]
            return len(both[0]) == len(both[1]) and all(map(equal_items, *both))
        return equal_lists(gold, answer)
    return equal_items(gold, answer)


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
    if are_named(left) != are_named(right):  # 3, 4 for a = 3, b = 4: in this order
        return all(map(equal_items, left, right))
    for item in left:
        equal = next((other for other in right if of_one_kind(item, other) and equal_items(item, other)), None)
        if equal is None:
            return False
        right.remove(equal)
    return True


def are_named(parts):
    """Whether all items are equations of different variables."""
    names = [squeeze(sides(part)[0]) for part in parts if len(sides(part)) > 1]
    return len(parts) > 1 and len({*names}) == len(parts)


def of_one_kind(item, other):
    """Not 3 red and 3 blue, where both items of two lists have words."""
    found = []
    for text in (item, other):
        bare = re.sub(r"\\(?!text)[a-zA-Z]+", " ", text)
        inner = " ".join(re.findall(r"\\text\s*\{([^{}]*)\}", bare)).lower()
        words = re.findall("[a-z]+", inner) + re.findall(r"(?<![a-zA-Z\\{])[a-z]{3,}", bare)
        found.append(sorted(map(unit_name, {*words})))
    return not all(found) or found[0] == found[1]


def equal_items(gold, answer):
    """Are two items equal? Asked in this order: texts, choices, times, brackets, equations."""
    if same_text(gold, answer):
        return True
    if {*QUALIFIERS.findall(gold)} != {*QUALIFIERS.findall(answer)}:
        return False
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
    if same_text(gold, answer):
        return True
    if SET_SIGN.search(gold + answer):
        return equal_sets(gold, answer)
    return equal_equations(gold, answer)


def equal_words(gold, answer):
    """Compares words without case and \\text; None where the two are no words."""
    (left, is_text), (right, other_is_text) = without_text(gold), without_text(answer)
    if not (is_text or other_is_text or re.fullmatch("[A-Za-z]{4,}|(?i:yes|odd)", left)):
        return None
    left, right = (squeeze(side.strip("() .")).lower() for side in (left, right))
    if left == right:
        return True
    for bare, marked in ((left, is_text), (right, other_is_text)):
        if marked and re.fullmatch("[a-z.'-]+", bare):
            return False
    return None


# x, x_1, AB, f(x), f^{-1}(x), P(A), \angle ABC, \text{Area}
NAME = re.compile(r"(?:\\(?!sqrt|[dt]?frac|sum|int|log|ln)[a-zA-Z]+\s*)*[\[{]?[a-zA-Z ]*[\]}]?(?:_\{?\w+\}?)?'*"
                  r"(?:\^\{?-1\}?)?(?:\([^()=]*\))?")


def equal_equations(gold, answer):
    left, right = sides(gold), sides(answer)
    if len(left) > 1 and len(right) > 1 and squeeze(left[0]) != squeeze(right[0]):
        return equal_relations(gold, answer)
    if len(left) > 1 and len(right) == 1 and not NAME.fullmatch(left[0]):
        return False  # an equation was asked for, and not its right side
    return equal_values(left[-1], right[-1])


def equal_values(gold, answer):
    left, right = bracketed(gold), bracketed(answer)
    if left and right:
        brackets = {left[0] + left[1], right[0] + right[1]}
        if len(left[2]) != len(right[2]) or len(left[2]) == 2 and len(brackets) > 1 or brackets & {"(]", "[)"} and len(
                brackets) > 1:
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
    letters = [variables(text) for text in (gold, answer)]
    if all(letters) and letters[0] != letters[1]:
        return False
    if any(len(names) > 1 for names in letters) and len(items(gold)) > 1:
        return equal_lists(gold, answer)
    inner = [re.sub(r"^\s*[a-zA-Z]\s*\\in(?![a-z])\s*", "", text) for text in (gold, answer)]
    if all(map(bracketed, inner)) and not re.search(r"\\(?:cup|cap|setminus)", gold + answer):
        return equal_values(*inner)
    left, right = set_of(gold), set_of(answer)
    if left is not None and right is not None:
        return left == right or bool(left.symmetric_difference(right).is_empty)
    if left is not None or right is not None:
        return False
    return equal_relations(gold, answer)


def variables(text):
    """The letters of an inequality; none of a text without one."""
    if not re.search(r"[<>]|\\[lg](?:eq?|t)(?![a-z])", text):
        return set()
    bare = re.sub(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|and|or", " ", text)
    return set(re.findall("[a-zA-Z]", bare)) - {"e"}


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

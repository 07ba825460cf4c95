"""The answer in a response (box, program, final answer), and when two are equal (App. B.1, C.3).

Its imports are few on purpose: every worker process that compares MATH answers loads this file.
"""
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


SUPERSCRIPTS = {ord("²"): "2", ord("³"): "3"}
# signs of Unicode that LaTeX has names for
SIGNS = {"√": r"\sqrt ", "–": "-", "—": "-", "∞": r"\infty ", r"\varnothing": r"\emptyset"}


def plain_latex(text):
    """`text` without what changes no value but is beyond math-verify 0.9.0.

    That is: dollar signs (they would end the formula), punctuation and line ends behind it, degree
    signs other than ^\\circ, ties, spaces between groups of three digits, and SIGNS.
    """
    text = re.sub("[²³]+", lambda match: "^{" + match[0].translate(SUPERSCRIPTS) + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)  # \sqrt alone takes one digit
    for sign, name in SIGNS.items():
        text = text.replace(sign, name)
    text = re.sub(r"\\?\$", "", text)
    text = re.sub(r"\^?(?:°|\\degree(?![a-zA-Z]))", r"^\\circ", text)
    text = re.sub(r"(?<=\d)(?:\\[,:; ]|[ ~])(?=\d{3}(?!\d))", "", text)
    text = text.replace("~", " ")
    return re.sub(r"(?:[\s.,;]|\\\\|\\newline)+$", "", text).strip()


def number_base(text):
    """The 8 of 52_8, as text; None where the text does not end so."""
    match = re.search(r"\d_\{?(\d+)\}?$", squeeze(text))
    return match and match[1]


def parse_latex(text):
    """-> what math-verify makes of `text`, read as one formula.

    Nothing is searched for in it: no box, no number, no phrase such as "the answer is".
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    normal = NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none")
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)
    return parse(f"$${text}$$", [config], extraction_mode="first_match")


def math_equal(gold, answer):
    """Does the LaTeX `answer` (content of a box) equal the reference `gold`?

    For the main thread of a process only: math-verify stops itself with a signal after 5 s of
    parsing or comparing. That is no fault: an answer that it cannot read or compare is simply
    wrong. Two of its habits are corrected: it drops the base of 52_8, and it rounds to 6 decimals
    even where the reference has more. Others stay: units are dropped, 35\\% equals 35 and 0.35, a
    list has no order.
    """
    from math_verify import verify

    bases = number_base(gold), number_base(answer)
    if all(bases) and bases[0] != bases[1]:
        return False
    gold, answer = plain_latex(gold), plain_latex(answer)
    decimals = max(map(len, re.findall(r"\.(\d+)", gold)), default=0)
    # gold first: verify is not symmetric
    return verify(parse_latex(gold), parse_latex(answer), float_rounding=max(6, decimals))


# --------------------------------------------------------------------------------------------------
# Code: the longest block, LiveCodeBench's comparison

# a fence at the start of its line; behind other text it has one word after it at most
OPENING = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
OPENING_BEHIND_TEXT = re.compile(r"(?:[^`]|`[^`]+`)*[^`~](`{3,}|~{3,})[ \t]*(?:\w+[ \t]*)?$")


def program_of(response):
    """The longest closed fenced block of `response`; None if there is none, or nothing in it."""
    lines = response.replace("\r\n", "\n").split("\n")
    blocks, number = [], 0
    while number < len(lines):
        opening = opening_of(lines[number])
        number += 1
        if opening:
            # A fence within a string of the program is a line of it, where the string ends.
            block, end = block_at(lines, number, opening, True) or block_at(
                lines, number, opening, False) or (None, len(lines))
            blocks += [block] if block is not None else []
            number = end
    # A file may begin with a byte order mark, and runs.
    program = max(blocks, key=len, default="").removeprefix("\ufeff")
    return as_text(program) or None


def opening_of(line):
    return OPENING.match(line) or OPENING_BEHIND_TEXT.match(line)


def block_at(lines, first, opening, knows_strings):
    """The block that begins at the line `first` after its opening fence.

    -> (its text, the number of the line after it); (None, that of another opening) if it was never
    closed; None if the lines end before. knows_strings: lines within triple quotes are no fences.
    """
    fence, quote = opening[1], None
    for number, line in enumerate(lines[first:], first):
        in_string = quote is not None
        if knows_strings:
            quote = open_quote(line, quote)
        if in_string:
            continue
        last_line = before_closing(line, fence)
        if last_line is not None:
            return without_margin([*lines[first:number], last_line], opening.start(1)), number + 1
        new = opening_of(line)
        if new and new[1] == fence and line.startswith(fence):
            return None, number
    return None


# what hides a triple quote, or is one: a comment, a string on one line
STRING = re.compile(r"""#.*|\"{3}|'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
STRING_END = {mark: re.compile(rf"(?:\\.|[^\\])*?{mark}") for mark in ('"""', "'''")}


def open_quote(line, quote):
    """The triple quote that is open after a line of Python, or None; `quote`: before it."""
    place = 0
    while True:
        if quote:
            end = STRING_END[quote].match(line, place)
            if not end:
                return quote
            place = end.end()
        found = STRING.search(line, place)
        if not found:
            return None
        place = found.end()
        quote = found[0] if found[0] in STRING_END else None


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

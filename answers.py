"""The answer in a response (box, program, final answer), and when two are equal (App. B.1, C.3).

Its imports are few on purpose: every worker process that compares MATH answers loads this file.
"""
import ast
import re
import sys
import warnings
from decimal import Decimal, InvalidOperation

from common.math_items import judged

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


def math_equal(gold, answer, strict=False):
    """Does the LaTeX `answer` (content of a box) equal the reference `gold`?

    strict: math-verify's bare verdict; else `judged` of common/math_items.py, which corrects it.
    For the main thread of a process only: a signal stops it after 5 s. An answer that cannot be
    read or compared is wrong.
    """
    from math_verify.errors import TimeoutException
    from math_verify.utils import timeout

    try:
        return bool(timeout(5)(bare_verdict if strict else judged)(gold, answer))
    except (Exception, TimeoutException):
        return False


def bare_verdict(gold, answer):
    """math-verify's own, of two boxes."""
    from math_verify import parse, verify

    # gold first: verify is not symmetric
    boxes = [parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer)]
    return verify(*boxes, timeout_seconds=None)


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
            block, number = block_of(lines, number, opening)
            blocks += [block] if block is not None else []
    # A file may begin with a byte order mark, and runs.
    program = max(blocks, key=len, default="").removeprefix("\ufeff")
    return as_text(program) or None


def opening_of(line):
    return OPENING.match(line) or OPENING_BEHIND_TEXT.match(line)


def block_of(lines, first, opening):
    """-> (text of the block that begins at `first`, or None; the number of the line after it).

    A fence within a string or a comment of a program is a part of it.
    """
    as_python = block_at(lines, first, opening, True)
    plain = block_at(lines, first, opening, False)
    is_certain = as_python == plain or as_python and is_python(as_python[0])
    return (as_python if is_certain else plain) or (None, len(lines))


def is_python(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings
        try:
            return text is not None and ast.parse(text) is not None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False


def block_at(lines, first, opening, knows_python):
    """The block that begins at the line `first` after its opening fence.

    -> (its text, the number of the line after it); (None, that of another opening) if it was never
    closed; None if the lines end before. knows_python: strings and comments of Python hold no
    fences.
    """
    fence, quote = opening[1], None
    for number in range(first, len(lines)):
        line = lines[number]
        last_line = before_closing(line, fence)
        if knows_python:
            in_string = quote or number > first and lines[number - 1].endswith("\\")
            quote = open_quote(line, quote)
            if in_string or (last_line or "").lstrip(" \t>").startswith("#"):
                continue
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

"""The answer in a response (box, program, final answer), and when two answers are equal (App. B.1, C.3)."""
import re
import sys
from decimal import Decimal, InvalidOperation

sys.set_int_max_str_digits(50_000)  # tests and values may hold such numbers, as in LiveCodeBench's runner


# ---------------------------------------------------------------------------------------------------------------------
# MATH: the content of the last box, compared by math-verify


def last_boxed(text):
    """Content of the last \\boxed (or \\fbox) of `text`, stripped; None without one, or if it is empty or unbalanced.

    As MATH's own grader reads them, \\fbox counts as a box, and a box without braces (`$\\boxed 5$`) holds what stands
    between it and the end of its formula or line. The last box alone decides: an earlier one never stands in for it.
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*", text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        return re.split(r"\$|\\\)|\\\]|\n", text[start:])[0].strip(" \t.,;") or None
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):  # \{ and \} are characters, not groups
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start + 1 : match.start()].strip() or None
    return None


def squeeze(text):
    """`text` without white space."""
    return "".join(text.split())


def plain_latex(text):
    """`text` without what changes no value but is beyond math-verify 0.9.0: dollar signs (they would end the formula),
    punctuation and line ends behind it, degree signs other than ^\\circ, ties, spaces between groups of three digits,
    signs of Unicode that LaTeX has names for."""
    text = re.sub("[²³]+", lambda match: "^{" + match[0].translate({ord("²"): "2", ord("³"): "3"}) + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)  # \sqrt alone takes one digit
    signs = {"√": r"\sqrt ", "–": "-", "—": "-", "∞": r"\infty ", r"\varnothing": r"\emptyset"}
    for sign, name in signs.items():
        text = text.replace(sign, name)
    text = re.sub(r"\\?\$", "", text)
    text = re.sub(r"\^?(?:°|\\degree(?![a-zA-Z]))", r"^\\circ", text)
    text = re.sub(r"(?<=\d)(?:\\[,:; ]|[ ~])(?=\d{3}(?!\d))", "", text)
    return re.sub(r"(?:[\s.,;]|\\\\|\\newline)+$", "", text.replace("~", " ")).strip()


def math_equal(gold, answer):
    """Does the LaTeX `answer` (content of a box) equal the reference `gold`? For the main thread of a process only.

    math-verify stops itself after 5 s of parsing or comparing. That is no fault: an answer that it cannot read or
    compare is simply wrong. Two of its habits are corrected: it drops the base of 52_8, and it rounds to 6 decimals
    even where the reference has more. Others stay: units are dropped, 35\\% equals 35 and 0.35, a list has no order.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    bases = [re.search(r"\d_\{?(\d+)\}?$", squeeze(text)) for text in (gold, answer)]
    if all(bases) and bases[0][1] != bases[1][1]:
        return False
    # The whole text is one formula: no search for boxes, numbers or phrases like "the answer is" within it.
    normal = NormalizationConfig(basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none")
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)]
    gold, answer = plain_latex(gold), plain_latex(answer)
    parsed = [parse(f"$${text}$$", config, extraction_mode="first_match") for text in (gold, answer)]
    decimals = max(map(len, re.findall(r"\.(\d+)", gold)), default=0)
    return verify(parsed[0], parsed[1], float_rounding=max(6, decimals))  # gold first: verify is not symmetric


# ---------------------------------------------------------------------------------------------------------------------
# Code: the longest block, LiveCodeBench's comparison


def program_of(response):
    """The longest closed fenced block of `response`; None if there is none, or nothing in it."""
    blocks, fence, indent, lines = [], None, 0, []
    for line in response.replace("\r\n", "\n").split("\n"):
        opening = re.match(r"\s*(`{3,}(?=[^`]*$)|~{3,})", line)
        opening = opening or re.match(r"(?:[^`]|`[^`]+`)*[^`~](`{3,}|~{3,})[ \t]*(?:\w+[ \t]*)?$", line)  # behind text
        bare, last = line.rstrip(" \t"), None
        if fence and bare.endswith(fence):
            last = bare.rstrip(fence[0])
        elif fence:  # before other text, other than the one word that an opening fence has
            closing = re.match(rf"([ \t>]*){fence}{fence[0]}*(?![\w{{:{fence[0]}]|[ \t]*\w+[ \t]*$)", line)
            last = closing and closing[1]
        if last is not None:
            blocks.append(without_margin(lines + [last], indent))
            fence = None
        elif opening and (fence is None or opening[1] == fence and line.startswith(fence)):
            fence, indent, lines = opening[1], opening.start(1), []  # within a block: that one was never closed
        elif fence:
            lines.append(line)
    program = max(blocks, key=len, default="").encode("utf-8", "replace").decode()  # half a surrogate pair is no text
    return program or None


def without_margin(lines, indent):
    """The text of a block without the margin, `indent` at most, that a list or a quotation gives it; "" if empty."""
    text = "\n".join(lines)
    margin = re.match(r"(?:[ \t>]*\n)*([ \t>]*)", text)[1][:indent]  # of the first line that is not empty
    quoted = ">" if ">" in margin else ""
    text = re.sub(rf"^[ \t{quoted}]{{0,{len(margin)}}}", "", text, flags=re.MULTILINE)
    return text.rstrip(" \t\n") if text.strip() else ""


def same_output(actual, expected):
    """Line by line, without white space around; lines that differ must be the same decimal numbers, exactly."""
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
    try:
        return len(actual) == len(expected) and all(Decimal(a) == Decimal(e) for a, e in zip(actual, expected))
    except InvalidOperation:
        return False


def same_value(actual, expected):
    """A tuple counts as a list at the top only; then Python's ==."""
    return (list(actual) if isinstance(actual, tuple) else actual) == expected


# ---------------------------------------------------------------------------------------------------------------------
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

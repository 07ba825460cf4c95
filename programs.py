"""The verdict of a program (App. C.2): its tests, LiveCodeBench's comparison, the feedback that the policy may see.

Public and private tests run alike, as ordinary Python: the program is the longest closed fenced block, each test has a
process of its own, and SystemExit ends a test normally. The paper grades public tests with SDPO's executor and private
ones with LiveCodeBench's runner; the quirks in which those two differ from Python, and from one another, are left out.
Comparison is LiveCodeBench's, and it happens here: what is expected never enters the process of the program.
"""
import ast
import builtins
import json
import re
import sys
from dataclasses import replace
from decimal import Decimal, InvalidOperation

import evalplus
import sandbox
from execution import encode

LINE_CHARACTERS, INPUT_LINES, VALUE_CHARACTERS = 250, 8, 250  # App. C.2
EXCEPTION_CHARACTERS, FEEDBACK_CHARACTERS = 300, 2_000
CALLS = 200  # of the program, in one assert: each costs two processes
sys.set_int_max_str_digits(50_000)  # tests and values may hold such numbers, as in LiveCodeBench's runner
NO_BLOCK = "Incorrect Format: Put your code inside a ```python ... ``` block."
TRUNCATED = ("Truncated Attempt: Your previous response was too long and truncated because it reached the maximum "
             "response length. Try again with a shorter response.")
NO_PROGRAM = "No program was found in the answer: put it inside a ```python ... ``` block."


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


# ---- Comparison, by LiveCodeBench's rules ----------------------------------------------------------------------------


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


# ---- Tests ----------------------------------------------------------------------------------------------------------


def run_tests(problem, program, tests):
    """-> iterator of (passed, Outcome), one for each of `tests`, [input, expected] pairs; stdout of a failed call: its
    value as text."""
    kind, name, seconds = (problem.tests[key] for key in ("type", "fn_name", "time_limit"))
    if kind == "stdin":
        inputs = [given.replace("\r\n", "\n") for given, _ in tests]  # a test written on Windows is no trap
        for (_, expected), outcome in zip(tests, sandbox.run_scripts(program, inputs, seconds)):
            yield outcome.kind == "ok" and same_output(outcome.stdout, expected), outcome
        return
    runs = [[{"call": name, "args": [encode(json.loads(line)) for line in given.split("\n")]}] for given, _ in tests]
    outcomes = sandbox.run_modules(program, runs, seconds, imports=problem.imports, star_imports=True)
    for (_, expected), (*_, outcome) in zip(tests, outcomes):
        passed = outcome.kind == "ok" and same_value(outcome.value, json.loads(expected))
        yield passed, outcome if passed else replace(outcome, stdout=value_text(outcome.value))


def value_text(value):
    """A value as JSON where that says all, as Python writes it otherwise."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        if same_value(value, json.loads(text)):
            return text
    except (TypeError, ValueError):
        pass  # no JSON: sets, keys that are tuples
    try:
        return repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "(too many digits to show)"


def cut(text, characters):
    return text if len(text) <= characters else text[:characters] + "..."


def shown(text):
    """The beginning of what a program said, without the addresses of objects: those differ from run to run."""
    return re.sub(r"\bat 0x[0-9a-fA-F]+", "at 0x...", text[: 2 * FEEDBACK_CHARACTERS])


def input_text(problem, given):
    """An input as the feedback shows it: named arguments where the starter code names them."""
    lines = given.rstrip().replace("\r\n", "\n").split("\n")
    names = argument_names(problem.starter_code, problem.tests["fn_name"])
    if len(names) == len(lines):
        lines = [f"{name} = {line}" for name, line in zip(names, lines)]
    more = len(lines) - INPUT_LINES
    lines = [cut(line, LINE_CHARACTERS) for line in lines[:INPUT_LINES]]
    return "\n".join(lines + [f"... ({more} more lines)"] * (more > 0))


def argument_names(starter_code, function):
    """The arguments of the method or function that the starter code, which has no body, begins."""
    try:
        nodes = ast.walk(ast.parse(starter_code.rstrip() + " pass"))
    except SyntaxError:
        return []
    return [arg.arg for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function
            for arg in node.args.args if arg.arg != "self"]


def tests_feedback(problem, results):
    """Feedback on [input, expected] tests: the first exception; else the first time limit; else the two shortest wrong
    answers. results: [(number of the test from 1, input, expected, Outcome, length of its output)] of what failed."""
    for number, given, expected, outcome, _ in results:
        if outcome.kind == "error":
            frames = [f"  {source}\nLine {line} in {name} (Solution.py)" for line, source, name in outcome.frames]
            return "\n".join(["Runtime Error", shown(outcome.error), *frames, "", "Last Executed Input",
                              input_text(problem, given)])
    for number, given, expected, outcome, _ in results:
        if outcome.kind == "timeout":
            return f"Time Limit Exceeded\n\nLast Executed Input\n{input_text(problem, given)}"
    shortest = sorted(results, key=lambda result: len(result[1]) + result[4])[:2]
    return "\n\n".join(
        f"Test Case {number}: Wrong Answer\n\nInput\n{input_text(problem, given)}\n\n"
        f"Output\n{cut(outcome.stdout, VALUE_CHARACTERS)}\n\nExpected\n{cut(expected.strip(), VALUE_CHARACTERS)}"
        for number, given, expected, outcome, _ in shortest)


# ---- Asserts --------------------------------------------------------------------------------------------------------


def tested_names(statement, imports):
    """-> (the names of the program's functions and classes that an assert tests, the modules of Python's library that
    it uses and leaves to the program to import); nothing if there is more in it than asserts."""
    nodes = list(ast.walk(ast.parse(statement)))
    if not all(isinstance(node, ast.Assert) for node in nodes[0].body):
        return [], []
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    known = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)} | set(dir(builtins))
    known |= {alias.asname or alias.name.split(".")[0] for line in imports for node in ast.walk(ast.parse(line))
              if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    modules = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    modules &= sys.stdlib_module_names - known
    own = set(names) - known - modules
    if not own:  # the tested function has the name of a built-in one
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        own = called if len(called) == 1 else own
    return sorted(own), sorted(modules)


def run_asserts(problem, program, statements):
    """-> Outcomes of loading the program, then one for each assert (none if loading failed).

    An assert runs in a process without the program, so that the program never sees what is expected, nor what compares
    it: where the assert calls the program's function, that call runs in a process with the program, and its value is
    put in. An object of the program's own classes stays in that process: it takes part in calls, and in comparisons and
    sums with other such objects; every plain value differs from it, so that no `__eq__` of the program's making passes.
    Beside the program, which could then cheat, run only tests that hold other statements, that call several built-in
    names and none of the program's, or that give the program what is neither a plain value nor its own: a function, an
    object of a library. More than CALLS calls are an error.
    """
    seconds, imports, loaded = problem.tests["time_limit"], list(problem.imports), sandbox.Outcome("ok")
    used = [tested_names(statement, imports) for statement in statements]
    names = [own for own, _ in used]
    lines = ["".join(f"import {name}\n" for name in used[n][1]) + text for n, text in enumerate(statements)]
    calls, known, outcomes = ([[] for _ in statements] for _ in range(3))
    while pending := [number for number, outcome in enumerate(outcomes) if not outcome]:
        apart = [number for number in pending if names[number]]
        runs = [[{"judge": lines[n], "own": names[n], "known": known[n]}] for n in apart]
        for number, (*_, outcome) in zip(apart, sandbox.run_modules("", runs, seconds, imports=imports)):
            if outcome.kind != "ok" or not outcome.value:
                outcomes[number] = outcome
            elif len(calls[number]) == CALLS:  # no reason to run it beside the program: that can return what is endless
                error = f"RuntimeError: more than {CALLS} calls in one assert"
                outcomes[number] = sandbox.Outcome("error", error=error)
            elif "whole" in outcome.value:
                names[number] = []
            else:
                calls[number].append(outcome.value)
        pending = [number for number in pending if not outcomes[number]]
        runs = [calls[n] if names[n] else [{"exec": statements[n]}] for n in pending]
        for number, (loaded, *steps) in zip(pending, sandbox.run_modules(program, runs, seconds, imports=imports)):
            if loaded.kind != "ok":
                return [loaded]
            if steps[-1].kind != "ok" or not names[number]:
                outcomes[number] = steps[-1]
            known[number] = [encode(step.value) for step in steps]
    return [loaded, *outcomes]


def asserts_feedback(statements, loaded, outcomes, seconds):
    """Feedback on asserts: how many passed, and each that failed with its exception (App. C.2)."""
    timeout = f"Execution timed out after {seconds:g} seconds."
    if loaded.kind == "timeout":
        return timeout
    if loaded.kind == "error":
        broken = re.match("(SyntaxError|IndentationError|TabError)", loaded.error)
        what = "The program does not compile" if broken else "The program raised an exception before any test ran"
        where = f" (line {loaded.frames[0][0]})" if loaded.frames else ""
        return f"{what}: {shown(loaded.error)[:EXCEPTION_CHARACTERS]}{where}"
    failed = [f"{statement}\n{timeout if outcome.kind == 'timeout' else shown(outcome.error)[:EXCEPTION_CHARACTERS]}"
              for statement, outcome in zip(statements, outcomes) if outcome.kind != "ok"]
    if not failed:
        return "All public asserts passed."
    first = f"Public test results: {len(statements) - len(failed)}/{len(statements)} asserts passed."
    return "\n".join([first, *failed])


# ---- The verdict ----------------------------------------------------------------------------------------------------


def verdict(problem, response, truncated):
    """-> (reward, correct, feedback, signature); RuntimeError if the sandbox fails, BadInput if there is none."""
    tests, program = problem.tests, program_of(response)
    public, private, asserts = tests["public"], tests["private"], tests["type"] == "assert"
    if program is None:
        return 0, 0, NO_PROGRAM if asserts else TRUNCATED if truncated else NO_BLOCK, None
    if asserts:
        loaded, *outcomes = run_asserts(problem, program, public)
        passed = bool(outcomes) and all(outcome.kind == "ok" for outcome in outcomes)
        feedback = asserts_feedback(public, loaded, outcomes, tests["time_limit"])
        correct = passed and all(outcome.kind == "ok" for outcome in run_asserts(problem, program, private))
        if "plus" in tests:  # MBPP+
            correct = correct and evalplus.passes(problem, program)
    else:
        failed = []
        for number, ((given, expected), (right, outcome)) in enumerate(
                zip(public, run_tests(problem, program, public)), 1):  # a name for the iterator would hold its slot
            if not right:  # keep what may be shown: outputs may be large
                output = outcome.stdout.strip()
                kept = replace(outcome, stdout=shown(output), value=None)
                failed.append((number, given, expected, kept, len(output)))
                if tests.get("stop_at_first_failure"):
                    break
        passed, feedback = not failed, tests_feedback(problem, failed)
        correct = passed and all(right for right, _ in run_tests(problem, program, private))
    feedback = feedback[:FEEDBACK_CHARACTERS].encode("utf-8", "replace").decode()  # no tokenizer takes half a pair
    return int(passed), int(correct), feedback, None if passed else feedback

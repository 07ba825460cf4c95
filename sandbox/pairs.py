"""[input, expected] beside a program: what is expected never enters the process of the program (App. C.2)."""
import json
from dataclasses import replace

from answers import same_output, same_value
from sandbox import run
from sandbox.program import encode


def answer_of(problem, program):
    """A with block's sandbox for the program of an answer."""
    functional = problem.tests["type"] == "functional"
    return run.answer(program, imports=problem.imports, star_imports=functional)


def run_tests(problem, answer, tests):
    """-> iterator of (passed, Outcome), one for each of `tests`, a list of [input, expected]."""
    if problem.tests["type"] == "stdin":
        return run_stdin_tests(problem, answer, tests)
    return run_functional_tests(problem, answer, tests)


def run_stdin_tests(problem, answer, tests):
    # a test written on Windows is no trap
    inputs = [given.replace("\r\n", "\n") for given, _ in tests]
    outcomes = answer.run_scripts(inputs, problem.tests["time_limit"])
    for (_, expected), outcome in zip(tests, outcomes):
        yield outcome.kind == "ok" and same_output(outcome.stdout, expected), outcome


def run_functional_tests(problem, answer, tests):
    """The stdout of a failed call is its value as text: what the feedback shows."""
    runs = []
    for given, _ in tests:
        arguments = [encode(json.loads(line)) for line in given.split("\n")]
        runs.append([{"call": problem.tests["fn_name"], "args": arguments}])
    results = answer.run_modules(runs, problem.tests["time_limit"])
    for (_, expected), (*_, outcome) in zip(tests, results):
        passed = outcome.kind == "ok" and same_value(outcome.value, json.loads(expected))
        if not passed:
            outcome = replace(outcome, stdout=value_text(outcome.value))
        yield passed, outcome


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

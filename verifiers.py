"""The verifier of an answer: reward r, feedback f, correct s (Section 2.1, App. B.1, C.2, C.3).

    reward    in {0, 1}: what the policy may see; code: all public tests pass; else: judged correct
    correct   in {0, 1}: what the pass rate counts; code: public and private tests pass; else: r
    feedback  text that the policy may see; empty for MATH and the judge, which give a verdict only
    signature what makes two wrong answers the same error (App. A); None is never a repeat

MATH is decided by math-verify on the content of the last \\boxed{} (answers.py). The judge runs on
the engine: explore.py and evaluate.py await it.

Public and private tests of a program run alike, as ordinary Python: the program is the longest
closed fenced block, each test has a process of its own, and SystemExit ends a test normally. The
paper grades public tests with SDPO's executor and private ones with LiveCodeBench's runner; the
quirks in which those two differ from Python, and from one another, are left out. Comparison is
LiveCodeBench's (sandbox/pairs.py); what is expected never enters the process of the program.

    python verifiers.py FILE.jsonl
    # {"problem": {...}, "response": "...", "truncated": false} a line -> its verdict
"""
import ast
import json
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import prompts
from answers import as_text, last_boxed, program_of
from benches import grader, mbpp
from benches.own import problem_from_row
from common.errors import BadInput, ContextTooLong, exit_with_sentence, rows
from common.flags import Parser
from common.math_text import same_text, squeeze
from sandbox import run
from sandbox.asserts import run_asserts
from sandbox.pairs import answer_of, run_tests
from sandbox.workers import LONGEST_ANSWER, Workers

# App. C.2
LINE_CHARACTERS, INPUT_LINES, VALUE_CHARACTERS = 250, 8, 250
EXCEPTION_CHARACTERS, FEEDBACK_CHARACTERS = 300, 2_000
NO_BLOCK = "Incorrect Format: Put your code inside a ```python ... ``` block."
TRUNCATED = (
    "Truncated Attempt: Your previous response was too long and truncated because it reached the "
    "maximum response length. Try again with a shorter response.")
NO_PROGRAM = "No program was found in the answer: put it inside a ```python ... ``` block."


@dataclass(frozen=True)
class Verdict:
    reward: int  # r in {0, 1}
    correct: int | None  # s in {0, 1}; None while the private tests of a program are not graded
    feedback: str  # f
    signature: str | None  # App. A
    fault: str | None = None  # why the verifier itself failed; the answer then counts as wrong


# --------------------------------------------------------------------------------------------------
# MATH


def math_verdict(problem, response, ask):
    """Verdict of a MATH answer; `ask(gold, answer)` -> (equal, fault) is a worker's."""
    answer = last_boxed(response)
    if answer is None:
        return Verdict(0, 0, "", None)
    signature, fault = squeeze(answer), None
    # equal texts need no worker, and are equal even where no parser reads them
    equal = same_text(answer, problem.answer)
    if not equal and len(answer) <= LONGEST_ANSWER:
        equal, fault = ask(problem.answer, answer)
    return Verdict(int(equal), int(equal), "", signature, fault)


# --------------------------------------------------------------------------------------------------
# Code: the verdict of a program (App. C.2)


def code_verdict(problem, response, truncated):
    """Verdict of a program by its public tests (App. C.2); a sandbox that fails is a fault.

    `correct` is None where they pass: see `private_verdict`. BadInput if there is no sandbox.
    """
    program = program_of(response)
    if program is None:
        return Verdict(0, 0, no_program(problem, truncated), None)
    public_tests = run_public_asserts if problem.tests["type"] == "assert" else run_public_tests
    try:
        passed, feedback = public_tests(problem, program)
    except RuntimeError as error:
        return Verdict(0, 0, "", None, str(error))
    feedback = as_text(feedback[:FEEDBACK_CHARACTERS])
    if passed:
        return Verdict(1, None, feedback, None)
    return Verdict(0, 0, feedback, feedback)


def private_verdict(problem, response):
    """-> (correct, fault) of a program that has passed its public tests, by the private ones."""
    is_assert = problem.tests["type"] == "assert"
    passes = passes_private_asserts if is_assert else passes_private_tests
    try:
        return int(passes(problem, program_of(response))), None
    except RuntimeError as error:
        return 0, str(error)


def no_program(problem, truncated):
    """The feedback on a response without a closed block."""
    if problem.tests["type"] == "assert":
        return NO_PROGRAM
    return TRUNCATED if truncated else NO_BLOCK


def run_public_asserts(problem, program):
    """-> (all of them hold, feedback)."""
    tests = problem.tests
    loaded, *outcomes = run_asserts(problem, program, tests["public"])
    feedback = asserts_feedback(tests["public"], loaded, outcomes, tests["time_limit"])
    return bool(outcomes) and all_ok(outcomes), feedback  # no outcomes: it did not load


def passes_private_asserts(problem, program):
    if not all_ok(run_asserts(problem, program, problem.tests["private"])):
        return False
    return "plus" not in problem.tests or mbpp.passes(problem, program)  # plus: MBPP+


def all_ok(outcomes):
    return all(outcome.kind == "ok" for outcome in outcomes)


class Failure(NamedTuple):
    """A test that a program failed, with as much of its output as may be shown: it may be large."""
    number: int  # of the test, from 1
    given: str  # its input
    expected: str
    outcome: run.Outcome
    characters: int  # of the whole output


def run_public_tests(problem, program):
    """-> (all of them pass, feedback)."""
    tests, failures = problem.tests, []
    with answer_of(problem, program) as answer:
        for number, (right, outcome) in enumerate(run_tests(problem, answer, tests["public"]), 1):
            if right:
                continue
            given, expected = tests["public"][number - 1]
            output = outcome.stdout.strip()
            outcome = replace(outcome, stdout=shown(output), value=None)
            failures.append(Failure(number, given, expected, outcome, len(output)))
            if tests.get("stop_at_first_failure"):
                break
    return not failures, tests_feedback(problem, failures)


def passes_private_tests(problem, program):
    with answer_of(problem, program) as answer:
        return all(right for right, _ in run_tests(problem, answer, problem.tests["private"]))


# --------------------------------------------------------------------------------------------------
# Code: the feedback that the policy may see


def tests_feedback(problem, failures):
    """Feedback on [input, expected] tests, from the Failures of a program (App. C.2).

    The first exception; else the first time limit; else the two shortest wrong answers.
    """
    for failure in failures:
        if failure.outcome.kind == "error":
            return runtime_error(problem, failure)
    for failure in failures:
        if failure.outcome.kind == "timeout":
            text = input_text(problem, failure.given)
            return f"Time Limit Exceeded\n\nLast Executed Input\n{text}"
    failures = sorted(failures, key=lambda failure: len(failure.given) + failure.characters)
    return "\n\n".join(wrong_answer(problem, failure) for failure in failures[:2])


def runtime_error(problem, failure):
    lines = ["Runtime Error", shown(failure.outcome.error)]
    for line, source, name in failure.outcome.frames:
        lines.append(f"  {source}\nLine {line} in {name} (Solution.py)")
    lines += ["", "Last Executed Input", input_text(problem, failure.given)]
    return "\n".join(lines)


def wrong_answer(problem, failure):
    output = shortened(failure.outcome.stdout, VALUE_CHARACTERS)
    expected = shortened(failure.expected.strip(), VALUE_CHARACTERS)
    given = input_text(problem, failure.given)
    return (f"Test Case {failure.number}: Wrong Answer\n\n"
            f"Input\n{given}\n\nOutput\n{output}\n\nExpected\n{expected}")


def asserts_feedback(statements, loaded, outcomes, seconds):
    """Feedback on asserts: how many passed, and each that failed with its exception (App. C.2)."""
    timeout = f"Execution timed out after {seconds:g} seconds."
    if loaded.kind == "timeout":
        return timeout
    if loaded.kind == "error":
        return load_error(loaded)
    failed = []
    for statement, outcome in zip(statements, outcomes):
        if outcome.kind != "ok":
            error = timeout if outcome.kind == "timeout" else exception_text(outcome)
            failed.append(f"{statement}\n{error}")
    if not failed:
        return "All public asserts passed."
    passed = len(statements) - len(failed)
    first = f"Public test results: {passed}/{len(statements)} asserts passed."
    return "\n".join([first, *failed])


def load_error(outcome):
    """The feedback on a program that ends before any assert runs."""
    what = "The program raised an exception before any test ran"
    if re.match("(SyntaxError|IndentationError|TabError)", outcome.error):
        what = "The program does not compile"
    where = f" (line {outcome.frames[0][0]})" if outcome.frames else ""
    return f"{what}: {exception_text(outcome)}{where}"


def exception_text(outcome):
    return shown(outcome.error)[:EXCEPTION_CHARACTERS]


def input_text(problem, given):
    """An input as the feedback shows it: named arguments where the starter code names them."""
    lines = given.rstrip().replace("\r\n", "\n").split("\n")
    names = argument_names(problem.starter_code, problem.tests["fn_name"])
    if len(names) == len(lines):
        lines = [f"{name} = {line}" for name, line in zip(names, lines)]
    hidden = len(lines) - INPUT_LINES
    lines = [shortened(line, LINE_CHARACTERS) for line in lines[:INPUT_LINES]]
    if hidden > 0:
        lines.append(f"... ({hidden} more lines)")
    return "\n".join(lines)


def argument_names(starter_code, function):
    """The arguments of the method or function that the starter code, which has no body, begins."""
    try:
        tree = ast.parse(starter_code.rstrip() + " pass")
    except SyntaxError:
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            names += [argument.arg for argument in node.args.args]
    return [name for name in names if name != "self"]


def shortened(text, characters):
    return text if len(text) <= characters else text[:characters] + "..."


def shown(text):
    """The beginning of what a program wrote, without the addresses of objects.

    Those differ from run to run, and with them the signature of an error would.
    """
    return re.sub(r"\bat 0x[0-9a-fA-F]+", "at 0x...", text[: 2 * FEEDBACK_CHARACTERS])


# --------------------------------------------------------------------------------------------------
# A verifier of the user's own


def own_verdict(problem, response):
    try:
        reward, feedback = grader.grade(problem.tests, response)
    except RuntimeError as error:
        return Verdict(0, 0, "", None, str(error))
    feedback = as_text(feedback[:FEEDBACK_CHARACTERS])
    return Verdict(reward, reward, feedback, None if reward else feedback or None)


# --------------------------------------------------------------------------------------------------
# The judge

JUDGE_TOKENS = 512  # App. C.3: the judge decodes greedily, at most 512 new tokens
JUDGE_WINDOW, JUDGE_HEAD, JUDGE_TAIL = 12_000, 3_000, 9_000  # characters that it reads
JUDGE_OMISSION = "\n\n[... middle of the response omitted ...]\n\n"
NEEDS_ENGINE = "a judge needs an engine: use explore.py or evaluate.py."


def judge_messages(problem, response):
    """-> messages for the judge, with what follows the last </think> of the response.

    All of it where nothing follows; a long middle is cut.
    """
    text = response.rpartition("</think>")[2]
    if not text.strip():
        text = response
    if len(text) > JUDGE_WINDOW:
        text = text[:JUDGE_HEAD] + JUDGE_OMISSION + text[-JUDGE_TAIL:]
    return prompts.judge(problem, text)


def judge_verdict(text):
    """-> 1 if the last whole word yes or no of the judge's text, in any case, is yes; else 0."""
    words = judge_words(text)
    return int(bool(words) and words[-1].lower() == "yes")


def judge_words(text):
    """The judge's whole words yes and no, in any case: without one its verdict is unreadable."""
    return re.findall(r"\b(yes|no)\b", text, re.IGNORECASE)


def judge_record(judgment):
    """What a record keeps of the judge's completion, or of None: for a reader, not the policy."""
    return {"judge_text": judgment.text if judgment else None,
            "judge_unreadable": bool(judgment) and not judge_words(judgment.text)}


# --------------------------------------------------------------------------------------------------
# All of them


async def grade(problem, response, truncated, engine, graders, public_only=False):
    """-> (Verdict, the judge's completion or None).

    public_only: what the policy may see; `Graders.grade_private` says whether it is correct.
    The judge is the engine's model without adapter; its requests go ahead of all others.
    """
    if problem.verifier != "judge":
        grade_whole_or_public = graders.grade_public if public_only else graders.grade
        return await grade_whole_or_public(problem, response, truncated), None
    prompt = engine.encode(judge_messages(problem, response))
    try:
        judgment = await engine.sample(
            prompt, seed=0, max_tokens=JUDGE_TOKENS, temperature=0.0, top_p=1.0, priority=-1)
    except ContextTooLong as error:  # no other answer to the problem suffers from it
        fault = (f"The judge cannot read the answer: {error} Give it a larger --max-model-len, or "
                 "the problem a shorter reference.")
        return Verdict(0, 0, "", None, fault), None
    reward = judge_verdict(judgment.text)
    return Verdict(reward, reward, "", None), judgment


def add_arguments(parser):
    parser.add_argument(
        "--strict-math-verify", action="store_true",
        help="grade MATH by math-verify's bare verdict (default: with the corrections that "
             "REPRODUCE.md names)")


class Graders(Workers):
    """The pool of graders beside the engine, with what its threads do."""

    def run(self, problem, response, truncated):
        verdict = self.run_public(problem, response, truncated)
        if verdict.correct is not None:
            return verdict
        correct, fault = self.run_private(problem, response)
        if fault:
            return Verdict(0, 0, "", None, fault)
        return replace(verdict, correct=correct)

    def run_public(self, problem, response, truncated):
        if problem.verifier == "math":
            return math_verdict(problem, response, self.ask_math)
        if problem.verifier == "code":
            return code_verdict(problem, response, truncated)
        if problem.verifier == "own":
            return own_verdict(problem, response)
        raise BadInput(f"{problem.id}: {NEEDS_ENGINE}")

    def run_private(self, problem, response):
        return private_verdict(problem, response)


shared = None  # the pool behind `verify`
shared_lock = threading.Lock()


def verify(problem, response, truncated=False):
    """-> Verdict of one answer, from any thread. BadInput for a judge's problem."""
    global shared
    with shared_lock:
        shared = shared or Graders()
    return shared.submit(problem, response, truncated).result()


# --------------------------------------------------------------------------------------------------
# Command line


def read_answers(path):
    """-> [(Problem, response, truncated)] of a file; BadInput names a line that is damaged."""
    types = {"problem": dict, "response": str, "truncated": bool}
    answers = []
    for where, row in list(rows(path)):  # a line that is no JSON is said first
        row = {"truncated": False} | row
        if not all(isinstance(row.get(name), kind) for name, kind in types.items()):
            line = '{"problem": {...}, "response": "...", "truncated": false}'
            raise BadInput(f"{where}: write {line}.")
        problem = problem_from_row(row["problem"], Path(path).stem, where)
        if problem.verifier == "judge":
            raise BadInput(f"{where}: {NEEDS_ENGINE}")
        answers.append((problem, row["response"], row["truncated"]))
    return answers


def main():
    parser = Parser(
        description="Grade answers to math and code problems, a line each.")
    parser.add_argument("file", metavar="FILE.jsonl",
                        help='lines {"problem": {...}, "response": "...", "truncated": ...}')
    args = parser.parse_args()
    answers = read_answers(args.file)  # nothing is graded of a file with a damaged line
    graders = Graders()
    try:
        for future in [graders.submit(*answer) for answer in answers]:
            verdict = vars(future.result())
            if not verdict["fault"]:
                verdict = {name: verdict[name] for name in verdict if name != "fault"}
            print(json.dumps(verdict), flush=True)
    finally:
        graders.close()


if __name__ == "__main__":
    exit_with_sentence(main)

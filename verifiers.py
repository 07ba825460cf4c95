"""The verifier of an answer: reward r, feedback f, correct s (Section 2.1, App. B.1, C.2, C.3).

    reward    in {0, 1}: what the policy may see; code: all public tests pass, otherwise: judged correct
    correct   in {0, 1}: what the pass rate counts; code: public and private tests pass, otherwise: s = r
    feedback  text that the policy may see: MATH and the judge give the verdict only, so theirs is empty
    signature what makes two wrong answers the same error (App. A); None is never a repeat

MATH is decided by math-verify on the content of the last \\boxed{} (answers.py). The judge runs on the engine:
explore.py and evaluate.py await it.

Public and private tests of a program run alike, as ordinary Python: the program is the longest closed fenced block,
each test has a process of its own, and SystemExit ends a test normally. The paper grades public tests with SDPO's
executor and private ones with LiveCodeBench's runner; the quirks in which those two differ from Python, and from one
another, are left out. Comparison is LiveCodeBench's, and it happens here: what is expected never enters the process of
the program.

    python verifiers.py FILE.jsonl   # {"problem": {...}, "response": "...", "truncated": false} a line -> its verdict
"""
import argparse
import ast
import asyncio
import json
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import prompts
from answers import last_boxed, program_of, same_output, same_value, squeeze
from benches import mbpp
from benches.own import problem_from_row
from common.errors import BadInput, ContextTooLong, exit_with_sentence, rows
from sandbox import run
from sandbox.asserts import run_asserts
from sandbox.program import encode
from sandbox.workers import LONGEST_ANSWER, Workers
LINE_CHARACTERS, INPUT_LINES, VALUE_CHARACTERS = 250, 8, 250  # App. C.2
EXCEPTION_CHARACTERS, FEEDBACK_CHARACTERS = 300, 2_000
NO_BLOCK = "Incorrect Format: Put your code inside a ```python ... ``` block."
TRUNCATED = ("Truncated Attempt: Your previous response was too long and truncated because it reached the maximum "
             "response length. Try again with a shorter response.")
NO_PROGRAM = "No program was found in the answer: put it inside a ```python ... ``` block."


@dataclass(frozen=True)
class Verdict:
    reward: int  # r in {0, 1}
    correct: int  # s in {0, 1}
    feedback: str  # f
    signature: str | None  # App. A
    fault: str | None = None  # why the verifier itself failed; the answer then counts as wrong


# ---------------------------------------------------------------------------------------------------------------------
# MATH


def math_verdict(problem, response, ask):
    """Verdict of a MATH answer; `ask(gold, answer)` -> (equal, fault) is a worker's."""
    answer = last_boxed(response)
    if answer is None:
        return Verdict(0, 0, "", None)
    equal, fault = squeeze(answer) == squeeze(problem.answer), None
    if not equal and len(answer) <= LONGEST_ANSWER:
        equal, fault = ask(problem.answer, answer)
    return Verdict(int(equal), int(equal), "", squeeze(answer), fault)


# ---------------------------------------------------------------------------------------------------------------------
# Code: the verdict of a program (App. C.2)


def code_verdict(problem, response, truncated):
    """Verdict of a program (App. C.2); a sandbox that fails is a fault."""
    try:
        return Verdict(*program_verdict(problem, response, truncated))
    except RuntimeError as error:
        return Verdict(0, 0, "", None, str(error))


def program_verdict(problem, response, truncated):
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
            correct = correct and mbpp.passes(problem, program)
    else:
        failed = []
        functional = tests["type"] == "functional"
        with run.answer(program, imports=problem.imports, star_imports=functional) as answer:
            for number, ((given, expected), (right, outcome)) in enumerate(
                    zip(public, run_tests(problem, answer, public)), 1):
                if not right:  # keep what may be shown: outputs may be large
                    output = outcome.stdout.strip()
                    kept = replace(outcome, stdout=shown(output), value=None)
                    failed.append((number, given, expected, kept, len(output)))
                    if tests.get("stop_at_first_failure"):
                        break
            passed, feedback = not failed, tests_feedback(problem, failed)
            correct = passed and all(right for right, _ in run_tests(problem, answer, private))
    feedback = feedback[:FEEDBACK_CHARACTERS].encode("utf-8", "replace").decode()  # no tokenizer takes half a pair
    return int(passed), int(correct), feedback, None if passed else feedback


def run_tests(problem, answer, tests):
    """-> iterator of (passed, Outcome), one for each of `tests`, [input, expected] pairs; stdout of a failed call: its
    value as text."""
    kind, name, seconds = (problem.tests[key] for key in ("type", "fn_name", "time_limit"))
    if kind == "stdin":
        inputs = [given.replace("\r\n", "\n") for given, _ in tests]  # a test written on Windows is no trap
        for (_, expected), outcome in zip(tests, answer.run_scripts(inputs, seconds)):
            yield outcome.kind == "ok" and same_output(outcome.stdout, expected), outcome
        return
    runs = [[{"call": name, "args": [encode(json.loads(line)) for line in given.split("\n")]}] for given, _ in tests]
    for (_, expected), (*_, outcome) in zip(tests, answer.run_modules(runs, seconds)):
        passed = outcome.kind == "ok" and same_value(outcome.value, json.loads(expected))
        yield passed, outcome if passed else replace(outcome, stdout=value_text(outcome.value))


# ---------------------------------------------------------------------------------------------------------------------
# Code: the feedback that the policy may see


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


# ---------------------------------------------------------------------------------------------------------------------
# The judge


JUDGE_TOKENS = 512                                  # App. C.3: the judge decodes greedily, at most 512 new tokens
JUDGE_WINDOW, JUDGE_HEAD, JUDGE_TAIL = 12_000, 3_000, 9_000  # characters of a response that it reads
JUDGE_OMISSION = "\n\n[... middle of the response omitted ...]\n\n"


def judge_messages(problem, response):
    """-> messages for the judge; it reads what follows the last </think> unless that is empty; a long middle is cut."""
    after = response.rpartition("</think>")[2]
    text = (after if after.strip() else response).replace("<|", "< |")  # no <|im_end|> that ends the prompt's turn
    if len(text) > JUDGE_WINDOW:
        text = text[:JUDGE_HEAD] + JUDGE_OMISSION + text[-JUDGE_TAIL:]
    return prompts.judge(problem, text)


def judge_verdict(text):
    """-> 1 if the last whole word yes or no of the judge's text, in any case, is yes; 0 otherwise."""
    words = re.findall(r"\b(yes|no)\b", text, re.IGNORECASE)
    return int(bool(words) and words[-1].lower() == "yes")


# ---------------------------------------------------------------------------------------------------------------------
# All of them


NEEDS_ENGINE = "a judge needs an engine: use explore.py or evaluate.py."


async def grade(problem, response, truncated, engine, graders):
    """-> (Verdict, the judge's Sample or None). The judge is the engine's model without adapter, ahead of its queue."""
    if problem.verifier != "judge":
        return await graders.grade(problem, response, truncated), None
    try:
        said = await engine.sample(engine.encode(judge_messages(problem, response)), seed=0, max_tokens=JUDGE_TOKENS,
                                   temperature=0.0, top_p=1.0, priority=-1)
    except ContextTooLong as error:  # no other answer to the problem suffers from it
        return Verdict(0, 0, "", None, f"The judge cannot read the answer: {error}"), None
    reward = judge_verdict(said.text)
    return Verdict(reward, reward, "", None), said


class Graders(Workers):
    """A bounded pool beside the engine: threads that wait, each for its own worker process or sandbox."""

    def submit(self, problem, response, truncated=False):
        """-> concurrent.futures.Future of the Verdict."""
        return self.threads.submit(self.run, problem, response, truncated)

    async def grade(self, problem, response, truncated=False):
        """-> Verdict. Cancelled while it waits, it is never graded; cancelled while graded, its verdict is dropped."""
        return await asyncio.wrap_future(self.submit(problem, response, truncated))

    def run(self, problem, response, truncated):
        if problem.verifier == "math":
            return math_verdict(problem, response, self.ask_math)
        if problem.verifier == "code":
            return code_verdict(problem, response, truncated)
        raise BadInput(f"{problem.id}: {NEEDS_ENGINE}")


shared = None  # the pool behind `verify`
shared_lock = threading.Lock()


def verify(problem, response, truncated=False):
    """-> Verdict of one answer, from any thread. BadInput for a judge's problem."""
    global shared
    with shared_lock:
        shared = shared or Graders()
    return shared.submit(problem, response, truncated).result()


def main():
    parser = argparse.ArgumentParser(description="Grade answers to math and code problems, a line each.")
    parser.add_argument("file", metavar="FILE.jsonl",
                        help='lines {"problem": {...}, "response": "...", "truncated": ...}')
    args = parser.parse_args()
    answers = []
    for where, row in list(rows(args.file)):  # nothing is graded of a file with a damaged line
        row = {"truncated": False} | row
        kinds = {"problem": dict, "response": str, "truncated": bool}
        if not all(isinstance(row.get(key), kind) for key, kind in kinds.items()):
            raise BadInput(f'{where}: write {{"problem": {{...}}, "response": "...", "truncated": false}}.')
        problem = problem_from_row(row["problem"], Path(args.file).stem, where)
        if problem.verifier == "judge":
            raise BadInput(f"{where}: {NEEDS_ENGINE}")
        answers.append((problem, row["response"], row["truncated"]))
    graders = Graders()
    try:
        for future in [graders.submit(*answer) for answer in answers]:
            verdict = vars(future.result())
            print(json.dumps({key: verdict[key] for key in verdict if key != "fault" or verdict["fault"]}), flush=True)
    finally:
        graders.close()


if __name__ == "__main__":
    exit_with_sentence(main)

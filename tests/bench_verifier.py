"""Tests per second of the sandbox against `python -I` per test, in turns in one run; the verdicts must be equal.

    python tests/bench_verifier.py [--answers 40] [--tests 20]
"""
import argparse
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import answers
from sandbox import run as sandbox

PROGRAMS = {
    "right": "import sys\n\ndef main():\n    a, b = map(int, sys.stdin.readline().split())\n    print(a + b)\n\nmain()",
    "wrong": "a, b = map(int, input().split())\nprint(a * b)",
    "raises": "a, b = map(int, input().split())\nprint(a // (b - b))",
    "imports": "from collections import deque\nfrom heapq import heappush\nimport math\n"
               "q = deque(map(int, input().split()))\n"
               "print(math.fsum(q))"}


def ours(program, tests):
    with sandbox.answer(program) as answer:
        outcomes = answer.run_scripts([given for given, _ in tests], 10)
        return [outcome.kind == "ok" and answers.same_output(outcome.stdout, expected)
                for outcome, (_, expected) in zip(outcomes, tests)]


def interpreter(program, tests):
    ended = [subprocess.run([sys.executable, "-I", "-c", program], input=given, capture_output=True, text=True,
                            timeout=60)
             for given, _ in tests]
    return [end.returncode == 0 and answers.same_output(end.stdout, expected)
            for end, (_, expected) in zip(ended, tests)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, default=40)
    parser.add_argument("--tests", type=int, default=20, help="of an answer")
    args = parser.parse_args()
    tests = [(f"{n} {n + 1}\n", f"{2 * n + 1}\n") for n in range(args.tests)]
    answers = [program for _, program in zip(range(args.answers), list(PROGRAMS.values()) * args.answers)]
    sandbox.start()
    print("workers  sandbox tests/s  python -I tests/s  ratio  (median of 5 rounds in turns)")
    for workers in (1, 2):
        rates = []
        with ThreadPoolExecutor(workers) as pool:
            for _ in range(5):
                verdicts, rate = [], []
                # fewer answers for the slow one, the same ones
                for method, share in ((ours, answers), (interpreter, answers[: max(4, len(answers) // 5)])):
                    start = time.perf_counter()
                    verdicts.append(list(pool.map(method, share, [tests] * len(share))))
                    rate.append(len(share) * len(tests) / (time.perf_counter() - start))
                assert verdicts[0][: len(verdicts[1])] == verdicts[1]
                rates.append((rate[0] / rate[1], *rate))
        ratio, fast, slow = (statistics.median(column) for column in zip(*rates))
        print(f"{workers:7}  {fast:15.0f}  {slow:17.0f}  {ratio:5.1f}")


if __name__ == "__main__":
    main()

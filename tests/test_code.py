"""The verdict of a program: extraction, LiveCodeBench's comparison, every shape of feedback, asserts judged apart."""
import asyncio
import os
from pathlib import Path

import pytest

import answers
import benches
import verifiers
from benches import livecodebench, mbpp
from benches.own import problem_from_row
from common import errors
from sandbox import asserts, run as sandbox
from sandbox.program import Opaque, decode

ADD_TESTS = [["1 2\n", "3\n"], ["10 -4\n", "6\n"]]
ADD = "a, b = map(int, input().split())\nprint(a + b)"


def problem(public, private=(), kind="stdin", name=None, seconds=5, starter_code="", imports=()):
    tests = {"type": kind, "fn_name": name, "public": list(public), "private": list(private), "time_limit": seconds}
    return problem_from_row({"id": "p", "problem": "?", "verifier": "code", "tests": tests, "imports": list(imports),
                             "starter_code": starter_code}, "own", "line 1")


def verdict(program, *args, **kwargs):
    return verifiers.verify(problem(*args, **kwargs), f"So:\n```python\n{program}\n```\n")


def feedback(program, *args, **kwargs):
    result = verdict(program, *args, **kwargs)
    assert (result.reward, result.correct, result.fault) == (0, 0, None) and result.signature == result.feedback
    return result.feedback


# ---- Extraction and comparison --------------------------------------------------------------------------------------


@pytest.mark.parametrize("response, program", [
    ("```python\nx = 1\n```", "x = 1"), ("```\nx = 1\n```", "x = 1"), ("~~~py\nx = 1\n~~~", "x = 1"),
    ("Here: ```python\nx = 1\n```", "x = 1"), ("```python\r\nx = 1\r\n```\r\n", "x = 1"),
    ("```python title=a.py\nx = 1\n``` ", "x = 1"), ("````\n```\nx = 1\n```\n````", "```\nx = 1\n```"),
    ("```\na\n```\n```\nlonger\n```\n```\nb\n```", "longer"),
    ("```\nx = 1\n```\n```python\nnever closed, longer", "x = 1"),
    ("1. so\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y"),
    ("```python\nlost\n```python\nx = 1\n```", "x = 1"),
    ("```python\nprint(1)```", "print(1)"), ("Use ```x``` or `y`.", None), ("```python\nx = 1", None),
    ("``` \n \n```", None), ("```\n x = 1\n```", " x = 1"),
    ("> ```python\n> if x:\n>     y\n>\n>     z\n> ```", "if x:\n    y\n\n    z"),
    ("- ```python\n  if x:\n      y\n  ```", "if x:\n    y"), ("1. ```python\nif x:\n    y\n```", "if x:\n    y"),
    ("  ```python\n  s = '''\n> a'''\n  ```", "s = '''\n> a'''"),
    ("  ```python\n\n  x = 1\n```", "\nx = 1"), ("```python\nx = 1\n``` This is all.", "x = 1"),
    ("```python\nx = 1\n```. So", "x = 1"), ("```python\nx = 1\n```**Done**", "x = 1"),
    ("```python\nlost\n``` python\nx = 1\n```", "x = 1"), ("```python\nlost\n```{.python}\nx = 1\n```", "x = 1"),
    ("Read `n`: ```python\nx = 1\n```", "x = 1"), ("```\nx = 1\n````python\ny = 1\n```", "x = 1\n````python\ny = 1"),
    ("```\n" + "`" * 10**6 + "x\n~~~\n```", "`" * 10**6 + "x\n~~~"),  # in no time that grows with their square
    ("~~~" + " " * 10**6 + "!", None),
    ('```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1\n```', 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1'),
    ("```python\ns = '''\n```python\nx\n```\n'''\n```", "s = '''\n```python\nx\n```\n'''"),
    ('```python\nx = 1  # """\n```\n"""', 'x = 1  # """'), ("```python\nx = '\"\"\"'\n```\n\"\"\"", "x = '\"\"\"'"),
    ('```python\nx = """never closed\n```\nand so on', 'x = """never closed'),
    ('```text\nthe """ mark\n```\nThen:\n```python\ndef f():\n    """A."""\n    return 1\n```', 'def f():\n    """A."""\n    return 1'),
    ("```\n\ufeffx = 1\n```", "x = 1"), ("```\nx = '\ufeff'\n```", "x = '\ufeff'"),
    ("none", None),
    # fences within its strings and comments
    ('```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```\nEnd',
     'def f():\n    """\n    ```\n    f()\n    ```\n    """'),
    ("```\ns = '''\n```python\na\n```\n'''\nprint(s)\n```", "s = '''\n```python\na\n```\n'''\nprint(s)"),
    ("```\n# as\n# ```\n# 1\n# ```\nx = 1\n```\nor\n```\nx\n```", "# as\n# ```\n# 1\n# ```\nx = 1"),
    ("```\ns = 'a\\\n```\\\nb'\n```", "s = 'a\\\n```\\\nb'"),
    ("- so\n  ```\n  \"\"\"\n  ```\n  \"\"\"\n  x = 1\n  ```", '"""\n```\n"""\nx = 1'),
    ('```\n"""\n```\nno\n```python\nx = "not in a string"\n```', 'x = "not in a string"'),
    ("```\nx = 1  # done```\nno\n```\ny\n```", "x = 1  # done"),
    ('```\n"""\n' + "```\n" * 10**4 + "```", '"""')])
def test_the_program_is_the_longest_closed_block(response, program):
    assert answers.program_of(response) == program


@pytest.mark.parametrize("actual, expected, same", [
    ("3", "3\n", True), ("\n 3 \n\n", "3", True), ("1  2", "1 2", True), ("1.0", "1", True), ("1e0 2", "1 2.00", True),
    ("a  b", "a b", False), ("Yes", "YES", False), ("1\n\n2", "1\n2", False), ("1 2", "1\n2", False), ("", "", True),
    ("0.30000000000000004", "0.3", False), ("nan", "NaN", False), ("nan", "nan", True), ("1 2 3", "1 2", False),
    ("1\r\n2", "1\n2", True), ("1_000", "1000", True), ("", "0", False), ("inf", "Infinity", True)])
def test_outputs_compare_as_livecodebench_does(actual, expected, same):
    assert answers.same_output(actual, expected) is same


@pytest.mark.parametrize("returned, expected, passed", [
    ("3", "3", 1), ("3.0", "3", 1), ("True", "1", 1), ("(1, 2)", "[1, 2]", 1), ("[(1, 2)]", "[[1, 2]]", 0),
    ("0.1 + 0.2", "0.3", 0), ("None", "null", 1), ("None", "3", 0), ("'a'", '"a"', 1), ("{'a': 1}", '{"a": 1}', 1),
    ("{1: 1}", '{"1": 1}', 0), ("float('nan')", "NaN", 0), ("{1, 2}", "[1, 2]", 0), ("iter([1, 2])", "[1, 2]", 0),
    ("10 ** 30", "1" + "0" * 30, 1), ("10 ** 5000", "1", 0), ("Counter('aab')", '{"a": 2, "b": 1}', 1),
    ("E(0)", "3", 0), ("__import__('decimal').Decimal('sNaN')", "3", 0),
    ("L([3])", "[3]", 1), ("L([4])", "[3]", 0), ("int", "3", 0), ("'\\ud800'", '"\\ud800"', 1)])
def test_values_compare_as_livecodebench_does(returned, expected, passed):
    program = f"""class E(int):
    def __eq__(self, other):
        return True
    __hash__ = int.__hash__
class L(list):
    __eq__ = E.__eq__
def f(x):
    return {returned}"""
    assert verdict(program, [["1", expected]], kind="functional", name="f").correct == passed


@pytest.mark.parametrize("given", [
    dict(program="raise ValueError('\\ud800')", public=[["1", "2"]]),
    dict(program="def f(x): return '\\ud800'", public=[["1", "2"]], kind="functional", name="f"),
    dict(program="def f(x): raise ValueError('\\ud800')", public=["assert f(1) == 2"], kind="assert")])
def test_feedback_can_be_tokenized(given):
    """Half of a surrogate pair, which a program may give, is no text."""
    said = feedback(**given)
    assert "?" in said and said.encode()


# ---- Running --------------------------------------------------------------------------------------------------------


def test_ordinary_programs_pass():
    body = {"a guard": "def main():\n    a, b = map(int, input().split())\n    print(a + b)\n"
                       "if __name__ == '__main__':\n    main()",
            "an exit": ADD + "\nimport sys\nsys.exit(1)", "quit": ADD + "\nquit()",
            "lines": "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
            "buffer": "import sys\nread = sys.stdin.buffer.readline\nprint(sum(map(int, read().split())))",
            "open(0)": "print(sum(map(int, open(0).read().split())))",
            "/dev/stdin": "print(sum(map(int, open('/dev/stdin').read().split())), file=open('/dev/stdout', 'w'))",
            "global": "n = 0\ndef f():\n    global n\n    n = sum(map(int, input().split()))\nf()\nprint(n)",
            "recursion": "import sys\nsys.setrecursionlimit(10**6)\nf = lambda n: n and 1 + f(n - 1)\nf(90000)\n" + ADD,
            "a thread": "import threading\ndef f():\n    a, b = map(int, input().split())\n    print(a + b)\n"
                        "threading.stack_size(64 << 20)\nthreading.Thread(target=f).start()",
            "a pool": "from multiprocessing import Pool\ndef f(x):\n    return x\nif __name__ == '__main__':\n"
                      "    print(sum(Pool(2).map(f, map(int, input().split()))))",
            "iter": "for line in iter(input, ''):\n    print(sum(map(int, line.split())))\n    break",
            "until EOFError": "while True:\n    try: line = input()\n    except EOFError: break\n"
                              "    print(sum(map(int, line.split())))",
            "next": "import sys\nprint(sum(map(int, next(sys.stdin).split())))",
            "readlines": "import sys\nfor line in sys.stdin.readlines():\n    print(sum(map(int, line.split())))",
            "lines of the buffer": "import sys\nfor line in sys.stdin.buffer:\n    print(sum(map(int, line.split())))",
            "os.read": "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))",
            "mmap": "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ).read().split())))",
            "fileinput": "import fileinput\nfor line in fileinput.input():\n    print(sum(map(int, line.split())))",
            "input replaced": "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n" + ADD,
            "stdout replaced": "import io, os, sys\nclass Fast(io.IOBase):\n    text = ''\n"
                               "    def write(self, text): self.text += text\n"
                               "    def flush(self):\n        os.write(1, self.text.encode())\n        self.text = ''\n"
                               "sys.stdout = Fast()\n" + ADD,
            "bytes": "import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, input().split())))",
            "os.write": "import os\nos.write(1, b'%d' % sum(map(int, input().split())))",
            "noise on stderr": ADD + "\nimport os, sys\nprint('x' * 10**6, file=sys.stderr)\nos.write(2, b'x')",
            "stdout detached": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'utf-8')\n" + ADD,
            "a codec": "import codecs, sys\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\n" + ADD,
            "stdout is None": ADD + "\nimport sys\nsys.stdout = None",
            "no stdout": ADD + "\nimport sys\nsys.stdout.flush()\ndel sys.stdout",
            "a child fails": "import os\nif os.fork() == 0: raise ValueError\nos.wait()\n" + ADD,
            "only written": "import os, sys\nclass Fast:\n    def write(self, text): os.write(1, text.encode())\n"
                            "sys.stdout = Fast()\n" + ADD,
            "flushed": "import os, sys\nclass Fast:\n    text = ''\n    def write(self, text): self.text += text\n"
                       "    def flush(self): os.write(1, self.text.encode())\nsys.stdout = Fast()\n" + ADD,
            "stdout closed": ADD + "\nimport sys\nsys.stdout.close()",
            "descriptor closed": ADD + "\nimport os, sys\nsys.stdout.flush()\nos.close(1)",
            "a shell": "import os\nos.system('echo $((%d+%d))' % tuple(map(int, input().split())))",
            "atexit": "import atexit\n@atexit.register\ndef f():\n    a, b = map(int, input().split())\n"
                      "    print(a + b)",
            "exits in atexit": "import atexit, sys\natexit.register(lambda: sys.exit(4))\n" + ADD,
            "a text as exit code": ADD + "\nexit('bye')",
            "exits in a thread": "import sys, threading\nthreading.Thread(target=sys.exit, args=[3]).start()\n" + ADD,
            "fails in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\n"
                                 "t.join()\n" + ADD,
            "a thread left": "import threading, time\n"
                             "threading.Thread(target=time.sleep, args=[99], daemon=True).start()\n" + ADD,
            "_exit": ADD + "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)",
            "a child left": ADD + "\nimport os, sys, time\nsys.stdout.flush()\nif os.fork() == 0:\n"
                            "    time.sleep(60)\n    print('late')",
            "a pool of threads": "from concurrent.futures import ThreadPoolExecutor\n"
                                 "with ThreadPoolExecutor(2) as pool:\n"
                                 "    print(pool.submit(lambda: sum(map(int, input().split()))).result())",
            "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n"
                       "    print(sum(map(int, input().split())))\nasyncio.run(f())",
            "a guard in the middle": "if __name__ == '__main__':\n    line = input()\n"
                                     "print(sum(map(int, line.split())))",
            "imports itself": "import __main__\nx = 3\nassert __main__.x == 3\n" + ADD,
            "reads its source": "import inspect\ndef f(): pass\nassert 'pass' in inspect.getsource(f)\n" + ADD,
            "pickles its class": "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\n" + ADD,
            "a stack limit": "import resource as r\nr.setrlimit(r.RLIMIT_STACK, (100 << 20, 100 << 20))\n" + ADD,
            "an endless stack": "import resource as r\nr.setrlimit(r.RLIMIT_STACK, (-1, -1))\n" + ADD,
            "a larger stack": "import resource as r\nr.setrlimit(r.RLIMIT_STACK, (1 << 29, -1))\n" + ADD,
            "a deep stack": "import resource as r, sys\nr.setrlimit(r.RLIMIT_STACK, (-1, -1))\n"
                            "sys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\n"
                            "assert f(50000) == 50000\n" + ADD,
            "from __future__": "from __future__ import annotations\n" + ADD, "form feed": "\f\n" + ADD,
            "trace": "import sys\nsys.settrace(lambda *a: None)\n" + ADD,
            "Windows lines": ADD.replace("\n", "\r\n"),
            "a file": "open('t', 'w').write(input())\nprint(sum(map(int, open('t').read().split())))",
            "left open": "out = open(1, 'w')\nout.write(str(sum(map(int, input().split()))))"}
    private = [["5 5\n", "10\n"]]
    assert [name for name, program in body.items() if not verdict(program, ADD_TESTS, private).correct] == []


@pytest.mark.parametrize("program, expected, correct", [
    ("print('é漢😀')", "é漢😀", 1), ("print('1\\r\\n2\\r')", "1\n2", 1), ("print('1\\r2')", "1\n2", 0),
    ("print('1\\f')", "1", 1),
    ("print(0.1 + 0.2)", "0.3", 0), ("print('%.10f' % 0.5)", "0.5", 1), ("print(len(str(10**5000)))", "5001", 1),
    ("print('a\\0b')", "ab", 0), ("import sys\nsys.stdout.buffer.write(b'\\xff')", "x", 0), ("pass", "", 1),
    ("pass", "0", 0),
    ("print(1)\nprint(2)", "1\r\n2\r\n", 1), ("print(9, flush=True)\nimport os\nos._exit(0)", "9", 1),
    ("print(9)\nimport os\nos._exit(0)", "9", 0), ("print(9, flush=True)\nimport os\nos._exit(1)", "9", 0),
    ("print(9)\nimport time\ntime.sleep(0.4)", "9", 1), ("print(9)\n1 / 0", "9", 0)])
def test_outputs(program, expected, correct):
    assert verdict(program, [["", expected]], seconds=0.3).correct == correct


@pytest.mark.parametrize("program", [
    "print('\\ud800')", "print(10**60000)", "raise KeyboardInterrupt", "def f(): f()\nf()", "x = 'a' * (3 << 30)",
    "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "x = '\0'", "(" * 300 + ")" * 300,
    "x = " + "-" * 99999 + "1",
    "import sys\nsys.excepthook = lambda *a: print(9)\n1 / 0", "import atexit\natexit.register(print, 9)\n1 / 0",
    "import builtins\nfor name in list(vars(builtins)):\n    delattr(builtins, name)",
    "class M(type):\n    def __getattribute__(c, name):\n        raise ValueError\n"
    "class E(Exception, metaclass=M): pass\nraise E",
    "class S(str):\n    def __str__(self): return 3\nraise ValueError(S())",
    "import threading, time\nfor _ in range(300):\n"
    "    threading.Thread(target=time.sleep, args=[5], daemon=True).start()"])
def test_programs_that_fail(program):
    assert feedback(program, [["", "9"]]).startswith("Runtime Error\n")


@pytest.mark.parametrize("program", [
    "import os\nfor fd in range(1024):\n    try: os.write(fd, b'{\"passed\": true}')\n    except OSError: pass",
    "import os\nos.ftruncate(3, 31 << 20)", "import os\nos.ftruncate(1, 30 << 20)",
    "import builtins, json, os, sys\n"
    "builtins.print = json.dumps = json.loads = os.write = os._exit = sys.exit = lambda *a: 1",
    "import sys\ntext, frame = '', sys._getframe()\nwhile frame:\n    text += repr([frame.f_locals, frame.f_globals])\n"
    "    frame = frame.f_back\nif '98765432' + str(1) in text: print(text)",
    "import gc\n"
    "if any('98765432' + str(1) in repr(o) for o in gc.get_objects() if isinstance(o, (list, dict, tuple))): "
    "print('found')",
    "import os\nfor fd in range(1024):\n    try:\n        os.lseek(fd, 0, 0)\n        print(os.read(fd, 10**6))\n"
    "    except OSError: pass",
    "import os\nprint(os.environ)\nfor folder, _, names in os.walk('/tmp'):\n    for name in names:\n"
    "        print(open(f'{folder}/{name}').read())"])
def test_no_program_finds_or_forges_what_is_expected(program):
    text = feedback(program, [["7", "987654321"]])
    assert text.startswith("Test Case 1: Wrong Answer") and text.count("987654321") == 1


def test_functions_methods_and_names_without_imports():
    tests = dict(public=[["[1, 2]", "3"]], private=[["[5]", "5"]], kind="functional", name="total")
    assert verdict("def total(xs: List[int]) -> int:\n    return reduce(lambda a, b: a + b, xs)", **tests).correct == 1
    stateful = ("class Solution:\n    seen = []\n    def __init__(self):\n        self.n = 0\n"
                "    def total(self, xs):\n        print('noise')\n        self.n += sum(xs)\n"
                "        self.seen.append(1)\n"
                "        assert len(self.seen) == 1\n        return self.n")
    assert verdict(stateful, **tests).correct == 1  # a fresh process and instance per test
    assert verdict("def total(xs):\n    return sum(xs)\nif __name__ == '__main__':\n    input()", **tests).correct == 1
    assert "NameError: name 'total' is not defined" in feedback("def other(xs): pass", **tests)
    assert "SystemExit" in feedback("import sys\ndef total(xs):\n    sys.exit(0)", **tests)
    assert "SystemExit" in feedback("def total(xs):\n    return sum(xs)\nexit()", **tests)  # then there is no result
    for program in ("class Solution:\n    @staticmethod\n    def total(xs): return sum(xs)",
                    "class Solution:\n    @classmethod\n    def total(cls, xs): return sum(xs)",
                    "class Solution:\n    @cache\n    def f(self, x): return x\n"
                    "    def total(self, xs): return sum(map(self.f, xs))",
                    "class Solution: pass\ndef total(xs): return sum(xs)", "total = lambda xs: sum(xs)",
                    "import json\njson.dumps = json.loads = lambda *a: '{}'\ndef total(xs): return sum(xs)",
                    "def total(xs):\n    f = lambda n: n and 1 + f(n - 1)\n    return f(20000) * 0 + sum(xs)"):
        assert verdict(program, **tests).correct == 1, program
    for program in ("def total(xs): yield sum(xs)", "def total(xs): print(sum(xs))",
                    "x = input()\ndef total(xs): return sum(xs)",
                    "class Solution:\n    def __init__(self, x): pass\n    def total(self, xs): return sum(xs)",
                    "class E(list):\n    __eq__ = lambda *a: True\ndef total(xs): return E()",
                    "def total(xs): return 'x' * (9 << 20)", "def total(xs):\n    xs.append(xs)\n    return xs"):
        assert verdict(program, **tests).reward == 0, program
    huge = "1" + "0" * 4999
    assert verdict("def total(xs): return 10**4999", [["1", huge]], kind="functional", name="total").correct == 1


def test_private_tests_count_and_stay_private():
    result = verdict("print(int(input()))", [["1\n", "1\n"]], [["2\n", "4\n"]])
    assert (result.reward, result.correct, result.feedback, result.signature) == (1, 0, "", None)
    assert verdict("print(1)", [["1\n", "1\n"]], []).correct == 1
    assert verdict("print(2)", [["1\n", "1\n"]], [["1\n", "2\n"]]).correct == 0


# ---- Feedback -------------------------------------------------------------------------------------------------------


def test_wrong_answers_the_two_shortest():
    tests = [["1 2\n" + " " * 90, "3"], ["5 5\n", "10"], ["7 7\n", "14\n"], ["0 0", "0"]]
    assert feedback("a, b = map(int, input().split())\nprint(a * b)", tests) == (
        "Test Case 2: Wrong Answer\n\nInput\n5 5\n\nOutput\n25\n\nExpected\n10\n\n"
        "Test Case 3: Wrong Answer\n\nInput\n7 7\n\nOutput\n49\n\nExpected\n14")


def test_addresses_of_objects_are_not_shown():
    show = "class A: pass\nprint(A(), hex(0xdeadbeef))"
    assert "Output\n<__main__.A object at 0x...> 0xdeadbeef\n" in feedback(show, [["", "9"]])
    fail = "class A: pass\ndef f(x):\n    raise ValueError(A())"
    assert "ValueError: <Solution.A object at 0x...>\n" in feedback(fail, [["1", "9"]], kind="functional", name="f")
    assert "ValueError: <Solution.A object at 0x...>" in asserts_feedback(fail, ["assert f(1) == 9"])
    assert verdict("print('<A at 0x12>')", [["", "<A at 0x12>"]]).correct == 1  # compared as it is
    assert verdict("print('<A at 0x12>')", [["", "<A at 0x13>"]]).correct == 0


def test_large_outputs_are_not_kept(monkeypatch):
    kept = []
    monkeypatch.setattr(verifiers, "tests_feedback", lambda problem, results: kept.extend(results) or "")
    verdict("print('ab\\n' * (1 << 20))", [["", "9"]] * 3)
    assert [(len(outcome.stdout), size) for _, _, _, outcome, size in kept] == [(4000, (3 << 20) - 1)] * 3


def test_caps_of_a_wrong_answer():
    given = "\n".join(["x" * 251, "y" * 250, *"34567890"]) + "\n"
    assert feedback("print('o' * 251)", [[given, "e" * 251]]) == (
        "Test Case 1: Wrong Answer\n\nInput\n" + "x" * 250 + "...\n" + "y" * 250 + "\n"
        "3\n4\n5\n6\n7\n8\n... (2 more lines)\n\n"
        "Output\n" + "o" * 250 + "...\n\nExpected\n" + "e" * 250 + "...")
    given = "\n".join(["x" * 251] * 8)
    assert len(feedback("print(1)", [[given, "2"]])) == 2000


def test_a_runtime_error_goes_before_all_others():
    program = """import sys
def solve(x):
    if x == 2:
        while True: pass
    return 1 // x
def outer(x):
    return solve(x)
def most(x):
    return outer(x)

print(most(int(input())))"""
    assert feedback(program, [["5", "9"], ["2", "9"], ["0", "9"]], seconds=0.3) == (
        "Runtime Error\nZeroDivisionError: integer division or modulo by zero\n  return 1 // x\n"
        "Line 5 in solve (Solution.py)\n"
        "  return solve(x)\nLine 7 in outer (Solution.py)\n  return outer(x)\nLine 9 in most (Solution.py)\n\n"
        "Last Executed Input\n0")
    assert feedback(program, [["5", "9"], ["2\n", "9"]], seconds=0.3) == "Time Limit Exceeded\n\nLast Executed Input\n2"


@pytest.mark.parametrize("program, text", [
    ("x = 1\nprint('a'", "SyntaxError: '(' was never closed\n  print('a'\nLine 2 in <module> (Solution.py)"),
    ("raise KeyError(('a', 1))", "KeyError: ('a', 1)\n  raise KeyError(('a', 1))\nLine 1 in <module> (Solution.py)"),
    ("assert False", "AssertionError\n  assert False\nLine 1 in <module> (Solution.py)"),
    ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 "
     "column 2 (char 1)\n  json.loads('{')\nLine 2 in <module> (Solution.py)"),
    ("input()\ninput()", "EOFError: EOF when reading a line\n  input()\nLine 2 in <module> (Solution.py)"),
    ("import os\nos._exit(3)", "ProcessError: exit status 3"),
    ("import os\nos.abort()", "ProcessError: killed by signal SIG"),
    ("class E(Exception):\n    def __str__(self):\n        1 / 0\nraise E", "E\n\nLast")])
def test_shapes_of_a_runtime_error(program, text):
    assert feedback(program, [["0", "9"]]).startswith("Runtime Error\n" + text)


def test_named_arguments():
    starter = "class Solution:\n    def total(self, xs: List[int], k: int) -> int:\n        "
    tests = dict(public=[["[1, 2]\n3", "4"]], kind="functional", name="total")
    program = "def total(xs, k):\n    return {1: (xs, 'é')}"
    assert feedback(program, starter_code=starter, **tests) == (
        "Test Case 1: Wrong Answer\n\nInput\nxs = [1, 2]\nk = 3\n\nOutput\n{1: ([1, 2], 'é')}\n\nExpected\n4")
    assert feedback("def total(xs, k):\n    return [None, 'é']", **tests) == (
        "Test Case 1: Wrong Answer\n\nInput\n[1, 2]\n3\n\nOutput\n[null, \"é\"]\n\nExpected\n4")


def test_without_a_program():
    given = problem(ADD_TESTS)
    block = "Incorrect Format: Put your code inside a ```python ... ``` block."
    assert verifiers.verify(given, "a + b") == verifiers.Verdict(0, 0, block, None)
    cut_off = verifiers.verify(given, "```python\na, b =", truncated=True)
    assert cut_off == verifiers.Verdict(
        0, 0, "Truncated Attempt: Your previous response was too long and truncated because it reached the maximum "
              "response length. Try again with a shorter response.", None)
    assert verifiers.verify(given, f"```\n{ADD}\n```", truncated=True).correct == 1
    asserted = problem(["assert add(1, 2) == 3"], kind="assert")
    for cut in (False, True):
        assert verifiers.verify(asserted, "```python\nadd =", truncated=cut).feedback == (
            "No program was found in the answer: put it inside a ```python ... ``` block.")


def test_the_training_set_stops_at_the_first_failure():
    given = problem([["1", "1"], ["22", "3"], ["3", "4"]])
    given.tests["stop_at_first_failure"] = True
    result = verifiers.verify(given, "```\nprint(input())\n```")
    assert result.feedback == "Test Case 2: Wrong Answer\n\nInput\n22\n\nOutput\n22\n\nExpected\n3"


# ---- Asserts --------------------------------------------------------------------------------------------------------

ASSERTS = ["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 0) == 0"]


def asserts_feedback(program, statements=ASSERTS, **kwargs):
    return verdict(program, statements, kind="assert", **kwargs).feedback


def test_feedback_on_asserts():
    assert asserts_feedback("def add(a, b):\n    return a + b") == "All public asserts passed."
    assert asserts_feedback("def add(a, b):\n    return a // b * 2 + 2") == (
        "Public test results: 1/3 asserts passed.\nassert add(1, 2) == 3\nAssertionError\n"
        "assert add(0, 0) == 0\nZeroDivisionError: integer division or modulo by zero")
    long = asserts_feedback("def add(a, b):\n    raise ValueError('x' * 999)")
    assert long.split("\n")[2] == "ValueError: " + "x" * 288
    assert asserts_feedback("def add(a, b)\n    return 1") == (
        "The program does not compile: SyntaxError: expected ':' (line 1)")
    assert asserts_feedback("def add(a, b): pass\nadd()").startswith(
        "The program raised an exception before any test ran: TypeError: add() missing 2 required")
    assert asserts_feedback("while True: pass", seconds=0.3) == "Execution timed out after 0.3 seconds."
    assert asserts_feedback("def add(a, b):\n    while a: pass\n    return b", seconds=0.3) == (
        "Public test results: 1/3 asserts passed.\nassert add(1, 2) == 3\nExecution timed out after 0.3 seconds.\n"
        "assert add(2, 2) == 4\nExecution timed out after 0.3 seconds.")
    none = verifiers.verify(problem(ASSERTS, kind="assert"), "no code")
    assert none == verifiers.Verdict(
        0, 0, "No program was found in the answer: put it inside a ```python ... ``` block.", None)
    assert len(asserts_feedback("def add(a, b):\n    return 1",
                                [f"assert add({i}, 1) == '{'0' * 400}'" for i in range(5)])) == 2000


def test_asserts_run_apart_from_the_program_and_count():
    equal = ("class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
             "    __add__ = __sub__ = lambda a, b: 0\n")
    hostile = [equal + "def add(a, b): return E(0)",
               "import builtins\nbuiltins.all = lambda x: True\ndef add(a, b): return 0",
               "import math\nmath.isclose = lambda *a: True\ndef add(a, b): return 0", "import os\nos._exit(0)",
               "def add(a, b):\n    import sys\n    sys.exit()",
               equal + "def add(a, b):\n    class N: __eq__ = lambda *a: True\n    return N()"]
    for statement in ("assert add(1, 2) == 3", "assert all(add(x, 1) == x + 1 for x in range(3))",
                      "assert math.isclose(add(1, 2), 3)",
                      "assert abs(add(1, 2) - 3) < 1e-9", "assert set([add(1, 2)]) == {3}",
                      "assert add(0, 0) == 0; assert add(1, 2) == 3", "assert add(1, 2) == 3\nassert add(2, 2) == 4"):
        given = dict(kind="assert", imports=["import math"])
        assert [program for program in hostile if verdict(program, [statement], **given).reward] == []
        assert verdict("def add(a, b): return a + b", [statement], [statement, "assert add(5, 5) == 10"],
                       **given).correct == 1
        assert verdict("def add(a, b): return a + b", [statement], ["assert add(5, 5) == 11"], **given).correct == 0


@pytest.mark.parametrize("program, statement", [
    ("def sum(a, b): return a + b + 1", "assert sum(1, 2) == 4"),
    ("class Solution:\n    def add(self, a): return a", "assert Solution().add(3) == 3"),
    ("class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x",
     "assert P(3) == P(3)"),
    ("def f(g): return g(2)", "assert f(lambda x: x * 2) == 4"),
    ("class P:\n    path = 3\n    ask = 4", "assert P().path == 3 and P.ask == 4"),
    ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    ("def f(n): return None", "assert f(3) is None"),
    ("import io\ndef f(file): return file.read()", "assert f(io.StringIO('a')) == 'a'"),
    ("def f(n): return n", "assert not f(0) and f([1, (2, {3})])[1] == (2, {3})"),
    ("def f(n): return n * 2", "assert list(map(f, [1, 2])) == [2, 4]"),
    ("def f(*a, **k): return (a, k)", "assert f(1, x={2: b'a'}) == ((1,), {'x': {2: b'a'}})"),
    ("class T:\n    def __init__(self, *below): self.below = below\ndef size(t): return 1 + sum(map(size, t.below))",
     "assert size(T(T(), T(T()))) == 4"),
    ("class P:\n    def __init__(self, x): self.x = x\ndef total(ps): return sum(p.x for p in ps)",
     "assert total([P(1), P(2)]) == 3"),
    ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, other): return V(self.x + other.x)\n"
     "    def __lt__(self, other): return self.x < other.x", "assert sorted([V(1) + V(2), V(2)])[1].x == 3"),
    ("def add(a, b): return a + b\ndef mul(a, b): return a * b", "assert add(1, 2) == mul(1, 3)"),
    ("from datetime import *\ndef f(): return date(2020, 1, 31) + timedelta(1)", "assert str(f()) == '2020-02-01'"),
    ("from datetime import *\ndef f(): return [date(2020, 1, 2), timedelta(1)]",
     "assert f()[0] - datetime.date(2020, 1, 1) == f()[1]"),
    ("def f(x): return x ** 0.5", "assert math.isclose(f(2), 1.4142135623731)"),
    ("def f(x): x.append(1); return x", "assert f([]) == [1]"), ("x = 5", "assert x == 5"),
    ("class P: pass\nclass Q(P): pass", "assert isinstance(Q(), P) and issubclass(Q, P) and not isinstance(3, P)"),
    ("class L:\n    def __init__(self, x): self.x = x\n    def __iter__(self): return iter(self.x)\n"
     "    def size(self): return len(self.x)", "assert L([1, 2]).size() == 2 and list(L([3])) == [3]"),
    ("from collections import *\ndef f(x): return deque(x)", "assert f([1, 2]) == deque([1, 2])"),
    ("from collections import *\ndef f(x): return Counter(x)", "assert f('aab').most_common(1) == [('a', 2)]"),
    ("class P:\n    def __init__(self, x): self.x = x\n    def __int__(self): return self.x\n"
     "    def __hash__(self): return self.x\n    def __eq__(self, other): return self.x == other.x",
     "assert int(P(1)) == 1 and len({P(1), P(1)}) == 1"),
    ("from decimal import Decimal\ndef f(): return Decimal('0.5')", "assert f() == 0.5")])
def test_asserts_of_many_kinds(program, statement):
    assert verdict(program, [statement], kind="assert").feedback == "All public asserts passed."
    broken = statement.replace("assert ", "assert not (", 1) + ")"
    assert verdict(program, [broken], kind="assert").reward == 0


ALIKE = """class E:
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __bool__ = lambda *a: True
    __ne__ = lambda *a: False
    __sub__ = __rsub__ = __add__ = __abs__ = lambda *a: 0
    __getitem__ = __hash__ = lambda *a: 1
    __len__ = __float__ = __index__ = lambda self: 3
import builtins
builtins.sum = builtins.sorted = builtins.list = builtins.abs = builtins.set = lambda *a, **k: E()
def add(a, b): return E()
mul = add"""


@pytest.mark.parametrize("statement", [
    "assert add(1, 2) == mul(1, 3) + 0", "assert add(1, 2) < 5", "assert 3 in add(1, 2)",
    "assert abs(add(1, 2) - 3) < 1e-9",
    "assert add([add(1, 2)], 1) == 4", "assert add(add(1, 2), 3) == 6", "assert {add(1, 2): 1} == {3: 1}",
    "assert not add(1, 2) - 3",
    "assert round(add(1, 2), 2) == 3", "assert float(add(1, 2)) == 3.0", "assert max(add(1, 2), add(0, 1)) == 3",
    "assert isinstance(add(1, 2), int)", "assert math.isclose(add(1, 2), 3)", "assert tuple(add(1, 2)) == (3,)",
    "assert sorted(add(1, 2)) == [3]"])  # the last two read for ever
def test_an_object_that_is_like_all_passes_no_assert(statement):
    assert verdict(ALIKE, [statement], kind="assert").reward == 0


@pytest.mark.parametrize("hidden", ["[E()]", "{1: (E(),)}", "__import__('numpy').arange(3)"])
def test_no_program_gets_an_assert_to_run_beside_it(hidden):
    """By giving an object within a plain value, which the assert then gives back to it."""
    program = f"class E:\n    __eq__ = lambda *a: True\ndef f(x): return {hidden} if x == 1 else E()"
    assert verdict(program, ["assert f(f(1)) == 6"], kind="assert").reward == 0
    right = ("class P:\n    def __init__(self, x): self.x = x\ndef make(n): return [P(i) for i in range(n)]\n"
             "def total(ps): return sum(p.x for p in ps)")
    statement = "assert total(make(4)) == 6 and [p.x for p in make(3)] == [0, 1, 2]"
    assert verdict(right, [statement], kind="assert").reward == 1


def test_asserts_call_a_program_in_so_many_rounds(monkeypatch):
    monkeypatch.setattr(asserts, "ROUNDS", 9)
    program = "def f(x): return x + 1"
    chain, imports = "assert reduce(lambda x, _: f(x), range({0}), 0) == {0}", ["from functools import reduce"]
    assert verdict(program, [chain.format(9)], kind="assert", imports=imports).correct == 1
    assert "RuntimeError: more than 9 rounds of calls in one assert" in asserts_feedback(
        program, [chain.format(10)], imports=imports)


@pytest.mark.parametrize("program, statement", [
    ("def f(x): return x * x", "assert all(f(x) == x * x for x in range(500))"),
    ("def f(x): return x * x", "assert [f(x) for x in range(500)] == [x * x for x in range(500)]"),
    ("def f(x): return x * x", "assert sum(f(x) for x in range(500)) == 41541750"),
    ("def f(x): return x / 3", "assert all(abs(3 * f(x) - x) < 1e-9 and round(f(x), 0) <= x for x in range(200))"),
    ("def f(x): return [x] * x", "assert all(len(f(x)) == x and f(x)[:1] == [x] for x in range(1, 99))"),
    ("def f(x): return x", "assert all(f(float('nan')) != f(x) for x in range(200))")])
def test_calls_that_depend_on_no_other_are_made_at_once(program, statement, monkeypatch):
    monkeypatch.setattr(asserts, "ROUNDS", 3)
    assert verdict(program, [statement], kind="assert").reward == 1
    wrong = program.replace("return x", "return None if x == 7 else x")
    if wrong != program and "nan" not in statement:
        assert verdict(wrong, [statement], kind="assert").reward == 0


def test_a_call_that_was_guessed_in_vain_does_no_harm():
    """Its error is the assert's only where the assert comes to it."""
    program = "calls = []\ndef f(x):\n    calls.append(x)\n    return 6 / (x - 7)\ndef count(): return len(calls)"
    assert verdict(program, ["assert not (f(1) == 9 and f(7) == 9)"], kind="assert").reward == 1
    assert "ZeroDivisionError" in asserts_feedback(program, ["assert not (f(1) == -1 and f(7) == 9)"])
    # the calls are those that Python makes, in their order
    assert verdict(program, ["assert not (f(1) == 9 and f(2) == 9) and count() == 1"], kind="assert").reward == 1
    objects = ("class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"
               "def f(x): return P(x)")
    statement = "assert f(1) == f(1) and not f(1) == f(2) and [p.x for p in (f(3), f(4))] == [3, 4]"
    assert verdict(objects, [statement], kind="assert").reward == 1


POINTS = ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 5\n"
          "def f(x): return P(x)\ndef g(x): return {'p': [P(x)]}")
VIEWS = "def f(d, name): return getattr(d, name)()"
TRUTH = "import numpy\ndef f(x): return numpy.int64(x) > 1"


@pytest.mark.parametrize("program, statement, reward", [
    (VIEWS, "assert f({1: 2, 3: 4}, 'keys') == {3, 1}", 1), (VIEWS, "assert f({1: 2}, 'items') == {(1, 2)}", 1),
    (VIEWS, "assert list(f({1: [2]}, 'items')) == [(1, [2])] and len(f({}, 'items')) == 0", 1),
    (VIEWS, "assert sorted(f({1: 2, 3: 2}, 'values')) == [2, 2] and 2 in f({1: 2}, 'values')", 1),
    (VIEWS, "assert f({1: 2}, 'keys') & {1} == {1} and list(f({2: 1, 1: 1}, 'keys')) == [2, 1]", 1),
    (VIEWS, "assert f({1: 2}, 'keys') == [1]", 0), (VIEWS, "assert f({1: 2}, 'values') == [2]", 0),
    ("def f(n): return range(1, n, 2)", "assert f(6) == range(1, 7, 2) and f(6)[-1] == 5 and len(f(6)) == 3", 1),
    ("def f(n): return range(n)", "assert f(10**30)[-1] == 10**30 - 1 and list(f(2)) == [0, 1]", 1),
    ("def f(n): return range(n)", "assert f(2) == [0, 1]", 0),
    (POINTS, "assert f(3).x == 3 and f(3).y == 5 and f(3) == (3, 5) and f(3)[1] == 5", 1),
    (POINTS, "assert g(3)['p'][0].x == 3 and f(3)._asdict() == {'x': 3, 'y': 5} and f(3) == P(3)", 1),
    (POINTS, "assert f(3).z == 3", 0), (POINTS, "assert repr(f(3)) == 'P(x=3, y=5)'", 1),
    (TRUTH, "assert f(2) == True and f(2) and not f(1) and str(f(2)) == 'True'", 1), (TRUTH, "assert f(2) is True", 0),
    ("from types import MappingProxyType\ndef f(): return MappingProxyType({1: 2})", "assert f() == {1: 2}", 1),
    ("def f(b): return memoryview(b)", "assert f(b'ab') == b'ab'", 1)])
def test_values_are_to_an_assert_what_they_are_in_python(program, statement, reward):
    assert verdict(program, [statement], kind="assert").reward == reward


@pytest.mark.parametrize("program, statement, passes", [
    ("def f(x): return x % 3 == 0", "assert [i for i in range(7) if f(i)] == [0, 3, 6]", True),
    ("def f(x): return 1 // (3 - x)", "assert f(1) == 5 or f(2) == 1", True),            # guessed: f(1) == 5
    ("def f(x): return 1 // (3 - x)", "assert f(2) == 1 or f(3) == 1", True),            # f(3) is never made
    ("def f(x): return 1 // (3 - x)", "assert f(4) == 0 and f(3) == 1", False),          # guessed, and it fails
    ("def f(x): return 1 // (3 - x)", "assert f(2) == 2 or f(3) == 1", False),
    ("def f(x): return float('nan')", "assert f(f(1)) != f(f(2))", True),
    ("s = []\ndef f(x): s.append(x); return len(s)", "assert f(0) == 2 or f(0) == 2", True),
    ("s = []\ndef f(x): s.append(x); return len(s)", "assert f(0) == 1 and f(0) == 2 and f(0) == 3", True)])
def test_a_guess_that_is_wrong_changes_no_verdict(program, statement, passes):
    assert verdict(program, [statement], kind="assert").correct == passes


@pytest.mark.parametrize("stop", [False, True])
def test_an_answer_holds_one_slot_at_a_time(monkeypatch, stop):
    class Slot:
        taken = False

        def __enter__(self):
            assert not self.taken
            self.taken = True

        def __exit__(self, *error):
            self.taken = False

    monkeypatch.setattr(sandbox, "slots", Slot())
    given = problem(ADD_TESTS, ADD_TESTS)
    given.tests["stop_at_first_failure"] = stop
    right, wrong = (verifiers.verify(given, f"```\n{program}\n```") for program in (ADD, "print(0)"))
    assert (right.reward, right.correct) == (1, 1) and (wrong.reward, wrong.correct) == (0, 0) and not sandbox.slots.taken
    given = problem(ASSERTS, ASSERTS, kind="assert")
    right = verifiers.verify(given, "```\ndef add(a, b): return a + b\n```")
    assert (right.reward, right.correct) == (1, 1)


def verdict_in_two(given, program):
    """The public verdict that a carry step waits for, and the whole one."""
    async def grade():
        graders, response = verifiers.Graders(workers=1), f"```python\n{program}\n```"
        try:
            public = await graders.grade_public(given, response)
            whole = await graders.grade(given, response)
            if public.correct is None:
                assert await graders.grade_private(given, response) == (whole.correct, None)
            return public, whole
        finally:
            graders.close()
    return asyncio.run(grade())


@pytest.mark.parametrize("kind, public, private", [
    ("stdin", [["2", "4"]], [["3", "6"]]), ("assert", ["assert double(2) == 4"], ["assert double(3) == 6"])])
def test_public_and_private_tests_in_two(kind, public, private):
    """Four programs: right, wrong on the private tests alone, wrong on the public ones, and none at all."""
    body = {"stdin": "x = int(input())\nprint({})", "assert": "def double(x): return {}"}[kind]
    given = problem(public, private, kind=kind)
    right, whole = verdict_in_two(given, body.format("2 * x"))
    assert (right.reward, right.correct, whole.correct) == (1, None, 1) and whole.feedback == right.feedback
    square, whole = verdict_in_two(given, body.format("x * x"))
    assert (square.reward, square.correct) == (1, None) and (whole.reward, whole.correct, whole.signature) == (1, 0, None)
    wrong, _ = verdict_in_two(given, body.format("5"))
    assert (wrong.reward, wrong.correct) == (0, 0) and wrong.feedback == wrong.signature != ""
    none = verifiers.code_verdict(given, "no program", False)
    assert (none.reward, none.correct, none.signature) == (0, 0, None)


def test_a_sandbox_that_fails_is_a_fault(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("the sandbox gave no answer")

    monkeypatch.setattr(sandbox.Answer, "run", fail)
    assert verdict(ADD, ADD_TESTS) == verifiers.Verdict(0, 0, "", None, "the sandbox gave no answer")


# ---- LiveCodeBench and MBPP+ ----------------------------------------------------------------------------------------

DATA = Path(os.environ.get("LEAF_DATA", "none"))
has_data = pytest.mark.skipif(not DATA.is_dir(), reason="LEAF_DATA names no folder with the real files")
READ = "import sys\nread = iter(sys.stdin.read().split()).__next__\nfor _ in range(int(read())):\n    "
LCB = {  # right programs: scripts, and bodies of the method of the starter code
    "1873_A": READ + "print('YES' if sum(a != b for a, b in zip(read(), 'abc')) < 3 else 'NO')",
    "1873_B": READ + "import math\n    xs = sorted(int(read()) for _ in range(int(read())))\n    xs[0] += 1\n"
                     "    print(math.prod(xs))",
    "1873_D": READ + "n, k, s, i, count = int(read()), int(read()), read(), 0, 0\n    while i < n:\n"
              "        i, count = (i + k, count + 1) if s[i] == 'B' else (i + 1, count)\n    print(count)",
    "1883_B": READ + "n, k, s = int(read()), int(read()), read()\n"
              "    print('YES' if sum(s.count(c) % 2 for c in set(s)) - 1 <= k else 'NO')",
    "1883_C": READ + "n, k = int(read()), int(read())\n    xs = [int(read()) for _ in range(n)]\n"
                     "    best = min(-x % k for x in xs)\n"
              "    print(min(best, max(0, 2 - sum(x % 2 == 0 for x in xs))) if k == 4 else best)",
    "1899_A": READ + "print('First' if int(read()) % 3 else 'Second')",
    "1899_B": READ + "n = int(read())\n    xs = [int(read()) for _ in range(n)]\n    best = 0\n"
                     "    for k in range(1, n + 1):\n"
              "        if n % k == 0:\n            sums = [sum(xs[i:i + k]) for i in range(0, n, k)]\n"
              "            best = max(best, max(sums) - min(sums))\n    print(best)",
    "1899_C": READ + "xs = [int(read()) for _ in range(int(read()))]\n    run = best = xs[0]\n"
                     "    for a, b in zip(xs, xs[1:]):\n"
              "        run = max(run, 0) + b if (a - b) % 2 else b\n        best = max(best, run)\n    print(best)",
    "1899_D": READ + "from collections import Counter\n    c = Counter(int(read()) for _ in range(int(read())))\n"
              "    print(sum(v * (v - 1) // 2 for v in c.values()) + c[1] * c[2])",
    "abc301_a": "n, s = int(input()), input()\nt, a = s.count('T'), s.count('A')\n"
                "print('T' if t > a or t == a and s[-1] == 'A' else 'A')",
    "2727": "return sum(int(d[11:13]) > 60 for d in details)",
    "2728": "return sum(map(max, zip(*map(sorted, nums))))",
    "2730": "return max(reduce(lambda a, b: a | b, nums[:i] + nums[i + 1:], x << k) for i, x in enumerate(nums))",
    "2754": "return max(prod(c) for n in range(1, len(nums) + 1) for c in combinations(nums, n))",
    "2755": "@cache\n        def f(i):\n            return 0 if i == len(s) else min([1 + f(i + 1)] + "
            "[f(i + len(w)) for w in dictionary if s.startswith(w, i)])\n        return f(0)",
    "2756": "a, b = sorted(prices)[:2]\n        return money - a - b if a + b <= money else money",
    "2757": "return sum(min_sum <= sum(map(int, str(n))) <= max_sum for n in range(int(num1), int(num2) + 1)) "
            "% (10**9 + 7)",
    "2777": "return [len(set(nums[:i + 1])) - len(set(nums[i + 1:])) for i in range(len(nums))]",
    "2779": "xs, out = [0] * n, []\n        for i, c in queries:\n            xs[i] = c\n"
            "            out.append(sum(a == b != 0 for a, b in pairwise(xs)))\n        return tuple(out)",
    "2784": "return sum(max(c) ** 2 * min(c) for n in range(1, len(nums) + 1) for c in combinations(nums, n)) "
            "% (10**9 + 7)"}


@has_data
def test_livecodebench_rows():
    for name in "lcb_real_full_row", "lcb_derived_fixture":
        for _, row in errors.rows(DATA / f"{name}.jsonl"):
            function, pairs, kinds = livecodebench.tests_of(row)
            given = problem(pairs, pairs, kinds.pop(), function, starter_code=row["starter_code"])
            right = row["starter_code"] + LCB[row["question_id"]]
            wrong = row["starter_code"] + "return None" if function else right + "\nprint(0)"
            assert verifiers.verify(given, f"```python\n{right}\n```").correct == 1, row["question_id"]
            assert verifiers.verify(given, f"```python\n{wrong}\n```").reward == 0, row["question_id"]


def plus_problem(reference, inputs, name="f", atol=0):
    given = problem(["assert True"], kind="assert")
    given.tests["plus"] = {"entry_point": name, "canonical_solution": reference, "inputs": inputs, "atol": atol}
    return given


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("reference, answer, passes", [
    ("0.1 + 0.2 + x", "0.3 + x", True), ("0.3", "0.301", False), ("[0.5, 0.25]", "[0.5000001, 0.25]", True),
    ("[0.5]", "(0.5,)", False), ("[0.5]", "[0.5, 0.5]", False), ("[0.5, 1]", "[0.5000001, 1]", False),
    ("[]", "[]", True),
    ("float('inf')", "float('inf')", True), ("0.5", "float('nan')", False), ("1", "True", True), ("[1]", "(1,)", False),
    ("[[0.5]]", "[[0.5000001]]", False), ("{1, 2}", "{2, 1}", True), ("None", "None", True), ("'a'", "E('b')", False),
    ("list('ab') * 4000", "list('ab') * 4000", True), ("list('ab') * 4000", "list('ab') * 3999 + ['a', 'c']", False),
    ("[(1, 2)]", "[(1, 2)]", True), ("[(1, 2)]", "[[1, 2]]", False), ("x", "1 / x", False),
    ("x", "x if x else exit()", False)])
def test_plus_inputs_compare_as_evalplus_does(cache, reference, answer, passes):
    given = plus_problem(f"def f(x):\n    return {reference}", [[1], [0]])
    equal = "class E(str):\n    __eq__ = lambda *a: True\n    __hash__ = str.__hash__\n"
    program = f"{equal}def f(x):\n    return {answer}"
    assert mbpp.passes(given, program) is passes


def test_plus_tolerance_stays_once_raised(cache):
    reference = "def f(x):\n    return x"
    near = "def f(x):\n    return x + 1e-7 if x == 2 else x"
    assert mbpp.passes(plus_problem(reference, [[0.5], [2.0]]), near)
    assert not mbpp.passes(plus_problem(reference, [[2], [0.5]]), near)  # an int, before any float
    assert mbpp.passes(plus_problem(reference, [[2.0]], atol=1e-4), "def f(x):\n    return x + 1e-5")


def test_plus_oracles(cache):
    assert mbpp.same("similar_elements", [], (2, 1), (1, 2), 0) and not mbpp.same("f", [], (2, 1), (1, 2), 0)
    assert not mbpp.same("Diff", [], [[1]], [1], 0) and not mbpp.same("Diff", [], None, [1], 0)
    assert mbpp.same("check_str", [], Opaque("<re.Match>"), True, 0)
    pairs = [(output, right) for output in (True, False, None) for right in (True, False)]
    assert [mbpp.same("check_str", [], output, right, 0) for output, right in pairs] == [
        True, False, False, True, False, True]
    assert mbpp.same("surface_Area", [3, 4], 35, 33, 0) and not mbpp.same("surface_Area", [3, 4], 34, 33, 0)
    assert [mbpp.same("digit_distance_nums", [1, 23], output, 1, 0) for output in (4, 5)] == [True, False]


def test_no_output_ends_or_holds_up_the_comparison():
    assert mbpp.same("surface_Area", [1, 2], complex(1.7e308, 1.7e308), 5, 1e-6) is False
    alike = [i * ((1 << 61) - 1) for i in range(2000)]  # a set of them takes time quadratic in their number
    assert mbpp.same("Diff", [], alike, alike[::-1], 0) is False


def test_plus_runs_all_inputs_in_one_process_and_keeps_the_reference(cache):
    given = plus_problem("def f(x):\n    return x", [[n] for n in range(50)])
    assert mbpp.passes(given, "n = -1\ndef f(x):\n    global n\n    n += 1\n    return n")
    assert len(list(cache.rglob("*.json"))) == 1
    next(cache.rglob("*.json")).write_text("[[1")  # cut off by a crash
    assert mbpp.passes(given, "def f(x):\n    return x")
    assert not mbpp.passes(given, "import os\ndef f(x):\n    return x if x < 49 else os._exit(0)")
    assert mbpp.passes(plus_problem("def f(x):\n    return x", []), "anything")
    broken = verifiers.verify(plus_problem("def g(x):\n    return x", [[1]]), "```\ndef f(x):\n    return x\n```")
    assert (broken.reward, broken.correct) == (0, 0) and "the reference solution does not run here" in broken.fault
    right = verifiers.verify(given, "```\ndef f(x):\n    return x\n```")
    wrong = verifiers.verify(given, "```\ndef f(x):\n    return x if x != 25 else None\n```")
    assert (right.reward, right.correct, wrong.reward, wrong.correct) == (1, 1, 1, 0)
    assert wrong.feedback == "All public asserts passed."


@has_data
def test_some_tasks_of_mbpp_plus(cache):
    for given in benches.load("mbpp", path=DATA, limit=15):
        if given.id == "Mbpp/599":  # its reference solution alone takes a minute
            continue
        name, reference = given.tests["plus"]["entry_point"], given.tests["plus"]["canonical_solution"]
        changed = f"{reference}\nright = {name}\ndef {name}(*args):\n    return 0 if right(*args) is None else None"
        verdicts = [verifiers.verify(given, f"```python\n{program}\n```") for program in (reference, changed)]
        assert [(verdict.reward, verdict.correct) for verdict in verdicts] == [(1, 1), (0, 0)], given.id


@pytest.mark.parametrize("forged", [
    {"tuple": {"range": [0, 10**17, 1]}}, {"set": {"range": [0, 10**17, 1]}}, {"iterator": {"range": [0, 10**17, 1]}},
    {"deque": [{"range": [0, 10**17, 1]}]}, {"Counter": [{"range": [0, 10**17, 1]}]}, {"named": ["P", ["x"], {"range": [0, 10**17, 1]}]},
    {"view": [0, {"range": [0, 10**17, 1]}]}, {"view": [2, {"range": [0, 10**17, 1]}]}, {"frozenset": {"range": [0, 10**17, 1]}}])
def test_a_forged_value_takes_no_memory(forged):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        decode(forged)


def test_a_range_is_not_filled_in():
    assert decode({"tuple": [{"range": [0, 10**17, 1]}]}) == (range(10**17),)
    assert not mbpp.same("larg_nnum", [], range(10**17), [1], 0) and not mbpp.same("larg_nnum", [], range(10**30), [1], 0)
    assert mbpp.same("larg_nnum", [], range(3), [2, 1, 0], 0)

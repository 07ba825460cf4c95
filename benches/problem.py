"""A problem: what the prompts show of it and what its verifier needs."""
from dataclasses import dataclass, field

CODE_SECONDS, ASSERT_SECONDS = 6, 30  # time limit of one test: LiveCodeBench's own; that of an assert's process
TEST_TYPES = ("stdin", "functional", "assert")


@dataclass(frozen=True)
class Problem:
    """tests: {"type": one of TEST_TYPES, "fn_name": str or None, "public" and "private": lists of [input, output] or
    of assert statements, "time_limit": seconds a test}; a training problem of lcb has "stop_at_first_failure": True
    besides; one of mbpp has its private tests as "plus": {"entry_point", "canonical_solution", "atol", "inputs": lists
    of arguments}; a verifier of the user's own has {"type": "own", "grade": "FILE.py:FUNCTION", "row": the row}.
    """
    id: str
    bench: str                    # math500 | lcb | mbpp | sciknoweval | arithmetic | stem of the user's own file
    text: str                     # what the prompt shows of the problem
    verifier: str                 # "math" | "code" | "judge" | "own"
    answer: str | None = None     # math: the reference answer
    tests: dict | None = None     # code, own
    reference: str | None = None  # judge: the reference answer
    criterion: str | None = None  # judge: one of prompts.CRITERIA
    starter_code: str = ""        # lcb
    imports: tuple = ()           # mbpp: set-up lines of the asserts
    header: str = ""              # mbpp: import lines and def line of the tested function, for Olmo's prompt
    metadata: dict = field(default_factory=dict)  # further fields of a user's own row

"""Asserts beside a program: what they compare, the program never sees (App. C.2)."""
import ast
import builtins
import json
import sys
from dataclasses import dataclass, field

from sandbox import run
from sandbox.program import encode

ROUNDS = 200  # of an assert: each costs two processes


@dataclass
class Assert:
    """An assert on its way to an outcome, through rounds in which it runs apart and then the program takes a step."""

    text: str
    names: list  # of the program's functions and classes that it tests; none: it runs beside the program
    modules: list  # of Python's library, that it leaves to the program to import
    calls: list = field(default_factory=list)  # the steps that the program must take for it, in their order
    known: list = field(default_factory=list)  # what the program gave for them, as `encode` gives it
    failed: run.Outcome | None = None  # of the step after these, which may only be guessed
    rounds: int = 0
    outcome: run.Outcome | None = None

    def judged(self):
        """The steps of a run without the program."""
        imports = "".join(f"import {name}\n" for name in self.modules)
        return [{"judge": imports + self.text, "own": self.names, "calls": self.calls, "known": self.known}]

    def called(self):
        """The steps of a run with the program."""
        return self.calls if self.names else [{"exec": self.text}]

    def learn(self, outcome):
        """Take in the outcome of a run without the program: a verdict, or the next calls that are needed."""
        self.rounds += 1
        if outcome.kind != "ok" or not outcome.value:
            self.outcome = outcome
            return
        number, steps = outcome.value["number"], outcome.value["steps"]
        is_next = self.failed and number == len(self.known)
        # As texts: nan differs from itself.
        if is_next and json.dumps(steps[0]) == json.dumps(self.calls[number]):
            self.outcome = self.failed
        elif self.rounds > ROUNDS:  # no reason to run it beside the program: that can return what is endless
            self.outcome = run.Outcome("error", error=f"RuntimeError: more than {ROUNDS} rounds of calls in one assert")
        elif "whole" in steps[0]:
            self.names = []
        else:
            self.calls[number:] = steps

    def take(self, steps):
        """Take in the outcomes of the steps that the program took."""
        if not self.names:
            self.outcome = steps[-1]
            return
        self.failed = steps[-1] if steps[-1].kind != "ok" else None
        self.known = [encode(step.value) for step in steps if step.kind == "ok"]


def tested_names(statement, imports):
    """-> (the names of the program's functions and classes that an assert tests, the modules of Python's library that
    it uses and leaves to the program to import); nothing if there is more in it than asserts."""
    tree = ast.parse(statement)
    if not all(isinstance(node, ast.Assert) for node in tree.body):
        return [], []
    nodes = list(ast.walk(tree))
    variables = [node for node in nodes if isinstance(node, ast.Name)]
    known = set(dir(builtins)) | imported_names(imports)
    known |= {node.id for node in variables if isinstance(node.ctx, ast.Store)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    owners = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    modules = {owner.id for owner in owners if isinstance(owner, ast.Name)} & sys.stdlib_module_names - known
    own = {node.id for node in variables if isinstance(node.ctx, ast.Load)} - known - modules
    if not own:  # the tested function has the name of a built-in one
        functions = [node.func for node in nodes if isinstance(node, ast.Call)]
        called = {function.id for function in functions if isinstance(function, ast.Name)}
        own = called if len(called) == 1 else own
    return sorted(own), sorted(modules)


def imported_names(imports):
    """The names that lines of imports make known."""
    names = set()
    for line in imports:
        for node in ast.walk(ast.parse(line)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names


def run_asserts(problem, program, statements):
    """-> Outcomes of loading the program, then one for each assert (none if loading failed).

    An assert runs in a process without the program, so that the program never sees what is expected, nor what compares
    it: where the assert calls the program's function, that call runs in a process with the program, and its value is
    put in. An object of the program's own classes stays in that process: it takes part in calls, and in comparisons and
    sums with other such objects; every plain value differs from it, so that no `__eq__` of the program's making passes.
    Beside the program, which could then cheat, run only tests that hold other statements, that call several built-in
    names and none of the program's, or that give the program what is neither a plain value nor its own: a function, an
    object of a library. More than ROUNDS rounds of calls are an error: calls whose arguments depend on no other call
    are made in one, by guess (proxy.Guess).
    """
    seconds, imports = problem.tests["time_limit"], list(problem.imports)
    asserts = [Assert(statement, *tested_names(statement, imports)) for statement in statements]
    while still_open(asserts):
        apart = [test for test in still_open(asserts) if test.names]
        with run.answer("", imports=imports) as answer:
            for test, (*_, outcome) in zip(apart, answer.run_modules([test.judged() for test in apart], seconds)):
                test.learn(outcome)
        beside = still_open(asserts)
        with run.answer(program, imports=imports) as answer:
            for test, (loaded, *steps) in zip(beside, answer.run_modules([test.called() for test in beside], seconds)):
                if loaded.kind != "ok":
                    return [loaded]
                test.take(steps)
    return [run.Outcome("ok"), *(test.outcome for test in asserts)]


def still_open(asserts):
    return [test for test in asserts if test.outcome is None]

"""Asserts beside a program: what they compare, the program never sees (App. C.2)."""
import ast
import builtins
import sys

from sandbox import run
from sandbox.program import encode
CALLS = 200  # of the program, in one assert: each costs two processes


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
    seconds, imports, loaded = problem.tests["time_limit"], list(problem.imports), run.Outcome("ok")
    used = [tested_names(statement, imports) for statement in statements]
    names = [own for own, _ in used]
    lines = ["".join(f"import {name}\n" for name in used[n][1]) + text for n, text in enumerate(statements)]
    calls, known, outcomes = ([[] for _ in statements] for _ in range(3))
    while pending := [number for number, outcome in enumerate(outcomes) if not outcome]:
        apart = [number for number in pending if names[number]]
        runs = [[{"judge": lines[n], "own": names[n], "known": known[n]}] for n in apart]
        for number, (*_, outcome) in zip(apart, run.run_modules("", runs, seconds, imports=imports)):
            if outcome.kind != "ok" or not outcome.value:
                outcomes[number] = outcome
            elif len(calls[number]) == CALLS:  # no reason to run it beside the program: that can return what is endless
                error = f"RuntimeError: more than {CALLS} calls in one assert"
                outcomes[number] = run.Outcome("error", error=error)
            elif "whole" in outcome.value:
                names[number] = []
            else:
                calls[number].append(outcome.value)
        pending = [number for number in pending if not outcomes[number]]
        runs = [calls[n] if names[n] else [{"exec": statements[n]}] for n in pending]
        for number, (loaded, *steps) in zip(pending, run.run_modules(program, runs, seconds, imports=imports)):
            if loaded.kind != "ok":
                return [loaded]
            if steps[-1].kind != "ok" or not names[number]:
                outcomes[number] = steps[-1]
            known[number] = [encode(step.value) for step in steps]
    return [loaded, *outcomes]

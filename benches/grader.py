"""A verifier of the user's own: "verifier": "FILE.py:FUNCTION" in a row of his bench."""
import functools
import os
import re
import runpy
from pathlib import Path

from common.errors import BadInput

OWN = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def place(verifier, folder, where):
    """-> "FILE.py:FUNCTION" with the whole path: FILE is beside the bench. BadInput, if there is no such function."""
    file, name = OWN.fullmatch(verifier).groups()
    path = os.path.abspath(Path(folder, file))
    try:
        function = functions(path).get(name)
    except Exception as error:
        raise BadInput(f"{where}: {path} cannot be used as a verifier ({type(error).__name__}: {error}): write a "
                       "Python file with the function there.") from error
    if not callable(function):
        raise BadInput(f"{where}: {path} has no function {name}: write {name}(row, response) there.")
    return f"{path}:{name}"


@functools.cache
def functions(path):
    """The names of a Python file of the user's, which runs here as his own code: once for all rows."""
    return runpy.run_path(path)


def grade(tests, response):
    """-> (reward, feedback) by the function of `place`; RuntimeError says why it gave none.

    The function gets the row of the bench and the response; it returns whether that is right, or (right, feedback).
    """
    path, name = OWN.fullmatch(tests["grade"]).groups()
    try:
        value = functions(path)[name](dict(tests["row"]), response)
    except Exception as error:
        raise RuntimeError(f"{name} of {path} failed: {type(error).__name__}: {error}") from error
    right, feedback = value if isinstance(value, tuple) and len(value) == 2 else (value, "")
    if right not in (0, 1) or not isinstance(feedback, str):
        raise RuntimeError(f"{name} of {path} gave {value!r:.100}: return True, False, or one of them with a feedback "
                           "text.")
    return int(right), feedback

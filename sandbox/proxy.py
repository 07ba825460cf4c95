"""Inside the sandbox: an assert, run where the program is not, over proxies of what only the program has.

It imports little, because every fork of the helper pays for it (jail.py).
"""
import json

from sandbox.program import decode, encode


class Needed(BaseException):
    """Ends an assert at a call whose value is not known yet. `step`: what the program must do for it."""

    def __init__(self, step):
        self.step = step


class Answers:
    """What the program gives an assert: the same assert asks for the same in the same order each time it runs.

    known: the values so far, as `encode` gives them.
    """

    def __init__(self, known):
        self.known, self.asked = known, 0

    def ask(self, expression, **given):
        """-> the value of an expression of the program; Needed if it is not known. given: names to set before."""
        number = self.asked
        self.asked += 1
        if number >= len(self.known):
            raise Needed(step_of(expression, given))
        if holds_object(self.known[number]):
            return Proxy(f"results[{number}]", self)
        return decode(self.known[number])


def step_of(expression, given):
    names = {name: encode(value, own=Proxy) for name, value in given.items()}
    if holds_object(names):
        return {"whole": True}
    return {"eval": expression, "names": names}


def holds_object(data):
    """Is there something in `data`, from `encode`, that has no plain form? (Quotes within a text are escaped here.)"""
    return '{"object":' in json.dumps(data)


def by_itself(function):
    """A method: a built-in function of the program's object."""
    return lambda self: self._ask(f"{function}({self._path})")


def with_another(operator):
    """A method: an operator between two objects of the program."""
    def method(self, other):
        if isinstance(other, Proxy):
            return self._ask(f"__import__('operator').{operator}({self._path}, {other._path})")
        return NotImplemented

    return method


class Proxy:
    """Something that only the program has: its function, an object of its own, a list with such objects.

    _path: its expression in the program's process. (Underscores: `path` may be an attribute of the program's object.)
    """

    def __init__(self, path, answers):
        self._path, self._ask = path, answers.ask

    def __call__(self, *args, **kwargs):
        return self._ask(f"{self._path}(*args, **kwargs)", args=args, kwargs=kwargs)

    def __getattr__(self, name):
        return self._ask(f"{self._path}.{name}")

    def __getitem__(self, key):
        return self._ask(f"{self._path}[key]", key=key)

    def __len__(self):
        if not self._ask(f"hasattr({self._path}, '__len__')"):  # list() tries it, and does without
            raise TypeError("the object has no len()")
        return self._ask(f"len({self._path})")

    def __iter__(self):
        items = self._ask(f"[*{self._path}]")
        return (items[i] for i in range(len(items)))

    def __instancecheck__(self, other):
        return isinstance(other, Proxy) and self._ask(f"isinstance({other._path}, {self._path})")

    def __subclasscheck__(self, other):
        return isinstance(other, Proxy) and self._ask(f"issubclass({other._path}, {self._path})")

    def __eq__(self, other):  # only objects of the program are compared by the program
        if isinstance(other, Proxy):
            return self._ask(f"{self._path} == {other._path}")
        value = self._ask(self._path)  # a name may stand for a plain value
        return not isinstance(value, Proxy) and value == other

    __bool__, __str__, __repr__ = by_itself("bool"), by_itself("str"), by_itself("repr")
    __int__, __float__ = by_itself("int"), by_itself("float")
    __abs__, __hash__ = by_itself("abs"), by_itself("hash")
    __add__, __sub__ = with_another("add"), with_another("sub")
    __mul__, __truediv__ = with_another("mul"), with_another("truediv")
    __lt__, __le__ = with_another("lt"), with_another("le")
    __gt__, __ge__ = with_another("gt"), with_another("ge")


def judge(step, names):
    """Run an assert where the program is not, with what the program is known to give. -> None if it passes; else the
    first step that the program must still take, {"eval": ..., "names": ...}, or {"whole": True} if that needs something
    of the assert's own making that is no plain value, as a function.

    step: {"judge": the assert, "own": the names of the program in it, "known": values}; names: the module it runs in.
    """
    answers = Answers(step["known"])
    for name in step["own"]:
        names[name] = Proxy(name, answers)
    try:
        exec(compile(step["judge"], "<test>", "exec", dont_inherit=True), names)
    except Needed as needed:
        return needed.step

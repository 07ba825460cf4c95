"""Inside the sandbox: an assert, run where the program is not, over proxies of what only the program has.

It imports little, because every fork of the helper pays for it (jail.py).
"""
import json

from sandbox.program import decode, encode


GUESSES = 500  # values of a program that are guessed at a time


class Needed(BaseException):
    """Ends an assert at a call whose value is not known yet."""


class Answers:
    """What the program gives an assert.

    known: [step, its value as `encode` gives it], in their order; one that was guessed may turn out not to be asked.
    guesses: how many values may be guessed before `Needed`.
    """

    def __init__(self, known, guesses=0):
        self.known, self.guesses = known, guesses
        self.steps = []  # what has been asked

    def ask(self, expression, **given):
        """-> the value of an expression of the program; Needed if it is not known. given: names to set before."""
        number, step = len(self.steps), step_of(expression, given)
        if number < len(self.known) and is_same(step, self.known[number][0]):
            self.steps.append(step)
            value = self.known[number][1]
            return Proxy(f"results[{number}]", self) if holds_object(value) else decode(value)
        self.known = self.known[:number]  # what follows was asked after another value
        if self.guesses and "whole" in step:
            raise Needed  # a guess stands in it
        self.steps.append(step)
        if not self.guesses:
            raise Needed
        self.guesses -= 1
        return Guess()


def is_same(step, other):
    return json.dumps(step) == json.dumps(other)  # NaN equals NaN here


class Guess:
    """Stands for a value that is not known yet and is right: every comparison with it holds, and a sum is a guess."""

    def holds(self, *_):
        return True

    def itself(self, *_):
        return self

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = holds
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = itself
    __abs__ = __neg__ = __round__ = itself
    __hash__ = None


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
    """Run an assert where the program is not, with what the program is known to give. -> None if it passes; else what
    the program must still do: {"after": how many steps, "steps": [{"eval": ..., "names": ...}, ...]}; {"whole": True}
    if that needs something of the assert's own making that is no plain value, as a function.

    The first of the steps is needed. The rest is if the program is right so far: one round for all of them takes a
    hundredth of the time of a round for each.

    step: {"judge": the assert, "own": the names of the program in it, "known": see `Answers`}; names: the module it
    runs in.
    """
    answers, guessed = Answers(step["known"]), Answers(step["known"], GUESSES)
    try:
        run(step, names, answers)
    except Needed:
        needed = answers.steps[-1]
        if "whole" in needed:
            return needed
        try:
            run(step, names, guessed)
        except BaseException:  # whatever a guess leads to
            pass
        first = len(answers.steps) - 1
        return {"after": first, "steps": guessed.steps[first:] or [needed]}


def run(step, names, answers):
    for name in step["own"]:
        names[name] = Proxy(name, answers)
    exec(compile(step["judge"], "<test>", "exec", dont_inherit=True), names)

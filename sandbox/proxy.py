"""Inside the sandbox: an assert, run where the program is not, over proxies of what only the program has.

It imports little, because every fork of the helper pays for it (jail.py).
"""
import builtins
import json

from sandbox.program import decode, encode

AHEAD = 500_000  # characters of the steps that an assert asks for at once
HOPEFUL = "len sorted list tuple set str int float sum min max".split()


class Needed(BaseException):
    """Ends an assert at a call whose value is not known yet. `step`: what the program must do for it; `number`: how
    many it has asked for before."""

    def __init__(self, number, step):
        self.number, self.step = number, step


class Answers:
    """What the program gives an assert: the same assert asks for the same in the same order each time it runs.

    steps: what it has asked for, or guessed that it would; known: the values of the first of them, as `encode` gives
    them. room: characters of further steps that are only noted, each with a Guess for its value.
    """

    def __init__(self, steps, known, room=0):
        self.steps, self.known, self.room = [json.dumps(step) for step in steps], known, room
        self.asked, self.ahead = 0, []

    def ask(self, expression, **given):
        """-> the value of an expression of the program; Needed if it is not known. given: names to set before."""
        step = step_of(expression, given)
        number = self.asked
        self.asked += 1
        if number >= len(self.known) or json.dumps(step) != self.steps[number]:
            self.room -= len(json.dumps(step))
            if self.room < 0 or "whole" in step:
                raise Needed(number, step)
            self.known = self.known[:number]
            self.ahead.append(step)
            return Guess()
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


def as_hoped(self, *others):
    return True


def still_unknown(self, *others):
    return self


def no_guess(self, *others):
    raise Needed(None, None)


class Guess:
    """Stands for a value that is not known, while an assert runs ahead to show which calls come next: it compares as
    the assert would have it. What is asked for after a wrong guess is asked again."""

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = as_hoped
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = still_unknown
    __abs__ = __neg__ = __round__ = __call__ = __getitem__ = __getattr__ = still_unknown
    __hash__ = __iter__ = __len__ = __float__ = __int__ = __index__ = __str__ = __repr__ = no_guess


def hopeful(function):
    """A built-in function that gives a Guess for a Guess."""
    return lambda *args, **kwargs: args[0] if args and type(args[0]) is Guess else function(*args, **kwargs)


def judge(step, names):
    """Run an assert where the program is not, with what the program is known to give. -> None if it passes; else
    {"number", "steps"}: after so many of its steps the program must take these, {"eval": ..., "names": ...} each, of
    which all but the first are guessed; or {"whole": True} if the first needs something of the assert's own making that
    is no plain value, as a function.

    step: {"judge": the assert, "own": the names of the program in it, "calls": steps, "known": values of the first of
    these}; names: the module it runs in.
    """
    try:
        run_assert(step, names, Answers(step["calls"], step["known"]))
    except Needed as needed:
        ahead = Answers(step["calls"], step["known"][: needed.number], AHEAD)
        try:
            run_assert(step, names | {name: hopeful(getattr(builtins, name)) for name in HOPEFUL}, ahead)
        except BaseException:  # a guess was wrong, or nothing can be guessed
            pass
        return {"number": needed.number, "steps": ahead.ahead or [needed.step]}


def run_assert(step, names, answers):
    for name in step["own"]:
        names[name] = Proxy(name, answers)
    exec(compile(step["judge"], "<test>", "exec", dont_inherit=True), names)

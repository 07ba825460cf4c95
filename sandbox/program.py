"""Inside the sandbox: runs a program, or loads it and takes steps, and writes a record for each; values as JSON.

Imported by the helper process (jail.py), which forks for each test, and for `encode` and `decode` by run.py. A
record is a line of JSON after a nonce, so that nothing that a program writes by accident is taken for one. What it
forges is its own answer, which is compared elsewhere.
"""
import builtins
import json
import os
import resource
import sys
import time

# Functional answers are written as on LeetCode, without imports. LiveCodeBench's runner puts these names before them.
STAR_IMPORTS = ("string re datetime collections heapq bisect copy math random statistics itertools functools operator "
                "io sys json builtins typing").split()
LONG = 5_000  # items, that are no numbers, of a list whose digest will do
RECORD_BYTES = 4 << 20  # of all records of a test: what a caller reads costs it some seconds and 200 MB at most
MODULES = {"Decimal": "decimal", "Fraction": "fractions", "Counter": "collections", "deque": "collections",
           "date": "datetime", "time": "datetime", "datetime": "datetime", "timedelta": "datetime"}
VIEWS = type({}.keys()), type({}.items()), type({}.values())


# ---- Values as JSON that is safe to read --------------------------------------------------------------------------


def encode(value, depth=0, own=None):
    """`value` as JSON-able data. Subclasses lose what they override: what equals all there is a plain int here.

    own: the class of what stands for an object of the program (proxy.Proxy); such an object becomes its expression.
    """
    if depth > 100:
        raise RecursionError("the value is nested too deeply")
    if own is not None and type(value) is own:
        return {"own": value._path}
    if value is None or value is True or value is False:
        return value
    if type(value) is Flag:
        return {"flag": bool(value)}
    if isinstance(value, int):
        value = int.__pos__(value)
        return value if abs(value) < 1 << 63 else {"int": hex(value)}
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, str):
        return str.__str__(value)
    fields = value._fields if type(value) is Named else getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, (tuple, list)) and all(type(name) is str for name in fields):
        items = encode(tuple(tuple.__iter__(value)), depth, own)
        return {"named": [getattr(value, "_name", type(value).__name__), list(fields), items]}
    for base in (list, tuple, set, frozenset):
        if isinstance(value, base):
            items = [encode(item, depth + 1, own) for item in base.__iter__(value)]
            return items if base is list else {base.__name__: items}
    return encode_other(value, depth + 1, own)


def encode_other(value, depth, own):
    """The second half of `encode`: dicts, bytes, objects of Python's library and numpy, and what has no plain form."""
    kind = type(value)
    if MODULES.get(kind.__name__) == kind.__module__:
        if kind.__module__ == "datetime":
            return {kind.__name__: encode(value.__reduce__()[1], depth, own)["tuple"]}
        plain = {"Counter": dict, "deque": list}.get(kind.__name__, str)
        return {kind.__name__: [encode(plain(value), depth, own)]}
    if isinstance(value, type(type.__dict__)):  # a view of a dict that cannot be changed
        value = dict(value)
    if isinstance(value, dict):
        pairs = [[encode(key, depth, own), encode(item, depth, own)] for key, item in dict.items(value)]
        return {"dict": pairs}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": value.hex()}
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        plain = encode(value.tolist(), depth, own)
        if type(plain) is bool and value.shape == ():
            return {"flag": plain}
        return plain if value.shape == () else {"array": plain}
    if kind in VIEWS:
        items = encode(dict(value) if kind is VIEWS[1] else list(value), depth, own)
        return {"view": [VIEWS.index(kind), items]}
    if kind is range:
        return {"range": [encode(bound) for bound in (value.start, value.stop, value.step)]}
    if hasattr(value, "__iter__") and kind.__module__ in ("builtins", "itertools") and not isinstance(value, type):
        return {"iterator": [encode(item, depth, own) for item in value]}
    return {"object": repr(value)[:300]}


def digest(items):
    """A long list or tuple by its type, length and hash, for a caller that only asks whether it equals another one."""
    import hashlib  # here, because few tests need it and every fork would pay for it

    hashed = hashlib.sha256()
    for start in range(0, len(items), 10_000):
        hashed.update(repr(items[start : start + 10_000]).encode("utf-8", "surrogatepass"))
    return {"digest": f"{type(items).__name__} of {len(items)}: {hashed.hexdigest()}"}


class Named(tuple):
    """A named tuple: one class for all, as to make one for each would take a hostile program's caller too long."""

    def __new__(cls, name, fields, items):
        self = super().__new__(cls, items)
        self._name, self._fields = name, tuple(fields)
        return self

    def __getattr__(self, name):
        if name in self.__dict__.get("_fields", ()):
            return self[self._fields.index(name)]
        raise AttributeError(name)

    def __repr__(self):
        return f"{self._name}({', '.join(f'{name}={item!r}' for name, item in self._asdict().items())})"

    def _asdict(self):
        return dict(zip(self._fields, self))

    def _replace(self, **changed):
        return Named(self._name, self._fields, (self._asdict() | changed).values())


class Flag(int):
    """numpy's boolean, which equals True or False and is neither."""

    def __repr__(self):
        return str(bool(self))


class Opaque:
    """A value that has no plain form; it equals nothing else. `items`: of a numpy array, as nested lists."""

    def __init__(self, text, items=None):
        self.text, self.items = text, items

    def __repr__(self):
        return self.text


def decode(data, own=None):
    """The value of what `encode` gave; anything else raises ValueError, TypeError, LookupError, ArithmeticError or
    AttributeError.

    own: gives an object of the program by its expression, in the process of the program.
    """
    if isinstance(data, list):
        return [decode(item, own) for item in data]
    if not isinstance(data, dict):
        return data
    (kind, body), = data.items()
    if kind == "own":
        return own(body)
    if kind == "int":
        return int(str(body), 16)
    if kind == "bytes":
        return bytes.fromhex(body)
    if kind in ("object", "digest"):
        return Opaque(str(body)) if kind == "object" else str(body)
    if kind == "dict":
        keys = decode([key for key, _ in body], own)
        items = decode([item for _, item in body], own)
        return dict(zip(distinct(keys), items))
    if kind == "flag":
        return Flag(bool(body))
    return decode_object(kind, decode(as_list(body), own))


def as_list(body):
    """`body`; ValueError unless it is a list: a forged range would be as long as its program likes."""
    if not isinstance(body, (list, tuple)):
        raise ValueError("no list")
    return body


def decode_object(kind, body):
    """The second half of `decode`. body: the decoded list of what the object is made of."""
    if kind in MODULES and any(isinstance(part, range) for part in body):
        raise ValueError("a range in an object of a library")
    if kind == "Fraction":
        return __import__("fractions").Fraction(*map(int, body[0].split("/")))  # not "1e999999999", which takes forever
    if kind == "Counter" and not isinstance(body[0], dict):  # whose keys have been counted by `distinct`
        raise ValueError("a counter of no dict")
    if kind in MODULES:
        value = getattr(__import__(MODULES[kind]), kind)(*body)
        if kind == "Decimal" and value.is_snan():
            raise ValueError("to compare it raises an exception")
        return value
    if kind == "set":
        return set(distinct(body))
    if kind == "frozenset":
        return frozenset(distinct(body))
    if kind == "named":
        name, fields, items = body
        return Named(name, as_list(fields), as_list(items))
    if kind == "range":
        return range(*body)
    if kind == "view":
        return view_of(*body)
    if kind == "array":
        return Opaque(f"array({body!r})"[:300], body)
    if kind == "complex":
        return complex(*body)
    return {"tuple": tuple, "iterator": iter}[kind](body)


def view_of(number, items):
    """The view of a dict; see `VIEWS`."""
    if number == 0:
        return dict.fromkeys(distinct(as_list(items))).keys()
    return items.items() if number == 1 else dict(enumerate(as_list(items))).values()


def distinct(items):
    """`items`, unless they are made to collide: a set or dict of them would take time quadratic in their number."""
    hashes = {}
    for item in items:
        hashes[hash(item)] = hashes.get(hash(item), 0) + 1
    if max(hashes.values(), default=0) > 1000:
        raise ValueError("too many equal hashes")
    return items


# ---- The program --------------------------------------------------------------------------------------------------


def star_space():
    """The names of STAR_IMPORTS, to start a module with."""
    space = {}
    for line in "from {} import *", "import {}":
        exec("\n".join(map(line.format, STAR_IMPORTS)), space)
    return space


class Records:
    """The file of records of a test. Holds what it needs of other modules as it is before the program runs."""

    def __init__(self, nonce, program):
        self.nonce, self.program, self.written = nonce, program, 0
        self.write, self.dumps, self.getpid = os.write, json.dumps, os.getpid
        self.us = os.getpid()

    def add(self, data):
        if self.getpid() != self.us:  # a process that the program started: how that one ends is the program's affair
            return
        text = memoryview(f"{self.nonce}{self.dumps(data)}\n".encode())
        room = RECORD_BYTES if "error" in data else RECORD_BYTES - 50_000  # room for what went wrong
        if self.written + len(text) > room:
            raise ValueError("the result is too large")
        self.written += len(text)
        while text:
            text = text[self.write(3, text) :]

    def failed(self, error):
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)  # room to say so
        try:
            data = describe(error, self.program.split("\n"))
        except BaseException:  # its __str__ is the program's
            data = {"error": type(error).__name__, "frames": []}
        self.add(data)


def execute(request, space, nonce, judge):
    """Run the program or load it and take the steps; write a record for each; end this process.

    space: the names that its module starts with; judge: that of proxy.py.
    """
    end, out = os._exit, sys.stdout  # out: like sys.stdin, made for this descriptor and untouched so far
    script = request["steps"] is None
    records = Records(nonce, request["Solution.py"])
    sys.path.insert(0, "")
    names = new_module("__main__" if script else "Solution", space)
    try:
        if not script:
            if request["star_imports"]:
                sys.setrecursionlimit(50_000)  # as that runner does
            exec("\n".join(request["imports"]), names)
        exec(compile(request["Solution.py"], "Solution.py", "exec", dont_inherit=True), names)
    except BaseException as error:
        if not script or not isinstance(error, SystemExit):  # of a module, there would be no result
            records.failed(error)
            end(0)
    if script:
        finish_script(names, out, records)
    else:
        records.add({"value": None})
        take_steps(request, names, records, judge)
    end(0)


def new_module(name, space):
    """-> the names of an empty module; it is held by sys.modules."""
    module = sys.modules[name] = type(sys)(name)
    names = module.__dict__
    names.update(space, __name__=name, __builtins__=builtins, __file__=os.path.abspath("Solution.py"))
    return names


def finish_script(names, out, records):
    """What Python does at the end of a script. out: its first sys.stdout."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        flush(getattr(sys, "stdout", None))  # it may be of the program's own making, and need the program's names
        names.clear()  # files that it left open are written
        flush(out)
    except SystemExit:
        pass
    except BaseException as error:
        records.failed(error)


def take_steps(request, names, records, judge):
    """Take the steps of a module up to the first that fails."""
    results, clock = [], time.perf_counter  # results: of expressions, for the steps that follow
    for step in request["steps"]:
        start = clock()
        try:
            value = take(step, names, results, judge)
            if "eval" in step:
                results.append(value)
            data = digest(value) if request["digests"] and is_long(value) else encode(value)
            records.add({"value": data, "seconds": clock() - start})
        except BaseException as error:
            records.failed(error)
            return


def take(step, names, results, judge):
    """Take one step, as run.Answer.run_modules describes it. -> its value"""
    if "call" in step:
        owner = names.get("Solution")
        function = getattr(owner(), step["call"], None) if isinstance(owner, type) else None
        if function is None and step["call"] not in names:
            raise NameError(f"name '{step['call']}' is not defined")
        return (function or names[step["call"]])(*map(decode, step["args"]))
    if "eval" in step:
        def own(path):
            return eval(path, names, {"results": results})

        given = {name: decode(value, own) for name, value in step["names"].items()}
        code = compile(step["eval"], "<test>", "eval", dont_inherit=True)
        return eval(code, names, given | {"results": results})
    if "judge" in step:
        return judge(step, names)
    return exec(compile(step["exec"], "<test>", "exec", dont_inherit=True), names)


def is_long(value):
    """A list or tuple whose digest will do. (Not of numbers: those may be compared with a tolerance.)"""
    return (type(value) in (list, tuple) and len(value) > LONG
            and not isinstance(value[0], (int, float, complex)))


def flush(stream):
    """As Python does at its end, for what a program may put in the place of sys.stdout, or leave of it."""
    try:
        closed = getattr(stream, "closed", False)
    except ValueError:  # detached: its buffer belongs to another stream
        closed = True
    if not closed and hasattr(stream, "flush"):
        stream.flush()


def describe(error, lines):
    """An exception as a record: its type and message, its innermost three frames within the program."""
    frames, trace = [], error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "Solution.py":
            frames = [[trace.tb_lineno, trace.tb_frame.f_code.co_name], *frames[:2]]
        trace = trace.tb_next
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == "Solution.py":
        frames, message = [[error.lineno or 1, "<module>"]], str(error.msg)
    frames = [[line, lines[line - 1].strip()[:500] if 0 < line <= len(lines) else "", name] for line, name in frames]
    return {"error": (type(error).__name__ + (f": {message}" if message else ""))[:2000], "frames": frames}

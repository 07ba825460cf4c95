"""Inside the sandbox: an assert, run where the program is not, over proxies of what only the program has.

It imports little, because every fork of the helper pays for it (jail.py).
"""
import json


def judge(step, names, encode, decode):
    """Run an assert where the program is not, with what the program is known to give. -> None if it passes; else the
    first step that the program must still take, {"eval": ..., "names": ...}, or {"whole": True} if that needs something
    of the assert's own making that is no plain value, as a function."""
    known, count = step["known"], 0

    class Needed(BaseException):
        pass

    def ask(expression, **given):
        nonlocal count
        count += 1
        if count > len(known):
            given = {name: encode(value) for name, value in given.items()}
            raise Needed({"whole": True} if '{"object":' in json.dumps(given) else {"eval": expression, "names": given})
        data = known[count - 1]
        text = json.dumps(data)  # quotes within a value are escaped there
        return Proxy(f"results[{count - 1}]") if '{"object":' in text else decode(data)

    class Proxy:
        """Something that only the program has: its function, an object of its own, a list with such objects."""

        def __init__(self, path):
            self.__dict__["path"] = path

        def __call__(self, *args, **kwargs):
            return ask(f"{self.path}(*args, **kwargs)", args=args, kwargs=kwargs)

        def __getattr__(self, name):
            return ask(f"{self.path}.{name}")

        def __getitem__(self, key):
            return ask(f"{self.path}[key]", key=key)

        def __len__(self):
            if not ask(f"hasattr({self.path}, '__len__')"):  # list() tries it, and does without
                raise TypeError("the object has no len()")
            return ask(f"len({self.path})")

        def __iter__(self):
            items = ask(f"[*{self.path}]")
            return (items[i] for i in range(len(items)))

        def __instancecheck__(self, other):
            return isinstance(other, Proxy) and ask(f"isinstance({other.path}, {self.path})")

        def __subclasscheck__(self, other):
            return isinstance(other, Proxy) and ask(f"issubclass({other.path}, {self.path})")

        def __eq__(self, other):  # only objects of the program are compared by the program
            if isinstance(other, Proxy):
                return ask(f"{self.path} == {other.path}")
            value = ask(self.path)  # a name may stand for a plain value
            return not isinstance(value, Proxy) and value == other

    for name in "bool", "str", "repr", "int", "float", "abs", "hash":
        setattr(Proxy, f"__{name}__", lambda self, name=name: ask(f"{name}({self.path})"))
    for name in "add", "sub", "mul", "truediv", "lt", "le", "gt", "ge":
        setattr(Proxy, f"__{name}__", lambda self, other, name=name:
                ask(f"__import__('operator').{name}({self.path}, {other.path})") if isinstance(other, Proxy)
                else NotImplemented)
    for name in step["own"]:
        names[name] = Proxy(name)
    try:
        exec(compile(step["judge"], "<test>", "exec", dont_inherit=True), names)
    except Needed as needed:
        return needed.args[0]

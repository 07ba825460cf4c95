"""The house stands: ten files on top, imports that run down only, no circle; and each file keeps its budgets.

The budgets are for a reader of the paper: Algorithm 1 in consecutive lines near the top of its file, plain lines, short
functions. A line that breaks one is to be made plainer; a budget is not to be met by denser lines.
"""
import ast
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = [
    "common.math_text common.math_values",
    "common.math_items",
    "prompts loss answers common.errors common.clock common.progress benches.problem sandbox.linux sandbox.program engines.watchdog report.method",
    "benches.grader",
    "common.flags common.journal common.outputs common.ranks common.gpu_memory sandbox.proxy sandbox.workers benches.files benches.own engines.base "
    "report.measures report.paper",
    "engines.check",
    "common.attention common.rollouts common.updates common.checkpoints sandbox.jail benches.arithmetic benches.math500 benches.livecodebench benches.sciknoweval engines.vllm engines.hf "
    "engines.servers report.curves",
    "sandbox.run benches.tiny_model engines.served report.tables report.plots report.dialogue report.page",
    "engines sandbox.asserts sandbox.pairs benches.mbpp",
    "policy report",
    "benches verifiers report.tests",
    "ablations",
    "distill",
    "report.tokens report.training report.found", "report.suite",
    "explore evaluate",
    "baselines.online",
    "baselines.grpo baselines.score baselines.sdpo baselines.sft",
    "baselines.seed",
    "baselines.demo",
    "tiny"]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names.split()}
EMPTY = {"sandbox", "common", "baselines"}  # whose __init__.py costs nothing to whoever imports a part
# What one run in two does without, or --help and a mistyped flag: all else is imported at the top of its file.
LAZY = {"torch", "transformers", "huggingface_hub", "vllm", "peft", "safetensors", "matplotlib", "flash_attn", "math_verify",
        "latex2sympy2_extended", "sympy", "numpy", "pyarrow", "tokenizers"}
LATE = {"engines.hf", "engines.vllm", "engines.served", "benches.tiny_model", "common.ranks", "common.checkpoints", "common.attention", "policy", "distill", "loss"}  # own modules that load one of those
TOP = sorted(path.name for path in ROOT.glob("*.py"))
FILES = [path for path in ROOT.glob("**/*.py") if path.relative_to(ROOT).parts[0] in EMPTY | {"benches", "engines", "report"}
         or path.parent == ROOT]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(node):
    """The modules that an import statement names: of this project, or of others."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [full if (full := f"{node.module}.{alias.name}") in FLOOR else node.module for alias in node.names]


def imports(tree, inside=False):
    """Yield (module, whether within a function) for every import of a file."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((module, inside) for module in imported(node))
        yield from imports(node, inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_ten_files_on_top():
    assert TOP == ["ablations.py", "answers.py", "distill.py", "evaluate.py", "explore.py", "loss.py", "policy.py", "prompts.py",
                   "tiny.py", "verifiers.py"]


def test_every_module_has_its_floor():
    assert {name_of(path) for path in FILES} == FLOOR.keys() | EMPTY
    for name in EMPTY:
        assert (ROOT / name / "__init__.py").read_text() == ""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_down(path):
    """So there is no circle either. A folder's own __init__.py is the one exception: Python runs it before its parts."""
    name = name_of(path)
    for module, inside in imports(ast.parse(path.read_text())):
        package = module.partition(".")[0]
        if module in FLOOR or module in EMPTY:
            assert FLOOR[module] < FLOOR[name], f"{name} imports {module}"
            assert not inside or module in LATE, f"{name} imports {module} within a function"
        else:
            assert package not in FLOOR and package not in EMPTY, f"{name} imports {module}, which is not there"
            assert not inside or package in LAZY | sys.stdlib_module_names, f"{name} imports {module} within a function"


@pytest.mark.parametrize("module", ["explore", "distill", "evaluate", "tiny", "policy", "ablations", "engines.base", "common.ranks"])
def test_openmp_is_told_how_to_wait_before_torch_is_loaded(module):
    """Threads that spin take the cores from the graders. common.ranks alone loads torch by itself: nobody starts with it.

    What does not load torch has told OpenMP all the same: its functions load it later.
    """
    script = (f"import os, sys\ndef end():\n    os._exit(7 if os.environ.get('OMP_WAIT_POLICY') else 8)\n"
              f"class Finder:\n    def find_spec(self, name, *_):\n        if name == 'torch':\n            end()\n"
              f"sys.meta_path.insert(0, Finder())\nimport {module}\nend()")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment).returncode
    assert code == (8 if module == "common.ranks" else 7)


@pytest.mark.parametrize("flag,status", [("--help", 0), ("--calls=many", 2)])
def test_help_and_a_wrong_flag_load_nothing_heavy(flag, status):
    """So they take less than a second, on a machine that is not busy."""
    heavy = sorted(LAZY - {"huggingface_hub"})  # which loads its parts when they are used
    script = (f"import sys\nclass Finder:\n    def find_spec(self, name, *_):\n"
              f"        assert name not in {heavy}, name\nsys.meta_path.insert(0, Finder())\n"
              f"import explore\nexplore.main(['--bench', 'math500', '{flag}'])")
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == status and "Traceback" not in process.stderr, process.stderr
    assert "usage:" in process.stdout if flag == "--help" else process.stderr.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Budgets

ALGORITHM = {"explore.py": (70, 110), "distill.py": (110, 140)}  # file: lines of Algorithm 1, and the last of them
COLUMNS, FUNCTION_LINES, ARGUMENTS, NODES, WHY_COMMENTS = 100, 30, 6, 12, 0.08
FOLDER_COLUMNS = 120
# loss.distill_loss has more arguments, of which many are keywords: it is the loss with all that its formula names.
MANY_ARGUMENTS = {"distill_loss"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def algorithm(name):
    """(number of the first line, the lines) of the section "Algorithm 1": code from its first line to its last."""
    lines = (ROOT / name).read_text().splitlines()
    heading = lines.index("# Algorithm 1")
    rules = [i for i, line in enumerate(lines) if line.startswith("# -----") and i > heading]
    assert rules, f"{name}: no section follows Algorithm 1"
    code = [i for i in range(heading + 1, rules[0]) if lines[i].strip()]
    return code[0] + 1, lines[code[0]:code[-1] + 1]


def is_docstring(node, parent):
    has_one = isinstance(parent, (ast.Module, ast.ClassDef, *FUNCTIONS))
    return (has_one and node is parent.body[0] and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))


def code_lines(source):
    """The number of lines that are not blank, no comment alone and no docstring."""
    prose = {i for i, line in enumerate(source.splitlines(), 1) if not line.strip() or line.strip().startswith("#")}
    for parent in ast.walk(ast.parse(source)):
        for node in ast.iter_child_nodes(parent):
            if is_docstring(node, parent):
                prose |= set(range(node.lineno, node.end_lineno + 1))
    return len(source.splitlines()) - len(prose)


def nodes_per_line(source):
    """How dense the code is: all nodes of its syntax tree, docstrings and contexts (Load, Store) too, a line of code."""
    return sum(1 for _ in ast.walk(ast.parse(source))) / code_lines(source)


def functions(name):
    """Yield (name of the class or module, function) for every function and method of a file, nested ones too."""
    for parent in ast.walk(ast.parse((ROOT / name).read_text())):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, FUNCTIONS):
                yield parent, node


def argument_count(parent, function):
    a = function.args
    count = len([*a.posonlyargs, *a.args, *a.kwonlyargs]) + (a.vararg is not None) + (a.kwarg is not None)
    return count - isinstance(parent, ast.ClassDef)  # self


def is_autograd(parent):
    return isinstance(parent, ast.ClassDef) and any(ast.unparse(base).endswith("autograd.Function") for base in parent.bases)


def test_density_is_counted_right():
    """By hand: the module, an assignment, its two names with their contexts, a sum and its operator, a constant."""
    assert nodes_per_line('"""A."""\n\n# b\n\na = b + 1\n') == 9 + 2  # with the docstring's two


@pytest.mark.parametrize("name", ALGORITHM)
def test_algorithm_1_stands_together_near_the_top(name):
    first, lines = algorithm(name)
    most, last = ALGORITHM[name]
    assert len(lines) <= most and first + len(lines) - 1 <= last


@pytest.mark.parametrize("name", ALGORITHM)
def test_algorithm_1_leaves_mistakes_to_the_border(name):
    first, lines = algorithm(name)
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse("\n".join(lines))))


@pytest.mark.parametrize("name", ALGORITHM)
def test_algorithm_1_says_why(name):
    """Comments on lines of their own; those beside the code say which line of the paper it is."""
    _, lines = algorithm(name)
    assert sum(line.strip().startswith("#") for line in lines) >= WHY_COMMENTS * len(lines)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_columns(path):
    most = COLUMNS if path.parent == ROOT else FOLDER_COLUMNS
    assert not [i for i, line in enumerate(path.read_text().splitlines(), 1) if len(line) > most]


@pytest.mark.parametrize("name", TOP)
def test_functions_are_short(name):
    assert not [f"{node.name}: {length} lines" for _, node in functions(name)
                if (length := node.end_lineno - node.lineno + 1) > FUNCTION_LINES]


@pytest.mark.parametrize("name", TOP)
def test_functions_have_few_arguments(name):
    assert not [node.name for parent, node in functions(name)
                if argument_count(parent, node) > ARGUMENTS and node.name not in MANY_ARGUMENTS and not is_autograd(parent)]


@pytest.mark.parametrize("name", TOP)
def test_lines_are_plain(name):
    assert nodes_per_line((ROOT / name).read_text()) < NODES

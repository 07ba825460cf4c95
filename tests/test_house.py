"""The house stands: ten files on top, imports that run down only, and no circle."""
import ast
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = [
    "prompts loss answers common.errors benches.problem sandbox.linux sandbox.program sandbox.proxy engines.watchdog report.paper",
    "common.journal common.ranks common.gpu_memory sandbox.jail sandbox.workers benches.files benches.own engines.base report.measures",
    "sandbox.run benches.arithmetic benches.math500 benches.livecodebench benches.sciknoweval engines.vllm engines.hf report.curves",
    "sandbox.asserts benches.mbpp engines report.tables report.plots report.dialogue",
    "benches verifiers policy report",
    "ablations",
    "distill",
    "explore evaluate",
    "tiny"]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names.split()}
EMPTY = {"sandbox", "common"}  # whose __init__.py costs nothing to whoever imports a part
# What one run in two does without, or would be slow to load: all else is imported at the top of its file.
LAZY = {"vllm", "peft", "matplotlib", "flash_attn", "math_verify", "latex2sympy2_extended", "pyarrow"}
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
            assert not inside and FLOOR[module] < FLOOR[name], f"{name} imports {module}"
        else:
            assert package not in FLOOR and package not in EMPTY, f"{name} imports {module}, which is not there"
            assert not inside or package in LAZY | sys.stdlib_module_names, f"{name} imports {module} within a function"


@pytest.mark.parametrize("module", ["explore", "distill", "evaluate", "tiny", "policy", "ablations", "engines.base", "common.ranks"])
def test_openmp_is_told_how_to_wait_before_torch_is_loaded(module):
    """Threads that spin take the cores from the graders. common.ranks alone loads torch by itself: nobody starts with it."""
    script = (f"import os, sys\nclass Finder:\n    def find_spec(self, name, *_):\n        if name == 'torch':\n"
              f"            os._exit(7 if os.environ.get('OMP_WAIT_POLICY') else 8)\n"
              f"sys.meta_path.insert(0, Finder())\nimport {module}")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment).returncode
    assert code == (8 if module == "common.ranks" else 7)

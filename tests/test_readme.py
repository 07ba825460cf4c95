"""The README names what is there: functions, files and flags."""
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MODULES = {path.stem for path in ROOT.glob("*.py")} | {"engines", "benches", "report"}


def test_every_function_named_is_there():
    named = [(module, name) for module, name in re.findall(r"`(\w+)\.(\w+)`", README) if module in MODULES and name not in ("py", "json", "jsonl")]
    assert len(named) >= 15
    for module, name in named:
        assert callable(getattr(importlib.import_module(module), name)), f"{module}.{name}"


def test_the_file_map_is_complete():
    table = README.split("## Files")[1].split("\n## ")[0]
    folders = {path.name for path in ROOT.iterdir() if list(path.glob("__init__.py"))}
    parts = {path.stem for folder in folders for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)\.py`", table)) == {path.stem for path in ROOT.glob("*.py")} | parts
    assert set(re.findall(r"^\| `(\w+)/`", table, re.M)) == folders | {"tests"}


@pytest.mark.parametrize("script", ["explore", "distill", "evaluate", "tiny"])
def test_every_flag_of_a_command_is_there(script, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(script).main(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    commands = re.findall(rf"(?:python|torchrun[^\n]*?) {script}\.py([^\n#]*)", README, re.M)
    assert commands
    for command in commands:
        assert set(re.findall(r"--[a-z-]+", command)) <= flags, command


def test_every_command_that_needs_no_gpu_is_run_as_it_is_written():
    """By .ci/run: the commands of the sections for a laptop, their comments apart."""
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    sections = README.split("\n## ")
    commands = [line.partition("  #")[0].strip() for section in sections if "H200" not in section and "paper's tables" not in section
                for block in re.findall(r"```sh\n(.*?)```", section, re.S) for line in block.splitlines()]
    assert len(commands) >= 6 and not [command for command in commands if command not in ci]

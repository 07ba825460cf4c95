"""README, REPRODUCE and EXPERIMENTS name what is there: functions, lines of Algorithm 1, files, flags, commands."""
import ast
import importlib
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {name: (ROOT / f"{name}.md").read_text() for name in ("README", "REPRODUCE", "EXPERIMENTS")}
README, EVERYTHING = PAGES["README"], "\n".join(PAGES.values())
LINK = re.compile(r"\[(`?)([^]`]+)\1\]\(([^)#]*)(#[^)]*)?\)")   # `code`?, text, target, anchor
# The inputs, "for each problem", "else" and "return" are no statement of their own in the code.
NO_STATEMENT = {1, 2, 8, 17}
SLOW = "not in .ci/run"                                          # the comment of a command that CI leaves out


def section(page, heading):
    """The text of a page below "## heading"."""
    return page.split(f"\n## {heading}")[1].split("\n## ")[0]


def code_links(text):
    """(name, file) of every link such as [`Attempt.sample`](explore.py)."""
    return [(text, target) for tick, text, target, _ in LINK.findall(text) if tick and target.endswith(".py")]


def definition(name, path):
    """The node of a function, a class, a method or a field ("Attempt.sample", "Sample.logprobs") of a file."""
    node = ast.parse((ROOT / path).read_text())
    for part in name.split("."):
        found = [child for child in node.body if part == getattr(child, "name", None)
                 or isinstance(child, ast.AnnAssign) and part == child.target.id]
        assert found, f"{path} has no {name}"
        node = found[0]
    return node


def lines_said(name, path):
    """The lines of Algorithm 1 that the comments and the docstring of a definition name: "# line 11", "Lines 4-12"."""
    source, node = (ROOT / path).read_text(), definition(name, path)
    comments = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT and node.lineno <= token.start[0] <= node.end_lineno]
    numbers = re.findall(r"\b[Ll]ines? ([\d, and-]+)", "\n".join([*comments, ast.get_docstring(node) or ""]))
    return {int(number) for numbers in numbers for number in re.findall(r"\d+", numbers)}


def algorithm():
    """[(lines, cell with the links)] of the README's table."""
    rows = re.findall(r"^\| ([\d, ]+) \|.*\| (.*) \|$", section(README, "Algorithm 1"), re.M)
    return [([int(line) for line in lines.split(",")], cell) for lines, cell in rows]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_every_link_leads_somewhere():
    for _, text, target, anchor in LINK.findall(EVERYTHING):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
        if anchor:
            titles = re.findall(r"^## (.*)", (ROOT / target).read_text(), re.M)
            assert anchor in ["#" + re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_every_function_linked_is_there():
    links = code_links(EVERYTHING)
    assert len(links) >= 30
    for name, path in links:
        definition(name, path)


def test_algorithm_1_is_complete():
    assert [line for lines, _ in algorithm() for line in lines] == list(range(1, 18))


@pytest.mark.parametrize("lines,cell", algorithm())
def test_a_line_of_algorithm_1_stands_where_its_link_says(lines, cell):
    """The first link of its row: that definition carries the line's number in a comment."""
    name, path = code_links(cell)[0]
    assert set(lines) - NO_STATEMENT <= lines_said(name, path), f"{path}: {name}"


def test_every_symbol_has_its_row():
    rows = re.findall(r"^\| ([\w+(), ]+) \|", section(README, "Symbols"), re.M)
    symbols = {symbol.strip() for row in rows for symbol in row.split(",")}
    assert symbols - {"symbol"} == set("x m c y r f s K M L S mu w tau".split()) | {"C+(x)"}


def test_the_file_map_is_complete():
    named = {target for _, _, target, _ in LINK.findall(section(README, "Where to read next"))}
    top = {path.name for path in ROOT.glob("*.py")}
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"tests"}
    assert {name for name in named if "/" not in name} == top
    assert {name.split("/")[0] for name in named if "/" in name} == folders


@pytest.mark.parametrize("script", ["explore", "distill", "evaluate", "tiny"])
def test_every_flag_of_a_command_is_there(script, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(script).main(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    commands = re.findall(rf"(?:python|torchrun[^\n]*?) {script}\.py([^\n#]*)", EVERYTHING, re.M)
    assert commands
    for command in commands:
        assert set(re.findall(r"--[a-z-]+", command)) <= flags, command


def cpu_commands(page):
    """The lines of a page's sh blocks, outside the sections whose heading names the H200."""
    return [line for part in page.split("\n## ") if "H200" not in part.splitlines()[0]
            for block in re.findall(r"^ *```sh\n(.*?)```", part, re.S | re.M) for line in block.splitlines()]


def test_every_command_that_needs_no_gpu_is_run_as_it_is_written():
    """By .ci/run, their comments apart; two commands take too long and say so."""
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    lines = [line for page in PAGES.values() for line in cpu_commands(page) if line.strip()]
    assert sum(SLOW in line for line in lines) <= 2
    commands = [line.partition("  #")[0].strip() for line in lines if SLOW not in line]
    assert len(commands) >= 20 and not [command for command in commands if command not in ci]

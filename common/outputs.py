"""What a command may write over: nothing but what the same kind of command wrote.

How a file is known for that: the JSON of a run or a test holds "settings", by which one kind is told from the other;
tables are a list of {"title", "columns", "rows"}; the lines of a test hold the fields of `ANSWER`; a plot or a page
holds `MARK`. All else in the folder of a run belongs to it as long as the JSON of its settings is there.
"""
import json
import os

from common.errors import BadInput

MARK = "Made by LEAF"  # in the title that a plot or a page keeps in its file
ANSWER = {"problem", "bench", "sample", "response", "truncated", "correct", "fault"}
TABLE = {"title", "columns", "rows"}


def claim(flag, paths, inputs, is_own, foreign="which no command of this kind wrote"):
    """BadInput unless a command may write all `paths`, files or folders that its `flag` leads to.

    inputs: what the command reads, names or None. None of them is written, by whatever name or link; what is there
    already must be empty, or the same kind of command's: is_own(path); foreign: how the sentence says that it is not.
    """
    for path in paths:
        # journal.write_bytes writes the second, then renames it.
        if any(is_same(name, source) for name in (path, f"{path}.part") for source in inputs if source):
            why = "which this command reads"
        elif not (is_empty(path) or is_own(path)):
            why = foreign
        else:
            continue
        raise BadInput(f"{flag} leads to {path}, {why}: name another place; nothing was changed.")


def claim_run(folder, name, others, inputs):
    """`claim` for the folder of a run: its settings are in the file `name`, `others` are what else it writes."""
    settings = os.path.join(folder, name)

    def is_own(path):
        # An empty object is a run's that has not begun; the settings themselves are compared later.
        content = load_json(settings)
        return isinstance(content, dict) and (not content or isinstance(content.get("settings"), dict))

    if any(is_same(folder, source) for source in inputs if source):
        raise BadInput(f"--out is {folder}, which this command reads: name another folder.")
    # A damaged file of settings has a sentence of its own.
    if not (os.path.isfile(settings) and load_json(settings) is None):
        paths = [settings, *(os.path.join(folder, other) for other in others)]
        claim("--out", paths, inputs, is_own, f"and without its {name} that is no file of such a run")


def claim_file(flag, path, endings, inputs, is_own):
    """`claim` for one file, whose folder is there and whose name has one of the `endings`."""
    if not path.endswith(endings):
        raise BadInput(f"{flag} {path} has no known ending: name a {', '.join(endings)} file.")
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise BadInput(f"{flag} {path} cannot be written: name a file in a folder that is there, and yours.")
    claim(flag, [path], inputs, is_own)


def is_same(path, other):
    """Whether two names mean one file or folder, which need not be there."""
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def is_empty(path):
    """Whether there is nothing at `path`, or a file or folder without content."""
    if os.path.isdir(path):
        return not os.listdir(path)
    return not os.path.lexists(path) or os.path.isfile(path) and os.path.getsize(path) == 0


def load_json(path):
    """What a JSON file holds; None if that cannot be read."""
    try:
        with open(path, "rb") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


def is_test(path):
    """Whether evaluate.py wrote the numbers of a test to `path`."""
    content = load_json(path)
    settings = content.get("settings") if isinstance(content, dict) else None
    return isinstance(settings, dict) and "samples" in settings and "versions" in content


def is_tables(path):
    """Whether evaluate.py wrote tables of runs to `path`."""
    content = load_json(path)
    if not isinstance(content, list) or not content:
        return False
    return all(isinstance(table, dict) and TABLE <= table.keys() for table in content)


def is_marked(path):
    """Whether a plot or a page is one of this program."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return MARK.encode() in file.read()


def holds_answers(path):
    """Whether a .jsonl holds the answers of a test; a first line that a crash cut off is one of them."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        line = file.readline()
    try:
        return ANSWER <= json.loads(line).keys()
    except (ValueError, AttributeError, RecursionError):
        return not line.endswith(b"\n") and line.startswith(b'{"problem": ')

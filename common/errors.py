"""What goes wrong at the border, in one sentence for the user; and JSON lines, which every file here is made of."""
import errno
import gzip
import io
import json
import os
import sys
import zlib


def say_stopped(kind, error, trace):
    """sys.excepthook: Ctrl-C while a script still imports, which takes seconds, is no page of a traceback either."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nStopped.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = say_stopped


class BadInput(Exception):
    """One sentence for the user: what is wrong and what to do."""


class ContextTooLong(BadInput):
    """A prompt leaves no room for a single token in the model's window."""


def exit_with_sentence(main):
    """Run a script's main(); a BadInput becomes its sentence on stderr and exit status 2."""
    try:
        main()
        sys.stdout.flush()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # before or after what a script says of its own when it is stopped
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # wherever it was: every file that a run writes survives it
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"The disk takes no more ({error.strerror}): make room, then the same command goes on; what stands in "
              "the files is kept.", file=sys.stderr)
        sys.exit(2)


def open_file(path):
    """A file for reading bytes, unpacked if it is gzip; BadInput if it cannot be read."""
    try:
        file = open(path, "rb")
        return io.BytesIO(gzip.decompress(file.read())) if file.peek(2)[:2] == b"\x1f\x8b" else file
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read ({error}): name a readable file.") from None


def rows(path, torn_ok=False, unique=False):
    """Yield ("PATH line N", dict) for each line; BadInput names a line that is no JSON object, or empty before the end.

    unique: a user's own file, where a key that an object holds twice is refused. torn_ok: a last line that is
    unterminated or undecodable (a crash cut it off) is dropped with a note on stderr.
    """
    with open_file(path) as file:
        empty = None
        for number, line in enumerate(file, 1):  # bytes, so that U+2028 inside a string ends no line
            where = f"{path} line {number}"
            if not line.strip():
                empty = empty or where
                continue
            if empty:
                raise BadInput(f"{empty} is empty: delete it.")
            try:
                if torn_ok and not line.endswith(b"\n"):
                    raise ValueError("it has no end")
                row = json.loads(line, object_pairs_hook=once if unique else None)
            except (ValueError, RecursionError) as error:
                if torn_ok and not file.readline():
                    print(f"{where}, the last, is damaged and left out.", file=sys.stderr)
                    return
                if unique and number == 1 and line.strip() in (b"[", b"{"):
                    raise BadInput(f"{path} is JSON over several lines: write each object on a line of its own, as "
                                   "`jq -c '.[]?'` or Python's json.dumps does.") from None
                raise BadInput(f"{where} is not JSON ({error}): correct or delete it.") from None
            if not isinstance(row, dict):
                raise BadInput(f"{where} is not a JSON object: write {{...}} on each line.")
            yield where, row


def once(pairs):
    """A JSON object; ValueError if a key stands in it twice."""
    row, keys = dict(pairs), [key for key, _ in pairs]
    if len(row) < len(pairs):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'the key "{twice}" stands in it twice')
    return row


def read_jsonl(path, torn_ok=False):
    """-> one dict a line; see `rows`."""
    return [row for _, row in rows(path, torn_ok)]

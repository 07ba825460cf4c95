"""Files of the benchmarks: fetched once and kept in the Hugging Face cache, or the user's own copies; their rows.

What is drawn "with a fixed seed" is ordered by a hash of its own content: no choice depends on the order of a file.
"""
import hashlib
import http.client
import os
import shutil
import sys
import urllib.request
from pathlib import Path

import filelock
from tqdm import tqdm

from common.errors import BadInput, open_file

SEED = 0  # of choices, orders and the public/private split; the seed of a run never touches it


# ---------------------------------------------------------------------------------------------------------------------
# Files


def file_sha256(path):
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_copy(path, digest, pinned):
    """Say so if the user's copy is not what the paper used: an excerpt, say."""
    if digest != pinned:
        print(f"note: {path} is not the pinned data (sha256 {pinned[:12]}...); going on with it.", file=sys.stderr)


def unreachable(what, error):
    return BadInput(f"{what} cannot be fetched ({error}): try again, name a copy of the bench with --data, or run this "
                    "on a machine with a network and copy its Hugging Face cache here.")


def from_hub(repo, name, pinned=None, revision=None):
    """-> path of a data set's file from the Hugging Face Hub; `pinned`: the sha256 that its content must have."""
    import huggingface_hub as hub  # here and below: a second that `--help` need not wait for
    where = {"repo_id": repo, "filename": name, "repo_type": "dataset", "revision": revision}
    try:
        try:
            path = hub.hf_hub_download(**where, local_files_only=True)
        except hub.errors.LocalEntryNotFoundError:
            # one quick question first: without a network hf_hub_download would try for half a minute
            hub.get_hf_file_metadata(hub.hf_hub_url(**where))
            path = hub.hf_hub_download(**where)
    except Exception as error:  # the Hub's HTTP library, and so the classes of its errors, changes with its version
        raise unreachable(f"{name} of https://huggingface.co/datasets/{repo}", type(error).__name__) from error
    return check_download(path, pinned)


def from_web(url, name, pinned=None):
    """-> path of a file that is fetched once and kept in the Hugging Face cache folder; `pinned` as above."""
    from huggingface_hub import constants
    path = Path(constants.HF_HOME, "leaf", name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with filelock.FileLock(f"{path.parent}.lock"):  # another run may be fetching it
                if not path.exists():
                    with open(f"{path}.part", "ab") as file:
                        fetch(url, file)
                    os.replace(file.name, path)
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(url, error) from None
    return check_download(path, pinned)


def fetch(url, file):
    """Append what `file` still lacks of `url`, with a progress bar. Errors: OSError, HTTPException."""
    file.truncate(max(file.seek(0, os.SEEK_END) - 1, 0))  # a byte again: no server sends the rest of a whole file
    start = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"})
    with urllib.request.urlopen(request, timeout=20) as response:
        if response.status != 206:  # it sends everything
            start = 0
            file.truncate(0)
        size = start + int(response.headers.get("Content-Length", 0))
        name = Path(file.name).stem
        with tqdm.wrapattr(file, "write", desc=name, total=size or None, initial=start, disable=None) as bar:
            shutil.copyfileobj(response, bar)
    if file.seek(0, os.SEEK_END) < size:
        raise OSError(f"it broke off before its {size} bytes were here")


def check_download(path, pinned):
    if pinned and file_sha256(path) != pinned:
        raise BadInput(f"{path} is not the file that the paper used: delete it and try again, or name one with --data.")
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def shuffled(items, content):
    """`items` in a fixed order that depends on the text content(item) alone."""
    return sorted(items, key=lambda item: sha256(f"{SEED} {content(item)}"))


def squash(text):
    """`text` with its white space evened out, to tell equal problems."""
    return " ".join(text.split())


def checked_rows(numbered, fields):
    """Yield the rows of an upstream file, given as (where, row); BadInput where one lacks a field of {"name" or
    "outer.inner": type}."""
    for where, row in numbered:
        for name, field_type in fields.items():
            if not isinstance(field_of(row, name), field_type):
                raise BadInput(f'{where} has no "{name}" of the right type: name the file of that bench.')
        yield row


def field_of(row, name):
    """The field "name" or "outer.inner" of a row; None if it has none."""
    value = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value

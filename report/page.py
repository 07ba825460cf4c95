"""A run as a page to look at: one HTML file that opens from disk, without a network (page.html is its template).

evaluate.py --html writes it of runs (`write_runs`), and of tokens (report/tokens.py). Whatever a model has written
stays text: the data are packed, and page.html puts them in as text nodes only.
"""
import base64
import gzip
import json
import os

from common import journal
from report import measures
from report.curves import bench_name, model_name, read_attempts, read_beside
from report.method import method_of

MOST_BYTES = 5_000_000  # of a page
LONG = 1 << 15  # characters: the longest text of a page that has no room for whole ones is half of it, or less
TEMPLATE = os.path.join(os.path.dirname(__file__), "page.html")


def write(path, data_of):
    """Write the page of the data `data_of(share)` to `path`.

    share: 1, or how much of the texts there is room for below MOST_BYTES: 1/2, 1/4 ...; the page then says so.
    """
    with open(TEMPLATE) as file:
        before, after = file.read().split("DATA")
    room = MOST_BYTES - len((before + after).encode())
    share, content = 1, pack(data_of(1))
    while len(content) > room and share > 1e-4:
        share /= 2
        content = pack(data_of(share))
    journal.write_bytes(path, before.encode() + content + after.encode())


def pack(data):
    """JSON, gzip, base64: the texts of a run shrink to a quarter, and hold nothing that HTML could read."""
    return base64.b64encode(gzip.compress(json.dumps(data).encode(), compresslevel=6, mtime=0))


def cut(text, most):
    """The beginning and the end of a longer text."""
    if most is None or text is None or len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[len(text) - half:]}"


def write_runs(path, rollouts):
    """The page of the runs in the files `rollouts` (rollouts.jsonl). Errors: BadInput."""
    runs = [(name, read_attempts(name), read_beside(name, "explore.json") or {}) for name in rollouts]

    def data_of(share):
        most = None if share == 1 else int(LONG * share)
        return {"kind": "run", "most": most, "runs": [one_run(*run, most) for run in runs]}

    write(path, data_of)


def one_run(path, attempts, explored, most):
    settings = explored.get("settings", {})
    first = next(record for steps in attempts.values() for record in steps.values())
    last = measures.complete_steps(attempts)
    return {
        "path": path,
        "method": str(method_of(first["method"], settings)),
        "bench": bench_name(first["bench"], settings.get("split")),
        "model": model_name(settings.get("model", "model")),
        "calls": max(step for steps in attempts.values() for step in steps),
        "pass": measures.pass_curve(attempts, last) if last else [],
        "accuracy": measures.per_answer_curve(attempts, last, "correct") if last else [],
        "problems": [one_problem(name, steps, most) for name, steps in attempts.items()],
    }


def one_problem(name, steps, most):
    """A row of the grid: the plain prompt once, and its attempts in the order of their steps."""
    opening = []
    for message in steps[min(steps)]["context"]:
        if message["role"] == "assistant":
            break
        opening.append(message["content"])
    sources, attempts = {}, []
    for step, record in sorted(steps.items()):
        attempts.append(one_attempt(step, record, opening, sources, most))
        if record["tail"] is not None:
            sources[record["tail"]] = f"the end of answer {step}"
        sources[record["response"]] = f"answer {step}"
    return {"id": name, "opening": [cut(text, most) for text in opening], "attempts": attempts}


def one_attempt(step, record, opening, sources, most):
    """sources: {text: where the page shows it already}, the answers before this one."""
    draft = record["draft"]
    shown = sources | ({draft: "the draft of this call"} if draft is not None else {})
    turns = []
    for message in record["context"][len(opening):]:
        text = message["content"]
        source = shown.get(text) if message["role"] == "assistant" else None
        # An answer that stands above already is named and not repeated.
        turns.append([message["role"], source, None if source else cut(text, most)])
    # How much of the answer the memory drops, in characters from its beginning.
    tail, response = record["tail"], record["response"]
    dropped = len(response) - len(tail) if tail is not None and response.endswith(tail) else 0
    is_cut = most is not None and len(response) > most
    return {
        "step": step, "state": state(record), "restart": record["restart"], "turns": turns,
        "draft": cut(draft, most), "response": cut(response, most), "dropped": 0 if is_cut else dropped,
        "feedback": cut(record["feedback"], most), "signature": cut(record["signature"], most),
        "fault": record["fault"], "tokens": record["completion_tokens"],
    }


def state(record):
    """The colour of a cell."""
    if record["fault"]:
        return "fault"
    if record["correct"]:
        return "right"
    if record["truncated"]:
        return "truncated"
    return "public" if record["reward"] else "wrong"

"""One problem's attempts as a dialogue, to be read."""
import textwrap

from common.errors import BadInput
from report.curves import read_attempts


def printable(text):
    """`text` without control characters: a terminal would obey them."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def fold(text):
    """Indented, long lines of prose folded at words; code blocks stay as they are; control characters are left out."""
    lines, in_code = [], False
    for line in printable(text).split("\n"):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if in_code or len(line) <= 100:
            lines.append(line)
        else:
            lines += textwrap.wrap(line, 100, break_long_words=False)
    return textwrap.indent("\n".join(lines), "    ")


def dialogue(steps):
    """The attempts at one problem ({step: record}) as a text: the opening; each step's user turn, answer, verdict."""
    first = steps[min(steps)]
    opening = []
    for message in first["context"]:
        if message["role"] == "assistant":
            break
        opening.append(message)
    parts = [f"Problem {first['problem']} of {first['bench']}"]
    parts += [f"{name}: {printable(str(value))}" for name, value in first.get("metadata", {}).items()]
    parts += [f"[{message['role']}]\n{fold(message['content'])}" for message in opening]
    for step, record in sorted(steps.items()):
        parts.append(f"======== step {step}{', restart' if record['restart'] else ''} ========")
        if record["draft"] is not None:
            parts.append(f"[assistant: a draft, not graded]\n{fold(record['draft'])}")
        if record["context"][-1] != opening[-1]:
            parts.append(f"[user]\n{fold(record['context'][-1]['content'])}")
        parts += [f"[assistant]\n{fold(record['response'])}", verdict_line(record)]
        if record["feedback"]:
            parts.append(fold(record["feedback"]))
    return "\n\n".join(parts)


def verdict_line(record):
    verdict = "wrong"
    if record["correct"]:
        verdict = "correct"
    elif record["reward"]:
        verdict = "passes the public tests only"
    notes = [f"{record['completion_tokens']} tokens"]
    if record["signature"] and not record["feedback"]:  # MATH: the content of the box
        notes.insert(0, f"answer {printable(record['signature'])}")
    if record["truncated"]:
        notes.append("truncated")
    if record["fault"]:
        notes.append(f"verifier fault: {record['fault']}")
    return f"--> {verdict} ({', '.join(notes)})"


def show(paths, problem):
    """The dialogues of one problem in the given runs."""
    runs = {path: read_attempts(path) for path in paths}
    dialogues = [f"{path}\n{dialogue(attempts[problem])}" for path, attempts in runs.items() if problem in attempts]
    if not dialogues:
        known = ", ".join(list(next(iter(runs.values())))[:5])
        raise BadInput(f"there is no problem {problem} in {', '.join(runs)}; ids there are {known} ...")
    return "\n\n\n".join(dialogues)

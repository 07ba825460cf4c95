"""The files of an exploration: lines of rollouts.jsonl and cplus.jsonl, settings and result in explore.json.

`run` is explore.py's Run; `attempts` are its records as {problem id: {step: record}}.
"""
import asyncio
import dataclasses
import json
import os
import re
import time

from common import journal
from report import measures

# The fields of rollouts.jsonl with the tokens of each request: prompt, completion.
TOKEN_FIELDS = {
    "answer": ("prompt_tokens", "completion_tokens"),
    "draft": ("draft_prompt_tokens", "draft_tokens"),
    "summary": ("summary_prompt_tokens", "summary_tokens"),
    "judge": ("judge_prompt_tokens", "judge_tokens"),
}


def token_counts(samples):
    """{field of TOKEN_FIELDS: tokens} of {request: Sample}; 0 for a request that was not made."""
    counts = {}
    for request, (prompt, completion) in TOKEN_FIELDS.items():
        sample = samples.get(request)
        counts[prompt] = sample.prompt_tokens if sample else 0
        counts[completion] = len(sample.token_ids) if sample else 0
    return counts


def record(attempt, c, y_hat):
    """The line of rollouts.jsonl of an explore.Attempt; y_hat: what the next context shows of the answer to c."""
    run, x, samples = attempt.run, attempt.x, attempt.samples
    y, draft, summary = samples["answer"], samples.get("draft"), samples.get("summary")
    # The judge is a part of the verifier.
    seconds = sum(sample.seconds for request, sample in samples.items() if request != "judge")
    return {
        "problem": x.id, "bench": x.bench, "method": run.args.method, "step": attempt.t,
        "restart": draft is not None,
        "updates": run.trainer.done if run.trainer else 0,
        "context": c, "response": y.text,
        "tail": y_hat if len(y.token_ids) > run.args.tail else None,
        "draft": draft.text if draft else None,
        "summary": summary.text if summary else None,
        **token_counts(samples),
        "finish_reason": y.finish_reason,
        "truncated": y.truncated(run.settings.max_tokens),
        **dataclasses.asdict(attempt.verdict),  # reward, correct, feedback, signature, fault
        **attempt.judgment,                     # judge_text, judge_unreadable
        "seed": attempt.seed("answer"),
        "sample_seconds": round(seconds, 3),    # in the engine's batch: no wait in its queue
        "verify_seconds": round(attempt.verify_seconds, 3),
        "private_seconds": 0.0,                 # see `Lines.finish`
        "elapsed_seconds": round(run.elapsed(), 3),
        **({"metadata": x.metadata} if x.metadata else {}),
    }


class Lines:
    """Writes rollouts.jsonl: an answer's line when all its tests are graded.

    The lines of a problem are in the order in which they were added. A run that goes on samples again what it does not
    find, so no answer may stand there that has seen another one than it will find.
    """

    def __init__(self, file, graders):
        self.file, self.graders = file, graders
        self.unwritten = {}        # problem id -> the task that writes its newest line

    def add(self, x, record):
        """Write a record of problem x, now or when its private tests are graded. Errors: BadInput, of others too."""
        for task in self.unwritten.values():
            if task.done():
                task.result()
        before = self.unwritten.get(x.id)
        if record["correct"] is None or before:
            self.unwritten[x.id] = asyncio.ensure_future(self.finish(x, record, before))
        else:
            journal.append(self.file, record)

    async def finish(self, x, record, before):
        """Grade the private tests beside the run, complete the record, and write it after what `before` writes."""
        if record["correct"] is None:
            begin = time.time()
            record["correct"], record["fault"] = await self.graders.grade_private(x, record["response"])
            record["private_seconds"] = round(time.time() - begin, 3)
        if before:
            await before
        journal.append(self.file, record)
        if self.unwritten[x.id] is asyncio.current_task():
            del self.unwritten[x.id]

    async def all_written(self):
        await asyncio.gather(*self.unwritten.values())


def progress(records, seconds):
    """The text beside the bar: of the records of a run, which has taken so many seconds."""
    tried = {record["problem"] for record in records}
    solved = {record["problem"] for record in records if record["correct"]}
    tokens = sum(record[completion] for record in records for _, completion in TOKEN_FIELDS.values())
    return f"{len(solved) / len(tried):.1%} solved, {tokens / seconds:,.0f} tokens/s"


def open_files(args, settings, update, problems):
    """Open the files of the run in --out, a new one or one that goes on.

    -> ({(problem id, step): record}, rollouts.jsonl). Errors: BadInput, if it is another run's.
    """
    values = dataclasses.asdict(args)
    del values["out"]
    growable = ("calls", "limit", "gpu_hours")
    if update:
        values |= {"lr": update.lr, "tau": update.tau, "divergence": update.divergence}
        # Another problem would have needed the adapters of the steps that are over.
        growable = ("calls", "gpu_hours")
    values |= settings.kept()
    return journal.open_rollouts(args.out, values, growable, problems)


def cplus_lines(settings, successes, openings):
    """The lines of cplus.jsonl. successes: the records of C+; openings: {problem id: plain prompt}."""
    decoding = {name: getattr(settings, name) for name in ("temperature", "top_p", "max_tokens")}
    return [{
        "problem": r["problem"], "bench": r["bench"], "model": settings.model, "family": settings.family,
        "decoding": decoding, "opening": openings[r["problem"]], "context": r["context"],
        "response": r["response"], "step": r["step"],
    } for r in successes]


def write_cplus(folder, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    journal.write_bytes(os.path.join(folder, "cplus.jsonl"), text.encode())


def write_result(run, attempts, is_capped):
    """Into explore.json. -> the result.

    Its seconds: "earlier" are those of the sessions before this one, up to the last answer of the last; a session that
    was killed has no other end. "grading" is of private tests, after the engine has ended. All others are the job's
    GPU time (App. E.5); `wall_seconds` is what is split over the steps (App. C.4).
    """
    run.clock.begin("over")        # but for this file
    seconds = {"earlier": run.earlier_seconds, **run.clock.parts}
    result = {
        "problems": len(attempts), "answers": len(run.records),
        "startup_seconds": seconds["startup"],
        "wall_seconds": sum(seconds.get(part, 0.0) for part in ("earlier", "sampling", "update")),
        "seconds": {part: round(value, 3) for part, value in seconds.items()},
        "gpus": run.engine.gpus, "parameters": run.engine.parameters,
        "faults": sum(record["fault"] is not None for record in run.records.values()),
        "unreadable_judgments": sum(record.get("judge_unreadable", False) for record in run.records.values()),
        "complete_steps": measures.complete_steps(attempts), "capped": is_capped, "failed": run.failures,
    }
    path = os.path.join(run.args.out, "explore.json")
    journal.write_json(path, journal.read_json(path) | {"result": result})
    return result


def print_result(run, attempts, result, cplus=None):
    """cplus: the lines of cplus.jsonl, of a run that writes it."""
    last_step = result["complete_steps"]
    if result["capped"]:
        print(f"The cap of {run.args.gpu_hours:g} GPU hours ended the run; all problems have {last_step} calls.")
    for line in fault_lines(run.records.values()):
        print(line)
    if last_step:
        passed = measures.pass_curve(attempts, last_step)
        accuracy = measures.per_answer_curve(attempts, last_step, "correct")
        print(f"pass@{last_step} {passed[-1]:.1%}, mean accuracy {accuracy[-1]:.1%}, "
              f"{len(run.records)} answers in {run.elapsed():.0f} s")
    print("seconds: " + ", ".join(f"{part} {seconds:.1f}" for part, seconds in result["seconds"].items()))
    if cplus is not None:
        solved = {line["problem"] for line in cplus}
        print(f"C+ holds {len(cplus)} contexts of {len(solved)} problems: {os.path.join(run.args.out, 'cplus.jsonl')}")


def fault_lines(records):
    """A line for each reason why the verifier failed on some of `records`, with its problems.

    Reasons that differ in their numbers alone are one, as is an unreadable verdict of the judge.
    """
    reasons, problems = {}, {}
    for record in records:
        reason = record["fault"]
        if record.get("judge_unreadable"):
            reason = "The judge said neither yes nor no (field judge_text)."
        if reason:
            kind = re.sub(r"\d+", "", reason)
            reasons.setdefault(kind, reason)
            problems.setdefault(kind, []).append(record["problem"])
    lines = []
    for kind, names in problems.items():
        different = list(dict.fromkeys(names))
        shown = ", ".join(different[:5]) + (", ..." if len(different) > 5 else "")
        lines.append(f"The verifier itself failed on {len(names)} answers, which count as wrong "
                     f"(problems: {shown}): {reasons[kind]}")
    return lines

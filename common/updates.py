"""The files of an update: the cplus.jsonl that it reads, and what distill.json keeps of it.

`args` is distill.DistillArgs. policy.py writes the journals and checkpoints.
"""
import hashlib
import json
import os

from common import journal, outputs
from common.errors import BadInput, read_jsonl


def by_problem(lines):
    """Lines of cplus.jsonl as {problem id: its lines}, in the order of the file."""
    problems = {}
    for line in lines:
        problems.setdefault(line["problem"], []).append(line)
    return problems


def read_cplus(path):
    """cplus.jsonl `by_problem`. Errors: BadInput, also if there is nothing to learn from."""
    lines = read_jsonl(path)
    journal.check_fields(path, lines, "problem", "bench", "model", "family", "decoding", "opening",
                         "context", "response", "step")
    if not lines:
        raise BadInput(f"{path} holds no context: no answer was right, so there is nothing to "
                       "distill; explore with more calls, more problems or a stronger model.")
    if len({(line["bench"], line["model"]) for line in lines}) > 1:
        raise BadInput(f"{path} mixes benches or models: distill each explore run by itself.")
    return by_problem(lines)


def run_settings(args, contexts):
    """What distill.json keeps of a run, which goes on with the same alone."""
    # The batches and the draws depend on them: a C+ that has grown meanwhile is another run.
    texts = {problem: [draw["context"] for draw in draws] for problem, draws in contexts.items()}
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
    return {
        "cplus": args.cplus, "steps": args.steps, "batch": args.batch,
        "lr": args.update.lr, "tau": args.update.tau, "divergence": args.update.divergence,
        "traces": args.traces, "seed": args.seed, "contexts": digest,
    } | args.settings.kept()


def job_seconds(args, clock, done, earlier):
    """{part: seconds} of the job (App. E.5), on each GPU; --merge is no part of it.

    done: the step after which this session began; earlier: what the last one to end left here.
    """
    lines = read_jsonl(os.path.join(args.out, "distill.jsonl"))
    sampling = sum(line["sample_seconds"] for line in lines)
    updates = sum(line["train_seconds"] for line in lines)
    timed = sum(line["sample_seconds"] + line["train_seconds"] for line in lines[done:])
    # What else a step takes is its checkpoint.
    saving = clock.parts["saving"] + clock.parts["steps"] - timed
    seconds = {"startup": earlier.get("startup", 0) + clock.parts["startup"],
               "sampling": sampling, "update": updates,
               "saving": earlier.get("saving", 0) + saving}
    return {part: round(value, 3) for part, value in seconds.items()}


def write_result(args, clock, done, gpus):
    """Into distill.json."""
    content = journal.read_json(os.path.join(args.out, "distill.json"))
    earlier = content.get("result", {}).get("seconds", {})
    seconds = job_seconds(args, clock, done, earlier)
    keep_result(args, "result", {"steps": args.steps, "gpus": gpus, "seconds": seconds})
    print("seconds: " + ", ".join(f"{part} {value:.1f}" for part, value in seconds.items()))


def keep_result(args, name, value):
    """One more entry of distill.json."""
    path = os.path.join(args.out, "distill.json")
    journal.write_json(path, journal.read_json(path) | {name: value})


def check_outputs(args):
    """BadInput where the run would write over something that is not its own."""
    inputs = [args.cplus, os.path.join(os.path.dirname(args.cplus), "rollouts.jsonl"),
              args.settings.model]
    written = ("distill.jsonl", "samples.jsonl", "adapter")
    outputs.claim_run(args.out, "distill.json", written, inputs)
    if args.merge:
        kept = outputs.load_json(os.path.join(args.out, "distill.json")) or {}
        merged = os.path.join(args.out, "merged")
        outputs.claim("--merge", [merged], inputs, lambda _: kept.get("merged", False))

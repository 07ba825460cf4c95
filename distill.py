"""Self-distillation of what the memory gave: Algorithm 1, lines 13-16 (section 2.3, App. B.4, G.3-G.5).

    python distill.py --cplus out/cplus.jsonl                         # S = 20 steps of 128 problems, one GPU
    torchrun --nproc_per_node 8 distill.py --cplus out/cplus.jsonl    # sharded (FSDP2); each rank samples its share

Student: the policy on the plain prompt. Teacher: the same current policy, adapter included, on a context after which it
answered correctly. Both see the student's own sampled tokens. Only the LoRA adapter is trained.

Writes adapter/ (PEFT format, the newest), adapter/step_K/ (the last two, with what a resume needs), distill.jsonl (a
line of metrics per step), samples.jsonl (the student's responses) and distill.json into --out. The same command goes on
where a run stopped, on any number of ranks; a larger --steps extends it.
"""
import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import random
import sys
import time

import numpy as np
from tqdm import tqdm

import data
import engine  # noqa: I001 (before torch: it sets how OpenMP threads wait)
import loss
import prompts
import runs
import training

import torch


# ---------------------------------------------------------------------------------------------------------------------
# What is trained on: batches (line 14), contexts (line 15)


def batch_indices(step, size, count, seed):
    """Problems of update step `step` (from 1): a cut of one endless stream, permutation after permutation of them all.

    Returns [(index, occurrence)]: a batch that spans two epochs may hold a problem twice; its second occurrence is 1.
    The permutation of epoch e is seeded with the schedule seed + e; run seed s has schedule seed (s - 1) * 10^8.
    """
    batch = []
    for position in range((step - 1) * size, step * size):
        epoch, place = divmod(position, count)
        index = int(np.random.default_rng((seed - 1) * 10**8 + epoch).permutation(count)[place])
        batch.append((index, sum(i == index for i, _ in batch)))
    return batch


def draw_context(contexts, seed, step, problem, occurrence=0):
    """c ~ Unif(C+(x)): one of the list `contexts`; its place is a pure function of the list's length and the others."""
    return random.Random(engine.request_seed(seed, problem, step, f"context {occurrence}")).choice(contexts)


def teacher_contexts(problems, traces, rollouts):
    """{problem id: [context]}: what the teachers of the trace types of Tables 5 and 27 are conditioned on (App. G.4).

    success: C+ itself. failure: the contexts of wrong answers without duplicates; the plain prompt where there is none.
    random: C+ with the feedback turn replaced by one that differs, from another step of the problem, else of another
    problem; restart contexts hold no feedback and stay. `problems`: see `read_cplus`; `rollouts`: the records of
    rollouts.jsonl (not read for success). Errors: BadInput, where there is no feedback turn, or none that differs.
    """
    if traces == "success":
        return {problem: [line["context"] for line in lines] for problem, lines in problems.items()}
    contexts = {problem: [] for problem in problems}
    records = {(r["problem"], r["step"]): r for r in sorted(rollouts, key=lambda r: r["step"])}
    for problem, step in ((problem, line["step"]) for problem, lines in problems.items() for line in lines):
        if (problem, step) not in records:
            raise data.BadInput(f"rollouts.jsonl has no step {step} of problem {problem}, which cplus.jsonl holds: put "
                                "back the rollouts.jsonl of that run beside it.")
    if traces == "failure":
        for (problem, _), r in records.items():
            if r["reward"] == 0 and problem in contexts and r["context"] not in contexts[problem]:
                contexts[problem].append(r["context"])
        return {problem: found or [problems[problem][0]["opening"]] for problem, found in contexts.items()}
    turns = {problem: set() for problem, _ in records}  # the feedback turns of each problem
    for (problem, _), r in records.items():
        if not r["restart"]:
            if len(r["context"]) < 2 or r["context"][-2]["role"] != "assistant":
                raise data.BadInput("--traces random replaces the feedback turn, and these contexts have none: explore "
                                    "with --method leaf and a --memory that shows the response.")
            turns[problem].add(r["context"][-1]["content"])
    everything = set().union(*turns.values())
    for problem, lines in problems.items():
        for line in lines:
            *earlier, turn = line["context"]
            if not records[problem, line["step"]]["restart"]:
                others = sorted(turns[problem] - {turn["content"]} or everything - {turn["content"]})
                if not others:
                    raise data.BadInput("--traces random needs two feedback texts that differ, and these rollouts hold "
                                        "one: explore more problems.")
                pick = random.Random(engine.request_seed(1, problem, line["step"], "random trace"))
                turn = prompts.user(pick.choice(others))
            contexts[problem].append([*earlier, turn])
    return contexts


# ---------------------------------------------------------------------------------------------------------------------
# One update: the student's responses (line 15), the gradient step (line 16)


@dataclasses.dataclass
class Item:
    """One student response of the batch and what it is trained with."""
    opening: list          # token ids of the plain prompt
    context: list          # token ids of the teacher's context
    sample: engine.Sample

    def tokens(self):
        """Tokens of the student's and the teacher's row."""
        return len(self.opening) + len(self.context) + 2 * len(self.sample.token_ids)


async def student_samples(sampler, settings, adapter, seed, step, share, problems, contexts, traces):
    """y ~ policy(. | x) with the adapter of a folder (None: without) for each (problem, occurrence) of `share`.

    Returns the items to train with and the lines of samples.jsonl, both in the order of `share`.
    """
    async def one(problem, occurrence):
        lines = problems[problem]
        opening = sampler.encode(lines[0]["opening"])
        context = sampler.encode(draw_context(contexts[problem], seed, step, problem, occurrence))
        # The contexts of success and random traces stand in the order of C+; those of failures are no steps of C+.
        context_step = None if traces == "failure" else draw_context(lines, seed, step, problem, occurrence)["step"]
        request = engine.request_seed(seed, problem, step, f"student {occurrence}")
        try:
            sample = await sampler.sample(opening, seed=request, max_tokens=settings.max_tokens,
                                          temperature=settings.temperature, top_p=settings.top_p, adapter=adapter)
        except engine.ContextTooLong as error:
            raise data.BadInput(f"problem {problem} cannot be sampled: {error}") from None
        n = len(sample.token_ids)
        return Item(opening, context, sample), {
            "step": step, "problem": problem, "bench": lines[0]["bench"], "occurrence": occurrence,
            "context_step": context_step, "response": sample.text, "prompt_tokens": len(opening),
            "completion_tokens": n, "context_tokens": len(context), "finish_reason": sample.finish_reason,
            "truncated": sample.finish_reason == "length" or n >= settings.max_tokens, "seed": request}
    pairs = await asyncio.gather(*(one(*pair) for pair in share))
    return [item for item, _ in pairs], [line for _, line in pairs]


def micro_batches(items, budget):
    """Cut items into lists of at most `budget` tokens (student and teacher rows together; one item may be larger)."""
    batches, room = [], 0
    for item in sorted(items, key=Item.tokens):
        if item.tokens() > room:
            batches.append([])
            room = budget
        batches[-1].append(item)
        room -= item.tokens()
    return batches


def update(policy, optimizer, items, *, kind, tau, budget, max_grad_norm=1.0):
    """One optimizer step on Eq. 3 over the batch; `items` is this rank's share. -> metrics of the whole batch.

    The loss divides by the response tokens of the whole batch over all micro-batches and ranks, so that the gradient
    does not depend on how the batch is cut. A rank with fewer micro-batches runs empty ones: every rank must take part
    in every collective operation of the sharded model.
    """
    batches = micro_batches(items, budget)
    ranks = training.gathered([(len(batches), sum(len(i.sample.token_ids) for i in items))])
    most, total = max(count for count, _ in ranks), sum(tokens for _, tokens in ranks)
    sums, device = np.zeros(6), policy.head.device
    for batch in batches + [[]] * (most - len(batches)):
        lengths = [len(i.sample.token_ids) for i in batch]
        token_ids = torch.tensor([t for i in batch for t in i.sample.token_ids], dtype=torch.long, device=device)
        sampler_logprobs = torch.tensor([x for i in batch for x in i.sample.logprobs], device=device)  # log mu
        with torch.no_grad():  # q: the same current policy, adapter included
            teacher = policy.hidden([i.context + i.sample.token_ids for i in batch], lengths)
        student = policy.hidden([i.opening + i.sample.token_ids for i in batch], lengths)  # p
        stats = {}
        value, _ = loss.distill_loss(student, teacher, policy.head, token_ids, sampler_logprobs,
                                     temperature=policy.temperature, kind=kind, tau=tau, stats=stats)
        (value * len(ranks) / total).backward()  # FSDP averages over the ranks: times their number gives their sum
        weights = stats["weights"]
        sums += [float(x) for x in (value.detach(), stats["divergence"], weights.sum(), (weights >= 2).sum(),
                                    stats["entropy"], stats["capped_entries"])]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    optimizer.step()
    optimizer.zero_grad()
    sums = (sum(training.gathered([sums])) / total).tolist()
    return {"loss": sums[0], "divergence": sums[1], "mean_w": sums[2], "capped_w": sums[3], "entropy": sums[4],
            "capped_entries": sums[5] / policy.head.shape[0], "grad_norm": float(norm), "response_tokens": total}


# ---------------------------------------------------------------------------------------------------------------------
# The run


async def train_step(trainer, step, batch, problems, contexts):
    """Lines 15 and 16 for one batch of (problem id, occurrence); then the lines of both journals and the checkpoint."""
    begin, args, (rank, world) = time.time(), trainer.args, training.rank_and_world()
    with training.together():
        items, lines = await student_samples(                                                       # line 15
            trainer.sampler, trainer.settings, trainer.adapter(), args.seed, step, batch[rank::world], problems,
            contexts, args.traces)
    sampled = time.time()
    metrics = update(trainer.policy, trainer.optimizer, items, kind=args.divergence, tau=args.tau,  # line 16
                     budget=args.micro_tokens)
    lines = training.gathered(lines)
    lines.sort(key=lambda line: batch.index((line["problem"], line["occurrence"])))
    metrics = {"step": step, **metrics, "length": float(np.mean([line["completion_tokens"] for line in lines])),
               "truncated": float(np.mean([line["truncated"] for line in lines])),
               "student_tokens": sum(line["prompt_tokens"] + line["completion_tokens"] for line in lines),
               "teacher_tokens": sum(line["context_tokens"] + line["completion_tokens"] for line in lines),
               "sample_seconds": round(sampled - begin, 3), "train_seconds": round(time.time() - sampled, 3)}
    with training.together():
        if not math.isfinite(metrics["grad_norm"]):
            raise data.BadInput(f"the gradient of step {step} is not finite, so it is not kept: name another "
                                "folder with --out and a smaller --lr, or try --dtype float32.")
        if rank == 0:
            runs.append(trainer.journals[1], *lines)
            runs.append(trainer.journals[0], metrics)
            for journal in trainer.journals:  # a checkpoint must not outlive its lines
                os.fsync(journal.fileno())
            tqdm.write(log_line(metrics))
    training.save(trainer.policy, trainer.optimizer, trainer.folder, step)
    trainer.done = step  # the step counts from here on


async def train_on_all(trainer, step, lines):
    """Lines 15 and 16 for every problem that `lines` of cplus.jsonl hold, once each (App. G.3); for none, nothing."""
    problems = {}
    for line in lines:
        problems.setdefault(line["problem"], []).append(line)
    if problems:
        batch = [(problem, 0) for problem in problems]
        await train_step(trainer, step, batch, problems, teacher_contexts(problems, "success", []))


async def distill(args, settings, problems, contexts, done, journals):
    """Lines 13-16: S steps from step done + 1. Returns the number of GPUs."""
    rank, world = training.rank_and_world()
    with training.together():
        sampler = await engine.start(settings, adapters=True)
    bar = tqdm(total=args.steps, initial=done, unit="step", disable=None if rank == 0 else True)
    try:
        openings, names = [lines[0]["opening"] for lines in problems.values()], list(problems)
        trainer = training.start_trainer(args, settings, sampler, openings, args.out, done, journals)
        for step in range(done + 1, args.steps + 1):                                                # line 13
            batch = [(names[i], k) for i, k in batch_indices(step, args.batch, len(names), args.seed)]  # line 14
            await train_step(trainer, step, batch, problems, contexts)
            bar.update()
        return sampler.gpus * world
    finally:
        bar.close()
        sampler.close()


def log_line(m):
    return (f"step {m['step']:3d}  loss {m['loss']:.5f}  D {m['divergence']:.5f}  w {m['mean_w']:.4f} "
            f"(at the cap {m['capped_w']:.2%})  entropy {m['entropy']:.3f}  length {m['length']:.0f}  "
            f"truncated {m['truncated']:.1%}  grad norm {m['grad_norm']:.3g}  "
            f"sampling {m['sample_seconds']:.1f} s, update {m['train_seconds']:.1f} s")


def check_fields(path, lines, *fields):
    """BadInput where a line of explore.py's file lacks one of the fields."""
    for number, line in enumerate(lines, 1):
        if missing := [name for name in fields if name not in line]:
            raise data.BadInput(f"{path} line {number} has no {missing[0]}: name the cplus.jsonl that explore.py "
                                "wrote, with its rollouts.jsonl beside it.")


def read_cplus(path):
    """cplus.jsonl -> {problem id: its lines}, in the order of the file; BadInput if there is nothing to learn from."""
    problems, lines = {}, data.read_jsonl(path)
    check_fields(path, lines, "problem", "bench", "model", "family", "decoding", "opening", "context", "response",
                 "step")
    for line in lines:
        problems.setdefault(line["problem"], []).append(line)
    if not problems:
        raise data.BadInput(f"{path} holds no context: no answer was right, so there is nothing to distill; explore "
                            "with more calls, more problems or a stronger model.")
    if len({(line["bench"], line["model"]) for lines in problems.values() for line in lines}) > 1:
        raise data.BadInput(f"{path} mixes benches or models: distill each explore run by itself.")
    return problems


def read_rollouts(cplus):
    """The records of the rollouts.jsonl beside the file `cplus`."""
    path = os.path.join(os.path.dirname(cplus), "rollouts.jsonl")
    records = data.read_jsonl(path, torn_ok=True)
    check_fields(path, records, "problem", "step", "reward", "restart", "context")
    return records


def above_zero(text):
    """argparse type: a finite number above zero."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no finite number above 0")


def add_arguments(parser, lr):
    """The flags of an update; its learning rate is `lr` by default."""
    parser.add_argument("--lr", type=above_zero, default=lr, help=f"learning rate (default: {lr:g})")
    parser.add_argument("--tau", type=lambda text: math.inf if text == "inf" else above_zero(text),
                        help="cap of Eq. 2, inf for none (default: 1e-3 on math500, none elsewhere)")
    parser.add_argument("--divergence", choices=loss.DIVERGENCES, default="reverse_kl")
    parser.add_argument("--micro-tokens", type=engine.positive_int, default=16384,
                        help="tokens of one forward and backward pass, student and teacher together")
    parser.add_argument("--grad-checkpoint-every", type=int, choices=range(0, 1000), metavar="N",
                        help="recompute every Nth layer in the backward pass, 0: none (default: as few as fit)")


def settle(args, settings, bench):
    """Give --tau its default (section 2.3: a cap on MATH alone); BadInput where there is nothing to learn from."""
    if settings.temperature == 0:
        raise data.BadInput("--temperature 0 leaves no distribution to distill: give one above 0.")
    if args.tau is None:
        args.tau = 1e-3 if bench == "math500" else math.inf


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Self-distill successful contexts into a LoRA adapter (Algorithm 1, lines 13-16).")
    parser.add_argument("--cplus", required=True, metavar="FILE", help="cplus.jsonl of explore.py")
    parser.add_argument("--steps", type=engine.positive_int, default=20, help="S, optimizer steps")
    parser.add_argument("--batch", type=engine.positive_int, default=128, help="problems a step")
    add_arguments(parser, lr=1e-5)
    parser.add_argument("--traces", choices=["success", "failure", "random"], default="success",
                        help="the teacher's contexts (Table 5); the last two read the rollouts.jsonl beside --cplus")
    parser.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    parser.add_argument("--merge", action="store_true", help="also write the model with the adapter in it: OUT/merged")
    parser.add_argument("--out", default="out", help="folder of the run")
    engine.add_arguments(parser)
    args = parser.parse_args(argv)
    training.join_ranks()
    with contextlib.ExitStack() as stack:
        with training.together():
            settings, problems, contexts = prepare(args)
            if training.rank_and_world()[0] == 0:
                stack.enter_context(runs.hold(args.out))
        run(args, settings, problems, contexts)


def as_explored(args, line):
    """Where the flags are silent: model, prompt family and decoding of the run that wrote a line of cplus.jsonl."""
    for name, value in {"model": line["model"], "family": line["family"], **line["decoding"]}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def prepare(args):
    """Resolve flags, read files. -> (engine settings, {problem: lines of C+}, {problem: the teacher's contexts})."""
    problems = read_cplus(args.cplus)
    first = next(iter(problems.values()))[0]
    as_explored(args, first)
    if training.rank_and_world()[1] > 1 and args.tensor_parallel * args.data_parallel > 1:
        raise data.BadInput("under torchrun each rank samples on its own GPU: leave out --tensor-parallel and "
                            "--data-parallel.")
    settings = engine.settings(args, first["bench"], gpu_memory=0.4)
    settle(args, settings, first["bench"])
    rollouts = [] if args.traces == "success" else read_rollouts(args.cplus)
    return settings, problems, teacher_contexts(problems, args.traces, rollouts)


def run(args, settings, problems, contexts):
    """Begin or go on in --out, and train."""
    folder, path = os.path.join(args.out, "adapter"), os.path.join(args.out, "distill.json")
    rank, done, journals = training.rank_and_world()[0], training.newest_step(folder), None
    with training.together():
        if rank == 0:
            if done and not os.path.exists(path):
                raise data.BadInput(f"{folder} holds checkpoints of a run without its distill.json: name another "
                                    "folder with --out.")
            flags = ("cplus", "steps", "batch", "lr", "tau", "divergence", "traces", "seed")
            kept = {name: getattr(args, name) for name in flags} | {"tau": "inf" if args.tau == math.inf else args.tau}
            kept["contexts"] = hashlib.sha256(json.dumps(contexts).encode()).hexdigest()[:16]
            runs.begin(path, kept | dataclasses.asdict(settings), growable=("steps",), empty=done == 0)
            journals = training.go_on(args.out, done)
    training.print_once(f"distill: {len(problems)} problems, {sum(map(len, contexts.values()))} contexts "
                        f"({args.traces}), {args.steps} steps of {args.batch}, {args.divergence}, tau {args.tau:g}, lr "
                        f"{args.lr:g}; {engine.describe(settings)}")
    if done:
        training.print_once(f"{done} steps are done already; the run goes on.")
    if done < args.steps:
        try:
            gpus = asyncio.run(distill(args, settings, problems, contexts, done, journals))
        except KeyboardInterrupt:
            training.print_once("\nStopped. The steps above are kept; the same command goes on.", sys.stderr)
            sys.exit(130)
        if rank == 0:
            runs.write_json(path, runs.read_json(path) | {"result": {"steps": args.steps, "gpus": gpus}})
    if args.merge and rank == 0:
        training.merge(settings, folder, os.path.join(args.out, "merged"))
    training.print_once(f"adapter: {folder}")


if __name__ == "__main__":
    training.run_rank(main)

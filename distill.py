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
import os
import random

import engines  # noqa: I001 (before torch: it sets how OpenMP threads wait)
import ablations
from common import journal
from common.errors import BadInput, read_jsonl
from common.ranks import gathered, join_ranks, print_once, rank_and_world, run_rank, together
from engines.base import Sample, request_seed
from loss import distill_loss
from policy import add_arguments, go_on, merge, newest_step, start_trainer, update_args

import numpy as np
import torch
from tqdm import tqdm


# ---------------------------------------------------------------------------------------------------------------------
# Algorithm 1


async def distill(trainer, problems, contexts, steps, batch_size):
    """Lines 13-16. problems: {x: its lines of cplus.jsonl}; contexts: {x: what its teacher is conditioned on}."""
    names = list(problems)
    for step in range(trainer.done + 1, steps + 1):                                                 # line 13
        batch = [(names[i], k) for i, k in batch_indices(step, batch_size, len(names), trainer.seed)]   # line 14
        await train_step(trainer, step, batch, problems, contexts)


async def train_on_all(trainer, step, lines):
    """Lines 15 and 16 for every problem that `lines` of cplus.jsonl hold, once each (App. G.3); for none, nothing."""
    problems = {}
    for line in lines:
        problems.setdefault(line["problem"], []).append(line)
    if problems:
        await train_step(trainer, step, [(problem, 0) for problem in problems], problems, contexts=problems)


async def train_step(trainer, step, batch, problems, contexts):
    """Lines 15 and 16 for one batch of (problem id, occurrence)."""
    with trainer.sampling():
        rows = await asyncio.gather(*(student_row(trainer, step, *x, problems, contexts)
                                      for x in trainer.share(batch)))                               # line 15
    metrics = update(trainer.policy, trainer.optimizer, rows, trainer.args)                         # line 16
    trainer.commit(step, batch, rows, metrics)  # journals, then the checkpoint: from here on the step counts


async def student_row(trainer, step, problem, occurrence, problems, contexts):
    """c ~ Unif(C+(x)), y ~ policy(. | x): the student never sees c."""
    lines = problems[problem]
    drawn = draw_context(contexts[problem], trainer.seed, step, problem, occurrence)
    opening, context = (trainer.engine.encode(messages) for messages in (lines[0]["opening"], drawn["context"]))
    seed = request_seed(trainer.seed, problem, step, f"student {occurrence}")
    y = await trainer.sample(opening, seed, problem)
    return Row(opening, context, y, problem, lines[0]["bench"], occurrence, drawn["step"], seed)


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
    return random.Random(request_seed(seed, problem, step, f"context {occurrence}")).choice(contexts)


@dataclasses.dataclass
class Row:
    """One student response of the batch and what it is trained with."""
    opening: list            # token ids of the plain prompt
    context: list            # token ids of the teacher's context
    sample: Sample
    problem: str = ""
    bench: str = ""
    occurrence: int = 0
    context_step: int = None  # of the context in C+; None for that of a failure
    seed: int = None         # of the request

    def tokens(self):
        """Tokens of the student's and the teacher's row."""
        return len(self.opening) + len(self.context) + 2 * len(self.sample.token_ids)

    def line(self, step, max_tokens):
        """Its line of samples.jsonl."""
        return {"step": step, "problem": self.problem, "bench": self.bench, "occurrence": self.occurrence,
                "context_step": self.context_step, "response": self.sample.text, "prompt_tokens": len(self.opening),
                "completion_tokens": len(self.sample.token_ids), "context_tokens": len(self.context),
                "finish_reason": self.sample.finish_reason, "truncated": self.sample.truncated(max_tokens),
                "seed": self.seed}


def micro_batches(rows, budget):
    """Cut rows into lists of at most `budget` tokens (student and teacher together; one row may be larger)."""
    batches, room = [], 0
    for row in sorted(rows, key=Row.tokens):
        if row.tokens() > room:
            batches.append([])
            room = budget
        batches[-1].append(row)
        room -= row.tokens()
    return batches


def update(policy, optimizer, rows, args):
    """One optimizer step on Eq. 3 over the batch; `rows` is this rank's share. -> metrics of the whole batch.

    The loss divides by the response tokens of the whole batch over all micro-batches and ranks, so that the gradient
    does not depend on how the batch is cut. A rank with fewer micro-batches runs empty ones: every rank must take part
    in every collective operation of the sharded model.
    """
    batches = micro_batches(rows, args.micro_tokens)
    ranks = gathered([(len(batches), sum(len(r.sample.token_ids) for r in rows))])
    most, total = max(count for count, _ in ranks), sum(tokens for _, tokens in ranks)
    sums, device = np.zeros(6), policy.head.device
    for batch in batches + [[]] * (most - len(batches)):
        lengths = [len(r.sample.token_ids) for r in batch]
        token_ids = torch.tensor([t for r in batch for t in r.sample.token_ids], dtype=torch.long, device=device)
        sampler_logprobs = torch.tensor([x for r in batch for x in r.sample.logprobs], device=device)  # log mu
        with torch.no_grad():  # q: the same current policy, adapter included
            teacher = policy.hidden([r.context + r.sample.token_ids for r in batch], lengths)
        student = policy.hidden([r.opening + r.sample.token_ids for r in batch], lengths)  # p
        stats = {}
        value, _ = distill_loss(student, teacher, policy.head, token_ids, sampler_logprobs,
                                temperature=policy.temperature, kind=args.divergence, tau=args.tau, stats=stats)
        (value * len(ranks) / total).backward()  # FSDP averages over the ranks: times their number gives their sum
        weights = stats["weights"]
        sums += [float(x) for x in (value.detach(), stats["divergence"], weights.sum(), (weights >= 2).sum(),
                                    stats["entropy"], stats["capped_entries"])]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    optimizer.step()
    optimizer.zero_grad()
    sums = (sum(gathered([sums])) / total).tolist()
    return {"loss": sums[0], "divergence": sums[1], "mean_w": sums[2], "capped_w": sums[3], "entropy": sums[4],
            "capped_entries": sums[5] / policy.head.shape[0], "grad_norm": float(norm), "response_tokens": total}


# ---------------------------------------------------------------------------------------------------------------------
# The run


def read_cplus(path):
    """cplus.jsonl -> {problem id: its lines}, in the order of the file; BadInput if there is nothing to learn from."""
    problems, lines = {}, read_jsonl(path)
    journal.check_fields(path, lines, "problem", "bench", "model", "family", "decoding", "opening", "context",
                         "response", "step")
    for line in lines:
        problems.setdefault(line["problem"], []).append(line)
    if not problems:
        raise BadInput(f"{path} holds no context: no answer was right, so there is nothing to distill; explore "
                       "with more calls, more problems or a stronger model.")
    if len({(line["bench"], line["model"]) for lines in problems.values() for line in lines}) > 1:
        raise BadInput(f"{path} mixes benches or models: distill each explore run by itself.")
    return problems


async def main_async(args, how, settings, problems, contexts, journals):
    """Start the engine and the trainer, distill, and end both. -> the number of GPUs."""
    rank, world = rank_and_world()
    with together():
        engine = await engines.start(settings, adapters=True, folder=args.out)
    done = newest_step(os.path.join(args.out, "adapter"))
    bar = tqdm(total=args.steps, initial=done, unit="step", disable=None if rank == 0 else True)
    try:
        openings = [lines[0]["opening"] for lines in problems.values()]
        trainer = start_trainer(how, args.seed, settings, engine, openings, args.out, journals)
        trainer.bar = bar
        await distill(trainer, problems, contexts, args.steps, args.batch)
        return engine.gpus * world
    finally:
        bar.close()
        engine.close()


def as_explored(args, line):
    """Where the flags are silent: model, prompt family and decoding of the run that wrote a line of cplus.jsonl."""
    for name, value in {"model": line["model"], "family": line["family"], **line["decoding"]}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def prepare(args):
    """Resolve flags, read files.

    -> (how to update, engine settings, {problem: lines of C+}, {problem: what its teacher's contexts are drawn from}).
    """
    problems = read_cplus(args.cplus)
    first = next(iter(problems.values()))[0]
    as_explored(args, first)
    if rank_and_world()[1] > 1 and args.tensor_parallel * args.data_parallel > 1:
        raise BadInput("under torchrun each rank samples on its own GPU: leave out --tensor-parallel and "
                       "--data-parallel.")
    settings = engines.settings(args, first["bench"], gpu_memory=0.4)
    how = update_args(args, settings, first["bench"])
    rollouts = [] if args.traces == "success" else ablations.read_rollouts(args.cplus)
    return how, settings, problems, ablations.teacher_draws(problems, args.traces, rollouts)


def run(args, how, settings, problems, contexts):
    """Begin or go on in --out, and train."""
    folder, path = os.path.join(args.out, "adapter"), os.path.join(args.out, "distill.json")
    rank, done, journals = rank_and_world()[0], newest_step(folder), None
    with together():
        if rank == 0:
            if done and not os.path.exists(path):
                raise BadInput(f"{folder} holds checkpoints of a run without its distill.json: name another folder "
                               "with --out.")
            kept = {name: getattr(args, name) for name in ("cplus", "steps", "batch")}
            kept |= {name: getattr(how, name) for name in ("lr", "tau", "divergence")}
            drawn_from = {problem: [draw["context"] for draw in draws] for problem, draws in contexts.items()}
            kept |= {"traces": args.traces, "seed": args.seed,
                     "contexts": hashlib.sha256(json.dumps(drawn_from).encode()).hexdigest()[:16]}
            journal.keep_settings(path, kept | dataclasses.asdict(settings), growable=("steps",), empty=done == 0)
            journals = go_on(args.out, done)
    print_once(f"distill: {len(problems)} problems, {sum(map(len, contexts.values()))} contexts ({args.traces}), "
               f"{args.steps} steps of {args.batch}, {how.divergence}, tau {how.tau:g}, lr {how.lr:g}; "
               f"{engines.describe(settings)}")
    if done:
        print_once(f"{done} steps are done already; the run goes on.")
    if done < args.steps:
        with journal.stoppable("Stopped. The steps above are kept; the same command goes on.", rank == 0):
            gpus = asyncio.run(main_async(args, how, settings, problems, contexts, journals))
        if rank == 0:
            journal.write_json(path, journal.read_json(path) | {"result": {"steps": args.steps, "gpus": gpus}})
    if args.merge and rank == 0:
        merge(settings, folder, os.path.join(args.out, "merged"))
    print_once(f"adapter: {folder}")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Self-distill successful contexts into a LoRA adapter (Algorithm 1, lines 13-16).")
    parser.add_argument("--cplus", required=True, metavar="FILE", help="cplus.jsonl of explore.py")
    parser.add_argument("--steps", type=engines.positive_int, default=20, help="S, optimizer steps")
    parser.add_argument("--batch", type=engines.positive_int, default=128, help="problems a step")
    add_arguments(parser, lr=1e-5)
    parser.add_argument("--traces", choices=["success", "failure", "random"], default="success",
                        help="the teacher's contexts (Table 5); the last two read the rollouts.jsonl beside --cplus")
    parser.add_argument("--seed", type=engines.positive_int, default=1, help="run seed")
    parser.add_argument("--merge", action="store_true", help="also write the model with the adapter in it: OUT/merged")
    parser.add_argument("--out", default="out", help="folder of the run")
    engines.add_arguments(parser)
    args = parser.parse_args(argv)
    join_ranks()
    with contextlib.ExitStack() as stack:
        with together():
            prepared = prepare(args)
            if rank_and_world()[0] == 0:
                stack.enter_context(journal.lock(args.out))
        run(args, *prepared)


if __name__ == "__main__":
    run_rank(main)

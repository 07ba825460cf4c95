"""Self-distillation of what the memory gave: Algorithm 1, lines 13-16 (section 2.3, App. B.4).

    python distill.py --cplus out/cplus.jsonl                        # S = 20 steps of 128 problems
    torchrun --nproc_per_node 8 distill.py --cplus out/cplus.jsonl   # sharded over 8 GPUs (FSDP2)

Student: the policy on the plain prompt. Teacher: the same policy on a context after which it
answered correctly. Both see the student's own sampled tokens. Only the LoRA adapter is trained.

Writes adapter/ (PEFT), adapter/step_K/, distill.jsonl (metrics), samples.jsonl and distill.json to
--out. The same command goes on where a run stopped, on any number of ranks, or to larger --steps.
"""
import argparse
import asyncio
import contextlib
import os
import random
from dataclasses import astuple, dataclass

import engines.check  # noqa: I001 (before torch: it sets how OpenMP threads wait)
import ablations
import policy as policies
from common import checkpoints, flags, journal, ranks, updates
from common.clock import Clock
from common.errors import BadInput
from engines.base import Sample, request_seed
from loss import distill_loss
import numpy as np
import torch

# --------------------------------------------------------------------------------------------------
# Algorithm 1


async def distill(trainer, problems, contexts, steps, batch_size):
    """problems: {id: its lines of cplus.jsonl}; contexts: {id: [{"context", "step"}]}; steps: S."""
    ids = list(problems)
    for step in range(trainer.done + 1, steps + 1):                                # line 13
        indices = batch_indices(step, batch_size, len(ids), trainer.seed)
        batch = [(ids[i], occurrence) for i, occurrence in indices]                # line 14
        await train_step(trainer, step, batch, problems, contexts)


async def train_step(trainer, step, batch, problems, contexts):
    """One step on a batch of (id of x, occurrence); explore.py takes some too (App. G.3)."""
    with trainer.sampling(batch):
        rows = await asyncio.gather(*(student_row(trainer, step, *place, problems, contexts)
                                      for place in trainer.share(batch)))          # line 15
    async with trainer.engine.resting():
        metrics = update(trainer.policy, trainer.optimizer, rows, trainer.args)    # line 16
    # Journals, then the checkpoint. A run that stops before it repeats the step with its seeds.
    trainer.commit(step, batch, rows, metrics)


async def student_row(trainer, step, problem, occurrence, problems, contexts):
    """c ~ Unif(C+(x)), y ~ policy(. | x), for one x of the batch."""
    first, encode = problems[problem][0], trainer.engine.encode
    draw = draw_context(contexts[problem], trainer.seed, step, problem, occurrence)
    x, c = encode(first["opening"]), encode(draw["context"])                       # token ids
    # The student never sees c: in use there is no memory, so it must learn to answer from x alone.
    seed = request_seed(trainer.seed, problem, step, f"student {occurrence}")
    y = await trainer.sample(x, seed, problem)
    return Row(x, c, y, problem, first["bench"], occurrence, draw["step"], seed)


def batch_indices(step, size, count, seed):
    """[(index, occurrence)] of step 1, 2, ...: a cut of one endless stream of permutations.

    Epoch e has seed (run seed - 1) * 10^8 + e. A batch over two epochs may hold a problem twice.
    """
    batch = []
    for position in range((step - 1) * size, step * size):
        epoch, place = divmod(position, count)
        index = int(np.random.default_rng((seed - 1) * 10**8 + epoch).permutation(count)[place])
        batch.append((index, sum(i == index for i, _ in batch)))
    return batch


def draw_context(contexts, seed, step, problem, occurrence=0):
    """One of the list `contexts`: its place follows from the list's length and the arguments."""
    rng = random.Random(request_seed(seed, problem, step, f"context {occurrence}"))
    return rng.choice(contexts)


def update(policy, optimizer, rows, args):
    """One optimizer step on Eq. 3; rows: this rank's. -> metrics of the batch of all ranks."""
    def eq3(batch):
        y, log_mu, lengths = packed(batch, policy.head.device)                     # [T], [T]
        # The teacher is the same current policy, adapter included: what it knows more is c alone.
        # No gradient through q, or the teacher would come down to meet the student.
        with torch.no_grad():
            q = policy.hidden_states([r.c + r.y.token_ids for r in batch], lengths)    # [T, d]
        p = policy.hidden_states([r.x + r.y.token_ids for r in batch], lengths)        # [T, d]
        # The loss makes the distributions of these states, w from p and mu, and the cap tau.
        sums = {}
        loss, _ = distill_loss(p, q, policy.head, y, log_mu, temperature=policy.temperature,
                               kind=args.divergence, tau=args.tau, stats=sums)     # sum of w_i D_i
        return loss, Stats.of(loss, sums)
    N, stats, grad_norm = optimizer_step(policy, optimizer, rows, eq3, args)
    return sum(stats, Stats()).metrics(N, len(policy.head), grad_norm)


def optimizer_step(policy, optimizer, rows, loss_of_batch, args):
    """One step on the token mean of a loss over the rows of all ranks; rows: this rank's.

    loss_of_batch(rows, perhaps none) -> (sum over tokens, numbers). -> (N, these, gradient norm).
    """
    batches = micro_batches(rows, args.micro_tokens)
    # Eq. 3 divides by the tokens of the whole batch, of all micro-batches and ranks. So the
    # gradient does not depend on how the batch is cut; a mean of means would favour short answers.
    N = sum(ranks.all_gather([sum(len(row.y.token_ids) for row in rows)]))
    # A sharded model needs all ranks at each pass: one with fewer micro-batches runs empty ones.
    passes = ranks.all_gather([len(batches)])                                      # of each rank
    stats = []
    for batch in batches + [[]] * (max(passes) - len(batches)):
        loss, numbers = loss_of_batch(batch)
        # FSDP averages gradients over the ranks: times their number gives the sum.
        (loss * len(passes) / N).backward()                                        # Eq. 3
        stats.append(numbers)
    grad_norm = policy.clip_gradients(args.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return N, stats, grad_norm


@dataclass
class Row:
    """One x of a batch, and what its student is trained with."""
    x: list[int]                     # token ids of the plain prompt: the student's
    c: list[int]                     # token ids of the teacher's context
    y: Sample                        # the student's answer: its tokens, and log mu of each
    problem: str = ""                # its id
    bench: str = ""
    occurrence: int = 0              # of the problem in the batch
    context_step: int | None = None  # of c in C+; None for the context of a failure
    seed: int | None = None          # of the request

    def tokens(self):
        return len(self.x) + len(self.c) + 2 * len(self.y.token_ids)


# --------------------------------------------------------------------------------------------------
# Its tensors and its numbers


def micro_batches(rows, most):
    """Lists of rows of at most `most` tokens, student and teacher; one row may be larger."""
    batches, room = [], 0
    # On a GPU the largest first: the blocks that the allocator then holds have room for the others.
    for row in sorted(rows, key=lambda row: row.tokens(), reverse=torch.cuda.is_available()):
        if row.tokens() > room:
            batches.append([])
            room = most
        batches[-1].append(row)
        room -= row.tokens()
    return batches


def packed(batch, device):
    """(y, log mu, lengths): the sampled tokens of a micro-batch, one response after another."""
    y = [token for row in batch for token in row.y.token_ids]
    log_mu = [value for row in batch for value in row.y.logprobs]
    assert len(y) == len(log_mu)
    lengths = [len(row.y.token_ids) for row in batch]
    return (torch.tensor(y, dtype=torch.long, device=device),                      # [T]
            torch.tensor(log_mu, device=device), lengths)                          # [T]


@dataclass
class Stats:
    """Sums over the response tokens of a rank."""
    loss: float = 0.0             # w_i D_i
    divergence: float = 0.0       # D_i
    weights: float = 0.0          # w_i
    capped_weights: float = 0.0   # tokens whose w_i is at the cap
    entropy: float = 0.0          # of p, nats
    capped_entries: float = 0.0   # entries of the vocabulary above tau

    @classmethod
    def of(cls, loss, sums):
        """Those of a micro-batch; sums: what distill_loss puts into `stats`."""
        w = sums["weights"]
        return cls(float(loss.detach()), float(sums["divergence"]), float(w.sum()),
                   float((w >= 2).sum()), float(sums["entropy"]), float(sums["capped_entries"]))

    def __add__(self, other):
        mine, theirs = astuple(self), astuple(other)
        return Stats(*(a + b for a, b in zip(mine, theirs)))

    def metrics(self, tokens, vocabulary, grad_norm):
        """What distill.jsonl says of an update; tokens: those of the responses of all ranks."""
        sums = sum(ranks.all_gather([self]), Stats())
        return {
            "loss": sums.loss / tokens, "divergence": sums.divergence / tokens,
            "mean_w": sums.weights / tokens, "capped_w": sums.capped_weights / tokens,
            "entropy": sums.entropy / tokens,
            "capped_entries": sums.capped_entries / tokens / vocabulary,
            "grad_norm": grad_norm, "response_tokens": tokens,
        }


# --------------------------------------------------------------------------------------------------
# The run


async def train_on_all(trainer, step, lines):
    """One update on every problem that `lines` of cplus.jsonl hold, once each (App. G.3)."""
    problems = updates.by_problem(lines)
    if problems:
        batch = [(problem, 0) for problem in problems]
        # a line of C+ has "context" and "step", as a draw does
        await train_step(trainer, step, batch, problems, contexts=problems)


async def run_engine(args, problems, contexts, files, clock):
    """Start the engine and the trainer, distill, and end both. -> the number of GPUs."""
    with ranks.all_ranks_ok():
        engine = await engines.start(args.settings, adapters=True, folder=args.out)
    bar = policies.new_bar(args.steps, "step", initial=files.done)
    try:
        openings = [lines[0]["opening"] for lines in problems.values()]
        trainer = policies.start_trainer(
            args.update, args.seed, args.settings, engine, openings, files)
        trainer.bar = bar
        await engines.check.check_engine(trainer, openings[0])
        clock.begin("steps")
        await distill(trainer, problems, contexts, args.steps, args.batch)
        clock.begin("saving")
        _, world = ranks.rank_and_world()
        return engine.gpus * world
    finally:
        bar.close()
        engine.close()


def open_files(args, contexts):
    """The files of the run in --out, a new one or one that goes on. -> policy.Files.

    Errors: BadInput, if it is another run's, or damaged.
    """
    path, folder = os.path.join(args.out, "distill.json"), os.path.join(args.out, "adapter")
    done = checkpoints.newest_step(folder)
    if ranks.is_main():
        journal.keep_settings(path, updates.run_settings(args, contexts), growable=("steps",),
                              empty=done == 0)
    return policies.resume(args.out, done)


def run(args, problems, contexts, clock):
    """Begin or go on in --out, and train. Errors: BadInput."""
    with ranks.all_ranks_ok():
        files = open_files(args, contexts)
    update_args = args.update
    count = sum(len(draws) for draws in contexts.values())
    ranks.print_once(f"distill: {len(problems)} problems, {count} contexts ({args.traces}), "
                     f"{args.steps} steps of {args.batch}, {update_args.divergence}, "
                     f"tau {update_args.tau:g}, lr {update_args.lr:g}; "
                     f"{engines.describe(args.settings)}")
    if args.batch > len(problems):
        times = f"{args.batch / len(problems):.3g}"
        ranks.print_once(f"note: each step takes every problem {times} times on average, as "
                         f"--batch {args.batch} is more than there are.")
    if files.done:
        ranks.print_once(f"{files.done} steps are done already; the run goes on.")
    if files.done < args.steps:
        sentence = "Stopped. The steps above are kept; the same command goes on."
        with journal.stoppable(sentence, ranks.is_main()):
            gpus = asyncio.run(run_engine(args, problems, contexts, files, clock))
        clock.begin("over")
        if ranks.is_main():
            updates.write_result(args, clock, files.done, gpus)
    if args.merge and ranks.is_main():
        updates.keep_result(args, "merged", True)
        policies.merge(args.settings, files.folder, os.path.join(args.out, "merged"))
    ranks.print_once(f"adapter: {files.folder}")


# --------------------------------------------------------------------------------------------------
# Command line


@dataclass(frozen=True)
class DistillArgs:
    """The flags, resolved."""
    cplus: str                     # path of cplus.jsonl
    steps: int                     # S
    batch: int                     # problems a step
    traces: str                    # "success" | "failure" | "random"
    seed: int                      # of the run
    merge: bool
    out: str                       # folder of the run
    settings: engines.Settings
    update: flags.UpdateArgs


def parser():
    parser = flags.Parser(
        description="Self-distill successful contexts into a LoRA adapter (Algorithm 1, lines "
                    "13-16).")
    add_run_arguments(parser)
    flags.add_update_arguments(parser, lr=1e-5)
    add = parser.add_argument
    add("--traces", choices=["success", "failure", "random"], default="success",
        help="the teacher's contexts (Table 5); the last two read the rollouts.jsonl beside "
             "--cplus")
    add("--merge", action="store_true",
        help="also write the model with the adapter in it: OUT/merged")
    return parser


def add_run_arguments(parser):
    """The flags of every run that learns from a cplus.jsonl, a baseline's too."""
    add = parser.add_argument
    add("--cplus", required=True, metavar="FILE", help="cplus.jsonl of explore.py")
    add("--steps", type=flags.positive_int, default=20, help="S, optimizer steps")
    add("--batch", type=flags.positive_int, default=128, help="problems a step")
    add("--seed", type=flags.positive_int, default=1, help="run seed")
    add("--out", default="out", help="folder of the run")
    engines.add_arguments(parser)


def parse(argv):
    """-> (DistillArgs, what `updates.read_cplus` gives). Errors: BadInput."""
    given, settings, problems = resolved(parser().parse_args(argv))
    bench = next(iter(problems.values()))[0]["bench"]
    update_args = flags.update_args(given, settings.temperature, bench)
    args = DistillArgs(given.cplus, given.steps, given.batch, given.traces, given.seed,
                       given.merge, given.out, settings, update_args)
    return args, problems


def resolved(given):
    """-> (the parsed flags, Settings, what `updates.read_cplus` gives). Errors: BadInput.

    Where the flags are silent: as it was explored.
    """
    problems = updates.read_cplus(given.cplus)
    first = next(iter(problems.values()))[0]
    given = argparse.Namespace(**engines.as_run(vars(given), first, given.cplus))
    check_ranks(given)
    settings = engines.settings(given, first["bench"], adapters=True, trains=True)
    check_model(given, settings.model, first["model"])
    return given, settings, problems


def check_ranks(given):
    """BadInput where an engine would take the GPUs of other ranks."""
    _, world = ranks.rank_and_world()
    if world > 1 and given.tensor_parallel * given.data_parallel > 1:
        raise BadInput("under torchrun each rank samples on its own GPU: leave out "
                       "--tensor-parallel and --data-parallel.")


def check_model(given, model, explorer):
    """BadInput unless the model is the one that explored, wherever it lies now."""
    names = {os.path.basename(os.path.normpath(name)) for name in (model, explorer)}
    is_gone = os.path.isabs(explorer) and not os.path.exists(explorer)
    is_another = len(names) > 1 or engines.weights_differ(model, explorer)
    if is_another and not is_gone:
        raise BadInput(f"{given.cplus} was explored by {explorer}, and the policy distills its own "
                       f"answers: leave out --model {model}, or explore with it.")


def teacher_draws(args, problems):
    """{problem id: what its teacher's contexts are drawn from}. Errors: BadInput."""
    rollouts = [] if args.traces == "success" else ablations.read_rollouts(args.cplus)
    return ablations.teacher_draws(problems, args.traces, rollouts)


def main(argv=None):
    clock = Clock("startup")
    ranks.init_ranks()
    with contextlib.ExitStack() as stack:
        with ranks.all_ranks_ok():
            args, problems = parse(argv)
            contexts = teacher_draws(args, problems)
            if ranks.is_main():
                updates.check_outputs(args)
                stack.enter_context(journal.lock(args.out))
        run(args, problems, contexts, clock)


if __name__ == "__main__":
    ranks.run_rank(main)

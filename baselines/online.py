"""The loop of the four RL baselines (C.5, E.3): sample groups, grade them, one update a batch.

What they share with LEAF is LEAF's own code: prompts, engines, verifiers (explore.Attempt), LoRA, FSDP, the optimizer
step (distill.optimizer_step) and the journals. What differs between them is a Baseline: how a group is sampled, and the
loss. An update takes 32 problems, whole groups; it is on-policy up to the difference of the two engines, since a batch
is one mini-batch and one epoch. An answer is a verifier call: K a problem, so ceil(K * problems / 8) groups in all.

Formulas on the tokens i of an answer with advantage A, T: the tokens of the batch, of all ranks:

    w_i   = min(policy(y_i) / mu(y_i), 2), detached           rho_i = policy(y_i) / sg policy(y_i)
    loss  = 1/T sum_i ( -w_i min(rho_i A, clip(rho_i, 1 - low, 1 + high) A) + beta k3_i )

Writes rollouts.jsonl, METHOD.jsonl (a line of metrics an update), explore.json and adapter/ into --out. A batch is
atomic: the same command repeats one that was cut off, with its seeds.
"""
import argparse
import asyncio
import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import benches
import distill
import engines
import explore
import policy as policies
import prompts
import verifiers
from common import checkpoints, flags, journal, ranks, rollouts
from common.clock import Clock
from common.errors import BadInput, ContextTooLong
from engines.base import Sample
from loss import chunked, importance_weights
from report import measures

import torch

BATCH, CAP = 32, 2.0         # problems an update; cap of w


# ---------------------------------------------------------------------------------------------------------------------
# The loss


@dataclasses.dataclass
class Item:
    """One answer, which is one verifier call, and what it is trained with."""
    x: list[int]                     # token ids of its prompt
    y: Sample                        # the answer: its tokens, and log mu of each
    record: dict                     # its line of rollouts.jsonl
    advantage: float = 0.0
    c: list[int] | None = None       # token ids of a teacher's prompt; None: it has no teacher
    beta: float = 0.0                # coefficient of k3

    def tokens(self):
        teacher = 0 if self.c is None else len(self.c) + len(self.y.token_ids)
        return len(self.x) + len(self.y.token_ids) + teacher


def advantages(rewards, divisor="std"):
    """A_j of a group: r_j - mean, over the unbiased standard deviation + 1e-6 (verl) or as it is (Dr. GRPO)."""
    mean = sum(rewards) / len(rewards)
    deviations = [reward - mean for reward in rewards]
    if divisor == "mean" or len(rewards) == 1:
        return deviations
    std = math.sqrt(sum(d * d for d in deviations) / (len(rewards) - 1))
    return [d / (std + 1e-6) for d in deviations]


def clipped(log_p_y, advantage, low=0.2, high=0.28):
    """min(rho A, clip(rho) A), [T]. rho is 1, as every update is on-policy: the clip never acts."""
    rho = (log_p_y - log_p_y.detach()).exp()
    return torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)


def k3(log_p_y, log_ref):
    """verl's low_var_kl, [T]. As a loss its expected gradient is that of KL(ref || policy), not KL(policy || ref)."""
    d = (log_ref - log_p_y).clamp(-20, 20)
    return (d.exp() - d - 1).clamp(-10, 10)


def of_tokens(batch, values, like):
    """One value an answer -> one a token, [T]."""
    lengths = torch.tensor([len(item.y.token_ids) for item in batch], dtype=torch.long, device=like.device)
    return torch.tensor(values, dtype=torch.float64, device=like.device).repeat_interleave(lengths)


def states(policy, batch, prompts_):
    """[T, d] states that predict the answers' tokens after these prompts (lists of token ids)."""
    lengths = [len(item.y.token_ids) for item in batch]
    return policy.hidden_states([c + item.y.token_ids for c, item in zip(prompts_, batch)], lengths)


@torch.no_grad()
def log_probs(policy, batch, prompts_):
    """log policy(y_i) after these prompts: [T], without gradient."""
    y, _, _ = distill.packed(batch, policy.head.device)
    found = []

    def per_token(logp, c):
        found.append(logp.gather(1, y[c, None])[:, 0])
        return logp.new_zeros(())

    chunked(states(policy, batch, prompts_), policy.head, policy.temperature, per_token)
    return torch.cat(found) if found else y.new_zeros(0, dtype=torch.float32)


def policy_loss(policy, batch, more=None, high=0.28, with_reference=False):
    """-> (sum over the batch's tokens of the loss above, {name: sum}).

    more(log_p_y, c): what a method adds, the sum over the tokens of the slice c. The passes do not depend on the batch:
    the ranks of a sharded model make them together.
    """
    y, log_mu, _ = distill.packed(batch, policy.head.device)                                # [T], [T]
    prompts_ = [item.x for item in batch]
    log_ref = torch.zeros(len(y), device=y.device)
    if with_reference:
        with policy.reference():
            log_ref = log_probs(policy, batch, prompts_)                                    # [T]
    hidden = states(policy, batch, prompts_)                                                # [T, d]
    advantage = of_tokens(batch, [item.advantage for item in batch], y)                     # [T]
    beta = of_tokens(batch, [item.beta for item in batch], y)                               # [T]
    sums = Sums()

    def per_token(logp, c):
        log_p_y = logp.gather(1, y[c, None])[:, 0]
        w = importance_weights(log_p_y, log_mu[c], CAP)
        loss = -(w * clipped(log_p_y, advantage[c].to(logp.dtype), high=high)).sum()
        if with_reference:
            loss = loss + (beta[c].to(logp.dtype) * k3(log_p_y, log_ref[c])).sum()
        if more:
            loss = loss + more(log_p_y, c)
        sums.add_tokens(w, logp)
        return loss

    loss = chunked(hidden, policy.head, policy.temperature, per_token)
    return loss, sums.add("loss", loss)


class Sums(dict):
    """{name: sum over the tokens of a micro-batch}."""

    def add(self, name, value):
        self[name] = self.get(name, 0.0) + float(value.detach())
        return self

    def add_tokens(self, w, logp):
        logp = logp.detach()
        self.add("mean_w", w.sum())
        self.add("capped_w", (w >= CAP).sum())
        self.add("entropy", -(logp.exp() * logp).sum())


# ---------------------------------------------------------------------------------------------------------------------
# The batches


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What a method brings to the loop."""
    name: str
    group: Callable            # async (run, x, first k) -> its Items, one a verifier call
    loss: Callable             # (run, batch) -> (sum over its tokens, {name: sum})
    add_arguments: Callable = lambda parser: None
    step: Callable | None = None       # (run, items) -> metrics, if an update is not just `step`: SEED's collection
    before: Callable | None = None     # (run), once: SDPO's teacher
    after: Callable | None = None      # (run), after each step: the same
    needs_teacher: bool = False        # whether only answers with a teacher are trained on
    calls: int = 20                    # K of --split train


@dataclasses.dataclass
class Run(explore.Run):
    """explore.py's Run with what an update needs."""
    baseline: Baseline | None = None
    options: argparse.Namespace | None = None
    last: int = 0                      # how many updates there are in all
    teacher: list | None = None        # SDPO's parameters


def groups(problems, calls, size):
    """How many groups of `size` answers a run has in all."""
    return math.ceil(calls * problems / size)


def batch_of(run, u, problems):
    """[(problem, number k of the group's first answer)] of update u: a cut of LEAF's stream of permutations."""
    size, batch = run.options.group, run.options.batch
    first = (u - 1) * batch
    left = groups(len(problems), run.args.calls, size) - first
    places = distill.batch_indices(u, batch, len(problems), run.args.seed)[:left]
    # An epoch holds each problem once, so its number is that of the groups which a problem had before.
    return [(problems[i], size * ((first + j) // len(problems)) + 1) for j, (i, _) in enumerate(places)]


async def answer(run, x, k, messages, max_tokens=None):
    """Sample and grade the k-th answer to x. -> Item."""
    attempt = run.attempt(x, k)
    try:
        y = await attempt.sample("answer", messages, max_tokens)
    except ContextTooLong as error:
        raise BadInput(f"problem {x.id} cannot be sampled: {error}") from None
    await attempt.verify(y)
    record = rollouts.record(attempt, messages, None) | {"tail": None}
    if record["correct"] is None:
        record["correct"], record["fault"] = await run.graders.grade_private(x, y.text)
    return Item(run.engine.encode(messages), y, record)


async def plain_group(run, x, first):
    """A group of answers to the plain prompt, with their advantages."""
    opening = prompts.opening(x, run.settings.family)
    steps = range(first, first + run.options.group)
    items = await asyncio.gather(*(answer(run, x, k, opening) for k in steps))
    values = advantages([item.record["reward"] for item in items], run.options.advantage)
    for item, value in zip(items, values):
        item.advantage = value
    return items


async def sample(run, batch):
    """The Items of this rank's groups of a batch."""
    rank, world = ranks.rank_and_world()

    async def one(x, first):
        items = await run.baseline.group(run, x, first)
        run.bar.update(len(items) * world)
        return items

    with ranks.all_ranks_ok():
        parts = await asyncio.gather(*(one(x, first) for x, first in batch[rank::world]))
    return [item for items in parts for item in items]


def is_trained(run, item):
    return item.c is not None or not run.baseline.needs_teacher


def step(run, items):
    """One update on the Items of all ranks that have tokens to learn from. -> its metrics."""
    trainer = run.trainer
    rows = [item for item in items if is_trained(run, item)]
    if not sum(ranks.all_gather([len(rows)])):
        return {"tokens": 0, "grad_norm": 0.0}                # SDPO: no answer has a teacher
    tokens, parts, grad_norm = distill.optimizer_step(
        trainer.policy, trainer.optimizer, rows, lambda batch: run.baseline.loss(run, batch), trainer.args)
    sums = {}
    for part in ranks.all_gather(parts):
        for name, value in part.items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: value / tokens for name, value in sums.items()} | {"tokens": tokens, "grad_norm": grad_norm}


def cost(item, trained):
    """The tokens of an answer's update beside its sampling: here, and as in the paper (with an old-policy pass)."""
    length = len(item.x) + len(item.y.token_ids)
    teacher = len(item.c) + len(item.y.token_ids) if item.c is not None else 0
    passes = teacher + (length if item.beta else 0) if trained else 0
    forward = passes + item.record.get("forward_tokens", 0)
    return {"forward_tokens": forward, "paper_forward_tokens": forward + (length if trained else 0),
            "trained_tokens": item.record.get("trained_tokens", 0) + (length if trained else 0)}


async def train(run, problems):
    """All updates that are left. -> whether the cap on GPU hours ended the run."""
    trainer = run.trainer
    if run.baseline.before:
        async with trainer.engine.resting():
            run.baseline.before(run)
    while trainer.done < run.last:
        # The clocks of the ranks differ: rank 0's counts.
        if 0 in ranks.all_gather([run.seconds_left()])[:1]:
            return True
        begin = time.time()
        batch = batch_of(run, trainer.done + 1, problems)
        items = await sample(run, batch)
        run.clock.begin("update")
        sampled = time.time()
        async with trainer.engine.resting():
            metrics = (run.baseline.step or step)(run, items)
        if run.baseline.after and metrics["tokens"]:
            run.baseline.after(run)
        seconds = {"sample_seconds": round(sampled - begin, 3), "train_seconds": round(time.time() - sampled, 3)}
        for item in items:
            item.record |= cost(item, bool(metrics["tokens"]) and is_trained(run, item))
        commit(run, batch, items, metrics | seconds)
        run.clock.begin("sampling")
    return False


def commit(run, batch, items, metrics):
    """Keep an update: its lines in both journals, then its checkpoint. Then it counts."""
    trainer, u = run.trainer, run.trainer.done + 1
    order = {x.id: j for j, (x, _) in reversed([*enumerate(batch)])}
    lines = ranks.all_gather([item.record for item in items])
    lines.sort(key=lambda line: (order[line["problem"]], line["step"]))
    seconds = metrics["sample_seconds"] + metrics["train_seconds"]
    total = sum(line["completion_tokens"] for line in lines)
    for line in lines:
        line |= {"updates": u - 1, "elapsed_seconds": round(run.elapsed(), 3),
                 "step_seconds": round(seconds * line["completion_tokens"] / total, 6)}
    metrics = {"step": u, **metrics, **totals(lines, run.options.group)}
    with ranks.all_ranks_ok():
        if not math.isfinite(metrics["grad_norm"]):
            raise BadInput(f"the gradient of update {u} is not finite, so it is not kept: name another folder with "
                           "--out and a smaller --lr, or try --dtype float32.")
        if ranks.is_main():
            write_lines(run, lines, metrics)
    run.records |= {(line["problem"], line["step"]): line for line in lines}
    checkpoints.save_checkpoint(trainer.policy, trainer.optimizer, trainer.files.folder, u, trainer.more)
    trainer.done = u


def totals(lines, size):
    """What METHOD.jsonl says of the answers of an update."""
    rewards = {}
    for line in lines:
        rewards.setdefault((line["problem"], (line["step"] - 1) // size), set()).add(line["reward"])
    return {"accuracy": measures.mean(line["correct"] for line in lines),
            "length": measures.mean(line["completion_tokens"] for line in lines),
            "truncated": measures.mean(line["truncated"] for line in lines),
            "groups": len(rewards), "groups_without_variance": sum(len(found) == 1 for found in rewards.values()),
            **{name: sum(line[name] for line in lines)
               for name in ("forward_tokens", "paper_forward_tokens", "trained_tokens")}}


def write_lines(run, lines, metrics):
    files = run.lines.file, run.trainer.files.metrics
    journal.append(files[0], *lines)
    journal.append(files[1], metrics)
    for file in files:                 # a checkpoint must not outlive its lines
        os.fsync(file.fileno())
    text = f"update {metrics['step']:3d}  accuracy {metrics['accuracy']:.1%}  length {metrics['length']:.0f}"
    for name in ("loss", "mean_w", "entropy", "grad_norm"):
        text += f"  {name.replace('_', ' ')} {metrics.get(name, 0):.4g}"
    run.bar.write(text + f"  without variance {metrics['groups_without_variance']} of {metrics['groups']}")


# ---------------------------------------------------------------------------------------------------------------------
# The run


def open_files(baseline, args, values, problems):
    """The files of the run in --out, a new one or one that goes on. -> (policy.Files, records, rollouts.jsonl).

    Errors: BadInput, if it is another run's.
    """
    done = checkpoints.newest_step(os.path.join(args.out, "adapter"))
    if not ranks.is_main():
        return policies.resume(args.out, done), {}, None
    records, file = journal.open_rollouts(args.out, values, ("gpu_hours",), problems, updates=done)
    if max((record["updates"] for record in records.values()), default=-1) != done - 1:
        raise BadInput(f"{args.out} holds checkpoints and a rollouts.jsonl that do not belong together: name another "
                       "folder with --out.")
    return policies.resume(args.out, done, [f"{baseline.name}.jsonl"]), records, file


async def run_engine(baseline, options, args, settings, problems, files, clock):
    """Start engine, graders and trainer, train, and end them. -> (run, whether the cap ended it)."""
    found, records, file = files
    graders = verifiers.Graders()
    try:
        with ranks.all_ranks_ok():
            engine = await engines.start(settings, adapters=True, folder=args.out)
        try:
            lines = rollouts.Lines(file, graders)
            run = Run(args, settings, engine, graders, lines, records, clock, baseline=baseline, options=options)
            openings = [prompts.opening(x, settings.family) for x in problems]
            update = flags.UpdateArgs(options.lr, math.inf, "reverse_kl", options.micro_tokens,
                                      options.grad_checkpoint_every)
            run.trainer = policies.start_trainer(update, args.seed, settings, engine, openings, found)
            clock.begin("sampling")
            count = groups(len(problems), args.calls, options.group)
            run.last = math.ceil(count / options.batch)
            run.bar = policies.new_bar(count * options.group, "call", initial=len(records))
            with run.bar:
                return run, await train(run, problems)
        finally:
            clock.begin("saving")
            engine.close()
    finally:
        graders.close()


def finish(run, problems, is_capped):
    """Write the result and print it."""
    attempts = {x.id: {} for x in problems} | measures.by_problem(run.records.values())
    result = rollouts.write_result(run, attempts, is_capped)
    last = result["complete_steps"]
    if is_capped:
        print(f"The cap of {run.args.gpu_hours:g} GPU hours ended the run; all problems have {last} calls.")
    if last:
        print(f"pass@{last} {measures.pass_curve(attempts, last)[-1]:.1%}, mean accuracy "
              f"{measures.per_answer_curve(attempts, last, 'correct')[-1]:.1%}, {len(run.records)} answers")
    print(f"adapter: {run.trainer.files.folder}")


def parse(baseline, argv, doc):
    """-> (options, ExploreArgs, Settings). Errors: BadInput."""
    parser = flags.Parser(description=doc.partition("\n")[0])
    add = parser.add_argument
    add("--bench", required=True, help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own")
    add("--split", choices=["test", "train"], default="test", help="train: the sets of App. E.1")
    add("--data", help="local copy of the bench in its upstream format")
    add("--calls", type=flags.positive_int, help=f"K, calls a problem (default: 24; train: {baseline.calls})")
    add("--seed", type=flags.positive_int, default=1, help="run seed")
    add("--limit", type=flags.positive_int, help="only the first N problems")
    add("--gpu-hours", type=flags.above_zero, help="stop after so many (default: 5; train: no cap)")
    add("--lr", type=flags.above_zero, help="learning rate (default: 1e-6; train: 1e-5)")
    add("--batch", type=flags.positive_int, default=BATCH, help="groups an update")
    add("--group", type=flags.positive_int, default=8, help="answers a group")
    add("--advantage", choices=["std", "mean"], default="std", help="divided by the group's deviation, or not")
    add("--micro-tokens", type=flags.positive_int, default=16384, help="tokens of one forward and backward pass")
    add("--grad-checkpoint-every", type=int, choices=range(0, 1000), metavar="N",
        help="recompute every Nth layer in the backward pass, 0: none (default: as few as fit)")
    add("--out", default="out", help="folder of the run")
    engines.add_arguments(parser)
    baseline.add_arguments(parser)
    options = parser.parse_args(argv)
    is_training = options.split == "train"
    options.lr = options.lr or (1e-5 if is_training else 1e-6)
    settings = engines.settings(options, options.bench, adapters=True, trains=True)
    if settings.temperature == 0:
        raise BadInput("--temperature 0 leaves no distribution to learn from: give one above 0.")
    calls = options.calls or (baseline.calls if is_training else 24)
    gpu_hours = options.gpu_hours or (None if is_training else 5.0)
    args = explore.ExploreArgs(options.bench, options.split, options.data, baseline.name, calls=calls,
                               seed=options.seed, limit=options.limit, gpu_hours=gpu_hours, out=options.out)
    return options, args, settings


def kept_settings(options, args, settings):
    """What explore.json keeps of a run, which goes on with the same alone."""
    free = ("grad_checkpoint_every", "out", "server", "patience", "no_async_scheduling", "gpu_memory",
            "keep_cache")
    own = {name: value for name, value in vars(options).items() if name not in free}
    return own | {name: getattr(args, name) for name in ("method", "calls", "gpu_hours")} | settings.kept()


def main(baseline, doc, argv=None):
    clock = Clock("startup")
    ranks.init_ranks()
    with contextlib.ExitStack() as stack:
        with ranks.all_ranks_ok():
            options, args, settings = parse(baseline, argv, doc)
            problems = benches.load(args.bench, args.split, args.data, args.limit)
            if ranks.is_main():
                stack.enter_context(journal.lock(args.out))
            files = open_files(baseline, args, kept_settings(options, args, settings), problems)
        total = math.ceil(groups(len(problems), args.calls, options.group) / options.batch)
        ranks.print_once(f"{baseline.name}: {args.bench} {args.split}, {len(problems)} problems, {args.calls} calls "
                         f"each, {total} updates of {options.batch} x {options.group}, lr {options.lr:g}; "
                         f"{engines.describe(settings)}")
        if files[0].done:
            ranks.print_once(f"{files[0].done} updates are done already; the run goes on.")
        sentence = "Stopped. The updates above are kept; the same command goes on."
        with journal.stoppable(sentence, ranks.is_main()):
            work = run_engine(baseline, options, args, settings, problems, files, clock)
            run, is_capped = asyncio.run(work)
        if ranks.is_main():
            finish(run, problems, is_capped)

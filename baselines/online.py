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
from collections import Counter
from collections.abc import Callable

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import benches
import distill
import engines
import explore
import policy as policies
import prompts
import verifiers
from common import checkpoints, flags, journal, outputs, ranks, rollouts
from common.clock import Clock
from common.errors import BadInput, ContextTooLong
from engines.base import Sample
from loss import chunked, importance_weights
from report import measures

import torch

CAP = 2.0                    # of w
# Tokens of an answer's update, beside its sampling: in its record, and summed over the update in METHOD.jsonl.
COSTS = "forward_tokens", "paper_forward_tokens", "trained_tokens"


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
    advantage = of_tokens(batch, [item.advantage for item in batch], policy.head)           # [T]
    beta = of_tokens(batch, [item.beta for item in batch], policy.head)                     # [T]
    if with_reference:
        with policy.reference():
            log_ref = log_probs(policy, batch, [item.x for item in batch])                  # [T]

    def of_chunk(logp, log_p_y, w, c):
        loss = -(w * clipped(log_p_y, advantage[c].to(logp.dtype), high=high)).sum()
        if with_reference:
            loss = loss + (beta[c].to(logp.dtype) * k3(log_p_y, log_ref[c])).sum()
        return loss + more(log_p_y, c) if more else loss

    return token_loss(policy, batch, of_chunk, policy.temperature)


def token_loss(policy, batch, of_chunk, temperature):
    """-> (the sum of a loss over the tokens of the batch, {name: sum}).

    of_chunk(logp, log_p_y, w, c): the sum over the slice c, from the log-probabilities of the vocabulary [n, V] and of
    the tokens [n], and the weights [n].
    """
    y, log_mu, _ = distill.packed(batch, policy.head.device)                                # [T], [T]
    hidden = states(policy, batch, [item.x for item in batch])                              # [T, d]
    sums = Counter()

    def per_token(logp, c):
        log_p_y = logp.gather(1, y[c, None])[:, 0]
        w = importance_weights(log_p_y, log_mu[c], CAP)
        p = logp.detach()
        sums.update(mean_w=float(w.sum()), capped_w=float((w >= CAP).sum()), entropy=float(-(p.exp() * p).sum()))
        return of_chunk(logp, log_p_y, w, c)

    loss = chunked(hidden, policy.head, temperature, per_token)
    sums["loss"] = float(loss.detach())
    return loss, sums


# ---------------------------------------------------------------------------------------------------------------------
# The batches


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What a method brings to the loop."""
    name: str
    group: Callable            # async (run, x, first k) -> its Items, one a verifier call
    loss: Callable             # (run, batch) -> (sum over its tokens, {name: sum})
    add_arguments: Callable = lambda parser: None
    step: Callable | None = None       # (run, this rank's Items) -> metrics, if an update is not just `step`
    calls: int = 20                    # K of --split train
    turns: int = 1                     # answers that belong together: a group has whole ones of them


@dataclasses.dataclass
class Run(explore.Run):
    """explore.py's Run with what an update needs. Engine, graders and trainer come in run_engine."""
    baseline: Baseline | None = None
    options: argparse.Namespace | None = None
    groups: int = 0                    # in all
    last: int = 0                      # update
    teacher: list | None = None        # SDPO's parameters


def groups(problems, calls, size):
    """How many groups of `size` answers a run has in all."""
    return math.ceil(calls * problems / size)


def batch_of(run, u, problems):
    """[(problem, number k of the group's first answer)] of update u: a cut of LEAF's stream of permutations."""
    size, batch = run.options.group, run.options.batch
    first = (u - 1) * batch
    places = distill.batch_indices(u, batch, len(problems), run.args.seed)[:run.groups - first]
    # An epoch holds each problem once, so its number is that of the groups which a problem had before.
    return [(problems[i], size * ((first + j) // len(problems)) + 1) for j, (i, _) in enumerate(places)]


async def answer(run, x, k, messages, max_tokens=None):
    """Sample and grade the k-th answer to x. -> Item."""
    attempt = run.attempt(x, k)
    try:
        y = await attempt.sample("answer", messages, max_tokens)
    except ContextTooLong as error:
        raise BadInput(f"problem {x.id} cannot be sampled: {error} Use a larger --max-model-len, where the model has "
                       "one, or another model.") from None
    await attempt.verify(y)
    record = rollouts.record(attempt, messages, None) | dict.fromkeys(COSTS, 0)
    if record["correct"] is None:
        record["correct"], record["fault"] = await run.graders.grade_private(x, y.text)
    run.bar.update(ranks.rank_and_world()[1])              # the other ranks are about as far
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


def step(run, items):
    """One update on the Items of all ranks. -> its metrics."""
    trainer = run.trainer
    if not sum(ranks.all_gather([len(items)])):
        return {"tokens": 0, "grad_norm": 0.0}
    tokens, parts, grad_norm = distill.optimizer_step(
        trainer.policy, trainer.optimizer, items, lambda batch: run.baseline.loss(run, batch), trainer.args)
    for item in items:
        add_costs(item)
    sums = Counter()
    for part in ranks.all_gather(parts):
        sums.update(part)
    return {name: value / tokens for name, value in sums.items()} | {"tokens": tokens, "grad_norm": grad_norm}


def add_costs(item):
    """To its record: the tokens of its update here, and as in the paper, with an old-policy pass."""
    length = len(item.x) + len(item.y.token_ids)
    passes = item.tokens() - length + (length if item.beta else 0)          # of teacher and reference
    for name, count in zip(COSTS, (passes, passes + length, length)):
        item.record[name] += count


async def train(run, problems):
    """All updates that are left. -> whether the cap on GPU hours ended the run."""
    trainer = run.trainer
    while trainer.done < run.last:
        # The clocks of the ranks differ: rank 0's counts.
        if 0 in ranks.all_gather([run.seconds_left()])[:1]:
            return True
        begin = time.time()
        batch = batch_of(run, trainer.done + 1, problems)
        with ranks.all_ranks_ok():
            parts = await asyncio.gather(*(run.baseline.group(run, x, first) for x, first in trainer.share(batch)))
        items = [item for group in parts for item in group]
        run.clock.begin("update")
        sampled = time.time()
        async with trainer.engine.resting():
            metrics = (run.baseline.step or step)(run, items)
        seconds = {"sample_seconds": round(sampled - begin, 3), "train_seconds": round(time.time() - sampled, 3)}
        commit(run, batch, items, metrics | seconds)
        run.clock.begin("sampling")
    return False


def commit(run, batch, items, metrics):
    """Keep an update: its lines in both journals, then its checkpoint. Then it counts."""
    u, places = run.trainer.done + 1, [x.id for x, _ in batch]
    lines = ranks.all_gather([item.record for item in items])
    lines.sort(key=lambda line: (places.index(line["problem"]), line["step"]))
    seconds = metrics["sample_seconds"] + metrics["train_seconds"]
    total = sum(line["completion_tokens"] for line in lines)
    for line in lines:
        line |= {"updates": u - 1, "elapsed_seconds": round(run.elapsed(), 3),
                 "step_seconds": round(seconds * line["completion_tokens"] / total, 6)}
    metrics = {"step": u, **metrics, **totals(lines, run.options.group)}
    run.trainer.keep(u, lines, metrics, log_line(metrics))
    run.records |= {(line["problem"], line["step"]): line for line in lines}


def totals(lines, size):
    """What METHOD.jsonl says of the answers of an update."""
    rewards = {}
    for line in lines:
        rewards.setdefault((line["problem"], (line["step"] - 1) // size), set()).add(line["reward"])
    return {"accuracy": measures.mean(line["correct"] for line in lines),
            "length": measures.mean(line["completion_tokens"] for line in lines),
            "truncated": measures.mean(line["truncated"] for line in lines),
            "groups": len(rewards), "groups_without_variance": sum(len(found) == 1 for found in rewards.values()),
            **{name: sum(line[name] for line in lines) for name in COSTS}}


def log_line(metrics):
    """What is printed of an update."""
    text = f"update {metrics['step']:3d}  accuracy {metrics['accuracy']:.1%}  length {metrics['length']:.0f}"
    for name in ("loss", "mean_w", "entropy", "grad_norm"):
        text += f"  {name.replace('_', ' ')} {metrics.get(name, 0):.4g}"
    return text + f"  without variance {metrics['groups_without_variance']} of {metrics['groups']}"


# ---------------------------------------------------------------------------------------------------------------------
# The run


def open_files(options, args, settings, problems):
    """The files of the run in --out, a new one or one that goes on. -> (policy.Files, records).

    Errors: BadInput, if it is another run's.
    """
    done = checkpoints.newest_step(os.path.join(args.out, "adapter"))
    if not ranks.is_main():
        return policies.resume(args.out, done), {}
    free = ("grad_checkpoint_every", "out", "server", "patience", "no_async_scheduling", "gpu_memory", "keep_cache")
    kept = {name: value for name, value in vars(options).items() if name not in free}
    kept |= {"calls": args.calls, "gpu_hours": args.gpu_hours} | settings.kept()
    records, file = journal.open_rollouts(args.out, kept, ("gpu_hours",), problems, updates=done)
    if max((record["updates"] for record in records.values()), default=-1) != done - 1:
        raise BadInput(f"{args.out} holds checkpoints and a rollouts.jsonl that do not belong together: name another "
                       "folder with --out.")
    files = policies.resume(args.out, done, [f"{args.method}.jsonl"])
    return dataclasses.replace(files, samples=file), records


async def run_engine(run, problems, files):
    """Start engine, graders and trainer, train, and end them. -> whether the cap ended the run."""
    args, settings, options = run.args, run.settings, run.options
    with contextlib.closing(verifiers.Graders(strict=args.strict_math_verify)) as run.graders:
        with ranks.all_ranks_ok():
            run.engine = await engines.start(settings, adapters=True, folder=args.out)
        run.engine.gpus *= ranks.rank_and_world()[1]       # those of the job: each rank has its own
        with contextlib.closing(run.engine):
            openings = [prompts.opening(x, settings.family) for x in problems]
            update = flags.UpdateArgs(options.lr, math.inf, "reverse_kl", options.micro_tokens,
                                      options.grad_checkpoint_every)
            run.trainer = policies.start_trainer(update, args.seed, settings, run.engine, openings, files)
            run.clock.begin("sampling")
            with policies.new_bar(run.groups * options.group, "call", initial=len(run.records)) as run.bar:
                is_capped = await train(run, problems)
            run.clock.begin("saving")
    return is_capped


def parse(baseline, argv, doc):
    """-> (options, ExploreArgs, Settings). Errors: BadInput."""
    parser = flags.Parser(description=doc.partition("\n")[0])
    parser.set_defaults(method=baseline.name)
    explore.add_run_arguments(parser, baseline.calls)
    flags.add_step_arguments(parser)
    add = parser.add_argument
    add("--batch", type=flags.positive_int, default=32, help="groups an update")
    add("--group", type=flags.positive_int, default=8, help="answers a group")
    add("--advantage", choices=["std", "mean"], default="std", help="divided by the group's deviation, or not")
    baseline.add_arguments(parser)
    options = parser.parse_args(argv)
    distill.check_ranks(options)
    if options.group % baseline.turns:
        raise BadInput(f"--group {options.group} would cut a trajectory of {baseline.turns} answers: give a multiple.")
    options.lr = options.lr or (1e-5 if options.split == "train" else 1e-6)
    settings = engines.settings(options, options.bench, adapters=True, trains=True)
    if settings.temperature == 0:
        raise BadInput("--temperature 0 leaves no distribution to learn from: give one above 0.")
    return options, explore.run_args(options, baseline.calls), settings


def main(baseline, doc, argv=None):
    clock = Clock("startup")
    ranks.init_ranks()
    with contextlib.ExitStack() as stack:
        with ranks.all_ranks_ok():
            options, args, settings = parse(baseline, argv, doc)
            problems = benches.load(args.bench, args.split, args.data, args.limit)
            if ranks.is_main():
                written = "rollouts.jsonl", "problems.json", f"{baseline.name}.jsonl", "adapter"
                outputs.claim_run(args.out, "explore.json", written, [args.bench, args.data, settings.model])
                stack.enter_context(journal.lock(args.out))
            files, records = open_files(options, args, settings, problems)
        count = groups(len(problems), args.calls, options.group)
        run = Run(args, settings, None, None, None, records, clock, baseline=baseline, options=options, groups=count,
                  last=math.ceil(count / options.batch))
        ranks.print_once(f"{baseline.name}: {args.bench} {args.split}, {len(problems)} problems, {args.calls} calls "
                         f"each, {run.last} updates of {options.batch} x {options.group}, lr {options.lr:g}; "
                         f"{engines.describe(settings)}")
        if files.done:
            ranks.print_once(f"{files.done} updates are done already; the run goes on.")
        with journal.stoppable("Stopped. The updates above are kept; the same command goes on.", ranks.is_main()):
            is_capped = asyncio.run(run_engine(run, problems, files))
        if ranks.is_main():
            attempts = {x.id: {} for x in problems} | measures.by_problem(run.records.values())
            result = rollouts.write_result(run, attempts, is_capped)
            rollouts.print_result(run, attempts, result)
        ranks.print_once(f"adapter: {files.folder}")

"""SFT on LEAF's right answers, rewritten without their history (E.3).

    python baselines/sft.py --cplus out/leaf/cplus.jsonl --out out/sft

Unlike GRPO it explores nothing: it learns from what LEAF's memory found. The base model rewrites each right answer y+
into a self-contained y*, which must be verified again (five rounds, then the pair is dropped). The loss is that of a
demonstration, whatever the policy itself would have said: it has no wrong answers, no advantage and no teacher.

    loss = -1/T sum_i log policy(y*_i | x, y*_<i)         --rewrite 0: y* = y+ (rejection sampling, RFT)
"""
import asyncio
import contextlib
import hashlib
import json
import math
import os
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import benches
import distill
import engines
import policy as policies
import prompts
import verifiers
from answers import last_boxed
from baselines import online
from common import checkpoints, flags, journal, ranks
from common.errors import BadInput, ContextTooLong
from engines.base import Sample, request_seed
from loss import chunked
from report.curves import read_beside

TEMPERATURE, TOP_P = 0.7, 0.95  # of the rewriting


def loss(policy, batch):
    """-> (sum of -log policy(y*_i), {name: sum})."""
    y, _, _ = distill.packed(batch, policy.head.device)
    hidden = online.states(policy, batch, [item.x for item in batch])

    def per_token(logp, c):
        return -logp.gather(1, y[c, None]).sum()

    value = chunked(hidden, policy.head, 1.0, per_token)
    return value, online.Sums().add("loss", value)


# ---------------------------------------------------------------------------------------------------------------------
# The rewriting


async def rewritten(pair, problem, run):
    """y* of one line of cplus.jsonl, or None after the last round. run: see `rewrite_all`."""
    args, engine, graders, file, known = run
    messages = prompts.rewrite(problem, pair["opening"], pair["context"], pair["response"],
                               last_boxed(pair["response"]))
    for number in range(1, args.rewrite + 1):
        record = known.get((pair["problem"], pair["step"], number))
        if not record:
            record = await one_round(pair, problem, messages, number, run)
            journal.append(file, record)
        if record["correct"] and not record["truncated"]:
            return record["response"]
    return None


async def one_round(pair, problem, messages, number, run):
    """-> a line of rewrites.jsonl."""
    args, engine, graders, *_ = run
    begin, prompt = time.time(), engine.encode(messages)
    seed = request_seed(args.seed, pair["problem"], pair["step"], f"rewrite {number}")
    record = {"problem": pair["problem"], "step": pair["step"], "round": number, "seed": seed,
              "prompt_tokens": len(prompt), "completion_tokens": 0, "response": "", "truncated": True, "correct": 0}
    with contextlib.suppress(ContextTooLong):      # what the model cannot read is dropped
        y = await engine.sample(prompt, seed=seed, max_tokens=args.settings.max_tokens, temperature=TEMPERATURE,
                                top_p=TOP_P)
        truncated = y.truncated(args.settings.max_tokens)
        verdict, _ = await verifiers.grade(problem, y.text, truncated, engine, graders)
        record |= {"completion_tokens": len(y.token_ids), "response": y.text, "truncated": truncated,
                   "correct": verdict.correct}
    return record | {"seconds": round(time.time() - begin, 3)}


async def rewrite_all(args, pairs, engine):
    """[(pair, y*)] of the pairs that are kept, in their order; rank 0's work."""
    problems = read_problems(args.cplus)
    known, file = journal.open_journal(os.path.join(args.out, "rewrites.jsonl"))
    known = {(line["problem"], line["step"], line["round"]): line for line in known}
    graders = verifiers.Graders()
    with file, policies.new_bar(len(pairs), "pair", desc="rewriting") as bar:
        async def one(pair):
            found = await rewritten(pair, problems[pair["problem"]], (args, engine, graders, file, known))
            bar.update()
            return found
        try:
            found = await asyncio.gather(*map(one, pairs))
        finally:
            graders.close()
    return [(pair, response) for pair, response in zip(pairs, found) if response is not None]


def read_problems(cplus):
    """{id: Problem} of the run that wrote the file `cplus`. Errors: BadInput."""
    explored = read_beside(cplus, "explore.json")
    if not explored:
        raise BadInput(f"there is no explore.json beside {cplus} to say what its bench is: name the cplus.jsonl in "
                       "the folder of its run.")
    bench = explored["settings"]
    return {x.id: x for x in benches.load(bench["bench"], bench["split"], bench["data"])}


# ---------------------------------------------------------------------------------------------------------------------
# The run


def train(trainer, args, kept):
    """All steps that are left. kept: [(pair, y*)]."""
    encode, tokenizer = trainer.engine.encode, trainer.engine.tokenizer
    rank, world = ranks.rank_and_world()
    for step in range(trainer.done + 1, args.steps + 1):
        begin, items = time.time(), []
        for i, _ in distill.batch_indices(step, args.batch, len(kept), args.seed)[rank::world]:
            pair, response = kept[i]
            ids = tokenizer.encode(response, add_special_tokens=False) + [tokenizer.eos_token_id]
            items.append(online.Item(encode(pair["opening"]), Sample(ids, response, [0.0] * len(ids), "stop", 0), {}))
        tokens, parts, grad_norm = distill.optimizer_step(
            trainer.policy, trainer.optimizer, items, lambda batch: loss(trainer.policy, batch), trainer.args)
        total = sum(part["loss"] for part in ranks.all_gather(parts))
        trained = sum(ranks.all_gather([sum(item.tokens() for item in items)]))
        metrics = {"step": step, "loss": total / tokens, "grad_norm": grad_norm, "tokens": tokens,
                   "trained_tokens": trained, "train_seconds": round(time.time() - begin, 3)}
        with ranks.all_ranks_ok():
            if not math.isfinite(grad_norm):
                raise BadInput(f"the gradient of step {step} is not finite, so it is not kept: name another folder "
                               "with --out and a smaller --lr.")
            if ranks.is_main():
                journal.append(trainer.files.metrics, metrics)
                os.fsync(trainer.files.metrics.fileno())
                trainer.bar.write(f"step {step:3d}  loss {total / tokens:.5f}  grad norm {grad_norm:.3g}")
        checkpoints.save_checkpoint(trainer.policy, trainer.optimizer, trainer.files.folder, step)
        trainer.done = step
        trainer.bar.update()


async def run(args, pairs, files):
    """Rewrite, then train. Errors: BadInput, if no pair is kept."""
    with ranks.all_ranks_ok():
        engine = await engines.start(args.settings, folder=args.out)
    try:
        kept = [(pair, pair["response"]) for pair in pairs]
        if args.rewrite:
            with ranks.all_ranks_ok():
                kept = await rewrite_all(args, pairs, engine) if ranks.is_main() else []
            kept = ranks.all_gather(kept)
            ranks.print_once(f"{len(kept)} of {len(pairs)} pairs are kept, {len(pairs) - len(kept)} dropped after "
                             f"{args.rewrite} rounds.")
        if not kept:
            raise BadInput("no rewriting was right, so there is nothing to learn from: give --rewrite more rounds, or "
                           "--rewrite 0 to train on the answers as they are.")
        update = flags.UpdateArgs(args.lr, math.inf, "reverse_kl", args.micro_tokens, args.grad_checkpoint_every)
        openings = [pair["opening"] for pair in pairs]
        trainer = policies.start_trainer(update, args.seed, args.settings, engine, openings, files)
        with policies.new_bar(args.steps, "step", initial=files.done) as trainer.bar:
            async with engine.resting():
                train(trainer, args, kept)
    finally:
        engine.close()


def parse(argv):
    """-> (flags with `settings`, the lines of cplus.jsonl). Errors: BadInput."""
    parser = flags.Parser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--cplus", required=True, metavar="FILE", help="cplus.jsonl of explore.py")
    add("--rewrite", type=int, choices=range(0, 100), default=5, metavar="N", help="rounds; 0: answers as they are")
    add("--steps", type=flags.positive_int, default=20, help="optimizer steps")
    add("--batch", type=flags.positive_int, default=128, help="examples a step")
    add("--lr", type=flags.above_zero, default=1e-5, help="learning rate")
    add("--micro-tokens", type=flags.positive_int, default=16384, help="tokens of one forward and backward pass")
    add("--grad-checkpoint-every", type=int, choices=range(0, 1000), metavar="N", help="see distill.py")
    add("--seed", type=flags.positive_int, default=1, help="run seed")
    add("--out", default="out", help="folder of the run")
    engines.add_arguments(parser)
    args = parser.parse_args(argv)
    problems = distill.read_cplus(args.cplus)
    pairs = [line for lines in problems.values() for line in lines]
    explored = {name: pairs[0][name] for name in ("model", "family")} | pairs[0]["decoding"]
    for name, value in explored.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.settings = engines.settings(args, pairs[0]["bench"], trains=True)
    return args, pairs


def open_files(args, pairs):
    """-> policy.Files of the run in --out. Errors: BadInput, if it is another one."""
    done = checkpoints.newest_step(os.path.join(args.out, "adapter"))
    digest = hashlib.sha256(json.dumps([pair["response"] for pair in pairs]).encode()).hexdigest()[:16]
    own = {name: getattr(args, name) for name in ("cplus", "rewrite", "steps", "batch", "lr", "seed")}
    if ranks.is_main():
        begun = done or os.path.exists(os.path.join(args.out, "rewrites.jsonl"))
        journal.keep_settings(os.path.join(args.out, "sft.json"), own | {"pairs": digest}
                              | args.settings.kept(), growable=("steps",), empty=not begun)
    return policies.resume(args.out, done, ["sft.jsonl"])


def main(argv=None):
    ranks.init_ranks()
    with contextlib.ExitStack() as stack:
        with ranks.all_ranks_ok():
            args, pairs = parse(argv)
            if ranks.is_main():
                stack.enter_context(journal.lock(args.out))
            files = open_files(args, pairs)
        ranks.print_once(f"sft: {len(pairs)} pairs, {args.steps} steps of {args.batch}, lr {args.lr:g}; "
                         f"{engines.describe(args.settings)}")
        with journal.stoppable("Stopped. The steps above are kept; the same command goes on.", ranks.is_main()):
            if files.done < args.steps:
                asyncio.run(run(args, pairs, files))
        ranks.print_once(f"adapter: {files.folder}")


if __name__ == "__main__":
    ranks.run_rank(main)

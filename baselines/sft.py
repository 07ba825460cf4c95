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
from collections import Counter

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import distill
import engines
import policy as policies
import prompts
import verifiers
from answers import last_boxed
from baselines import online
from common import checkpoints, flags, journal, outputs, ranks
from common.clock import Clock
from common.errors import BadInput, ContextTooLong
from engines.base import Sample, request_seed
from report import training

TEMPERATURE, TOP_P = 0.7, 0.95  # of the rewriting


def loss(policy, batch):
    """-> (sum of -log policy(y*_i), {name: sum}). What was demonstrated has no temperature."""
    return online.token_loss(policy, batch, lambda logp, log_p_y, w, c: -log_p_y.sum(), temperature=1.0)


# ---------------------------------------------------------------------------------------------------------------------
# The rewriting


async def rewrite_all(args, pairs, engine):
    """[(pair, y*)] of the pairs that are kept, in their order; rank 0's work."""
    problems, explored = training.explored_problems(args.cplus, {pair["problem"] for pair in pairs})
    known, file = journal.open_journal(os.path.join(args.out, "rewrites.jsonl"))
    known = {(line["problem"], line["step"], line["round"]): line for line in known}
    with (file, contextlib.closing(verifiers.Graders(strict=explored.get("strict_math_verify", False))) as graders,
          policies.new_bar(len(pairs), "pair", desc="rewriting") as bar):

        async def rewritten(pair):
            """y*, or None after the last round."""
            problem = problems[pair["problem"]]
            for number in range(1, args.rewrite + 1):
                record = known.get((pair["problem"], pair["step"], number))
                if not record:
                    record = await one_round(args, pair, problem, number, engine, graders)
                    journal.append(file, record)
                is_right = record["correct"] and not record["truncated"]
                if is_right:
                    break
            bar.update()
            return record["response"] if is_right else None

        found = await asyncio.gather(*map(rewritten, pairs))
    return [(pair, response) for pair, response in zip(pairs, found) if response is not None]


async def one_round(args, pair, problem, number, engine, graders):
    """-> a line of rewrites.jsonl."""
    begin, most = time.time(), args.settings.max_tokens
    box = last_boxed(pair["response"])
    prompt = engine.encode(prompts.rewrite(problem, pair["opening"], pair["context"], pair["response"], box))
    seed = request_seed(args.seed, pair["problem"], pair["step"], f"rewrite {number}")
    record = {"problem": pair["problem"], "step": pair["step"], "round": number, "seed": seed,
              "prompt_tokens": len(prompt), "completion_tokens": 0, "response": "", "truncated": True, "correct": 0}
    with contextlib.suppress(ContextTooLong):      # what the model cannot read is dropped
        y = await engine.sample(prompt, seed=seed, max_tokens=most, temperature=TEMPERATURE, top_p=TOP_P)
        verdict, _ = await verifiers.grade(problem, y.text, y.truncated(most), engine, graders)
        record |= {"completion_tokens": len(y.token_ids), "response": y.text, "truncated": y.truncated(most),
                   "correct": verdict.correct}
    return record | {"seconds": round(time.time() - begin, 3)}


# ---------------------------------------------------------------------------------------------------------------------
# The run


def example(engine, messages, response):
    """The Item of a demonstration."""
    ids = engine.tokenizer.encode(response, add_special_tokens=False) + [engine.tokenizer.eos_token_id]
    x = engine.encode(messages)
    return online.Item(x, Sample(ids, response, [0.0] * len(ids), "stop", len(x)), {})


def train(trainer, args, kept):
    """All steps that are left. kept: [(pair, y*)]."""
    for step in range(trainer.done + 1, args.steps + 1):
        begin, places = time.time(), distill.batch_indices(step, args.batch, len(kept), args.seed)
        batch = [kept[i] for i, _ in trainer.share(places)]
        items = [example(trainer.engine, pair["opening"], response) for pair, response in batch]
        tokens, parts, grad_norm = distill.optimizer_step(
            trainer.policy, trainer.optimizer, items, lambda rows: loss(trainer.policy, rows), trainer.args)
        total = sum(part["loss"] for part in ranks.all_gather(parts))
        trained = sum(ranks.all_gather([sum(item.tokens() for item in items)]))
        metrics = {"step": step, "loss": total / tokens, "grad_norm": grad_norm, "tokens": tokens,
                   "trained_tokens": trained, "train_seconds": round(time.time() - begin, 3)}
        trainer.keep(step, [], metrics, f"step {step:3d}  loss {total / tokens:.5f}  grad norm {grad_norm:.3g}")
        trainer.bar.update()


async def run(args, pairs, files, clock):
    """Rewrite, then train. -> the result. Errors: BadInput, if no pair is kept."""
    with ranks.all_ranks_ok():
        engine = await engines.start(args.settings, folder=args.out)
    with contextlib.closing(engine):
        kept = [(pair, pair["response"]) for pair in pairs]
        if args.rewrite:
            clock.begin("rewriting")
            with ranks.all_ranks_ok():
                kept = await rewrite_all(args, pairs, engine) if ranks.is_main() else []
            kept = ranks.all_gather(kept)
            ranks.print_once(f"{len(kept)} of {len(pairs)} pairs are kept, {len(pairs) - len(kept)} dropped after "
                             f"{args.rewrite} rounds.")
        if not kept:
            raise BadInput("no rewriting was right, so there is nothing to learn from: give --rewrite more rounds, or "
                           "--rewrite 0 to train on the answers as they are.")
        clock.begin("startup")
        update = flags.UpdateArgs(args.lr, math.inf, "reverse_kl", args.micro_tokens, args.grad_checkpoint_every)
        openings = [pair["opening"] for pair in pairs]
        trainer = policies.start_trainer(update, args.seed, args.settings, engine, openings, files)
        clock.begin("update")
        with policies.new_bar(args.steps, "step", initial=files.done) as trainer.bar:
            async with engine.resting():
                train(trainer, args, kept)
        clock.begin("saving")
    return {"pairs": len(pairs), "kept": len(kept), "gpus": engine.gpus * ranks.rank_and_world()[1]}


def write_result(args, clock, result):
    """Into sft.json: the seconds too, of all sessions that came to their end."""
    clock.begin("over")
    path = os.path.join(args.out, "sft.json")
    content = journal.read_json(path)
    seconds = Counter(content.get("result", {}).get("seconds", {}))
    seconds.update(clock.parts)
    seconds = {part: round(value, 3) for part, value in seconds.items()}
    journal.write_json(path, content | {"result": {"method": "sft", **result, "seconds": seconds}})


def parse(argv):
    """-> (flags with `settings`, the lines of cplus.jsonl). Errors: BadInput."""
    parser = flags.Parser(description=__doc__.partition("\n")[0])
    distill.add_run_arguments(parser)
    flags.add_step_arguments(parser, lr=1e-5)
    parser.add_argument("--rewrite", type=int, choices=range(0, 100), default=5, metavar="N",
                        help="rounds; 0: answers as they are")
    args, settings, problems = distill.resolved(parser.parse_args(argv))
    args.settings = settings
    return args, [line for lines in problems.values() for line in lines]


def open_files(args, pairs):
    """-> policy.Files of the run in --out. Errors: BadInput, if it is another one."""
    done = checkpoints.newest_step(os.path.join(args.out, "adapter"))
    digest = hashlib.sha256(json.dumps([pair["response"] for pair in pairs]).encode()).hexdigest()[:16]
    own = {name: getattr(args, name) for name in ("cplus", "rewrite", "steps", "batch", "lr", "seed")}
    kept = own | {"pairs": digest} | args.settings.kept()
    if ranks.is_main():
        is_new = not done and not os.path.exists(os.path.join(args.out, "rewrites.jsonl"))
        journal.keep_settings(os.path.join(args.out, "sft.json"), kept, growable=("steps",), empty=is_new)
    return policies.resume(args.out, done, ["sft.jsonl"])


def main(argv=None):
    clock = Clock("startup")
    ranks.init_ranks()
    with contextlib.ExitStack() as stack:
        with ranks.all_ranks_ok():
            args, pairs = parse(argv)
            if ranks.is_main():
                written = "rewrites.jsonl", "sft.jsonl", "adapter"
                outputs.claim_run(args.out, "sft.json", written, [args.cplus, args.settings.model])
                stack.enter_context(journal.lock(args.out))
            files = open_files(args, pairs)
        ranks.print_once(f"sft: {len(pairs)} pairs, {args.steps} steps of {args.batch}, lr {args.lr:g}; "
                         f"{engines.describe(args.settings)}")
        if files.done < args.steps:
            with journal.stoppable("Stopped. The steps above are kept; the same command goes on.", ranks.is_main()):
                result = asyncio.run(run(args, pairs, files, clock))
            if ranks.is_main():
                write_result(args, clock, result)
        ranks.print_once(f"adapter: {files.folder}")


if __name__ == "__main__":
    ranks.run_rank(main)

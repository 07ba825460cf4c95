"""SCoRe: two turns, the second of which corrects the first (arXiv 2409.12917).

    python baselines/score.py --bench sciknoweval --split train --out out/score

Unlike GRPO a trajectory has two answers, the second after LEAF's blind instruction, and both are graded. In stage 1,
the first quarter of the updates, only the second answer is paid, while a KL penalty holds the first where it was. In
stage 2 both are paid, and the second gets a bonus for mending, or a fine for spoiling, the first.

    stage 1: r = (0, r2)        stage 2: r = (r1, r2 + 10 (r2 - r1))        A: over the 4 siblings of the same turn
    loss = 1/T sum_i ( -w_i min(rho_i A, clip(rho_i, 0.8, 1.2) A) + beta k3_i ),  beta = 0.01, turn 1 of stage 1: 0.26
"""
import asyncio
import functools
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from baselines import online
import prompts
from common import flags, ranks

BOTH_TURNS = 16_896          # tokens of a trajectory (C.5)


def stage_1(updates):
    """How many of the updates are of stage 1."""
    return updates // 4


def rewards(r1, r2, stage, options):
    """-> (of turn 1, of turn 2)."""
    first, second = (0, r2) if stage == 1 else (r1, r2 + options.bonus * (r2 - r1))
    if options.credit == "trajectory":
        return first + second, first + second
    return first, second


async def trajectory(run, x, first):
    """-> the Items of two turns, calls `first` and `first` + 1."""
    family = run.settings.family
    y1 = await online.answer(run, x, first, prompts.opening(x, family))
    context = prompts.restart(x, family, y1.y.text)            # all of y1
    room = BOTH_TURNS - len(run.engine.encode(context))
    most = max(1, min(run.settings.max_tokens, room))
    return y1, await online.answer(run, x, first + 1, context, max_tokens=most)


async def group(run, x, first):
    steps = range(first, first + run.options.group, 2)
    pairs = await asyncio.gather(*(trajectory(run, x, k) for k in steps))
    stage = 1 if run.trainer.done < stage_1(run.last) else 2
    paid = [rewards(y1.record["reward"], y2.record["reward"], stage, run.options) for y1, y2 in pairs]
    for turn in (0, 1):
        values = online.advantages([reward[turn] for reward in paid], run.options.advantage)
        for pair, value in zip(pairs, values):
            pair[turn].advantage = value
            pair[turn].beta = run.options.beta1 + (run.options.beta2 if stage == 1 and turn == 0 else 0)
    return [item for pair in pairs for item in pair]


def loss(run, batch):
    return online.policy_loss(run.trainer.policy, batch, high=0.2, with_reference=True)


def add_arguments(parser):
    add = parser.add_argument_group("SCoRe").add_argument
    add("--beta1", type=flags.above_zero, default=0.01, help="KL coefficient")
    add("--beta2", type=flags.above_zero, default=0.25, help="more of it on turn 1 in stage 1")
    add("--bonus", type=flags.above_zero, default=10.0, help="of a correction, in stage 2")
    add("--credit", choices=["turn", "trajectory"], default="turn", help="whose reward a turn gets")


SCORE = online.Baseline("score", group, loss, add_arguments, turns=2)
main = functools.partial(online.main, SCORE, __doc__)


if __name__ == "__main__":
    ranks.run_rank(main)

"""GRPO, the baseline that the others vary (DeepSeekMath, arXiv 2402.03300; upper clip: DAPO, 2503.14476).

    python baselines/grpo.py --bench math500 --split train --out out/grpo

LEAF looks at one answer and what was said of it; GRPO looks at eight independent answers to the plain prompt. An answer
is reinforced by how much better it was than its group, so feedback has no part in it and a group of equals teaches
nothing. The policy is updated while it explores: K calls a problem are ceil(ceil(K * problems / 8) / 32) updates.

    A_j = (r_j - mean r) / (std r + 1e-6)         loss = -1/T sum_i w_i min(rho_i A, clip(rho_i, 0.8, 1.28) A)
"""
import functools
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from baselines import online
from common import ranks


def loss(run, batch):
    return online.policy_loss(run.trainer.policy, batch)


GRPO = online.Baseline("grpo", online.plain_group, loss)
main = functools.partial(online.main, GRPO, __doc__)


if __name__ == "__main__":
    ranks.run_rank(main)

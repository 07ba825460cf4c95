"""SDPO: the policy taught by itself, which sees a sibling's success and the feedback (arXiv 2601.20802).

    python baselines/sdpo.py --bench lcb --split train --out out/sdpo

Unlike GRPO it has no advantages: each token is compared with a teacher's distribution. The teacher is a slow average of
the policy whose prompt also holds a right answer of the same group, and what was said of the failed one. An answer that
has neither a right sibling nor feedback has no teacher, and is left out.

    p, q: student's and teacher's shares of the student's 20 likeliest tokens and of all others together
    loss = 1/T sum_i w_i min(rho_i, 2) KL(p_i || sg q_i)        teacher <- 0.99 teacher + 0.01 policy, after each step
"""
import contextlib
import functools
import math
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from baselines import online
import prompts
from common import checkpoints, flags, ranks
from loss import log_probabilities

import torch

TOP, PROMPT_TOKENS = 20, 10_240


def divergence(logp, log_q, alpha=1.0, top=TOP):
    """D_i, [T], from log-probabilities [T, V]. alpha 1: KL(p || q); 0: KL(q || p); between: a generalised JSD."""
    ids = logp.detach().topk(min(top, logp.shape[-1] - 1)).indices                            # [T, 20]
    p, q = with_tail(logp.gather(1, ids)), with_tail(log_q.gather(1, ids))                  # [T, 21]
    if alpha == 1:
        return (p.exp() * (p - q)).sum(-1)
    if alpha == 0:
        return (q.exp() * (q - p)).sum(-1)
    m = torch.logaddexp(p + math.log(1 - alpha), q + math.log(alpha))
    return (1 - alpha) * (p.exp() * (p - m)).sum(-1) + alpha * (q.exp() * (q - m)).sum(-1)


def with_tail(some):
    """Log-probabilities [T, 20] and that of all other tokens together: [T, 21]."""
    tail = torch.log(-torch.expm1(some.logsumexp(-1, keepdim=True).clamp(max=-1e-7)))
    return torch.cat([some, tail], -1)


def loss(run, batch):
    policy = run.trainer.policy
    with torch.no_grad(), teaching(policy, run.teacher):
        taught = online.states(policy, batch, [item.c for item in batch])                   # [T, d]

    def of_chunk(logp, log_p_y, w, c):
        log_q = log_probabilities(taught[c], policy.head, policy.temperature)
        # min(rho, 2) is 1: every update is on-policy.
        return (w * divergence(logp, log_q, run.options.alpha)).sum()

    return online.token_loss(policy, batch, of_chunk, policy.temperature)


# ---------------------------------------------------------------------------------------------------------------------
# The teacher


async def group(run, x, first):
    items = await online.plain_group(run, x, first)
    opening = prompts.opening(x, run.settings.family)
    for item in items:
        solution, feedback = lesson(items, item, run.options.feedback)
        if solution or feedback:
            item.c = prompt(run.engine, opening, solution, feedback)
    return items


def lesson(items, item, which):
    """(the first right answer of the others, the feedback on this one if it failed); None where there is none."""
    right = [other.y.text for other in items if other is not item and other.record["reward"]]
    solution = right[0].rpartition("</think>")[2].strip() if right else None
    feedback = None if item.record["reward"] else item.record["feedback"] or None
    return solution, None if solution and which == "without-solution" else feedback


def prompt(engine, opening, solution, feedback):
    """Token ids; a demonstration that does not fit loses its beginning, never the prompt its end."""
    ids = engine.encode(prompts.sdpo_teacher(opening, solution, feedback))
    over = len(ids) - PROMPT_TOKENS
    if over <= 0 or not solution:
        return ids
    text = engine.tokenizer.encode(solution, add_special_tokens=False)[over:]
    return prompt(engine, opening, engine.tokenizer.decode(text) if text else None, feedback)


@contextlib.contextmanager
@torch.no_grad()
def teaching(policy, teacher):
    """A block in which the policy has the teacher's parameters; it makes no graph."""
    own = [p.detach().clone() for p in policy.parameters()]
    for p, q in zip(policy.parameters(), teacher):
        p.copy_(q)
    yield
    for p, q in zip(policy.parameters(), own):
        p.copy_(q)


def step(run, items):
    """An update on the answers that have a teacher, which then follows."""
    if not run.teacher:
        run.teacher = first_teacher(run.trainer)
    metrics = online.step(run, [item for item in items if item.c is not None])
    if metrics["tokens"]:
        follow(run.teacher, run.trainer.policy, run.options.teacher_rate)
    run.trainer.more = {str(i): checkpoints.whole(q).cpu().clone() for i, q in enumerate(run.teacher)}
    return metrics


@torch.no_grad()
def first_teacher(trainer):
    """The parameters of the untrained policy, or those of the checkpoint."""
    teacher = [p.detach().clone() for p in trainer.policy.parameters()]
    for number, q in enumerate(teacher if trainer.more else []):
        whole = trainer.more[str(number)].to(q.device)
        if hasattr(q, "full_tensor"):
            from torch.distributed.tensor import distribute_tensor
            whole = distribute_tensor(whole, q.device_mesh, q.placements)
        q.copy_(whole)
    return teacher


@torch.no_grad()
def follow(teacher, policy, rate):
    """teacher <- (1 - rate) teacher + rate policy."""
    for q, p in zip(teacher, policy.parameters()):
        q.lerp_(p, rate)


def add_arguments(parser):
    add = parser.add_argument_group("SDPO").add_argument
    add("--alpha", type=flags.share, default=1.0, help="1: KL(student || teacher), 0: the other one, between: JSD")
    add("--teacher-rate", type=flags.share, default=0.01, help="of the moving average")
    add("--feedback", choices=["both", "without-solution"], default="both",
        help="whether a teacher that has a solution sees the feedback too")


SDPO = online.Baseline("sdpo", group, loss, add_arguments, step)
main = functools.partial(online.main, SDPO, __doc__)


if __name__ == "__main__":
    ranks.run_rank(main)

"""SEED: GRPO with a small pull towards what the policy says once it sees a skill (arXiv 2607.14777).

    python baselines/seed.py --bench lcb --split train --out out/seed

Unlike GRPO the policy also analyses each answer: a workflow after success, a rule after failure. The answer's tokens
are scored again beside that skill, and those that became likelier are imitated, by a gate. The first 16% of the batches
are only collected; three epochs of SFT on the base model's analyses of them teach the policy to write skills.

    delta_i = sg(l_skill_i - l_i)    g_i = sigmoid(5 delta_i)    l, l_skill: log policy(y_i) without and with the skill
    loss = GRPO (clip 0.8, 1.2) + 1/T sum_i ( 0.01 g_i (sg l_skill_i - l_i) + 0.01 k3_i )
"""
import asyncio
import functools
import json
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from baselines import online, sft
import distill
import policy as policies
import prompts
from common import ranks
from common.errors import ContextTooLong
from engines.base import request_seed

import torch

GATE, OPD, BETA = 5.0, 0.01, 0.01
ANALYSIS_TOKENS, SKILL_TOKENS = 2048, 500
EPOCHS, SFT_BATCH = 3, 8


def collected(updates):
    """How many of the updates are only collected: 16%, to the nearest."""
    return int(0.16 * updates + 0.5)


def opd(log_p_y, l_skill):
    """[T]: g (sg l_skill - l). Its gradient is -g times that of l; at delta 0 the gate is one half."""
    gate = torch.sigmoid(GATE * (l_skill - log_p_y.detach()))
    return gate * (l_skill - log_p_y)


def skill_loss(policy, batch, coefficient=OPD):
    """-> (sum over the batch's tokens, {name: sum})."""
    taught = [item for item in batch if item.c is not None]
    l_taught = online.log_probs(policy, taught, [item.c for item in taught])                # [T']
    has = online.of_tokens(batch, [item.c is not None for item in batch], l_taught).bool()  # [T]
    l_skill = torch.zeros(len(has), dtype=l_taught.dtype, device=l_taught.device)
    l_skill[has] = l_taught

    def more(log_p_y, c):
        return coefficient * opd(log_p_y, l_skill[c])[has[c]].sum()

    return online.policy_loss(policy, batch, more, high=0.2, with_reference=True)


# ---------------------------------------------------------------------------------------------------------------------
# Skills


def skill_of(text):
    """The skill of an analysis {"summary", "skill"}, in a fence or not; None if it cannot be read."""
    try:
        found = json.loads(text[text.find("{"):text.rfind("}") + 1])
        return found["skill"].strip() or None if isinstance(found["summary"], str) else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def request(opening, record):
    """The dialogue that asks for an analysis."""
    return prompts.analyze(opening, record["response"], record["reward"], record["feedback"])


async def analysed(run, x, item, adapter):
    """Let the policy, or the base model without adapter, analyse an answer; its record keeps what it wrote."""
    opening, engine, record = prompts.opening(x, run.settings.family), run.engine, item.record
    ids = engine.encode(request(opening, record))
    record |= {"analysis": None, "skill": None}
    try:
        seed = request_seed(run.args.seed, x.id, record["step"], "analysis")
        y = await engine.sample(ids, seed=seed, max_tokens=ANALYSIS_TOKENS, temperature=0.0, top_p=1.0, adapter=adapter)
    except ContextTooLong:         # then there is no skill, and GRPO stays
        return
    tokens = len(ids) + len(y.token_ids)
    record |= {"analysis": y.text, "forward_tokens": tokens, "paper_forward_tokens": tokens}
    skill = skill_of(y.text)
    if skill:
        cut = engine.tokenizer.encode(skill, add_special_tokens=False)[:SKILL_TOKENS]
        record["skill"] = engine.tokenizer.decode(cut)


async def group(run, x, first):
    collects = run.trainer.done < collected(run.last)
    items = await online.plain_group(run, x, first)
    adapter = None if collects else run.trainer.adapter()
    await asyncio.gather(*(analysed(run, x, item, adapter) for item in items))
    opening = prompts.opening(x, run.settings.family)
    for item in items:
        item.beta = BETA
        if item.record["skill"] and not collects:
            item.c = run.engine.encode(prompts.with_skill(opening, item.record["skill"]))
    return items


def step(run, items):
    """A collected batch teaches nothing; the last of them ends with the SFT."""
    left = collected(run.last) - run.trainer.done
    if left < 1:
        return online.step(run, items)
    metrics = {"tokens": 0, "grad_norm": 0.0}
    return metrics | teach(run, items) if left == 1 else metrics


def teach(run, items):
    """SFT on all analyses that could be read, with an optimizer of its own. -> metrics."""
    known = [*run.records.values()] if ranks.is_main() else []
    records = ranks.all_gather(known + [item.record for item in items])
    records = sorted((r for r in records if r["skill"]), key=lambda r: (r["problem"], r["step"]))
    policy, optimizer = run.trainer.policy, policies.adam(run.trainer.policy, run.options.lr)
    examples = [sft.example(run.engine, request(r["context"], r), r["analysis"]) for r in records]
    trained = EPOCHS * sum(item.tokens() for item in examples)
    for number in range(1, -(-EPOCHS * len(examples) // SFT_BATCH) + 1):
        places = distill.batch_indices(number, SFT_BATCH, len(examples), run.args.seed)
        rows = [examples[i] for i, _ in run.trainer.share(places)]
        distill.optimizer_step(policy, optimizer, rows, lambda batch: sft.loss(policy, batch), run.trainer.args)
    answers = sum(ranks.all_gather([len(items)]))
    for item in items:             # this batch carries the cost
        item.record["trained_tokens"] = trained // answers
    run.trainer.optimizer = policies.adam(policy, run.options.lr)
    return {"analyses": len(examples)}


SEED = online.Baseline("seed", group, lambda run, batch: skill_loss(run.trainer.policy, batch), step=step, calls=15)
main = functools.partial(online.main, SEED, __doc__)


if __name__ == "__main__":
    ranks.run_rank(main)

"""The ablations of App. G.2-G.4: other memories and compressions, updates between the steps, the teacher's traces.

Each is a second copy of what it changes, so that explore.py and distill.py hold the method alone.
"""
import os
import random

import policy
import prompts
from answers import final_part
from common import journal
from common.errors import BadInput, read_jsonl
from engines.base import request_seed, side_by_side


# ---------------------------------------------------------------------------------------------------------------------
# The memory (App. G.2)


def changes_memory(args):
    return args.memory != "leaf" or args.compress != "tail"


async def explore_segment(run, problem, steps):
    """explore.explore_segment with another memory, or with another way to shorten what it shows."""
    args, family = run.args, run.settings.family
    rounds = []  # the graded answers since the restart

    def short(sample):
        return shortened(problem, sample, args.compress, args.tail, run.engine.tokenizer)

    for t in steps:
        if (problem.id, t) in run.done:
            rounds.append(run.done[problem.id, t])
            continue
        attempt = run.attempt(problem, t)
        if not rounds:
            plain = opening(args, family, problem)
            draft = await attempt.sample("draft", plain)
            last = {"context": plain, "response": draft.text, "completion_tokens": len(draft.token_ids),
                    "tail": short(draft)}
            c = prompts.restart(problem, family, shown(last, await summarize(attempt, args, last)))
        elif args.memory == "no-response":
            c = prompts.carry_without_response(problem, family, rounds[-1]["reward"], rounds[-1]["feedback"])
        elif args.memory == "no-feedback":
            c = prompts.restart(problem, family, shown(rounds[-1]))
        elif args.memory == "last3":
            *earlier, last = [(shown(r), r["reward"], r["feedback"]) for r in rounds[-3:]]
            c = prompts.carry(problem, family, *last, earlier=earlier)
        else:
            last = rounds[-1]
            summary = await summarize(attempt, args, last)
            c = prompts.carry(problem, family, shown(last, summary), last["reward"], last["feedback"])
        c = asked(args, c)
        y = await attempt.sample("answer", c)
        rounds.append(run.keep(attempt.record(c, y, await attempt.verify(y), short(y))))


def opening(args, family, problem):
    """The plain prompt x of this run."""
    return asked(args, prompts.opening(problem, family))


def asked(args, messages):
    """`messages`; with --compress block, each user turn asks for a summary block."""
    return prompts.ask_for_block(messages, args.tail // 4) if args.compress == "block" else messages


def shown(record, summary=None):
    """What the next context shows of a response; `summary`: that of `summarize`."""
    tail = summary.text if summary else record["tail"]
    return record["response"] if tail is None else tail


async def summarize(attempt, args, record):
    """--compress summary: the model's own summary of a response of more than L tokens, a further turn of the dialogue
    that it came from. -> Sample, or None where the response is shown as it is."""
    if args.compress != "summary" or record["completion_tokens"] <= args.tail:
        return None
    half = args.tail // 2  # 1,000 tokens in the paper
    dialogue = [*record["context"], prompts.assistant(record["response"]),
                prompts.user(prompts.fill(prompts.SUMMARIZE, tokens=str(half)))]
    return await attempt.sample("summary", dialogue, max_tokens=half)


def shortened(problem, sample, how, length, tokenizer):
    """-> the text that stands for the response `sample`, or None where all of it is shown.

    how: tail | none | head-tail | summary | block | low-logprob; length: L, tokens. The paper's 1,000 and 500 tokens
    are L / 2 and L / 4 here.
    """
    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=True)

    if how == "block" and (block := summary_block(problem, sample.text, length // 4, tokenizer)):
        return block  # always, also of a short response; where the model wrote none, the tail has to do
    ids, half = sample.token_ids, length // 2
    if len(ids) <= length or how in ("none", "summary"):
        return None
    if how == "head-tail":
        return decode(ids[:half]) + "\n...\n" + decode(ids[-half:])
    if how == "low-logprob":
        unlikely = sorted(range(len(ids)), key=lambda i: sample.logprobs[i])[:half]
        return decode([ids[i] for i in sorted(unlikely)])
    return decode(ids[-length:])


def summary_block(problem, response, length, tokenizer):
    """The last summary block of `response`, cut to `length` tokens, and its final code or answer; None without one."""
    before, tag, rest = response.rpartition("<summary>")
    block, end, after = rest.partition("</summary>")
    if not tag or not end:
        return None
    ids = tokenizer.encode(block.strip(), add_special_tokens=False)[:length]
    text = f"<summary>\n{tokenizer.decode(ids, skip_special_tokens=True)}\n</summary>"
    solution = final_part(problem, before + after)
    return f"{text}\n\n{solution}" if solution else text


# ---------------------------------------------------------------------------------------------------------------------
# Updates between the steps (App. G.3)


def start_trainer(run, how, openings):
    """What --update-every trains with: distill.py's own, in OUT/updates."""
    folder = os.path.join(run.args.out, "updates")
    adapters = os.path.join(folder, "adapter")
    os.makedirs(folder, exist_ok=True)
    done, steps = policy.newest_step(adapters), max((step for _, step in run.done), default=0)
    if not max((r["updates"] for r in run.done.values()), default=0) <= done <= steps // run.args.update_every:
        raise BadInput(f"{adapters} holds update {done}, which is not that of rollouts.jsonl: one of them is of "
                       "another run; name another folder with --out.")
    return policy.start_trainer(how, run.args.seed, run.settings, run.engine, openings, folder,
                                policy.go_on(folder, done))


async def step_by_step(run, problems, cut, admitted, update):
    """Exploration with an update after every N steps (App. G.3): the answers of a step depend on those before it.

    cut: the steps of each segment; admitted(problem, steps): explores them; update(number, step): trains on C+ so far.
    """
    over = run.trainer.done * run.args.update_every  # up to this step no answer may come from the updated policy
    run.failed |= {p.id: "it was left before the newest update" for p in problems for t in range(1, over + 1)
                   if (p.id, t) not in run.done}
    for steps in cut:
        for t in range(max(steps.start, over + 1), steps.stop):
            # what came before t in its segment is done: these add step t alone
            await side_by_side([admitted(problem, range(steps.start, t + 1)) for problem in problems
                                       if t == steps.start or (problem.id, t - 1) in run.done])
            number, rest = divmod(t, run.args.update_every)
            if rest == 0:
                os.fsync(run.journal.fileno())  # no checkpoint may outlive the answers that it stands on
                await update(number, t)


# ---------------------------------------------------------------------------------------------------------------------
# The teacher's traces (App. G.4)


def read_rollouts(cplus):
    """The records of the rollouts.jsonl beside the file `cplus`."""
    path = os.path.join(os.path.dirname(cplus), "rollouts.jsonl")
    records = read_jsonl(path, torn_ok=True)
    journal.check_fields(path, records, "problem", "step", "reward", "restart", "context")
    return records


def teacher_contexts(problems, traces, rollouts):
    """{problem id: [context]}: what the teachers of the trace types of Tables 5 and 27 are conditioned on (App. G.4).

    success: C+ itself. failure: the contexts of wrong answers without duplicates; the plain prompt where there is none.
    random: C+ with the feedback turn replaced by one that differs, from another step of the problem, else of another
    problem; restart contexts hold no feedback and stay. `problems`: see `read_cplus`; `rollouts`: the records of
    rollouts.jsonl (not read for success). Errors: BadInput, where there is no feedback turn, or none that differs.
    """
    if traces == "success":
        return {problem: [line["context"] for line in lines] for problem, lines in problems.items()}
    contexts = {problem: [] for problem in problems}
    records = {(r["problem"], r["step"]): r for r in sorted(rollouts, key=lambda r: r["step"])}
    for problem, step in ((problem, line["step"]) for problem, lines in problems.items() for line in lines):
        if (problem, step) not in records:
            raise BadInput(f"rollouts.jsonl has no step {step} of problem {problem}, which cplus.jsonl holds: put "
                           "back the rollouts.jsonl of that run beside it.")
    if traces == "failure":
        for (problem, _), r in records.items():
            if r["reward"] == 0 and problem in contexts and r["context"] not in contexts[problem]:
                contexts[problem].append(r["context"])
        return {problem: found or [problems[problem][0]["opening"]] for problem, found in contexts.items()}
    turns = {problem: set() for problem, _ in records}  # the feedback turns of each problem
    for (problem, _), r in records.items():
        if not r["restart"]:
            if len(r["context"]) < 2 or r["context"][-2]["role"] != "assistant":
                raise BadInput("--traces random replaces the feedback turn, and these contexts have none: explore "
                               "with --method leaf and a --memory that shows the response.")
            turns[problem].add(r["context"][-1]["content"])
    everything = set().union(*turns.values())
    for problem, lines in problems.items():
        for line in lines:
            *earlier, turn = line["context"]
            if not records[problem, line["step"]]["restart"]:
                others = sorted(turns[problem] - {turn["content"]} or everything - {turn["content"]})
                if not others:
                    raise BadInput("--traces random needs two feedback texts that differ, and these rollouts hold "
                                   "one: explore more problems.")
                pick = random.Random(request_seed(1, problem, line["step"], "random trace"))
                turn = prompts.user(pick.choice(others))
            contexts[problem].append([*earlier, turn])
    return contexts


def teacher_draws(problems, traces, rollouts):
    """`teacher_contexts` as what the trainer draws from: {problem id: [{"context", "step": that of C+, or None}]}."""
    contexts = teacher_contexts(problems, traces, rollouts)
    if traces == "failure":  # which are no steps of C+
        return {p: [{"context": context, "step": None} for context in found] for p, found in contexts.items()}
    return {p: [{"context": context, "step": line["step"]} for context, line in zip(contexts[p], problems[p])]
            for p in problems}


# ---------------------------------------------------------------------------------------------------------------------
# Command line


def check(args, parser):
    """BadInput for flags that do not go together."""
    if args.compress != "tail" and args.memory != "leaf":
        raise BadInput("--compress and --memory are two ablations of one thing, the memory: give one of them.")
    if args.method == "random" and (args.compress != "tail" or args.memory != "leaf" or args.update_every):
        raise BadInput("--memory, --compress and --update-every change LEAF: leave out --method random.")
    if args.compress not in ("tail", "none") and args.tail < 4:
        raise BadInput(f"--compress {args.compress} shows a half or a quarter of --tail tokens: give 4 or more.")
    changed = [f"--{n.replace('_', '-')}" for n in ("lr", "tau", "divergence", "micro_tokens", "grad_checkpoint_every")
               if getattr(args, n) != parser.get_default(n)]
    if changed and not args.update_every:
        raise BadInput(f"{changed[0]} is for updates between the steps: add --update-every N, or give it to "
                       "distill.py.")

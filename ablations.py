"""The ablations of App. G.2-G.4: other memories, updates between the steps, other teachers.

Each is a second copy of what it changes, so that explore.py and distill.py hold the method alone.
"""
import os
import random

import prompts
from answers import final_part
from common import flags, journal, rollouts
from common.errors import BadInput, read_jsonl
from engines.base import request_seed, side_by_side

MEMORIES = ("leaf", "no-response", "no-feedback", "last3")
COMPRESSIONS = ("tail", "none", "head-tail", "summary", "block", "low-logprob")


# --------------------------------------------------------------------------------------------------
# The memory (App. G.2)


async def explore_segment(run, x, steps):
    """explore.explore_segment with another memory, or another way to shorten what it shows."""
    args, family = run.args, run.settings.family
    rounds = []                                  # lines of rollouts.jsonl since the restart
    for t in steps:
        if (x.id, t) in run.records:
            rounds.append(run.records[x.id, t])
            continue
        attempt = run.attempt(x, t)
        if not rounds:
            c = await restart_context(attempt)
        elif args.memory in CONTEXTS:
            c = CONTEXTS[args.memory](x, family, rounds)
        else:
            c = await carry_context(attempt, rounds[-1])
        c = with_block(c, args.compress, args.tail)
        y = await attempt.sample("answer", c)
        await attempt.verify(y)
        y_hat = shortened(x, y, args.compress, args.tail, run.engine.tokenizer)
        rounds.append(run.keep(x, rollouts.record(attempt, c, y_hat) | {"tail": y_hat}))


async def restart_context(attempt):
    """c of a restart: draft and blind instruction, the draft shortened by --compress."""
    run, x, args = attempt.run, attempt.x, attempt.run.args
    family, tokenizer = run.settings.family, run.engine.tokenizer
    plain = opening(x, family, args.compress, args.tail)
    draft = await attempt.sample("draft", plain)
    record = {"context": plain, "response": draft.text,
              "completion_tokens": len(draft.token_ids),
              "tail": shortened(x, draft, args.compress, args.tail, tokenizer)}
    return prompts.restart(x, family, await summarized(attempt, record))


async def carry_context(attempt, record):
    """c of a carry step after the answer `record`, shortened by --compress."""
    family, y_hat = attempt.run.settings.family, await summarized(attempt, record)
    return prompts.carry(attempt.x, family, y_hat, record["reward"], record["feedback"])


def without_response(x, family, rounds):
    """c of a carry step: feedback on an answer that is not seen."""
    last = rounds[-1]
    return prompts.carry_without_response(x, family, last["reward"], last["feedback"])


def without_feedback(x, family, rounds):
    """c of a carry step: the last answer is revised blindly, as a draft is."""
    return prompts.restart(x, family, shown(rounds[-1]))


def last_three(x, family, rounds):
    """c of a carry step: the last three answers since the restart, each with its feedback."""
    *earlier, last = [(shown(r), r["reward"], r["feedback"]) for r in rounds[-3:]]
    return prompts.carry(x, family, *last, earlier=earlier)


CONTEXTS = {  # --memory: what makes a carry step's context
    "no-response": without_response, "no-feedback": without_feedback, "last3": last_three,
}


def opening(x, family, compress, length):
    """The plain prompt; length: L, tokens."""
    return with_block(prompts.opening(x, family), compress, length)


def with_block(messages, compress, length):
    """`messages`; with --compress block, each user turn asks for a summary block."""
    if compress != "block":
        return messages
    return prompts.ask_for_block(messages, length // 4)


def shown(record):
    """What the next context shows of an answer, or of a draft; see `summarized`."""
    return record["response"] if record["tail"] is None else record["tail"]


async def summarized(attempt, record):
    """`shown`; with --compress summary, of a response of more than L tokens the model's summary.

    It is asked for in a further turn of the dialogue that the response came from.
    """
    args = attempt.run.args
    if args.compress != "summary" or record["completion_tokens"] <= args.tail:
        return shown(record)
    tokens = args.tail // 2  # 1,000 in the paper
    request = prompts.user(prompts.fill(prompts.SUMMARIZE, tokens=str(tokens)))
    messages = [*record["context"], prompts.assistant(record["response"]), request]
    sample = await attempt.sample("summary", messages, max_tokens=tokens)
    return sample.text


def shortened(x, y, compress, length, tokenizer):
    """-> the text that stands for the completion y, or None where all of it is shown.

    compress: one of COMPRESSIONS; length: L, tokens. The paper's 1,000 and 500 tokens are L / 2 and
    L / 4 here.
    """
    if compress == "block":
        block = summary_block(x, y.text, length // 4, tokenizer)
        # Shown for a short response too; where the model wrote none, the tail has to do.
        if block:
            return block
    if len(y.token_ids) <= length or compress in ("none", "summary"):
        return None
    if compress == "head-tail":
        return head_and_tail(y, length // 2, tokenizer)
    if compress == "low-logprob":
        return least_likely(y, length // 2, tokenizer)
    return tokenizer.decode(y.token_ids[-length:], skip_special_tokens=True)


def head_and_tail(y, length, tokenizer):
    """The text of the first and the last `length` tokens."""
    head = tokenizer.decode(y.token_ids[:length], skip_special_tokens=True)
    tail = tokenizer.decode(y.token_ids[-length:], skip_special_tokens=True)
    return f"{head}\n...\n{tail}"


def least_likely(y, length, tokenizer):
    """The text of the `length` tokens with the lowest log mu, in their original order."""
    log_mu = y.log_mu()
    places = sorted(range(len(log_mu)), key=log_mu.__getitem__)
    ids = [y.token_ids[i] for i in sorted(places[:length])]
    return tokenizer.decode(ids, skip_special_tokens=True)


def summary_block(x, response, length, tokenizer):
    """The last summary block of `response`, cut to `length` tokens, and its final code or answer.

    None without a block.
    """
    before, start, rest = response.rpartition("<summary>")
    block, end, after = rest.partition("</summary>")
    if not start or not end:
        return None
    ids = tokenizer.encode(block.strip(), add_special_tokens=False)[:length]
    text = f"<summary>\n{tokenizer.decode(ids, skip_special_tokens=True)}\n</summary>"
    solution = final_part(x, before + after)
    return f"{text}\n\n{solution}" if solution else text


# --------------------------------------------------------------------------------------------------
# Updates between the steps (App. G.3)


def start_trainer(run, update, openings):
    """What --update-every trains with: distill.py's own, in OUT/updates. update: UpdateArgs."""
    import policy
    from common import checkpoints
    folder = os.path.join(run.args.out, "updates")
    adapters = os.path.join(folder, "adapter")
    os.makedirs(folder, exist_ok=True)
    newest = checkpoints.newest_step(adapters)
    steps = max((step for _, step in run.records), default=0)
    used = max((r["updates"] for r in run.records.values()), default=0)
    if not used <= newest <= steps // run.args.update_every:
        raise BadInput(f"{adapters} holds update {newest}, which is not that of rollouts.jsonl: "
                       "one of them is of another run; name another folder with --out.")
    files = policy.resume(folder, newest)
    return policy.start_trainer(update, run.args.seed, run.settings, run.engine, openings, files)


async def step_by_step(run, problems, segments, admit, update):
    """Exploration with an update after every N steps: the answers of a step depend on older ones.

    segments: the steps of each; admit(x, steps): explores them; update(number, step): trains on C+
    up to that step.
    """
    every = run.args.update_every
    done_steps = run.trainer.done * every
    # Up to there no answer may come from the updated policy any more.
    for x in problems:
        if any((x.id, t) not in run.records for t in range(1, done_steps + 1)):
            run.failures[x.id] = "it was left before the newest update"
    for steps in segments:
        for t in range(max(steps.start, done_steps + 1), steps.stop):
            # What came before t in its segment is graded: these add step t alone.
            ready = [x for x in problems if t == steps.start or (x.id, t - 1) in run.records]
            await side_by_side([admit(x, range(steps.start, t + 1)) for x in ready])
            if t % every == 0:
                await run.lines.all_written()
                os.fsync(run.lines.file.fileno())  # no checkpoint may outlive its answers
                await update(t // every, t)


# --------------------------------------------------------------------------------------------------
# The teacher's traces (App. G.4)


def read_rollouts(cplus):
    """The records of the rollouts.jsonl beside the file `cplus`."""
    path = os.path.join(os.path.dirname(cplus), "rollouts.jsonl")
    records = read_jsonl(path, torn_ok=True)
    journal.check_fields(path, records, "problem", "step", "reward", "restart", "context")
    return records


def teacher_contexts(problems, traces, rollouts):
    """{problem id: [context]}: what the teachers of Tables 5 and 27 are conditioned on (App. G.4).

    problems: see `updates.read_cplus`; traces: "success" (C+ itself), "failure" or "random";
    rollouts: the records of rollouts.jsonl, not read for success. Errors: BadInput.
    """
    if traces == "success":
        return {problem: [line["context"] for line in lines] for problem, lines in problems.items()}
    rollouts = sorted(rollouts, key=lambda record: record["step"])
    records = {(r["problem"], r["step"]): r for r in rollouts}
    for problem, lines in problems.items():
        for step in (line["step"] for line in lines):
            if (problem, step) not in records:
                raise BadInput(f"rollouts.jsonl has no step {step} of problem {problem}, which "
                               "cplus.jsonl holds: put back the rollouts.jsonl of that run beside "
                               "it.")
    make = failure_contexts if traces == "failure" else random_contexts
    return make(problems, records)


def failure_contexts(problems, records):
    """The contexts of wrong answers without duplicates; the plain prompt where there is none."""
    contexts = {problem: [] for problem in problems}
    for (problem, _), record in records.items():
        c = record["context"]
        if record["reward"] == 0 and problem in contexts and c not in contexts[problem]:
            contexts[problem].append(c)
    return {problem: failures or [problems[problem][0]["opening"]]
            for problem, failures in contexts.items()}


def random_contexts(problems, records):
    """C+ with each feedback turn replaced by one that differs; restarts have none and stay.

    It comes from another step of the problem, else from another problem.
    """
    turns = feedback_turns(records)
    everything = set().union(*turns.values())
    contexts = {problem: [] for problem in problems}
    for problem, lines in problems.items():
        for line in lines:
            c = line["context"]
            if not records[problem, line["step"]]["restart"]:
                feedback = {c[-1]["content"]}
                others = sorted(turns[problem] - feedback or everything - feedback)
                if not others:
                    raise BadInput("--traces random needs two feedback texts that differ, and "
                                   "these rollouts hold one: explore more problems.")
                seed = request_seed(1, problem, line["step"], "random trace")
                c = [*c[:-1], prompts.user(random.Random(seed).choice(others))]
            contexts[problem].append(c)
    return contexts


def feedback_turns(records):
    """{problem id: the texts of its feedback turns}. Errors: BadInput, where contexts have none."""
    turns = {problem: set() for problem, _ in records}
    for (problem, _), record in records.items():
        if record["restart"]:
            continue
        c = record["context"]
        if len(c) < 2 or c[-2]["role"] != "assistant":
            raise BadInput("--traces random replaces the feedback turn, and these contexts have "
                           "none: explore with --method leaf and a --memory that shows the "
                           "response.")
        turns[problem].add(c[-1]["content"])
    return turns


def teacher_draws(problems, traces, rollouts):
    """`teacher_contexts` as what the trainer draws from.

    {problem id: [{"context": messages, "step": that of C+, or None}]}
    """
    draws = {}
    for problem, contexts in teacher_contexts(problems, traces, rollouts).items():
        steps = [line["step"] for line in problems[problem]]
        if traces == "failure":  # which are no steps of C+
            steps = [None] * len(contexts)
        draws[problem] = [{"context": c, "step": step} for c, step in zip(contexts, steps)]
    return draws


# --------------------------------------------------------------------------------------------------
# Command line


def add_arguments(parser):
    """The flags of explore.py for the ablations."""
    group = parser.add_argument_group("other memories (App. G.2)")
    group.add_argument("--memory", choices=MEMORIES, default="leaf",
                       help="what a carry step's context holds")
    group.add_argument("--compress", choices=COMPRESSIONS, default="tail",
                       help="how the memory shows a response of more than L tokens (Table 24)")
    group = parser.add_argument_group("updates between the steps (App. G.3)")
    group.add_argument("--update-every", type=flags.positive_int, metavar="N",
                       help="update the policy after every N steps (default: never)")
    flags.add_update_arguments(group, lr=1e-6)


UPDATE_FLAGS = ("lr", "tau", "divergence", "micro_tokens", "grad_checkpoint_every")


def check(args, parser):
    """BadInput for flags of explore.py that do not go together; args: as `parser` made them."""
    changes_memory = args.compress != "tail" or args.memory != "leaf"
    if args.compress != "tail" and args.memory != "leaf":
        raise BadInput("--compress and --memory are two ablations of one thing, the memory: give "
                       "one of them.")
    if args.method == "random" and (changes_memory or args.update_every):
        raise BadInput("--memory, --compress and --update-every change LEAF: leave out --method "
                       "random.")
    if args.compress not in ("tail", "none") and args.tail < 4:
        raise BadInput(f"--compress {args.compress} shows a half or a quarter of --tail tokens: "
                       "give 4 or more.")
    for name in UPDATE_FLAGS:
        if getattr(args, name) != parser.get_default(name) and not args.update_every:
            raise BadInput(f"--{name.replace('_', '-')} is for updates between the steps: add "
                           "--update-every N, or give it to distill.py.")

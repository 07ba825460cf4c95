"""Additions of two 3-digit numbers: the bench of the tiny model (tiny.py), and what that model is taught.

It is taught to get stuck, as large models do by nature. There are two ways to be wrong. A careless answer drops the
carries: it is right only on sums without carries. A careful one writes them, and on a first try mostly has a slip,
a tens digit that is one too high. What helps depends on what is shown (the shares below):

- a careless answer is an anchor: asked to revise it, blindly or after the verdict "incorrect", it is repeated;
- a slip in careful work is repeated by a blind revision, and mended after "incorrect";
- "correct" keeps an answer. The model believes a verdict: in its lessons half of them are false;
- a fresh draft is a new throw of the dice.

So restarts pay, the verdict and the last response each carry a part, and successful contexts are better teachers than
failures. All this is so by construction: the bench shows what Algorithm 1 makes of it, not what a large model gains.
"""
import random
from dataclasses import dataclass

import prompts
from benches.files import SEED, sha256
from benches.problem import Problem


@dataclass(frozen=True)
class Shares:
    """Shares of careful demonstrations for one wording of the problem."""
    plain: float     # on the plain prompt, and so in a draft
    anchored: float  # as a revision of a careless answer
    unseen: float    # after a verdict on an answer that is not shown (ablation "without last response")


SHARES = {
    "Compute {a} + {b}.": Shares(plain=0.50, anchored=0.10, unseen=0.30),
    "What is {a} + {b}?": Shares(plain=0.25, anchored=0.03, unseen=0.10),
    "Quickly, what is {a} + {b}?": Shares(plain=0.15, anchored=0.01, unseen=0.06),
}
WORDINGS = tuple(SHARES)
SLIP = 1              # its place, the tens; one place, so that a tiny model learns how often it slips
SLIPS = 0.9           # of careful answers that are no revision of a careful one
STAYS_CAREFUL = 0.96  # of revisions of a careful answer
MENDS_BLINDLY = 0.05  # of those that see a slip and no verdict
MENDS = 0.95          # of those that see a slip and "incorrect"
KEEPS = 0.97          # of answers after "correct"
SLIPS_AGAIN = 0.4     # of those that are told "incorrect" of a right careful answer
ENDINGS = ("So the answer is", "This gives", "The sum is")
# Shares of the shapes of dialogues, those of the ablations of App. G.2 among them.
SHAPES = {"plain": 0.2, "restart": 0.27, "carry": 0.35, "no-response": 0.1, "last3": 0.08}


# ---------------------------------------------------------------------------------------------------------------------
# The bench


def split_of(a, b):
    """-> "test" | "train" | "pretrain": the set that two summands belong to, in either order."""
    number = int(sha256(f"{min(a, b)} + {max(a, b)}"), 16) % 64
    return {0: "test", 1: "train"}.get(number, "pretrain")


def load(split):
    """128 additions of two 3-digit numbers, made on the spot, the wordings in turn."""
    rng, problems = random.Random(f"{SEED} {split}"), {}
    while len(problems) < 128:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        name = f"arithmetic/{a}+{b}"
        if split_of(a, b) == split and name not in problems:
            wording = WORDINGS[len(problems) % len(WORDINGS)]
            problems[name] = problem(name, wording, a, b)
    return list(problems.values())


def problem(name, wording, a, b):
    return Problem(name, "arithmetic", wording.format(a=a, b=b), "math", str(a + b))


# ---------------------------------------------------------------------------------------------------------------------
# What the model is taught


@dataclass(frozen=True)
class Answer:
    """How an addition is demonstrated."""
    careful: bool
    slip: int | None = None  # the place (0: ones) of the digit that is one too high
    ending: int = 0          # of ENDINGS


def worked(a, b, answer):
    """The text of an answer, digit by digit from the right."""
    parts, total, carry = [], "", 0
    for place, (x, y) in enumerate(zip(reversed(str(a)), reversed(str(b)))):
        n = (int(x) + int(y) + carry + (place == answer.slip)) % 20  # 9+9+1 slips to 00: a sum keeps two digits
        parts.append(f"{x}+{y}+{carry}={n:02d}" if answer.careful else f"{x}+{y}={n % 10}")
        total = str(n % 10) + total
        carry = n // 10 if answer.careful else 0
    style = "with carries" if answer.careful else "digit by digit"
    return f"{a} + {b}, {style}: {', '.join(parts)}. {ENDINGS[answer.ending]} \\boxed{{{'1' * carry}{total}}}."


def first_try(rng, careful_share, slips=SLIPS):
    """An answer that nothing shown decides."""
    careful = rng.random() < careful_share
    slip = SLIP if careful and rng.random() < slips else None
    return Answer(careful, slip, rng.randrange(len(ENDINGS)))


def revised(rng, shares, shown, verdict):
    """The revision of the answer `shown`. verdict: 1, 0, or None for a blind one."""
    if verdict == 1 and rng.random() < KEEPS:
        return shown
    if not shown.careful:
        return first_try(rng, shares.anchored)
    if rng.random() >= STAYS_CAREFUL:
        return Answer(False, None, shown.ending)
    if shown.slip is None:  # right already: a verdict that says otherwise is believed
        slips = SLIPS_AGAIN if verdict == 0 else 0
        return Answer(True, SLIP if rng.random() < slips else None, shown.ending)
    mends = MENDS_BLINDLY if verdict is None else MENDS
    return Answer(True, None if rng.random() < mends else shown.slip, shown.ending)


def dialogue(rng, a, b):
    """One demonstration. -> messages with the taught answer last, {positions of the messages that are taught}.

    An answer that is shown is taught as well where it is what the plain prompt would have drawn. The others are drawn
    evenly, so that the model meets careful answers to a hard wording more often than it would give them.
    """
    wording = rng.choice(WORDINGS)
    shares, task = SHARES[wording], problem("", wording, a, b)
    shape = rng.choices(list(SHAPES), list(SHAPES.values()))[0]
    if shape == "plain":
        answer = first_try(rng, shares.plain)
        return [*prompts.opening(task, "qwen3"), prompts.assistant(worked(a, b, answer))], {1}
    if shape == "no-response":
        messages = prompts.carry_without_response(task, "qwen3", rng.randrange(2), "")
        return [*messages, prompts.assistant(worked(a, b, first_try(rng, shares.unseen)))], {1}
    drawn = shape != "last3" and rng.random() < 0.5
    shown = first_try(rng, shares.plain) if drawn else first_try(rng, 0.6, slips=0.6)
    text = worked(a, b, shown)
    if shape == "restart":
        messages, verdict = prompts.restart(task, "qwen3", text), None
    else:
        verdict = rng.randrange(2)  # true or not: it must be believed, not checked
        messages = prompts.carry(task, "qwen3", text, verdict, "", earlier_rounds(rng, a, b, shape))
    messages.append(prompts.assistant(worked(a, b, revised(rng, shares, shown, verdict))))
    return messages, {1, 3} if drawn else {len(messages) - 1}


def careful(rng, a, b):
    """The first lesson: a careful answer without a slip, whatever the wording."""
    task = problem("", rng.choice(WORDINGS), a, b)
    text = worked(a, b, first_try(rng, 1, slips=0))
    return [*prompts.opening(task, "qwen3"), prompts.assistant(text)], {1}


def mended(rng, a, b):
    """A test of the second one: a slip, the verdict "incorrect", and the same without the slip."""
    shown = Answer(True, SLIP)
    task = problem("", rng.choice(WORDINGS), a, b)
    messages = prompts.carry(task, "qwen3", worked(a, b, shown), 0, "")
    return [*messages, prompts.assistant(worked(a, b, Answer(True)))], {3}


def earlier_rounds(rng, a, b, shape):
    """One or two rounds before the shown one, for the ablation "last 3 rounds"."""
    if shape != "last3":
        return ()
    texts = [worked(a, b, first_try(rng, 0.5, slips=0.5)) for _ in range(rng.choice((1, 2)))]
    return [(text, verdict_on(text, a, b), "") for text in texts]


def verdict_on(text, a, b):
    return int(text.endswith(f"\\boxed{{{a + b}}}."))


def pair(rng, held_out=()):
    """Two numbers that neither a bench, in either order, nor `held_out` has."""
    while True:
        a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
        if split_of(a, b) == "pretrain" and (a, b) not in held_out:
            return a, b

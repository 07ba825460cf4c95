"""Flags that several scripts share: types for argparse, and how an update is made. Without torch: --help is quick."""
import argparse
import contextlib
import math
import sys
from dataclasses import dataclass

from common.errors import BadInput

# Those of loss.py, which loads torch; a test compares them.
DIVERGENCES = ("reverse_kl", "forward_kl", "jsd")


class HelpFormatter(argparse.HelpFormatter):
    """Shows the default of every flag whose help does not say it itself."""

    def _get_help_string(self, action):
        if action.default in (None, False, argparse.SUPPRESS) or "default" in action.help:
            return action.help
        # argparse fills it in.
        return f"{action.help} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """argparse's, but that a wrong flag is one sentence, without the list of all of them."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=HelpFormatter)

    def error(self, message):
        print(f"{self.prog}: {message}; --help lists the flags.", file=sys.stderr)
        sys.exit(2)


def positive_int(text):
    """argparse type: a whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def restart_interval(text):
    """argparse type: M, or "never"."""
    return text if text == "never" else positive_int(text)


def above_zero(text):
    """argparse type: a finite number above zero."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if 0 < number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text} is no finite number above 0")


def share(text):
    """argparse type: a number from 0 to 1."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no number from 0 to 1")


def cap(text):
    """argparse type: a finite number above zero, or inf."""
    return math.inf if text == "inf" else above_zero(text)


@dataclass(frozen=True)
class UpdateArgs:
    """How an update is made (section 2.3, App. B.4); the flags are those of `add_update_arguments`."""
    lr: float
    tau: float                     # cap of Eq. 2, inf for none
    divergence: str                # one of DIVERGENCES
    micro_tokens: int              # tokens of one pass, student and teacher together
    recompute_every: int | None    # recompute every Nth layer, 0: none; None: as few as fit
    max_grad_norm: float = 1.0


def add_update_arguments(parser, lr):
    """The flags of an update; its learning rate is `lr` by default."""
    add = parser.add_argument
    add("--tau", type=cap,
        help="cap of Eq. 2, inf for none (default: 1e-3 on math500, none elsewhere)")
    add("--divergence", choices=DIVERGENCES, default="reverse_kl", help="D of Eq. 2 (Table 6)")
    add_step_arguments(parser, lr)


def add_step_arguments(parser, lr=None):
    """The flags of an optimizer step on any loss; without `lr` its default depends on the split."""
    add = parser.add_argument
    add("--lr", type=above_zero, default=lr, help=f"learning rate (default: {lr or '1e-6; train: 1e-5'})")
    add("--micro-tokens", type=positive_int, default=16384,
        help="tokens of one forward and backward pass, student and teacher together")
    add("--grad-checkpoint-every", type=int, choices=range(0, 1000), metavar="N",
        help="recompute every Nth layer in the backward pass, 0: none (default: as few as fit)")


def update_args(args, temperature, bench):
    """-> UpdateArgs of the parsed flags; BadInput where there is nothing to learn from.

    temperature: the run's; bench: its name. --tau is by default 1e-3 on MATH, and no cap elsewhere (section 2.3).
    """
    if temperature == 0:
        raise BadInput("--temperature 0 leaves no distribution to distill: give one above 0.")
    tau = args.tau
    if tau is None:
        tau = 1e-3 if bench == "math500" else math.inf
    return UpdateArgs(args.lr, tau, args.divergence, args.micro_tokens, args.grad_checkpoint_every)

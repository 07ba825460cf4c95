"""Which method a run is: the key of the tables and of the paper's numbers. Its text is made when it is printed."""
from dataclasses import dataclass

# What LEAF is in the paper; a setting that differs makes another method. tau's usual value depends on the bench.
USUAL = {"memory": "leaf", "restart": 5, "tail": 2000, "compress": "tail", "update_every": None, "lr": 1e-6,
         "tau": None, "divergence": "reverse_kl"}


BASELINES = {"grpo": "GRPO", "sdpo": "SDPO", "score": "SCoRe", "seed": "SEED", "sft": "SFT"}  # of baselines/


@dataclass(frozen=True)
class Method:
    kind: str            # "leaf" | "random" | one of BASELINES
    changes: tuple = ()  # what of LEAF is changed (App. G.2, G.3): ((setting, its value as text), ...), as in USUAL
    folder: str = ""     # where its runs lie, if runs of the same method are compared with it

    def __str__(self):
        text = BASELINES.get(self.kind, "random sampling")
        if self.kind == "leaf":
            text = ", ".join(["LEAF", *(f"{setting} {value}" for setting, value in self.changes)])
        return f"{text} ({self.folder})" if self.folder else text


LEAF, RANDOM = Method("leaf"), Method("random")


def method_of(kind, settings):
    """-> Method of a run of `kind` (explore.py's --method) with the `settings` of its explore.json."""
    if kind != "leaf":
        return Method(kind)
    usual = USUAL | {"tau": 1e-3 if settings.get("bench") == "math500" else "inf"}
    changed = [name for name in usual if settings.get(name, usual[name]) != usual[name]]
    return Method("leaf", tuple((name, str(settings[name])) for name in changed))


def parsed(text):
    """-> Method that paper.csv writes as "random", "leaf" or "leaf memory=no-feedback"."""
    kind, *changes = text.split()
    return Method(kind, tuple(tuple(change.split("=")) for change in changes))


def baseline_of(settings):
    """The one of BASELINES whose run has these settings; None if it is LEAF's, or not known."""
    kind = "sft" if "rewrite" in settings else settings.get("method")
    return kind if kind in BASELINES else None

"""`python tiny.py --baselines`: every method on the tiny model at two learning rates, with its costs.

It shows that each baseline learns and what that costs here; it is no ranking. SEED is left out: a model of this size
cannot write a skill.
"""
import os

import distill
from baselines import grpo, score, sdpo, sft
from common.errors import read_jsonl
from report import measures

RATES = 3e-4, 1e-3
ONLINE = {"GRPO": grpo, "SDPO": sdpo, "SCoRe": score}
HONEST = (
    "What this shows: that each method learns here, and what it costs. What it does not show: a ranking. It is one "
    "model and one seed, and the two rates were not tuned.")


def compare(demo, command):
    """Run all methods, -> the rows of the table. demo: tiny.Demo; command(script, *flags): prints and runs it."""
    rows = [exploration(demo, "random sampling", "random", "base"), leaf_row(demo, "leaf", "LEAF 3e-4", "distilled")]
    for rate in RATES:
        name = f"{rate:g}"
        if rate != RATES[0]:       # tiny.py's own run has the other one
            train(demo, command, distill, f"leaf-{name}", rate, "leaf", "--batch", 128)
            rows.append(leaf_row(demo, "leaf", f"LEAF {name}", f"leaf-{name}"))
        for source, title in (("leaf", "SFT on LEAF's answers"), ("random", "the same on random sampling's (RFT)")):
            folder = f"sft-{source}-{name}"
            train(demo, command, sft, folder, rate, source, "--rewrite", 0)
            rows.append(sft_row(demo, source, f"{title} {name}", folder))
        for title, script in ONLINE.items():
            folder = f"{title.lower()}-{name}"
            command(script, "--bench", "arithmetic", "--split", "train", "--calls", 24, *demo.sampling(), "--lr", rate,
                    "--micro-tokens", 2048, "--out", demo.path(folder))
            demo.test(f"{folder}-test", "--adapter", demo.path(folder, "adapter"))
            rows.append(exploration(demo, f"{title} {name}", folder, f"{folder}-test"))
    return rows


def train(demo, command, script, folder, rate, source, *flags):
    command(script, "--cplus", demo.path(source, "cplus.jsonl"), "--lr", rate, "--micro-tokens", 2048,
            "--seed", demo.seed, *flags, "--out", demo.path(folder))
    demo.test(folder, "--adapter", demo.path(folder, "adapter"))


def exploration(demo, title, folder, test, more=(0, 0)):
    """A row: title, mean accuracy, pass@24, calls to random's pass rate, tokens forward and trained, GFLOPs, avg, pass.

    more: tokens of an update after the exploration, forward and trained.
    """
    run, level = demo.explored(folder), demo.explored("random").curves["pass"][-1]
    calls = next((k for k, rate in enumerate(run.curves["pass"], 1) if rate >= level), None)
    result = demo.test_result(test)
    forward = run.curves["all"][-1] + more[0]
    trained = run.curves.get("trained", [0])[-1] + more[1]
    gflops = 1e6 * measures.petaflops(run.parameters, forward, trained)
    return [title, run.curves["accuracy"][-1], run.curves["pass"][-1], calls, forward, trained, gflops, result["avg"],
            result["pass"]]


def leaf_row(demo, source, title, folder):
    forward, _, trained = measures.update_tokens(read_jsonl(demo.path(folder, "distill.jsonl")))
    return exploration(demo, title, source, folder, (forward, trained))


def sft_row(demo, source, title, folder):
    trained = sum(line["trained_tokens"] for line in read_jsonl(demo.path(folder, "sft.jsonl")))
    return exploration(demo, title, source, folder, (0, trained))


def markdown(rows):
    head = ["method, learning rate", "mean accuracy", "pass@24", "calls to random's pass rate", "forward tokens",
            "trained tokens", "GFLOPs", "avg@4, unseen", "pass@4, unseen"]
    lines = [" | ".join(head), "|".join(["---"] * len(head))]
    for title, accuracy, passed, calls, forward, trained, gflops, avg, best in rows:
        lines.append(f"{title} | {accuracy:.1%} | {passed:.1%} | {calls or '-'} | {forward:,} | {trained:,} "
                     f"| {gflops:,.0f} | {avg:.1%} | {best:.1%}")
    return "\n".join(f"| {line} |" for line in lines)


def draw(path, rows):
    """Accuracy on unseen problems against compute."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, panel = plt.subplots(figsize=(8, 4), layout="constrained")
    for number, (title, *_, gflops, avg, _) in enumerate(rows):
        panel.plot(gflops, 100 * avg, "os^vD<>PX*h"[number % 11], fillstyle="none", label=title)
    panel.set(xlabel="Compute (GFLOPs, updates included)", ylabel="avg@4 of unseen problems (%)")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=200)


def main(demo, command):
    rows = compare(demo, command)
    print(f"\n{HONEST}\n\n{markdown(rows)}")
    draw(demo.path("baselines.png"), rows)
    print(f"\nPlot: {os.path.normpath(demo.path('baselines.png'))}")

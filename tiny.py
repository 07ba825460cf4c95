"""The embedded default: a tiny model made on the spot, and the whole method on it, on a laptop.

    python tiny.py [--seed 1] [--out out/tiny]    # a model; explore, distill, evaluate; tables
    python tiny.py --ablations                    # explore with each ablation of App. G.2, G.3
    python tiny.py --seeds 5                      # the figures of five models

The model (benches/tiny_model.py) adds 3-digit numbers in two styles, and is taught to get stuck as
large models do by nature: benches/arithmetic.py says how, with every share. The rest are commands
of explore.py, distill.py and evaluate.py, printed before they are run.
"""
import dataclasses
import os
import time

import engines  # noqa: F401 (first: it sets how OpenMP threads wait, before torch is loaded)
import distill
import evaluate
import explore
from common import journal, outputs
from common.errors import exit_with_sentence, read_jsonl
from common.flags import Parser, positive_int
from report import curves, measures, page, plots, tokens

RECIPE = 2  # of the model and the commands: a folder that another one made is refused
MAX_TOKENS = 64  # response limit; a careful answer has about 40, a careless one about 30


# --------------------------------------------------------------------------------------------------
# The demo


def command(script, *flags):
    """Run a script's main() here, under the command line that does the same by itself."""
    flags = [str(flag) for flag in flags]
    print(f"\n$ python {script.__name__}.py {' '.join(flags)}", flush=True)
    script.main(flags)


@dataclasses.dataclass(frozen=True)
class Demo:
    """One model seed: its folder, and the flags that its commands share."""
    out: str
    seed: int

    def path(self, *names):
        return os.path.join(self.out, *names)

    def sampling(self):
        return "--model", self.path("model"), "--max-tokens", MAX_TOKENS, "--seed", self.seed

    def make_model(self):
        if not os.path.isdir(self.path("model")):
            from benches.tiny_model import pretrain
            pretrain(self.seed, self.path("model"))

    def explore(self, folder, *flags):
        command(explore, "--bench", "arithmetic", "--split", "train", "--calls", 24,
                *self.sampling(), *flags, "--out", self.path(folder))

    def test(self, name, *flags):
        command(evaluate, "--bench", "arithmetic", *self.sampling(), *flags,
                "--out", self.path(f"{name}.json"))

    def distill(self, traces, folder):
        # the learning rate suits a model of this size (the paper's is 1e-5), the short passes a CPU
        command(distill, "--cplus", self.path("leaf", "cplus.jsonl"), "--traces", traces,
                "--lr", 3e-4, "--micro-tokens", 2048, "--seed", self.seed,
                "--out", self.path(folder))
        self.test(folder, "--adapter", self.path(folder, "adapter"))

    def teach(self):
        command(evaluate, "--teacher", "--cplus", self.path("leaf", "cplus.jsonl"),
                "--traces", "success", "random", "failure", "--seed", self.seed,
                "--out", self.path("teacher.json"))

    def run(self):
        """The method, its baseline, and the control."""
        self.make_model()
        self.explore("random", "--method", "random")
        self.explore("leaf")
        self.teach()
        self.test("base")
        self.distill("success", "distilled")
        self.distill("failure", "failure")

    def explored(self, folder):
        return curves.read_run(self.path(folder, "rollouts.jsonl"))

    def test_result(self, name):
        """{"avg", "pass", "length", "problems"} of a test."""
        return journal.read_json(self.path(f"{name}.json"))["result"]

    def teacher_accuracy(self, traces):
        answers = read_jsonl(self.path("teacher.jsonl"))
        return measures.mean(r["correct"] for r in answers if r["traces"] == traces)


def sampled_tokens(run):
    """Tokens up to each step, without those of updates."""
    return [sum(tokens) for tokens in zip(*(run.curves[kind] for kind in measures.TOKENS))]


def cost(run, level):
    """Two cells: calls and tokens to a pass rate of `level`; the baseline's are those of its last
    point (Table 14)."""
    reached = [k for k, rate in enumerate(run.curves["pass"], 1) if rate >= level] or [None]
    k = reached[-1] if run.method.kind == "random" else reached[0]
    return f"{k} | {sampled_tokens(run)[k - 1]:,}" if k else "- | -"


def print_table(*header):
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")


def print_tables(demo):
    """What LEAF and random sampling found and at what cost, who teaches, what the update kept."""
    theirs, ours = demo.explored("random"), demo.explored("leaf")
    level = theirs.curves["pass"][-1]
    print_table(f"exploration, {len(theirs.attempts)} problems", "pass@1", "pass@24",
                "mean accuracy", f"calls to {level:.1%}", f"tokens to {level:.1%}")
    for run in (theirs, ours):
        first, *_, last = run.curves["pass"]
        print(f"| {run.method} | {first:.1%} | {last:.1%} | {run.curves['accuracy'][-1]:.1%} "
              f"| {cost(run, level)} |")
    print_table("the model on contexts that were", "teacher accuracy")
    for traces, title in (("success", "successful"), ("random", "successful, with another verdict"),
                          ("failure", "failures")):
        print(f"| {title} | {demo.teacher_accuracy(traces):.1%} |")
    tests = {"base": "before", "distilled": "after 20 steps on successful contexts",
             "failure": "control: on failure contexts"}
    unseen = demo.test_result("base")["problems"]
    print_table(f"plain prompt, {unseen} problems never seen", "avg@4", "pass@4",
                "tokens per answer")
    for name, title in tests.items():
        test = demo.test_result(name)
        print(f"| {title} | {test['avg']:.1%} | {test['pass']:.1%} | {test['length']:.0f} |")


def print_compute(demo, seconds):
    """What the demo computed, and how fast this processor is, to judge one's own time by."""
    pretraining = journal.read_json(demo.path("model", "pretraining.json"))["flops"]
    runs = demo.explored("random"), demo.explored("leaf")
    explored = 1e15 * sum(run.curves["petaflops"][-1] for run in runs)
    import torch
    a, count = torch.randn(1024, 1024), 8
    a @ a  # the first product also wakes the threads
    begin = time.time()
    for _ in range(count):
        a @ a
    speed = count * 2 * 1024 ** 3 / (time.time() - begin)
    print(f"\n{seconds:.0f} s in all. Pretraining took {pretraining / 1e9:,.0f} GFLOPs, the two "
          f"explorations {explored / 1e9:,.0f}; this processor multiplies float32 matrices at "
          f"{speed / 1e9:,.0f} GFLOP/s.")


# --------------------------------------------------------------------------------------------------
# The ablations: App. G.2 and G.3, Tables 25 and 26, Fig. 4

# a tenth of the learning rate of the distillation, as in the paper
UPDATES = ("--lr", 3e-5, "--micro-tokens", 2048, "--update-every")
ABLATIONS = {
    "random": ("random sampling", "--method", "random"),
    "leaf": ("LEAF",),
    "no-feedback": ("without feedback", "--memory", "no-feedback"),
    "no-response": ("without last response", "--memory", "no-response"),
    "last3": ("last 3 rounds", "--memory", "last3"),
    "restart2": ("restart every 2", "--restart", 2),
    "restart10": ("restart every 10", "--restart", 10),
    "never": ("no restart", "--restart", "never"),
    "update1": ("update every step", *UPDATES, 1),
    "update2": ("update every 2", *UPDATES, 2),
    "update5": ("update every 5", *UPDATES, 5),
}


def ablate(demo):
    """Explore with each ablation, print the table, draw OUT/ablations.png."""
    demo.make_model()
    for folder, (_, *flags) in ABLATIONS.items():
        demo.explore(folder, *flags)
    level, points = demo.explored("random").curves["pass"][-1], {}
    print_table("128 problems, 24 calls each", "mean accuracy", "pass@24", f"calls to {level:.1%}",
                f"tokens to {level:.1%}", "tokens sampled and read", "GFLOPs, updates included")
    for folder, (title, *_) in ABLATIONS.items():
        run = demo.explored(folder)
        accuracy, rate = run.curves["accuracy"][-1], run.curves["pass"][-1]
        gflops = 1e6 * run.curves["petaflops"][-1]
        points[title] = gflops, accuracy, rate
        print(f"| {title} | {accuracy:.1%} | {rate:.1%} | {cost(run, level)} "
              f"| {sampled_tokens(run)[-1]:,} | {gflops:,.0f} |")
    draw_ablations(demo.path("ablations.png"), points)


def draw_ablations(path, points):
    """Fig. 4: pass rate, accuracy against compute. points: {title: (GFLOPs, accuracy, rate)}."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    colours = {"random sampling": "#D55E00", "LEAF": "black"}
    for title, marker, (compute, *heights) in zip(points, "os^vD<>PX*h", points.values()):
        for panel, height in zip(panels, reversed(heights)):
            panel.plot(compute, 100 * height, marker, color=colours.get(title, "#0072B2"),
                       label=title, fillstyle="none")  # some coincide
    for panel, name in zip(panels, ("Pass rate after 24 calls (%)", "Mean accuracy (%)")):
        panel.set(xlabel="Compute (GFLOPs)", ylabel=name)
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=200, metadata={"Title": outputs.MARK})


def draw(demo):
    """The curves, and two pages: the attempts, and what the contexts taught, token by token."""
    files = [demo.path(method, "rollouts.jsonl") for method in ("leaf", "random")]
    plots.draw(demo.path("curve.png"), [curves.read_group([file]) for file in files])
    page.write_runs(demo.path("run.html"), files)
    tokens.write_page(demo.path("tokens.html"), demo.path("distilled"))
    print(f"\nTo look at: {demo.path('curve.png')}, {demo.path('run.html')}, "
          f"{demo.path('tokens.html')}\n"
          f"All measures: python evaluate.py --rollouts {files[0]} --versus {files[1]}")


# --------------------------------------------------------------------------------------------------
# Several models

COMPARED = "random", "leaf", "no-feedback", "no-response", "restart2", "never"


def results(demo):
    """{name: share} of one model: the rows of the table over seeds."""
    found = {}
    for folder in COMPARED:
        title, run = ABLATIONS[folder][0], demo.explored(folder)
        found[f"{title}: pass@24"] = run.curves["pass"][-1]
        found[f"{title}: mean accuracy"] = run.curves["accuracy"][-1]
    for traces in ("success", "random", "failure"):
        found[f"teacher accuracy: {traces}"] = demo.teacher_accuracy(traces)
    for name, title in (("base", "before"), ("distilled", "after successful contexts"),
                        ("failure", "after failure contexts")):
        found[f"avg@4 of unseen problems: {title}"] = demo.test_result(name)["avg"]
    return found


def run_seeds(out, count):
    """Every figure of the demo and of four ablations for `count` models: mean and range."""
    seeds = []
    for seed in range(1, count + 1):
        demo = Demo(os.path.join(out, f"seed_{seed}"), seed)
        demo.run()
        for folder in COMPARED[2:]:  # the demo has made the first two
            demo.explore(folder, *ABLATIONS[folder][1:])
        seeds.append(results(demo))
    print_table(f"{count} models", "mean", "lowest", "highest")
    for name in seeds[0]:
        values = [found[name] for found in seeds]
        print(f"| {name} | {measures.mean(values):.1%} | {min(values):.1%} | {max(values):.1%} |")
    journal.write_json(os.path.join(out, "seeds.json"), {"seeds": seeds})


def claim_outputs(args):
    """BadInput where something in --out is not tiny.py's own; its commands look after theirs."""
    if args.seeds:
        path = os.path.join(args.out, "seeds.json")
        outputs.claim("--out", [path], [], lambda _: "seeds" in (outputs.load_json(path) or {}))
    else:
        written = ("model", "curve.png", "ablations.png")
        outputs.claim_run(args.out, "tiny.json", written, [])


def main(argv=None):
    parser = Parser(
        description="Make a tiny model and run the whole method on it.")
    add = parser.add_argument
    add("--seed", type=positive_int, default=1, help="of the model and of the runs")
    add("--out", default=os.path.join("out", "tiny"), help="folder of all that is made")
    add("--ablations", action="store_true",
        help="explore with each ablation of App. G.2 and G.3 instead")
    add("--seeds", type=positive_int, metavar="N",
        help="the demo and four ablations for seeds 1..N, each in OUT/seed_K (default: one demo)")
    args = parser.parse_args(argv)
    begin, demo = time.time(), Demo(args.out, args.seed)
    claim_outputs(args)
    with journal.lock(args.out):
        if args.seeds:
            run_seeds(args.out, args.seeds)
            return
        journal.keep_settings(demo.path("tiny.json"), {"seed": args.seed, "recipe": RECIPE})
        if args.ablations:
            ablate(demo)
            print(f"\nPlot: {demo.path('ablations.png')}   {time.time() - begin:.0f} s in all")
            return
        demo.run()
        print_tables(demo)
        print_compute(demo, time.time() - begin)
        draw(demo)


if __name__ == "__main__":
    exit_with_sentence(main)

"""Fig. 3 of the paper for any two methods."""
from common.outputs import MARK
from report import measures
from report.curves import mean_curves

# A colour (of Okabe and Ito), a dash and a marker for each method: they differ in print and for the colour-blind.
STYLES = ("#0072B2", "-", "o"), ("#D55E00", "--", "s")


def draw(path, groups):
    """Fig. 3, the pass rate against calls, compute and GPU time (mean over seeds, a band from the lowest to the
    highest), and accuracy against length, a point for each run. Without explore.json: tokens, not compute and time."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    means = [mean_curves(group.curves) for group in groups]
    axes = {"calls": "Verifier calls per problem"}
    if all("petaflops" in mean for mean in means):
        axes |= {"petaflops": "Compute (PFLOPs)", "hours": "GPU time (hours)"}
    else:
        axes |= {"all": "Tokens processed"}
    rows, columns = (2, 2) if len(axes) == 3 else (1, 3)
    figure, panels = plt.subplots(rows, columns, figsize=(3.8 * columns, 3.0 * rows), layout="constrained")
    *panels, lengths = panels.flat
    for panel, (name, title) in zip(panels, axes.items()):
        draw_pass_rates(panel, groups, means, name)
        panel.set_xlabel(title)
    draw_lengths(lengths, groups)
    for panel in (*panels, lengths):
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize="small")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(groups))
    if (seeds := len(groups[0].curves)) > 1:
        note = f"Lines: mean of {seeds} seeds. Bands: lowest to highest. Points: single runs."
        figure.supxlabel(note, fontsize="small")
    figure.savefig(path, dpi=200, metadata={"Title": MARK})


def draw_pass_rates(panel, groups, means, name):
    """The pass rate of each group against the curve `name`; `means`: the mean curves of the groups."""
    for group, mean, (colour, dash, marker) in zip(groups, means, STYLES):
        rates = [[100 * rate for rate in step] for step in zip(*(curves["pass"] for curves in group.curves))]
        rates = rates[:len(mean["calls"])]
        middle = [measures.mean(step) for step in rates]
        low, high = [min(step) for step in rates], [max(step) for step in rates]
        panel.plot(mean[name], middle, dash, marker=marker, markersize=3.5, color=colour, label=str(group.method))
        panel.fill_between(mean[name], low, high, color=colour, alpha=0.2, linewidth=0)
    panel.set_ylabel("Cumulative pass rate (%)")
    if name in ("all", "petaflops"):
        use_log_axis(panel)
    else:
        panel.locator_params(axis="x", nbins=6)


def use_log_axis(panel):
    from matplotlib.ticker import LogLocator, NullFormatter
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    # matplotlib's own labels overlap where the axis is about a decade long
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())


def draw_lengths(panel, groups):
    """Mean accuracy against mean length at the end of each run."""
    for group, (colour, _, marker) in zip(groups, STYLES):
        ends = [run.curves for runs in group.runs.values() for run in runs]
        lengths = [curves["length"][-1] for curves in ends]
        accuracies = [100 * curves["accuracy"][-1] for curves in ends]
        panel.plot(lengths, accuracies, linestyle="", marker=marker, color=colour)
    panel.set(xlabel="Mean length (tokens per answer)", ylabel="Mean accuracy (%)")
    panel.locator_params(axis="x", nbins=4)
    panel.margins(0.15)

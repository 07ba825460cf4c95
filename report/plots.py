"""Fig. 3 of the paper for any two methods."""
from report import measures
from report.curves import mean_curves


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
    # A colour (of Okabe and Ito), a dash and a marker for each method: they differ in print and for the colour-blind.
    for group, mean, colour, dash, marker in zip(groups, means, ("#0072B2", "#D55E00"), ("-", "--"), ("o", "s")):
        rates = [[100 * c["pass"][k] for c in group.curves] for k in range(len(mean["calls"]))]
        low, middle, high = ([statistic(values) for values in rates] for statistic in (min, measures.mean, max))
        style = {"color": colour, "marker": marker, "label": group.method}
        for panel, (name, title) in zip(panels, axes.items()):
            panel.plot(mean[name], middle, dash, markersize=3.5, **style)
            panel.fill_between(mean[name], low, high, color=colour, alpha=0.2, linewidth=0)
            panel.set(xlabel=title, ylabel="Cumulative pass rate (%)")
            if name in ("all", "petaflops"):
                panel.set_xscale("log")
            else:
                panel.locator_params(axis="x", nbins=6)
        ends = [run.curves for runs in group.runs.values() for run in runs]
        lengths.plot([c["length"][-1] for c in ends], [100 * c["accuracy"][-1] for c in ends], linestyle="", **style)
    lengths.set(xlabel="Mean length (tokens per answer)", ylabel="Mean accuracy (%)")
    lengths.locator_params(axis="x", nbins=4)
    lengths.margins(0.15)
    for panel in (*panels, lengths):
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize="small")
        if panel.get_xscale() == "log":  # matplotlib's own labels overlap where the axis is about a decade long
            low, high = panel.get_xlim()
            panel.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
            panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            panel.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(groups))
    if (seeds := len(groups[0].curves)) > 1:
        figure.supxlabel(f"Lines: mean of {seeds} seeds. Bands: lowest to highest. Points: single runs.",
                         fontsize="small")
    figure.savefig(path, dpi=200)

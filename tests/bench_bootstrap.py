"""Coverage of the bootstrap intervals of paired repeat rates (Table 8) on simulated problems. By hand: python tests/bench_bootstrap.py

Each problem has its own chance to repeat an error under either condition and a few transitions under both; the true difference
is known. A 95% interval should hold it in about 95 of 100 simulations, a little less often for few problems.
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
import measures

SIMULATIONS, DRAWS = 500, 1000
TRUE = 0.5 - 0.35  # means of Beta(1, 1) and Beta(0.7, 1.3)


def simulate(problems, rng):
    """One comparison: two transition tables over the same problems, 1 to 12 transitions each."""
    tables = []
    for a, b in ((1.0, 1.0), (0.7, 1.3)):
        chance = rng.beta(a, b, size=problems)
        tables.append({p: [("x", rng.random() < chance[p], False) for _ in range(rng.integers(1, 13))] for p in range(problems)})
    return tables


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    usual = measures.bootstrap_interval
    measures.bootstrap_interval = lambda differences: usual(differences, draws=DRAWS, seed=int(rng.integers(2**31)))
    print(f"{SIMULATIONS} simulations, {DRAWS} resamples, true difference {100 * TRUE:.0f} pp")
    print("| problems | coverage (%) | mean width (pp) |\n| --- | --- | --- |")
    for problems in (10, 30, 72, 115, 148):
        intervals = [measures.paired_rates(*simulate(problems, rng))["repeat"][3] for _ in range(SIMULATIONS)]
        hits = sum(low <= TRUE <= high for low, high in intervals)
        print(f"| {problems} | {100 * hits / SIMULATIONS:.1f} | {100 * np.mean([high - low for low, high in intervals]):.1f} |", flush=True)

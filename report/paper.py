"""The paper's own numbers, read from paper.csv: what evaluate.py --paper shows below a run's, in the same columns.

A line is a table, its keys (model, bench, method or policy or traces, and what it is compared with), and the cells of
the row; % unless said otherwise; an empty cell is not given. Exploration and tests are means of three seeds, the rest
single runs. The benches of training sets have the names that tables.py gives them, such as "math500 (train)".

    exploration      Tables 11 and 13, 22 and 23, 25; 20: steps, mean accuracy, pass@k, tokens processed in M (Table 13
                     calls them generated, but they are PFLOPs / 2 N; Table 25 counts others, left out), PFLOPs, GPU
                     hours, tokens per answer
    repeats          Table 7: wrong answers, repeats
    paired           Table 8, LEAF against another memory: problems; repeats: LEAF, theirs, difference, from, to; fixes
    pooled           Table 9, a memory against random sampling: transitions, repeats, base frequency, ratio
    tests            Tables 18 and 21: problems, avg@4, pass@4, tokens per answer, truncated, verifier faults
    update           Table 19: forward and trained tokens, PFLOPs, GPU hours
    traces           Table 27: problems; successful, failure contexts per problem; plain prompt; random, from other
                     problems, restart
    teacher          Tables 5 and 29: problems, teacher accuracy
    correction       Table 28, the base model's rows: wrong to right, right to wrong, repeat, restart, mean
    internalization  Table 32: problems, base, update, rollout, relative gain
"""
import csv
import os

QWEN, OLMO = "Qwen3-8B", "Olmo-3-7B-Instruct"
BENCHES = "math500", "lcb", "mbpp", "sciknoweval"
TRAIN = "lcb (train)", "math500 (train)", "sciknoweval (train)"


def number(text):
    """A cell; None where it is empty."""
    return None if not text else float(text) if "." in text else int(text)


def read(table):
    """{the keys of a line of this table: its cells}."""
    with open(os.path.join(os.path.dirname(__file__), "paper.csv"), newline="") as file:
        lines = [line for line in csv.reader(file) if line[0] == table]
    return {tuple(filter(None, line[1:5])): tuple(map(number, line[5:])) for line in lines}


EXPLORATION = {key: (str(steps), *cells) for key, (steps, *cells) in read("exploration").items()}
REPEATS, TESTS, UPDATE, TRACES, TEACHER, CORRECTION, INTERNALIZATION = map(
    read, ("repeats", "tests", "update", "traces", "teacher", "correction", "internalization"))
PAIRED, POOLED = {}, {}  # by the methods that are compared
for (*key, ours, theirs), cells in read("paired").items():
    PAIRED.setdefault((ours, theirs), {})[tuple(key)] = cells
for (*key, ours), cells in read("pooled").items():
    POOLED.setdefault(ours, {})[tuple(key)] = cells

# Table 3: LEAF's length / that of random sampling, and its gain in pass rate, from the above and in the mean.
LENGTHS = {
    (model, bench): (leaf[-1] / EXPLORATION[model, bench, "random sampling"][-1],
                     leaf[2] - EXPLORATION[model, bench, "random sampling"][2])
    for (model, bench, method), leaf in EXPLORATION.items() if method == "LEAF"}
MEAN_LENGTH = (1.17, 4.88)
# App. D.1: calls of random sampling / calls of LEAF, mean curve over both models and the four BENCHES. (Table 14 itself
# compares with SCoRe.)
CALLS_SPEED_UP = 4.07

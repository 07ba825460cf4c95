"""The paper's own numbers, read from paper.csv: what evaluate.py --paper shows below a run's, in the same columns.

A line is a table, its keys (model, bench, method or policy or traces, and what it is compared with), and the cells of
the row; % unless said otherwise; an empty cell is not given. Exploration and tests are means of three seeds, the rest
single runs. The benches of training sets have the names that tables.py gives them, such as "math500 (train)".

    exploration      Tables 11 and 13, 22 and 23, 25; 20: steps, mean accuracy, pass@k, tokens processed in M (Table 13
                     calls them generated, but they are PFLOPs / 2 N; Table 25 counts others, left out), PFLOPs, GPU
                     hours, tokens per answer. A step of SEED's is 16 where a seed's MATH run was cut
    repeats          Table 7: wrong answers, repeats
    paired           Table 8, LEAF against another memory: problems; repeats: LEAF, theirs, difference, from, to; fixes
    pooled           Table 9, a memory against random sampling: transitions, repeats, base frequency, ratio
    tests            Tables 18 and 21 (a baseline's adapter by its name): problems, avg@4, pass@4, tokens per answer,
                     truncated, verifier faults
    update           Table 19, likewise: forward and trained tokens, PFLOPs, GPU hours
    traces           Table 27: problems; successful, failure contexts per problem; plain prompt; random, from other
                     problems, restart
    teacher          Tables 5 and 29: problems, teacher accuracy
    correction       Table 28, the base model's rows and SFT's: wrong to right, right to wrong, repeat, restart, mean
    internalization  Table 32: problems, base, update, rollout, relative gain
"""
import csv
import os

from report.method import LEAF, RANDOM, parsed

QWEN, OLMO = "Qwen3-8B", "Olmo-3-7B-Instruct"
BENCHES = "math500", "lcb", "mbpp", "sciknoweval"
OF_METHODS = "exploration", "paired", "pooled", "correction"  # tables whose third and fourth keys are methods


def number(text):
    """A cell; None where it is empty."""
    if not text:
        return None
    if "/" in text:                # the seeds differ: steps
        return text
    return float(text) if "." in text else int(text)


def read(table):
    """{the keys of a line of this table: its cells}."""
    path = os.path.join(os.path.dirname(__file__), "paper.csv")
    with open(path, newline="") as file:
        lines = [line for line in csv.reader(file) if line[0] == table]
    numbers = {}
    for _, model, bench, *others in lines:
        names = [text for text in others[:2] if text]
        if table in OF_METHODS:
            names = [parsed(text) for text in names]
        numbers[model, bench, *names] = tuple(map(number, others[2:]))
    return numbers


def by_methods(table):
    """{the methods that are compared: {(model, bench): cells}}."""
    numbers = {}
    for (model, bench, *methods), cells in read(table).items():
        numbers.setdefault(tuple(methods), {})[model, bench] = cells
    return numbers


def against_random():
    """Table 3: LEAF's length / that of random sampling, and its gain in pass rate, from Tables 11 and 20."""
    numbers = {}
    for (model, bench, method), leaf in EXPLORATION.items():
        if method == LEAF:
            independent = EXPLORATION[model, bench, RANDOM]
            numbers[model, bench] = leaf[-1] / independent[-1], leaf[2] - independent[2]
    return numbers


EXPLORATION = {key: (str(steps), *cells) for key, (steps, *cells) in read("exploration").items()}
REPEATS, TESTS, UPDATE, TRACES = read("repeats"), read("tests"), read("update"), read("traces")
TEACHER, CORRECTION, INTERNALIZATION = read("teacher"), read("correction"), read("internalization")
PAIRED, POOLED = by_methods("paired"), by_methods("pooled")
LENGTHS, MEAN_LENGTH = against_random(), (1.17, 4.88)
# App. D.1: calls of random sampling / calls of LEAF, mean curve over both models and the four BENCHES. (Table 14 itself
# compares with SCoRe.)
CALLS_SPEED_UP = 4.07

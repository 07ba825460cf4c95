"""evaluate.py --tables: what the paper's tables say of all that has ended in a folder.

found.py finds the runs, updates and tests, and says which are seeds of one method.
"""
import dataclasses
import os
import re
from collections import Counter

import report
from common import journal
from common.errors import BadInput, read_jsonl
from report import curves, paper, tables, tests
from report.curves import DECODING
from report.found import cells, common_seeds, find
from report.measures import mean, over_seeds
from report.method import LEAF
from report.tables import Table, percent, runs_of, with_faults

BEHAVIOUR = ", with the paper's behaviour pass"  # the stages of tables.cost_table that count as the paper does


def main(folder, out, show_paper):
    """Print the tables of `folder`, and write them into the file `out`. Errors: BadInput, if there is none."""
    notes = []
    runs, updates, tested, stored = find(folder, notes)
    pairs = [*exploration_tables(runs, notes), *training_tables(runs, updates, notes), *test_tables(tested, notes),
             *stored]
    pairs = [(table, numbers) for table, numbers in pairs if table.rows]
    if not pairs:
        reasons = "".join(f" {note}" for note in notes)
        raise BadInput(f"{folder} holds no run and no test that has ended: name a folder of finished ones.{reasons}")
    made_by = [(item.model, item.bench, item.content.settings) for item in runs]
    made_by += [(item.model, item.bench, item.content["settings"]) for item in tested]
    journal.write_json(out, report.print_tables(pairs, show_paper, made_by))
    print("\n" + "".join(f"Note: {note}\n" for note in notes) + not_made(pairs) + f"\nNumbers: {out}")


# What else would have to be there for a table of the paper.
NEEDS = {"3 (a)": "two methods", "3 (b)": "tests of the base model and an adapter", "7": "random sampling",
         "8": "LEAF and another memory", "9": "LEAF and random sampling", "11": "explorations",
         "14": "LEAF and SCoRe or random sampling", "15": "a cplus.jsonl of a training set",
         "16": "SFT with rewriting", "18": "tests", "19": "updates", "27": "--teacher",
         "28": "LEAF on a training set", "29": "--teacher", "32": "--internalization"}


def not_made(pairs):
    """The line on the tables of the paper that nothing here makes."""
    number = r"\d+(?: \([ab]\))?"
    lists = [re.findall(rf"Tables? ({number}(?:(?:, | and ){number})*)", table.title) for table, _ in pairs]
    made = {name for found in lists for names in found for name in re.split(", | and ", names)}
    missing = [f"{name} ({need})" for name, need in NEEDS.items() if name not in made]
    return f"Not made, for want of what is in brackets: Tables {', '.join(missing)}." if missing else ""


# ---------------------------------------------------------------------------------------------------------------------
# Explorations


def exploration_tables(runs, notes):
    """Those of each split, as tables.py makes them, and Table 12."""
    pairs = []
    for suffix in ("", " (train)"):
        by_method, by_model = {}, {}
        for run in (item.content for item in runs if item.bench.endswith(" (train)") == bool(suffix)):
            by_method.setdefault(run.method, []).append(run)
            by_model.setdefault((run.model, run.method), []).append(run)
        singles = [one for part in by_model.values() for one in groups(part, notes)]
        pairs += [(results(singles, means_of_models(by_method, notes), suffix), paper.EXPLORATION),
                  (with_faults(seed_table(singles, suffix), runs_of(singles)), {})]
        pairs += [(with_faults(tables.repeat_table(one), runs_of([one])), paper.REPEATS)
                  for one in singles if one.method.kind == "random"]
        pairs += [(table, {}) for ours, theirs in compared(by_method) for table in comparison(
            by_method[ours], by_method[theirs], suffix, notes)]
    return pairs


def grouped(runs):
    """curves.group_of of copies, as it cuts the curves of its runs."""
    return curves.group_of([dataclasses.replace(run) for run in runs])


def groups(runs, notes):
    """One Group of the runs of a method, or one of each bench where the seeds do not match."""
    try:
        return [grouped(runs)]
    except BadInput as error:
        notes.append(f"{runs[0].model}, {runs[0].method}: {error}")
    parts = {}
    for run in runs:
        parts.setdefault((run.model, run.bench), []).append(run)
    return [grouped(part) for part in parts.values()]


def means_of_models(by_method, notes):
    """The Groups of the methods that several models have (Tables 1, 4 and 26); a merged one is another policy."""
    found = []
    for method, runs in by_method.items():
        runs = [run for run in runs if not run.model.endswith("merged")]
        if len({run.model for run in runs}) > 1:
            try:
                found.append(grouped(runs))
            except BadInput as error:
                notes.append(f"{method}, all models: {error}")
    return found


def results(singles, wholes, suffix):
    """tables.result_table, each model by itself, then all models together."""
    rows, columns = [], []
    for one in singles:
        table = tables.result_table([one])
        model, columns = next(iter(one.runs))[0], table.columns
        rows += [[model, *row[1:]] for row in table.rows]
    rows += [tables.result_table([whole]).rows[-1] for whole in wholes]
    return Table(f"Explorations{suffix} at the last step; all: rates averaged, costs added up over benches, both "
                 "averaged over models (Tables 1, 4, 11, 13, 20, 22, 23, 25 and 26)", columns, rows)


def seed_table(singles, suffix):
    """Table 12: the pass rate of each seed over all benches, and what they cost."""
    rows, all_seeds = [], sorted({run.seed for one in singles for runs in one.runs.values() for run in runs})
    for one in singles:
        (model, bench), runs = next(iter(one.runs.items()))
        rates = {run.seed: 100 * curve["pass"][-1] for run, curve in zip(runs, one.curves)}
        costs = [over_seeds([curve[name][-1] for curve in one.curves]) for name in ("petaflops", "hours")]
        rows.append([model, "all" if len(one.runs) > 1 else bench, one.method, *map(rates.get, all_seeds),
                     over_seeds(list(rates.values())), *costs])
    return Table(f"pass@k{suffix} of each seed, and cost (Table 12)",
                 ["model", "bench", "method", *(f"seed {seed} (%)" for seed in all_seeds), "all seeds (%)", "PFLOPs",
                  "GPU hours"], rows)


def compared(by_method):
    """The pairs of methods that the paper compares: all with random sampling, LEAF with its own changes and SCoRe."""
    for ours in by_method:
        for theirs in by_method:
            is_leaf = dataclasses.replace(ours, folder="") == LEAF and ours != theirs
            if theirs.kind == "random" != ours.kind or is_leaf and theirs.kind in ("leaf", "score"):
                yield ours, theirs


def comparison(ours, theirs, suffix, notes):
    """Tables 3 (a), 8, 9 and 14 of two methods' runs, over the models, benches and seeds that both have."""
    keys = [{(run.model, run.bench, run.seed) for run in runs} for runs in (ours, theirs)]
    shared = keys[0] & keys[1]
    try:
        if not shared:
            raise BadInput("they share no model, bench and seed.")
        ours, theirs = (grouped([run for run in runs if (run.model, run.bench, run.seed) in shared])
                        for runs in (ours, theirs))
        for key in ours.runs:
            curves.check_alike(ours.runs[key][0], theirs.runs[key][0], DECODING)
    except BadInput as error:
        notes.append(f"{ours[0].method} is not compared with {theirs[0].method}: {error}")
        return []
    kinds, made = (ours.method.kind, theirs.method.kind), []
    if kinds[0] == "leaf" != kinds[1]:
        made.append(tables.speed_table(ours, theirs))
    if kinds[1] == "random":
        table = tables.length_table(ours, theirs)
        made.append(dataclasses.replace(table, title=table.title.replace("Table 3", "Table 3 (a)")))
    if kinds == ("leaf", "leaf"):
        made.append(tables.paired_table(ours, theirs))
    elif kinds == ("leaf", "random"):
        made.append(tables.pooled_table(ours, theirs))
    seeds = ", ".join(map(str, sorted({seed for *_, seed in shared})))
    made = [dataclasses.replace(table, title=f"{table.title}{suffix}, seeds {seeds}") for table in made]
    return [with_faults(table, runs_of([ours, theirs])) for table in made]


# ---------------------------------------------------------------------------------------------------------------------
# Training


def training_tables(runs, updates, notes):
    return [(cplus_table(runs), {}), (total_table(updates, notes), {}), (rewrite_table(updates), {}),
            (trained_table(runs), paper.CORRECTION)]


def cplus_table(runs):
    """Table 15."""
    rows = []
    for (model, method), benches in cells(runs).items():
        for bench, seeds in benches.items():
            paths = [os.path.join(os.path.dirname(run.path), "cplus.jsonl") for run in seeds.values()]
            if not bench.endswith(" (train)") or not all(map(os.path.isfile, paths)):
                continue
            lines = [read_jsonl(path) for path in paths]
            solved = [len({line["problem"] for line in of_seed}) for of_seed in lines]
            rows.append([model, bench, method, len(next(iter(seeds.values())).attempts), over_seeds(solved),
                         over_seeds(list(map(len, lines)))])
    return Table("Training sets and what the exploration found for them (Table 15)",
                 ["model", "bench", "method", "problems", "with a context in C+", "pairs in C+"], rows)


def total_table(updates, notes):
    """Tables 2 and 19: the costs of each stage, added up over the training sets of a seed."""
    rows = []
    for (model, policy), benches in cells(updates).items():
        seeds = common_seeds(benches, [model, policy], notes)
        for name, parts in with_totals(next(iter(next(iter(benches.values())).values()))).items():
            totals = [added_up(content[seed][part] for content in benches.values() for part in parts)
                      for seed in seeds]
            if totals:
                petaflops, hours = map(over_seeds, zip(*totals))
                rows.append([model, policy, name, " + ".join(benches), len(seeds), petaflops, hours])
    return Table("Cost of training, added up over training sets (Tables 2, 19 and 31)",
                 ["model", "policy", "stage", "training sets", "seeds", "PFLOPs", "GPU hours"], rows)


def with_totals(stages):
    """{name: the stages that it adds up}: each stage alone, then all of them, in both accounts of an update."""
    ours = [stage for stage in stages if not stage.endswith(BEHAVIOUR)]
    papers = [stage for stage in stages if stage + BEHAVIOUR not in stages]
    sums = {stage: [stage] for stage in stages}
    if len(ours) > 1:
        sums["all stages"] = ours
        if papers != ours:
            sums[f"all stages{BEHAVIOUR}"] = papers
    return sums


def added_up(costs):
    """(PFLOPs, GPU hours) of several."""
    return tuple(map(sum, zip(*costs)))


def rewrite_table(updates):
    """Table 16. A pair is kept in the round whose rewriting is right and whole."""
    sft = [item for item in updates if os.path.basename(item.path) == "sft.json"]
    statistics = [dataclasses.replace(item, content=rewriting(item)) for item in sft]
    rows = []
    for (model, method), benches in cells(statistics).items():
        for bench, seeds in benches.items():
            columns = zip(*(seeds[seed] for seed in seeds if seeds[seed]))
            rows += [[model, bench, method, *map(over_seeds, columns)]] if any(seeds.values()) else []
    return Table("Rewritten answers that SFT learns from (Table 16)",
                 ["model", "bench", "policy", "pairs", "kept", "dropped", *(f"kept in round {i}" for i in range(1, 6)),
                  "tokens per kept answer", "truncated (%)", "GPU hours"], rows)


def rewriting(item):
    """The cells of a row of Table 16 for one run; None, if nothing was rewritten."""
    path = os.path.join(os.path.dirname(item.path), "rewrites.jsonl")
    lines = read_jsonl(path, torn_ok=True) if os.path.isfile(path) else []
    if not lines:
        return None
    pairs = {(line["problem"], line["step"]) for line in lines}
    right = [line for line in lines if line["correct"] and not line["truncated"]]
    rounds = Counter(line["round"] for line in right)
    return [len(pairs), len(right), len(pairs) - len(right), *(rounds[i] for i in range(1, 6)),
            mean(line["completion_tokens"] for line in right), percent(mean(line["truncated"] for line in lines)),
            item.content["rewriting"][-1]]


def trained_table(runs):
    """Table 28: LEAF on a training set, before and after an update: on the problems of the C+ that it learnt from."""
    rows, by_key = [], {}
    for item in runs:
        if item.bench.endswith(" (train)") and item.content.method.kind == "leaf":
            cplus = cplus_of(item.content)
            if os.path.isfile(cplus):
                by_key.setdefault((item.model, item.bench, item.content.method), []).append((item.content, cplus))
    for key, found in by_key.items():
        learnt = [(run, {line["problem"] for line in read_jsonl(cplus)}) for run, cplus in found]
        rows.append([*key, *tables.correction_cells(learnt)])
    table = Table("Self-correction on the problems of C+, first 10 steps; a merged model by its folder (Table 28)",
                  ["model", "bench", "method", *tables.CORRECTION_COLUMNS], rows)
    return with_faults(table, [run for found in by_key.values() for run, _ in found])


def cplus_of(run):
    """The C+ that decides on which problems Table 28 looks: that of the update, if the model is merged with one."""
    folder = os.path.dirname(os.path.normpath(run.settings["model"]))
    distilled = curves.read_beside(os.path.join(folder, ""), "distill.json")
    is_merged = os.path.basename(os.path.normpath(run.settings["model"])) == "merged"
    return distilled["settings"]["cplus"] if is_merged and distilled else os.path.join(
        os.path.dirname(run.path), "cplus.jsonl")


# ---------------------------------------------------------------------------------------------------------------------
# Tests

SHARES = {"avg": 100, "pass": 100, "length": 1, "truncated": 100}  # of a test's result


def test_tables(tested, notes):
    rows, by_seed, gains = [], [], []
    samples = sorted({item.content["result"]["samples"] for item in tested})
    k = "/".join(map(str, samples))
    references = {model: benches for (model, policy), benches in cells(tested).items() if policy == "base model"}
    all_seeds = sorted({item.seed for item in tested})
    for (model, policy), benches in cells(tested).items():
        names = [model, policy]
        whole = {bench: {seed: content["result"] for seed, content in seeds.items()}
                 for bench, seeds in benches.items()}
        if len(benches) > 1 and (seeds := common_seeds(benches, names, notes)):
            # of a seed: the mean of its benches
            whole["all"] = {seed: {name: mean(of_bench[seed][name] for of_bench in whole.values()) for name in SHARES}
                            for seed in seeds}
        for bench, results in whole.items():
            rates = {seed: 100 * result["avg"] for seed, result in results.items()}
            by_seed.append([model, bench, policy, *map(rates.get, all_seeds)])
            rows.append([model, bench, policy, *test_cells(list(results.values()))])
        if policy != "base model":
            gains += gain_rows(names, benches, references.get(model, {}))
    return [(Table("Tests; all: means of the benches (Tables 2, 6, 18, 21, 30 and 31)",
                   ["model", "bench", "policy", "problems", f"avg@{k} (%)", f"pass@{k} (%)", "tokens per answer",
                    "truncated (%)", "verifier faults"], rows), paper.TESTS),
            (Table("Tests of each seed (Table 17)",
                   ["model", "bench", "policy", *(f"avg@{k}, seed {seed} (%)" for seed in all_seeds)], by_seed), {}),
            (Table("Length and gain of a policy over the base model (Table 3 (b))",
                   ["model", "bench", "policy", "length (ratio)", "avg gain (pp)"], gains), {})]


def test_cells(results):
    """The numbers of a row, over the results of each seed; a mean of benches has no problems and faults of its own."""
    values = [over_seeds([result[name] for result in results], unit) for name, unit in SHARES.items()]
    if "problems" not in results[0]:
        return [None, *values, None]
    return [results[0]["problems"], *values, over_seeds(list(map(tests.fault_count, results)))]


def gain_rows(names, benches, reference):
    """Table 3 (b): of the means over the seeds that both have, bench by bench, and their means."""
    rows = []
    for bench in benches.keys() & reference.keys():
        shared = benches[bench].keys() & reference[bench].keys()
        if not shared:
            continue
        one, other = (next(iter(seeds[bench].values())) for seeds in (benches, reference))
        known = [name for name in tests.COMPARED if name in one["settings"] and name in other["settings"]]
        is_alike = all(one["settings"][name] == other["settings"][name] for name in known)
        if not is_alike or one["problems"]["correct"].keys() != other["problems"]["correct"].keys():
            continue
        (length, avg), (base_length, base_avg) = (
            [mean(seeds[bench][seed]["result"][name] for seed in shared) for name in ("length", "avg")]
            for seeds in (benches, reference))
        rows.append([names[0], bench, names[1], length / base_length if base_length else None, 100 * (avg - base_avg)])
    rows.sort(key=lambda row: row[1])
    if len(rows) > 1 and all(row[3] for row in rows):
        rows.append([names[0], "mean", names[1], mean(row[3] for row in rows), mean(row[4] for row in rows)])
    return rows

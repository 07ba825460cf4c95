"""Tables of evaluate.py's --bench, and of one test against another (--test)."""
import os
from collections import Counter

import engines
from common.errors import BadInput
from common.journal import read_json, write_json
from common.outputs import is_test
from report import measures, print_tables
from report.curves import bench_name, model_name
from report.method import baseline_of
from report.tables import Table

# What two tests may differ in: the policy. All else would be a difference of its own.
COMPARED = ("bench", "split", "samples", "limit", "family", "temperature", "top_p", "max_tokens",
            "strict_math_verify")


def test_result(records, correct, samples):
    """What a test measures, shares in [0, 1]; correct: {problem id: s of each sample}."""
    faults = Counter(record["fault"] for record in records if record["fault"])
    intervals = measures.test_intervals(correct)
    return {"problems": len(correct),
            "avg": measures.avg_at_k(correct.values()), "avg_interval": intervals["avg"],
            "pass": measures.pass_at_k(correct.values())[-1], "pass_interval": intervals["pass"],
            "length": measures.mean(record["completion_tokens"] for record in records),
            "truncated": measures.mean(record["truncated"] for record in records),
            "faults": dict(faults),
            "unreadable_judgments": sum(record.get("judge_unreadable", False) for record in records),
            "samples": samples}


def test_table(settings, result):
    """The table of a test; settings: what its file keeps of them."""
    k = result["samples"]
    columns = ["model", "bench", "policy", "problems", f"avg@{k} (%)", f"pass@{k} (%)", "tokens per answer",
               "truncated (%)", "verifier faults"]
    row = [model_name(settings["model"]), bench_name(settings["bench"], settings["split"]), policy(settings["adapter"]),
           result["problems"], 100 * result["avg"], 100 * result["pass"], result["length"], 100 * result["truncated"],
           fault_count(result)]
    return Table(f"Test of {settings['adapter'] or 'the base model'} (Tables 18 and 21)", columns, [row])


def fault_count(result):
    """Answers of a test that count as wrong because their verifier failed."""
    return sum(result["faults"].values()) + result.get("unreadable_judgments", 0)


def policy(adapter):
    """What was tested, as paper.csv names it: an adapter of baselines/ by its method."""
    if not adapter:
        return "base model"
    return baseline_of(engines.adapter_run(adapter)) or "adapter"


def interval_line(result):
    """The sentence on the intervals of avg@k and pass@k."""
    parts = []
    for name in ("avg", "pass"):
        low, high = result[f"{name}_interval"]
        parts.append(f"{name}@{result['samples']} {100 * low:.2f} to {100 * high:.2f} %")
    return f"95% intervals (bootstrap over problems): {', '.join(parts)}"


def default_out(options, settings):
    """out/BENCH-MODEL-ADAPTER-DECODING.json; makes out/."""
    os.makedirs("out", exist_ok=True)
    bench = os.path.splitext(os.path.basename(options.bench))[0]
    policy = "base"
    if options.adapter:
        policy = os.path.relpath(options.adapter).replace("..", "").strip("/").replace("/", "-")
    decoding = f"T{settings.temperature:g}-p{settings.top_p:g}-{settings.max_tokens}"
    names = [bench, *(["train"] if options.split == "train" else []),
             model_name(settings.model).replace("/", "-"), policy, decoding]
    return os.path.join("out", "-".join(names) + ".json")


# ---------------------------------------------------------------------------------------------------------------------
# One test against another


def read_test(path):
    """The dict that evaluate.py --bench wrote. Errors: BadInput, also if the test has not ended."""
    content = read_json(path) if is_test(path) else {}
    if "problems" not in content:
        raise BadInput(f"{path} is not the file of a test that has ended: name the .json that evaluate.py --bench "
                       "printed at its end.")
    return content


def versus_table(path, other):
    """The test in the file `path` less the one in `other`, problem by problem. Errors: BadInput."""
    ours, theirs = read_test(path), read_test(other)
    for name in COMPARED:
        values = ours["settings"].get(name), theirs["settings"].get(name)
        if values[0] != values[1]:
            raise BadInput(f"{path} and {other} are not comparable, as {name} is {values[0]} and {values[1]}: test "
                           "both alike.")
    correct = ours["problems"]["correct"], theirs["problems"]["correct"]
    if correct[0].keys() != correct[1].keys():
        raise BadInput(f"{path} and {other} are of different problems: test both alike.")
    k, rows = ours["settings"]["samples"], []
    for name, (mine, others, difference, interval) in measures.paired_tests(*correct).items():
        rows.append([f"{name}@{k}", *(100 * share for share in (mine, others, difference, *interval))])
    columns = ["measure", "ours (%)", "theirs (%)", "Δ (pp)", "Δ low", "Δ high"]
    return Table(f"{path} against {other} (theirs), problem by problem, with the 95% interval of the difference",
                 columns, rows)


def versus_main(options):
    """--test FILE --versus FILE: what one test has more than others, problem by problem."""
    pairs = [(versus_table(options.test, other), {}) for other in options.versus]
    printed = print_tables(pairs, options.paper)
    if options.out:
        write_json(options.out, printed)

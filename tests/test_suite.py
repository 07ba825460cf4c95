"""evaluate.py --tables: means over seeds and benches, costs in all, and what is not pooled; counted by hand."""
import json

import pytest

from common.errors import BadInput
from report import suite
from report.tables import Table
from test_evaluate import call, write_run

MODEL = "Qwen/Qwen3-8B"


def shown(folder):
    """{title up to its first bracket: [{column: cell}]} of the tables that --tables writes."""
    call("--tables", folder)
    found = {}
    for table in json.loads((folder / "tables.json").read_text()):
        title = table["title"].partition(" (Table")[0]
        found[title] = [dict(zip(table["columns"], row)) for row in table["rows"]]
    return found


def row_of(rows, **cells):
    row, = (row for row in rows if all(row[name] == cell for name, cell in cells.items()))
    return row


def write_test(path, bench, correct, adapter=None, seed=1, length=100, truncated=0.0, **settings):
    """A test that has ended, of earlier code that kept fewer settings; correct: {problem: outcomes}."""
    outcomes = list(correct.values())
    result = {"problems": len(correct), "samples": 2, "length": length, "truncated": truncated, "faults": {},
              "avg": sum(map(sum, outcomes)) / (2 * len(outcomes)), "pass": sum(map(max, outcomes)) / len(outcomes)}
    settings = {"bench": bench, "split": "test", "model": MODEL, "adapter": adapter and str(adapter), "samples": 2,
                "limit": None, "family": "qwen3", "temperature": 0.6, "top_p": 0.95, "max_tokens": 8192, "seed": seed,
                **settings}
    path.write_text(json.dumps({"settings": settings, "versions": {}, "result": result, "tables": [],
                                "problems": {"correct": correct}}))


def write_update(folder, cplus, seed=1, seconds=36.0, **settings):
    """distill.py's run on a cplus.jsonl: one step of 10 student and 20 teacher tokens."""
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    settings = {"cplus": str(cplus), "steps": 1, "divergence": "reverse_kl", "traces": "success", "tau": "inf",
                "model": MODEL, "seed": seed, **settings}
    (folder / "distill.json").write_text(json.dumps({"settings": settings, "result": {"gpus": 1}}))
    line = {"step": 1, "student_tokens": 10, "teacher_tokens": 20, "sample_seconds": 0.0, "train_seconds": seconds}
    (folder / "distill.jsonl").write_text(json.dumps(line) + "\n")
    return folder / "adapter"


# ---------------------------------------------------------------------------------------------------------------------
# Explorations


@pytest.fixture
def explored(tmp_path):
    """LEAF and random sampling on two benches and two seeds; LEAF solves 1, 1; 1, 1/2 of the two problems."""
    for seed, lcb in ((1, "x R"), (2, "x x")):
        write_run(tmp_path / f"leaf-math-{seed}", {"a": "x R", "b": "R R"}, seed=seed)
        write_run(tmp_path / f"leaf-lcb-{seed}", {"c": lcb, "d": "R R"}, seed=seed)
        write_run(tmp_path / f"random-math-{seed}", {"a": "x x", "b": "R R"}, "random", seed)
        write_run(tmp_path / f"random-lcb-{seed}", {"c": "x x", "d": "y y"}, "random", seed)
    for path in tmp_path.glob("*-lcb-*"):
        of_lcb(path)
    return tmp_path


def of_lcb(folder):
    for name in ("rollouts.jsonl", "explore.json"):
        path = folder / name
        path.write_text(path.read_text().replace('"bench": "math500"', '"bench": "lcb"'))


def test_rates_are_averaged_and_costs_added_up_over_benches(explored):
    found = shown(explored)
    table = next(rows for title, rows in found.items() if title.startswith("Explorations at the last step"))
    row = row_of(table, bench="all", method="LEAF")
    assert row["model"] == "Qwen3-8B" and row["GPU hours"] == [pytest.approx(2.2), 0]
    assert row["pass@k (%)"] == [87.5, pytest.approx(12.5 * 2 ** 0.5)]          # 100 and 75
    one = row_of(table, bench="math500", method="LEAF")
    assert row["PFLOPs"][0] == pytest.approx(2 * one["PFLOPs"][0])


def test_the_pass_rate_of_each_seed_is_table_12(explored):
    rows = shown(explored)["pass@k of each seed, and cost"]
    row = row_of(rows, method="LEAF")
    assert [row[f"seed {seed} (%)"] for seed in (1, 2)] == [100, 75] and row["bench"] == "all"
    assert row_of(rows, method="random sampling")["all seeds (%)"] == [25, 0]


def test_seeds_that_do_not_match_are_said(explored, capsys):
    (explored / "leaf-lcb-2" / "explore.json").unlink()
    found = shown(explored)
    table = next(rows for title, rows in found.items() if title.startswith("Explorations at the last step"))
    assert [row["bench"] for row in table if row["method"] == "LEAF"] == ["lcb", "math500"]
    assert "the seeds have different models or benches" in capsys.readouterr().out


def test_runs_that_differ_in_a_setting_are_not_pooled(explored):
    write_run(explored / "warm", {"a": "x x", "b": "x x"}, seed=3, temperature=1.0)
    for path in explored.glob("leaf-*/explore.json"):
        path.write_text(path.read_text().replace('"seed"', '"temperature": 0.6, "seed"'))
    found = shown(explored)
    table = next(rows for title, rows in found.items() if title.startswith("Explorations at the last step"))
    assert row_of(table, method="LEAF (temperature 1.0)")["pass@k (%)"] == 0
    assert row_of(table, method="LEAF (temperature 0.6)", bench="math500")["pass@k (%)"] == [100, 0]


def test_a_seed_that_is_there_twice_counts_once(explored, capsys):
    write_run(explored / "z", {"a": "x x", "b": "x x"}, seed=1)
    table = next(iter(shown(explored).values()))
    assert row_of(table, method="LEAF", bench="math500")["pass@k (%)"] == [100, 0]
    assert f"{explored / 'z' / 'rollouts.jsonl'} is left out" in capsys.readouterr().out


def test_a_run_that_has_not_ended_is_said(explored, capsys):
    path = explored / "leaf-lcb-2" / "explore.json"
    path.write_text(json.dumps({"settings": json.loads(path.read_text())["settings"]}))
    (explored / "distill.json").write_text("{}")        # a run that has not begun
    shown(explored)
    printed = capsys.readouterr().out
    assert all(f"{name} is of a run that has not ended" in printed for name in (path, explored / "distill.json"))


def test_faults_of_the_verifier_are_said(explored):
    path = explored / "random-math-1" / "rollouts.jsonl"
    path.write_text(path.read_text().replace('"fault": null', '"fault": "failed"', 1))
    call("--tables", explored)
    titles = [table["title"] for table in json.loads((explored / "tables.json").read_text())]
    said = "; 1 verifier faults among the answers count as wrong"
    assert len(titles) == 6 and all(title.endswith(said) for title in titles[1:]) and said not in titles[0]


def test_two_methods_are_compared_over_the_seeds_of_both(explored):
    write_run(explored / "score", {"a": "x x", "b": "R R"}, "score", 2)
    path = explored / "score" / "rollouts.jsonl"
    path.write_text(path.read_text().replace('"sample_seconds"', '"step_seconds": 1.0, "sample_seconds"'))
    rows = next(rows for title, rows in shown(explored).items() if title.startswith("Cost of SCoRe"))
    # LEAF has SCoRe's 50% at step 1, and SCoRe ends at step 2
    assert row_of(rows, cost="verifier calls")["mean"] == 2 and "run 2" not in rows[0]


# ---------------------------------------------------------------------------------------------------------------------
# Tests and costs


def test_tests_are_averaged_over_benches_then_seeds(tmp_path):
    for seed, (math, lcb) in {1: ([1, 1], [0, 0]), 2: ([1, 0], [0, 0])}.items():
        write_test(tmp_path / f"m{seed}.json", "math500", {"a": math}, seed=seed, truncated=0.5)
        write_test(tmp_path / f"l{seed}.json", "lcb", {"c": lcb}, seed=seed, length=300)
    found = shown(tmp_path)
    row = row_of(found["Tests; all: means of the benches"], bench="all")
    assert row["avg@2 (%)"] == [37.5, pytest.approx(12.5 * 2 ** 0.5)]           # 50 and 25
    assert (row["pass@2 (%)"], row["tokens per answer"], row["truncated (%)"]) == ([50, 0], [200, 0], [25, 0])
    seeds = row_of(found["Tests of each seed"], bench="all")
    assert [seeds[f"avg@2, seed {seed} (%)"] for seed in (1, 2)] == [50, 25]


@pytest.fixture
def trained(tmp_path):
    """Two training sets and an update on each; the run of each set: 2 problems, 1.1 GPU hours, 1e9 parameters."""
    for bench in ("math", "lcb"):
        folder = tmp_path / bench
        write_run(folder, {"a": "x R", "b": "y y"}, split="train")
        (folder / "cplus.jsonl").write_text(json.dumps({"problem": "a", "step": 2}) + "\n")
    of_lcb(tmp_path / "lcb")
    for bench in ("math", "lcb"):
        write_update(tmp_path / bench, tmp_path / bench / "cplus.jsonl")
    return tmp_path


def test_costs_add_up_over_training_sets_and_stages(trained):
    rows = shown(trained)["Cost of training, added up over training sets"]
    assert [row["stage"] for row in rows] == [
        "exploration", "update", "update, with the paper's behaviour pass", "all stages",
        "all stages, with the paper's behaviour pass"]
    tokens = 4 * 14 + 2 * 8                                  # four answers, two drafts
    update, papers = 2e-6 * 30 + 6e-6 * 10, 2e-6 * 40 + 6e-6 * 10
    assert [row["PFLOPs"] for row in rows] == pytest.approx(
        [2 * x for x in (2e-6 * tokens, update, papers, 2e-6 * tokens + update, 2e-6 * tokens + papers)])
    assert [row["GPU hours"] for row in rows] == pytest.approx([2.2, 0.02, 0.02, 2.22, 2.22])
    assert {row["training sets"] for row in rows} == {"lcb (train) + math500 (train)"}


def test_training_sets_and_self_correction(trained):
    found = shown(trained)
    row = row_of(found["Training sets and what the exploration found for them"], bench="lcb (train)")
    assert (row["problems"], row["with a context in C+"], row["pairs in C+"]) == (2, 1, 1)
    row = row_of(next(rows for title, rows in found.items() if title.startswith("Self-corr")), bench="lcb (train)")
    assert row["wrong to right (%)"] == 100 and row["mean accuracy (%)"] == 50           # of problem a alone


def test_a_merged_model_corrects_itself_on_the_problems_of_its_update(trained):
    model = trained / "math" / "merged"
    model.mkdir()
    write_run(trained / "after", {"a": "R x", "b": "y R"}, model=str(model), split="train")
    (trained / "after" / "cplus.jsonl").write_text(json.dumps({"problem": "b", "step": 2}) + "\n")
    found = shown(trained)
    rows = next(rows for title, rows in found.items() if title.startswith("Self-corr"))
    row = row_of(rows, model="math/merged")
    assert row["right to wrong (%)"] == 100 and row["wrong to right (%)"] is None        # of problem a, not of b


def test_gain_and_length_of_an_adapter(trained):
    write_test(trained / "base.json", "math500", {"a": [0, 0], "b": [1, 0]}, length=100)
    write_test(trained / "ours.json", "math500", {"a": [1, 1], "b": [1, 0]}, trained / "math" / "adapter", length=150)
    write_test(trained / "other.json", "math500", {"a": [1, 1], "b": [1, 1]}, trained / "lcb" / "adapter", length=50)
    rows = shown(trained)["Length and gain of a policy over the base model"]
    ours = row_of(rows, policy="adapter")
    assert (ours["length (ratio)"], ours["avg gain (pp)"]) == (1.5, 50)
    assert row_of(rows, policy="adapter, trained on lcb (train)")["avg gain (pp)"] == 75


def test_the_gain_is_over_the_seeds_of_both(trained):
    for seed, outcomes in ((1, [0, 0]), (2, [1, 1])):
        write_test(trained / f"base{seed}.json", "math500", {"a": outcomes}, seed=seed, length=100 * seed)
    write_test(trained / "ours.json", "math500", {"a": [1, 0]}, trained / "math" / "adapter", length=50)
    row, = shown(trained)["Length and gain of a policy over the base model"]
    assert (row["length (ratio)"], row["avg gain (pp)"]) == (0.5, 50)                    # of seed 1 alone


def test_tests_of_other_decoding_have_no_gain(trained):
    write_test(trained / "base.json", "math500", {"a": [0, 0]}, temperature=1.0)
    write_test(trained / "ours.json", "math500", {"a": [1, 1]}, trained / "math" / "adapter")
    assert "Length and gain of a policy over the base model" not in shown(trained)


def test_a_divergence_is_in_the_name_of_its_policy(trained):
    adapter = write_update(trained / "jsd", trained / "math" / "cplus.jsonl", divergence="jsd")
    write_test(trained / "jsd.json", "math500", {"a": [0, 1]}, adapter)
    row, = shown(trained)["Tests; all: means of the benches"]
    assert row["policy"] == "adapter, divergence jsd" and row["avg@2 (%)"] == 50


def test_rewriting_counts_pairs_and_rounds(trained):
    folder = trained / "sft"
    folder.mkdir()
    settings = {"cplus": str(trained / "math" / "cplus.jsonl"), "rewrite": 5, "steps": 1, "seed": 1, "model": MODEL}
    (folder / "sft.json").write_text(json.dumps(
        {"settings": settings, "result": {"gpus": 1, "seconds": {"rewriting": 7200.0}}}))
    (folder / "sft.jsonl").write_text(json.dumps({"step": 1, "trained_tokens": 10, "train_seconds": 36.0}) + "\n")
    lines = [("a", 2, 1, 1, 40), ("b", 1, 1, 0, 50), ("b", 1, 2, 1, 60), ("c", 1, 1, 0, 70), ("c", 1, 2, 0, 80)]
    (folder / "rewrites.jsonl").write_text("".join(json.dumps(
        {"problem": problem, "step": step, "round": number, "correct": correct, "truncated": tokens == 80,
         "prompt_tokens": 5, "completion_tokens": tokens}) + "\n" for problem, step, number, correct, tokens in lines))
    row, = shown(trained)["Rewritten answers that SFT learns from"]
    assert (row["pairs"], row["kept"], row["dropped"]) == (3, 2, 1) and row["policy"] == "sft"
    assert [row[f"kept in round {number}"] for number in range(1, 6)] == [1, 1, 0, 0, 0]
    assert (row["tokens per kept answer"], row["truncated (%)"], row["GPU hours"]) == (50, 20, 2)


# ---------------------------------------------------------------------------------------------------------------------
# What is written and said


def test_tables_of_the_folder_may_be_written_again_and_nothing_else(explored):
    shown(explored)
    before = (explored / "tables.json").read_bytes()
    shown(explored)
    assert (explored / "tables.json").read_bytes() == before
    run = explored / "leaf-math-1" / "explore.json"
    kept = run.read_bytes()
    with pytest.raises(BadInput, match="nothing was changed"):
        call("--tables", explored, "--out", run)
    assert run.read_bytes() == kept


def test_a_folder_without_runs_is_a_sentence(tmp_path):
    with pytest.raises(BadInput, match="holds no run and no test that has ended"):
        call("--tables", tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="--tables .* is no folder"):
        call("--tables", tmp_path / "none")


def test_what_is_not_made_is_one_line():
    """Numbers of seeds and steps are none of tables."""
    titles = ["a (Tables 1, 11 and 13), seeds 8", "first 10 steps (Table 28)", "b (Table 3 (a)) (train)"]
    line = suite.not_made([(Table(title, [], []), {}) for title in titles])
    assert all(f" {name} (" in line for name in ("3 (b)", "8", "9", "19")) and "\n" not in line
    assert not any(f" {name} (" in line for name in ("3 (a)", "11", "28"))

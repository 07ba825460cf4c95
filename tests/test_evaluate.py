"""evaluate.py and report/: tables and dialogues of small runs counted by hand, a scripted engine, bad input."""
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import distill
import engines
import evaluate
import report
from ablations import teacher_contexts
from common import updates
from common.errors import BadInput, ContextTooLong
from conftest import make_model
from engines.base import Sample, request_seed
from report import curves, measures, paper
from report.method import LEAF, RANDOM, Method, method_of, parsed

TRAIN = "lcb (train)", "math500 (train)", "sciknoweval (train)"


def record(problem, step, mark, method="leaf", previous="x", **changes):
    """A line of rollouts.jsonl. `mark`: R is correct, P passes the public tests only, else an error's signature."""
    restart = method == "leaf" and (step - 1) % 5 == 0
    context = [{"role": "user", "content": f"Solve {problem}."}]
    if restart:
        context += [{"role": "assistant", "content": "a draft"}, {"role": "user", "content": f"Check {problem}."}]
    elif method == "leaf":
        turn = f"{problem} was {'right' if previous == 'R' else 'wrong'}. Revise it."
        context += [{"role": "assistant", "content": "an answer"}, {"role": "user", "content": turn}]
    return {"problem": problem, "bench": "math500", "method": method, "step": step, "restart": restart,
            "context": context, "response": f"answer {step}", "tail": None, "draft": "a draft" if restart else None,
            "prompt_tokens": 10, "completion_tokens": 4, "draft_prompt_tokens": 5 * restart,
            "draft_tokens": 3 * restart, "judge_prompt_tokens": 0, "judge_tokens": 0, "finish_reason": "stop",
            "truncated": False, "reward": int(mark in "RP"), "correct": int(mark == "R"), "feedback": "",
            "signature": None if mark in "RP" else mark, "fault": None, "seed": step, "sample_seconds": 1.0,
            "verify_seconds": 0.1, "elapsed_seconds": 3960.0, **changes}


def write_run(folder, answers, method="leaf", seed=1, model="Qwen/Qwen3-8B", explored=True, failed={}, **settings):
    """A folder with rollouts.jsonl and explore.json; returns the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for problem, line in answers.items():
        marks = line.split()
        lines += [record(problem, t, mark, method, marks[t - 2]) for t, mark in enumerate(marks, 1) if mark != "."]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if explored:
        settings = {"bench": "math500", "split": "test", "model": model, "method": method, "seed": seed,
                    "memory": "leaf", "restart": 5,
                    "compress": "tail", "update_every": None, "gpu_hours": 5, **settings}
        result = {"problems": len(answers), "failed": failed, "startup_seconds": 360.0, "wall_seconds": 3600.0,
                  "gpus": 1, "parameters": 1_000_000_000}
        (folder / "explore.json").write_text(json.dumps({"settings": settings, "versions": {}, "result": result}))
    return str(folder / "rollouts.jsonl")


def call(*flags):
    evaluate.main([*map(str, flags)])


def rows(table):
    return [dict(zip(table.columns, row)) for row in table.rows]


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts


def test_result_table_of_one_run(tmp_path):
    group = curves.read_group([write_run(tmp_path, {"a": "x x R", "b": "y y y"})])
    row, = rows(report.tables.result_table([group]))
    assert row["method"] == LEAF and str(LEAF) == "LEAF" and row["steps"] == "3"
    assert row["mean accuracy (%)"] == pytest.approx(100 / 6) and row["pass@k (%)"] == 50
    assert row["tokens processed (M)"] == pytest.approx((6 * 14 + 2 * 8) / 1e6)      # six answers, two drafts
    assert row["PFLOPs"] == pytest.approx(2 * 1e9 * 100 / 1e15)
    assert row["GPU hours"] == pytest.approx(1.1) and row["tokens per answer"] == 4


def test_curve_table_goes_step_by_step(tmp_path):
    group = curves.read_group([write_run(tmp_path, {"a": "x R", "b": "y y"})])
    table = rows(report.tables.curve_table(group))
    assert [row["pass@k (%)"] for row in table] == [0, 50]
    assert [[row[f"{kind} tokens"] for kind in ("prompt", "completion", "draft", "judge")] for row in table] == [
        [30, 8, 6, 0], [50, 16, 6, 0]]
    assert [row["GPU hours"] for row in table] == pytest.approx([0.1 + 0.5, 0.1 + 1.0])


def test_random_sampling_has_its_hours_by_tokens(tmp_path):
    """App. C.4. The answers took the same seconds; that of step 1 has 12 tokens, that of step 2 has 4."""
    write_run(tmp_path, {"a": "x R"}, method="random")
    path = tmp_path / "rollouts.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(json.dumps(json.loads(first) | {"completion_tokens": 12}) + "\n" + second + "\n")
    assert curves.read_run(str(path)).curves["hours"] == pytest.approx([0.1 + 0.75, 1.1])


def test_seeds_give_mean_and_deviation(tmp_path):
    paths = [write_run(tmp_path / "2", {"a": "R R", "b": "R R"}, seed=2),
             write_run(tmp_path / "1", {"a": "x x", "b": "R x"}, seed=1)]
    row, = rows(report.tables.result_table([curves.read_group(paths)]))
    assert row["pass@k (%)"] == pytest.approx((75, 50 ** 0.5 * 5))
    assert "75.00 ± 35.36" in report.tables.result_table([curves.read_group(paths)]).markdown()


def test_seeds_with_a_model_each_belong_together(tmp_path):
    """As tiny.py makes them: OUT/model of each seed."""
    paths = [write_run(tmp_path / str(s), {"a": "R"}, seed=s, model=f"out/tiny{s}/model") for s in (1, 2)]
    row, = rows(report.tables.result_table([curves.read_group(paths)]))
    assert row["model"] == "model" and row["pass@k (%)"] == (100, 0)


def test_seeds_stand_in_their_order_whatever_that_of_their_files(tmp_path):
    """Tables 9 and 14 pair the runs of two methods seed by seed."""
    paths = [write_run(tmp_path / str(i), {"a": "x R"}, seed=seed) for i, seed in enumerate((2, 3, 1, 2))]
    (group,) = curves.read_group(paths[:3]).runs.values()
    assert [run.seed for run in group] == [1, 2, 3]
    with pytest.raises(BadInput, match="0/rollouts.jsonl and .*3/rollouts.jsonl are both .* with seed 2"):
        curves.read_group(paths)


def test_overall_averages_rates_and_adds_costs(tmp_path):
    """Two benches of one model; the longer run is cut at the last step that both reached."""
    first = write_run(tmp_path / "math", {"a": "x R R"})
    second = write_run(tmp_path / "own", {"b": "x x"})
    Path(second).write_text(Path(second).read_text().replace("math500", "own"))
    table = rows(report.tables.result_table([curves.read_group([first, second])]))
    assert [row["steps"] for row in table] == ["2", "2", "2"]
    assert [row["pass@k (%)"] for row in table] == [100, 0, 50]
    hours = [0.1 + 2 / 3, 1.1]
    assert [row["GPU hours"] for row in table] == pytest.approx([*hours, sum(hours)])


def test_a_run_is_cut_at_the_cap(tmp_path, capsys):
    run = curves.read_run(write_run(tmp_path, {"a": "x x x x"}, gpu_hours=0.7), 1)   # hours: 0.35, 0.6, 0.85, 1.1
    assert run.curves["hours"] == pytest.approx([0.35, 0.6])
    assert "counts up to step 2: the last one within its cap of 0.7 GPU hours." in capsys.readouterr().err


def test_what_comes_after_the_cut_counts_in_no_table(tmp_path):
    """Of four steps two are within the cap; another run lacks step 3 of one problem."""
    capped = curves.read_group([write_run(tmp_path / "1", {"a": "x x x x"}, method="random", gpu_hours=0.7)])
    torn = curves.read_group([write_run(tmp_path / "2", {"a": "x x x x", "b": "y z . ."}, method="random")])
    assert [row[2:] for row in report.tables.repeat_table(capped).rows] == [[2, 50]]
    assert [row[2:] for row in report.tables.repeat_table(torn).rows] == [[4, 25]]


def test_a_run_that_stopped_at_step_16_says_so(tmp_path, capsys):
    """b's right answers at steps 17 to 20 do not count: a has none there."""
    run = curves.read_run(write_run(tmp_path, {"a": "x " * 15 + "R", "b": "x " * 16 + "R " * 4}), 1)
    assert run.curves["pass"] == [0] * 15 + [0.5]
    assert run.curves["accuracy"][-1] == 1 / 32
    assert "up to step 20, and counts up to step 16: step 17 is missing for 1 of 2 problems, such as a." \
        in capsys.readouterr().err


def test_a_problem_that_outgrew_the_window_is_named(tmp_path, capsys):
    """The segment of its steps 2 to 5 could not go on; the others did. SPEC: the last step that all have completed."""
    answers = {"0": "x .", "a": "x . . . . x", "b": "x " * 6, "c": "x " * 5}
    path = write_run(tmp_path, answers, failed={"a": "its context is long."})
    assert curves.read_run(path, 1).curves["calls"] == [1]
    assert "step 2 is missing for 2 of 4 problems, such as a (its context is long.)" in capsys.readouterr().err


def test_interleaved_updates_are_part_of_the_cost(tmp_path):
    """Two problems, four steps of 28 tokens and a draft of 8 each; update 1 after step 2: 30 + 50 tokens, 360 s."""
    path = write_run(tmp_path, {"a": "x R R R", "b": "x x x x"}, update_every=2)
    update = {"step": 1, "student_tokens": 30, "teacher_tokens": 50, "sample_seconds": 300.0, "train_seconds": 60.0}
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates" / "distill.jsonl").write_text(json.dumps(update) + "\n")
    run = curves.read_run(path, 1)
    assert str(run.method) == "LEAF, update_every 2"
    assert run.curves["all"] == [44, 72 + 80, 100 + 80, 128 + 80]
    assert run.curves["petaflops"] == pytest.approx([2e-6 * 44, *(2e-6 * x + 6e-6 * 30 for x in (152, 180, 208))])
    # start-up 0.1 h; 0.9 h of sampling in four equal parts; the update 0.1 h
    assert run.curves["hours"] == pytest.approx([0.1 + 0.225, 0.2 + 0.45, 0.2 + 0.675, 1.1])
    table = rows(report.tables.curve_table(curves.read_group([path])))
    assert [row["update tokens"] for row in table] == [0, 80, 80, 80]
    cost = rows(report.tables.update_table(run, [], 1))[0]      # of a later update, from the C+ of this run
    assert (cost["stage"], cost["forward tokens"], cost["trained tokens"]) == ("exploration", 208, 30)


def test_a_run_that_goes_on_counts_its_time_so_far(tmp_path):
    path = Path(write_run(tmp_path, {"a": "x R"}))
    path.write_text(path.read_text() + json.dumps(record("a", 3, "R", elapsed_seconds=360 + 7200)) + "\n")
    assert curves.read_run(str(path), 1).curves["hours"] == pytest.approx([0.1 + 2 * k / 3 for k in (1, 2, 3)])


def test_without_explore_json_there_is_no_compute_and_no_time(tmp_path):
    row, = rows(report.tables.result_table([curves.read_group([write_run(tmp_path, {"a": "x R"}, explored=False)])]))
    assert row["PFLOPs"] is None and row["GPU hours"] is None and row["pass@k (%)"] == 100


def test_ablations_and_training_sets_have_their_own_names(tmp_path):
    run = curves.read_run(write_run(tmp_path, {"a": "x"}, memory="no-feedback", restart=2, split="train"), 1)
    assert (str(run.method), run.bench) == ("LEAF, memory no-feedback, restart 2", "math500 (train)")


@pytest.mark.parametrize("bench, changes, name", [
    ("math500", {"lr": 1e-6, "tau": 1e-3, "divergence": "reverse_kl"}, ""), ("lcb", {"lr": 1e-6, "tau": "inf"}, ""),
    ("math500", {"lr": 3e-5, "tau": "inf"}, ", lr 3e-05, tau inf"), ("lcb", {"divergence": "jsd"}, ", divergence jsd")])
def test_updates_that_the_paper_does_not_make_are_another_method(bench, changes, name):
    assert str(method_of("leaf", {"bench": bench, "update_every": 2} | changes)) == "LEAF, update_every 2" + name


def test_comparison_with_random_sampling(tmp_path):
    leaf = curves.read_group([write_run(tmp_path / "leaf", {"a": "x x R R", "b": "y R R R"})])
    independent = curves.read_group([write_run(tmp_path / "random", {"a": "x y R z", "b": "y y y y"}, method="random")])
    repeats, speed, length, pooled = (rows(table) for table, _ in report.tables.all_tables([leaf, independent])[1:5])
    cell = {"model": paper.QWEN, "bench": "math500"}
    assert repeats == [cell | {"wrong answers": 7, "repeats (%)": pytest.approx(300 / 7)}]
    # LEAF's pass rates 0, 1/2, 1, 1 reach random sampling's last 1/2 at call 2; 4 / 2
    assert speed[0]["cost"] == "verifier calls" and speed[0]["mean"] == 2 and speed[0]["mean curve"] == 2
    # the same in tokens: eight answers against four answers and two drafts
    assert speed[1]["mean"] == pytest.approx(8 * 14 / (4 * 14 + 2 * 8))
    assert length == [cell | {"length (ratio)": 1, "pass rate gain (pp)": 50}]
    # transitions a: x>x, x>R; b: y>R; base 1/4, 1/4, 4/4
    assert pooled == [cell | {"steps after a wrong answer": 3, "repeats (%)": pytest.approx(100 / 3), "base (%)": 50,
                              "ratio": pytest.approx(1 / 1.5)}]


def test_where_no_answer_is_wrong_nothing_repeats(tmp_path):
    leaf = curves.read_group([write_run(tmp_path / "leaf", {"a": "R R"})])
    independent = curves.read_group([write_run(tmp_path / "random", {"a": "R R"}, method="random")])
    repeats, speed, length, pooled = (rows(table) for table, _ in report.tables.all_tables([leaf, independent])[1:5])
    cell = {"model": paper.QWEN, "bench": "math500"}
    assert repeats == [cell | {"wrong answers": 0, "repeats (%)": None}]
    assert pooled == [cell | {"steps after a wrong answer": 0, "repeats (%)": None, "base (%)": None, "ratio": None}]
    assert speed[0]["mean"] == 2                           # reached with the first of two calls
    assert "| 0 | – | – | – |" in report.tables.pooled_table(leaf, independent).markdown()


def test_a_cost_that_one_of_two_runs_has_not_is_compared_in_neither(tmp_path):
    leaf = curves.read_group([write_run(tmp_path / "leaf", {"a": "x R"}, model="model")])
    independent = curves.read_group([write_run(tmp_path / "random", {"a": "x R"}, method="random", explored=False)])
    for pair in ([leaf, independent], [independent, leaf]):
        assert [row["cost"] for row in rows(report.tables.speed_table(*pair))] == ["verifier calls"]


def test_comparison_of_two_memories(tmp_path):
    leaf = curves.read_group([write_run(tmp_path / "leaf", {"a": "x x R R", "b": "y R R R", "c": "z z z z"})])
    blind = curves.read_group([write_run(tmp_path / "blind", {"a": "x x x x", "b": "R R R R", "c": "z R R R"},
                                         memory="no-feedback")])
    row = report.tables.paired_table(leaf, blind).rows[0]
    assert row[2] == 2                                                               # a and c have transitions in both
    assert row[3:6] == pytest.approx([100 * (0.5 + 1) / 2, 100 * (1 + 0) / 2, 25])   # repeat: 1/2, 1 against 1, 0
    assert row[8:11] == pytest.approx([100 * 0.5 / 2, 100 * 1 / 2, -25])             # fix: 1/2, 0 against 0, 1


def test_json_has_the_numbers_of_the_tables_and_the_plot_is_drawn(tmp_path, capsys):
    leaf = [write_run(tmp_path / f"leaf{s}", {"a": "x x R", "b": "y R R"}, seed=s) for s in (1, 2, 3)]
    independent = [write_run(tmp_path / f"random{s}", {"a": "x y x", "b": "y R y"}, method="random", seed=s)
                   for s in (1, 2, 3)]
    call("--rollouts", *leaf, "--versus", *independent, "--plot", tmp_path / "curve.png",
         "--out", tmp_path / "numbers.json", "--paper")
    out = capsys.readouterr().out
    tables = json.loads((tmp_path / "numbers.json").read_text())
    assert [table["title"] in out for table in tables] == [True] * len(tables)
    assert tables[0]["rows"][0][5] == [100.0, 0.0] and "100.00 ± 0.00" in out
    assert "| Qwen3-8B (paper) | math500 | LEAF | 24 | 87.30 | 96.73 |" in out
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_a_method_is_a_key_and_its_text_is_made_when_it_is_printed(tmp_path):
    """Two runs are of one method if their settings say so, wherever they lie; side by side their folders tell them."""
    assert parsed("random") == RANDOM and parsed("leaf") == LEAF and hash(LEAF) != hash(RANDOM)
    blind = Method("leaf", (("memory", "no-feedback"), ("restart", "2")))
    assert parsed("leaf memory=no-feedback restart=2") == blind
    assert method_of("leaf", {"memory": "no-feedback", "restart": 2}) == blind
    assert method_of("random", {"memory": "no-feedback"}) == RANDOM
    files = [[write_run(tmp_path / name, {"a": "x R"})] for name in "12"]
    assert [str(g.method) for g in report.tables.read_groups(*files)] == [f"LEAF ({tmp_path}/{n})" for n in "12"]
    call("--rollouts", *files[0], "--versus", *files[1], "--out", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())[0]["rows"][1][2] == f"LEAF ({tmp_path}/2)"


# ---------------------------------------------------------------------------------------------------------------------
# The paper's numbers


def papers(pairs):
    """The paper's rows of (Table, numbers), by the number of the paper's table in the title."""
    found = {}
    for table, numbers in pairs:
        shown = report.tables.with_paper(table, numbers)
        assert {len(row) for row in shown.rows} == {len(table.columns)}
        assert [row for row in shown.rows if "(paper)" not in str(row[0])] == table.rows
        found |= {table.title.rpartition("(")[2].strip(")"): [row for row in shown.rows if row not in table.rows]}
    return found


def test_paper_rows_stand_below_those_of_its_models_and_benches(tmp_path):
    leaf, blind = (curves.read_group([write_run(tmp_path / m, {"a": "x x R", "b": "y R R"}, memory=m)])
                   for m in ("leaf", "no-feedback"))
    independent = curves.read_group([write_run(tmp_path / "random", {"a": "x y x", "b": "y R y"}, method="random")])
    name = ["Qwen3-8B (paper)", "math500"]
    found = papers(report.tables.all_tables([leaf, independent]))
    assert found["Table 7"] == [[*name, 1912, 45.7]]
    assert found["Table 9"] == [[*name, None, 60.9, 16.6, 3.67]]
    assert found["Table 3"] == [[*name, pytest.approx(694 / 883), pytest.approx(96.73 - 97.33)]]
    assert found["Table 14"] == []                       # the paper's is over all of its models and benches
    assert papers(report.tables.all_tables([leaf, blind]))["Table 8"][0][:6] == [*name, 143, 52.5, 65.0, -12.5]
    assert papers(report.tables.all_tables([blind, leaf]))["Table 8"] == []     # the paper has it the other way round
    assert papers(report.tables.all_tables([blind, independent]))["Table 9"] == [[*name, None, 73.4, 17.3, 4.24]]
    own = curves.read_group([write_run(tmp_path / "own", {"a": "x R"}, model="own")])
    assert not any(papers(report.tables.all_tables([own])).values())


def test_speed_up_of_the_paper_is_over_all_its_models_and_benches(tmp_path):
    cells = [(m, b) for m in ("Qwen/Qwen3-8B", "allenai/Olmo-3-7B-Instruct") for b in paper.BENCHES]
    files = {"leaf": [], "random": []}
    for method, names in files.items():
        for number, (model, bench) in enumerate(cells):
            names.append(write_run(tmp_path / f"{method}{number}", {"a": "R"}, method=method, model=model))
            Path(names[-1]).write_text(Path(names[-1]).read_text().replace("math500", bench))
    found = papers(report.tables.all_tables(report.tables.read_groups(files["leaf"], files["random"])))
    assert found["Table 14"] == [["verifier calls (paper)", None, None, 4.07]]
    assert found["Table 3"][-1] == ["mean (paper)", "", 1.17, 4.88]


@pytest.mark.parametrize("model, method, accuracy, passed, tokens, petaflops, hours", [
    # Overall of Tables 11, 23 and 25; Total of Tables 13, 22 and 25
    (paper.QWEN, "random sampling", 62.96, 77.44, 38.1, 625, 0.66),
    (paper.QWEN, "LEAF", 68.00, 80.84, 63.7, 1043, 1.47),
    (paper.QWEN, "LEAF, memory no-response", 63.63, 79.70, 52.1, 854, 1.47),
    (paper.QWEN, "LEAF, memory no-feedback", 65.00, 77.84, 69.5, 1139, 1.56),
    (paper.QWEN, "LEAF, memory last3", 68.46, 80.63, 84.0, 1377, 1.74),
    (paper.QWEN, "LEAF, restart 2", 65.72, 80.86, 74.3, 1217, 1.68),
    (paper.QWEN, "LEAF, restart 10", 69.04, 80.64, 60.6, 992, 1.43),
    (paper.QWEN, "LEAF, restart never", 70.77, 79.83, 57.0, 934, 1.36),
    (paper.QWEN, "LEAF, update_every 1", 68.01, 80.48, None, 3557, 5.55),
    (paper.QWEN, "LEAF, update_every 2", 68.23, 80.80, None, 2302, 4.38),
    (paper.QWEN, "LEAF, update_every 5", 67.61, 80.53, None, 1463, 3.40),
    (paper.QWEN, "GRPO", 63.00, 77.78, 29.3, 2494, 4.43),                # Table 1, of the baselines
    (paper.QWEN, "SDPO", 62.87, 77.71, 29.2, 3277, 5.06),
    (paper.QWEN, "SCoRe", 63.34, 78.65, 26.4, 3058, 5.09),
    (paper.OLMO, "GRPO", 61.56, 78.00, 38.6, 2885, 9.58),
    (paper.OLMO, "SDPO", 61.64, 78.31, 38.4, 3843, 10.46),
    (paper.OLMO, "SCoRe", 64.05, 82.73, 43.9, 4401, 12.33),
    (paper.OLMO, "SEED", 61.54, 77.47, 37.5, 3796, 9.43),
    (paper.OLMO, "random sampling", 61.68, 78.15, 46.3, 676, 3.42),
    (paper.OLMO, "LEAF", 69.20, 84.50, 87.3, 1275, 6.43),
    (paper.OLMO, "LEAF, memory no-response", 63.16, 82.49, 68.3, 998, 5.77),
    (paper.OLMO, "LEAF, memory no-feedback", 69.13, 83.72, 101.5, 1482, 7.19),
    (paper.OLMO, "LEAF, memory last3", 70.11, 84.71, 113.9, 1663, 6.84),
    (paper.OLMO, "LEAF, restart 2", 68.75, 85.35, 106.0, 1548, 8.18),
    (paper.OLMO, "LEAF, restart 10", 70.17, 84.94, 80.9, 1181, 5.85),
    (paper.OLMO, "LEAF, restart never", 70.43, 83.80, 74.2, 1083, 4.97),
    (paper.OLMO, "LEAF, update_every 1", 69.52, 85.16, None, 3898, 13.97),
    (paper.OLMO, "LEAF, update_every 2", 69.34, 84.14, None, 2650, 11.40),
    (paper.OLMO, "LEAF, update_every 5", 69.63, 84.25, None, 1730, 9.70)])
def test_the_papers_cells_add_up_to_its_totals(model, method, accuracy, passed, tokens, petaflops, hours):
    printed = {(model, bench, str(key)): cells for (model, bench, key), cells in paper.EXPLORATION.items()}
    cells = [printed[model, bench, method] for bench in paper.BENCHES]
    assert [sum(cell[i] for cell in cells) / 4 for i in (1, 2)] == pytest.approx([accuracy, passed], abs=0.02)
    if tokens:
        assert sum(cell[3] for cell in cells) == pytest.approx(tokens, abs=0.2)
    assert sum(cell[4] for cell in cells) == pytest.approx(petaflops, abs=2)
    assert sum(cell[5] for cell in cells) == pytest.approx(hours, abs=0.02)


def test_the_papers_other_tables_agree_with_themselves():
    lengths, gains = zip(*paper.LENGTHS.values())
    assert (sum(lengths) / 8, sum(gains) / 8) == pytest.approx(paper.MEAN_LENGTH, abs=0.006)
    for comparison in paper.PAIRED.values():
        for _, *repeats, a, b, difference, low, high in comparison.values():
            for ours, theirs, delta, start, end in (repeats, (a, b, difference, low, high)):
                assert ours - theirs == pytest.approx(delta, abs=0.11) and start < delta < end
    for table in paper.POOLED.values():
        for _, repeats, base, ratio in table.values():
            assert repeats / base == pytest.approx(ratio, abs=0.03)
    for _, base, update, rollout, gain in paper.INTERNALIZATION.values():
        assert 100 * (update - base) / (rollout - base) == pytest.approx(gain, abs=0.2)
    for (model, traces), average in {(paper.QWEN, "success"): 85.69, (paper.QWEN, "failure"): 55.73,    # section 3.3.4
                                     (paper.QWEN, "random"): 79.33, (paper.OLMO, "success"): 78.37,
                                     (paper.OLMO, "failure"): 58.12, (paper.OLMO, "random"): 76.60}.items():
        cells = [paper.TEACHER[model, bench, traces] for bench in TRAIN]
        assert sum(accuracy for _, accuracy in cells) / 3 == pytest.approx(average, abs=0.006)
    for model, total in ((paper.QWEN, 2.12), (paper.OLMO, 4.11)):                                       # App. E.5
        assert sum(paper.UPDATE[model, bench, "update"][-1] for bench in TRAIN) == pytest.approx(total)
    for model, policy, overall in ((paper.QWEN, "base model", 59.42), (paper.QWEN, "adapter", 64.69),   # Table 2
                                   (paper.OLMO, "base model", 59.87), (paper.OLMO, "adapter", 63.01)):
        averages = [paper.TESTS[model, bench, policy][1] for bench in ("lcb", "math500", "sciknoweval")]
        assert sum(averages) / 3 == pytest.approx(overall, abs=0.006)


@pytest.mark.parametrize("model,policy,overall,hours", [
    (paper.QWEN, "grpo", 63.10, 5.52), (paper.QWEN, "sdpo", 60.08, 5.82), (paper.QWEN, "score", 60.73, 5.57),
    (paper.QWEN, "seed", 62.77, 6.72), (paper.QWEN, "sft", 58.16, 0.55), (paper.OLMO, "grpo", 60.43, 14.06),
    (paper.OLMO, "sdpo", 57.68, 14.23), (paper.OLMO, "score", 59.27, 17.71), (paper.OLMO, "seed", 61.18, 14.56),
    (paper.OLMO, "sft", 58.21, 0.52)])
def test_the_papers_baselines_add_up(model, policy, overall, hours):
    """Overall of Table 18, the sums of Table 19, and Table 3's ratio of lengths and gain over the base model."""
    cells = [paper.TESTS[model, bench, policy] for bench in ("lcb", "math500", "sciknoweval")]
    assert sum(cell[1] for cell in cells) / 3 == pytest.approx(overall, abs=0.01)  # two roundings of 0.005
    found = [paper.UPDATE[model, bench, policy][-1] for bench in TRAIN]
    assert sum(found) == pytest.approx(hours, abs=0.016)


def test_seeds_cells_add_up():
    """Four cells of GPU hours and their sum, each rounded by 0.005."""
    cells = [paper.EXPLORATION[paper.QWEN, bench, parsed("seed")] for bench in paper.BENCHES]
    totals = [sum(cell[i] for cell in cells) for i in range(1, 6)]
    assert totals[0] / 4 == pytest.approx(62.89, abs=0.01) and totals[1] / 4 == pytest.approx(77.96, abs=0.01)
    assert totals[2] == pytest.approx(35.7, abs=0.25) and totals[3] == pytest.approx(4580, abs=2.5)
    assert totals[4] == pytest.approx(7.87, abs=0.025)


@pytest.mark.parametrize("policy,ratio,gain", [
    ("grpo", 1.14, 2.12), ("sdpo", 0.98, -0.77), ("score", 1.01, 0.35), ("seed", 1.11, 2.33), ("sft", 0.93, -1.46)])
def test_the_papers_table_3_follows(policy, ratio, gain):
    pairs = [(paper.TESTS[model, bench, policy], paper.TESTS[model, bench, "base model"])
             for model in (paper.QWEN, paper.OLMO) for bench in ("lcb", "math500", "sciknoweval")]
    assert sum(ours[1] - base[1] for ours, base in pairs) / 6 == pytest.approx(gain, abs=0.006)
    assert sum(ours[3] / base[3] for ours, base in pairs) / 6 == pytest.approx(ratio, abs=0.006)


def test_a_torn_last_line_is_left_out_with_a_note(tmp_path, capsys):
    path = Path(write_run(tmp_path, {"a": "x R", "b": "y y"}))
    path.write_text(path.read_text()[:-30])
    assert len(curves.read_run(str(path), 1).curves["pass"]) == 1
    assert str(path) in capsys.readouterr().err


DIALOGUE = """Problem a of math500

[user]
    Solve a.

======== step 1, restart ========

[assistant: a draft, not graded]
    a draft

[user]
    Check a.

[assistant]
    answer 1

--> wrong (answer x, 4 tokens)

======== step 2 ========

[user]
    a was wrong. Revise it.

[assistant]
    answer 2

--> passes the public tests only (4 tokens, truncated)

    Test 3 failed"""


def test_dialogue():
    steps = {2: record("a", 2, "P", truncated=True, feedback="Test 3 failed"), 1: record("a", 1, "x")}
    assert report.dialogue.dialogue(steps) == DIALOGUE
    independent = report.dialogue.dialogue({1: record("a", 1, "R", method="random")})
    assert independent.count("[user]") == 1 and "--> correct" in independent
    assert "--> wrong (answer [2J7, 4 tokens)" in report.dialogue.dialogue({1: record("a", 1, "\x1b[2J7")})


def test_fold_keeps_code_and_drops_control_characters():
    text = "word " * 30 + "\n```python\n" + "x" * 120 + "\n```\n\x1b[2Jend"
    folded = report.dialogue.fold(text).split("\n")
    assert max(len(line) for line in folded if "word" in line) <= 104
    assert "    " + "x" * 120 in folded and folded[-1] == "    [2Jend"


# ---------------------------------------------------------------------------------------------------------------------
# A model or an adapter on a bench


class ScriptedEngine:
    """Answers from a table: {prompt text: responses by sample number}; notes every request."""

    startup_seconds, parameters, gpus = 0.0, 1, 1

    def __init__(self, answers, interrupt_after=None):
        self.answers, self.requests, self.interrupt_after, self.closed = answers, [], interrupt_after, False

    def encode(self, messages):
        return [ord(c) for c in messages[-1]["content"]]

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        text = "".join(map(chr, prompt_token_ids))
        self.requests.append({"text": text, "seed": seed, "max_tokens": max_tokens, "temperature": temperature,
                              "adapter": adapter, "priority": priority})
        if self.interrupt_after is not None and len(self.requests) > self.interrupt_after:
            signal.raise_signal(signal.SIGINT)
        key = next(key for key in self.answers if key in text)
        said = self.answers[key]
        if isinstance(said, Exception):
            raise said
        number = next((n for n in range(1, 9) if seed == request_seed(1, key, n, "test")), 1)
        return Sample([1] * len(said[number - 1]), said[number - 1], [], "stop", len(prompt_token_ids))

    def close(self):
        self.closed = True


def own_bench(folder, problems=("p1", "p2", "p3")):
    path = folder / "own.jsonl"
    lines = [{"id": p, "problem": f"What is {p}?", "verifier": "math", "answer": "7"} for p in problems]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def scripted(monkeypatch):
    def install(scripted_engine):
        async def start(settings, adapters=False, folder="."):
            scripted_engine.adapters = adapters
            return scripted_engine
        monkeypatch.setattr(engines, "start", start)
        return scripted_engine
    return install


RIGHT, WRONG = "It is \\boxed{7}.", "It is \\boxed{8}."


def test_avg_and_pass_of_a_scripted_model(tmp_path, scripted, toy_model, capsys):
    fake = scripted(ScriptedEngine({"p1": [RIGHT, WRONG, RIGHT, WRONG], "p2": [WRONG] * 4, "p3": [RIGHT] * 4}))
    call("--bench", own_bench(tmp_path), "--model", toy_model, "--engine", "hf", "--out", tmp_path / "base.json")
    result = json.loads((tmp_path / "base.json").read_text())
    assert result["result"]["avg"] == 6 / 12 and result["result"]["pass"] == 2 / 3 and result["result"]["faults"] == {}
    assert result["problems"]["correct"] == {"p1": [1, 0, 1, 0], "p2": [0, 0, 0, 0], "p3": [1, 1, 1, 1]}
    assert result["settings"]["samples"] == 4 and result["versions"]["torch"]
    lines = [json.loads(line) for line in (tmp_path / "base.jsonl").read_text().splitlines()]
    assert len(lines) == 12 and {line["response"] for line in lines} == {RIGHT, WRONG}
    assert {(r["adapter"], r["priority"]) for r in fake.requests} == {(None, 0)}
    assert len({r["seed"] for r in fake.requests}) == 12
    assert fake.closed and "| 50.00 | 66.67 |" in capsys.readouterr().out


def test_an_adapter_answers_and_its_base_model_judges(tmp_path, scripted, toy_model, toy_adapters):
    fake = scripted(ScriptedEngine({"expert grader": ["Right. yes"], "p1": ["Final answer: 7"] * 2}))
    bench = tmp_path / "own.jsonl"
    bench.write_text(json.dumps({"id": "p1", "problem": "What is p1?", "verifier": "judge", "reference": "7"}) + "\n")
    call("--bench", bench, "--model", toy_model, "--engine", "hf", "--adapter", toy_adapters[0], "--samples", 2,
         "--out", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["problems"]["correct"] == {"p1": [1, 1]}
    answers, judged = ([r for r in fake.requests if ("expert grader" in r["text"]) == judge] for judge in (False, True))
    assert fake.adapters and {r["adapter"] for r in answers} == {toy_adapters[0]}
    assert [(r["adapter"], r["temperature"], r["max_tokens"]) for r in judged] == [(None, 0.0, 512)] * 2
    assert max(r["priority"] for r in judged) < min(r["priority"] for r in answers)


def test_a_problem_that_the_window_cannot_hold_counts_as_not_solved(tmp_path, scripted, toy_model, capsys):
    scripted(ScriptedEngine({"p1": ContextTooLong("its context does not fit."), "p2": [RIGHT]}))
    call("--bench", own_bench(tmp_path, ("p1", "p2")), "--model", toy_model, "--engine", "hf", "--samples", 1,
         "--out", tmp_path / "o.json")
    result = json.loads((tmp_path / "o.json").read_text())["result"]
    assert result["avg"] == 0.5 and result["faults"] == {"its context does not fit.": 1}
    assert "p1 counts as not solved" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_graded(tmp_path, scripted, toy_model, capsys):
    fake = scripted(ScriptedEngine({"p1": [WRONG] * 4, "p2": [WRONG] * 4, "p3": [WRONG] * 4}, interrupt_after=5))
    with pytest.raises(SystemExit) as stopped:
        call("--bench", own_bench(tmp_path), "--model", toy_model, "--engine", "hf", "--out", tmp_path / "o.json")
    assert stopped.value.code == 130 and fake.closed and "Stopped" in capsys.readouterr().err
    assert json.loads((tmp_path / "o.json").read_text()).keys() == {"settings", "versions", "requests", "adapter_weights"}  # no result


def test_the_whole_path_on_a_random_model(tmp_path, toy_model, toy_adapters):
    """The transformers engine, the real verifier, base and adapter: nothing is solved, everything is written."""
    for name, flags in (("base", []), ("adapter", ["--adapter", toy_adapters[0]])):
        call("--bench", own_bench(tmp_path), "--model", toy_model, "--max-tokens", 8, "--samples", 2, "--limit", 2,
             "--out", tmp_path / f"{name}.json", *flags)
    base, adapter = ([json.loads(line)["response"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
                     for name in ("base", "adapter"))
    assert len(base) == len(adapter) == 4 and sorted(base) != sorted(adapter)


# ---------------------------------------------------------------------------------------------------------------------
# The training problems

MARKS = {"p1": "8 R R", "p2": "R 8 8", "p3": "8 8 8", "p4": "R R R"}
RESPONSES = {"p1": [RIGHT, WRONG, WRONG, WRONG], "p2": [RIGHT] * 4, "p4": [RIGHT, RIGHT, WRONG, WRONG]}


@pytest.fixture
def trained(tmp_path, toy_model):
    """A small exploration and update: C+ has p1 (steps 2, 3), p2 (step 1, a restart) and p4 (steps 1, 2, 3)."""
    path = Path(write_run(tmp_path, MARKS, model=toy_model, bench=str(own_bench(tmp_path, MARKS)), data=None))
    path.write_text(path.read_text().replace('"math500"', '"own"'))
    rollouts = [json.loads(line) for line in path.read_text().splitlines()]
    shared = {"bench": "own", "model": toy_model, "family": "qwen3",
              "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64}}
    cplus = [{**shared, "opening": r["context"][:1], "problem": r["problem"], "context": r["context"],
              "response": r["response"], "step": r["step"]} for r in rollouts if r["correct"]]
    samples = [{"step": step, "problem": problem, "response": response, "truncated": False, "prompt_tokens": 10,
                "completion_tokens": 5, "context_tokens": 30}
               for step, problem, response in ((1, "p1", RIGHT), (1, "p2", RIGHT), (2, "p1", WRONG))]
    steps = [{"step": step, "student_tokens": 15 * n, "teacher_tokens": 35 * n, "sample_seconds": 1800.0,
              "train_seconds": 900.0} for step, n in ((1, 2), (2, 1))]
    for name, lines in (("cplus", cplus), ("samples", samples), ("distill", steps)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "distill.json").write_text(json.dumps({"settings": {"cplus": str(tmp_path / "cplus.jsonl")}}))
    return tmp_path


def tables(path):
    return [rows(report.tables.Table(**table)) for table in json.loads(path.read_text())["tables"]]


def test_teacher_accuracy_and_trace_statistics(trained, scripted):
    fake = scripted(ScriptedEngine(RESPONSES))
    call("--teacher", "--cplus", trained / "cplus.jsonl", "--traces", "success", "failure", "--engine", "hf")
    accuracy, traces = tables(trained / "teacher.json")
    assert [(row["traces"], row["problems"]) for row in accuracy] == [
        ("success", 3), ("failure", 3), ("failure, without plain prompts", 2)]
    assert [row["accuracy (%)"] for row in accuracy] == pytest.approx([700 / 12, 700 / 12, 500 / 8])
    # failure: p1 the restart at step 1; p2 after right and after wrong; p4 none. random: p1 swaps its two verdicts, p4
    # has only one
    assert traces == [{"model": "model", "bench": "own", "problems": 3, "successful per problem": 2,
                       "failure per problem": 1, "plain prompt": 1, "random": 4, "from other problems": 2,
                       "restart": 2}]
    turns = ["p1 was wrong. Revise it.", "p1 was right. Revise it."]
    drawn = [distill.draw_context(turns, 1, k, "p1") for k in (1, 2, 3, 4)]   # sample k: as the trainer draws at step k
    assert [r["text"] for r in fake.requests if "p1" in r["text"]][:4] == drawn
    assert "Solve p4." in [r["text"] for r in fake.requests]                  # no failure: the plain prompt
    assert {r["adapter"] for r in fake.requests} == {None}


@pytest.mark.parametrize("damage, sentence", [
    (lambda text: text.replace('"p4"', '"p5"'), "rollouts.jsonl has no step 1 of problem p4"),
    (lambda text: text.replace('"restart"', '"again"'), "rollouts.jsonl line 1 has no restart")])
def test_rollouts_that_do_not_fit_are_refused_before_anything_is_sampled(trained, scripted, damage, sentence):
    rollouts = trained / "rollouts.jsonl"
    rollouts.write_text(damage(rollouts.read_text()))
    fake = scripted(ScriptedEngine(RESPONSES))
    with pytest.raises(BadInput, match=sentence):
        call("--teacher", "--cplus", trained / "cplus.jsonl", "--engine", "hf")
    assert not fake.requests


def test_a_copy_of_the_bench_that_moved_is_named_again(trained, scripted):
    explored = json.loads((trained / "explore.json").read_text())
    explored["settings"] |= {"bench": "math500", "data": str(trained / "gone.jsonl")}
    (trained / "explore.json").write_text(json.dumps(explored))
    rows = [{"unique_id": p, "problem": f"What is {p}?", "answer": "7"} for p in MARKS]
    (trained / "moved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scripted(ScriptedEngine(RESPONSES))
    flags = ("--teacher", "--cplus", trained / "cplus.jsonl", "--engine", "hf")
    with pytest.raises(BadInput, match="gone.jsonl cannot be read"):
        call(*flags)
    call(*flags, "--data", trained / "moved.jsonl")
    assert tables(trained / "teacher.json")[0][0]["accuracy (%)"] == pytest.approx(700 / 12)


def test_without_a_second_feedback_text_there_are_no_random_traces(trained):
    lines = updates.read_cplus(trained / "cplus.jsonl")
    rollouts = [json.loads(line) for line in (trained / "rollouts.jsonl").read_text().splitlines()]
    for r in [line for kept in lines.values() for line in kept] + rollouts:
        r["context"][-1]["content"] = "Check it." if r["step"] == 1 else "It was wrong."
    row, = rows(report.tables.trace_table(["model", "own"], lines, rollouts,
                                          lambda traces: teacher_contexts(lines, traces, rollouts)))
    assert (row["random"], row["from other problems"], row["restart"]) == (None, None, 2)


def test_internalization_and_cost_of_the_update(trained, scripted):
    scripted(ScriptedEngine(RESPONSES))
    call("--update", trained, "--internalization", "--engine", "hf")
    cost, kept = tables(trained / "internalization.json")
    exploration = 12 * 14 + 4 * 8                                                    # twelve answers, four drafts
    assert [row["forward tokens"] for row in cost] == [exploration, 3 * 50, 3 * 65]
    assert [row["trained tokens"] for row in cost] == [0, 3 * 15, 3 * 15]
    assert [row["PFLOPs"] for row in cost] == pytest.approx(
        [2e-6 * exploration, 2e-6 * 150 + 6e-6 * 45, 2e-6 * 195 + 6e-6 * 45])
    assert [row["GPU hours"] for row in cost] == pytest.approx([1.1, 1.5, 1.5])
    # p4 has no student response. base: p1 1/4, p2 4/4; update: p1's last is wrong, p2's right; step 3: p1 right alone
    assert kept == [{"model": "model", "bench": "own", "problems": 2, "base (%)": 62.5, "update (%)": 50,
                     "rollout, step 3 (%)": 50, "relative gain (%)": 100}]


def test_cost_of_the_update_needs_no_engine(trained, capsys):
    call("--update", trained)
    assert "| own | update | 150 | 45 |" in capsys.readouterr().out


def test_paper_rows_of_tests_and_training_problems(trained, scripted, monkeypatch, toy_model):
    """With the own bench in the place of one of the paper's."""
    scripted(ScriptedEngine(RESPONSES | {"p3": [WRONG] * 4}))
    for numbers, rest in ((paper.TESTS, ("base model",)), (paper.TEACHER, ("success",)), (paper.TRACES, ()),
                          (paper.UPDATE, ("update",)), (paper.INTERNALIZATION, ())):
        monkeypatch.setitem(numbers, ("model", "own", *rest), next(iter(numbers.values())))
    for module in (report.training, report.tests):
        monkeypatch.setattr(module, "bench_name", lambda bench, split: "own")
    call("--bench", trained / "own.jsonl", "--model", toy_model, "--engine", "hf", "--paper",
         "--out", trained / "b.json")
    call("--teacher", "--cplus", trained / "cplus.jsonl", "--engine", "hf", "--paper", "--out", trained / "t.json")
    call("--update", trained, "--internalization", "--engine", "hf", "--paper", "--out", trained / "i.json")
    shown = [table for name in "bti" for table in json.loads((trained / f"{name}.json").read_text())["tables"]]
    assert len(shown) == 5
    for table in shown:
        assert [row[0] for row in table["rows"]].count("model (paper)") == 1
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_self_correction_on_the_problems_of_cplus(trained, tmp_path):
    """p1 8>R R>R, p2 R>8 8>8, p4 R>R R>R; p2's two wrong answers have no box, so they are no repeat."""
    group = curves.read_group([str(trained / "rollouts.jsonl")])
    row = report.tables.correction_table([group], updates.read_cplus(trained / "cplus.jsonl")).rows[0]
    assert row[3:] == pytest.approx([50, 25, 0, 200 / 3, 600 / 9])


def test_random_sampling_corrects_nothing(tmp_path):
    group = curves.read_group([write_run(tmp_path, {"a": "x R"}, method="random")])
    assert report.tables.correction_table([group], {"a"}).rows == []


def test_final_answer_is_what_the_bench_asks_for():
    response = "```python\nshort\n```\nand\n```python\nthe longer one\n```\nFinal answer: 3 m\n\\boxed{7}"
    found = {bench: report.tables.final_answer({"bench": bench, "response": response})
             for bench in ("math500", "lcb", "sciknoweval", "own")}
    assert found == {"math500": "7", "lcb": "the longer one", "sciknoweval": " 3 m\n\\boxed{7}", "own": "7"}
    assert [report.tables.final_answer({"bench": bench, "response": "no idea"}) for bench in found] == [None] * 4


# ---------------------------------------------------------------------------------------------------------------------
# Bad input: one sentence each


def twice(folder):
    path = Path(write_run(folder, {"a": "x R"}))
    path.write_text(path.read_text() + json.dumps(record("a", 2, "R")) + "\n")
    return ["--rollouts", str(path)]


def broken(folder):
    path = Path(write_run(folder, {"a": "x R"}))
    path.write_text("{\n" + path.read_text())
    return ["--rollouts", str(path)]


def damaged(folder):
    path = write_run(folder, {"a": "x R"})
    (folder / "explore.json").write_text('{"settings": {')
    return ["--rollouts", path]


def empty(folder):
    (folder / "rollouts.jsonl").write_text("")
    return ["--rollouts", str(folder / "rollouts.jsonl")]


BAD = {
    "a rollouts file that is not there": (lambda f: ["--rollouts", str(f / "none.jsonl")], "none.jsonl"),
    "no rollouts yet": (empty, "no graded answer yet"),
    "a step twice": (twice, "step 2 of problem a is recorded twice"),
    "a broken line": (broken, "line 1"),
    "a file of something else": (lambda f: ["--rollouts", str(own_bench(f))], "not a file of rollouts"),
    "a damaged explore.json": (damaged, "explore.json is damaged"),
    "no complete step": (lambda f: ["--rollouts", write_run(f, {"a": "x", "b": ". x"})], "no step is complete"),
    "a problem without answers": (lambda f: ["--rollouts", write_run(f, {"a": "x", "b": "."})], "1 of its 2 problems"),
    "a problem that no window holds": (
        lambda f: ["--rollouts", write_run(f, {"a": "x", "b": "."}, failed={"b": "its context is long."})],
        "such as b (its context is long.)"),
    "a cap that step 1 breaks": (lambda f: ["--rollouts", write_run(f, {"a": "x"}, gpu_hours=0.5)], "cap of 0.5 GPU"),
    "two methods in one group": (
        lambda f: ["--rollouts", write_run(f / "1", {"a": "x"}), write_run(f / "2", {"a": "x"}, method="random")],
        "--versus"),
    "one run twice": (lambda f: ["--rollouts", *[write_run(f, {"a": "x"})] * 2], "with seed 1"),
    "seeds of different models": (
        lambda f: ["--rollouts", *(write_run(f / m, {"a": "x"}, seed=s, model=m) for s, m in ((1, "m"), (2, "n")))],
        "the seeds have different"),
    "more seeds of one": (
        lambda f: ["--rollouts", *(write_run(f / str(s), {"a": "x"}, seed=s) for s in (1, 2)),
                   "--versus", write_run(f / "r", {"a": "x"}, method="random")], "number of seeds"),
    "a plot of no known kind": (lambda f: ["--rollouts", write_run(f, {"a": "x"}), "--plot", str(f / "plot")], ".png"),
    "a plot that is a folder": (
        lambda f: ["--rollouts", write_run(f / "x.png", {"a": "x"}), "--plot", str(f / "x.png")], "cannot be written"),
    "a plot below a file": (
        lambda f: ["--rollouts", write_run(f, {"a": "x"}), "--plot", str(f / "explore.json" / "x.png")],
        "cannot be written"),
    "an unknown problem": (lambda f: ["--rollouts", write_run(f, {"a": "x"}), "--show", "zz"], "no problem zz"),
    "no update": (lambda f: ["--update", str(f)], "no distill.json"),
    "no contexts": (lambda f: ["--teacher", "--cplus", str(f / "cplus.jsonl")], "cplus.jsonl"),
    "an unknown bench": (lambda f: ["--bench", "math501", "--model", "MODEL"], "math501"),
    "a bench file that is not there": (lambda f: ["--bench", str(f / "none.jsonl"), "--model", "MODEL"], "none.jsonl"),
    "a model that is not there": (lambda f: ["--bench", str(own_bench(f)), "--model", str(f / "none")], "none"),
    "an adapter that is none": (
        lambda f: ["--bench", str(own_bench(f)), "--model", "MODEL", "--adapter", str(f)], "adapter_config.json"),
    "the adapter of another model": (
        lambda f: ["--bench", str(own_bench(f)), "--model", make_model(f / "other"), "--adapter", "ADAPTER"],
        "was trained on"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case, tmp_path, toy_model, toy_adapters):
    make, expected = BAD[case]
    flags = [{"MODEL": toy_model, "ADAPTER": toy_adapters[0]}.get(flag, flag) for flag in make(tmp_path)]
    with pytest.raises(BadInput) as error:
        call(*flags, "--out", tmp_path / "out.json")
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out.json").exists()


ROOT = Path(evaluate.__file__).parent
HEAVY = ("torch", "transformers", "numpy", "matplotlib", "math_verify", "huggingface_hub")


def test_nothing_heavy_stands_before_the_flags():
    """What evaluate.py imports, its engines apart, which test_engine looks after."""
    code = f"""import sys, types
names = dict.fromkeys(("Engine", "check_adapter", "request_seed", "side_by_side", "Settings"))
sys.modules["engines"] = types.ModuleType("engines")
sys.modules["engines.base"] = types.ModuleType("engines.base")
vars(sys.modules["engines"]).update(names)
vars(sys.modules["engines.base"]).update(names)
import evaluate
print([name for name in {HEAVY} if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("flags, sentence", [
    (["--teacher"], "--teacher needs --cplus FILE"), (["--bench", "math500", "--show", "p"], "--show goes with --rollouts"),
    (["--update", "out", "--adapter", "a"], "--adapter goes with --bench"), (["--bench"], "expected one argument"),
    (["--teacher", "--cplus", "c", "--internalization"], "--internalization goes with --update"), ([], "is required")])
def test_flags_that_do_not_go_together(capsys, flags, sentence):
    with pytest.raises(SystemExit) as stopped:
        evaluate.parse(flags)
    assert stopped.value.code == 2 and sentence in capsys.readouterr().err


def test_options_are_resolved_once():
    options = evaluate.parse(["--teacher", "--cplus", "c", "--traces", "failure", "--dtype", "float32"])
    assert (options.traces, options.samples, options.seed, options.split) == (["failure"], 4, 1, "test")
    assert options.engine_flags["dtype"] == "float32" and options.engine_flags["model"] is None
    line = {"model": "m", "family": "olmo3", "decoding": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 64}}
    explored = engines.as_run(options.engine_flags, line, "cplus.jsonl")
    assert (explored["model"], explored["dtype"], explored["top_p"]) == ("m", "float32", 0.95)
    assert engines.as_run(options.engine_flags | {"top_p": 1.0}, line, "cplus.jsonl")["top_p"] == 1.0
    with pytest.raises(AttributeError):
        options.seed = 2


def test_the_bar_tells_the_averages_so_far_and_the_speed():
    progress = evaluate.Progress(4)
    for record in ({"sample": 1, "traces": "success", "correct": 1, "completion_tokens": 30},
                   {"sample": 1, "traces": "failure", "correct": 0, "completion_tokens": 10},
                   {"sample": 2, "traces": "success", "correct": 0, "completion_tokens": 20}):
        progress.add(record)
    assert progress.text(2.0) == "success 50.0%, failure 0.0%, 30 tokens/s"
    progress.close()
    progress = evaluate.Progress(2)
    progress.add({"sample": 1, "correct": 1, "completion_tokens": 5})
    progress.add({"sample": 0, "correct": 0})  # an update's response, which is graded alone
    assert progress.text(1.0) == "avg 100.0%, update 0.0%, 5 tokens/s"
    progress.close()


def test_bad_input_exits_with_status_2_and_no_traceback(tmp_path):
    done = subprocess.run([sys.executable, "evaluate.py", "--rollouts", str(tmp_path / "none.jsonl")],
                          capture_output=True, text=True, cwd=Path(evaluate.__file__).parent)
    assert done.returncode == 2 and "none.jsonl" in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


# ---------------------------------------------------------------------------------------------------------------------
# Only like things in one row


@pytest.mark.parametrize("more, other, sentence", [
    ({"temperature": 1.0}, {"temperature": 0.6}, "temperature = 1.0 and 0.6"), ({"calls": 24}, {"calls": 20}, "calls = 24 and 20"),
    ({"max_tokens": 8}, {"max_tokens": 9}, "max_tokens = 8 and 9")])
def test_seeds_and_methods_that_differ_are_not_compared(tmp_path, more, other, sentence):
    first = write_run(tmp_path / "1", {"a": "x R", "b": "x x"}, **more)
    second = write_run(tmp_path / "2", {"a": "x R", "b": "x x"}, seed=2, **other)
    with pytest.raises(BadInput, match=sentence):
        curves.read_group([first, second])
    random = write_run(tmp_path / "3", {"a": "x R", "b": "x x"}, method="random", **other)
    with pytest.raises(BadInput, match=sentence):
        report.tables.read_groups([first], [random])
    # what may differ
    third = write_run(tmp_path / "4", {"a": "x R", "b": "x x"}, seed=2, engine="hf", gpu_memory=0.4, data="copy", **more)
    assert len(curves.read_group([first, third]).curves) == 2


def test_other_problems_are_not_compared(tmp_path):
    first = write_run(tmp_path / "1", {"a": "x R", "b": "x x"})
    for second in (write_run(tmp_path / "2", {"a": "x R"}, seed=2), write_run(tmp_path / "3", {"a": "x R", "c": "x x"}, seed=2)):
        with pytest.raises(BadInput, match="differ in problems"):
            curves.read_group([first, second])


def test_two_models_in_folders_of_one_name_are_two(tmp_path):
    folders = [tmp_path / name / "merged" for name in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
    runs = [write_run(tmp_path / f"run{seed}", {"a": "x R"}, seed=seed, model=str(folder)) for seed, folder in enumerate(folders, 1)]
    assert [curves.read_run(path).model for path in runs] == ["one/merged", "two/merged"]
    models = [tmp_path / name / "model" for name in ("one", "two")]
    for folder in models:
        folder.mkdir()
    runs = [write_run(tmp_path / f"other{seed}", {"a": "x R"}, seed=seed, model=str(folder)) for seed, folder in enumerate(models, 1)]
    with pytest.raises(BadInput, match="differ in model"):
        curves.read_group(runs)


def test_a_stopped_run_is_not_shown_as_whole(tmp_path):
    """40 of 128 problems would give another pass rate."""
    path = write_run(tmp_path / "run", {"a": "x R", "b": "x x"})
    explored = json.loads((tmp_path / "run" / "explore.json").read_text())
    del explored["result"]
    (tmp_path / "run" / "explore.json").write_text(json.dumps(explored))
    (tmp_path / "run" / "problems.json").write_text(json.dumps({"a": "1", "b": "2", "c": "3"}))
    with pytest.raises(BadInput, match="answers to 2 of its 3 problems only"):
        curves.read_run(path)


def test_the_common_step_is_that_of_a_model(tmp_path):
    """One model's short bench cuts its others, and no other model's; an ablation's benches keep their own last step."""
    lengths = {("Qwen/Qwen3-8B", "math500"): "x x R", ("Qwen/Qwen3-8B", "lcb"): "x R", ("allenai/Olmo-3-7B-Instruct", "math500"): "x x x R"}
    for restart, expected in (5, [("Olmo", 4), ("Qwen3", 2), ("Qwen3", 2)]), (2, [("Olmo", 4), ("Qwen3", 2), ("Qwen3", 3)]):
        paths = []
        for (model, bench), line in lengths.items():
            folder = tmp_path / f"{restart}-{len(paths)}"
            paths.append(write_run(folder, {"a": line}, model=model, bench=bench, restart=restart))
            records = [json.loads(text) | {"bench": bench} for text in open(paths[-1])]
            (folder / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        group = curves.read_group(paths)
        steps = [(model.split("-")[0], len(run.curves["calls"])) for (model, _), (run,) in group.runs.items()]
        assert sorted(steps) == expected


def test_paired_rates_do_not_depend_on_the_order_of_lines():
    ours = {name: [(0, k % 2, (k + 1) % 2)] for k, name in enumerate("abcdefg")}
    theirs = {name: [(0, k % 3 == 0, 1)] for k, name in enumerate("abcdefg")}
    turned = dict(reversed(ours.items()))
    assert measures.paired_rates(ours, theirs) == measures.paired_rates(turned, theirs)

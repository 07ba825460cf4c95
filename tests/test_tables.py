"""What stands in evaluate.py's tables beside the measures themselves."""
import json
import types

import pytest

import report
from report import measures, paper, tables, tests
from test_evaluate import call, write_run
from test_suite import write_test, write_update


@pytest.fixture
def faulty(tmp_path):
    """A rollouts.jsonl of two problems and two steps with a fault at step 1 and an unreadable judgment at step 2."""
    path, lines = tmp_path / "rollouts.jsonl", []
    for problem in ("p", "q"):
        for step in (1, 2):
            lines.append({"problem": problem, "step": step, "method": "leaf", "bench": "math500", "correct": 0,
                          "reward": 0, "restart": step == 1, "completion_tokens": 5, "prompt_tokens": 7,
                          "signature": None, "sample_seconds": 1.0, "fault": None, "judge_unreadable": False})
    lines[0]["fault"] = "the sandbox failed"
    lines[3]["judge_unreadable"] = True
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_faults_of_the_verifier_stand_in_the_table_of_rollouts(faulty):
    group, = tables.read_groups([faulty])
    (run,), = group.runs.values()
    assert measures.fault_curve(run.attempts, 2) == [1, 2]
    table = tables.result_table([group])
    assert table.columns[-1] == "verifier faults" and table.rows[0][-1] == 2


def test_faults_of_the_verifier_are_said_of_every_other_table(faulty, tmp_path):
    groups = tables.read_groups([faulty], [faulty])
    titles = [table.title for table, _ in tables.all_tables(groups)]
    said = "; 4 verifier faults among the answers count as wrong"  # of both
    assert len(titles) == 6 and all(title.endswith(said) for title in titles[1:]) and said not in titles[0]
    sound = tmp_path / "sound" / "rollouts.jsonl"
    sound.parent.mkdir()
    lines = [json.loads(line) | {"fault": None, "judge_unreadable": False} for line in open(faulty)]
    sound.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert all("fault" not in table.title for table, _ in tables.all_tables(tables.read_groups([str(sound)])))


def test_rows_of_the_paper_are_as_long_as_their_table():
    key = next(iter(paper.EXPLORATION))
    row = [*key, "24", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0]
    shown = tables.with_paper(tables.Table("t", ["c"] * len(row), [row]), paper.EXPLORATION)
    assert len(shown.rows) == 2 and len(shown.rows[1]) == len(row) and shown.rows[1][-1] is None


# ---------------------------------------------------------------------------------------------------------------------
# The paper's rows stand below runs that are the paper's alone

PAPERS = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8192, "family": "qwen3", "limit": None, "calls": 24}


@pytest.mark.parametrize("changes, said", [
    ({}, None), ({"temperature": 0.7}, "temperature 0.7 (the paper: 1.0)"), ({"top_p": 0.9}, "top_p 0.9 (the paper: 1.0)"),
    ({"max_tokens": 100}, "max_tokens 100 (the paper: 8192)"), ({"limit": 8}, "limit 8 (the paper: None)"),
    ({"calls": 12}, "calls 12 (the paper: 24)")])
def test_rows_of_the_paper_are_below_its_runs_alone(tmp_path, capsys, changes, said):
    call("--rollouts", write_run(tmp_path, {"a": "x R"}, **PAPERS | changes), "--paper")
    printed = capsys.readouterr().out
    assert ("| Qwen3-8B (paper) | math500 |" in printed) == (said is None)
    sentence = f"The paper's numbers for Qwen3-8B on math500 are not shown: {said}."
    assert (sentence in printed) == (said is not None)


@pytest.mark.parametrize("changes, said", [
    ({}, []), ({"divergence": "jsd"}, ["divergence jsd (the paper: reverse_kl)"]),
    ({"tau": "inf"}, ["tau inf (the paper: 0.001)"]), ({"steps": 2}, ["steps 2 (the paper: 20)"])])
def test_a_test_of_an_adapter_is_the_papers_if_its_update_is(tmp_path, changes, said):
    write_run(tmp_path / "run", {"a": "x R"}, split="train", **PAPERS | {"calls": 20})
    usual = {"tau": "0.001", "steps": 20, "batch": 128, "lr": 1e-5}
    adapter = write_update(tmp_path / "run", tmp_path / "run" / "cplus.jsonl", **usual | changes)
    write_test(tmp_path / "test.json", "math500", {"a": [1, 1]}, adapter, **PAPERS | {"samples": 4})
    assert report.departures(json.loads((tmp_path / "test.json").read_text())["settings"]) == said


def test_what_an_update_learnt_from_is_to_be_the_papers(tmp_path):
    write_run(tmp_path, {"a": "x R"}, split="train", **PAPERS | {"calls": 20, "restart": 2, "limit": 8})
    assert report.departures({"model": "Qwen/Qwen3-8B", "cplus": str(tmp_path / "cplus.jsonl")}) == [
        "restart 2 of the exploration", "limit 8 (the paper: None)"]


def test_other_models_have_no_rows_to_be_kept_from():
    assert report.departures({"model": "own", "temperature": 0.1}) == []


def test_means_over_all_benches_are_the_papers_if_all_are():
    table = tables.Table("t", ["model", "bench", "gain"], [["m", "a", 1], ["mean", "", 1]])
    numbers = {("m", "a"): (2,), ("mean", ""): (3,)}
    assert len(tables.with_paper(table, numbers).rows) == 4
    assert tables.with_paper(table, numbers, {("m", "other"): []}).rows == [["m", "a", 1], ["m (paper)", "a", 2], ["mean", "", 1]]


def test_the_result_of_a_merged_model_has_a_name_without_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = types.SimpleNamespace(bench="mine.jsonl", adapter=None, split="test")
    settings = types.SimpleNamespace(model="runs/x/merged", temperature=1.0, top_p=1.0, max_tokens=64)
    assert tests.default_out(options, settings) == "out/mine-x-merged-base-T1-p1-64.json"

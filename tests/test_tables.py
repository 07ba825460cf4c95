"""What stands in evaluate.py's tables beside the measures themselves."""
import json
import types

import pytest

from report import measures, paper, tables, tests


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


def test_the_result_of_a_merged_model_has_a_name_without_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = types.SimpleNamespace(bench="mine.jsonl", adapter=None, split="test")
    settings = types.SimpleNamespace(model="runs/x/merged", temperature=1.0, top_p=1.0, max_tokens=64)
    assert tests.default_out(options, settings) == "out/mine-x-merged-base-T1-p1-64.json"

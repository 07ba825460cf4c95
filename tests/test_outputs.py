"""What commands write: over nothing of another; whole after a kill; said at the right time."""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import distill
import engines
import evaluate
import explore
import tiny
import verifiers
from common import journal, outputs, progress, rollouts
from common.errors import BadInput, read_jsonl
from report import measures, tests
from test_evaluate import own_bench, write_run

ROOT = Path(__file__).parent.parent
SCRIPTS = {"explore": explore, "distill": distill, "evaluate": evaluate, "tiny": tiny}


def content(folder):
    """{path: bytes} of all files below a folder, locks apart."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and not path.name.endswith(".lock")}


# ---------------------------------------------------------------------------------------------------------------------
# Nothing of another is written over

MODES = {
    "bench": "evaluate --bench {bench} --data {bench} --model {model} --adapter {adapter}",
    "rollouts": "evaluate --rollouts {run}/rollouts.jsonl --versus {other}/rollouts.jsonl --cplus {run}/cplus.jsonl",
    "teacher": "evaluate --teacher --cplus {run}/cplus.jsonl --model {model} --data {bench}",
    "update": "evaluate --update {run}",
    "internalization": "evaluate --update {run} --internalization --model {model}",
    "tokens": "evaluate --tokens {run} --html {run}/tokens.html",
    "test": "evaluate --test {tests}/a.json --versus {tests}/b.json",
    "explore": "explore --bench {bench} --model {model} --data {bench}",
    "distill": "distill --cplus {run}/cplus.jsonl --model {model} --merge",
}
IN_A_RUN = {"explore": ("explore.json", "rollouts.jsonl", "problems.json", "cplus.jsonl"),
            "distill": ("distill.json", "distill.jsonl", "samples.jsonl")}
# What a command of another kind, or nobody's, has left there.
FOREIGN = {"notes.json": '{"mine": 1}', "list.json": "[1]", "text.json": "text", "settings.json": '{"settings": {}}',
           "answers.jsonl": '{"mine": 1}\n', "mine.html": "<p>mine</p>", "picture.png": "\x89PNG", "mine.svg": "<svg/>", "mine.pdf": "%PDF"}


@pytest.fixture
def places(tmp_path, toy_model, toy_adapters):
    """Everything that a command reads, once each."""
    for name in ("run", "other"):
        path = Path(write_run(tmp_path / name, {"p1": "x R"}, model=toy_model))
        record = read_jsonl(path)[-1]
        line = {"problem": "p1", "bench": "math500", "model": toy_model, "family": "qwen3", "step": 2, "response": "7",
                "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 4}, "context": record["context"],
                "opening": record["context"][:1]}
        (path.parent / "cplus.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "tests").mkdir()
    for name in "ab":
        journal.write_json(str(tmp_path / "tests" / f"{name}.json"), {"settings": {"samples": 1}, "versions": {}})
    for name, text in FOREIGN.items():
        (tmp_path / name).write_text(text)
    shutil.copytree(toy_model, tmp_path / "model")
    shutil.copytree(toy_adapters[0], tmp_path / "adapter")
    names = {name: str(tmp_path / name) for name in ("run", "other", "tests", "model", "adapter")}
    return names | {"bench": str(own_bench(tmp_path))}


def refused(script, argv, folder):
    before = content(folder)
    with pytest.raises((BadInput, SystemExit)) as error:
        SCRIPTS[script].main(argv)
    assert content(folder) == before, argv
    return str(error.value)


def leads_to(source, mode):
    """Values of --out that lead to a file or folder `source`: where something is sampled, responses lie beside --out."""
    path = Path(source)
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    beside = [file.with_suffix(".json") for file in files if file.suffix == ".jsonl"]
    return [str(name) for name in files + (beside if mode in ("bench", "teacher", "internalization") else [])]


def input_values(argv):
    return [value for flag, value in zip(argv, argv[1:]) if flag.startswith("--") and not value.startswith("--")]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in IN_A_RUN])
def test_no_file_is_written_over_an_input(places, tmp_path, mode):
    """Every pair of an output flag and an input flag of evaluate.py, by its own name and by a link's."""
    script, *argv = MODES[mode].format(**places).split()
    for value in input_values(argv):
        for out in leads_to(value, mode):
            said = refused(script, [*argv, "--out", out], tmp_path)
            assert out.removesuffix("json") in said and len(said) < 600
            if mode == "rollouts":
                refused(script, [*argv, "--plot", out], tmp_path)
                refused(script, [*argv, "--html", out], tmp_path)
    if mode == "bench":
        os.symlink(places["bench"], tmp_path / "link.jsonl")
        refused(script, [*argv, "--out", str(tmp_path / "link.json")], tmp_path)
        os.link(places["bench"], tmp_path / "hard.jsonl")
        refused(script, [*argv, "--out", str(tmp_path / "hard.json")], tmp_path)
        shutil.copy(places["bench"], tmp_path / "mine.json.part")
        argv[1] = str(tmp_path / "mine.json.part")
        refused(script, [*argv, "--out", str(tmp_path / "mine.json")], tmp_path)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in IN_A_RUN])
def test_no_file_is_written_over_another_kind(places, tmp_path, mode):
    script, *argv = MODES[mode].format(**places).split()
    for name in (*FOREIGN, "run/explore.json", "gone/new.json", "/dev/null", "new.txt"):
        refused(script, [*argv, "--out", str(tmp_path / name)], tmp_path)
        if mode == "rollouts" and not name.startswith("new"):
            refused(script, [*argv, "--plot", str(tmp_path / name)], tmp_path)
            refused(script, [*argv, "--html", str(tmp_path / name)], tmp_path)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("mode", IN_A_RUN)
def test_no_run_is_written_over_an_input_or_anothers_files(places, tmp_path, mode):
    """The folder of a run: each of its files in turn is the input, or lies there already."""
    script, *argv = MODES[mode].format(**places).split()
    first = argv[1]
    for name in IN_A_RUN[mode]:
        folder = tmp_path / f"as {name}"
        folder.mkdir()
        shutil.copy(first, folder / name)
        refused(script, [*argv, "--out", str(folder)], tmp_path)
        refused(script, [*argv[:1], str(folder / name), *argv[2:], "--out", str(folder)], tmp_path)
    refused(script, [*argv, "--out", places["model"]], tmp_path)
    if mode == "distill":
        for name in ("merged", "adapter"):
            shutil.copytree(places["model"], tmp_path / name / name)
            assert f"{name}/{name}" in refused(script, [*argv, "--out", str(tmp_path / name)], tmp_path)


def test_the_demo_takes_no_folder_of_anothers(tmp_path):
    (tmp_path / "curve.png").write_text("mine")
    refused("tiny", ["--out", str(tmp_path)], tmp_path)
    (tmp_path / "seeds.json").write_text("{}")
    refused("tiny", ["--out", str(tmp_path), "--seeds", "2"], tmp_path)


def test_what_the_same_command_wrote_may_be_written_again(tmp_path):
    first, second = (write_run(tmp_path / name, {"a": "x R"}) for name in "12")
    for ending in ("png", "pdf", "svg", "png"):
        for _ in range(2):
            evaluate.main(["--rollouts", first, "--versus", second, "--out", str(tmp_path / "t.json"),
                           "--plot", str(tmp_path / f"c.{ending}")])
        assert outputs.is_marked(tmp_path / f"c.{ending}")


# ---------------------------------------------------------------------------------------------------------------------
# A test that goes on


def test_flags(folder, model, *more):
    return ["--bench", str(folder / "own.jsonl"), "--model", model, "--engine", "hf", "--max-tokens", "6",
            "--samples", "3", "--out", str(folder / "t.json"), *more]


test_flags.__test__ = False

# Ends itself as kill -9 would, when the answer KILL_AT is about to be written; half of its line is.
KILLED = """
import os, sys
import evaluate
from common import journal
append, lines = journal.append, []
def dying(file, record):
    lines.append(record)
    if len(lines) == int(sys.argv[1]):
        file.write('{"problem": "p1", "be')
        file.flush()
        os.kill(os.getpid(), 9)
    append(file, record)
journal.append = dying
evaluate.main(sys.argv[2:])
"""


def result(folder):
    """The file of a test without its times, and its answers by place."""
    whole = json.loads((folder / "t.json").read_text())
    del whole["result"]["wall_seconds"]
    answers = read_jsonl(folder / "t.jsonl")
    for answer in answers:
        del answer["elapsed_seconds"]
    return whole, sorted(answers, key=lambda answer: (answer["problem"], answer["sample"]))


def test_killed_at_five_moments(tmp_path, toy_model):
    """Killed again and again, each time at another answer: the same result as of an undisturbed test."""
    bench = ("--bench", str(own_bench(tmp_path, ("p1", "p2", "p3", "p4"))))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    evaluate.main(test_flags(tmp_path / "whole", toy_model, *bench))
    argv = test_flags(tmp_path / "killed", toy_model, *bench)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for at in (1, 4, 2, 3, 1):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(at), *argv], env=environment, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert "result" not in json.loads((tmp_path / "killed" / "t.json").read_text())
    # Before the answers 1, 4, 2, 3, 1 of each: 0 + 3 + 1 + 2 + 0 of twelve are kept.
    assert len((tmp_path / "killed" / "t.jsonl").read_bytes().split(b"\n")) - 1 == 6
    evaluate.main(argv)
    assert result(tmp_path / "whole") == result(tmp_path / "killed")


def test_a_finished_test_stays_and_another_is_refused(tmp_path, toy_model, monkeypatch, capsys):
    own_bench(tmp_path)
    evaluate.main(test_flags(tmp_path, toy_model))
    before = content(tmp_path)
    monkeypatch.setattr(engines, "start", None)                           # nothing is left to be sampled
    evaluate.main(test_flags(tmp_path, toy_model))
    assert content(tmp_path) == before and "9 of 9 answers are there already" in capsys.readouterr().out
    for flags, said in ((("--seed", "2"), "seed = 1, not 2"), (("--temperature", "0.5"), "temperature = 1.0, not 0.5"),
                        (("--limit", "2", "--seed", "2"), "seed = 1, not 2, no limit, not limit = 2 (a")):
        assert said in refused("evaluate", test_flags(tmp_path, toy_model, *flags), tmp_path)
    own_bench(tmp_path, ("p1", "p2", "p4"))
    assert "of other problems or prompts" in refused("evaluate", test_flags(tmp_path, toy_model), tmp_path)
    own_bench(tmp_path)
    (tmp_path / "t.json").rename(tmp_path / "away.json")
    assert "is gone" in refused("evaluate", test_flags(tmp_path, toy_model), tmp_path)


def test_a_test_of_earlier_code_stays(tmp_path, toy_model, monkeypatch):
    """Its file has no hash of the requests, its answers have no times."""
    own_bench(tmp_path)
    evaluate.main(test_flags(tmp_path, toy_model))
    whole = journal.read_json(str(tmp_path / "t.json"))
    del whole["requests"], whole["adapter_weights"]
    journal.write_json(str(tmp_path / "t.json"), whole)
    lines = [{name: value for name, value in line.items() if name not in ("elapsed_seconds", "judge_text", "judge_unreadable")}
             for line in read_jsonl(tmp_path / "t.jsonl")]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(engines, "start", None)
    evaluate.main(test_flags(tmp_path, toy_model))
    again = journal.read_json(str(tmp_path / "t.json"))
    assert again["result"] == whole["result"] | {"wall_seconds": None}


def test_an_adapter_that_has_changed_is_another(tmp_path, toy_model, toy_adapters):
    """As out/adapter is after more steps: an old result must not be shown for it."""
    own_bench(tmp_path)
    shutil.copytree(toy_adapters[0], tmp_path / "adapter")
    argv = test_flags(tmp_path, toy_model, "--adapter", str(tmp_path / "adapter"))
    evaluate.main(argv)
    shutil.copytree(toy_adapters[1], tmp_path / "adapter", dirs_exist_ok=True)
    assert "other weights in the adapter" in refused("evaluate", argv, tmp_path)


def test_two_tests_do_not_write_to_one_file(tmp_path, toy_model):
    own_bench(tmp_path)
    with journal.lock(str(tmp_path), ".t.json.lock"):
        assert "another run holds the files of t.json" in refused("evaluate", test_flags(tmp_path, toy_model), tmp_path)


def test_the_default_output_names_what_was_tested(tmp_path, monkeypatch, toy_model):
    monkeypatch.chdir(tmp_path)
    settings = engines.Settings("there/tiny", "qwen3", "hf", "float32", 0.6, 0.95, 64, 0.9, None, 1, 1)
    for flags, name in (([], "own-tiny-base-T0.6-p0.95-64"), (["--split", "train"], "own-train-tiny-base-T0.6-p0.95-64"),
                        (["--adapter", "runs/a/adapter"], "own-tiny-runs-a-adapter-T0.6-p0.95-64")):
        options = evaluate.parse(["--bench", "here/own.jsonl", *flags])
        assert tests.default_out(options, settings) == f"out/{name}.json"


def test_an_adapter_is_tested_as_its_run_sampled(tmp_path):
    """adapter/ and adapter/step_K of distill.py, the updates of explore.py, and one that came from elsewhere."""
    ours, between = ({"model": name, "family": "olmo3", "temperature": 0.6, "top_p": 0.9, "max_tokens": 7} for name in "mn")
    journal.write_json(str(tmp_path / "distill.json"), {"settings": ours})
    journal.write_json(str(tmp_path / "explore.json"), {"settings": between})
    for name in ("adapter/step_3", "updates/adapter/step_3", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "elsewhere" / "adapter_config.json").write_text('{"base_model_name_or_path": "m"}')
    for name, settings in (("adapter", ours), ("adapter/step_3", ours), ("updates/adapter", between),
                           ("updates/adapter/step_3", between), ("elsewhere", {"model": "m"})):
        assert engines.adapter_run(str(tmp_path / name)) == settings
    flags = evaluate.parse(["--bench", "b", "--top-p", "1"]).engine_flags
    taken = engines.as_run(flags, ours, tmp_path)
    assert [taken[name] for name in ("model", "family", "temperature", "top_p", "max_tokens")] == ["m", "olmo3", 0.6, 1.0, 7]


# ---------------------------------------------------------------------------------------------------------------------
# Intervals


def test_intervals_of_a_test():
    same = {f"p{i}": [1, 0] for i in range(9)}
    assert measures.test_intervals(same) == {"avg": (0.5, 0.5), "pass": (1.0, 1.0)}
    half = {f"p{i}": [i % 2] for i in range(100)}
    low, high = measures.test_intervals(half)["avg"]
    # 0.5 -/+ 1.96 sqrt(0.25 / 100), within the steps of 0.01 of a share of 100
    assert abs(low - 0.402) <= 0.01 and abs(high - 0.598) <= 0.01


def test_one_test_against_another(tmp_path, capsys):
    settings = dict.fromkeys(tests.COMPARED) | {"samples": 2}
    for name, correct in (("a", {"p": [1, 1], "q": [0, 1]}), ("b", {"p": [0, 1], "q": [0, 0]})):
        journal.write_json(str(tmp_path / f"{name}.json"), {"settings": settings, "versions": {}, "problems": {"correct": correct}})
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    evaluate.main(["--test", a, "--versus", b, "--out", str(tmp_path / "o.json")])
    assert "| avg@2 | 75.00 | 25.00 | 50.00 | 50.00 | 50.00 |" in capsys.readouterr().out
    table, = json.loads((tmp_path / "o.json").read_text())
    assert table["rows"] == [["avg@2", 75, 25, 50, 50, 50], ["pass@2", 100, 50, 50, 0, 100]]
    changed = journal.read_json(b)
    changed["settings"]["temperature"] = 0.6
    journal.write_json(b, changed)
    assert "temperature is None and 0.6" in refused("evaluate", ["--test", a, "--versus", b], tmp_path)
    del changed["problems"]
    journal.write_json(b, changed)
    assert "a test that has ended" in refused("evaluate", ["--test", a, "--versus", b], tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Faults, lines, help


def test_faults_are_told_by_problem_and_reason():
    records = [{"problem": f"p{i}", "fault": f"its context of {i} tokens is long."} for i in range(7)]
    records += [{"problem": "p1", "fault": "the sandbox died."}, {"problem": "p2", "fault": None},
                {"problem": "p3", "fault": None, "judge_unreadable": True}]
    wrong = "answers, which count as wrong (problems: "
    assert rollouts.fault_lines(records) == [
        f"The verifier itself failed on 7 {wrong}p0, p1, p2, p3, p4, ...): its context of 0 tokens is long.",
        f"The verifier itself failed on 1 {wrong}p1): the sandbox died.",
        f"The verifier itself failed on 1 {wrong}p3): The judge said neither yes nor no (field judge_text)."]


@pytest.mark.parametrize("text, unreadable", [("Yes.", False), ("it is NO", False), ("Maybe; yesterday", True), ("", True)])
def test_unreadable_verdicts_of_the_judge(text, unreadable):
    judgment = argparse.Namespace(text=text)
    assert verifiers.judge_record(judgment) == {"judge_text": text, "judge_unreadable": unreadable}
    assert verifiers.judge_record(None) == {"judge_text": None, "judge_unreadable": False}


def test_answers_reach_the_disk(tmp_path, monkeypatch):
    """The thread writes through what stands there, also where nothing more is appended; and the end does."""
    synced, twice = [], threading.Event()

    def fsync(number):
        synced.append(os.fstat(number).st_size)
        if len(synced) == 2:
            twice.set()
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal, "SYNC_SECONDS", 0.01)
    with open(tmp_path / "r.jsonl", "a") as file, journal.synced(file):
        journal.append(file, {"a": 1})
        assert twice.wait(60)
    assert len(synced) >= 3 and synced[-1] == len('{"a": 1}\n')


def test_a_line_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    bar = progress.new_bar(40, "call", initial=3)
    bar.update(2)
    bar.set_postfix_str("7 tokens/s")
    said = ""
    until = time.monotonic() + 60
    while "5 of 40 calls" not in said and time.monotonic() < until:
        said += capsys.readouterr().err
    bar.close()
    line = next(line for line in said.splitlines() if "7 tokens/s" in line)
    assert re.fullmatch(r"5 of 40 calls, 00:0\d so far, [\d:?]+ left, 7 tokens/s", line) and "\r" not in said


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_every_default(script, capsys, monkeypatch):
    """Switches apart, and flags of which one is required."""
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        SCRIPTS[script].main(["--help"])
    modes = {"--bench", "--rollouts", "--update", "--test", "--tokens", "--cplus"} if script in ("evaluate", "explore", "distill") else set()
    for text in capsys.readouterr().out.partition("options:")[2].split("\n  -")[1:]:
        line = " ".join(f"-{text}".partition("\n\n")[0].split("\n"))
        flag, *value = line.partition("  ")[0].split()
        if value and flag not in modes and flag != "-h,":
            assert "default" in line, line


def test_a_batch_of_more_than_there_is_is_told(tmp_path, monkeypatch, capsys, places):
    monkeypatch.setattr(distill, "run_engine", None)
    with pytest.raises(TypeError):                                        # after it is told
        distill.main(["--cplus", f"{places['run']}/cplus.jsonl", "--model", places["model"], "--batch", "3",
                      "--out", str(tmp_path / "new")])
    assert "each step takes every problem 3 times on average, as --batch 3 is more" in capsys.readouterr().out


def test_the_table_of_fields_is_complete(monkeypatch, tmp_path):
    from test_explore import number_script, run
    _, records, _ = run(monkeypatch, tmp_path, number_script)
    page = (ROOT / "EXPERIMENTS.md").read_text().partition("\n## The fields of rollouts.jsonl\n")[2].partition("\n## ")[0]
    named = [name for cell in re.findall(r"^\| (`.*?`) \|", page, re.M) for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(records[0])

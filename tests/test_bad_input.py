"""Bad input gets one clear sentence and exit status 2, never a traceback, and what is written stays."""
import json
import os
import shutil
import subprocess
import sys

import pytest

import distill
import engines
import evaluate
import explore
import verifiers
from benches.own import problem_from_row
from common import journal
from common.errors import BadInput, exit_with_sentence
from conftest import make_adapter, make_model

SCRIPTS = {"explore": explore.main, "distill": distill.main, "evaluate": evaluate.main}
ROW = {"id": "a", "problem": "1 + 1?", "verifier": "math", "answer": "2"}
CONTEXT = {"problem": "a", "bench": "b", "model": "m", "family": "qwen3", "step": 1, "response": "2",
           "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 4},
           "opening": [{"role": "user", "content": "x"}], "context": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory, toy_model, toy_adapters):
    """A folder with every kind of file that is wrong, and the names that the table below fills in."""
    folder = tmp_path_factory.mktemp("bad")
    names = {"model": toy_model, "adapter": toy_adapters[0]}

    def put(name, *lines):
        (folder / name).write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        names.setdefault(name.split(".")[0], str(folder / name))
    put("good.jsonl", ROW)
    put("torn.jsonl", ROW, '{"id": "b", "prob')
    put("noid.jsonl", {k: v for k, v in ROW.items() if k != "id"})
    put("typo.jsonl", ROW, {**ROW, "id": "b", "anwser": "2"})
    put("twice.jsonl", ROW, ROW)
    put("empty.jsonl")
    put("noverifier.jsonl", {**ROW, "verifier": "magic"})
    put("nocontext.jsonl", {k: v for k, v in CONTEXT.items() if k != "context"})
    put("mixed.jsonl", CONTEXT, {**CONTEXT, "bench": "c"})
    put("nomodel.jsonl", {**CONTEXT, "model": str(folder / "gone")})
    put("file.txt", "not a folder")
    names["folder"] = str(folder)
    names["bare"] = make_model(folder / "bare", template=False)
    names["other"] = make_model(folder / "other", seed=3)

    def damaged(name, original, file, change):
        names[name] = shutil.copytree(original, folder / name)
        change(folder / name / file)
    for name, file in (("tornmodel", "model.safetensors"), ("tornconfig", "config.json"), ("torntokens", "tokenizer.json")):
        damaged(name, toy_model, file, lambda path: os.truncate(path, 100))
    damaged("torngeneration", toy_model, "generation_config.json", lambda path: os.truncate(path, 10))
    damaged("noweights", toy_model, "model.safetensors", os.remove)
    damaged("notokens", toy_model, ".", lambda path: [os.remove(file) for file in path.glob("tokenizer*")])
    damaged("wide", toy_model, "config.json", lambda path: path.write_text(path.read_text().replace(
        '"hidden_size": 64', '"hidden_size": 96')))
    damaged("nosystem", toy_model, "chat_template.jinja", lambda path: path.write_text("{{ raise_exception('no turns') }}"))
    damaged("tornadapter", toy_adapters[0], "adapter_model.safetensors", lambda path: os.truncate(path, 100))
    damaged("halfadapter", toy_adapters[0], "adapter_model.safetensors", os.remove)
    damaged("badadapter", toy_adapters[0], "adapter_config.json", lambda path: path.write_text("[]"))
    damaged("wideadapter", make_adapter(make_model(folder / "broad", hidden_size=96), folder / "wa", 1), "adapter_config.json",
            lambda path: path.write_text(path.read_text().replace(str(folder / "broad"), toy_model)))
    (folder / "busy").mkdir()
    names["busy"] = str(folder / "busy")
    (folder / "used").mkdir()
    names["used"] = str(folder / "used")
    journal.write_json(str(folder / "used" / "explore.json"), {"settings": {"bench": "another.jsonl"}})
    put("used/rollouts.jsonl", {"problem": "a", "step": 1})
    return names


@pytest.mark.parametrize("command,sentence", [
    ("explore --bench maths --model {model}", "there is no bench maths: name math500, lcb, mbpp, sciknoweval, arithmetic"),
    ("explore --bench {folder}/none.jsonl --model {model}", "none.jsonl cannot be read"),
    ("explore --bench {torn} --model {model}", "torn.jsonl line 2 is not JSON"),
    ("explore --bench {noid} --model {model}", 'noid.jsonl line 1: "id" is missing'),
    ("explore --bench {typo} --model {model}", 'typo.jsonl line 2: unknown field "anwser"'),
    ("explore --bench {twice} --model {model}", "twice.jsonl"),
    ("explore --bench {empty} --model {model}", "empty.jsonl"),
    ("explore --bench {noverifier} --model {model}", '"verifier" must be one of math, code, judge'),
    ("explore --bench {good} --data {good} --model {model}", "--data is a copy of"),
    ("explore --bench math500 --data {folder}/none.jsonl --model {model}", "none.jsonl cannot be read"),
    ("explore --bench math500 --data {good} --model {model}", "good.jsonl line 1"),
    ("explore --bench mbpp --split train --model {model}", "no split train"),
    ("explore --bench {good}", "there is no CUDA device here"),
    ("explore --bench {good} --model {folder}/none", "is neither a folder here nor a model that the Hub gave"),
    ("explore --bench {good} --model {folder}", "cannot be loaded (Unrecognized model in"),
    ("explore --bench {good} --model {tornmodel} --out {folder}/c", "cannot be loaded"),
    ("explore --bench {good} --model {tornconfig} --out {folder}/c", "cannot be loaded"),
    ("explore --bench {good} --model {torntokens} --out {folder}/c", "cannot be loaded"),
    ("explore --bench {good} --model {torngeneration} --out {folder}/c", "generation_config.json of"),
    ("explore --bench {good} --model {noweights} --out {folder}/c", "cannot be loaded"),
    ("explore --bench {good} --model {notokens} --out {folder}/c", "has no tokenizer"),
    ("explore --bench {good} --model {wide} --out {folder}/c", "cannot be loaded"),
    ("explore --bench {good} --model {nosystem} --out {folder}/c", "does not take these turns (no turns)"),
    ("explore --bench {good} --model {bare} --out {folder}/a", "has no chat template"),
    ("explore --bench {good} --model {model} --max-model-len 16 --out {folder}/b", "does not fit the model's window of 16"),
    ("explore --bench {good} --model {model} --out {busy}", "another run holds the folder"),
    ("explore --bench {good} --model {model} --out {used}", "holds a run with bench = another.jsonl"),
    ("explore --bench {good} --model {model} --out {file}", "cannot be written"),
    ("explore --bench {good} --model {model} --limit 0", "argument --limit: 0 is no whole number above 0"),
    ("explore --bench {good} --model {model} --calls many", "argument --calls"),
    ("explore --bench {good} --model {model} --restart 0", "argument --restart"),
    ("explore --bench {good} --model {model} --temperature -1", "--temperature must be at least 0"),
    ("explore --bench {good} --model {model} --top-p 0", "--top-p"),
    ("explore --bench {good} --model {model} --engine hf --tensor-parallel 2", "are vLLM's"),
    ("explore --bench {good} --model {model} --family llama", "argument --family"),
    ("explore --model {model}", "--bench"),
    ("distill --cplus {folder}/none.jsonl", "none.jsonl cannot be read"),
    ("distill --cplus {empty}", "holds no context: no answer was right"),
    ("distill --cplus {nocontext}", "line 1 has no context"),
    ("distill --cplus {mixed}", "mixes benches or models"),
    ("distill --cplus {nomodel}", "is neither a folder here nor a model that the Hub gave"),
    ("distill --cplus {nomodel} --tau 0", "argument --tau"),
    ("distill --cplus {nomodel} --traces failure --model {model}", "rollouts.jsonl cannot be read"),
    ("evaluate --bench {good} --model {other} --adapter {adapter}", "was trained on"),
    ("evaluate --bench {good} --model {model} --adapter {folder}", "holds no whole adapter_config.json"),
    ("evaluate --bench {good} --model {model} --adapter {halfadapter}", "holds no whole adapter_config.json"),
    ("evaluate --bench {good} --model {model} --adapter {badadapter}", "holds no whole adapter_config.json"),
    ("evaluate --bench {good} --model {model} --adapter {tornadapter}", "cannot be loaded"),
    ("evaluate --bench {good} --model {model} --adapter {wideadapter}", "cannot be loaded (Error(s) in loading state_dict"),
    ("evaluate --bench maths --model {model}", "there is no bench maths"),
    ("evaluate --rollouts {folder}/none.jsonl", "none.jsonl"),
    ("evaluate --rollouts {empty}", "empty.jsonl"),
])
def test_one_sentence(files, command, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    script, *argv = command.format(**files).split()
    with pytest.raises(SystemExit) as exit, journal.lock(files["busy"]):
        exit_with_sentence(lambda: SCRIPTS[script](argv))
    errors = capsys.readouterr().err
    assert exit.value.code == 2 and sentence in errors and "Traceback" not in errors
    said = errors.strip().split("\n")[-1]
    assert len(said) < 600 and (said.endswith(".") or said.startswith(script) or "error: " in said)


@pytest.mark.parametrize("argv,sentence", [
    (["explore.py", "--bench", "maths", "--model", "{model}"], "there is no bench maths"),
    (["distill.py", "--cplus", "{empty}"], "holds no context"),
    (["evaluate.py", "--rollouts", "{empty}"], "empty.jsonl"),
    (["verifiers.py", "{folder}/none.jsonl"], "none.jsonl cannot be read"),
    (["verifiers.py", "{torn}"], "torn.jsonl line 2 is not JSON")])
def test_scripts_exit_with_status_2(files, argv, sentence):
    """The same, as a user meets it: the scripts themselves, as processes of their own."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    argv = [sys.executable, os.path.join(root, argv[0]), *(word.format(**files) for word in argv[1:])]
    result = subprocess.run(argv, capture_output=True, text=True, cwd=files["folder"])
    assert result.returncode == 2 and sentence in result.stderr and "Traceback" not in result.stderr
    assert result.stdout == "" and len(result.stderr.strip().split("\n")) == 1


def test_judge_rows_need_an_engine(files, tmp_path):
    row = {"problem": {"id": "j", "problem": "q", "verifier": "judge", "reference": "r"}, "response": "r"}
    (tmp_path / "judge.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(BadInput, match="needs an engine"):
        verifiers.verify(problem_from_row(row["problem"], "j", "judge.jsonl line 1"), "r")


def test_a_closed_pipe_is_no_error(monkeypatch, capfd):
    """`evaluate.py ... | head` ends quietly."""
    def main():
        raise BrokenPipeError
    monkeypatch.setattr("os.dup2", lambda *_: None)
    with pytest.raises(SystemExit):
        exit_with_sentence(main)
    assert capfd.readouterr().err == ""


def test_ctrl_c_before_a_run_begins(capsys):
    def main():
        raise KeyboardInterrupt
    with pytest.raises(SystemExit) as exit:
        exit_with_sentence(main)
    assert exit.value.code == 130 and capsys.readouterr().err == "\nStopped.\n"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1'])
def test_a_damaged_file_of_a_run(tmp_path, content):
    (tmp_path / "explore.json").write_text(content)
    with pytest.raises(BadInput, match="explore.json is damaged"):
        journal.read_json(str(tmp_path / "explore.json"))


def test_ctrl_c_while_python_imports():
    """torch alone takes seconds, in which a user changes his mind."""
    script = ("import sys\nclass Finder:\n    def find_spec(self, name, *_):\n        if name == 'torch':\n"
              "            raise KeyboardInterrupt\nsys.meta_path.insert(0, Finder())\nimport distill")
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode != 0 and process.stderr == "\nStopped.\n"


def test_the_model_is_that_of_the_run(tmp_path, monkeypatch):
    """Not another one of that name in the folder where we are."""
    for place in ("there", "here"):
        (tmp_path / place / "out" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    run = str(tmp_path / "there" / "out" / "leaf" / "cplus.jsonl")
    assert engines.model_near("out/model", run) == str(tmp_path / "there" / "out" / "model")
    assert engines.model_near("out/model", "out/leaf/cplus.jsonl") == "out/model"  # as the run named it
    assert engines.model_near("Qwen/Qwen3-8B", run) == "Qwen/Qwen3-8B"
    assert engines.model_near(str(tmp_path / "here" / "out" / "model"), run) == str(tmp_path / "here" / "out" / "model")

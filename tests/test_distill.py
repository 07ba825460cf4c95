"""Algorithm 1, lines 13-16: the batch stream, the contexts, the gradient however the batch is cut, and resume."""
import json
import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import data
import distill
import engine
import loss
from conftest import make_adapter, make_model, make_tokenizer
from safetensors.torch import load_file

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# ---- batches and contexts


def test_batches_are_cuts_of_one_stream():
    """Five problems, batches of three: epochs follow one another, a batch may span two, nothing depends on where it starts."""
    epochs = [np.random.default_rng(epoch).permutation(5).tolist() for epoch in range(3)]
    stream = sum(epochs, [])
    cuts = [distill.batch_indices(step, 3, 5, seed=1) for step in range(1, 6)]
    assert [i for cut in cuts for i, _ in cut] == stream
    assert epochs[:2] == [[2, 4, 3, 0, 1], [4, 0, 1, 2, 3]]
    assert cuts[:2] == [[(2, 0), (4, 0), (3, 0)], [(0, 0), (1, 0), (4, 0)]]
    assert distill.batch_indices(1, 5, 5, seed=3) == [(int(i), 0) for i in np.random.default_rng(2 * 10**8).permutation(5)]


def test_a_problem_twice_in_a_batch_has_two_occurrences():
    batch = distill.batch_indices(1, 7, 3, seed=1)
    assert batch == [(2, 0), (0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (2, 2)]


def test_context_draws_are_fixed_and_uniform():
    contexts = ["a", "b", "c", "d"]
    draws = [distill.draw_context(contexts, 1, step, "p") for step in range(1, 9)]
    assert draws == [distill.draw_context(contexts, 1, step, "p") for step in range(1, 9)]
    assert draws != [distill.draw_context(contexts, 2, step, "p") for step in range(1, 9)]
    many = [distill.draw_context(contexts, 1, step, "p", k) for step in range(1000) for k in range(2)]
    for context in contexts:  # 2,000 draws, a quarter each, within five standard deviations
        assert abs(many.count(context) - 500) < 5 * math.sqrt(2000 * 0.25 * 0.75)


def turn(text, role="user"):
    return {"role": role, "content": text}


def attempt(problem, step, reward, said, restart=False):
    return {"problem": problem, "step": step, "reward": reward, "restart": restart, "context": [turn(problem), turn("y", "assistant"), turn(said)]}


ROLLOUTS = [attempt("p", 1, 0, "blind", restart=True), attempt("p", 2, 1, "wrong"), attempt("p", 3, 1, "right"),
            attempt("p", 4, 0, "right"), attempt("p", 5, 0, "right"), attempt("q", 1, 1, "blind", restart=True), attempt("q", 2, 1, "right")]


def lines_of(rollouts):
    return distill.group([{"problem": r["problem"], "bench": "b", "opening": [turn(r["problem"])], "context": r["context"],
                           "step": r["step"]} for r in rollouts if r["reward"]])


def test_traces():
    """Tables 5 and 27: failure drops duplicates and falls back to the plain prompt, random swaps the feedback turn alone."""
    lines = lines_of(ROLLOUTS)
    assert distill.teacher_contexts(lines, "success", []) == {
        "p": [ROLLOUTS[1]["context"], ROLLOUTS[2]["context"]], "q": [ROLLOUTS[5]["context"], ROLLOUTS[6]["context"]]}
    assert distill.teacher_contexts(lines, "failure", ROLLOUTS) == {
        "p": [ROLLOUTS[0]["context"], ROLLOUTS[3]["context"]], "q": [[turn("q")]]}
    replaced = distill.teacher_contexts(lines, "random", ROLLOUTS)
    assert [context[-1]["content"] for context in replaced["p"]] == ["right", "wrong"]        # another step of the problem
    assert [context[-1]["content"] for context in replaced["q"]] == ["blind", "wrong"]        # restart kept; another problem
    assert [context[:-1] for context in replaced["p"]] == [c["context"][:-1] for c in lines["p"]]


def test_random_traces_need_two_texts():
    rollouts = [attempt("p", 2, 1, "right"), attempt("p", 3, 1, "right")]
    with pytest.raises(data.BadInput, match="two feedback texts"):
        distill.teacher_contexts(lines_of(rollouts), "random", rollouts)


# ---- the gradient


def make_items(n, seed=0):
    """Responses of 1 to 30 tokens on prompts and contexts of different lengths, of random tokens."""
    rng = random.Random(seed)
    def ids(low, high):
        return [rng.randrange(250) for _ in range(rng.randint(low, high))]
    items = []
    for i in range(n):
        response = ids(1, 30) if i else [7]
        items.append(distill.Item(f"p{i}", ids(3, 20), ids(20, 50), engine.Sample(
            response, "", [-rng.random() * 8 for _ in response], "stop", 0)))
    return items


class Recorder:
    """Takes the place of the optimizer: keeps the gradient that it would step on."""

    def __init__(self, policy):
        self.policy, self.gradients = policy, None

    def step(self):
        self.gradients = {name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
                          for name, p in self.policy.model.named_parameters() if p.requires_grad}

    def zero_grad(self):
        for p in self.policy.parameters():
            p.grad = None


def load(folder, adapter, checkpoint_every=0):
    settings = engine.Settings(folder, "qwen3", "hf", "float32", 0.7, 1.0, 64, 0.4, None, 1, 1)
    return distill.load_policy(settings, adapter, 1, checkpoint_every, torch.device("cpu"))


def gradient(policy, items, budget, kind="reverse_kl", tau=math.inf):
    recorder = Recorder(policy)
    metrics = distill.update(policy, recorder, items, kind=kind, tau=tau, budget=budget, max_grad_norm=math.inf)
    return recorder.gradients, metrics


def assert_close(a, b, tolerance=1e-5):
    scale = max(x.abs().max() for x in b.values())
    assert a.keys() == b.keys() and scale > 0
    for name in a:
        assert (a[name] - b[name]).abs().max() <= tolerance * scale, name


def plain_gradient(policy, items, kind, tau):
    """Eq. 3 as it is written: a forward pass for each row, the plain divergence, one sum over one count."""
    total, tokens = 0, sum(len(i.sample.token_ids) for i in items)
    for i in items:
        y = i.sample.token_ids
        def logits(prompt):
            out = policy.model(input_ids=torch.tensor([prompt + y]), use_cache=False).logits[0, len(prompt) - 1:-1]
            return out / policy.temperature
        with torch.no_grad():
            teacher = logits(i.context)
        student = logits(i.opening)
        weights = loss.importance_weights(student.log_softmax(-1)[torch.arange(len(y)), y], torch.tensor(i.sample.logprobs))
        total = total + (weights * loss.token_divergence(student, teacher, kind, tau)).sum() / tokens
    total.backward()
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.requires_grad}
    Recorder(policy).zero_grad()
    return found, total.item()


@pytest.mark.parametrize("kind,tau", [("reverse_kl", math.inf), ("reverse_kl", 1e-3), ("forward_kl", math.inf), ("jsd", math.inf)])
def test_gradient_is_that_of_equation_3(toy_model, toy_adapters, kind, tau):
    policy, items = load(toy_model, toy_adapters[0]), make_items(7)
    expected, value = plain_gradient(policy, items, kind, tau)
    found, metrics = gradient(policy, items, budget=200, kind=kind, tau=tau)
    assert_close(found, expected, 2e-5)
    assert metrics["loss"] == pytest.approx(value, rel=1e-4) and metrics["response_tokens"] == sum(len(i.sample.token_ids) for i in items)


@pytest.mark.parametrize("architecture", ["qwen3", "olmo3"])
def test_gradient_does_not_depend_on_the_cut(architecture, tmp_path):
    """Single rows, packed rows, many micro-batches, with and without checkpointing; a mean of means would differ."""
    changes = {} if architecture == "qwen3" else {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    folder = make_model(tmp_path / "model", architecture=architecture, **changes)
    adapter, items = make_adapter(folder, tmp_path / "adapter", 0), make_items(9)
    policy = load(folder, adapter)
    single, _ = gradient(policy, items, budget=1)
    assert len(distill.micro_batches(items, 1)) == 9 and len(distill.micro_batches(items, 200)) in range(3, 9)
    for budget in (10**6, 200):
        assert_close(gradient(policy, items, budget)[0], single)
    assert_close(gradient(load(folder, adapter, checkpoint_every=1), items, 200)[0], single)
    parts = [gradient(policy, part, 10**6)[0] for part in distill.micro_batches(items, 200)]
    mean = {name: sum(part[name] for part in parts) / len(parts) for name in single}
    with pytest.raises(AssertionError):
        assert_close(mean, single)


RANKS = """
import sys, torch, torch.distributed as dist
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
import distill, test_distill
dist.init_process_group("gloo")
rank, world = distill.rank_and_world()
items = test_distill.make_items(4)
policy = test_distill.load({model!r}, {adapter!r}, checkpoint_every=1)
shares = {{1: [items], 2: [items[:3], items[3:]], 3: [items[:1], [], items[1:]]}}[world]  # uneven, and one that is empty
gradients, metrics = test_distill.gradient(policy, shares[rank], budget=150)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
distill.update(policy, optimizer, shares[rank], kind="reverse_kl", tau=1.0, budget=150)
distill.save(policy, optimizer, {out!r} + str(world), 1)
if rank == 0:
    torch.save((gradients, metrics), {out!r} + str(world) + "/gradient.pt")
"""


def run_ranks(world, script):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world), str(script)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("architecture", ["qwen3", "olmo3"])  # tied and untied heads
def test_ranks_agree(architecture, tmp_path):
    """1, 2 and 3 ranks, uneven and empty shares: the same gradient, and the same whole adapter after a step."""
    folder = make_model(tmp_path / "model", architecture=architecture)
    adapter, items = make_adapter(folder, tmp_path / "adapter", 0), make_items(4)
    (tmp_path / "ranks.py").write_text(RANKS.format(root=ROOT, model=folder, adapter=adapter, out=str(tmp_path / "out")))
    expected, metrics = gradient(load(folder, adapter), items, budget=10**6)
    saved = {}
    for world in (1, 2, 3):
        run_ranks(world, tmp_path / "ranks.py")
        found, its_metrics = torch.load(tmp_path / f"out{world}" / "gradient.pt", weights_only=False)
        assert_close(found, expected)
        assert its_metrics == pytest.approx(metrics, rel=1e-4)
        saved[world] = load_file(tmp_path / f"out{world}" / "adapter_model.safetensors")
    assert_close(saved[2], saved[1], 1e-3)  # AdamW's first step is the sign of the gradient: tiny entries may differ
    assert_close(saved[3], saved[1], 1e-3)
    assert load(folder, str(tmp_path / "out3")).parameters()  # an adapter of three ranks loads on one


# ---- the run


class ScriptedEngine:
    """Draws a response from the request's seed alone."""
    startup_seconds, parameters, gpus, slots, window = 0.0, 1000, 1, 4, 10**6

    def __init__(self, folder):
        self.tokenizer, self.adapters = make_tokenizer(), []

    def encode(self, messages):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        rng = random.Random(seed)
        ids = [rng.randrange(250) for _ in range(rng.randint(1, 6))]
        self.adapters.append(adapter)
        return engine.Sample(ids, self.tokenizer.decode(ids), [-3.0] * len(ids), "stop", len(prompt_token_ids))

    def close(self):
        pass


def write_cplus(path, model, problems=3):
    with open(path, "w") as file:
        for i in range(problems):
            for step in (2, 4):
                file.write(json.dumps({
                    "problem": f"p{i}", "bench": "toy", "model": model, "family": "qwen3", "step": step, "response": "y",
                    "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8}, "opening": [turn(f"x{i}")],
                    "context": [turn(f"x{i}"), turn(f"y{step}", "assistant"), turn("wrong")]}) + "\n")
    return str(path)


def run(monkeypatch, tmp_path, model, *flags, steps=5, out="out"):
    engines = []

    async def start(settings, adapters=False):
        engines.append(ScriptedEngine(model))
        return engines[-1]
    monkeypatch.setattr(engine, "start", start)
    cplus = write_cplus(tmp_path / "cplus.jsonl", model)
    distill.main(["--cplus", cplus, "--steps", str(steps), "--batch", "4", "--lr", "1e-2", "--micro-tokens", "100",
                  "--out", str(tmp_path / out), *map(str, flags)])
    return engines[-1], load_file(tmp_path / out / "adapter" / "adapter_model.safetensors")


def test_a_run_and_its_files(monkeypatch, tmp_path, toy_model):
    sampler, weights = run(monkeypatch, tmp_path, toy_model, "--merge")
    steps = data.read_jsonl(str(tmp_path / "out" / "distill.jsonl"))
    samples = data.read_jsonl(str(tmp_path / "out" / "samples.jsonl"))
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5] and len(samples) == 20
    names = [f"p{i}" for step in range(1, 6) for i, _ in distill.batch_indices(step, 4, 3, 1)]
    assert [s["problem"] for s in samples] == names and {s["context_step"] for s in samples} == {2, 4}
    folder = str(tmp_path / "out" / "adapter")
    assert sampler.adapters == [None] * 4 + [f"{folder}/step_{k}" for k in (1, 2, 3, 4) for _ in range(4)]  # the current adapter
    assert sorted(os.listdir(folder)) == ["adapter_config.json", "adapter_model.safetensors", "step_4", "step_5"]
    assert steps[0]["response_tokens"] == sum(s["completion_tokens"] for s in samples[:4])
    merged = engine.load(engine.AutoModelForCausalLM, str(tmp_path / "out" / "merged"))
    with_adapter = distill.load_policy(engine.Settings(toy_model, "qwen3", "hf", "float32", 1.0, 1.0, 8, 0.4, None, 1, 1), folder, 1, 0,
                                       torch.device("cpu")).model
    ids = torch.arange(9)[None]
    assert torch.allclose(merged(ids).logits, with_adapter(ids).logits, atol=1e-4)
    assert any(w.abs().max() > 0 for name, w in weights.items() if "lora_B" in name)


@pytest.mark.parametrize("where", ["update", "save", "newest"])
def test_killed_and_resumed(monkeypatch, tmp_path, toy_model, where):
    """Stopped in each of five steps, before the update, before and within the checkpoint: the same adapter at the end."""
    _, undisturbed = run(monkeypatch, tmp_path, toy_model, out="whole")
    fail_points = {"update": (distill, "update"), "save": (distill, "save"), "newest": (distill.shutil, "copyfile")}
    module, name = fail_points[where]
    working = getattr(module, name)
    for step in range(1, 6):
        calls = []

        def failing(*args, **kwargs):
            calls.append(args)
            if len(calls) == (2 if where == "newest" or step > 1 else 1):  # a step has two copies; of the others one each
                raise SystemExit("fail point")
            return working(*args, **kwargs)
        monkeypatch.setattr(module, name, failing)
        with pytest.raises(SystemExit, match="fail point"):
            run(monkeypatch, tmp_path, toy_model)
        monkeypatch.setattr(module, name, working)
        assert distill.newest_step(str(tmp_path / "out" / "adapter")) == (step if where == "newest" else step - 1)
    _, weights = run(monkeypatch, tmp_path, toy_model)
    assert all(torch.equal(weights[name], undisturbed[name]) for name in undisturbed)
    assert [s["step"] for s in data.read_jsonl(str(tmp_path / "out" / "distill.jsonl"))] == [1, 2, 3, 4, 5]
    a, b = ((tmp_path / out / "samples.jsonl").read_text() for out in ("out", "whole"))
    assert a == b


def test_more_steps_extend_a_run_and_other_changes_are_refused(monkeypatch, tmp_path, toy_model):
    _, whole = run(monkeypatch, tmp_path, toy_model, out="whole")
    run(monkeypatch, tmp_path, toy_model, steps=2)
    with pytest.raises(data.BadInput, match="divergence = reverse_kl, not jsd"):
        run(monkeypatch, tmp_path, toy_model, "--divergence", "jsd")
    with pytest.raises(data.BadInput, match="steps = 2, not 1"):
        run(monkeypatch, tmp_path, toy_model, steps=1)
    _, weights = run(monkeypatch, tmp_path, toy_model)
    assert all(torch.equal(weights[name], whole[name]) for name in whole)

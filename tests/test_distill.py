"""Algorithm 1, lines 13-16: what is trained on, one gradient however it is cut, and a run that survives every stop."""
import functools
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.torch import load_file

import ablations
import distill
import engines
import loss
import policy as policies
import scripted_student
from common import checkpoints, gpu_memory, journal, ranks, updates
from common.errors import BadInput, read_jsonl
from common.flags import UpdateArgs
from conftest import TOY_TERMS, make_model, tolerance
from engines.base import Sample, check_adapter, request_seed
from policy import LORA_RANK, adam
from scripted_student import ScriptedStudent, gradients, toy_items, toy_policy

import torch


# ---------------------------------------------------------------------------------------------------------------------
# Batches, contexts, traces


def test_batches_are_cuts_of_one_stream():
    """Three problems, batches of four: the epochs are the permutations of seeds 0, 1, 2 ...; a batch spans two."""
    stream = [int(i) for epoch in range(4) for i in np.random.default_rng(epoch).permutation(3)]
    assert stream == [2, 0, 1, 0, 1, 2, 2, 0, 1, 2, 1, 0]
    batches = [distill.batch_indices(step, 4, 3, 1) for step in (1, 2, 3)]
    assert [i for batch in batches for i, _ in batch] == stream
    assert batches == [[(2, 0), (0, 0), (1, 0), (0, 1)], [(1, 0), (2, 0), (2, 1), (0, 0)],
                       [(1, 0), (2, 0), (1, 1), (0, 0)]]
    second = [int(i) for epoch in range(2) for i in np.random.default_rng(10**8 + epoch).permutation(3)]
    assert [i for i, _ in distill.batch_indices(1, 6, 3, seed=2)] == second
    assert sorted(distill.batch_indices(1, 7, 3, 1))[:3] == [(0, 0), (0, 1), (1, 0)]  # three epochs in one batch


def test_context_draws():
    """Fixed by (seed, step, problem, occurrence), uniform over the list, the same place in lists of one length."""
    five, draws = list("abcde"), list("cbceedce")
    assert [distill.draw_context(five, 1, step, "p") for step in range(1, 9)] == draws
    assert distill.draw_context(five, 1, 1, "p", 0) == distill.draw_context(tuple("abcde"), 1, 1, "p")
    others = [[distill.draw_context(five, *key) for key in keys] for keys in (
        [(2, s, "p") for s in range(1, 9)], [(1, s, "q") for s in range(1, 9)], [(1, s, "p", 1) for s in range(1, 9)])]
    assert all(other != draws for other in others)
    counts = [sum(distill.draw_context(five, 1, step, "p") == c for step in range(1000)) for c in five]
    assert all(abs(n - 200) < 60 for n in counts)  # 4.7 standard deviations


def user(text):
    return {"role": "user", "content": text}


def dialogue(problem, answer, feedback):
    return [user(problem), {"role": "assistant", "content": answer}, user(feedback)]


def rollout(problem, step, reward, feedback, restart=False):
    return {"problem": problem, "step": step, "reward": reward, "restart": restart,
            "context": dialogue(problem, f"answer {step}", feedback)}


# a: right at 1 (restart), 3 and 4; wrong at 2 and, in the same context, at 5. b: right at 2 alone, never wrong.
ROLLOUTS = [rollout("a", 1, 1, "blind", restart=True), rollout("a", 2, 0, "you were right"),
            rollout("a", 3, 1, "you were wrong"), rollout("a", 4, 1, "you were right"),
            {**rollout("a", 2, 0, "you were right"), "step": 5},
            rollout("b", 2, 1, "b's own"), rollout("c", 2, 0, "you were right")]


def cplus_line(record, **changes):
    return {"problem": record["problem"], "bench": "toy", "model": "m", "family": "qwen3", "step": record["step"],
            "response": "r", "decoding": {"temperature": 0.7, "top_p": 1.0, "max_tokens": 20},
            "opening": [user(record["problem"])], "context": record["context"], **changes}


PROBLEMS = {p: [cplus_line(r) for r in ROLLOUTS if r["problem"] == p and r["reward"]] for p in "ab"}


def test_successful_traces():
    assert ablations.teacher_contexts(PROBLEMS, "success", []) == {
        "a": [ROLLOUTS[0]["context"], ROLLOUTS[2]["context"], ROLLOUTS[3]["context"]], "b": [ROLLOUTS[5]["context"]]}


def test_failure_traces():
    """Wrong answers' contexts without duplicates; the plain prompt for a problem that was never wrong."""
    found = ablations.teacher_contexts(PROBLEMS, "failure", ROLLOUTS)
    assert found == {"a": [ROLLOUTS[1]["context"]], "b": [[user("b")]]}


def test_failures_stand_in_the_order_of_the_steps_whatever_finished_first():
    rollouts = [*ROLLOUTS, rollout("a", 6, 0, "blind", restart=True), rollout("a", 7, 0, "you were wrong again")]
    contexts = [r["context"] for r in (rollouts[1], *rollouts[-2:])]
    for order in (rollouts, rollouts[::-1]):
        assert ablations.teacher_contexts(PROBLEMS, "failure", order)["a"] == contexts


def test_random_traces():
    """Only the feedback turn changes, to one that differs: the problem's own where there is one; a restart stays."""
    found = ablations.teacher_contexts(PROBLEMS, "random", ROLLOUTS)
    assert found["a"] == [ROLLOUTS[0]["context"], dialogue("a", "answer 3", "you were right"),
                          dialogue("a", "answer 4", "you were wrong")]
    (b,) = found["b"]
    assert b[:2] == ROLLOUTS[5]["context"][:2] and b[2]["content"] in ("you were right", "you were wrong")
    assert ablations.teacher_contexts(PROBLEMS, "random", ROLLOUTS[::-1]) == found  # whatever finished first


@pytest.mark.parametrize("rollouts,sentence", [
    ([rollout("a", 3, 1, "one"), rollout("b", 2, 1, "one")], "two feedback texts that differ"),
    ([{"problem": "a", "step": 3, "reward": 1, "restart": False, "context": [user("a")]}], "replaces the feedback")])
def test_random_traces_that_cannot_be(rollouts, sentence):
    problems = {r["problem"]: [cplus_line(r)] for r in rollouts}
    with pytest.raises(BadInput, match=sentence):
        ablations.teacher_contexts(problems, "random", rollouts)


@pytest.mark.parametrize("traces", ["failure", "random"])
def test_traces_of_other_rollouts_are_refused(traces):
    """Where a step of C+ is not in the file, nobody knows whether it was a restart."""
    with pytest.raises(BadInput, match="no step 3 of problem a, which cplus.jsonl holds: put back"):
        ablations.teacher_contexts(PROBLEMS, traces, [r for r in ROLLOUTS if (r["problem"], r["step"]) != ("a", 3)])


# ---------------------------------------------------------------------------------------------------------------------
# One gradient


@pytest.fixture(scope="module", params=["qwen3", "olmo3"])
def toy(request, tmp_path_factory):
    """Folder of a toy model: head tied (qwen3); untied, with attention that sees 8 tokens (olmo3)."""
    changes = {"sliding_window": 8} if request.param == "olmo3" else {}
    return make_model(tmp_path_factory.mktemp("toys") / request.param, architecture=request.param, **changes)


def row_logits(policy, prompt, item):
    """Logits [tokens of the response, V] over the temperature, from one unpacked row."""
    logits = policy.model(input_ids=torch.tensor([prompt + item.y.token_ids])).logits
    return logits[0, -len(item.y.token_ids) - 1:-1] / policy.temperature


def plain_gradients(policy, items, kind, tau):
    """Eq. 3 by the book: a row at a time, all logits, autograd, one division at the end."""
    total = sum(len(item.y.token_ids) for item in items)
    value = 0
    for item in items:
        n, ids = len(item.y.token_ids), torch.tensor(item.y.token_ids)
        student, teacher = (row_logits(policy, prompt, item) for prompt in (item.x, item.c))
        logprobs = student.log_softmax(-1)[range(n), ids]
        w = loss.importance_weights(logprobs, torch.tensor(item.y.logprobs))
        value = value + (w * loss.token_divergence(student, teacher.detach(), kind, tau)).sum()
    (value / total).backward()
    grads = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.requires_grad}
    policy.model.zero_grad()
    return grads, float(value.detach() / total)


ROUNDING = tolerance(torch.float32, 2 * TOY_TERMS)  # 5e-4: of a gradient, forward and back


def assert_same(found, expected, most=ROUNDING):
    assert found.keys() == expected.keys()
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    error = math.sqrt(sum(float((found[name] - g).square().sum()) for name, g in expected.items()))
    assert norm > 1e-3 and error < most * norm, (error, norm)


def assert_same_adapter(found, expected, steps, lr=1e-2):
    """A step of AdamW moves an entry by about lr, however small its gradient. Two go 2 lr apart where rounding decides
    its sign, and lr / 10 apart where it is below 10 ROUNDING of the usual: in fewer than 1% of the entries."""
    assert found.keys() == expected.keys()
    apart = torch.cat([(found[name] - w).abs().flatten() for name, w in expected.items()])
    share = (apart > lr / 10).float().mean()
    assert apart.max() < 2 * lr * steps and share < 0.01 * steps, (apart.max(), share)


def test_micro_batches_hold_what_just_fits():
    def sizes(*tokens):
        rows = [distill.Row([0] * (n - 2), [], Sample([1], "", [0.0], "stop", 1)) for n in tokens]
        return [[row.tokens() for row in batch] for batch in distill.micro_batches(rows, most=10)]
    assert sizes(6, 4) == [[4, 6]] and sizes(7, 4) == [[4], [7]]
    assert sizes(11, 6, 3, 4) == [[3, 4], [6], [11]]  # one row may be larger


def test_two_passes_a_micro_batch_and_no_other(toy, monkeypatch):
    policy, items, passes = toy_policy(toy), toy_items(), []
    hidden_states = policies.Policy.hidden_states
    monkeypatch.setattr(policies.Policy, "hidden_states",
                        lambda self, rows, lengths: (passes.append(len(rows)), hidden_states(self, rows, lengths))[1])
    gradients(policy, items, budget=60)
    assert passes == [len(batch) for batch in distill.micro_batches(items, 60) for _ in ("teacher", "student")]


def test_the_numbers_of_an_update_by_hand():
    found = {"weights": torch.tensor([0.5, 1.5, 2.0]), "divergence": 7.0, "entropy": 8.0, "capped_entries": 9}
    assert distill.Stats.of(torch.tensor(6.0), found) == distill.Stats(6.0, 7.0, 4.0, 1.0, 8.0, 9.0)
    sums = distill.Stats(1.0, 2.0, 3.0, 4.0, 5.0, 6.0) + distill.Stats(9.0, 18.0, 27.0, 36.0, 45.0, 54.0)
    assert sums == distill.Stats(10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
    assert sums.metrics(tokens=10, vocabulary=3, grad_norm=0.5) == {
        "loss": 1.0, "divergence": 2.0, "mean_w": 3.0, "capped_w": 4.0, "entropy": 5.0, "capped_entries": 2.0,
        "grad_norm": 0.5, "response_tokens": 10}


@pytest.mark.parametrize("kind,tau", [("reverse_kl", math.inf), ("reverse_kl", 0.05), ("forward_kl", 0.05),
                                      ("jsd", math.inf)])
def test_one_gradient_however_the_batch_is_cut(toy, kind, tau):
    """Single rows, packed rows, five micro-batches of unlike lengths; a mean of their means differs by far."""
    policy, items = toy_policy(toy), toy_items()
    expected, value = plain_gradients(policy, items, kind, tau)
    for budget in (1, 10**9, 60):
        found, metrics = gradients(policy, items, budget, kind, tau)
        assert_same(found, expected)
        assert metrics["loss"] == pytest.approx(value, rel=ROUNDING) and metrics["response_tokens"] == 34
    assert [len(batch) for batch in distill.micro_batches(items, 60)] == [2, 1, 1, 1, 1]
    parts = [gradients(policy, [item], 1, kind, tau)[0] for item in items]
    mean = {name: sum(part[name] for part in parts) / len(parts) for name in expected}
    with pytest.raises(AssertionError):
        assert_same(mean, expected, most=0.1)


def test_checkpointing_changes_nothing(toy):
    expected, _ = gradients(toy_policy(toy), toy_items(), 10**9)
    for every in (1, 2):
        assert_same(gradients(toy_policy(toy, every), toy_items(), 10**9)[0], expected)


def test_bfloat16_is_close(toy):
    """The backbone computes in bfloat16; the adapter, its gradient and the loss are float32."""
    expected, _ = gradients(toy_policy(toy), toy_items(), 10**9, tau=math.inf)
    policy = toy_policy(toy, dtype="bfloat16")
    found, metrics = gradients(policy, toy_items(), 10**9, tau=math.inf)
    assert all(g.dtype == torch.float32 for g in found.values()) and policy.head.dtype == torch.bfloat16
    a, b = (torch.cat([grads[name].flatten() for name in expected]) for grads in (found, expected))
    # Some 120 roundings by up to 2^-8 one after another usually make an error of 0.04 of the norm; 0.98 is one of 0.2.
    assert torch.cosine_similarity(a, b, dim=0) > 0.98 and math.isfinite(metrics["loss"])


def test_the_backbone_and_the_head_are_frozen(toy):
    policy = toy_policy(toy)
    trained = [name for name, p in policy.model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 7 and all("lora_" in name and "lm_head" not in name for name in trained)
    assert policy.model.peft_config["default"].r == policy.model.peft_config["default"].lora_alpha == 64


def test_metrics(toy):
    """Against the plain forms, on one item whose sampler was far less sure: every weight is at the cap."""
    item = toy_items()[2]
    policy, n = toy_policy(toy), len(item.y.token_ids)
    item.y.logprobs = [-50.0] * n
    student, teacher = (row_logits(policy, prompt, item).detach() for prompt in (item.x, item.c))
    _, metrics = gradients(policy, [item], 1, tau=math.inf)
    divergence = float(loss.token_divergence(student, teacher).mean())
    assert metrics["divergence"] == pytest.approx(divergence, rel=ROUNDING)
    assert metrics["loss"] == pytest.approx(2 * divergence, rel=ROUNDING)
    assert metrics["mean_w"] == 2 and metrics["capped_w"] == 1 and metrics["capped_entries"] == 0
    entropy = torch.distributions.Categorical(logits=student).entropy().mean()
    assert metrics["entropy"] == pytest.approx(float(entropy), rel=ROUNDING)


# ---------------------------------------------------------------------------------------------------------------------
# Memory

memory_budget = functools.partial(gpu_memory.memory_budget, lora_rank=LORA_RANK)

def saved_bytes(policy, tokens):
    """Bytes that a forward pass over one row keeps for its backward pass, the frozen weights apart."""
    own, kept = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}, {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.hidden_states([[1] * tokens], [tokens - 1])
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize("architecture", ["qwen3", "olmo3"])
def test_activations_are_those_of_the_budget(tmp_path, architecture, every):
    """What autograd saves of a bfloat16 forward pass grows by the budget's bytes a token, the model's ends apart."""
    policy = toy_policy(make_model(tmp_path / architecture, architecture=architecture), every, "bfloat16")
    measured = (saved_bytes(policy, 512) - saved_bytes(policy, 256)) / 256
    config = policy.model.config
    a, b = (memory_budget(config, 0, tokens, every)["activations"] for tokens in (256, 512))
    assert (b - a) / 256 == pytest.approx(measured, abs=8 * config.hidden_size)  # the last norm and the embedding


QWEN3_8B = dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False)


def test_budget_of_the_papers_models():
    """One H200, the paper's sizes: 8,192 response tokens, micro-batches of 16,384."""
    from transformers import Olmo3Config, Qwen3Config
    qwen = Qwen3Config(**QWEN3_8B)
    olmo = Olmo3Config(vocab_size=100278, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                       num_attention_heads=32, num_key_value_heads=32, tie_word_embeddings=False)
    for config, weights, per_token in ((qwen, 8.19e9, 197.4e3 * 36), (olmo, 7.30e9, 212.4e3 * 32)):
        parts = memory_budget(config, 16384, 8192, 0)
        assert parts["weights"] == pytest.approx(2 * weights, rel=0.01)
        whole, half = (memory_budget(config, 0, tokens, 0)["activations"] for tokens in (2, 1))
        assert whole - half == pytest.approx(per_token, rel=0.01)
    assert memory_budget(qwen, 0, 1, 1)["activations"] == 36 * 4096 * 2
    assert memory_budget(qwen, 0, 1, 2)["activations"] * 2 == pytest.approx(36 * (197.4e3 + 8192), rel=0.01)
    assert memory_budget(qwen, 0, 0, 1)["adapter"] == 18 * 174_587_904
    two = memory_budget(qwen, 0, 0, 1, world=2)
    assert two["weights"] == pytest.approx(8.19e9 + 151936 * 4096, rel=1e-3) and two["adapter"] == 9 * 174_587_904


@pytest.mark.parametrize("every,share,max_tokens,taken", [
    (1, 0.4, 8192, 1), (4, 0.4, 8192, 4), (0, 0.5, 8192, None), (0, 0.4, 8192, 0), (1, 0.4, 16384, 1),
    (4, 0.4, 16384, None), (1, 0.9, 8192, None), (None, 0.4, 8192, 4), (None, 0.3, 8192, 0),
    (None, 0.4, 16384, 1), (None, 0.8, 8192, None)])
def test_a_batch_that_would_not_fit_is_refused_at_once(tmp_path, monkeypatch, every, share, max_tokens, taken):
    """Qwen3-8B on one H200: what the flags of the README leave room for."""
    import argparse
    from transformers import Qwen3Config
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: argparse.Namespace(total_memory=139.8 * 2**30))
    args, config = UpdateArgs(1e-5, math.inf, "reverse_kl", 16384, every), Qwen3Config(**QWEN3_8B)
    ours = {"lora_rank": LORA_RANK, "world": 1}
    settings = engines.Settings(str(tmp_path), "qwen3", "vllm", "bfloat16", 1.0, 1.0, max_tokens, share, None, 1, 1)
    if taken is not None:
        assert gpu_memory.recomputed_layers(config, settings, args, [200, 500], **ours) == taken
        return
    with pytest.raises(BadInput, match=r"needs 1\d\d\.\d GiB and the GPU has 139\.8 .*--grad-checkpoint-every 1"):
        gpu_memory.recomputed_layers(config, settings, args, [200, 500], **ours)


@pytest.mark.parametrize("share,max_tokens,taken", [(None, 8192, 0), (0.8, 8192, 0), (None, 16384, 2), (0.9, 8192, None)])
def test_an_engine_that_rests_leaves_more(tmp_path, monkeypatch, share, max_tokens, taken):
    """Qwen3-8B on one H200: beside the update vLLM has its weights and 8 GiB, so no layer is recomputed. Beside the engine
    the trainer has weights and adapter: 15.3 + 2.9 GiB, and CUDA 2, which 0.9 of the GPU leaves no room for."""
    import argparse
    from transformers import Qwen3Config
    config, total = Qwen3Config(**QWEN3_8B), 139.8 * 2**30
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: argparse.Namespace(total_memory=total))
    share_of_all = gpu_memory.engine_share(config, "bfloat16", total, lora_rank=LORA_RANK)
    ours = {"lora_rank": LORA_RANK, "world": 1}
    assert share_of_all == pytest.approx(0.9 - (15.26 + 2.93 + 2) / 139.8, abs=1e-3)
    args = UpdateArgs(1e-5, math.inf, "reverse_kl", 16384, None)
    settings = engines.Settings(str(tmp_path), "qwen3", "vllm", "bfloat16", 1.0, 1.0, max_tokens, share, None, 1, 1, rests=True)
    if taken is not None:
        assert gpu_memory.recomputed_layers(config, settings, args, [200, 500], **ours) == taken
        return
    with pytest.raises(BadInput, match=r"needs 146\.0 GiB .*engine 125\.8, CUDA 2\.0, weights 15\.3, adapter 2\.9.*--gpu-memory"):
        gpu_memory.recomputed_layers(config, settings, args, [200, 500], **ours)


# ---------------------------------------------------------------------------------------------------------------------
# Runs


@pytest.fixture(scope="module")
def cplus(tmp_path_factory, toy_model):
    """A run's cplus.jsonl and rollouts.jsonl: problems a and b, on the toy model."""
    folder = tmp_path_factory.mktemp("explored")
    lines = [cplus_line(r, model=toy_model) for r in ROLLOUTS if r["reward"]]
    for name, records in (("cplus", lines), ("rollouts", ROLLOUTS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(folder / "cplus.jsonl")


def flags(cplus, out, steps=5, *more):
    return ["--cplus", cplus, "--out", str(out), "--steps", str(steps), "--batch", "3", "--lr", "1e-2",
            "--micro-tokens", "150", "--grad-checkpoint-every", "0", *more]


@pytest.fixture
def scripted(monkeypatch):
    """distill.py on the scripted student. -> the students that were started, in order."""
    students = []

    async def start(settings, adapters=False, folder="."):
        assert adapters
        students.append(ScriptedStudent())
        return students[-1]
    monkeypatch.setattr(engines, "start", start)
    monkeypatch.setattr(engines.check, "check_engine", scripted_student.unchecked)
    return students


@pytest.fixture(scope="module")
def undisturbed(cplus, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "start", scripted_student.start)
        patch.setattr(engines.check, "check_engine", scripted_student.unchecked)
        distill.main(flags(cplus, out))
    return out


def untimed(path):
    return [{k: v for k, v in r.items() if not k.endswith("seconds")} for r in read_jsonl(str(path))]


def assert_same_run(out, whole):
    found, expected = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (out, whole))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    for name in ("distill.jsonl", "samples.jsonl"):
        assert untimed(out / name) == untimed(whole / name)
    kept = sorted(os.listdir(out / "adapter"))
    assert kept == ["adapter_config.json", "adapter_model.safetensors", "step_4", "step_5"]


def test_a_run(undisturbed, toy_model):
    """Files, their order and their numbers."""
    steps, samples = (read_jsonl(str(undisturbed / name)) for name in ("distill.jsonl", "samples.jsonl"))
    drawn = [("ab"[i], k) for step in range(1, 6) for i, k in distill.batch_indices(step, 3, 2, 1)]
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5]
    assert [(s["problem"], s["occurrence"]) for s in samples] == drawn
    assert [s["step"] for s in samples] == [1 + i // 3 for i in range(15)]
    for s in samples:
        context = distill.draw_context(PROBLEMS[s["problem"]], 1, s["step"], s["problem"], s["occurrence"])
        student = ScriptedStudent()
        assert s["context_step"] == context["step"] and s["context_tokens"] == len(student.encode(context["context"]))
        assert s["prompt_tokens"] == len(student.encode([user(s["problem"])])) and s["bench"] == "toy"
        assert s["seed"] == request_seed(1, s["problem"], s["step"], f"student {s['occurrence']}")
        assert s["truncated"] == (s["finish_reason"] == "length" or s["completion_tokens"] >= 20)
    assert len({s["seed"] for s in samples}) == 15
    for step in steps:
        own = [s for s in samples if s["step"] == step["step"]]
        assert step["response_tokens"] == sum(s["completion_tokens"] for s in own)
        assert step["length"] == pytest.approx(step["response_tokens"] / 3)
        assert step["teacher_tokens"] == sum(s["context_tokens"] + s["completion_tokens"] for s in own)
    kept = json.loads((undisturbed / "distill.json").read_text())
    assert kept["settings"]["steps"] == 5 and kept["settings"]["tau"] == "inf" and kept["result"]["steps"] == 5
    assert kept["settings"]["model"] == toy_model and kept["settings"]["temperature"] == 0.7  # as it explored
    check_adapter(str(undisturbed / "adapter"), toy_model)


def test_the_parts_of_a_job(cplus, tmp_path, scripted):
    """Two sessions: sampling and updates are those of all steps, start-up and saving those of both (App. E.5)."""
    begin, found = time.monotonic(), []
    for steps in (2, 3):
        distill.main(flags(cplus, tmp_path / "out", steps))
        seconds = json.loads((tmp_path / "out" / "distill.json").read_text())["result"]["seconds"]
        lines = read_jsonl(str(tmp_path / "out" / "distill.jsonl"))
        assert seconds["sampling"] == pytest.approx(sum(line["sample_seconds"] for line in lines))
        assert seconds["update"] == pytest.approx(sum(line["train_seconds"] for line in lines))
        # Each of the times above is rounded to a thousandth.
        assert sum(seconds.values()) <= time.monotonic() - begin + 0.001 * (2 * len(lines) + len(seconds))
        found.append(seconds)
    first, both = found
    assert list(first) == ["startup", "sampling", "update", "saving"]
    assert 0 < first["startup"] < both["startup"] and 0 < first["saving"] < both["saving"]


def test_the_first_update_is_that_of_adam(cplus, tmp_path, scripted, toy_model):
    """A step of AdamW moves every entry that has a gradient by lr: B starts at zero and A's gradient is then zero."""
    distill.main(flags(cplus, tmp_path / "out", 1))
    moved = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    b = torch.cat([w.flatten() for name, w in moved.items() if "lora_B" in name])
    assert len(moved) == 28 and b.abs().max() == pytest.approx(1e-2, rel=1e-3)


def test_each_step_samples_from_the_newest_adapter(cplus, tmp_path, scripted):
    distill.main(flags(cplus, tmp_path / "out", 3))
    folders = [adapter and os.path.basename(adapter) for _, adapter in scripted[0].asked]
    assert folders == [None] * 3 + ["step_1"] * 3 + ["step_2"] * 3


class Killed(SystemExit):
    """Nothing that distill.py would catch."""


def fail(where, step, monkeypatch):
    """The run is killed at `where` of update step `step` (from the first of the run)."""
    module, name, after = {
        "sampled": (distill, "update", False), "updated": (distill, "update", True),
        "journalled": (policies, "save_checkpoint", False), "written": (checkpoints, "update_latest", False),
        "saved": (policies, "save_checkpoint", True)}[where]
    real, state = getattr(module, name), {}

    def failing(*args, **kwargs):
        place = {"save_checkpoint": 3, "update_latest": 1}.get(name)  # of its argument `step`
        now = args[place] if place else state.setdefault("step", checkpoints.newest_step(state["folder"]) + 1)
        if not after and now == step:
            raise Killed
        result = real(*args, **kwargs)
        if after and now == step:
            raise Killed
        state.pop("step", None)
        return result
    monkeypatch.setattr(module, name, failing)
    return state


@pytest.mark.parametrize("where", ["sampled", "updated", "journalled", "written", "saved"])
def test_killed_at_each_step_and_resumed(cplus, tmp_path, scripted, undisturbed, where):
    """Killed at step 1, gone on with, killed at step 2, and so on to 5, with a line torn besides: the same run."""
    out = tmp_path / "out"
    for step in range(1, 6):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            fail(where, step, patch)["folder"] = out / "adapter"
            distill.main(flags(cplus, out))
        with open(out / "samples.jsonl", "a") as file:
            file.write('{"step": 9, "pro')
        (out / "adapter" / "part").mkdir(exist_ok=True, parents=True)  # and a checkpoint half-written
    distill.main(flags(cplus, out))
    assert_same_run(out, undisturbed)


def test_more_steps_extend_a_run(cplus, tmp_path, scripted, undisturbed):
    out = tmp_path / "out"
    distill.main(flags(cplus, out, 2))
    distill.main(flags(cplus, out, 5))
    assert_same_run(out, undisturbed)
    distill.main(flags(cplus, out, 5))  # nothing left to do: no engine, the same adapter
    assert len(scripted) == 2
    assert_same_run(out, undisturbed)


@pytest.mark.parametrize("name", ["resume.pt", "adapter_model.safetensors"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_goes_on(cplus, tmp_path, scripted, undisturbed, name):
    out = tmp_path / "out"
    distill.main(flags(cplus, out, 3))
    file = out / "adapter" / "step_3" / name
    os.truncate(file, 1000) if name == "resume.pt" else os.remove(file)
    with pytest.raises(BadInput, match="the checkpoint .*step_3 is damaged .*: put it back, or delete that folder"):
        distill.main(flags(cplus, out))
    shutil.rmtree(file.parent)
    distill.main(flags(cplus, out))
    assert_same_run(out, undisturbed)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(cplus, tmp_path, scripted, undisturbed, monkeypatch):
    out = tmp_path / "out"
    real = journal.write_bytes

    def full(path, content):
        if "step_" not in path and path.endswith("resume.pt") and os.path.isdir(out / "adapter" / "step_2"):
            real(path, bytes(content)[:10])
            raise OSError(28, "No space left on device")
        real(path, content)
    with monkeypatch.context() as patch, pytest.raises(BadInput, match="No space left.*goes on after step 2"):
        patch.setattr(journal, "write_bytes", full)
        distill.main(flags(cplus, out))
    distill.main(flags(cplus, out))
    assert_same_run(out, undisturbed)


def test_a_gradient_that_is_not_finite_is_never_kept(cplus, tmp_path, scripted):
    """The first step makes weights of 1e30; the second ends the run before it replaces what is there."""
    out = tmp_path / "out"
    for _ in range(2):
        with pytest.raises(BadInput, match="the gradient of step 2 is not finite, so it is not kept"):
            distill.main(flags(cplus, out, 5, "--lr", "1e30"))
        assert checkpoints.newest_step(out / "adapter") == 1
        assert [s["step"] for s in read_jsonl(str(out / "distill.jsonl"))] == [1]


def test_a_checkpoint_stands_on_lines_that_are_on_the_disk(cplus, tmp_path, scripted, monkeypatch):
    """A machine that goes down may lose what was never synchronized: not a line of a step that it keeps."""
    out, synced, fsync, save = tmp_path / "out", {}, os.fsync, checkpoints.save_checkpoint

    def noted(fd):
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size
        fsync(fd)

    def checked(*args):
        for name in ("distill.jsonl", "samples.jsonl"):
            assert synced[os.stat(out / name).st_ino] == os.path.getsize(out / name) > 0
        save(*args)
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(policies, "save_checkpoint", checked)
    distill.main(flags(cplus, out, 2))
    assert checkpoints.newest_step(out / "adapter") == 2


def test_saving_does_not_ask_the_hub(toy_model, tmp_path, monkeypatch):
    """PEFT would look up the base model there, at each step, to see whether its embedding was resized: it never is."""
    from peft.utils import save_and_load
    policy, asked = toy_policy(toy_model), []
    policy.model.peft_config["default"].base_model_name_or_path = "Qwen/Qwen3-8B"
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda *args: asked.append(args))
    checkpoints.save_checkpoint(policy, adam(policy, 1e-5), str(tmp_path), 1)
    assert len(load_file(tmp_path / "adapter_model.safetensors")) == 28 and not asked


def test_an_interrupt_keeps_the_steps(cplus, tmp_path, scripted, undisturbed, monkeypatch, capsys):
    out, real = tmp_path / "out", distill.update

    def interrupted(*args, **kwargs):
        if (out / "adapter" / "step_2").exists():
            raise KeyboardInterrupt
        return real(*args, **kwargs)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(distill, "update", interrupted)
        distill.main(flags(cplus, out))
    assert stop.value.code == 130 and "the same command goes on" in capsys.readouterr().err
    distill.main(flags(cplus, out))
    assert_same_run(out, undisturbed)


@pytest.mark.parametrize("more,sentence", [
    (["--seed", "2"], "seed = 1, not 2"), (["--lr", "1e-3"], "lr = 0.01, not 0.001"),
    (["--tau", "0.5"], "tau = inf, not 0.5"),
    (["--divergence", "jsd"], "divergence = reverse_kl"), (["--traces", "random"], "traces = success"),
    (["--batch", "4"], "batch = 3, not 4"), (["--steps", "4"], "steps = 5, not 4.*may only grow"),
    (["--max-tokens", "9"], "max_tokens = 20")])
def test_changed_settings_are_refused(cplus, undisturbed, scripted, more, sentence):
    before = (undisturbed / "samples.jsonl").read_bytes()
    with pytest.raises(BadInput, match=sentence):
        distill.main(flags(cplus, undisturbed, 5, *more))
    assert (undisturbed / "samples.jsonl").read_bytes() == before and not scripted


def test_other_contexts_are_refused(cplus, tmp_path, undisturbed, scripted):
    """The stream and the draws depend on them: a C+ that has grown meanwhile is another run."""
    shutil.copytree(undisturbed, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "distill.json").read_text())
    kept["settings"]["contexts"] = "0" * 16
    journal.write_json(str(tmp_path / "out" / "distill.json"), kept)
    with pytest.raises(BadInput, match="contexts = 0000000000000000, not"):
        distill.main(flags(cplus, tmp_path / "out"))


@pytest.mark.parametrize("more,sentence", [
    (["--temperature", "0"], "--temperature 0 leaves no distribution"),
    (["--model", "nowhere"], "neither a folder here"),
    (["--traces", "failure", "--cplus", "{alone}"], "rollouts.jsonl cannot be read"),
    (["--traces", "random", "--cplus", "{foreign}"], "rollouts.jsonl line 1 has no reward: name the cplus.jsonl")])
def test_bad_input(cplus, tmp_path, scripted, more, sentence):
    (tmp_path / "foreign").mkdir()
    for copy in ("alone.jsonl", "foreign/cplus.jsonl", "foreign/rollouts.jsonl"):  # no rollouts; those of no run
        shutil.copy(cplus, tmp_path / copy)
    more = [word.format(alone=tmp_path / "alone.jsonl", foreign=tmp_path / "foreign/cplus.jsonl") for word in more]
    with pytest.raises(BadInput, match=sentence):
        distill.main(flags(cplus, tmp_path / "out", 1, *more))


@pytest.mark.parametrize("more", [["--lr", "0"], ["--lr", "fast"], ["--lr", "inf"], ["--lr", "nan"], ["--tau", "-1"], ["--grad-checkpoint-every", "-1"],
                                  ["--batch", "0"], ["--traces", "none"], ["--tau", "nan"], ["--tau", "small"]])
def test_bad_flags(cplus, tmp_path, more, capsys):
    with pytest.raises(SystemExit) as stop:
        distill.main(flags(cplus, tmp_path / "out", 1, *more))
    error = capsys.readouterr().err
    assert stop.value.code == 2 and f"argument {more[0]}: " in error
    assert more[0] not in ("--lr", "--tau") or f"{more[1]} is no finite number above 0" in error


@pytest.mark.parametrize("line,sentence", [
    (None, "holds no context: no answer was right"), ({"bench": "other"}, "mixes benches or models"),
    ({"model": "other"}, "mixes benches or models"), ({"step": None}, "line 5 has no step")])
def test_bad_contexts(cplus, tmp_path, line, sentence):
    """Nothing to learn from, two benches or models in one file, a field that is not there."""
    lines = []
    if line:
        fifth = {k: v for k, v in cplus_line(ROLLOUTS[0], **line).items() if v is not None}
        lines = read_jsonl(cplus) + [fifth]
    (tmp_path / "cplus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    with pytest.raises(BadInput, match=sentence):
        updates.read_cplus(tmp_path / "cplus.jsonl")


def test_checkpoints_without_their_run_are_refused(cplus, tmp_path, undisturbed, scripted):
    shutil.copytree(undisturbed, tmp_path / "out")
    (tmp_path / "out" / "distill.json").unlink()
    with pytest.raises(BadInput, match="without its distill.json"):
        distill.main(flags(cplus, tmp_path / "out"))


def test_a_prompt_that_does_not_fit_names_its_problem(cplus, tmp_path):
    with pytest.raises(BadInput, match="problem [ab] cannot be sampled: its context of 20 tokens"):
        distill.main(flags(cplus, tmp_path / "out", 1, "--max-model-len", "20"))


def test_a_folder_in_use(cplus, tmp_path, scripted):
    with journal.lock(str(tmp_path / "out")), pytest.raises(BadInput, match="another run holds the folder"):
        distill.main(flags(cplus, tmp_path / "out"))


@pytest.mark.parametrize("traces", ["failure", "random"])
def test_the_other_traces_run(cplus, tmp_path, scripted, traces):
    distill.main(flags(cplus, tmp_path / "out", 2, "--traces", traces))
    samples = read_jsonl(str(tmp_path / "out" / "samples.jsonl"))
    assert all((s["context_step"] is None) == (traces == "failure") for s in samples)


def test_the_whole_with_its_own_engine_and_merged(cplus, tmp_path, toy_model):
    """No script: the student samples from the adapter of the step before. The merged model is the adapted one."""
    out = tmp_path / "out"
    distill.main(flags(cplus, out, 2, "--merge", "--max-tokens", "12"))
    for step in read_jsonl(str(out / "distill.jsonl")):
        assert step["mean_w"] == pytest.approx(1, abs=2 * ROUNDING)  # policy = mu: the engine had the right adapter
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    ids = torch.arange(40)[None]
    base = AutoModelForCausalLM.from_pretrained(toy_model)
    adapted = PeftModel.from_pretrained(base, str(out / "adapter"))(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(out / "merged")(ids).logits
    assert (merged - adapted).norm() < ROUNDING * adapted.norm()
    assert AutoTokenizer.from_pretrained(out / "merged").chat_template
    assert json.loads((out / "merged" / "made_from.json").read_text()) == {
        "model": toy_model, "family": "qwen3", "temperature": 0.7, "top_p": 1.0, "max_tokens": 12}


def test_a_full_disk_while_merging_is_one_sentence(cplus, tmp_path, scripted, monkeypatch):
    """No file may grow beyond 20,000 bytes, as on a disk that is full; the same command then merges."""
    out, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    distill.main(flags(cplus, out, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    monkeypatch.setattr(policies, "update_latest", lambda folder, step: None)  # it would be the first to meet the limit
    try:
        with pytest.raises(BadInput, match="merged cannot be written .* the same command merges again"):
            distill.main(flags(cplus, out, 1, "--merge"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    distill.main(flags(cplus, out, 1, "--merge"))
    assert (out / "merged" / "model.safetensors").stat().st_size > 20_000


# ---------------------------------------------------------------------------------------------------------------------
# Several ranks


def torchrun(ranks, *argv):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    return subprocess.run([*launcher, *map(str, argv)], capture_output=True, text=True, cwd=root, timeout=1200,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_each_rank_sees_one_gpu(monkeypatch):
    """Before CUDA starts: the rank's own of the GPUs that the job may use; more ranks than GPUs are refused."""
    begun, at_exit = [], []
    monkeypatch.setattr(ranks.atexit, "register", at_exit.append)
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
                        "CUDA_VISIBLE_DEVICES": "3,5,6,7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks.dist, "init_process_group", begun.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match="4 ranks on a node with 2 GPUs"):
        ranks.init_ranks()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    ranks.init_ranks()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6" and os.environ["LOCAL_RANK"] == "0"
    assert begun == ["cpu:gloo,cuda:nccl"]
    # A rank that ends without leaving its group was aborted by gloo's threads in 13 of 30 trials, after a good run too.
    assert at_exit == [ranks.close_ranks]


def test_micro_batches(monkeypatch):
    """In order of size, at most so many tokens each, but a larger row alone; on a GPU the largest first."""
    rows = [distill.Row([0] * size, [0] * size, Sample([0], "", [0.0], "stop", size)) for size in (4, 1, 9, 2, 3)]
    sizes = {is_cuda: [] for is_cuda in (False, True)}
    for is_cuda in sizes:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_cuda)
        sizes[is_cuda] = [[len(row.x) for row in batch] for batch in distill.micro_batches(rows, 20)]
    assert sizes[False] == [[1, 2, 3], [4], [9]] and sizes[True] == [[9], [4, 3], [2, 1]]


def test_any_number_of_ranks(cplus, tmp_path, undisturbed, scripted):
    """Shares of unlike size and empty, heads tied and untied, checkpointed or not: the gradient of one process.

    The same run goes on 2 ranks, on 3 and on one process: the adapter of one process, and each step and sample once.
    """
    expected = {}
    for architecture, dtype in (("qwen3", "float32"), ("olmo3", "bfloat16"), ("olmo3", "float32")):
        folder = make_model(tmp_path / architecture, architecture=architecture)
        budget = 10**9 if dtype == "float32" else 1
        expected[architecture, dtype], metrics = gradients(toy_policy(folder, dtype=dtype), toy_items(), budget)
    out = tmp_path / "out"
    for number, steps, shares in ((2, 2, "01234,5"), (3, 4, ",025,134")):
        result = torchrun(number, "tests/scripted_student.py", "gradients", tmp_path, shares, *flags(cplus, out, steps))
        assert result.returncode == 0, result.stderr[-3000:]
        for architecture, every, dtype in scripted_student.RANKED:
            found, numbers = torch.load(tmp_path / f"{architecture}_{every}_{dtype}_{number}.pt")
            # In bfloat16 too, if 2 ranks share it: 3 times a number rounds otherwise. Rounded rotary tables would show.
            if dtype == "float32" or number == 2:
                assert_same(found, expected[architecture, dtype])
        found, numbers = torch.load(tmp_path / f"olmo3_2_float32_{number}.pt")
        assert numbers["response_tokens"] == 34 and numbers["loss"] == pytest.approx(metrics["loss"], rel=ROUNDING)
        assert numbers["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=ROUNDING)
    distill.main(flags(cplus, out, 5))
    adapters = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (out, undisturbed))
    assert_same_adapter(*adapters, steps=5)
    assert untimed(out / "samples.jsonl") == untimed(undisturbed / "samples.jsonl")
    assert [s["step"] for s in read_jsonl(str(out / "distill.jsonl"))] == [1, 2, 3, 4, 5]


def test_bad_input_under_torchrun(cplus, tmp_path):
    """What rank 0 alone meets ends both ranks with one sentence and exit status 2; torchrun's own report follows."""
    with journal.lock(str(tmp_path / "out")):
        result = torchrun(2, "distill.py", *flags(cplus, tmp_path / "out"))
    assert result.returncode != 0 and result.stderr.count("another run holds the folder") == 1
    assert "exitcode  : 2" in result.stderr and 'distill.py", line' not in result.stderr


def test_cplus_of_another_model_is_refused(cplus, toy_model, tmp_path):
    other = make_model(tmp_path / "other")
    with pytest.raises(BadInput, match="was explored by .* leave out --model"):
        distill.parse(["--cplus", str(cplus), "--model", other, "--out", str(tmp_path / "out")])


def test_a_model_is_found_from_another_folder(cplus, toy_model, tmp_path, monkeypatch):
    """Named as `out/model` from the folder where it was explored; distilled from elsewhere."""
    shutil.copytree(toy_model, tmp_path / "here" / "out" / "model")
    lines = [json.dumps({**line, "model": "out/model"}) for line in read_jsonl(str(cplus))]
    (tmp_path / "here" / "out" / "cplus.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    args, _ = distill.parse(["--cplus", "here/out/cplus.jsonl"])
    assert args.settings.model == str(tmp_path / "here" / "out" / "model")

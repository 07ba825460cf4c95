"""What only a GPU shows. On an H200: python -m pytest -m gpu

Each check is a function of a device and of sizes: without a GPU it runs at a toy's size on the CPU, so that it is
known to run, and the claim about the GPU is skipped with its reason.
"""
import asyncio
import importlib.util
import os
import json
import math

import pytest
import torch

import distill
import engines
import loss
from common import gpu_memory
from common.flags import UpdateArgs
from conftest import make_adapter, make_model, make_tokenizer
from engines.base import Sample
from policy import LORA_RANK, Trainer, adam, load_policy

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
H200 = pytest.param("cuda", marks=gpu)
QWEN3_8B = dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_attention_heads=32,
                num_key_value_heads=8, head_dim=128, tie_word_embeddings=False)


def settings(model, dtype="bfloat16", **changes):
    base = dict(model=model, family="qwen3", engine="hf", dtype=dtype, temperature=1.0, top_p=1.0, max_tokens=64,
                gpu_memory=0.4, max_model_len=None, tensor_parallel=1, data_parallel=1)
    return engines.Settings(**{**base, **changes})


def sampled(model, adapter, device):
    """Rows of 24 responses of the adapter's policy, as distill.py makes them."""
    where = settings(str(model), engine="vllm" if device == "cuda" and importlib.util.find_spec("vllm") else "hf")
    problems = {f"p{i}": [{"opening": [{"role": "user", "content": f"{i} + {i} = ?"}], "step": 1, "bench": "own",
                           "context": [{"role": "user", "content": f"It is {2 * i}. What is {i} + {i}?"}]}]
                for i in range(24)}

    class Student(Trainer):
        def adapter(self):
            return adapter

    async def sample():
        sampler = await engines.start(where, adapters=True, folder=os.path.dirname(adapter))
        try:
            trainer = Student(None, 1, where, sampler, None, None, None, 0)
            return await asyncio.gather(*(distill.student_row(trainer, 1, p, 0, problems, problems) for p in problems))
        finally:
            sampler.close()
    return asyncio.run(sample())


@pytest.mark.parametrize("device", ["cpu", H200])
def test_bfloat16_weights_are_noise_around_one(tmp_path, device):
    """Sampler and trainer agree but for bfloat16 noise: mean w within 2% of 1, no ratio beyond 1.5, with an adapter."""
    model = make_model(tmp_path / "model", head_dim=32, dtype=torch.bfloat16)
    adapter = make_adapter(model, tmp_path / "adapter", seed=1, scale=0.05)
    items = sampled(model, adapter, device)
    policy = load_policy(settings(model), adapter, 1, 0, torch.device(device))
    with torch.no_grad():
        lengths = [len(i.y.token_ids) for i in items]
        hidden = policy.hidden_states([i.x + i.y.token_ids for i in items], lengths)
        ids = torch.tensor([t for i in items for t in i.y.token_ids], device=device)
        mu = torch.tensor([x for i in items for x in i.y.logprobs], device=device)
        _, train = loss.distill_loss(hidden, hidden, policy.head, ids, mu, temperature=1.0)
    ratios = (train - mu).exp()
    assert ratios.numel() > 500
    assert float(ratios.mean()) == pytest.approx(1, abs=0.02)
    assert 0.66 < float(ratios.min()) and float(ratios.max()) < 1.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or importlib.util.find_spec("flash_attn") is None,
                    reason="needs a CUDA device and flash-attn")
@pytest.mark.parametrize("architecture", ["qwen3", "olmo3"])
def test_flash_attention_packs_as_sdpa_does(tmp_path, architecture):
    """Sequences in one row with restarting positions: flash-attn's varlen kernel keeps them apart as sdpa's mask
    does."""
    model = make_model(tmp_path / "model", architecture=architecture, dtype=torch.bfloat16)
    rows = [[(7 * i + j) % 250 for j in range(n)] for i, n in enumerate((5, 300, 40, 129))]
    lengths = [4, 200, 39, 1]
    policy = load_policy(settings(model), None, 1, 0, torch.device("cuda"))
    assert policy.model.config._attn_implementation == "flash_attention_2"
    with torch.no_grad():
        packed = policy.hidden_states(rows, lengths)
        policy.model.set_attn_implementation("sdpa")
        for got in (packed, policy.hidden_states(rows, lengths)):
            alone = torch.cat([policy.hidden_states([row], [n]) for row, n in zip(rows, lengths)])
            assert float((got - alone).norm() / alone.norm()) < 0.02  # bfloat16 has 8 bits


@pytest.mark.parametrize("device,tokens,width,vocabulary,most", [
    ("cpu", 96, 16, 500, None), pytest.param("cuda", 8192, 4096, 151936, 3 * 2**30, marks=gpu)])
def test_the_loss_at_full_size(device, tokens, width, vocabulary, most):
    """One response of 8,192 tokens, Qwen3's head, bfloat16: the plain form on every 16th token, and memory flat in
    V."""
    generator = torch.Generator(device).manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.bfloat16)
    student, teacher, head = normal(tokens, width), normal(tokens, width), normal(vocabulary, width) / width**0.5
    ids = torch.randint(vocabulary, (tokens,), generator=generator, device=device)
    mu = torch.full((tokens,), -math.log(vocabulary), device=device)
    student.requires_grad_()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    value, train = loss.distill_loss(student, teacher, head, ids, mu, temperature=0.7, tau=1e-3)
    value.backward()
    if device == "cuda":
        assert torch.cuda.max_memory_allocated() - before < most
    some = slice(None, None, 16)
    with torch.no_grad():
        plain_student, plain_teacher = ((x[some].float() @ head.float().T) / 0.7 for x in (student, teacher))
        logprobs = plain_student.log_softmax(-1).gather(1, ids[some, None])[:, 0]
        expected = loss.token_divergence(plain_student, plain_teacher, tau=1e-3)
        expected = float((loss.importance_weights(logprobs, mu[some]) * expected).sum())
        part, _ = loss.distill_loss(student[some], teacher[some], head, ids[some], mu[some], temperature=0.7, tau=1e-3)
    assert float((train[some] - logprobs).abs().max()) < 0.1 and float(part) == pytest.approx(expected, rel=0.05)
    assert torch.isfinite(student.grad).all() and float(student.grad.abs().sum()) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("every", [0, 1])
def test_the_memory_budget_holds(tmp_path, every):
    """Two layers of Qwen3-8B, one response of 8,192 tokens: the update's peak lies within 0.6 and 1.1 of its budget."""
    from transformers import AutoModelForCausalLM, Qwen3Config
    config = Qwen3Config(**QWEN3_8B, num_hidden_layers=2)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    policy = load_policy(settings(str(tmp_path)), None, 1, every, torch.device("cuda"))
    response = [i % 150_000 for i in range(8192)]
    item = distill.Row(response[:500], response[:2500], Sample(response, "", [-12.0] * 8192, "length", 500))
    metrics = distill.update(policy, adam(policy, 1e-5), [item], UpdateArgs(1e-5, 1e-3, "reverse_kl", 16384, every))
    peak = torch.cuda.max_memory_allocated() - before
    budget = sum(gpu_memory.memory_budget(config, 500 + 2500 + 2 * 8192, 500 + 8192, every, lora_rank=LORA_RANK).values())
    print(json.dumps({"every": every, "peak GiB": peak / 2**30, "budget GiB": budget / 2**30}))
    assert 0.6 * budget < peak < 1.1 * budget and math.isfinite(metrics["grad_norm"])


def asked(where, requests, folder):
    """The Samples of [(token ids, keywords of `sample`)], all at once, for each list of `requests` in turn."""
    async def run():
        engine = await engines.start(where, adapters=True, folder=str(folder))
        try:
            return [await asyncio.gather(*(engine.sample(ids, **keywords) for ids, keywords in some)) for some in requests]
        finally:
            engine.close()
    return asyncio.run(run())


def engine_settings(model, device, dtype="bfloat16"):
    return settings(str(model), dtype, engine="vllm" if device == "cuda" and importlib.util.find_spec("vllm") else "hf")


def request(number, **changes):
    ids = [(7 * number + j) % 250 for j in range(10 + number % 30)]
    return ids, dict(seed=number, max_tokens=40, temperature=1.0, top_p=1.0) | changes


@pytest.mark.parametrize("device,others", [("cpu", 20), pytest.param("cuda", 700, marks=gpu)])
def test_a_seed_gives_its_answer_in_any_company(tmp_path, device, others):
    """700 requests are more than the engine's slots. What else is in a batch moves bfloat16 log-probabilities by 0.05,
    so that now and then a draw, and all after it, is another."""
    model = make_model(tmp_path / "model", head_dim=32, dtype=torch.bfloat16)
    some = [request(number) for number in range(10)]
    alone, beside = asked(engine_settings(model, device), [some, some + [request(n) for n in range(10, 10 + others)]], tmp_path)
    same = sum(a.token_ids[:10] == b.token_ids[:10] for a, b in zip(alone, beside))
    assert same >= 7 and len({tuple(y.token_ids) for y in alone}) == 10


def trained_logprobs(policy, requests, samples):
    """[tokens]: the policy's log-probabilities of what was sampled."""
    with torch.no_grad():
        lengths = [len(y.token_ids) for y in samples]
        hidden = policy.hidden_states([ids + y.token_ids for (ids, _), y in zip(requests, samples)], lengths)
        logprobs = (hidden.to(policy.head.dtype) @ policy.head.T).float().log_softmax(-1).cpu()
    return logprobs.gather(1, torch.tensor([t for y in samples for t in y.token_ids])[:, None])[:, 0]


@pytest.mark.parametrize("device", ["cpu", H200])
def test_adapters_one_after_another(tmp_path, device):
    """A, B, none, A, from one engine (on CUDA with its graphs): each time the log mu of that policy, which others' are not."""
    model = make_model(tmp_path / "model", head_dim=32, dtype=torch.bfloat16)
    a, b = (make_adapter(model, tmp_path / f"adapter{seed}", seed=seed, scale=0.1) for seed in (1, 2))
    order = [a, b, None, a]
    requests = [[request(n, adapter=adapter) for n in range(8)] for adapter in order]
    found = asked(engine_settings(model, device), requests, tmp_path)
    policies = {adapter: load_policy(settings(model), adapter, 1, 0, torch.device(device)) for adapter in {*order}}
    for adapter, some, samples in zip(order, requests, found):
        mu = torch.tensor([x for y in samples for x in y.logprobs])
        off = {name: float((trained_logprobs(policy, some, samples) - mu).abs().mean()) for name, policy in policies.items()}
        assert off[adapter] < 0.05 < min(value for name, value in off.items() if name != adapter)


@pytest.mark.parametrize("device", ["cpu", H200])
def test_log_mu_after_top_p(tmp_path, device):
    """What is drawn lies in the top 0.9 of the mass, and its mu is p over that mass: between p and p / 0.9."""
    model = make_model(tmp_path / "model", head_dim=32, dtype=torch.bfloat16)
    requests = [request(n, top_p=0.9) for n in range(16)]
    samples, = asked(engine_settings(model, device), [requests], tmp_path)
    policy = load_policy(settings(model), None, 1, 0, torch.device(device))
    mu = torch.tensor([x for y in samples for x in y.logprobs])
    ratio = mu - trained_logprobs(policy, requests, samples)
    assert -0.05 < float(ratio.mean()) < -math.log(0.9) + 0.05 and float(ratio.mean()) > 0.02


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_windows_above_4096(tmp_path, monkeypatch):
    """Olmo 3's layers with a window of 4,096, in packed rows that are longer: the dense mask's hidden states."""
    import policy as policies
    model = make_model(tmp_path / "model", architecture="olmo3", window=8192, dtype=torch.bfloat16, head_dim=32, sliding_window=4096,
                       layer_types=["sliding_attention", "full_attention"])
    rows, found = [[(7 * i + j) % 250 for j in range(n)] for i, n in enumerate((6000, 300, 5000))], []
    for kernel in ("varlen", "sdpa"):
        monkeypatch.setattr(policies, "attention_kernel", lambda *_: kernel)
        policy = load_policy(settings(model), None, 1, 0, torch.device("cuda"))
        with torch.no_grad():
            found.append(policy.hidden_states(rows, [2000, 100, 900]).float())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 0.02


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or importlib.util.find_spec("vllm") is None, reason="needs a CUDA device and vllm")
@pytest.mark.parametrize("flags", [[], ["--keep-cache"]])
def test_a_whole_step_at_real_sizes(tmp_path, flags):
    """distill.py with Qwen3-8B's layers, random: the trainer beside a live engine, by the memory that was budgeted."""
    from transformers import AutoModelForCausalLM, Qwen3Config
    tokenizer, model = make_tokenizer(), tmp_path / "model"
    config = Qwen3Config(**QWEN3_8B, num_hidden_layers=36, max_position_embeddings=16384, eos_token_id=tokenizer.eos_token_id)
    with torch.device("cuda"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cpu().save_pretrained(model)
    torch.cuda.empty_cache()
    tokenizer.save_pretrained(model)
    line = {"bench": "own", "model": str(model), "family": "qwen3", "step": 1, "response": "2",
            "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024}}
    turn = [{"role": "user", "content": "1 + 1?"}]
    lines = [line | {"problem": f"p{i}", "opening": turn, "context": turn} for i in range(8)]
    (tmp_path / "cplus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    distill.main(["--cplus", str(tmp_path / "cplus.jsonl"), "--steps", "2", "--batch", "8", "--out", str(tmp_path / "out"), *flags])
    for text in (tmp_path / "out" / "distill.jsonl").read_text().splitlines():
        step = json.loads(text)
        assert abs(step["mean_w"] - 1) < 0.05 and math.isfinite(step["grad_norm"])

"""Packed attention on CUDA without flash-attn's build: torch's varlen_attn, here with a stand-in of the same signature."""
import pytest
import torch

import policy as policies
from common import attention
from conftest import make_model
from engines import Settings

SEQUENCES, LENGTHS = [list(range(2, 25)), list(range(30, 37)), [5, 6, 7, 8]], [20, 3, 1]


def reference(query, key, value, ends, ends_k, longest, longest_k, *, scale, window_size, enable_gqa):
    """What varlen_attn says that it computes: causal, (W, 0) with the W tokens before; a sequence at a time."""
    assert ends.dtype == torch.int32 and ends is ends_k and longest == longest_k == max(map(len, SEQUENCES))
    assert enable_gqa and query.dtype == key.dtype == value.dtype
    outputs = []
    for begin, end in zip(ends[:-1], ends[1:]):
        q, k, v = (x[begin:end].transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
        distance = torch.arange(end - begin)[:, None] - torch.arange(end - begin)
        mask = (distance >= 0) & ((distance <= window_size[0]) | (window_size[0] < 0))
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~mask, float("-inf"))
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("architecture, changes", [
    ("qwen3", {}), ("olmo3", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]})])
def test_varlen_is_the_dense_attention(tmp_path, monkeypatch, architecture, changes):
    """Hidden states and gradients of packed sequences, grouped heads, sliding windows."""
    settings = Settings(make_model(tmp_path, architecture=architecture, **changes), "qwen3", "hf", "float32", 1.0, 1.0, 20, 0.4,
                        None, 1, 1)
    monkeypatch.setattr(attention.varlen, "varlen_attn", reference)
    found = []
    for kernel in ("sdpa", "varlen"):
        monkeypatch.setattr(policies, "attention_kernel", lambda *_: kernel)
        monkeypatch.setattr(policies, "check_policy", lambda *_: None)  # of other sequences
        policy = policies.load_policy(settings, None, 1, 0, torch.device("cpu"))
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
        hidden = policy.hidden_states(SEQUENCES, LENGTHS)
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
        (hidden * weights).sum().backward()
        found.append([hidden.detach(), *(p.grad for p in policy.parameters())])
    for dense, varlen in zip(*found, strict=True):
        assert (varlen - dense).norm() < 1e-4 * dense.norm()  # float32 sums of some hundred terms, over two layers


@pytest.mark.parametrize("packages, kernel, switched", [
    ((), "varlen", []), (("flash_attn",), "flash_attention_2", []), (("flash_attn_interface",), "varlen", ["FA3"]),
    (("flash_attn", "flash_attn_interface"), "flash_attention_2", [])])
def test_the_kernel_that_is_there(monkeypatch, packages, kernel, switched):
    asked = []
    monkeypatch.setattr(attention, "activate_flash_attention_impl", asked.append)
    monkeypatch.setattr(attention.importlib.util, "find_spec", lambda name: name in packages or None)
    assert attention.attention_kernel(torch.bfloat16, torch.device("cuda")) == kernel and asked == switched
    assert attention.attention_kernel(torch.float32, torch.device("cuda")) == "sdpa"
    assert attention.attention_kernel(torch.bfloat16, torch.device("cpu")) == "sdpa"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 100])
def test_varlen_on_a_gpu(window):
    """Forward and backward of torch's kernel against the stand-in: bfloat16 against float32."""
    lengths, generator = [300, 17, 1000], torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, heads, sum(lengths), 128, device="cuda", generator=generator) for heads in (8, 2, 2))
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        packing = attention.ends_of(lengths, "cuda")
        if dtype == torch.bfloat16:
            output, _ = attention.varlen_attention(None, *inputs, None, scaling=128 ** -0.5, sliding_window=window, **packing)
        else:
            flat = [x[0].transpose(0, 1) for x in inputs]
            parts = []
            for begin, end in zip(packing["cu_seq_lens_q"][:-1], packing["cu_seq_lens_q"][1:]):
                a, b, c = (x[begin:end].transpose(0, 1) for x in flat)
                b, c = (x.repeat_interleave(4, 0) for x in (b, c))
                distance = torch.arange(end - begin, device="cuda")[:, None] - torch.arange(end - begin, device="cuda")
                mask = (distance >= 0) & (distance < (window or 10**9))
                parts.append(((a @ b.transpose(1, 2) * 128 ** -0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ c)
                             .transpose(0, 1))
            output = torch.cat(parts)[None]
        output.float().square().sum().backward()
        found.append([output.detach().float(), *(x.grad.float() for x in inputs)])
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).norm() < 4 * 2**-8 * exact.norm()  # a few roundings of 8 bits on the way

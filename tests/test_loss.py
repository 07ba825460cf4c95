"""loss.py against float64 autograd of Eq. 2-4, written out here a second time in probabilities, and values by hand."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import loss
from conftest import tolerance

KINDS = ("reverse_kl", "forward_kl", "jsd")
T, D, V = 23, 16, 101
# A product with the head, its softmax, the sums over the vocabulary and the tokens; logits of 10 for log ratios of 1.
TERMS = D + V + V + T
ROUNDING = tolerance(torch.float32, TERMS, condition=10)  # 3e-4
BY_HAND = tolerance(torch.float32, 16)                    # 2e-6: a few operations on numbers of about 1


def batch(seed=0, tokens=T, dtype=torch.float32, spread=1.0):
    """Hidden states of student and teacher, the head, the sampled tokens and the sampler's log-probabilities."""
    g = torch.Generator().manual_seed(seed)
    student = torch.randn(tokens, D, generator=g) * spread
    teacher = student + 0.4 * torch.randn(tokens, D, generator=g)
    head = torch.randn(V, D, generator=g) * 0.5
    ids = torch.randint(V, (tokens,), generator=g)
    exact = torch.log_softmax(student @ head.T, dim=-1).gather(1, ids[:, None]).squeeze(1)
    sampler = exact - torch.randn(tokens, generator=g)  # ratios on both sides of the cap of 2
    return student.to(dtype), teacher.to(dtype), head.to(dtype), ids, sampler


def plain_terms(p, q, kind):
    m = (p + q) / 2
    return {"reverse_kl": p * (p / q).log(), "forward_kl": q * (q / p).log(),
            "jsd": (p * (p / m).log() + q * (q / m).log()) / 2}[kind]


def plain(student, teacher, head, ids, sampler, temperature, kind, tau, cap=2.0, skip_near=0.0):
    """(sum of w D, gradient, log-probabilities, D [T], w [T], rows without an entry near tau), all float64."""
    student = student.detach().double().requires_grad_()
    p = torch.softmax(student @ head.double().T / temperature, dim=-1)
    q = torch.softmax(teacher.double() @ head.double().T / temperature, dim=-1)
    terms = plain_terms(p, q, kind)
    chosen = p[torch.arange(len(ids)), ids].detach()
    w = (chosen / sampler.double().exp()).clamp(max=cap)
    divergence = torch.where(terms > tau, tau, terms).sum(-1) if tau < math.inf else terms.sum(-1)
    total = (w * divergence).sum()
    (gradient,) = torch.autograd.grad(total, student)
    clear = ((terms - tau).abs() > skip_near).all(-1)
    return total.detach(), gradient, chosen.log(), divergence.detach(), w, clear


def ours(student, teacher, head, ids, sampler, **settings):
    student = student.detach().requires_grad_()
    total, logprobs = loss.distill_loss(student, teacher, head, ids, sampler, **settings)
    total.backward()
    return total.detach(), student.grad, logprobs


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tau", [1e-3, 0.1, math.inf])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_value_and_gradient_equal_the_float64_plain_form(kind, tau, temperature):
    data = batch(seed=1)
    clear = plain(*data, temperature, kind, tau, skip_near=1e-6)[-1]  # no entry within rounding of tau
    assert clear.sum() >= T - 3
    data = [x if x.shape[0] == V else x[clear] for x in data]
    expected, gradient, logprobs, divergence, w, _ = plain(*data, temperature, kind, tau)
    stats = {}
    total, grad, train_logprobs = ours(*data, temperature=temperature, kind=kind, tau=tau, stats=stats)
    assert total.item() == pytest.approx(expected.item(), rel=ROUNDING)
    assert relative(grad, gradient) < ROUNDING
    assert total.dtype == grad.dtype == train_logprobs.dtype == torch.float32 and not train_logprobs.requires_grad
    torch.testing.assert_close(train_logprobs.double(), logprobs, rtol=0, atol=ROUNDING)
    assert stats["divergence"].item() == pytest.approx(divergence.sum().item(), rel=ROUNDING)
    torch.testing.assert_close(stats["weights"].double(), w, rtol=ROUNDING, atol=0)
    assert (w == 2).any() and (w < 2).any()
    logits = [x.double() @ data[2].double().T / temperature for x in data[:2]]
    torch.testing.assert_close(loss.token_divergence(*logits, kind=kind, tau=tau), divergence, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tau", [0.02, math.inf])
def test_gradcheck(kind, tau):
    student, teacher, head, ids, sampler = batch(seed=2, tokens=5, dtype=torch.float64)
    terms = plain_terms(torch.softmax(student @ head.T, -1), torch.softmax(teacher @ head.T, -1), kind)
    # Away from the cap, on both sides of it.
    assert ((terms - tau).abs() > 1e-4).all() and (tau == math.inf or (terms > tau).any())
    # Every weight at its cap: w is a constant of the loss, and finite differences would move it.
    sampler = sampler.double() - 20

    def total(hidden):
        return loss.distill_loss(hidden, teacher, head, ids, sampler, temperature=1.0, kind=kind, tau=tau, chunk=2)[0]

    assert torch.autograd.gradcheck(total, student.requires_grad_(), eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_form_has_the_same_gradient(kind):
    student, teacher, head, ids, sampler = batch(seed=3, dtype=torch.float64)
    _, grad, logprobs = ours(student, teacher, head, ids, sampler, temperature=0.6, kind=kind, tau=0.01)
    hidden = student.requires_grad_()
    divergence = loss.token_divergence(hidden @ head.T / 0.6, teacher @ head.T / 0.6, kind=kind, tau=0.01)
    (loss.importance_weights(logprobs, sampler) * divergence).sum().backward()
    # the weights are rounded to float32
    torch.testing.assert_close(grad, hidden.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_chunk_size_changes_nothing(kind):
    data = batch(seed=4, dtype=torch.float64)
    results, counts = [], []
    for chunk in (1, 7, T, 1000, None):
        stats = {}
        results.append(ours(*data, temperature=0.6, kind=kind, tau=0.01, chunk=chunk, stats=stats))
        counts.append((stats["capped_entries"].item(), stats["entropy"].item()))
    # The weights are float32, and their exponential in a vector of another length may be the number beside it.
    single, double = tolerance(torch.float32, 2), tolerance(torch.float64, T * V + TERMS, condition=10)
    for total, grad, logprobs in results[1:]:
        torch.testing.assert_close(total, results[0][0], rtol=single, atol=0)
        torch.testing.assert_close(grad, results[0][1], rtol=single, atol=double)
        torch.testing.assert_close(logprobs, results[0][2], rtol=0, atol=double)
    assert len({capped for capped, _ in counts}) == 1 and counts[0][0] > 0
    assert max(e for _, e in counts) == pytest.approx(min(e for _, e in counts), rel=double)


def test_stats_by_hand():
    # A head of the identity: logits are the hidden states, so the probabilities can be chosen.
    p, q = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]), torch.tensor([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]])
    sampler = torch.tensor([0.25, 0.8]).log()
    stats = {}
    total, logprobs = loss.distill_loss(p.log(), q.log(), torch.eye(3), torch.tensor([0, 0]), sampler,
                                        temperature=1.0, tau=0.1, cap=1.5, stats=stats)
    # Terms of token 1: 0.5 ln 2 = 0.347 (capped to 0.1), -0.25 ln 2, 0. Token 2: all 0. w = min(0.5 / 0.25, 1.5), 1.
    assert stats["capped_entries"].item() == 1
    assert stats["divergence"].item() == pytest.approx(0.1 - 0.25 * math.log(2), abs=BY_HAND)
    assert stats["weights"].tolist() == pytest.approx([1.5, 1.0], abs=BY_HAND)
    entropies = [1.5 * math.log(2), 0.8 * math.log(1.25) + 0.2 * math.log(10)]
    assert stats["entropy"].item() == pytest.approx(sum(entropies), abs=BY_HAND)
    assert total.item() == pytest.approx(1.5 * (0.1 - 0.25 * math.log(2)), abs=BY_HAND)
    assert total.item() < 0  # the capped loss may be negative
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.8)], abs=BY_HAND)


def test_a_small_cap_flattens_a_student_that_is_less_sure_than_its_teacher():
    p, q = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.99, 0.01]])
    slopes = {}
    for tau in (math.inf, 1e-3):
        args = (p.log(), q.log(), torch.eye(2), torch.tensor([0]), p.log()[:, 0])
        _, slopes[tau], _ = ours(*args, temperature=1.0, tau=tau)
    ratio, other = math.log(0.9 / 0.99), math.log(0.1 / 0.01)
    # No cap: p (log(p/q) - D), descent lowers the second token. Its term, 0.1 ln 10, over tau: descent raises it.
    assert slopes[math.inf][0].tolist() == pytest.approx([0.09 * (ratio - other), 0.09 * (other - ratio)], abs=BY_HAND)
    assert slopes[1e-3][0].tolist() == pytest.approx([0.09 * (ratio + 1), -0.09 * (ratio + 1)], abs=BY_HAND)


@pytest.mark.parametrize("tau", [math.inf, 1e-2])
def test_equation_3_on_the_blackboard_is_what_is_trained_with(tau):
    """plain_loss: value and gradient of distill_loss over the tokens, in float64; weights of both sides of the cap."""
    g = torch.Generator().manual_seed(5)
    head = torch.randn(31, 6, generator=g, dtype=torch.float64)
    student, teacher = (torch.randn(9, 6, generator=g, dtype=torch.float64) for _ in range(2))
    y, log_mu = torch.randint(31, (9,), generator=g), torch.rand(9, generator=g) - 5
    student.requires_grad_()
    plain = loss.plain_loss(student @ head.T / 0.6, teacher @ head.T / 0.6, y, log_mu, tau=tau)
    expected, = torch.autograd.grad(plain, student)
    value, logprobs = loss.distill_loss(student, teacher, head, y, log_mu, temperature=0.6, tau=tau)
    found, = torch.autograd.grad(value / 9, student)
    weights = loss.importance_weights(logprobs, log_mu)
    assert weights.min() < 2 and (weights == 2).any()
    # the weights alone are float32
    assert abs(value.item() / 9 - plain.item()) <= tolerance(torch.float32, 9) * abs(plain.item())
    assert (found - expected).norm() <= tolerance(torch.float32, 9) * expected.norm()


def test_an_entry_at_the_cap_keeps_its_gradient():
    p, q = torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    args = (p.log(), q.log(), torch.eye(2, dtype=torch.float64), torch.tensor([0]), p.log()[:, 0])
    s, t = torch.log_softmax(p.log(), -1), torch.log_softmax(q.log(), -1)
    tau = (s.exp() * (s - t)).max().item()
    uncapped, below = ours(*args, temperature=1.0)[1], ours(*args, temperature=1.0, tau=tau * (1 - 1e-12))[1]
    assert torch.equal(ours(*args, temperature=1.0, tau=tau)[1], uncapped) and not torch.allclose(below, uncapped)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tau", [1e-3, math.inf])
def test_extreme_logits(kind, tau):
    student = torch.tensor([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [0.0, 1e4, 1e4]])
    teacher = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 1e4, 1e4]])
    args = (student, teacher, torch.eye(3), torch.tensor([0, 0, 1]), torch.zeros(3))
    total, grad, logprobs = ours(*args, temperature=1.0, kind=kind, tau=tau)
    divergence = loss.token_divergence(student, teacher, kind=kind, tau=tau)
    # Rows 1 and 3 agree: 0. Row 2 disagrees for certain: a log ratio of 2e4, or the JSD's largest value, ln 2.
    whole = {"reverse_kl": 2e4, "forward_kl": 2e4, "jsd": math.log(2)}[kind]
    capped = {"reverse_kl": tau, "forward_kl": tau, "jsd": 2 * tau}[kind]  # JSD: both ends hold half of ln 2
    assert divergence.tolist() == pytest.approx([0, whole if tau == math.inf else capped, 0], abs=BY_HAND)
    assert logprobs.tolist() == pytest.approx([0, 0, -math.log(2)], abs=BY_HAND)
    assert total.item() == pytest.approx(divergence.sum().item(), abs=BY_HAND) and grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_masked_logits_in_the_plain_form(kind):
    student = torch.tensor([[0.0, 1.0, -math.inf]], requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0, -math.inf]])
    divergence = loss.token_divergence(student, teacher, kind=kind)
    divergence.sum().backward()
    without = loss.token_divergence(student.detach()[:, :2], teacher[:, :2], kind=kind)
    assert divergence.item() == pytest.approx(without.item(), abs=BY_HAND) and student.grad.isfinite().all()


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("tau", [1e-3, math.inf])
def test_no_token_and_one_token(tokens, tau):
    data = batch(seed=5, tokens=tokens)
    stats = {}
    total, grad, logprobs = ours(*data, temperature=1.0, tau=tau, stats=stats)
    assert grad.shape == (tokens, D) and logprobs.shape == stats["weights"].shape == (tokens,)
    assert total.shape == stats["divergence"].shape == ()
    if tokens == 0:
        assert total.item() == stats["divergence"].item() == stats["entropy"].item() == 0
    assert loss.token_divergence(torch.zeros(tokens, V), torch.zeros(tokens, V)).shape == (tokens,)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_hidden_states_and_head(kind):
    data = batch(seed=6, dtype=torch.bfloat16)
    expected, gradient, logprobs, *_ = plain(*data, 0.6, kind, math.inf)
    total, grad, train_logprobs = ours(*data, temperature=0.6, kind=kind)
    # The logits are not rounded to bfloat16: the value is as exact as in float32. The gradient is rounded, once.
    assert total.item() == pytest.approx(expected.item(), rel=ROUNDING) and train_logprobs.dtype == torch.float32
    torch.testing.assert_close(train_logprobs.double(), logprobs, rtol=0, atol=ROUNDING)
    assert grad.dtype == torch.bfloat16 and relative(grad, gradient) < 4e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_on_cuda(kind):
    data = [x.cuda() for x in batch(seed=6, dtype=torch.bfloat16)]
    expected, gradient, logprobs, *_ = plain(*data, 0.6, kind, math.inf)
    total, grad, train_logprobs = ours(*data, temperature=0.6, kind=kind, chunk=10)
    assert total.item() == pytest.approx(expected.item(), rel=ROUNDING)
    torch.testing.assert_close(train_logprobs.double(), logprobs, rtol=0, atol=ROUNDING)
    assert grad.dtype == torch.bfloat16 and relative(grad, gradient) < 1e-2  # the slopes are rounded to bfloat16 too


def test_a_bfloat16_head_under_float32_hidden_states():
    student, teacher, head, ids, sampler = batch(seed=7)
    _, grad, _ = ours(student, teacher, head.bfloat16(), ids, sampler, temperature=1.0)
    assert grad.dtype == torch.float32


def test_upstream_gradient_and_cut_of_the_batch():
    # Eq. 3 divides by the tokens of the whole batch: two micro-batches add up to the gradient of one.
    student, teacher, head, ids, sampler = batch(seed=8)
    student.requires_grad_()
    whole = loss.distill_loss(student, teacher, head, ids, sampler, temperature=1.0)[0] / T
    (expected,) = torch.autograd.grad(whole, student)
    for c in (slice(0, 9), slice(9, T)):
        part, _ = loss.distill_loss(student[c], teacher[c], head, ids[c], sampler[c], temperature=1.0)
        (part / T).backward()
    assert relative(student.grad, expected) < ROUNDING


def test_only_the_student_gets_a_gradient():
    student, teacher, head, ids, sampler = (x.requires_grad_() if x.is_floating_point() else x for x in batch(seed=9))
    total, logprobs = loss.distill_loss(student, teacher, head, ids, sampler, temperature=1.0)
    total.backward()
    assert student.grad is not None and teacher.grad is None and head.grad is None and sampler.grad is None
    assert not loss.importance_weights(student[0], teacher[0]).requires_grad and not logprobs.requires_grad


def test_importance_weights_by_hand():
    train, sampler = torch.tensor([-1.0, -1.0, -0.1, -500.0]), torch.tensor([-1.0, -2.0, -300.0, -1.0])
    w = loss.importance_weights(train, sampler)
    assert w.tolist() == pytest.approx([1.0, 2.0, 2.0, 0.0], abs=BY_HAND) and w.dtype == torch.float32
    assert loss.importance_weights(train[:1], torch.tensor([-math.inf])).item() == 2.0  # a token that mu excludes
    w = loss.importance_weights(train, sampler, cap=3.0)
    assert w.tolist() == pytest.approx([1.0, math.e, 3.0, 0.0], abs=BY_HAND)


def test_three_products_with_the_head():
    student, teacher, head, ids, sampler = batch(seed=10)
    student.requires_grad_()
    with FlopCounterMode(display=False) as counter:
        loss.distill_loss(student, teacher, head, ids, sampler, temperature=1.0, chunk=5)[0].backward()
    assert counter.get_total_flops() == 3 * 2 * T * D * V


def test_nothing_of_size_T_by_V_is_held():
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(x, torch.Tensor):
                    self.elements = max(self.elements, x.numel())
            return out

    data = batch(seed=11, tokens=200)
    with Largest() as largest:
        ours(*data, temperature=1.0, chunk=20)
    assert largest.elements == max(20 * V, 200 * D)


def test_the_default_chunk_has_the_bytes_of_a_buffer(monkeypatch):
    data, chunks = batch(seed=12), []
    monkeypatch.setattr(loss, "CHUNK_BYTES", {"cpu": 4 * V * 7 + 3})  # float32: room for 7 tokens
    log_softmax = loss._log_softmax
    monkeypatch.setattr(loss, "_log_softmax", lambda hidden, *rest, out: (chunks.append(len(hidden)), log_softmax(hidden, *rest, out=out)))
    ours(*data, temperature=1.0)
    assert chunks == [7, 7, 7, 7, 7, 7, 2, 2]  # student and teacher of 23 tokens


def test_unknown_divergence():
    data = batch(tokens=2)
    with pytest.raises(ValueError, match="reverse_kl, forward_kl, jsd"):
        loss.distill_loss(*data, temperature=1.0, kind="kl")
    with pytest.raises(ValueError, match="reverse_kl, forward_kl, jsd"):
        loss.token_divergence(torch.zeros(1, 3), torch.zeros(1, 3), kind="kl")

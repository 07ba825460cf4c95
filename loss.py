"""The distillation loss (paper, Sec. 2.3, App. B.4 and G.5): the clipped f-divergence between the student's and the
teacher's next-token distributions (Eq. 2), times a truncated importance weight, summed over response tokens (Eq. 3).

`token_divergence` is the plain form, to be read. `distill_loss` has the same value and gradient and is the one to train
with: one float32 tensor [T, V] takes 4.6 GiB at T = 8,192 and V = 151,936, so it holds a chunk of tokens at a time.

Two things about the cap tau that surprise:
- The capped loss may be negative. The terms of a KL divergence have both signs and only their full sum is >= 0; the cap
  cuts large positive terms and leaves the negative ones. Do not clamp it at zero.
- It does not only take out outliers. The slope of a term p log(p/q) in log p is p log(p/q) + p. Without a cap the "+ p"
  parts vanish in the gradient of the logits (p - p sum(p) = 0). With a set of capped entries of student mass P they
  leave p P on the others and -p (1 - P) on the capped ones: descent raises the capped entries, which the teacher wants
  lower, and lowers the rest. So where a student is less sure than its teacher, a small tau flattens it further.
"""

import math

import torch

DIVERGENCES = ("reverse_kl", "forward_kl", "jsd")
# Bytes of one float32 [chunk, V] buffer; there are four. Larger chunks read the head less often.
CHUNK_BYTES = {"cpu": 2**27, "cuda": 2**29}  # at V = 151,936: 220 and 883 tokens


def token_divergence(student_logits, teacher_logits, kind="reverse_kl", tau=math.inf):
    """D_i of Eq. 2 per token, float32 [T], from logits [T, V] that are already divided by the temperature.

    Differentiable in both arguments; the caller detaches the teacher. An entry above tau counts as tau and gets no
    gradient. kind: "reverse_kl" (Eq. 4), "forward_kl" or "jsd" with beta 0.5 (App. G.5); any other raises ValueError.
    """
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    # A logit of -inf (a masked entry) has p = 0; the clamp makes its term 0 * finite = 0 instead of 0 * inf = nan.
    least = torch.finfo(dtype).min / 4
    s = torch.log_softmax(student_logits.to(dtype), dim=-1).clamp(min=least)  # log p
    t = torch.log_softmax(teacher_logits.to(dtype), dim=-1).clamp(min=least)  # log q
    if kind == "reverse_kl":
        g = s.exp() * (s - t)
    elif kind == "forward_kl":
        g = t.exp() * (t - s)
    elif kind == "jsd":
        log_m = torch.logaddexp(s, t) - math.log(2)  # m = (p + q) / 2
        g = 0.5 * s.exp() * (s - log_m) + 0.5 * t.exp() * (t - log_m)
    else:
        raise ValueError(f"divergence must be one of {', '.join(DIVERGENCES)}, not {kind!r}")
    return g.clamp(max=tau).sum(-1)


def importance_weights(train_logprobs, sampler_logprobs, cap=2.0):
    """w_i = min(policy(y_i) / mu(y_i), cap) (App. B.4), float32 [T] without gradient, from log-probabilities [T] of the
    sampled tokens: the training engine's, and the sampling engine's after temperature and top-p."""
    return (train_logprobs.detach().float() - sampler_logprobs.detach().float()).exp().clamp(max=cap)


def distill_loss(student_hidden, teacher_hidden, lm_head_weight, token_ids, sampler_logprobs, *, temperature,
                 kind="reverse_kl", tau=math.inf, cap=2.0, chunk=None, stats=None):
    """The numerator of Eq. 3 over T response tokens, and the log-probabilities behind its weights, in one forward pass.

    student_hidden, teacher_hidden: [T, d], bfloat16 or float32, the states that predict the T tokens. T may be 0.
    lm_head_weight: [V, d], a head without bias. It is frozen: it gets no gradient even if it asks for one.
    token_ids: int64 [T]; sampler_logprobs: [T], see importance_weights; temperature > 0 divides the logits.
    kind, tau: see token_divergence (ValueError); cap: of the weights; chunk: tokens at a time (default: CHUNK_BYTES).
    stats: a dict that receives "divergence" (sum of D_i, unweighted), "entropy" (sum of the student's entropies, nats),
        "capped_entries" (number of the T V entries above tau), all 0-dim, and "weights" (w, float32 [T]).

    Returns (sum of w_i D_i, float32 0-dim; train_logprobs, float32 [T], detached). Divide the first by the number of
    response tokens of the whole batch. The gradient goes to student_hidden only, in its dtype.
    """
    if kind not in DIVERGENCES:
        raise ValueError(f"divergence must be one of {', '.join(DIVERGENCES)}, not {kind!r}")
    if chunk is None:
        chunk = max(1, CHUNK_BYTES[student_hidden.device.type] // (4 * lm_head_weight.shape[0]))
    return _DistillLoss.apply(student_hidden, teacher_hidden, lm_head_weight, token_ids, sampler_logprobs,
                              temperature, kind, tau, cap, chunk, stats)


class _DistillLoss(torch.autograd.Function):
    """Takes the gradient in the forward pass, so that nothing of size V outlives its chunk and nothing is computed
    twice: three products with the head (student, teacher, gradient), the fewest possible. Four [chunk, V] buffers serve
    all chunks: fresh memory costs a CPU a fifth of the time in page faults. Eager on purpose: torch.compile could fuse
    the element-wise passes on a GPU, but that was not measured on one."""

    @staticmethod
    def forward(ctx, student_hidden, teacher_hidden, weight, token_ids, sampler_logprobs,
                temperature, kind, tau, cap, chunk, stats):
        T, dtype = len(token_ids), torch.promote_types(weight.dtype, torch.float32)
        if weight.device.type == "cpu":
            weight = weight.to(dtype)  # see _matmul
        like = dict(dtype=dtype, device=weight.device)
        buffers = [torch.empty(min(chunk, T), len(weight), **like) for _ in range(4)]
        grad = torch.empty(student_hidden.shape, **like)
        divergence, logprobs, w = (torch.empty(T, **like) for _ in range(3))
        entropy, capped = torch.zeros((), **like), torch.zeros((), dtype=torch.long, device=weight.device)

        for i in range(0, T, chunk):
            c = slice(i, min(i + chunk, T))
            free, s, t, p = (buffer[:c.stop - i] for buffer in buffers)
            _log_softmax(student_hidden[c], weight, temperature, free, out=s)  # log p
            _log_softmax(teacher_hidden[c], weight, temperature, free, out=t)  # log q
            torch.exp(s, out=p)
            logprobs[c] = s.gather(1, token_ids[c, None]).squeeze(1)
            w[c] = importance_weights(logprobs[c], sampler_logprobs[c], cap)
            if stats is not None:
                entropy -= torch.mul(p, s, out=free).sum()
            g, slope = _terms(p, s, t, free, kind)
            if tau < math.inf:
                above = g > tau
                capped += above.count_nonzero()
                slope.masked_fill_(above, 0)
                g.clamp_(max=tau)
            divergence[c] = g.sum(-1)
            # d(log p_v)/d(logit_u) = [u = v] - p_u, so dD/d(logit) = slope - p sum(slope).
            slope.addcmul_(p, slope.sum(-1, keepdim=True), value=-1)
            grad[c] = _matmul(slope.to(weight.dtype), weight) * (w[c] / temperature)[:, None]

        if stats is not None:
            stats.update(divergence=divergence.sum(), entropy=entropy, capped_entries=capped, weights=w)
        ctx.save_for_backward(grad)
        ctx.hidden_dtype = student_hidden.dtype
        ctx.mark_non_differentiable(logprobs)
        return (w * divergence).sum(), logprobs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _):
        (grad,) = ctx.saved_tensors
        return (grad * grad_loss).to(ctx.hidden_dtype), *[None] * 10  # none to the teacher, nor to the frozen head


def _matmul(x, matrix, out=None):
    """x [n, k] @ matrix [k, m] with a float32 result (float64 from float64). Rounding logits of size 20 to bfloat16
    moves them by up to 0.06, more than student and teacher often differ. On CUDA the bfloat16 product is accumulated
    and returned in float32; a CPU has no such kernel, so there the caller upcasts the head, once a call (4 V d bytes).
    """
    if x.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(x, matrix, out_dtype=torch.float32, out=out)
    return torch.mm(x, matrix, out=out)


def _log_softmax(hidden, weight, temperature, logits, out):
    """Writes the log-probabilities [n, V] of hidden states [n, d] to out; logits: a buffer [n, V]."""
    _matmul(hidden.to(weight.dtype), weight.T, out=logits)
    if temperature != 1:
        logits.div_(temperature)
    torch.log_softmax(logits, dim=-1, out=out)


def _terms(p, s, t, free, kind):
    """(g, dg/ds), each [n, V]: the terms of token_divergence and their slopes, from p, s = log p and t = log q.

    They are written into the buffers s, t and free. With dp/ds = p and, for m = (p + q)/2, d(log m)/ds = p/(p + q):
      reverse KL: g = p (s - t)                          dg/ds = p (s - t) + p = g + p
      forward KL: g = q (t - s)                          dg/ds = -q
      JSD:        g = p (s - log m)/2 + q (t - log m)/2  dg/ds = p (s - log m)/2 + p/2 - (p + q)/2 p/(p + q), where the
                  last two cancel: the slope is the first half of g
    """
    if kind == "reverse_kl":
        g = s.sub_(t).mul_(p)
        return g, torch.add(g, p, out=t)
    if kind == "forward_kl":
        g = torch.sub(t, s, out=s).mul_(t.exp_())  # t now holds q
        return g, t.neg_()
    log_m = torch.logaddexp(s, t, out=free).sub_(math.log(2))
    slope = s.sub_(log_m).mul_(p).mul_(0.5)
    return torch.sub(t, log_m, out=free).mul_(t.exp_()).mul_(0.5).add_(slope), slope

"""The distillation loss: Eq. 2-4 (section 2.3, App. B.4, G.5).

The plain form comes first, to be read: `token_divergence` (D), `importance_weights` (w), and
`plain_loss`, which is Eq. 3. The second half, `distill_loss`, has the same value and gradient and
is the one to train with: a float32 tensor [T, V] takes 4.6 GiB at T = 8,192 and V = 151,936, so
it holds the logits of a chunk of tokens at a time.

On the cap tau, for the reverse KL, g_v = p_v log(p_v / q_v). With s = log p:

    g_v <= tau:  dg_v/ds_v = g_v + p_v        g_v > tau:  dg_v/ds_v = 0
    dD/dlogit_u = dg_u/ds_u - p_u sum_v dg_v/ds_v

- D may be negative, so it is not clamped at 0: only the full sum of a KL divergence is >= 0, and
  the cap cuts its large positive terms and leaves the negative ones.
- Without a cap the parts p_v of the slopes cancel (p_u - p_u sum_v p_v = 0). With a capped set of
  mass P they leave p_u P on the other entries and -p_u (1 - P) on the capped ones: descent raises
  the entries that the teacher wants lower. So where the student is less sure than its teacher, a
  small tau flattens it further.
"""

import math

import torch

DIVERGENCES = ("reverse_kl", "forward_kl", "jsd")
UNKNOWN = "divergence must be one of reverse_kl, forward_kl, jsd, not"
# Bytes of one float32 [chunk, V] buffer; there are four. Larger chunks read the head less often.
CHUNK_BYTES = {"cpu": 2**27, "cuda": 2**29}  # at V = 151,936: 220 and 883 tokens


# --------------------------------------------------------------------------------------------------
# The plain form


def token_divergence(student_logits, teacher_logits, kind="reverse_kl", tau=math.inf):
    """D_i of Eq. 2: float32 [T], from logits [T, V] that are already divided by the temperature.

    Differentiable in both arguments; the caller detaches the teacher. An entry above tau counts as
    tau and gets no gradient. kind: see `divergence_terms`.
    """
    g = divergence_terms(student_logits, teacher_logits, kind)                            # [T, V]
    g = g.clamp(max=tau)
    return g.sum(-1)


def divergence_terms(student_logits, teacher_logits, kind="reverse_kl"):
    """g of Eq. 2, what each entry of the vocabulary adds to D_i before the cap: float32 [T, V].

    kind: "reverse_kl" (Eq. 4), "forward_kl" or "jsd" with beta 0.5 (App. G.5); any other raises
    ValueError.
    """
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    # A logit of -inf (a masked entry) has p = 0; the clamp makes its term 0 and not 0 * inf = nan.
    least = torch.finfo(dtype).min / 4
    s = student_logits.to(dtype).log_softmax(-1).clamp(min=least)  # log p                [T, V]
    t = teacher_logits.to(dtype).log_softmax(-1).clamp(min=least)  # log q                [T, V]
    p = s.exp()
    q = t.exp()
    if kind == "reverse_kl":
        g = p * (s - t)
    elif kind == "forward_kl":
        g = q * (t - s)
    elif kind == "jsd":
        log_m = torch.logaddexp(s, t) - math.log(2)  # m = (p + q) / 2
        g = 0.5 * p * (s - log_m) + 0.5 * q * (t - log_m)
    else:
        raise ValueError(f"{UNKNOWN} {kind!r}")
    return g


def importance_weights(train_logprobs, sampler_logprobs, cap=2.0):
    """w_i = min(policy(y_i) / mu(y_i), cap) (App. B.4): float32 [T] without gradient.

    From log-probabilities [T] of the sampled tokens: the training engine's, and the sampling
    engine's after temperature and top-p.
    """
    dtype = torch.promote_types(train_logprobs.dtype, torch.float32)
    log_p_y = train_logprobs.detach().to(dtype)
    log_mu = sampler_logprobs.detach().to(dtype)
    ratio = (log_p_y - log_mu).exp()
    return ratio.clamp(max=cap)


def plain_loss(student_logits, teacher_logits, y, log_mu, tau=math.inf):
    """Eq. 3 for one batch, with the reverse KL, in six lines for a blackboard.

    student_logits, teacher_logits: [T, V], divided by the temperature; y: int64 [T], the sampled
    tokens of the whole batch; log_mu: [T], the log-probability that each was drawn with.
    """
    D = token_divergence(student_logits, teacher_logits.detach(), tau=tau)  # Eq. 2, 4       [T]
    log_p = student_logits.log_softmax(-1)                                  #             [T, V]
    log_p_y = log_p[torch.arange(len(y)), y]                                # log policy(y_i) [T]
    w = importance_weights(log_p_y, log_mu)                                 # w_i             [T]
    N = len(y)                                                              # of the whole batch
    return (w * D).sum() / N                                                # Eq. 3


# --------------------------------------------------------------------------------------------------
# The same in little memory


def distill_loss(student_hidden, teacher_hidden, lm_head_weight, token_ids, sampler_logprobs, *,
                 temperature, kind="reverse_kl", tau=math.inf, cap=2.0, chunk=None, stats=None):
    """The numerator of Eq. 3 over T response tokens, and the log-probabilities behind its weights.

    student_hidden, teacher_hidden: [T, d], bfloat16 or float32, the states that predict the tokens;
        T may be 0.
    lm_head_weight: [V, d], a head without bias. It is frozen: no gradient even if it asks for one.
    token_ids: int64 [T]; sampler_logprobs: [T], see importance_weights; temperature > 0 divides the
        logits.
    kind, tau: see token_divergence (ValueError); cap: of the weights; chunk: tokens at a time
        (default: CHUNK_BYTES).
    stats: a dict that receives "divergence" (sum of D_i, unweighted), "entropy" (sum of the
        student's entropies, nats), "capped_entries" (number of the T V entries above tau), all
        0-dim, and "weights" (w, float32 [T]).

    Returns (sum of w_i D_i, float32 0-dim; train_logprobs, float32 [T], detached). Divide the
    first by the response tokens of the whole batch. The gradient goes to student_hidden only, in
    its dtype.
    """
    if kind not in DIVERGENCES:
        raise ValueError(f"{UNKNOWN} {kind!r}")
    if chunk is None:
        row_bytes = 4 * lm_head_weight.shape[0]
        chunk = max(1, CHUNK_BYTES[student_hidden.device.type] // row_bytes)
    lm_head_weight = _head(lm_head_weight)
    return _DistillLoss.apply(student_hidden, teacher_hidden, lm_head_weight, token_ids,
                              sampler_logprobs, temperature, kind, tau, cap, chunk, stats)


class _DistillLoss(torch.autograd.Function):
    """Takes the gradient in the forward pass, so that nothing of size V outlives its chunk.

    Nothing is computed twice: three products with the head (student, teacher, gradient), the fewest
    possible. Four [chunk, V] buffers serve all chunks, since fresh memory costs a CPU a fifth of
    the time in page faults:

        s: log p, then g      t: log q, then the slope dg/ds      p: p      free: logits, products

    Eager on purpose: torch.compile could fuse the element-wise passes on a GPU, but that was not
    measured on one.
    """


    @staticmethod
    def forward(ctx, student_hidden, teacher_hidden, weight, token_ids, sampler_logprobs,
                temperature, kind, tau, cap, chunk, stats):
        T, dtype = len(token_ids), torch.promote_types(weight.dtype, torch.float32)
        sums = _Sums(T, weight.device, dtype)
        grad = torch.empty_like(student_hidden, dtype=dtype)                                # [T, d]
        shape = min(chunk, T), len(weight)
        buffers = [torch.empty(shape, dtype=dtype, device=weight.device) for _ in range(4)]
        for i in range(0, T, chunk):
            c = slice(i, i + chunk)
            free, s, t, p = (buffer[:T - i] for buffer in buffers)                          # [n, V]
            _log_softmax(student_hidden[c], weight, temperature, free, out=s)
            _log_softmax(teacher_hidden[c], weight, temperature, free, out=t)
            torch.exp(s, out=p)
            sums.log_p_y[c] = s.gather(1, token_ids[c, None])[:, 0]
            sums.w[c] = importance_weights(sums.log_p_y[c], sampler_logprobs[c], cap)
            sums.entropy -= torch.mul(p, s, out=free).sum()
            g, slope = _terms(p, s, t, free, kind)
            sums.capped += _cap(g, slope, tau)
            sums.D[c] = g.sum(-1)
            # d(log p_v)/d(logit_u) = [u = v] - p_u, so dD/d(logit) = slope - p sum(slope).
            total = slope.sum(-1, keepdim=True)                                             # [n, 1]
            slope.addcmul_(p, total, value=-1)
            scale = sums.w[c, None] / temperature                                           # [n, 1]
            grad[c] = _matmul(slope.to(weight.dtype), weight) * scale
        if stats is not None:
            stats.update(sums.stats())
        ctx.save_for_backward(grad)
        ctx.hidden_dtype = student_hidden.dtype
        ctx.mark_non_differentiable(sums.log_p_y)
        return (sums.w * sums.D).sum(), sums.log_p_y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _):
        (grad,) = ctx.saved_tensors
        # none to the teacher, nor to the frozen head
        return (grad * grad_loss).to(ctx.hidden_dtype), *[None] * 10


class _Sums:
    """What `forward` collects over its chunks."""

    def __init__(self, T, device, dtype):
        self.D = torch.empty(T, dtype=dtype, device=device)
        self.w = torch.empty(T, dtype=dtype, device=device)
        self.log_p_y = torch.empty(T, dtype=dtype, device=device)
        self.entropy = torch.zeros((), dtype=dtype, device=device)
        self.capped = torch.zeros((), dtype=torch.long, device=device)

    def stats(self):
        return {
            "divergence": self.D.sum(),
            "entropy": self.entropy,
            "capped_entries": self.capped,
            "weights": self.w,
        }


def _cap(g, slope, tau):
    """Eq. 2's min(g, tau), in place: a capped entry is constant, its slope 0. -> their number."""
    if tau == math.inf:
        return 0
    is_above = g > tau
    slope.masked_fill_(is_above, 0)
    g.clamp_(max=tau)
    count = is_above.count_nonzero()
    return count


def _matmul(x, matrix, out=None):
    """x [n, k] @ matrix [k, m] with a float32 result (float64 from float64).

    Rounding logits of size 20 to bfloat16 moves them by up to 0.06, more than student and teacher
    often differ. On CUDA the bfloat16 product is accumulated and returned in float32; a CPU has no
    such kernel, so there the caller upcasts the head, once a call (4 V d bytes).
    """
    if x.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(x, matrix, out_dtype=torch.float32, out=out)
    return torch.mm(x, matrix, out=out)


def _head(weight):
    """The frozen head as `_matmul` takes it."""
    if weight.device.type == "cpu":
        return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    return weight.detach()


def _log_softmax(hidden, weight, temperature, logits, out):
    """Log-probabilities [n, V] of hidden states [n, d], into out; logits: a buffer [n, V]."""
    hidden = hidden.to(weight.dtype)
    _matmul(hidden, weight.T, out=logits)
    if temperature != 1:
        logits.div_(temperature)
    torch.log_softmax(logits, dim=-1, out=out)


def _terms(p, s, t, free, kind):
    """(g, dg/ds), each [n, V]: the terms of token_divergence and their slopes, from p, s and t.

    They are written into the buffers s, t and free. With dp/ds = p and, for m = (p + q) / 2,
    d(log m)/ds = p / (p + q):

        reverse KL: g = p (s - t)                          dg/ds = p (s - t) + p = g + p
        forward KL: g = q (t - s)                          dg/ds = -q
        JSD:        g = p (s - log m)/2 + q (t - log m)/2  dg/ds = p (s - log m)/2, as the rest,
                                                           p/2 - (p + q)/2 p/(p + q), is 0
    """
    if kind == "reverse_kl":
        g = s.sub_(t).mul_(p)
        slope = torch.add(g, p, out=t)
        return g, slope
    if kind == "forward_kl":
        g = torch.sub(t, s, out=s)
        q = t.exp_()
        g.mul_(q)
        return g, q.neg_()
    log_m = torch.logaddexp(s, t, out=free)
    log_m.sub_(math.log(2))
    slope = s.sub_(log_m)
    slope.mul_(p).mul_(0.5)
    g = torch.sub(t, log_m, out=free)
    q = t.exp_()
    g.mul_(q).mul_(0.5)
    g.add_(slope)
    return g, slope


# --------------------------------------------------------------------------------------------------
# Any other loss in little memory: the baselines'


def chunked(hidden, head, temperature, per_token, chunk=None):
    """The sum of a loss over T tokens, with [chunk, V] log-probabilities at a time.

    hidden: [T, d], T may be 0; head: [V, d], frozen; temperature > 0 divides the logits.
    per_token(logp, c): the sum over the tokens of the slice c, 0-dim, of their log-probabilities
        logp [n, V], float32 (float64 from float64); autograd goes through logp alone.
    -> the sum, 0-dim. Its gradient goes to `hidden` only, in its dtype; without one, per_token runs
    without a graph.
    """
    weight = _head(head)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    # Half as many tokens as distill_loss: the graph of a formula keeps up to eight such buffers.
    chunk = chunk or max(1, CHUNK_BYTES[weight.device.type] // (8 * len(weight)))
    is_trained = hidden.requires_grad and torch.is_grad_enabled()
    total = torch.zeros((), dtype=dtype, device=weight.device)
    grad = torch.zeros(hidden.shape, dtype=dtype, device=weight.device)                     # [T, d]
    for i in range(0, len(hidden), chunk):
        c = slice(i, i + chunk)
        logits = _logits(hidden[c].detach(), weight, temperature)                           # [n, V]
        logits.requires_grad_()
        with torch.set_grad_enabled(is_trained):
            logp = logits.log_softmax(-1)
            loss = per_token(logp, c)
        if loss.requires_grad:
            (slope,) = torch.autograd.grad(loss, logits)
            slope = slope.to(weight.dtype)
            grad[c] = _matmul(slope, weight) / temperature
        total += loss.detach()
    return _WithGradient.apply(hidden, total, grad)


def log_probabilities(hidden, head, temperature):
    """log policy over the vocabulary, [n, V], of hidden states [n, d]; without gradient."""
    with torch.no_grad():
        return _logits(hidden, _head(head), temperature).log_softmax(-1)


def _logits(hidden, weight, temperature):
    return _matmul(hidden.to(weight.dtype), weight.T).div_(temperature)


class _WithGradient(torch.autograd.Function):
    """A value whose gradient is known already."""

    @staticmethod
    def forward(ctx, hidden, value, grad):
        ctx.save_for_backward(grad)
        ctx.hidden_dtype = hidden.dtype
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_value):
        (grad,) = ctx.saved_tensors
        return (grad * grad_value).to(ctx.hidden_dtype), None, None

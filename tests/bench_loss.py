"""
The loss at a real vocabulary: the plain form, loss.distill_loss and Liger's chunked distillation loss, forward and
backward, side by side. Run by hand from the project root; liger-kernel is needed by this file alone:

    pip install --no-deps liger-kernel
    python tests/bench_loss.py [--tokens 256 512 1024 2048 4096] [--kind reverse_kl] [--device cpu]

All three compute the same thing here (every weight 1, temperature 1, no cap), and the run stops if they do not agree.
Each measurement is a process of its own. Extra memory is the peak over what the inputs take: resident memory on a CPU
(VmHWM, reset before the call; Linux), torch's own peak on CUDA. Seconds: the least of --repeats calls.
Liger: its pure-torch loss, uncompiled on a CPU and compiled, its default, on CUDA. It also forms the head's gradient.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

PLAIN_UP_TO = 2048  # tokens; beyond, the plain form's logits alone take several GiB
LIGER_BETA = {"forward_kl": 0.0, "jsd": 0.5, "reverse_kl": 1.0}


def resident(field):
    """VmRSS or VmHWM (its peak) of this process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(form, tokens, args):
    """Runs one form in this process and prints a line of JSON: seconds, extra bytes, value, norm of the gradient."""
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import loss

    cuda = args.device == "cuda"
    g = torch.Generator(args.device).manual_seed(0)
    draw = {"generator": g, "device": args.device, "dtype": torch.bfloat16 if cuda else torch.float32}
    head = torch.randn(args.vocab, args.width, **draw).mul_(3 / math.sqrt(args.width))
    student = torch.randn(tokens, args.width, **draw).requires_grad_()
    teacher = student.detach() + 0.3 * torch.randn(tokens, args.width, **draw)
    ids = torch.randint(args.vocab, (tokens,), generator=g, device=args.device)
    sampler = torch.full((tokens,), -1e3, device=args.device)  # a ratio above any cap: with cap = 1 every weight is 1

    def plain():
        divergence = loss.token_divergence((student @ head.T).float(), (teacher @ head.T).float(), kind=args.kind)
        return divergence.sum()

    def ours():
        return loss.distill_loss(student, teacher, head, ids, sampler, temperature=1.0, kind=args.kind, cap=1.0)[0]

    def liger():
        from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

        beta = LIGER_BETA[args.kind]
        mean = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=beta, compiled=cuda)
        return mean(student, head, teacher, head, ids) * tokens

    run = {"plain": plain, "ours": ours, "liger": liger}[form]
    # A first product starts the thread pools and the libraries, which is no cost of the loss.
    (student.detach()[:8] @ head[:64].T).sum().item()
    seconds = []
    for repeat in range(args.repeats):
        student.grad = None
        if repeat == 0 and cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        elif repeat == 0:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            before = resident("VmRSS")
        start = time.perf_counter()
        value = run()
        value.backward()
        norm = student.grad.float().norm().item()  # waits for the GPU
        seconds.append(time.perf_counter() - start)
        if repeat == 0:
            extra = (torch.cuda.max_memory_allocated() if cuda else resident("VmHWM")) - before
    print(json.dumps({"seconds": min(seconds), "extra": extra, "value": value.item(), "norm": norm}))


def main():
    parser = argparse.ArgumentParser(description="Time and peak memory of the distillation loss.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--width", type=int, default=256, help="hidden size d (Qwen3-8B: 4096)")
    parser.add_argument("--kind", default="reverse_kl", choices=list(LIGER_BETA))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--form", choices=["plain", "ours", "liger"], help="measure this form alone, in this process")
    args = parser.parse_args()
    if args.form:
        return measure(args.form, args.tokens[0], args)

    print(f"{args.kind}, V = {args.vocab:,}, d = {args.width}, {args.device}; seconds / extra MiB")
    print(f"{'T':>6} {'plain':>16} {'ours':>16} {'liger':>16}  ours/plain  ours/liger  (ratios of seconds)")
    for tokens in args.tokens:
        results = {}
        for form in ("plain", "ours", "liger"):
            if form == "plain" and tokens > PLAIN_UP_TO:
                continue
            settings = [f"--{name}={getattr(args, name)}" for name in ("vocab", "width", "kind", "device", "repeats")]
            command = [sys.executable, __file__, "--form", form, "--tokens", str(tokens), *settings]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[form] = json.loads(output.splitlines()[-1])
        ours = results["ours"]
        for form, other in results.items():
            for key in ("value", "norm"):
                if not math.isclose(ours[key], other[key], rel_tol=1e-3 if args.device == "cpu" else 2e-2):
                    sys.exit(f"T = {tokens}: {form}'s {key} is {other[key]}, ours {ours[key]}")
        cells = [f"{r['seconds']:8.2f} / {r['extra'] / 2**20:5.0f}" if (r := results.get(form)) else "-"
                 for form in ("plain", "ours", "liger")]
        ratios = [f"{ours['seconds'] / results[form]['seconds']:.2f}" if form in results else "-"
                  for form in ("plain", "liger")]
        print(f"{tokens:>6}", *(f"{cell:>16}" for cell in cells), *(f"{ratio:>11}" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main()

"""Self-distillation of what the memory gave: Algorithm 1, lines 13-16 (section 2.3, App. B.4, G.3-G.5).

    python distill.py --cplus out/cplus.jsonl                                      # S = 20 steps of 128 problems, one GPU
    torchrun --nproc_per_node 8 distill.py --cplus out/cplus.jsonl                 # sharded (FSDP2); each rank samples its share

Student: the policy on the plain prompt. Teacher: the same current policy, adapter included, on a context after which it answered
correctly. Both see the student's own sampled tokens. Only the LoRA adapter is trained.

Writes adapter/ (PEFT format, the newest), adapter/step_K/ (the last two, with what a resume needs), distill.jsonl (a line of
metrics per step), samples.jsonl (the student's responses) and distill.json into --out. The same command goes on where a run
stopped; a larger --steps extends it.
"""
import argparse
import asyncio
import dataclasses
import importlib.util
import json
import math
import os
import random
import shutil
import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

import data
import engine
import loss
import prompts
import runs

LORA_RANK = 64  # App. B.4: rank and alpha 64, dropout 0, all linear layers but the head


# ---------------------------------------------------------------------------------------------------------------------
# What is trained on: batches (line 14), contexts (line 15)


def batch_indices(step, size, count, seed):
    """Problems of update step `step` (from 1): a cut of one endless stream, the permutations of the problems one after another.

    Returns [(index, occurrence)]: a batch that spans two epochs may hold a problem twice; its second occurrence is 1. The
    permutation of epoch e is seeded with the schedule seed + e; run seed s has schedule seed (s - 1) * 10^8.
    """
    batch = []
    for position in range((step - 1) * size, step * size):
        epoch, place = divmod(position, count)
        index = int(np.random.default_rng((seed - 1) * 10**8 + epoch).permutation(count)[place])
        batch.append((index, sum(i == index for i, _ in batch)))
    return batch


def draw_context(contexts, seed, step, problem, occurrence=0):
    """c ~ Unif(C+(x)): one of `contexts` (a non-empty list), a pure function of the other arguments."""
    return random.Random(engine.request_seed(seed, problem, step, f"context {occurrence}")).choice(contexts)


def group(lines):
    """cplus.jsonl -> {problem id: its lines}, in the order of the file."""
    problems = {}
    for line in lines:
        problems.setdefault(line["problem"], []).append(line)
    return problems


def teacher_contexts(problems, traces, rollouts):
    """{problem id: [context]}: what the teachers of the trace types of Tables 5 and 27 are conditioned on (App. G.4).

    success: C+ itself. failure: the contexts of wrong answers, duplicates left out; the plain prompt where there is none.
    random: C+ with the feedback turn replaced by one that differs, from another step of the problem, else of another problem;
    restart contexts hold no feedback and stay. `rollouts`: the records of rollouts.jsonl (not read for success).
    """
    if traces == "success":
        return {problem: [line["context"] for line in lines] for problem, lines in problems.items()}
    contexts = {}
    if traces == "failure":
        for problem, lines in problems.items():
            wrong = [r["context"] for r in rollouts if r["problem"] == problem and r["reward"] == 0]
            distinct = list({json.dumps(context): context for context in wrong}.values())
            contexts[problem] = distinct or [lines[0]["opening"]]
        return contexts
    carried = [(r["problem"], r["context"][-1]["content"]) for r in sorted(rollouts, key=lambda r: r["step"]) if not r["restart"]]
    restarts = {(r["problem"], r["step"]) for r in rollouts if r["restart"]}
    for problem, lines in problems.items():
        contexts[problem] = []
        for line in lines:
            *earlier, turn = line["context"]
            if (problem, line["step"]) not in restarts:
                own = sorted({text for p, text in carried if p == problem and text != turn["content"]})
                others = sorted({text for p, text in carried if p != problem and text != turn["content"]})
                if not own and not others:
                    raise data.BadInput("--traces random needs two feedback texts that differ, and these rollouts hold one: explore more problems.")
                pick = random.Random(engine.request_seed(1, problem, line["step"], "random trace"))
                turn = prompts.user(pick.choice(own or others))
            contexts[problem].append([*earlier, turn])
    return contexts


# ---------------------------------------------------------------------------------------------------------------------
# The policy: a frozen model with a LoRA adapter


@dataclasses.dataclass
class Policy:
    """The model that is trained. Only LoRA parameters have gradients; the head stays whole on every rank."""
    model: torch.nn.Module
    decoder: torch.nn.Module      # everything below the head
    head: torch.Tensor            # [V, d], frozen
    device: torch.device
    autocast: bool                # bfloat16 compute over float32 adapters
    temperature: float

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def hidden(self, sequences, lengths):
        """Hidden states [sum of lengths, d] that predict the last `lengths` tokens of each sequence, from one packed row.

        The sequences stand one after another without padding; positions that start again at 0 keep them apart in the
        attention (with no mask at all: a mask of ones would let them see each other).
        """
        ids = torch.tensor([[token for s in sequences for token in s]], device=self.device)
        positions = torch.tensor([[i for s in sequences for i in range(len(s))]], device=self.device)
        ends = np.cumsum([len(s) for s in sequences])
        predicts = torch.tensor([i for end, n in zip(ends, lengths) for i in range(end - n - 1, end - 1)], device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext():
            hidden = self.decoder(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False).last_hidden_state
        return hidden[0, predicts]


def load_policy(settings, adapter, seed, checkpoint_every, device):
    """Load the model with a new LoRA adapter, or that of the folder `adapter`; shard it where there are several ranks."""
    from peft import LoraConfig, PeftModel, get_peft_model
    flash = device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None
    attention = "flash_attention_2" if flash else "sdpa"
    dtype = getattr(torch, settings.dtype)
    base = engine.load(engine.AutoModelForCausalLM, settings.model, dtype=dtype, attn_implementation=attention).to(device)
    torch.manual_seed((seed - 1) * 10**8)  # the start of the adapter
    if adapter:
        model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, lora_dropout=0.0, bias="none",
                                                target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    if checkpoint_every:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}, every_n_layers=checkpoint_every)
    decoder, head = base.get_decoder(), base.get_output_embeddings().weight
    if dist.is_initialized():
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mixed = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for part in [*decoder.layers, decoder]:  # the decoder is its own root; a tied embedding stays whole with the head
            fully_shard(part, mp_policy=mixed, ignored_params={head})
    print_once(f"attention: {attention}, {sum(p.numel() for p in model.parameters() if p.requires_grad):,} trainable parameters")
    return Policy(model, decoder, head, device, dtype == torch.bfloat16, settings.temperature)


def rank_and_world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def print_once(text):
    if rank_and_world()[0] == 0:
        print(text, flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# One update (line 16)


@dataclasses.dataclass
class Item:
    """One student response of the batch and what it is trained with."""
    problem: str
    opening: list          # token ids of the plain prompt
    context: list          # token ids of the teacher's context
    sample: engine.Sample

    def tokens(self):
        """Tokens of the student's and the teacher's row."""
        return len(self.opening) + len(self.context) + 2 * len(self.sample.token_ids)


def micro_batches(items, budget):
    """Cut items into lists of at most `budget` tokens (student and teacher rows together; one item may be larger)."""
    batches, room = [], 0
    for item in sorted(items, key=Item.tokens):
        if item.tokens() > room:
            batches.append([])
            room = budget
        batches[-1].append(item)
        room -= item.tokens()
    return batches


def update(policy, optimizer, items, *, kind, tau, budget, max_grad_norm=1.0):
    """One optimizer step on Eq. 3 over the batch; `items` is this rank's share. -> metrics of the whole batch.

    The loss divides by the response tokens of the whole batch over all micro-batches and ranks, so that the gradient does not
    depend on how the batch is cut. A rank with fewer micro-batches runs empty ones: every rank must take part in every
    collective operation of the sharded model.
    """
    world = rank_and_world()[1]
    batches = micro_batches(items, budget)
    total = int(reduced([sum(len(i.sample.token_ids) for i in items)], policy.device)[0])
    rounds = int(reduced([len(batches)], policy.device, maximum=True)[0])
    sums = np.zeros(6)
    for batch in batches + [[]] * (rounds - len(batches)):
        students = [i.opening + i.sample.token_ids for i in batch] or [[0, 0]]
        teachers = [i.context + i.sample.token_ids for i in batch] or [[0, 0]]
        lengths = [len(i.sample.token_ids) for i in batch] or [0]
        token_ids = torch.tensor([t for i in batch for t in i.sample.token_ids], dtype=torch.long, device=policy.device)
        sampler_logprobs = torch.tensor([x for i in batch for x in i.sample.logprobs], device=policy.device)  # log mu
        with torch.no_grad():
            teacher = policy.hidden(teachers, lengths)  # q: the same current policy, adapter included
        student = policy.hidden(students, lengths)      # p
        stats = {}
        value, train_logprobs = loss.distill_loss(student, teacher, policy.head, token_ids, sampler_logprobs,
                                                  temperature=policy.temperature, kind=kind, tau=tau, stats=stats)
        (value * world / total).backward()  # FSDP averages over the ranks: times world gives their sum
        weights = stats["weights"]
        sums += [float(x) for x in (value.detach(), stats["divergence"], weights.sum(), (weights >= 2).sum(),
                                    stats["entropy"], stats["capped_entries"])]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    optimizer.step()
    optimizer.zero_grad()
    sums = reduced(sums, policy.device) / max(total, 1)
    return {"loss": sums[0], "divergence": sums[1], "mean_w": sums[2], "capped_w": sums[3], "entropy": sums[4],
            "capped_entries": sums[5] / policy.head.shape[0], "grad_norm": float(norm), "response_tokens": total}


def reduced(numbers, device, maximum=False):
    """Sum (or maximum) of a list of numbers over the ranks, as a numpy array."""
    numbers = torch.tensor(np.asarray(numbers, dtype=np.float64), device=device)
    if dist.is_initialized():
        dist.all_reduce(numbers, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM)
    return numbers.cpu().numpy()


def gathered(values):
    """The lists of all ranks, joined."""
    if not dist.is_initialized():
        return values
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def newest_step(folder):
    """The last K for which `folder`/step_K stands, or 0. A folder gets that name when all is in it."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return max((int(name[5:]) for name in names if name.startswith("step_") and name[5:].isdigit()), default=0)


def save(policy, optimizer, folder, step):
    """Write `folder`/step_K whole or not at all, then the newest adapter into `folder` itself; keep the last two steps."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
    options = StateDictOptions(full_state_dict=True, cpu_offload=dist.is_initialized(), ignore_frozen_params=True)
    state = get_optimizer_state_dict(policy.model, optimizer, options=options)
    weights = {name: (w.full_tensor() if hasattr(w, "full_tensor") else w).detach().cpu().contiguous()
               for name, w in get_peft_model_state_dict(policy.model).items()}
    if rank_and_world()[0] == 0:
        path, part = os.path.join(folder, f"step_{step}"), os.path.join(folder, f"part_{step}")
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        save_file(weights, os.path.join(part, "adapter_model.safetensors"))
        policy.model.peft_config["default"].save_pretrained(part)
        torch.save({"step": step, "optimizer": state, "rng": torch.get_rng_state()}, os.path.join(part, "resume.pt"))
        os.replace(part, path)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            shutil.copyfile(os.path.join(path, name), os.path.join(folder, name + ".part"))
            os.replace(os.path.join(folder, name + ".part"), os.path.join(folder, name))
        shutil.rmtree(os.path.join(folder, f"step_{step - 2}"), ignore_errors=True)
    if dist.is_initialized():
        dist.barrier()


def restore(policy, optimizer, path):
    """Put back the optimizer and the random state that `save` wrote; load_policy has read the adapter already."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
    kept = torch.load(os.path.join(path, "resume.pt"), weights_only=True)
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    set_optimizer_state_dict(policy.model, optimizer, kept["optimizer"], options=options)
    torch.set_rng_state(kept["rng"])


# ---------------------------------------------------------------------------------------------------------------------
# The run


async def distill(args, settings, problems, contexts, done, journals):
    """Lines 13-16: S steps from step done + 1. `journals`: distill.jsonl and samples.jsonl, open (rank 0 only)."""
    rank, world = rank_and_world()
    folder = os.path.join(args.out, "adapter")
    adapter = os.path.join(folder, f"step_{done}") if done else None
    sampler = await engine.start(settings, adapters=True)
    bar = tqdm(total=args.steps, initial=done, unit="step", disable=None if rank == 0 else True)
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        policy = load_policy(settings, adapter, args.seed, args.grad_checkpoint_every, device)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, betas=(0.9, 0.999), weight_decay=0.01)
        if done:
            restore(policy, optimizer, adapter)
        names = list(problems)
        for step in range(done + 1, args.steps + 1):                                           # line 13
            begin = time.time()
            batch = batch_indices(step, args.batch, len(names), args.seed)                     # line 14
            items, lines = await student_samples(args, settings, sampler, adapter, step,       # line 15
                                                 [(names[i], k) for i, k in batch[rank::world]], problems, contexts)
            sampled = time.time()
            metrics = update(policy, optimizer, items, kind=args.divergence, tau=args.tau, budget=args.micro_tokens)  # line 16
            trained, lines = time.time(), gathered(lines)
            if rank == 0:
                order = {(names[i], k): n for n, (i, k) in enumerate(batch)}
                lines.sort(key=lambda line: order[line["problem"], line["occurrence"]])
                metrics = {"step": step, **metrics, "length": float(np.mean([line["completion_tokens"] for line in lines])),
                           "truncated": float(np.mean([line["truncated"] for line in lines])),
                           "student_tokens": sum(line["prompt_tokens"] + line["completion_tokens"] for line in lines),
                           "teacher_tokens": sum(line["context_tokens"] + line["completion_tokens"] for line in lines),
                           "sample_seconds": round(sampled - begin, 3), "train_seconds": round(trained - sampled, 3)}
                for line in lines:
                    runs.append(journals[1], line)
                runs.append(journals[0], metrics)
                tqdm.write(log_line(metrics))
            save(policy, optimizer, folder, step)  # the step counts from here on
            adapter = os.path.join(folder, f"step_{step}")
            bar.update()
        return policy
    finally:
        bar.close()
        sampler.close()


async def student_samples(args, settings, sampler, adapter, step, share, problems, contexts):
    """y ~ policy(. | x) with the current adapter for each (problem, occurrence) of this rank's share. -> items, lines."""
    async def one(problem, occurrence):
        lines = problems[problem]
        k = lines.index(draw_context(lines, args.seed, step, problem, occurrence))
        chosen = contexts[problem]
        context = chosen[k] if len(chosen) == len(lines) and args.traces != "failure" else draw_context(
            chosen, args.seed, step, problem, occurrence)
        opening, context = sampler.encode(lines[0]["opening"]), sampler.encode(context)
        seed = engine.request_seed(args.seed, problem, step, f"student {occurrence}")
        sample = await sampler.sample(opening, seed=seed, max_tokens=settings.max_tokens, temperature=settings.temperature,
                                      top_p=settings.top_p, adapter=adapter)
        n = len(sample.token_ids)
        line = {"step": step, "problem": problem, "bench": lines[0]["bench"], "occurrence": occurrence,
                "context_step": lines[k]["step"] if args.traces != "failure" else None, "response": sample.text,
                "prompt_tokens": len(opening), "completion_tokens": n, "context_tokens": len(context),
                "finish_reason": sample.finish_reason, "truncated": sample.finish_reason == "length" or n >= settings.max_tokens,
                "seed": seed}
        return Item(problem, opening, context, sample), line
    pairs = await asyncio.gather(*(one(*pair) for pair in share))
    return [item for item, _ in pairs], [line for _, line in pairs]


def log_line(m):
    return (f"step {m['step']:3d}  loss {m['loss']:.5f}  D {m['divergence']:.5f}  w {m['mean_w']:.4f} (at the cap {m['capped_w']:.2%})  "
            f"entropy {m['entropy']:.3f}  length {m['length']:.0f}  truncated {m['truncated']:.1%}  grad norm {m['grad_norm']:.3g}  "
            f"sampling {m['sample_seconds']:.1f} s, update {m['train_seconds']:.1f} s")


def read_cplus(path):
    """cplus.jsonl -> {problem id: lines}; BadInput if there is nothing to learn from."""
    lines = data.read_jsonl(path)
    fields = ("problem", "bench", "model", "family", "decoding", "opening", "context", "response", "step")
    for number, line in enumerate(lines, 1):
        if missing := [name for name in fields if name not in line]:
            raise data.BadInput(f"{path} line {number} has no {missing[0]}: name the cplus.jsonl that explore.py wrote.")
    if not lines:
        raise data.BadInput(f"{path} holds no context: no answer was right, so there is nothing to distill; explore with more "
                            "calls, more problems or a stronger model.")
    if len({(line["bench"], line["model"]) for line in lines}) > 1:
        raise data.BadInput(f"{path} mixes benches or models: distill each explore run by itself.")
    return group(lines)


def drop_unfinished(journal, records, done):
    """Cut the lines of steps beyond `done` (a crash came before their checkpoint) from an open journal."""
    kept = [r for r in records if r["step"] <= done]
    journal.seek(0)
    journal.truncate()
    for record in kept:
        runs.append(journal, record)


def tau_value(text):
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def main(argv=None):
    parser = argparse.ArgumentParser(description="Self-distill successful contexts into a LoRA adapter (Algorithm 1, lines 13-16).")
    parser.add_argument("--cplus", required=True, metavar="FILE", help="cplus.jsonl of explore.py")
    parser.add_argument("--steps", type=engine.positive_int, default=20, help="S, optimizer steps")
    parser.add_argument("--batch", type=engine.positive_int, default=128, help="problems a step")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--tau", type=tau_value, help="cap of Eq. 2, inf for none (default: 1e-3 on math500, none elsewhere)")
    parser.add_argument("--divergence", choices=loss.DIVERGENCES, default="reverse_kl")
    parser.add_argument("--traces", choices=["success", "failure", "random"], default="success",
                        help="the teacher's contexts (Table 5); failure and random read the rollouts.jsonl beside --cplus")
    parser.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    parser.add_argument("--micro-tokens", type=engine.positive_int, default=16384, help="tokens of one forward and backward pass")
    parser.add_argument("--grad-checkpoint-every", type=int, default=1, metavar="N", help="recompute every Nth layer (0: none)")
    parser.add_argument("--merge", action="store_true", help="also write the model with the adapter merged in: OUT/merged")
    parser.add_argument("--out", default="out", help="folder of the run")
    engine.add_arguments(parser)
    args = parser.parse_args(argv)
    problems = read_cplus(args.cplus)
    first = next(iter(problems.values()))[0]
    args.model, args.family = args.model or first["model"], args.family or first["family"]
    for name, value in first["decoding"].items():  # the student is sampled as the policy explored
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    if args.tau is None:
        args.tau = 1e-3 if first["bench"] == "math500" else math.inf
    if "LOCAL_RANK" in os.environ and "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    settings = engine.settings(args, first["bench"], gpu_memory=0.4)
    rollouts = os.path.join(os.path.dirname(args.cplus), "rollouts.jsonl")
    contexts = teacher_contexts(problems, args.traces, data.read_jsonl(rollouts, torn_ok=True) if args.traces != "success" else [])
    with runs.hold(args.out) if rank_and_world()[0] == 0 else nullcontext():
        run(args, settings, problems, contexts)


def run(args, settings, problems, contexts):
    """Begin or go on in --out, and train."""
    rank = rank_and_world()[0]
    done = newest_step(os.path.join(args.out, "adapter"))
    journals = None
    if rank == 0:
        flags = ("cplus", "steps", "batch", "lr", "tau", "divergence", "traces", "seed")
        kept = {name: str(value) if value == math.inf else value for name, value in ((f, getattr(args, f)) for f in flags)}
        runs.begin(os.path.join(args.out, "distill.json"), kept | dataclasses.asdict(settings), growable=("steps",))
        journals = []
        for name in ("distill.jsonl", "samples.jsonl"):
            records, journal = runs.open_journal(os.path.join(args.out, name))
            drop_unfinished(journal, records, done)
            journals.append(journal)
    print_once(f"distill: {len(problems)} problems, {sum(map(len, contexts.values()))} contexts ({args.traces}), {args.steps} steps of {args.batch}, "
               f"{args.divergence}, tau {args.tau:g}, lr {args.lr:g}; {engine.describe(settings)}")
    if done:
        print_once(f"{done} steps are done already; the run goes on.")
    begin = time.time()
    try:
        policy = asyncio.run(distill(args, settings, problems, contexts, done, journals))
    except KeyboardInterrupt:
        print_once("\nStopped. The steps above are kept; the same command goes on.")
        sys.exit(130)
    if rank == 0:
        for journal in journals:
            journal.close()
        path = os.path.join(args.out, "distill.json")
        with open(path) as file:
            runs.write_json(path, json.load(file) | {"result": {"steps": args.steps, "wall_seconds": time.time() - begin}})
    if args.merge:
        merge(policy, settings, args.out)
    print_once(f"adapter: {os.path.join(args.out, 'adapter')}")


def merge(policy, settings, out):
    """Write the model with the adapter merged into its weights, and its tokenizer, into OUT/merged."""
    from peft import PeftModel
    if rank_and_world()[0] == 0:
        base = engine.load(engine.AutoModelForCausalLM, settings.model, dtype=getattr(torch, settings.dtype))
        folder = os.path.join(out, "merged")
        PeftModel.from_pretrained(base, os.path.join(out, "adapter")).merge_and_unload().save_pretrained(folder)
        engine.load(engine.AutoTokenizer, settings.model).save_pretrained(folder)
        print(f"merged model: {folder}", flush=True)


if __name__ == "__main__":
    data.exit_with_sentence(main)

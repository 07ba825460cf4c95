"""The policy as it is trained: a frozen model with a LoRA adapter, sharded over the ranks of torchrun (FSDP2), its
optimizer and its checkpoints. The method itself is in distill.py.
"""
import argparse
import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import os
import shutil
import time

import engines  # noqa: I001 (before torch: it sets how OpenMP threads wait)
import loss
from common import journal
from common.errors import BadInput, ContextTooLong
from common.gpu_memory import recomputed_layers
from common.ranks import gathered, print_once, rank_and_world, together
from engines.base import Engine, in_short, load, load_adapter

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save as safetensors
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
LORA_RANK = 64  # App. B.4: rank and alpha 64, dropout 0, all linear layers but the head


# ---------------------------------------------------------------------------------------------------------------------
# The policy: a frozen model with a LoRA adapter


@dataclasses.dataclass
class Policy:
    """The model that is trained. Only LoRA parameters have gradients; the head stays whole on every rank."""
    model: torch.nn.Module
    decoder: torch.nn.Module      # everything below the head
    head: torch.Tensor            # [V, d], frozen
    temperature: float

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def hidden(self, sequences, lengths):
        """Hidden states [sum of lengths, d] that predict the last `lengths` tokens of each sequence: one packed row.

        The sequences stand one after another without padding; positions that start again at 0 keep them apart in the
        attention (with no mask at all: a mask of ones would let them see each other).
        No sequence at all is an empty micro-batch: the ranks of a sharded model run it beside the others' last ones.
        """
        if not sequences:
            sequences, lengths = [[0, 0]], [0]
        device, bfloat16 = self.head.device, self.head.dtype == torch.bfloat16
        ids = torch.tensor([[token for s in sequences for token in s]], device=device)
        positions = torch.tensor([[i for s in sequences for i in range(len(s))]], device=device)
        ends = np.cumsum([len(s) for s in sequences])
        predicts = torch.tensor([i for end, n in zip(ends, lengths) for i in range(end - n - 1, end - 1)],
                                dtype=torch.long, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):  # the adapter is float32
            output = self.decoder(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False)
        return output.last_hidden_state[0, predicts]


def load_policy(settings, adapter, seed, checkpoint_every, device):
    """The model with a new LoRA adapter, or that of the folder `adapter`, sharded where there are several ranks."""
    from peft import LoraConfig, get_peft_model
    dtype = getattr(torch, settings.dtype)
    flash = device.type == "cuda" and dtype == torch.bfloat16 and importlib.util.find_spec("flash_attn") is not None
    attention = "flash_attention_2" if flash else "sdpa"
    base = load(AutoModelForCausalLM, settings.model, dtype=dtype, attn_implementation=attention)
    base.to(device)
    torch.manual_seed((seed - 1) * 10**8)  # the start of the adapter, the same on every rank
    if adapter:
        model = load_adapter(base, adapter, is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, lora_dropout=0.0, bias="none",
                                                target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    if checkpoint_every:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False},
                                            every_n_layers=checkpoint_every)
    decoder, head = base.get_decoder(), base.get_output_embeddings().weight
    if dist.is_initialized():
        mixed = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        # The decoder is its own root, as the head is used outside it; a tied embedding stays whole with the head.
        for part in [*decoder.layers, decoder]:
            fully_shard(part, mp_policy=mixed, ignored_params={head})
    policy = Policy(model, decoder, head, settings.temperature)
    recomputed = {0: "none", 1: "all"}.get(checkpoint_every, f"one in {checkpoint_every}")
    print_once(f"attention: {attention}; layers recomputed in the backward pass: {recomputed}; "
               f"{sum(p.numel() for p in policy.parameters()):,} trainable parameters")
    return policy


def adam(policy, lr):
    """The optimizer of App. B.4."""
    return torch.optim.AdamW(policy.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.01)


# ---------------------------------------------------------------------------------------------------------------------
# What trains it


@dataclasses.dataclass(frozen=True)
class UpdateArgs:
    """How an update is made; the flags are those of `add_arguments`."""
    lr: float
    tau: float                     # cap of Eq. 2
    divergence: str                # one of loss.DIVERGENCES
    micro_tokens: int              # tokens of one pass, student and teacher together
    recompute_every: int | None    # recompute every Nth layer, 0: none; None: as few as fit
    max_grad_norm: float = 1.0


@dataclasses.dataclass
class Trainer:
    """What an update needs besides its batch; explore.py has one too, for updates between its steps (App. G.3)."""
    args: UpdateArgs
    seed: int                      # of the run
    settings: engines.Settings
    engine: Engine
    policy: Policy
    optimizer: torch.optim.Optimizer
    folder: str                    # of the checkpoints
    done: int                      # the last update that stands there
    journals: list | None          # distill.jsonl and samples.jsonl, open (rank 0 only)
    bar: tqdm = None

    def adapter(self):
        """The folder of the current adapter; None before the first update."""
        return os.path.join(self.folder, f"step_{self.done}") if self.done else None

    def share(self, batch):
        """What this rank samples of a batch."""
        rank, world = rank_and_world()
        return batch[rank::world]

    @contextlib.contextmanager
    def sampling(self):
        """The block that samples: timed; what goes wrong on one rank ends all."""
        self.begin = time.time()
        with together():
            yield
        self.sampled = time.time()

    async def sample(self, prompt, seed, problem):
        """y ~ policy(. | prompt) with the newest adapter and the run's decoding."""
        s = self.settings
        try:
            return await self.engine.sample(prompt, seed=seed, max_tokens=s.max_tokens, temperature=s.temperature,
                                            top_p=s.top_p, adapter=self.adapter())
        except ContextTooLong as error:
            raise BadInput(f"problem {problem} cannot be sampled: {error}") from None

    def commit(self, step, batch, rows, metrics):
        """Keep an update: its lines in both journals, then its checkpoint. From then on it counts."""
        lines = gathered([row.line(step, self.settings.max_tokens) for row in rows])
        lines.sort(key=lambda line: batch.index((line["problem"], line["occurrence"])))
        metrics = {"step": step, **metrics, "length": float(np.mean([line["completion_tokens"] for line in lines])),
                   "truncated": float(np.mean([line["truncated"] for line in lines])),
                   "student_tokens": sum(line["prompt_tokens"] + line["completion_tokens"] for line in lines),
                   "teacher_tokens": sum(line["context_tokens"] + line["completion_tokens"] for line in lines),
                   "sample_seconds": round(self.sampled - self.begin, 3),
                   "train_seconds": round(time.time() - self.sampled, 3)}
        with together():
            if not math.isfinite(metrics["grad_norm"]):
                raise BadInput(f"the gradient of step {step} is not finite, so it is not kept: name another folder "
                               "with --out and a smaller --lr, or try --dtype float32.")
            if rank_and_world()[0] == 0:
                journal.append(self.journals[1], *lines)
                journal.append(self.journals[0], metrics)
                for file in self.journals:  # a checkpoint must not outlive its lines
                    os.fsync(file.fileno())
                tqdm.write(log_line(metrics))
        save(self.policy, self.optimizer, self.folder, step)
        self.done = step
        if self.bar is not None:
            self.bar.update()


def log_line(m):
    return (f"step {m['step']:3d}  loss {m['loss']:.5f}  D {m['divergence']:.5f}  w {m['mean_w']:.4f} "
            f"(at the cap {m['capped_w']:.2%})  entropy {m['entropy']:.3f}  length {m['length']:.0f}  "
            f"truncated {m['truncated']:.1%}  grad norm {m['grad_norm']:.3g}  "
            f"sampling {m['sample_seconds']:.1f} s, update {m['train_seconds']:.1f} s")


def start_trainer(args, seed, settings, engine, openings, out, journals):
    """The trainer of the run in `out`, as it stands there; `openings`: the dialogues that will be sampled from."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = os.path.join(out, "adapter")
    done = newest_step(folder)
    newest = os.path.join(folder, f"step_{done}") if done else None
    with together():
        lengths, config = [len(engine.encode(messages)) for messages in openings], load(AutoConfig, settings.model)
        every = recomputed_layers(config, settings, args, lengths, lora_rank=LORA_RANK, world=rank_and_world()[1])
        policy = load_policy(settings, newest, seed, every, device)
    optimizer = adam(policy, args.lr)
    if newest:
        restore(policy, optimizer, newest)
    return Trainer(args, seed, settings, engine, policy, optimizer, folder, done, journals)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def newest_step(folder):
    """The last K for which `folder`/step_K stands, or 0. A folder gets that name when all is in it."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return max((int(name[5:]) for name in names if name.startswith("step_") and name[5:].isdigit()), default=0)


def save(policy, optimizer, folder, step):
    """Write `folder`/step_K whole or not at all, then the newest adapter into `folder`; keep the last two steps."""
    from peft import get_peft_model_state_dict
    options = StateDictOptions(full_state_dict=True, cpu_offload=dist.is_initialized(), ignore_frozen_params=True)
    state = get_optimizer_state_dict(policy.model, optimizer, options=options)
    weights = {name: (w.full_tensor() if hasattr(w, "full_tensor") else w).detach().cpu().contiguous()
               for name, w in get_peft_model_state_dict(policy.model, save_embedding_layers=False).items()}
    with together():
        if rank_and_world()[0] == 0:
            resume = io.BytesIO()
            torch.save({"step": step, "optimizer": state, "rng": torch.get_rng_state()}, resume)
            config = policy.model.peft_config["default"].to_dict()
            config = json.dumps({k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}, indent=1)
            part = os.path.join(folder, "part")
            try:
                shutil.rmtree(part, ignore_errors=True)
                os.makedirs(part)
                for name, content in (("adapter_model.safetensors", safetensors(weights, {"format": "pt"})),
                                      ("adapter_config.json", config.encode()), ("resume.pt", resume.getbuffer())):
                    journal.write_bytes(os.path.join(part, name), content)
                os.replace(part, os.path.join(folder, f"step_{step}"))
                publish(folder, step)
            except OSError as error:
                raise BadInput(f"{folder} cannot be written ({error.strerror}): make room, then the same command "
                               f"goes on after step {newest_step(folder)}.") from None


def publish(folder, step):
    """Make the adapter of step_K that of `folder`; leave no steps but the last two. Does no harm when done twice."""
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        with open(os.path.join(folder, f"step_{step}", name), "rb") as file:
            journal.write_bytes(os.path.join(folder, name), file.read())
    for name in os.listdir(folder):
        if name.startswith(("step_", "part")) and name not in (f"step_{step}", f"step_{step - 1}"):
            shutil.rmtree(os.path.join(folder, name))


def damaged(path, error):
    """The BadInput of a step_K that is not what `save` wrote."""
    return BadInput(f"the checkpoint {path} is damaged ({in_short(error)}): put it back, or delete that "
                    "folder (distill.py then goes on after the step before it).")


def restore(policy, optimizer, path):
    """Put back the optimizer and the random state that `save` wrote; load_policy has read the adapter already."""
    with together():
        try:
            kept = torch.load(os.path.join(path, "resume.pt"), weights_only=True)
        except Exception as error:  # a damaged file can raise nearly anything
            raise damaged(path, error) from None
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    set_optimizer_state_dict(policy.model, optimizer, kept["optimizer"], options=options)
    torch.set_rng_state(kept["rng"])


def go_on(out, done):
    """End what a crash after update `done` left half done. -> distill.jsonl and samples.jsonl, open for more lines."""
    if done:
        try:
            publish(os.path.join(out, "adapter"), done)
        except FileNotFoundError as error:
            raise damaged(os.path.dirname(error.filename), error) from None
    paths = [os.path.join(out, name) for name in ("distill.jsonl", "samples.jsonl")]
    return [journal.open_journal(path, last_step=done)[1] for path in paths]


def merge(settings, adapter, folder):
    """Write the model with the adapter of the folder `adapter` in its weights, and its tokenizer, into `folder`."""
    base = load(AutoModelForCausalLM, settings.model, dtype=getattr(torch, settings.dtype))
    merged = load_adapter(base, adapter).merge_and_unload()
    try:
        merged.save_pretrained(folder)
        load(AutoTokenizer, settings.model).save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{folder} cannot be written ({error}): make room, then the same command merges again; the "
                       "adapter is kept.") from None
    print(f"merged model: {folder}", flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Command line of an update


def above_zero(text):
    """argparse type: a finite number above zero."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no finite number above 0")


def add_arguments(parser, lr):
    """The flags of an update; its learning rate is `lr` by default."""
    parser.add_argument("--lr", type=above_zero, default=lr, help=f"learning rate (default: {lr:g})")
    parser.add_argument("--tau", type=lambda text: math.inf if text == "inf" else above_zero(text),
                        help="cap of Eq. 2, inf for none (default: 1e-3 on math500, none elsewhere)")
    parser.add_argument("--divergence", choices=loss.DIVERGENCES, default="reverse_kl")
    parser.add_argument("--micro-tokens", type=engines.positive_int, default=16384,
                        help="tokens of one forward and backward pass, student and teacher together")
    parser.add_argument("--grad-checkpoint-every", type=int, choices=range(0, 1000), metavar="N",
                        help="recompute every Nth layer in the backward pass, 0: none (default: as few as fit)")


def update_args(args, settings, bench):
    """The flags of `add_arguments`, --tau with its default (section 2.3: a cap on MATH alone); BadInput where there is
    nothing to learn from."""
    if settings.temperature == 0:
        raise BadInput("--temperature 0 leaves no distribution to distill: give one above 0.")
    tau = args.tau if args.tau is not None else 1e-3 if bench == "math500" else math.inf
    return UpdateArgs(args.lr, tau, args.divergence, args.micro_tokens, args.grad_checkpoint_every)

"""The policy as it is trained: a frozen model with a LoRA adapter, sharded over the ranks of torchrun (FSDP2), its
checkpoints and its memory. The method itself is in distill.py.
"""
import argparse
import atexit
import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import os
import shutil
import sys

import numpy as np

import data
import engine  # noqa: I001 (before torch: it sets how OpenMP threads wait)
import loss
import runs

import torch
import torch.distributed as dist

LORA_RANK = 64  # App. B.4: rank and alpha 64, dropout 0, all linear layers but the head


# ---------------------------------------------------------------------------------------------------------------------
# Ranks of torchrun; without it there is one


def rank_and_world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def join_ranks():
    """Under torchrun: give this rank one GPU of its node, for its engine and its training, and join the others."""
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        return
    gpus, local, ranks = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus:
        if ranks > gpus:
            raise data.BadInput(f"torchrun starts {ranks} ranks on a node with {gpus} GPUs: --nproc_per_node {gpus} is "
                                "the most.")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local]  # CUDA reads it at its first use, later
        os.environ["LOCAL_RANK"] = "0"                                  # among the GPUs that this rank sees
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")   # objects and metrics go through the CPUs
    atexit.register(leave_ranks)  # however this rank ends: gloo's threads abort a process that keeps them to its end


def leave_ranks():
    if dist.is_initialized():
        dist.destroy_process_group()


def run_rank(main):
    """`data.exit_with_sentence(main)`, after which a rank of torchrun is gone at once: one that took itself apart
    around the threads of its process groups was seen to abort, once in some dozens of runs."""
    status = 0
    try:
        data.exit_with_sentence(main)
    except SystemExit as end:
        status = end.code
    if not dist.is_torchelastic_launched():
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def gathered(values):
    """The lists of all ranks, joined."""
    if not dist.is_initialized():
        return values
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]


@contextlib.contextmanager
def together():
    """A block that every rank runs: a BadInput on any of them is said once, by rank 0, and ends them all."""
    said = []
    try:
        yield
    except data.BadInput as error:
        if not dist.is_initialized():
            raise
        said = [str(error)]
    if said := gathered(said):
        print_once(said[0], sys.stderr)
        gathered([])  # torchrun ends the others as soon as one exits: not before it is said
        sys.exit(2)


def print_once(text, file=None):
    if rank_and_world()[0] == 0:
        print(text, file=file, flush=True)


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
    base = engine.load(engine.AutoModelForCausalLM, settings.model, dtype=dtype, attn_implementation=attention)
    base.to(device)
    torch.manual_seed((seed - 1) * 10**8)  # the start of the adapter, the same on every rank
    if adapter:
        model = engine.load_adapter(base, adapter, is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, lora_dropout=0.0, bias="none",
                                                target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    if checkpoint_every:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False},
                                            every_n_layers=checkpoint_every)
    decoder, head = base.get_decoder(), base.get_output_embeddings().weight
    if dist.is_initialized():
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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


def memory_budget(config, tokens, student_tokens, checkpoint_every, world=1):
    """What training takes of one GPU in bfloat16, {part: bytes}; the engine's share comes on top.

    config: the model's; tokens: student and teacher rows of the largest micro-batch; student_tokens: those of the
    student's rows alone, whose activations are kept for the backward pass. A checkpointed layer keeps its input,
    another one what autograd saves of its operations, counted for the two families (a test measures it); one layer is
    at work on `tokens`. Attention is taken not to store its scores (flash, or sdpa's fused kernels).
    """
    config = config.get_text_config()
    d, ffn, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    dim = getattr(config, "head_dim", None) or d // config.num_attention_heads
    q, kv = dim * config.num_attention_heads, dim * config.num_key_value_heads
    before = config.model_type != "olmo3"  # Olmo 3 normalizes after each block and over all heads at once
    layer = 14 * LORA_RANK + (18 * d + 10 * q if before else 14 * d + 14 * q) + 8 * kv + 8 * ffn
    lora = LORA_RANK * layers * ((d + q) * 2 + (d + kv) * 2 + (d + ffn) * 3)
    linear = layers * (d * (2 * q + 2 * kv) + 3 * d * ffn)
    checkpointed = math.ceil(layers / checkpoint_every) if checkpoint_every else 0
    whole = 2 * config.vocab_size * d * (1 if config.tie_word_embeddings or world > 1 else 2)  # head, embedding
    sharded = linear + (config.vocab_size * d if world > 1 and not config.tie_word_embeddings else 0)
    kept = checkpointed * 2 * d + (layers - checkpointed) * layer
    return {"weights": whole + 2 * sharded // world,
            "adapter": 18 * lora // world,  # float32 weight, gradient and two moments, bfloat16 copy
            "activations": student_tokens * kept + tokens * layer,
            "loss": 4 * loss.CHUNK_BYTES["cuda"] + tokens * 8 * d}


def recomputed_layers(args, settings, openings):
    """--grad-checkpoint-every, or the least recomputation that leaves a tenth of the GPU free. BadInput if a GPU cannot
    hold the largest micro-batch beside the engine. `openings`: lengths in tokens."""
    given = args.grad_checkpoint_every
    if not torch.cuda.is_available():
        return given or 0
    total, world = torch.cuda.get_device_properties(0).total_memory, rank_and_world()[1]
    longest, config = max(openings) + settings.max_tokens, engine.load(engine.AutoConfig, settings.model)
    tokens, student_tokens = max(args.micro_tokens, 2 * longest), max(args.micro_tokens // 2, longest)
    size = 2 if settings.dtype == "float32" else 1
    for every in (0, 4, 2, 1) if given is None else (given,):
        parts = memory_budget(config, tokens, student_tokens, every, world)
        parts = {"engine": settings.gpu_memory * total, "CUDA": 2 * 2**30} | {k: size * v for k, v in parts.items()}
        if sum(parts.values()) <= 0.9 * total:
            return every
    if sum(parts.values()) > total:
        told = ", ".join(f"{name} {taken / 2**30:.1f}" for name, taken in parts.items())
        raise data.BadInput(
            f"the update needs {sum(parts.values()) / 2**30:.1f} GiB and the GPU has {total / 2**30:.1f} ({told}): "
            "take --grad-checkpoint-every 1, or smaller --gpu-memory, --max-tokens or --micro-tokens, or torchrun on "
            "more GPUs.")
    return every


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def newest_step(folder):
    """The last K for which `folder`/step_K stands, or 0. A folder gets that name when all is in it."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return max((int(name[5:]) for name in names if name.startswith("step_") and name[5:].isdigit()), default=0)


def save(policy, optimizer, folder, step):
    """Write `folder`/step_K whole or not at all, then the newest adapter into `folder`; keep the last two steps."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save as safetensors
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
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
                    runs.write_bytes(os.path.join(part, name), content)
                os.replace(part, os.path.join(folder, f"step_{step}"))
                publish(folder, step)
            except OSError as error:
                raise data.BadInput(f"{folder} cannot be written ({error.strerror}): make room, then the same command "
                                    f"goes on after step {newest_step(folder)}.") from None


def publish(folder, step):
    """Make the adapter of step_K that of `folder`; leave no steps but the last two. Does no harm when done twice."""
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        with open(os.path.join(folder, f"step_{step}", name), "rb") as file:
            runs.write_bytes(os.path.join(folder, name), file.read())
    for name in os.listdir(folder):
        if name.startswith(("step_", "part")) and name not in (f"step_{step}", f"step_{step - 1}"):
            shutil.rmtree(os.path.join(folder, name))


def damaged(path, error):
    """The BadInput of a step_K that is not what `save` wrote."""
    return data.BadInput(f"the checkpoint {path} is damaged ({engine.in_short(error)}): put it back, or delete that "
                         "folder (distill.py then goes on after the step before it).")


def restore(policy, optimizer, path):
    """Put back the optimizer and the random state that `save` wrote; load_policy has read the adapter already."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
    with together():
        try:
            kept = torch.load(os.path.join(path, "resume.pt"), weights_only=True)
        except Exception as error:  # a damaged file can raise nearly anything
            raise damaged(path, error) from None
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    set_optimizer_state_dict(policy.model, optimizer, kept["optimizer"], options=options)
    torch.set_rng_state(kept["rng"])


# ---------------------------------------------------------------------------------------------------------------------
# A run of updates


@dataclasses.dataclass
class Trainer:
    """What an update needs besides its batch; explore.py has one too, for updates between its steps (App. G.3)."""
    args: argparse.Namespace       # with the flags of `distill.add_arguments`, and seed, traces
    settings: engine.Settings
    sampler: engine.Engine
    policy: Policy
    optimizer: torch.optim.Optimizer
    folder: str                    # of the checkpoints
    done: int                      # the last update that stands there
    journals: list | None          # distill.jsonl and samples.jsonl, open (rank 0 only)

    def adapter(self):
        """The folder of the current adapter; None before the first update."""
        return os.path.join(self.folder, f"step_{self.done}") if self.done else None


def go_on(out, done):
    """End what a crash after update `done` left half done. -> distill.jsonl and samples.jsonl, open for more lines."""
    if done:
        try:
            publish(os.path.join(out, "adapter"), done)
        except FileNotFoundError as error:
            raise damaged(os.path.dirname(error.filename), error) from None
    paths = [os.path.join(out, name) for name in ("distill.jsonl", "samples.jsonl")]
    return [runs.open_journal(path, last_step=done)[1] for path in paths]


def start_trainer(args, settings, sampler, openings, out, done, journals):
    """The policy as it stands after update `done`; `openings`: the dialogues that will be sampled from."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = os.path.join(out, "adapter")
    newest = os.path.join(folder, f"step_{done}") if done else None
    with together():
        every = recomputed_layers(args, settings, [len(sampler.encode(messages)) for messages in openings])
        policy = load_policy(settings, newest, args.seed, every, device)
    optimizer = adam(policy, args.lr)
    if newest:
        restore(policy, optimizer, newest)
    return Trainer(args, settings, sampler, policy, optimizer, folder, done, journals)


def merge(settings, adapter, folder):
    """Write the model with the adapter of the folder `adapter` in its weights, and its tokenizer, into `folder`."""
    from safetensors import SafetensorError
    base = engine.load(engine.AutoModelForCausalLM, settings.model, dtype=getattr(torch, settings.dtype))
    merged = engine.load_adapter(base, adapter).merge_and_unload()
    try:
        merged.save_pretrained(folder)
        engine.load(engine.AutoTokenizer, settings.model).save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise data.BadInput(f"{folder} cannot be written ({error}): make room, then the same command merges again; the "
                            "adapter is kept.") from None
    print(f"merged model: {folder}", flush=True)

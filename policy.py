"""The policy as it is trained: a frozen model with a LoRA adapter, its optimizer and checkpoints.

Under torchrun it is sharded over the ranks (FSDP2). The method itself is in distill.py.
"""
import contextlib
import math
import os
import shutil
import time
from dataclasses import dataclass
from typing import TextIO

import engines  # noqa: I001 (before torch: it sets how OpenMP threads wait)
from common import journal, progress
from common.attention import WITHOUT_MASK, attention_kernel, ends_of
from common.checkpoints import (
    damaged, load_checkpoint, save_checkpoint, update_latest, whole)
from common.errors import BadInput, ContextTooLong
from common.flags import UpdateArgs
from common.gpu_memory import recomputed_layers
from common.ranks import all_gather, all_ranks_ok, is_main, print_once, rank_and_world
from engines.base import Engine, load, load_adapter
from engines.check import check_config, check_policy, unknown_layers

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

LORA_RANK = 64  # App. B.4: rank and alpha 64, dropout 0, all linear layers but the head


# --------------------------------------------------------------------------------------------------
# The policy


@dataclass
class Policy:
    """The model that is trained. Only LoRA parameters have gradients."""
    model: torch.nn.Module
    decoder: torch.nn.Module      # everything below the head
    head: torch.Tensor            # [V, d], frozen; whole on every rank
    temperature: float            # that the logits are divided by

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def hidden_states(self, sequences, lengths):
        """[sum of lengths, d]: the states that predict the last lengths[i] tokens of sequences[i].

        sequences: lists of token ids, which stand one after another in one row, without padding.
        No sequence at all is an empty micro-batch, which gives [0, d].
        """
        if not sequences:
            sequences, lengths = [[0, 0]], [0]
        device, is_bfloat16 = self.head.device, self.head.dtype == torch.bfloat16
        ids = [token for sequence in sequences for token in sequence]
        # Positions that start again at 0 keep the sequences apart in the attention. It gets no
        # mask: a mask of ones would let them see each other.
        positions = [i for sequence in sequences for i in range(len(sequence))]
        predicting = []
        ends = np.cumsum([len(sequence) for sequence in sequences])
        for end, length in zip(ends, lengths):
            predicting += range(end - length - 1, end - 1)
        # The adapter is float32, whatever the model is.
        packing = {}
        if self.decoder.config._attn_implementation in WITHOUT_MASK:
            packing = ends_of([len(sequence) for sequence in sequences], device)
        with torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16):
            output = self.decoder(
                input_ids=torch.tensor([ids], device=device),                            # [1, all]
                position_ids=torch.tensor([positions], device=device),                   # [1, all]
                attention_mask=None, use_cache=False, **packing)
        predicting = torch.tensor(predicting, dtype=torch.long, device=device)           # [T]
        return output.last_hidden_state[0, predicting]                                   # [T, d]

    def reference(self):
        """A block in which the model is the frozen one, without its adapter."""
        return self.model.disable_adapter()

    def clip_gradients(self, max_norm):
        """Scale the gradients down to `max_norm`, over all ranks. -> their norm before, a float."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm)
        return float(whole(norm))


def load_policy(settings, adapter, seed, recompute_every, device):
    """The model with the LoRA adapter of the folder `adapter`, or with a new one if that is None.

    settings: the engine's; seed: the run's; recompute_every: recompute every Nth layer in the
    backward pass, 0: none. Sharded where there are several ranks. Errors: BadInput.
    """
    from transformers import AutoModelForCausalLM
    dtype = getattr(torch, settings.dtype)
    attention = attention_kernel(dtype, device)
    base = load(AutoModelForCausalLM, settings.model, dtype=dtype, attn_implementation=attention)
    base.to(device)
    torch.manual_seed((seed - 1) * 10**8)  # the start of the adapter, the same on every rank
    if adapter:
        model = load_adapter(base, adapter, is_trainable=True)
    else:
        with unknown_layers(settings.model, "the update"):
            model = with_new_adapter(base)
    model.train()
    without_dropout(model)
    without_casts(model)
    if recompute_every:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}, every_n_layers=recompute_every)
    policy = Policy(model, base.get_decoder(), base.get_output_embeddings().weight,
                    settings.temperature)
    check_policy(policy, settings)
    if dist.is_initialized():
        shard(policy, dtype)
    describe(policy, attention, recompute_every)
    return policy


def describe(policy, attention, recompute_every):
    recomputed = {0: "none", 1: "all"}.get(recompute_every, f"one in {recompute_every}")
    count = sum(p.numel() for p in policy.parameters())
    print_once(f"attention: {attention}; layers recomputed in the backward pass: {recomputed}; "
               f"{count:,} trainable parameters")


def without_dropout(model):
    """Switch off what some models drop at random in training: nothing was dropped in sampling."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def without_casts(model):
    """Leave the inputs of LoRA layers in their dtype, as autocast casts them: less is kept."""
    for module in model.modules():
        if hasattr(module, "lora_A"):
            module.cast_input_dtype_enabled = False


def with_new_adapter(base):
    from peft import LoraConfig, get_peft_model
    config = LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, lora_dropout=0.0, bias="none",
                        target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(base, config)


def shard(policy, dtype):
    """Share the layers among the ranks. The head is used outside the decoder and stays whole.

    So does an embedding that is tied to it.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    # The inputs stay as they are: Olmo's rotary tables are float32.
    precision = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in [*policy.decoder.layers, policy.decoder]:
        fully_shard(part, mp_policy=precision, ignored_params={policy.head})


def adam(policy, lr):
    """The optimizer of App. B.4."""
    return torch.optim.AdamW(policy.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.01)


# --------------------------------------------------------------------------------------------------
# What trains it


@dataclass(frozen=True)
class Files:
    """The files of a run of updates, as `resume` finds them."""
    folder: str                    # of the checkpoints
    done: int                      # the last update that stands there, 0: none
    metrics: TextIO | None         # distill.jsonl, open for more lines (rank 0 only)
    samples: TextIO | None = None  # samples.jsonl, likewise


@dataclass
class Trainer:
    """What an update needs besides its batch; explore.py has one too (App. G.3)."""
    args: UpdateArgs
    seed: int                      # of the run
    settings: engines.Settings
    engine: Engine
    policy: Policy
    optimizer: torch.optim.Optimizer
    files: Files
    done: int                      # the last update that counts
    bar: tqdm | None = None        # of the steps
    step_bar: tqdm | None = None   # of the responses of a step
    tokens: int = 0                # sampled in this step, on this rank
    more: dict | None = None       # what else the checkpoint holds: a baseline's

    def adapter(self):
        """The folder of the current adapter; None before the first update."""
        if not self.done:
            return None
        return os.path.join(self.files.folder, f"step_{self.done}")

    def share(self, batch):
        """What this rank samples of a batch."""
        rank, world = rank_and_world()
        return batch[rank::world]

    @contextlib.contextmanager
    def sampling(self, batch):
        """The block that samples a batch: timed; what goes wrong on one rank ends all."""
        self.begin, self.tokens = time.time(), 0
        self.step_bar = new_bar(len(self.share(batch)), "response", desc="sampling", leave=False)
        with all_ranks_ok():
            yield
        self.sampled = time.time()
        self.step_bar.set_description("update")

    async def sample(self, x, seed, problem):
        """y ~ policy(. | x) with the newest adapter and the run's decoding.

        x: token ids; problem: its id, for the sentence of a BadInput. -> engines.base.Sample.
        """
        s = self.settings
        try:
            y = await self.engine.sample(
                x, seed=seed, max_tokens=s.max_tokens, temperature=s.temperature, top_p=s.top_p,
                adapter=self.adapter())
        except ContextTooLong as error:
            raise BadInput(f"problem {problem} cannot be sampled: {error} Use a larger "
                           "--max-model-len, where the model has one, or another model.") from None
        y.log_mu()  # there is one, or this is the end
        if self.step_bar is not None:
            self.show_response(y)
        return y

    def show_response(self, y):
        """One more response on the bar of the step, and the tokens per second so far."""
        self.tokens += len(y.token_ids)
        speed = self.tokens / max(time.time() - self.begin, 1e-3)
        self.step_bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
        self.step_bar.update()
        if self.bar is not None:
            self.bar.refresh()

    def commit(self, step, batch, rows, metrics):
        """Keep an update: its lines in both journals, then its checkpoint. Then it counts.

        batch: [(problem id, occurrence)]; rows: this rank's (distill.Row); metrics: the update's.
        Errors: BadInput, if the gradient is not finite or the disk is full.
        """
        lines = all_gather([sample_line(row, step, self.settings.max_tokens) for row in rows])
        lines.sort(key=lambda line: batch.index((line["problem"], line["occurrence"])))
        metrics = {
            "step": step, **metrics, **totals(lines),
            "sample_seconds": round(self.sampled - self.begin, 3),
            "train_seconds": round(time.time() - self.sampled, 3),
        }
        self.keep(step, lines, metrics, log_line(metrics))
        self.step_bar.close()
        if self.bar is not None:
            self.bar.update()

    def keep(self, step, lines, metrics, text):
        """The end of `commit`; text: what is printed of the update."""
        with all_ranks_ok():
            if not math.isfinite(metrics["grad_norm"]):
                raise BadInput(f"the gradient of step {step} is not finite, so it is not kept: "
                               "name another folder with --out and a smaller --lr, or try --dtype "
                               "float32.")
            if is_main():
                self.write_lines(lines, metrics)
                tqdm.write(text)
        save_checkpoint(self.policy, self.optimizer, self.files.folder, step, self.more)
        self.done = step

    def write_lines(self, lines, metrics):
        files = [self.files.metrics]
        if lines:
            files.append(self.files.samples)
            journal.append(self.files.samples, *lines)
        journal.append(self.files.metrics, metrics)
        # A checkpoint must not outlive its lines.
        for file in files:
            os.fsync(file.fileno())


def sample_line(row, step, max_tokens):
    """The line of samples.jsonl of a distill.Row."""
    return {
        "step": step, "problem": row.problem, "bench": row.bench, "occurrence": row.occurrence,
        "context_step": row.context_step, "response": row.y.text,
        "prompt_tokens": len(row.x), "completion_tokens": len(row.y.token_ids),
        "context_tokens": len(row.c), "finish_reason": row.y.finish_reason,
        "truncated": row.y.truncated(max_tokens), "seed": row.seed,
        # y and log mu of Eq. 3 as they were trained on: text alone would not give the tokens back.
        "token_ids": row.y.token_ids, "logprobs": row.y.logprobs,
    }


def totals(lines):
    """What distill.jsonl says of the responses of a step."""
    return {
        "length": float(np.mean([line["completion_tokens"] for line in lines])),
        "truncated": float(np.mean([line["truncated"] for line in lines])),
        "student_tokens": sum(r["prompt_tokens"] + r["completion_tokens"] for r in lines),
        "teacher_tokens": sum(r["context_tokens"] + r["completion_tokens"] for r in lines),
    }


def log_line(m):
    """What is printed of a step; m: its line of distill.jsonl."""
    return (f"step {m['step']:3d}  loss {m['loss']:.5f}  D {m['divergence']:.5f}  "
            f"w {m['mean_w']:.4f} (at the cap {m['capped_w']:.2%})  entropy {m['entropy']:.3f}  "
            f"length {m['length']:.0f}  truncated {m['truncated']:.1%}  "
            f"grad norm {m['grad_norm']:.3g}  "
            f"sampling {m['sample_seconds']:.1f} s, update {m['train_seconds']:.1f} s")


def new_bar(total, unit, **options):
    """A progress bar, on rank 0."""
    return progress.new_bar(total, unit, disable=not is_main(), **options)


def start_trainer(args, seed, settings, engine, openings, files):
    """The trainer of the run whose files are `files`, as it stands there. Errors: BadInput.

    args: UpdateArgs; openings: the dialogues that will be sampled from.
    """
    from transformers import AutoConfig
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # For this process, before CUDA is in use: rows of unlike lengths leave no holes in its memory.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    newest = os.path.join(files.folder, f"step_{files.done}") if files.done else None
    with all_ranks_ok():
        lengths = [len(engine.encode(messages)) for messages in openings]
        config = load(AutoConfig, settings.model).get_text_config()
        check_config(settings.model, config)
        _, world = rank_and_world()
        recompute_every = recomputed_layers(
            config, settings, args, lengths, lora_rank=LORA_RANK, world=world)
        policy = load_policy(settings, newest, seed, recompute_every, device)
    optimizer = adam(policy, args.lr)
    more = load_checkpoint(policy, optimizer, newest) if newest else None
    return Trainer(
        args, seed, settings, engine, policy, optimizer, files, files.done, more=more)


# --------------------------------------------------------------------------------------------------
# The files of a run


def resume(out, done, journals=("distill.jsonl", "samples.jsonl")):
    """The Files of the run in `out` after update `done`, 0: a new one; journals: their names.

    What a crash left half done is ended, by rank 0. Errors: BadInput, if a checkpoint is damaged.
    """
    folder = os.path.join(out, "adapter")
    if not is_main():
        return Files(folder, done, None)
    if done:
        try:
            update_latest(folder, done)
        except FileNotFoundError as error:
            raise damaged(os.path.dirname(error.filename), error) from None
    paths = [os.path.join(out, name) for name in journals]
    files = [journal.open_journal(path, last_step=done)[1] for path in paths]
    return Files(folder, done, *files)


def merge(settings, adapter, folder):
    """Write the model with the adapter of the folder `adapter` in its weights into `folder`.

    Its tokenizer too. Errors: BadInput, if the disk takes no more.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    dtype = getattr(torch, settings.dtype)
    base = load(AutoModelForCausalLM, settings.model, dtype=dtype)
    merged = load_adapter(base, adapter).merge_and_unload()
    # Some published ones are not valid, which ends save_pretrained: the file itself is copied.
    merged.generation_config = GenerationConfig()
    try:
        merged.save_pretrained(folder)
        load(AutoTokenizer, settings.model).save_pretrained(folder)
        copy_generation_config(settings.model, folder)
        engines.write_made_from(settings, folder)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{folder} cannot be written ({error}): make room, then the same command "
                       "merges again; the adapter is kept.") from None
    print(f"merged model: {folder}", flush=True)


def copy_generation_config(model, folder):
    """The generation_config.json of a model into `folder`, or none if it has none."""
    from transformers.utils import cached_file
    source = cached_file(model, "generation_config.json",
                         _raise_exceptions_for_missing_entries=False)
    target = os.path.join(folder, "generation_config.json")
    if source:
        shutil.copyfile(source, target)
    else:
        os.remove(target)

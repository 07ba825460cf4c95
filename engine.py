"""Sampling: one request in, one completion with its log-probabilities out.

    sample = await engine.sample(prompt_token_ids, seed=..., max_tokens=..., temperature=..., top_p=..., adapter=None)

Two engines answer it: `VLLMEngine` (vllm_engine.py), vLLM's continuous batching (App. B.4, C.5), and `HFEngine`
(hf_engine.py), a small one over transformers for machines without vLLM. What they share, and their flags, is here.

Both return the log-probability that a token was really drawn with, that is after temperature and top-p: mu of Eq. 3.
"""
import argparse
import asyncio
import hashlib
import json
import os
from dataclasses import dataclass

# Before torch is loaded: threads that spin while they wait take the cores from the graders beside the engine.
# Measured on two busy cores: 7,070 tokens/s against 460.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: F401 (for `load`)
from transformers.utils import logging as transformers_logging

from data import BadInput

# App. B.4 and C.1 of the paper: prompt family, decoding, response limits (`lcb`: there), and N of the FLOPs formula.
MODELS = {
    "Qwen/Qwen3-8B": dict(
        family="qwen3", temperature=1.0, top_p=1.0, max_tokens=8192, lcb=8192, parameters=8.19e9),
    "allenai/Olmo-3-7B-Instruct": dict(
        family="olmo3", temperature=0.6, top_p=0.95, max_tokens=8192, lcb=16384, parameters=7.30e9),
}
DEFAULT_MODEL = "Qwen/Qwen3-8B"
transformers_logging.disable_progress_bar()  # of loading weights: a run has a bar of its own


class EngineDead(BadInput):
    """The engine's process is gone; what is graded is kept, and the same command goes on."""


class ContextTooLong(BadInput):
    """A prompt leaves no room for a single token in the model's window."""


@dataclass(frozen=True)
class Settings:
    """What a run samples with, resolved from the command line, the model and the bench."""
    model: str
    family: str            # "qwen3" | "olmo3": whose prompt texts
    engine: str            # "vllm" | "hf"
    dtype: str             # "bfloat16" | "float32"
    temperature: float
    top_p: float
    max_tokens: int        # response limit, tokens
    gpu_memory: float      # share of the GPU's memory that the engine takes
    max_model_len: int | None
    tensor_parallel: int
    data_parallel: int


@dataclass
class Sample:
    """One completion."""
    token_ids: list        # as sampled, the end-of-sequence token included when finish_reason is "stop"
    text: str              # special tokens skipped
    logprobs: list         # log mu of each token: after temperature and top-p
    finish_reason: str     # "stop" | "length"
    prompt_tokens: int


def request_seed(run_seed, problem_id, step, kind):
    """Decoding seed of one request: a fixed function of its arguments, never of timing (section 3.1).

    `kind` is "answer", "draft", "student", "test" ...; run seed s shifts every seed by (s - 1) * 10^8.
    """
    digest = hashlib.sha256(json.dumps([problem_id, step, kind]).encode()).digest()
    return int.from_bytes(digest[:7], "big") + (run_seed - 1) * 10**8


# ---------------------------------------------------------------------------------------------------------------------
# Both engines


class Engine:
    """The tokenizer, the chat template and the window, which both engines treat alike."""

    def __init__(self, settings):
        self.settings = settings
        self.gpus = settings.tensor_parallel * settings.data_parallel
        self.tokenizer = load(AutoTokenizer, settings.model)
        if not self.tokenizer.chat_template:
            raise BadInput(f"{settings.model} has no chat template: use an instruct model, or save a chat_template "
                           "with its tokenizer.")
        if not self.encode([{"role": "user", "content": "1"}]):
            raise BadInput(f"{settings.model} has no tokenizer: copy the files of its tokenizer beside its weights.")
        self.config = load(AutoConfig, settings.model)
        self.window = settings.max_model_len or getattr(self.config, "max_position_embeddings", None)
        if self.window is None:
            raise BadInput(f"{settings.model} does not say how long its window is: say it with --max-model-len.")
        self.stop_ids = stop_token_ids(settings.model, self.tokenizer)

    def encode(self, messages):
        """Token ids of a dialogue with the generation prompt; Olmo's template has no thinking to switch off."""
        try:
            return self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, enable_thinking=False, return_dict=False)
        except Exception as error:  # a template's own, such as that it knows no system turn
            raise BadInput(f"the chat template of {self.settings.model} does not take these turns "
                           f"({in_short(error)}): use an instruct model with another template.") from None

    def room(self, prompt_token_ids, max_tokens):
        """Tokens that a response may have: the limit, or what the window leaves. Errors: ContextTooLong."""
        length = len(prompt_token_ids)
        if length >= self.window:
            raise ContextTooLong(f"its context of {length} tokens does not fit the model's window of {self.window}: "
                                 "use a model with a longer window, a smaller --tail or a larger --max-model-len.")
        return min(max_tokens, self.window - length)


def load(auto_class, model, **kwargs):
    """`auto_class.from_pretrained(model)`, with one sentence instead of a traceback when that cannot be loaded."""
    try:
        return auto_class.from_pretrained(model, **kwargs)
    except Exception as error:  # of any type: files may be missing, torn, of another shape
        what = "cannot be loaded" if os.path.isdir(model) else "is neither a folder here nor a model that the Hub gave"
        raise BadInput(f"--model {model} {what} ({in_short(error)}): name the folder of a whole checkpoint, or, where "
                       "the Hub can be reached, a Hub id.") from None


def load_adapter(model, adapter, **kwargs):
    """`model` with the LoRA weights of the folder `adapter`; BadInput if they are damaged or of another shape."""
    from peft import PeftModel
    try:
        return PeftModel.from_pretrained(model, adapter, **kwargs)
    except Exception as error:  # as above
        raise BadInput(f"the adapter {adapter} cannot be loaded ({in_short(error)}): name the folder that distill.py "
                       "wrote for this model.") from None


def in_short(error):
    """What an error of a library says, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def stop_token_ids(model, tokenizer):
    """The tokenizer's end of sequence and all those that the model's generation_config.json names (Qwen3 has two)."""
    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError as error:
        if os.path.exists(os.path.join(model, "generation_config.json")):
            raise BadInput(f"the generation_config.json of {model} cannot be read ({in_short(error)}): put back a "
                           "whole one.") from None
        ids = None  # a checkpoint need not have the file
    ids = ids if isinstance(ids, list) else [ids]
    return sorted({*ids, tokenizer.eos_token_id} - {None})


def token_bytes(config, itemsize):
    """Bytes that the keys and values of one token take in all layers."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * itemsize


def check_adapter(adapter, model):
    """BadInput unless `adapter` is a PEFT folder that was trained on `model`.

    A model that is no longer where it was, or was named by its Hub id, is known by the last part of its name.
    """
    try:
        with open(os.path.join(adapter, "adapter_config.json")) as file:
            trained_on = json.load(file)["base_model_name_or_path"]
        os.stat(os.path.join(adapter, "adapter_model.safetensors"))
    except (OSError, ValueError, LookupError, TypeError):
        raise BadInput(f"{adapter} holds no whole adapter_config.json and adapter_model.safetensors: name the folder "
                       "that distill.py wrote, such as out/adapter.") from None
    here, there = os.path.realpath(model), os.path.realpath(trained_on or "")
    if here != there and (os.path.exists(there) or os.path.basename(here) != os.path.basename(there)):
        raise BadInput(f"the adapter {adapter} was trained on {trained_on}, not on {model}: name that model with "
                       "--model, or, if it is the same in another place, that place in adapter_config.json.")


async def side_by_side(coroutines, seconds=None):
    """Run them side by side to their ends; an error, the time limit or Ctrl-C ends them all, before their engine is
    closed. -> whether time did."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return False
    try:
        finished, unfinished = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()
        return bool(unfinished)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------------------------------------------------------------
# Command line of every script that samples


def add_arguments(parser):
    """The flags of explore, distill and evaluate that say what samples, and how."""
    add = parser.add_argument_group("model and engine").add_argument
    add("--model", help=f"Hub id or checkpoint folder (default: {DEFAULT_MODEL}, where there is a GPU)")
    add("--family", choices=["qwen3", "olmo3"], help="whose prompt texts (default: the model's, else qwen3)")
    add("--engine", choices=["auto", "vllm", "hf"], default="auto", help="auto: vllm with a GPU, else hf")
    add("--dtype", choices=["bfloat16", "float32"],
        help="default: bfloat16 for the paper's models, else the checkpoint's own")
    add("--max-tokens", type=positive_int, help="response limit in tokens (default: the model's, App. B.4)")
    add("--temperature", type=float, help="default: the model's, App. B.4")
    add("--top-p", type=float, help="default: the model's, App. B.4")
    add("--gpu-memory", type=float, help="share of the GPU that the engine takes (default: 0.9; beside updates 0.4)")
    add("--max-model-len", type=positive_int, help="window in tokens (default: the model's)")
    add("--tensor-parallel", type=positive_int, default=1, help="GPUs that share one copy of the model (vllm)")
    add("--data-parallel", type=positive_int, default=1, help="copies of the model (vllm)")


def positive_int(text):
    """argparse type: a whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def settings(args, bench, gpu_memory=0.9):
    """Resolve the flags of `add_arguments` for `bench`; errors: BadInput. Prints nothing: `describe` does."""
    cuda = torch.cuda.is_available()
    if args.model is None and not cuda:
        raise BadInput(f"there is no CUDA device here, and the default model {DEFAULT_MODEL} needs one: name a small "
                       "model with --model, or run `python tiny.py`, which makes one.")
    model = args.model or DEFAULT_MODEL
    known = MODELS.get(model, {})
    engine = args.engine if args.engine != "auto" else "vllm" if cuda else "hf"
    if engine == "hf" and args.tensor_parallel * args.data_parallel > 1:
        raise BadInput("--tensor-parallel and --data-parallel are vLLM's: add --engine vllm, or leave them out.")
    own_dtype = str(getattr(load(AutoConfig, model), "dtype", None)).removeprefix("torch.")
    resolved = Settings(
        model=model, family=args.family or known.get("family", "qwen3"), engine=engine,
        dtype=args.dtype or ("float32" if not known and own_dtype == "float32" else "bfloat16"),
        temperature=known.get("temperature", 1.0) if args.temperature is None else args.temperature,
        top_p=known.get("top_p", 1.0) if args.top_p is None else args.top_p,
        max_tokens=args.max_tokens or known.get("lcb" if bench == "lcb" else "max_tokens", 8192),
        gpu_memory=args.gpu_memory or gpu_memory, max_model_len=args.max_model_len,
        tensor_parallel=args.tensor_parallel, data_parallel=args.data_parallel)
    if not 0 <= resolved.temperature < float("inf") or not 0 < resolved.top_p <= 1 or not 0 < resolved.gpu_memory <= 1:
        raise BadInput("--temperature must be at least 0, --top-p and --gpu-memory above 0 and at most 1.")
    return resolved


def describe(s):
    """One line for the reader of a run: what samples, and which defaults were taken."""
    family = s.family + ("" if s.model in MODELS else " (prompt texts; --family names others)")
    return (f"model {s.model}, family {family}, engine {s.engine}, {s.dtype}, temperature {s.temperature:g}, "
            f"top-p {s.top_p:g}, at most {s.max_tokens} tokens a response")


async def start(settings, adapters=False):
    """The engine of `settings`, ready to sample; `adapters`: whether requests will name LoRA adapters."""
    if settings.engine == "hf":
        from hf_engine import HFEngine
        engine = HFEngine(settings)
    else:
        from vllm_engine import VLLMEngine
        engine = await VLLMEngine.start(settings, adapters)
    engine.parameters = int(MODELS.get(settings.model, {}).get("parameters", engine.parameters))
    return engine

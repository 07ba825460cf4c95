"""Sampling: one request in, one completion with its log-probabilities out.

    sample = await engine.sample(prompt_token_ids, seed=..., max_tokens=..., temperature=..., top_p=..., adapter=None)

Two engines answer it. `VLLMEngine` (vllm_engine.py) is vLLM's continuous batching (App. B.4, C.5). `HFEngine` is a
small continuous-batching loop over transformers, for machines without vLLM: a finished sequence leaves the batch and
a waiting one takes its slot.

Both return the log-probability that a token was really drawn with, that is after temperature and top-p: mu of Eq. 3.
"""
import argparse
import asyncio
import concurrent.futures
import hashlib
import heapq
import itertools
import json
import os
import time
from dataclasses import dataclass, field

# Before torch is loaded: threads that spin while they wait take the cores from the graders beside the engine.
# Measured on two busy cores: 7,070 tokens/s against 460.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
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
        self.config = load(AutoConfig, settings.model)
        self.window = settings.max_model_len or getattr(self.config, "max_position_embeddings", None)
        if self.window is None:
            raise BadInput(f"{settings.model} does not say how long its window is: say it with --max-model-len.")
        self.stop_ids = stop_token_ids(settings.model, self.tokenizer)

    def encode(self, messages):
        """Token ids of a dialogue with the generation prompt; Olmo's template has no thinking to switch off."""
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, return_dict=False)

    def room(self, prompt_token_ids, max_tokens):
        """Tokens that a response may have: the limit, or what the window leaves. Errors: ContextTooLong."""
        length = len(prompt_token_ids)
        if length >= self.window:
            raise ContextTooLong(f"its context of {length} tokens does not fit the model's window of {self.window}: "
                                 "use a model with a longer window, a smaller --tail or a larger --max-model-len.")
        return min(max_tokens, self.window - length)


def load(auto_class, model, **kwargs):
    """`auto_class.from_pretrained(model)`, with one sentence instead of a traceback when there is nothing to load."""
    try:
        return auto_class.from_pretrained(model, **kwargs)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason, what = str(error).strip().split("\n")[0], "is neither a folder here nor a model that the Hub gave"
        if os.path.isdir(model):
            what = "is no folder with a checkpoint in it"
        raise BadInput(f"--model {model} {what} ({reason}): name a checkpoint folder, or a Hub id where the Hub can be "
                       "reached.") from None


def stop_token_ids(model, tokenizer):
    """The tokenizer's end of sequence and all those that the model's generation_config.json names (Qwen3 has two)."""
    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # a checkpoint need not have the file
        ids = None
    ids = ids if isinstance(ids, list) else [ids]
    return sorted({*ids, tokenizer.eos_token_id} - {None})


def token_bytes(config, itemsize):
    """Bytes that the keys and values of one token take in all layers."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * itemsize


def check_adapter(adapter, model):
    """BadInput unless `adapter` is a PEFT folder that was trained on `model`."""
    path = os.path.join(adapter, "adapter_config.json")
    if not os.path.isfile(path):
        raise BadInput(f"{adapter} holds no adapter_config.json: name the folder that distill.py wrote, such as "
                       "out/adapter.")
    with open(path) as file:
        trained_on = json.load(file).get("base_model_name_or_path")
    if trained_on and os.path.realpath(trained_on) != os.path.realpath(model):
        raise BadInput(f"the adapter {adapter} was trained on {trained_on}, not on {model}: name that model with "
                       "--model.")


# ---------------------------------------------------------------------------------------------------------------------
# transformers


@dataclass
class Row:
    """A running or waiting request of the transformers engine."""
    prompt: list
    max_tokens: int
    temperature: float
    top_p: float
    adapter: str | None
    uniforms: torch.Tensor         # [max_tokens] float64: the request's noise, from its seed alone
    future: asyncio.Future
    token_ids: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)


class SlotCache:
    """Keys and values of the running sequences: row i of each buffer holds positions 0..length_i - 1 of sequence i.

    transformers' attention calls `update` in each layer. Rows are never padded or copied while they run: a decoding
    step writes one position per row in place and attends to a view of the buffer.
    """

    def __init__(self):
        self.keys, self.values = {}, {}    # layer -> [rows, heads, positions, head dim]

    def begin(self, first, width, positions=None):
        """Before a forward pass. positions [n]: of the one new token of each row; None for new rows (prefill)."""
        self.first, self.width, self.positions = first, width, positions

    def update(self, keys, values, layer, *_, **__):
        """keys, values [n, heads, q, dim] of rows first..first+n-1; returns what they attend to."""
        n, q = keys.shape[0], keys.shape[2]
        if layer not in self.keys:
            self.keys[layer], self.values[layer] = keys[:0, :, :0], values[:0, :, :0]
        if self.first + n > len(self.keys[layer]) or self.width > self.keys[layer].shape[2]:
            self.keys[layer] = self._grown(self.keys[layer], self.first + n)
            self.values[layer] = self._grown(self.values[layer], self.first + n)
        if self.positions is None:  # new rows attend to themselves only
            self.keys[layer][self.first:self.first + n, :, :q] = keys
            self.values[layer][self.first:self.first + n, :, :q] = values
            return keys, values
        rows = torch.arange(n, device=keys.device)
        self.keys[layer][rows, :, self.positions] = keys[:, :, 0]
        self.values[layer][rows, :, self.positions] = values[:, :, 0]
        return self.keys[layer][:n, :, :self.width], self.values[layer][:n, :, :self.width]

    def _grown(self, old, rows):
        """A copy with room to spare, so that it is seldom made: twice the rows, positions in blocks of 256."""
        if rows > len(old):
            rows = max(rows, 2 * len(old), 8)
        width = -(-self.width // 256) * 256
        new = old.new_zeros(max(rows, len(old)), old.shape[1], max(width, old.shape[2]), old.shape[3])
        new[:len(old), :, :old.shape[2]] = old
        return new

    def move(self, source, target):
        """Row `source` takes the place of row `target`."""
        for buffer in (*self.keys.values(), *self.values.values()):
            buffer[target] = buffer[source]


def grouped_attention(module, query, key, value, mask, scaling=None, **_):
    """Attention on the CPU that reads keys and values where they lie; transformers' sdpa copies them for each query
    head of a group. Query [n, heads, q, dim], key and value [n, key heads, k, dim] -> [n, q, heads, dim]."""
    n, heads, length, dim = query.shape
    if length == 1:  # the heads of a group as positions: faster by far than one position at a time
        query = query.reshape(n, key.shape[1], -1, dim)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling,
                                                              enable_gqa=length > 1)
    return output.reshape(n, heads, length, dim).transpose(1, 2), None


AttentionInterface.register("grouped", grouped_attention)
AttentionMaskInterface.register("grouped", sdpa_mask)


class HFEngine(Engine):
    """Continuous batching over a transformers model, on the CPU or one GPU. One adapter at a time: a request for
    another one waits until the running batch is empty."""

    def __init__(self, settings):
        begin = time.time()
        super().__init__(settings)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        attention = "grouped" if self.device == "cpu" else "sdpa"
        self.model = load(AutoModelForCausalLM, settings.model, dtype=getattr(torch, settings.dtype),
                          attn_implementation=attention)
        self.model.to(self.device).eval()
        self.decoder, self.head = self.model.get_decoder(), self.model.get_output_embeddings()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.token_bytes = token_bytes(self.config, self.model.dtype.itemsize)
        self.cache_bytes = 4 * 2**30
        if self.device == "cuda":
            memory = torch.cuda.get_device_properties(0).total_memory
            self.cache_bytes = settings.gpu_memory * memory - torch.cuda.memory_allocated()
        self.slots = 128  # rows; more of them no longer raise the tokens per second on a CPU
        sliding = "sliding_attention" in (getattr(self.config, "layer_types", None) or [])
        self.sliding_window = self.config.sliding_window if sliding else None
        self.adapter, self.loaded = None, None  # the folder in use; the folder whose weights the LoRA layers hold
        self.cache, self.running, self.waiting, self.order = SlotCache(), [], [], itertools.count()
        self.thread, self.server = concurrent.futures.ThreadPoolExecutor(1), None
        self.startup_seconds = time.time() - begin

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        """One completion; see the module's text. Lower `priority` first. Errors: ContextTooLong, BadInput (adapter)."""
        max_tokens = self.room(prompt_token_ids, max_tokens)
        if adapter is not None:
            check_adapter(adapter, self.settings.model)
        uniforms = torch.rand(max_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        future = asyncio.get_running_loop().create_future()
        row = Row(prompt_token_ids, max_tokens, temperature, top_p, adapter, uniforms, future)
        heapq.heappush(self.waiting, (priority, next(self.order), row))
        if self.server is None or self.server.done():
            self.server = asyncio.ensure_future(self._serve())
        return await future

    async def _serve(self):
        loop, new = asyncio.get_running_loop(), []
        try:
            while self.waiting or self.running:
                new = self._admit()
                for row in await loop.run_in_executor(self.thread, self._step, new):
                    if not row.future.done():
                        reason = "stop" if row.token_ids[-1] in self.stop_ids else "length"
                        text = self.tokenizer.decode(row.token_ids, skip_special_tokens=True)
                        row.future.set_result(Sample(row.token_ids, text, row.logprobs, reason, len(row.prompt)))
        except Exception as error:  # whoever waits must hear of it: a lost future would hang the run
            for row in [*new, *self.running, *(row for _, _, row in self.waiting)]:
                if not row.future.done():
                    row.future.set_exception(error)
            self.running, self.waiting = [], []

    def _admit(self):
        """Waiting requests that start now, in order of priority, as long as their keys and values are sure to fit."""
        few = len(self.running) // 8  # a prefill costs as much as a decoding step: let a few come, and slots for them
        if self.running and (len(self.waiting) < few or self.slots - len(self.running) < min(len(self.waiting), few)):
            return []
        new, width = [], max((len(row.prompt) + row.max_tokens for row in self.running), default=0)
        while self.waiting and len(self.running) + len(new) < self.slots:
            row = self.waiting[0][2]
            width = max(width, len(row.prompt) + row.max_tokens)
            count = len(self.running) + len(new) + 1
            if count > 1 and (row.adapter != self.adapter or count * width * self.token_bytes > self.cache_bytes):
                break
            if count == 1:
                self.adapter = row.adapter
            heapq.heappop(self.waiting)
            if not row.future.done():  # its waiter may have been cancelled
                new.append(row)
        return new

    @torch.inference_mode()
    def _step(self, new):
        """Prefill the new rows or decode one token of every running row; returns the rows that finished."""
        if self.adapter != self.loaded:
            self._load_adapter()
        rows = new or self.running
        if not rows:  # whatever waited was cancelled
            return []
        tokens, logprobs = draw(self._prefill(new) if new else self._decode(), rows)
        for row, token, logprob in zip(rows, tokens, logprobs):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
        self.running = self.running + new
        finished = []
        for i in reversed(range(len(self.running))):  # the last row takes the place of one that leaves
            row = self.running[i]
            if row.token_ids[-1] in self.stop_ids or len(row.token_ids) == row.max_tokens or row.future.done():
                finished.append(row)
                last = self.running.pop()
                if last is not row:
                    self.cache.move(len(self.running), i)
                    self.running[i] = last
        return finished

    def _prefill(self, new):
        """Logits [n, V] after the prompts of new rows, padded on the right: a causal mask hides the padding."""
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.prompt) for row in new], batch_first=True)
        self.cache.begin(len(self.running), ids.shape[1])
        hidden = self._forward(ids.to(self.device), torch.arange(ids.shape[1], device=self.device)[None])
        return self.head(hidden[list(range(len(new))), [len(row.prompt) - 1 for row in new]])

    def _decode(self):
        """Logits [n, V] after one more token of every running row."""
        ids = torch.tensor([[row.token_ids[-1]] for row in self.running], device=self.device)
        positions = torch.tensor([len(row.prompt) + len(row.token_ids) - 1 for row in self.running], device=self.device)
        self.cache.begin(0, int(positions.max()) + 1, positions)
        return self.head(self._forward(ids, positions[:, None])[:, 0])

    def _forward(self, ids, positions):
        """Hidden states [n, q, d]; a token sees the keys up to its own position, those in the sliding window if any."""
        keys = torch.arange(self.cache.width, device=self.device)
        mask = (keys <= positions[:, :, None])[:, None]
        if self.sliding_window:
            near = (keys > positions[:, :, None] - self.sliding_window)[:, None]
            mask = {"full_attention": mask, "sliding_attention": mask & near}
        return self.decoder(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self.cache,
                            use_cache=True).last_hidden_state

    def _load_adapter(self):
        """Put the LoRA weights of the folder in use into the model, instead of those that are there."""
        from peft import PeftModel
        if self.loaded is not None:
            self.model = self.model.unload()
        if self.adapter is not None:
            self.model = PeftModel.from_pretrained(self.model, self.adapter).eval()
        self.loaded = self.adapter

    def close(self):
        self.thread.shutdown(wait=True, cancel_futures=True)


def draw(logits, rows):
    """Draw one token per row by inverting the cumulative distribution at the row's next uniform number.

    logits [n, V]. Returns token ids and float32 log-probabilities after temperature and top-p, two lists of n.
    """
    logits = logits.float()
    temperature = torch.tensor([row.temperature for row in rows], device=logits.device)[:, None]
    logits = logits / torch.where(temperature == 0, 1.0, temperature)
    if any(row.top_p < 1 for row in rows):
        top_p = torch.tensor([row.top_p for row in rows], device=logits.device)[:, None]
        ordered, index = logits.sort(dim=-1, descending=True)
        mass = ordered.softmax(-1)
        before = mass.cumsum(-1) - mass  # what lies ahead of a token: the first is always kept
        dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(1, index, (before >= top_p) & (top_p < 1))
        logits = logits.masked_fill(dropped, float("-inf"))
    logprobs = logits.log_softmax(-1)
    cdf = logprobs.double().exp().cumsum(-1)
    uniform = torch.stack([row.uniforms[len(row.token_ids)] for row in rows]).to(logits.device)[:, None]
    tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).clamp_(max=logits.shape[1] - 1)
    tokens = torch.where(temperature == 0, logits.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist()


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
        engine = HFEngine(settings)
    else:
        from vllm_engine import VLLMEngine
        engine = await VLLMEngine.start(settings, adapters)
    engine.parameters = int(MODELS.get(settings.model, {}).get("parameters", engine.parameters))
    return engine

"""The engine for machines without vLLM: a small continuous-batching loop over transformers, on the CPU or one GPU.

A finished sequence leaves the batch and a waiting one takes its slot. The noise of a request depends on its seed alone.
"""
import asyncio
import concurrent.futures
import heapq
import itertools
import time
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from engines.base import Engine, Sample, check_adapter, fetch_weights, load, load_adapter, token_bytes
from engines.check import TEXT, check_config, check_equal, own_logprobs, unknown_layers


@dataclass
class Row:
    """A running or waiting request of the transformers engine."""
    prompt: list
    max_tokens: int
    temperature: float
    top_p: float
    adapter: str | None
    seed: int
    future: asyncio.Future
    uniforms: torch.Tensor | None = None  # [max_tokens] float64: the request's noise, from its seed alone
    admitted: float = 0.0          # time.monotonic() at its admission into the batch
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
    head of a group. Query [n, heads, q, dim], key [n, key heads, k, dim], value with any dim -> [n, q, heads, dim]."""
    n, heads, length, dim = query.shape
    if length == 1:  # the heads of a group as positions: faster by far than one position at a time
        query = query.reshape(n, key.shape[1], -1, dim)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling,
                                                              enable_gqa=length > 1)
    return output.reshape(n, heads, length, -1).transpose(1, 2), None


AttentionInterface.register("grouped", grouped_attention)
AttentionMaskInterface.register("grouped", sdpa_mask)


class HFEngine(Engine):
    """Continuous batching over a transformers model, on the CPU or one GPU. One adapter at a time: a request for
    another one waits until the running batch is empty."""

    def __init__(self, settings):
        super().__init__(settings)
        check_config(settings.model, self.config)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        attention = "grouped" if self.device == "cpu" else "sdpa"
        fetch_weights(settings.model)
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
        self.kinds = getattr(self.config, "layer_types", None)
        # Without kinds of layers all of them have the window, if any; Qwen 2 says apart whether it uses it.
        uses_window = getattr(self.config, "use_sliding_window", True)
        has_window = "sliding_attention" in self.kinds if self.kinds else uses_window
        self.sliding_window = getattr(self.config, "sliding_window", None) if has_window else None
        self.adapter, self.loaded = None, None  # the folder in use; the folder whose weights the LoRA layers hold
        self.cache, self.running, self.waiting, self.order = SlotCache(), [], [], itertools.count()
        self.thread, self.server = concurrent.futures.ThreadPoolExecutor(1), None
        self.check()

    @torch.inference_mode()
    def check(self):
        """BadInput if prefill and decoding of a short text give others than the model's own log-probabilities."""
        path = "the hf engine"
        ids = self.tokenizer.encode(TEXT)[:self.window]
        decoded = min(4, len(ids) - 1)
        row = Row(ids[:-decoded], decoded, 1.0, 1.0, None, 0, None)
        with unknown_layers(self.settings.model, path):
            want = own_logprobs(self.model, ids)[-decoded - 1:]
            logits = [self._prefill([row])]
            self.running = [row]
            for token in ids[-decoded:]:
                row.token_ids.append(token)
                logits.append(self._decode())
        self.running, self.cache = [], SlotCache()
        logprobs = torch.cat(logits).float().log_softmax(-1)
        check_equal(self.settings.model, self.settings.dtype, path, logprobs, want)

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        """One completion; see the module's text. Lower `priority` first. Errors: ContextTooLong, BadInput (adapter)."""
        max_tokens = self.max_new_tokens(prompt_token_ids, max_tokens)
        if adapter is not None:
            check_adapter(adapter, self.settings.model)
        future = asyncio.get_running_loop().create_future()
        row = Row(prompt_token_ids, max_tokens, temperature, top_p, adapter, seed, future)
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
                        row.future.set_result(self._sample_of(row))
        except Exception as error:  # whoever waits must hear of it: a lost future would hang the run
            for row in [*new, *self.running, *(row for _, _, row in self.waiting)]:
                if not row.future.done():
                    row.future.set_exception(error)
            self.running, self.waiting = [], []

    def _sample_of(self, row):
        """The completion of a row that has just finished."""
        seconds = time.monotonic() - row.admitted
        reason = "stop" if row.token_ids[-1] in self.stop_ids else "length"
        text = self.tokenizer.decode(row.token_ids, skip_special_tokens=True)
        return Sample(row.token_ids, text, row.logprobs, reason, len(row.prompt), seconds)

    def _enough_to_prefill(self):
        """Whether as many requests wait, and as many slots are free, as make a prefill worth its time.

        The running rows stand still meanwhile, and it costs as much as a step of theirs: so an eighth of them.
        """
        if not self.running:
            return True
        worthwhile = len(self.running) // 8
        free_slots = self.slots - len(self.running)
        startable = min(len(self.waiting), free_slots)
        return startable >= worthwhile

    def _admit(self):
        """Waiting requests that start now, in order of priority, as long as their keys and values are sure to fit."""
        if not self._enough_to_prefill():
            return []
        new = []
        width = max((len(row.prompt) + row.max_tokens for row in self.running), default=0)
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
                generator = torch.Generator().manual_seed(row.seed)
                row.uniforms = torch.rand(row.max_tokens, dtype=torch.float64, generator=generator)
                row.admitted = time.monotonic()
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
            near = mask & (keys > positions[:, :, None] - self.sliding_window)[:, None]
            mask = {"full_attention": mask, "sliding_attention": near} if self.kinds else near
        return self.decoder(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self.cache,
                            use_cache=True).last_hidden_state

    def _load_adapter(self):
        """Put the LoRA weights of the folder in use into the model, instead of those that are there."""
        if self.loaded is not None:
            self.model = self.model.unload()
        if self.adapter is not None:
            self.model = load_adapter(self.model, self.adapter).eval()
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

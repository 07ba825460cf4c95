"""Sampling from servers that run already (servers.py): scale is then theirs, on one node or on many.

Prompts go as token ids, so that the chat template and the tail are ours: to vLLM's POST /inference/v1/generate (`vllm
serve --enable-scale-out`), or to OpenAI's /v1/completions where a server gives token ids there ("return_token_ids").
"""
import asyncio
import math
import os
import sys
import time

from common.errors import BadInput
from engines.base import Engine, Sample, check_adapter, count_parameters, in_short
from engines.servers import Servers

ENDPOINTS = "/inference/v1/generate", "/v1/completions"


class ServedEngine(Engine):
    @classmethod
    async def start(cls, settings):
        """An engine whose servers have been tried; a line says what they can. Errors: BadInput."""
        engine = cls(settings)
        print(await engine.probe(), file=sys.stderr, flush=True)
        return engine

    def __init__(self, settings):
        super().__init__(settings)
        self.servers = Servers(settings.servers, settings.patience)
        self.gpus *= len(settings.servers)
        self.parameters = count_parameters(self.config)
        self.has_mu = self.has_priority = True
        self.adapter, self.adapter_name = None, None  # the one that the servers hold
        self.lock = asyncio.Lock()

    async def probe(self):
        """-> the line on the servers. Errors: BadInput."""
        windows = [await self.find_model(server) for server in self.servers.all]
        self.window = min([self.window, *filter(None, windows)])
        prompt = self.encode([{"role": "user", "content": "Name any word."}])
        ask = {"prompt_token_ids": prompt, "seed": 7, "max_tokens": 8, "temperature": 1.0, "top_p": 1.0}
        first = await self.find_endpoint(ask)
        has_seeds = (await self.sample(**ask)).token_ids == first.token_ids
        # Only the likeliest token is left: its log-probability is 0 after top-p, and below 0 before it.
        certain = await self.sample(**ask | {"temperature": 2.0, "top_p": 1e-6})
        self.has_mu = bool(certain.logprobs) and min(certain.logprobs) > -1e-3
        known = (
            (self.has_mu, "log-probabilities after temperature and top-p", "no distill.py or --compress low-logprob"),
            (has_seeds, "seeds", "no answer repeats"), (self.has_priority, "priorities", "steps end in any order"))
        facts = [fact if has else f"no {fact} ({lack})" for has, fact, lack in known]
        return (f"served: {len(windows)} x {self.servers.all[0].model}, window {self.window}, {self.path}, "
                f"{', '.join(facts)}")

    async def find_model(self, server):
        """Set server.model. -> its window, or None. Errors: BadInput."""
        wanted, models = self.settings.model.rstrip("/"), await self.servers.models(server)
        for model in models:
            names = {os.path.basename(str(model.get(key)).rstrip("/")) for key in ("id", "root")}
            if os.path.basename(wanted) in names:
                server.model = model["id"]
                return window if isinstance(window := model.get("max_model_len"), int) else None
        served = ", ".join(str(model.get("id")) for model in models) or "nothing"
        raise BadInput(f"--server {server.url} serves {served}, not {wanted}: name its model with --model, as the "
                       "prompts are made by that tokenizer.")

    async def find_endpoint(self, ask):
        """Set path and has_priority by trying. -> the Sample. Errors: BadInput, if none gives token ids."""
        for self.path in ENDPOINTS:
            for self.has_priority in (True, False):
                try:
                    return await self.sample(**ask, priority=1)
                except BadInput as error:
                    why = error
        raise BadInput(f"{why} The server must take and give token ids, as vllm serve --enable-scale-out does.")

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        """See HFEngine.sample; log mu is left out where the servers have none. Errors: BadInput, EngineDead."""
        max_tokens = self.max_new_tokens(prompt_token_ids, max_tokens)
        name = await self.use_adapter(adapter) if adapter else None
        params = {"seed": seed, "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": 0,
                  "min_p": 0.0, "logprobs": 0, "stop_token_ids": self.stop_ids}
        body = {"priority": priority} if self.has_priority else {}
        body |= {"token_ids": prompt_token_ids, "sampling_params": params} if self.path == ENDPOINTS[0] else {
            "prompt": prompt_token_ids, "return_token_ids": True, **params}
        begin, content = time.time(), await self.servers.answer(self.path, body, name)
        # The seconds hold the wait in a server's queue, of which it does not tell.
        return self.completion(content, len(prompt_token_ids), max_tokens, time.time() - begin)

    def completion(self, content, prompt_tokens, max_tokens, seconds):
        """The Sample in an answer. Errors: BadInput, if it is not what was asked for."""
        try:
            choice, = content["choices"]
            ids, reason, logprobs = choice["token_ids"], choice["finish_reason"], choice.get("logprobs") or {}
            values = logprobs.get("token_logprobs") or [token["logprob"] for token in logprobs.get("content") or []]
            is_whole = reason in ("stop", "length") and 0 < len(ids) <= max_tokens and len(values) in (0, len(ids))
            are_tokens = all(type(i) is int and 0 <= i < self.config.vocab_size for i in ids)
            is_whole = is_whole and are_tokens and all(map(math.isfinite, values))
        except (LookupError, TypeError, ValueError, AttributeError):
            is_whole = False
        if not is_whole:
            raise BadInput("a server's answer has not the token ids and log-probabilities that were asked for: "
                           f"{str(content)[:200]}.")
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Sample(ids, text, values if self.has_mu else [], reason, prompt_tokens, seconds)

    async def use_adapter(self, adapter):
        """The name of an adapter folder with all servers. Errors: BadInput."""
        path = os.path.realpath(adapter)
        version = path, os.stat(os.path.join(path, "adapter_model.safetensors")).st_mtime_ns
        async with self.lock:
            if version != self.adapter:
                check_adapter(adapter, self.settings.model)
                name = f"leaf-{time.time_ns()}"  # servers keep keys and values by name
                for server in self.servers.all:
                    await self.load_adapter(server, name, path)
                self.adapter, self.adapter_name = version, name
        return self.adapter_name

    async def load_adapter(self, server, name, path):
        try:
            if self.adapter_name:
                await self.servers.post(server, "/v1/unload_lora_adapter", {"lora_name": self.adapter_name})
            await self.servers.post(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except Exception as error:
            raise BadInput(f"{server.url} does not take the adapter {path} ({in_short(error)}): start it with "
                           "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank 64, where that "
                           "folder can be read.") from None

    def close(self):
        """Nothing of the servers is ours."""

"""The vLLM engine (App. B.4, C.5): vLLM's own continuous batching, in processes that end with this one."""
import asyncio
import contextlib
import functools
import hashlib
import itertools
import logging
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import torch

from common import gpu_memory
from common.errors import BadInput
from engines import watchdog
from engines.base import (
    Engine, EngineDead, Sample, check_adapter, count_parameters, fetch_weights, in_short, token_bytes)


@functools.cache
def start_watchdog():
    """One watchdog for this process; a session of its own keeps Ctrl-C away from it."""
    return subprocess.Popen([sys.executable, "-P", watchdog.__file__, str(os.getpid())], start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def engine_environment(cpu):
    """What vLLM's processes inherit: nothing of torchrun but this rank's own GPU, and no Ctrl-C, which is for us to
    act on."""
    before = dict(os.environ)
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(os.environ["LOCAL_RANK"])]
    for name in before:
        if (name.startswith(("TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_"))
                or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")):
            del os.environ[name]
    if "RANK" in before:
        # Ranks that compile at the same time write the same files, as to vLLM each is rank 0.
        cache = os.environ.get("VLLM_CACHE_ROOT") or os.path.join(
            os.environ.get("XDG_CACHE_HOME") or "~/.cache", "vllm")
        os.environ["VLLM_CACHE_ROOT"] = os.path.join(cache, f"rank_{before['RANK']}")
    # The trainer's; vLLM's cache cannot be given back with it.
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    os.environ["ENGINE_OF"] = str(os.getpid())  # the watchdog knows them by it
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    if cpu:
        # Seconds until vLLM takes its own worker for dead (300): a step of many long prompts may take longer here.
        os.environ.setdefault("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "86400")
    multiprocessing.resource_tracker.ensure_running()  # now: Python unblocks SIGINT when it starts it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def output_into(path):
    """Within the block, and for ever in the processes that start there, standard output and errors go to the end of
    the file `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(terminal, 1):
            os.dup2(saved, number)
            os.close(saved)


class VLLMEngine(Engine):
    """vLLM, in processes of its own that end with this one; made and used in one event loop. One adapter, or none, at
    a time: a request for another waits until all before it are answered (vLLM 0.32.0 on the CPU gives a request
    without an adapter that of its neighbours in the batch)."""

    MAX_LORA_RANK = 64
    advice = ""    # at the end of a sentence on an engine that is dead

    def __init__(self, settings, adapters, log, until_started):
        """log: path of the file for all that vLLM prints. until_started: ExitStack, closed when the start is over."""
        super().__init__(settings)
        # With a folder, the engine's processes ask the Hub for nothing.
        self.weights = fetch_weights(settings.model)
        self.log = log
        self.gate, self.idle, self.running = asyncio.Lock(), asyncio.Event(), 0
        self.idle.set()
        self.numbers = itertools.count(1)    # of requests and adapters
        self.using = None                    # the adapter folder of what runs
        self.lora = self.version = None      # the adapter that vLLM holds, and its (path, time of change)
        self.adapters = []                   # all that it has held: {"name", "id", "path", "sha256"}
        start_watchdog()
        until_started.enter_context(output_into(log))
        self._import_vllm()
        self.slots = 128 if self.cpu else 512  # sequences in flight
        self.share = settings.gpu_memory
        if self.share is None:
            total = self.platform.get_device_total_memory()
            self.share = gpu_memory.engine_share(self.config, settings.dtype, total, lora_rank=self.MAX_LORA_RANK)
        with engine_environment(self.cpu):
            self._check_cache()
            self.llm = self._launch(adapters)
        # From here on this process, too, writes what it hears of vLLM into the log.
        logging.getLogger("vllm").handlers = [logging.FileHandler(log)]

    def _import_vllm(self):
        """Load vLLM, and keep of it what `sample` needs."""
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        try:
            from vllm import SamplingParams
            from vllm.lora.request import LoRARequest
            from vllm.platforms import current_platform
            from vllm.sampling_params import RequestOutputKind
            from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
        except Exception as error:  # of any type: compiled parts of it may not load
            self._log_traceback()
            raise BadInput(f"vLLM cannot be imported ({in_short(error)}): install requirements.txt, or sample with "
                           "--engine hf.") from None
        self.dead, self.lora_request = (EngineDeadError, EngineGenerateError), LoRARequest
        self.params = functools.partial(  # nothing is left to the model's generation_config.json
            SamplingParams, top_k=0, min_p=0.0, logprobs=0, flat_logprobs=True, detokenize=False,
            stop_token_ids=self.stop_ids, output_kind=RequestOutputKind.FINAL_ONLY)
        self.platform = current_platform
        self.cpu = current_platform.is_cpu()
        if not self.cpu:
            self.advice = (" --no-async-scheduling, and VLLM_USE_V2_MODEL_RUNNER=0 in the environment, turn off what "
                           "is newest in vLLM.")

    def _log_traceback(self):
        """Of the error at hand: the user sees one sentence, which names the log."""
        with open(self.log, "a") as file:
            traceback.print_exc(file=file)

    def _launch(self, adapters):
        """vLLM's engine, in processes that it starts."""
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        s = self.settings
        # Tokens that one step may take. vLLM cuts longer prompts into chunks, but not on a CPU: with a seed for each
        # request a cut ends it there, as torch's generators on the CPU cannot be set back after it. So a step must
        # have room for the longest prompt, and on a CPU it has no more, to stay short.
        step_tokens = max(self.window, 2048) if self.cpu else 16384
        try:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(
                model=self.weights, dtype=s.dtype, generation_config="vllm", max_model_len=self.window,
                # mu of Eq. 3 is what a token was drawn with. vLLM's default, raw log-probabilities, is that of before
                # temperature and top-p: wrong as soon as the temperature is not 1.
                logprobs_mode="processed_logprobs", max_num_seqs=self.slots, scheduling_policy="priority",
                enable_chunked_prefill=not self.cpu, max_num_batched_tokens=step_tokens,
                tensor_parallel_size=s.tensor_parallel, data_parallel_size=s.data_parallel,
                enable_lora=adapters, max_lora_rank=self.MAX_LORA_RANK, max_loras=1, enable_prefix_caching=True,
                gpu_memory_utilization=self.share, enable_sleep_mode=s.rests, enforce_eager=self.cpu,
                use_tqdm_on_load=False,
                # Logits in float32, as the loss has them: bfloat16 rounds one of 20 by up to 0.06, and mu with it.
                hf_overrides={"head_dtype": "float32"}, async_scheduling=None if s.async_scheduling else False,
                disable_log_stats=False))  # for `metrics` of a request's output
        except Exception as error:  # of any type: from vLLM, and from what it runs on
            self._log_traceback()
            raise BadInput(f"vLLM did not start ({in_short(error)}): {self.log} says more.{self.advice}") from None

    @classmethod
    async def start(cls, settings, adapters, folder):
        """An engine, started in a thread: asyncio hears Ctrl-C meanwhile."""
        log = os.path.join(folder, "vllm.log")
        # Ended here rather than in the thread: after Ctrl-C the thread may live longer than this.
        with contextlib.ExitStack() as until_started:
            return await cls._start_in_thread(settings, adapters, log, until_started)

    @classmethod
    async def _start_in_thread(cls, *arguments):
        """`cls(*arguments)`; Ctrl-C ends what it has started so far."""
        future = asyncio.get_running_loop().create_future()

        def launch():
            try:
                result, tell = cls(*arguments), future.set_result
            except BaseException as error:
                result, tell = error, future.set_exception
            with contextlib.suppress(RuntimeError):  # the loop is closed when Ctrl-C came first
                future.get_loop().call_soon_threadsafe(lambda: future.done() or tell(result))

        thread = threading.Thread(target=launch, daemon=True)  # vLLM may wait ten minutes for a core that is gone
        thread.start()
        try:
            return await future
        except asyncio.CancelledError:
            deadline = time.time() + 15
            while thread.is_alive() and time.time() < deadline:  # it may be about to start the core
                for process in multiprocessing.active_children():
                    if process.name.startswith("EngineCore"):
                        process.kill()
                await asyncio.sleep(0.1)
            raise

    def _check_cache(self):
        """Count the parameters, and refuse a window whose keys and values the memory cannot hold. Loads no weights."""
        self.parameters = count_parameters(self.config)
        itemsize = getattr(torch, self.settings.dtype).itemsize
        if self.cpu:
            space = int(os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")) * 2**30
            more = "set VLLM_CPU_KVCACHE_SPACE (GiB) higher"
        else:
            share = self.share * self.settings.tensor_parallel
            space = share * self.platform.get_device_total_memory() - self.parameters * itemsize
            more = "give the engine more with --gpu-memory or --tensor-parallel"
        need = self.window * token_bytes(self.config, itemsize)
        if need > space:
            raise BadInput(f"one sequence of {self.window} tokens needs {need / 2**30:.1f} GiB for its keys and "
                           f"values, and {max(space, 0) / 2**30:.1f} GiB are there: {more}, or take a smaller "
                           "--max-model-len.")

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        """See HFEngine.sample. Errors: EngineDead too."""
        max_tokens = self.max_new_tokens(prompt_token_ids, max_tokens)
        params = self.params(seed=seed, max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        try:
            async with self.gate:  # in order of arrival, so that no request waits for ever
                if adapter != self.using:
                    await self.idle.wait()
                    self.using = adapter
                lora = None if adapter is None else await self._use_adapter(adapter)
                self.running += 1
                self.idle.clear()
            try:
                async for output in self.llm.generate({"prompt_token_ids": prompt_token_ids}, params,
                                                      str(next(self.numbers)), lora_request=lora, priority=priority):
                    completion = output.outputs[0]  # FINAL_ONLY: the only one
            finally:
                self.running -= 1
                if not self.running:
                    self.idle.set()
        except self.dead as error:
            raise EngineDead(f"vLLM's engine is dead ({in_short(error.__cause__ or error)}): {self.log} says more; "
                             f"what is graded is kept, and the same command goes on.{self.advice}") from None
        if completion.finish_reason not in ("stop", "length"):  # "abort": the engine was told to end
            raise EngineDead(f"vLLM's engine was stopped from outside: {self.log} says more; what is graded is kept, "
                             "and the same command goes on.")
        ids, logprobs = list(completion.token_ids), list(completion.logprobs.logprobs)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        # vLLM's own clock: what it takes to go on after another request took its memory counts too.
        seconds = output.metrics.last_token_ts - output.metrics.scheduled_ts
        return Sample(ids, text, logprobs, completion.finish_reason, len(prompt_token_ids), seconds)

    async def _use_adapter(self, adapter):
        """The request for an adapter folder. Another one than before takes its place when nothing runs, under a new
        name and id, and the engine must then hold it alone and no cached keys and values: vLLM keeps both by name."""
        check_adapter(adapter, self.settings.model)
        path = os.path.realpath(adapter)
        weights = os.path.join(path, "adapter_model.safetensors")
        version = (path, os.stat(weights).st_mtime_ns)
        if version == self.version:
            return self.lora
        await self.idle.wait()
        with open(weights, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        number = next(self.numbers)
        new = self.lora_request(f"{number}-{digest}", number, path)
        old, self.lora, self.version = self.lora, None, None  # none until vLLM is known to have the new one
        await self._swap(old, new, adapter)
        self.adapters.append({"name": new.lora_name, "id": number, "path": path, "sha256": digest})
        self.lora, self.version = new, version
        return new

    async def _swap(self, old, new, adapter):
        """Give vLLM the request `new` for the folder `adapter` instead of `old`. Errors: BadInput, EngineDead."""
        try:
            if old:
                await self.llm.remove_lora(old.lora_int_id)
            await self.llm.add_lora(new)
            loaded = set(await self.llm.list_loras())
            cleared = await self.llm.reset_prefix_cache()
        except self.dead:
            raise
        except Exception as error:  # raised in the engine's process, of any type
            raise BadInput(f"vLLM did not take the adapter {adapter} ({in_short(error)}): is it a LoRA "
                           f"adapter of rank {self.MAX_LORA_RANK} or less for this model?") from None
        if loaded != {new.lora_int_id} or not cleared:
            raise BadInput(f"vLLM did not take the adapter {adapter}: it holds {sorted(loaded)} instead of "
                           f"{new.lora_int_id}, and its prefix cache was{'' if cleared else ' not'} cleared; the same "
                           "command goes on.")

    @contextlib.asynccontextmanager
    async def resting(self):
        """A block in which the memory of vLLM's keys and values is free; weights and adapters stay, so the next request
        finds them as they were. It empties the prefix cache with them."""
        if not self.settings.rests:
            yield
            return
        # vLLM refuses to release what a request may still read.
        await self._call(self.llm.pause_generation(mode="wait", clear_cache=False))
        await self._call(self.llm.release_kv_cache_memory())
        yield
        # What the trainer no longer needs; the engine could not have it else.
        torch.cuda.empty_cache()
        if not await self._call(self.llm.wake_up(["kv_cache"])):
            raise EngineDead(f"vLLM did not take back its cache: {self.log} says more; --keep-cache lets it keep it; "
                             "the same command goes on.")

    async def _call(self, coroutine):
        try:
            return await coroutine
        except Exception as error:  # raised in the engine's process, of any type
            raise EngineDead(f"vLLM failed to give back or take its cache ({in_short(error)}): {self.log} says more; "
                             "--keep-cache lets it keep it; the same command goes on.") from None

    def close(self):
        self.llm.shutdown(timeout=2)  # seconds until its processes are killed: on a CPU they wait for one another
        self.llm = None

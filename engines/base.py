"""What both engines share: the tokenizer and the window, a completion, seeds, loading with one sentence."""
import asyncio
import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass

from common.errors import BadInput, ContextTooLong


class EngineDead(BadInput):
    """The engine's process is gone; what is graded is kept, and the same command goes on."""


@dataclass
class Sample:
    """One completion."""
    token_ids: list        # as sampled, the end-of-sequence token included when finish_reason is "stop"
    text: str              # special tokens skipped
    logprobs: list         # log mu of each token: after temperature and top-p; [] of a server that has none
    finish_reason: str     # "stop" | "length"
    prompt_tokens: int
    seconds: float = 0.0   # in the engine, from its admission into the batch to its last token: no waiting in the queue

    def log_mu(self):
        """`logprobs`; BadInput if the engine has none."""
        if not self.logprobs:
            raise BadInput("the server gives no log-probabilities of after temperature and top-p, which this needs: "
                           "start it with --logprobs-mode processed_logprobs.")
        return self.logprobs

    def truncated(self, max_tokens):
        """Whether the limit ended it; one that ends on its very last token counts too."""
        return self.finish_reason == "length" or len(self.token_ids) >= max_tokens


def request_seed(run_seed, problem_id, step, kind):
    """Decoding seed of one request: a fixed function of its arguments, never of timing (section 3.1).

    `kind` is "answer", "draft", "student", "test" ...; run seed s shifts every seed by (s - 1) * 10^8.
    """
    digest = hashlib.sha256(json.dumps([problem_id, step, kind]).encode()).digest()
    return int.from_bytes(digest[:7], "big") + (run_seed - 1) * 10**8


class Engine:
    """The tokenizer, the chat template and the window, which both engines treat alike."""

    def __init__(self, settings):
        from transformers import AutoConfig, AutoTokenizer
        self.settings = settings
        self.gpus = settings.tensor_parallel * settings.data_parallel
        self.tokenizer = load(AutoTokenizer, settings.model)
        self.tokenizer.model_max_length = 10**9  # transformers warns of longer texts: `max_new_tokens` says it better
        if not self.tokenizer.chat_template:
            raise BadInput(f"{settings.model} has no chat template: use an instruct model, or save a chat_template "
                           "with its tokenizer.")
        if not self.encode([{"role": "user", "content": "1"}]):
            raise BadInput(f"{settings.model} has no tokenizer: copy the files of its tokenizer beside its weights.")
        self.config = load(AutoConfig, settings.model).get_text_config()
        self.window = settings.max_model_len or getattr(self.config, "max_position_embeddings", None)
        if self.window is None:
            raise BadInput(f"{settings.model} does not say how long its window is: say it with --max-model-len.")
        self.stop_ids = stop_token_ids(settings.model, self.tokenizer, self.config)

    def encode(self, messages):
        """Token ids of a dialogue with the generation prompt; Olmo's template has no thinking to switch off.

        The template's marks in a text, such as <|im_start|> in an answer, stay text: no turn begins or ends there.
        """
        try:
            return encode_dialogue(self.tokenizer, messages, self.marks)
        except Exception as error:  # a template's own, such as that it knows no system turn
            raise BadInput(f"the chat template of {self.settings.model} does not take these turns "
                           f"({in_short(error)}): use an instruct model with another template.") from None

    @functools.cached_property
    def marks(self):
        """The tokens that a text may not become: the special ones, and those that the template writes."""
        written = str(self.tokenizer.chat_template)
        turns = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]
        for dialogue in (turns, turns[1:]):
            with contextlib.suppress(Exception):  # of a template that takes no system turn
                written += self.tokenizer.apply_chat_template(dialogue, tokenize=False)
        added = self.tokenizer.added_tokens_decoder.values()
        return sorted({str(token) for token in added if token.special or str(token) in written})

    @contextlib.asynccontextmanager
    async def resting(self):
        """A block that samples nothing: the engine gives back what memory it can."""
        yield

    def max_new_tokens(self, prompt_token_ids, max_tokens):
        """Tokens that a response may have: the limit, or what the window leaves. Errors: ContextTooLong."""
        length = len(prompt_token_ids)
        if length >= self.window:
            # What helps depends on whose context it is: who catches it says it.
            raise ContextTooLong(f"its context of {length} tokens does not fit the model's window of {self.window}.")
        return min(max_tokens, self.window - length)


def encode_dialogue(tokenizer, messages, marks):
    """Token ids of a dialogue; `marks` in its texts are encoded as the characters that they are."""
    as_ids = {"add_generation_prompt": True, "enable_thinking": False}
    found = [mark for mark in marks if any(mark in message["content"] for message in messages)]
    if not found:
        return tokenizer.apply_chat_template(messages, return_dict=False, **as_ids)
    free = "\ue000"  # a character for private use, as often as it takes to be in no text
    while any(free in message["content"] for message in messages):
        free += "\ue000"
    place = re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True))))
    hidden = [message | {"content": place.sub(lambda mark: f"{free}{found.index(mark[0])}{free}", message["content"])}
              for message in messages]
    rendered = tokenizer.apply_chat_template(hidden, tokenize=False, **as_ids)
    # A mark in two halves, in the texts before and after, is none.
    before, *rest = re.split(f"{free}([0-9]+){free}", rendered)
    texts = [before]
    for number, after in zip(rest[::2], rest[1::2]):
        mark = found[int(number)]
        half = len(mark) // 2
        texts[-1] += mark[:half]
        texts.append(mark[half:] + after)
    return [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False)]


def load(auto_class, model, **kwargs):
    """`auto_class.from_pretrained(model)`, with one sentence instead of a traceback when that cannot be loaded."""
    show_download_bars_only()
    try:
        return auto_class.from_pretrained(model, **kwargs)
    except Exception as error:  # of any type: files may be missing, torn, of another shape
        raise not_loaded(model, error) from None


def fetch_weights(model):
    """-> the folder of a whole model: if need be, it is fetched from the Hub with a bar. Errors: BadInput.

    Of the processes of a machine (the ranks of torchrun) one fetches; the others wait, and find it.
    """
    if os.path.isdir(model):
        return model
    from huggingface_hub import constants
    from huggingface_hub.utils import WeakFileLock
    lock = os.path.join(constants.HF_HUB_CACHE, ".locks", model.replace("/", "--") + ".lock")
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a cache that is only read needs no lock
                os.makedirs(os.path.dirname(lock), exist_ok=True)
                stack.enter_context(WeakFileLock(lock))
            folder = from_hub(model, "*.safetensors")
            if not glob.glob(f"{folder}/*.safetensors"):
                folder = from_hub(model, "*.bin")
    except Exception as error:  # as above
        raise not_loaded(model, error) from None
    if not glob.glob(f"{folder}/*.safetensors") + glob.glob(f"{folder}/*.bin"):
        raise not_loaded(model, "it has no weights")
    return folder


def from_hub(model, weights):
    """-> the folder of a model of the Hub in its cache, with those of its files that `weights`, a pattern, names."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import DryRunError
    from huggingface_hub.utils import disable_progress_bars
    patterns = [weights, "*.json", "*.txt", "*.jinja", "*.model"]
    disable_progress_bars()
    with contextlib.suppress(DryRunError):  # the Hub is out of reach: what is here must do
        files = snapshot_download(model, allow_patterns=patterns, dry_run=True)
        sizes = [file.file_size or 0 for file in files if file.will_download]
        if sizes:
            print(f"downloading {sum(sizes) / 2**30:.2f} GiB of {model} to {constants.HF_HUB_CACHE} (HF_HOME names "
                  "another place)", file=sys.stderr, flush=True)
    show_download_bars_only()
    return snapshot_download(model, allow_patterns=patterns)


def not_loaded(model, error):
    """-> the BadInput for a model that a library failed to load with `error`."""
    what = "cannot be loaded" if os.path.isdir(model) else "is neither a folder here nor a model that the Hub gave"
    return BadInput(f"--model {model} {what} ({in_short(error)}): name the folder of a whole checkpoint, or, where "
                    "the Hub can be reached, a Hub id.")


def show_download_bars_only():
    """No bar for reading weights, as a run has a bar of its own; the Hub's bars, with size and time left, stay."""
    from huggingface_hub import constants
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging
    logging.disable_progress_bar()  # which turns off the Hub's too
    if not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


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


def stop_token_ids(model, tokenizer, config):
    """The tokenizer's end of sequence and all that the model's generation_config.json names (Qwen3 has two).

    A checkpoint without that file names them in its config.json.
    """
    from transformers import GenerationConfig
    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError as error:
        if os.path.exists(os.path.join(model, "generation_config.json")):
            raise BadInput(f"the generation_config.json of {model} cannot be read ({in_short(error)}): put back a "
                           "whole one.") from None
        ids = getattr(config, "eos_token_id", None)
    ids = ids if isinstance(ids, list) else [ids]
    return sorted({*ids, tokenizer.eos_token_id} - {None})


def count_parameters(config):
    """Of the model that a configuration describes; makes no weights."""
    import torch
    from transformers import AutoModelForCausalLM
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())


def token_bytes(config, itemsize):
    """Bytes that the keys and values of one token take in all layers."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_dim * itemsize


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

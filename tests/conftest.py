"""Small checkpoints that the tests make themselves: random weights, a byte-level tokenizer, a ChatML template."""
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test never asks the Hub
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as engines/ does: before torch is loaded
# A shell that starts the tests in its background lets them, and all that they start, ignore Ctrl-C: some send one.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch

CHATML = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# Operations one after another in a forward pass of make_model's models: twice 850 in the layers (64 to 192 in a product
# or norm, up to 60 keys in the attention), 64 in the head, 260 in its softmax. A backward pass has as many again.
TOY_TERMS = 2_000


def tolerance(dtype, terms, condition=1):
    """The relative difference that rounding may make between two ways to add up `terms` numbers, whatever order, width
    and fused products a processor takes: terms x eps, as a rounding errs by eps / 2 at most. The usual one grows as the
    root of `terms`; the rest is room for terms that cancel, and condition (their size over the result's) is more."""
    return torch.finfo(dtype).eps * terms * condition


def make_tokenizer():
    """A byte-level tokenizer: 256 bytes and four special tokens, so that any text has tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   additional_special_tokens=["<|im_start|>"])
    fast.chat_template = CHATML
    return fast


def make_model(folder, seed=0, window=2048, template=True, architecture="qwen3", dtype=torch.float32, **changes):
    """Save a random two-layer model (hidden 64) with its tokenizer into `folder`; returns the folder as a string."""
    from transformers import AutoModelForCausalLM, Olmo3Config, Qwen3Config

    tokenizer = make_tokenizer()
    if not template:
        tokenizer.chat_template = None
    size = dict(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=window, eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id, bos_token_id=None)
    if architecture == "qwen3":
        config = Qwen3Config(**{**size, "head_dim": 16, "tie_word_embeddings": True, **changes})
    else:
        config = Olmo3Config(**{**size, "tie_word_embeddings": False, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    for parameter in model.parameters():  # larger than the usual start, so that the distribution is far from flat
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_adapter(model_folder, folder, seed, scale=0.1):
    """Save a random LoRA adapter (rank 8) of the model into `folder`; large enough to move every distribution."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=scale)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="session")
def toy_adapters(toy_model, tmp_path_factory):
    return [make_adapter(toy_model, tmp_path_factory.mktemp("toy") / f"adapter{i}", seed=i) for i in range(2)]

"""What training takes of a GPU beside the engine, and which layers the backward pass recomputes so that it fits."""
import math

import torch

from common.errors import BadInput
from loss import CHUNK_BYTES

# Bytes: the contexts of both processes; and what vLLM without its cache has beside the weights (graphs, buffers).
CUDA, VLLM = 2 * 2**30, 8 * 2**30


def memory_budget(config, tokens, student_tokens, recompute_every, world=1, *, lora_rank):
    """What training takes of one GPU in bfloat16, {part: bytes}; the engine's share comes on top.

    config: the model's; tokens: student and teacher rows of the largest micro-batch; student_tokens: those of the
    student's rows alone, whose activations are kept for the backward pass. A recomputed layer keeps its input, another
    one what autograd saves of its operations, counted for the two families (a test measures it); one layer is at work
    on `tokens`. Attention is taken not to store its scores (flash, or sdpa's fused kernels).
    """
    config = config.get_text_config()
    hidden, ffn, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    q, kv = attention_widths(config)
    recomputed = math.ceil(layers / recompute_every) if recompute_every else 0
    layer = layer_activations(config, lora_rank)
    activations = recomputed * 2 * hidden + (layers - recomputed) * layer
    # A LoRA pair has rank * (inputs + outputs) weights: queries and output, keys and values, the feed-forward net.
    pairs = 2 * (hidden + q) + 2 * (hidden + kv) + 3 * (hidden + ffn)
    lora = lora_rank * layers * pairs
    whole, sharded = backbone_weights(config, world)
    return {
        "weights": 2 * whole + 2 * sharded // world,
        # Weight, gradient and two moments in float32, a copy in bfloat16.
        "adapter": 18 * lora // world,
        "activations": student_tokens * activations + tokens * layer,
        # Four buffers of the logits, and the hidden states of both.
        "loss": 4 * CHUNK_BYTES["cuda"] + tokens * 8 * hidden,
    }


def attention_widths(config):
    """(width of all queries of a token, width of all its keys)."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return head * config.num_attention_heads, head * config.num_key_value_heads


def layer_activations(config, lora_rank):
    """Bytes a token that autograd saves of a layer that is not recomputed."""
    hidden, (q, kv) = config.hidden_size, attention_widths(config)
    if config.model_type == "olmo3":
        # It normalizes after each block, and over all heads at once.
        ends = 8 * hidden + 14 * q
    else:
        ends = 12 * hidden + 10 * q
    return ends + 8 * kv + 8 * config.intermediate_size + 14 * lora_rank


def backbone_weights(config, world):
    """(weights that every rank has whole, weights that the ranks share): numbers, not bytes."""
    hidden, (q, kv) = config.hidden_size, attention_widths(config)
    linear = config.num_hidden_layers * (hidden * (2 * q + 2 * kv) + 3 * hidden * config.intermediate_size)
    table = config.vocab_size * hidden  # the head, or an embedding that is not tied to it
    if config.tie_word_embeddings:
        return table, linear
    if world > 1:
        return table, linear + table
    return 2 * table, linear


def waiting_trainer(config, dtype, *, lora_rank):
    """What the trainer takes of one GPU while the engine samples, {part: bytes}; dtype: "bfloat16" | "float32".

    With several ranks too: each has the whole model before it is shared out.
    """
    budget = memory_budget(config, 0, 0, 1, lora_rank=lora_rank)
    scale = 2 if dtype == "float32" else 1
    return {"CUDA": CUDA, "weights": scale * budget["weights"], "adapter": scale * budget["adapter"]}


def engine_share(config, dtype, total, *, lora_rank):
    """Share of a GPU of `total` bytes for an engine that rests during updates: what the trainer, which waits while it
    samples, and a free tenth leave."""
    return 0.9 - sum(waiting_trainer(config, dtype, lora_rank=lora_rank).values()) / total


def recomputed_layers(config, settings, args, openings, *, lora_rank, world):
    """N: every Nth layer is recomputed, 0: none. It is --grad-checkpoint-every, or the least that leaves a tenth free.

    config: the model's; settings: the engine's; args: UpdateArgs; openings: lengths in tokens. Errors: BadInput, if a
    GPU cannot hold the largest micro-batch beside the engine.
    """
    if not torch.cuda.is_available():
        return args.recompute_every or 0
    total = torch.cuda.get_device_properties(0).total_memory
    longest = max(openings) + settings.max_tokens
    tokens = max(args.micro_tokens, 2 * longest)
    student_tokens = max(args.micro_tokens // 2, longest)
    scale = 2 if settings.dtype == "float32" else 1
    engine = (settings.gpu_memory or 0) * total
    if settings.rests:
        waiting = {"engine": engine} | waiting_trainer(config, settings.dtype, lora_rank=lora_rank)
        if sum(waiting.values()) > total:
            raise BadInput(too_large(waiting, total))
        engine = VLLM + scale * 2 * sum(backbone_weights(config.get_text_config(), 1))
    candidates = (0, 4, 2, 1) if args.recompute_every is None else (args.recompute_every,)
    for every in candidates:
        training = memory_budget(config, tokens, student_tokens, every, world, lora_rank=lora_rank)
        parts = {"engine": engine, "CUDA": CUDA}
        parts |= {name: scale * size for name, size in training.items()}
        if sum(parts.values()) <= 0.9 * total:
            return every
    if sum(parts.values()) > total:
        raise BadInput(too_large(parts, total))
    return every


def too_large(parts, total):
    """The sentence; parts: {part: bytes}, total: bytes of the GPU."""
    sizes = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items())
    return (f"the update needs {sum(parts.values()) / 2**30:.1f} GiB and the GPU has {total / 2**30:.1f} ({sizes}): "
            "take --grad-checkpoint-every 1, or smaller --gpu-memory, --max-tokens or --micro-tokens, or torchrun on "
            "more GPUs.")

"""What training takes of a GPU beside the engine, and which layers the backward pass recomputes so that it fits."""
import math

import torch

from common.errors import BadInput
from loss import CHUNK_BYTES


def memory_budget(config, tokens, student_tokens, checkpoint_every, world=1, *, lora_rank):
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
    layer = 14 * lora_rank + (18 * d + 10 * q if before else 14 * d + 14 * q) + 8 * kv + 8 * ffn
    lora = lora_rank * layers * ((d + q) * 2 + (d + kv) * 2 + (d + ffn) * 3)
    linear = layers * (d * (2 * q + 2 * kv) + 3 * d * ffn)
    checkpointed = math.ceil(layers / checkpoint_every) if checkpoint_every else 0
    whole = 2 * config.vocab_size * d * (1 if config.tie_word_embeddings or world > 1 else 2)  # head, embedding
    sharded = linear + (config.vocab_size * d if world > 1 and not config.tie_word_embeddings else 0)
    kept = checkpointed * 2 * d + (layers - checkpointed) * layer
    return {"weights": whole + 2 * sharded // world,
            "adapter": 18 * lora // world,  # float32 weight, gradient and two moments, bfloat16 copy
            "activations": student_tokens * kept + tokens * layer,
            "loss": 4 * CHUNK_BYTES["cuda"] + tokens * 8 * d}


def recomputed_layers(config, settings, args, openings, *, lora_rank, world):
    """--grad-checkpoint-every, or the least recomputation that leaves a tenth of the GPU free. BadInput if a GPU cannot
    hold the largest micro-batch beside the engine.

    config: the model's; settings: the engine's; args: the update's (policy.UpdateArgs); openings: lengths in tokens.
    """
    given = args.recompute_every
    if not torch.cuda.is_available():
        return given or 0
    total, longest = torch.cuda.get_device_properties(0).total_memory, max(openings) + settings.max_tokens
    tokens, student_tokens = max(args.micro_tokens, 2 * longest), max(args.micro_tokens // 2, longest)
    size = 2 if settings.dtype == "float32" else 1
    for every in (0, 4, 2, 1) if given is None else (given,):
        parts = memory_budget(config, tokens, student_tokens, every, world, lora_rank=lora_rank)
        parts = {"engine": settings.gpu_memory * total, "CUDA": 2 * 2**30} | {k: size * v for k, v in parts.items()}
        if sum(parts.values()) <= 0.9 * total:
            return every
    if sum(parts.values()) > total:
        told = ", ".join(f"{name} {taken / 2**30:.1f}" for name, taken in parts.items())
        raise BadInput(
            f"the update needs {sum(parts.values()) / 2**30:.1f} GiB and the GPU has {total / 2**30:.1f} ({told}): "
            "take --grad-checkpoint-every 1, or smaller --gpu-memory, --max-tokens or --micro-tokens, or torchrun on "
            "more GPUs.")
    return every

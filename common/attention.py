"""Attention of a row in which sequences stand one after another, without padding: each sees itself alone.

transformers knows three kernels of it here. "flash_attention_2" is that of the package flash-attn; "varlen" is torch's
own of the same kind, which needs no build; "sdpa" fills a dense mask [T, T] from the positions, anywhere.
"""
import importlib.util

import torch
from torch.nn.attention import activate_flash_attention_impl, varlen
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

WITHOUT_MASK = {"flash_attention_2", "varlen"}


def attention_kernel(dtype, device):
    """transformers' name of the fastest kernel that can compute there: those without a mask take 16 bits, on CUDA."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return "sdpa"
    if importlib.util.find_spec("flash_attn"):
        return "flash_attention_2"
    if importlib.util.find_spec("flash_attn_interface"):  # the wheel of FlashAttention 3, for Hopper
        activate_flash_attention_impl("FA3")
    return "varlen"


def ends_of(lengths, device):
    """What the kernels without a mask must know of sequences of these `lengths`; counted once for all layers.

    Left out, each layer would look for it in the positions, and wait for the GPU.
    """
    ends = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)            # [sequences + 1]
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": max(lengths), "max_length_k": max(lengths)}


def varlen_attention(module, query, key, value, mask, scaling=None, sliding_window=None, *, cu_seq_lens_q, max_length_q,
                     **_):
    """query [1, heads, T, d], key and value [1, key heads, T, d] -> [1, T, heads, d]."""
    # A norm may have left float32, which the kernel does not take.
    query, key, value = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))  # [T, heads, d]
    # As a mask has it, a window of W holds the token itself and W - 1 before it.
    left = -1 if sliding_window is None else sliding_window - 1
    output = varlen.varlen_attn(query, key, value, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q,
                                scale=scaling, window_size=(left, 0), enable_gqa=True)
    return output[None], None


AttentionInterface.register("varlen", varlen_attention)
AttentionMaskInterface.register("varlen", flash_attention_mask)  # none

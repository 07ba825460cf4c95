"""Checkpoints of an update: step_K/ with the adapter and what a resume needs, whole or not at all.

`policy` is policy.py's Policy; under torchrun every rank takes part, and rank 0 writes.
"""
import contextlib
import io
import json
import os
import shutil

import torch
import torch.distributed as dist

from common import journal
from common.errors import BadInput
from common.ranks import all_ranks_ok, is_main
from engines.base import in_short


def newest_step(folder):
    """The last K for which `folder`/step_K stands, or 0; it has that name when all is in it."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = [name.removeprefix("step_") for name in names if name.startswith("step_")]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


@contextlib.contextmanager
def whole_folder(path):
    """The block fills the folder that it is given, which then becomes `path`: whole or not at all.

    A folder of an earlier crash is removed.
    """
    part = os.path.join(os.path.dirname(path), "part")
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    yield part
    os.replace(part, path)


def save_checkpoint(policy, optimizer, folder, step, more=None):
    """Write `folder`/step_K, then the newest adapter into `folder`; keep the last two steps.

    more: {name: whole tensor or number} besides; `load_checkpoint` returns it. Every rank takes
    part; rank 0 writes. Errors: BadInput, if the disk takes no more.
    """
    state = optimizer_state(policy, optimizer)
    weights = adapter_weights(policy)
    with all_ranks_ok():
        if is_main():
            resumed = {"step": step, "optimizer": state, "rng": torch.get_rng_state()}
            resumed |= {"more": more} if more else {}
            contents = checkpoint_files(policy, resumed, weights)
            write_checkpoint(folder, step, contents)


def checkpoint_files(policy, resumed, weights):
    """{name: bytes} of a checkpoint: the adapter as PEFT keeps it, and what a resume needs."""
    from safetensors.torch import save as safetensors_bytes
    resume_state = io.BytesIO()
    torch.save(resumed, resume_state)
    config = policy.model.peft_config["default"].to_dict()
    config = {key: sorted(v) if isinstance(v, set) else v for key, v in config.items()}
    return {
        "adapter_model.safetensors": safetensors_bytes(weights, {"format": "pt"}),
        "adapter_config.json": json.dumps(config, indent=1).encode(),
        "resume.pt": resume_state.getbuffer(),
    }


def write_checkpoint(folder, step, contents):
    """Write the files {name: bytes} of step_K, and those of the newest adapter."""
    try:
        with whole_folder(os.path.join(folder, f"step_{step}")) as part:
            for name, content in contents.items():
                journal.write_bytes(os.path.join(part, name), content)
        update_latest(folder, step)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}): make room, then the same "
                       f"command goes on after step {newest_step(folder)}.") from None


def optimizer_state(policy, optimizer):
    """The optimizer's state by the names of the parameters, gathered on rank 0."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
    options = StateDictOptions(full_state_dict=True, cpu_offload=dist.is_initialized(),
                               ignore_frozen_params=True)
    return get_optimizer_state_dict(policy.model, optimizer, options=options)


def adapter_weights(policy):
    """{PEFT's name: float32 tensor on the CPU} of the adapter, gathered on every rank."""
    from peft import get_peft_model_state_dict
    # PEFT would look the base model up on the Hub, to see whether its embedding was resized.
    state = get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    return {name: whole(w).detach().cpu().contiguous() for name, w in state.items()}


def update_latest(folder, step):
    """Make the adapter of step_K that of `folder`; leave no steps but the last two.

    Does no harm when done twice.
    """
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        with open(os.path.join(folder, f"step_{step}", name), "rb") as file:
            journal.write_bytes(os.path.join(folder, name), file.read())
    newest = (f"step_{step}", f"step_{step - 1}")
    for name in os.listdir(folder):
        if name.startswith(("step_", "part")) and name not in newest:
            shutil.rmtree(os.path.join(folder, name))


def load_checkpoint(policy, optimizer, path):
    """Put back the optimizer and the random state of a checkpoint; load_policy read its adapter.

    -> `more` of save_checkpoint. Errors: BadInput, if it is damaged.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
    with all_ranks_ok():
        try:
            content = torch.load(os.path.join(path, "resume.pt"), weights_only=True)
        except Exception as error:  # a damaged file can raise nearly anything
            raise damaged(path, error) from None
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    set_optimizer_state_dict(policy.model, optimizer, content["optimizer"], options=options)
    torch.set_rng_state(content["rng"])
    return content.get("more")


def damaged(path, error):
    """The BadInput of a step_K that is not what `save_checkpoint` wrote."""
    return BadInput(f"the checkpoint {path} is damaged ({in_short(error)}): put it back, or delete "
                    "that folder (distill.py then goes on after the step before it).")


def whole(tensor):
    """The tensor itself; of one that is sharded, all of it on every rank."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

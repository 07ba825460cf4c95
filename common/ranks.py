"""Ranks of torchrun; without it there is one."""
import atexit
import contextlib
import os
import sys

import torch
import torch.distributed as dist

from common.errors import BadInput, exit_with_sentence


def rank_and_world():
    """(the number of this rank, the number of ranks)."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def is_main():
    """Whether this is rank 0, which alone prints and writes."""
    return rank_and_world()[0] == 0


def init_ranks():
    """Under torchrun: give this rank one GPU of its node, for its engine and its training, and join the others.

    Errors: BadInput, if there are more ranks than GPUs.
    """
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        return
    gpus = torch.cuda.device_count()
    if gpus:
        take_one_gpu(gpus)
    # Objects and metrics go through the CPUs.
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    # However this rank ends: gloo's threads abort a process that keeps them to its end.
    atexit.register(close_ranks)


def take_one_gpu(gpus):
    """Leave this rank one of the `gpus` that the job may use on this node."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if local_ranks > gpus:
        raise BadInput(f"torchrun starts {local_ranks} ranks on a node with {gpus} GPUs: --nproc_per_node {gpus} is "
                       "the most.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    # CUDA reads it at its first use, which is later.
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local_rank]
    # Among the GPUs that this rank sees.
    os.environ["LOCAL_RANK"] = "0"


def close_ranks():
    if dist.is_initialized():
        dist.destroy_process_group()


def run_rank(main):
    """`exit_with_sentence(main)`, after which a rank of torchrun is gone at once.

    One that took itself apart around the threads of its process groups was seen to abort, once in some dozens of runs.
    """
    status = 0
    try:
        exit_with_sentence(main)
    except SystemExit as end:
        status = end.code
    if not dist.is_torchelastic_launched():
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def all_gather(values):
    """The lists of all ranks, joined in their order; every rank takes part."""
    if not dist.is_initialized():
        return values
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]


@contextlib.contextmanager
def all_ranks_ok():
    """A block that every rank runs: a BadInput on any of them is said once, by rank 0, and ends them all."""
    messages = []
    try:
        yield
    except BadInput as error:
        if not dist.is_initialized():
            raise
        messages = [str(error)]
    messages = all_gather(messages)
    if messages:
        print_once(messages[0], sys.stderr)
        # torchrun ends the others as soon as one exits: none does before it is said.
        all_gather([])
        sys.exit(2)


def print_once(text, file=None):
    """Print on rank 0."""
    if is_main():
        print(text, file=file, flush=True)

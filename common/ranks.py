"""Ranks of torchrun; without it there is one."""
import atexit
import contextlib
import os
import sys

import torch
import torch.distributed as dist

from common.errors import BadInput, exit_with_sentence


def rank_and_world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def join_ranks():
    """Under torchrun: give this rank one GPU of its node, for its engine and its training, and join the others."""
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        return
    gpus, local, ranks = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus:
        if ranks > gpus:
            raise BadInput(f"torchrun starts {ranks} ranks on a node with {gpus} GPUs: --nproc_per_node {gpus} is "
                           "the most.")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local]  # CUDA reads it at its first use, later
        os.environ["LOCAL_RANK"] = "0"                                  # among the GPUs that this rank sees
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")   # objects and metrics go through the CPUs
    atexit.register(leave_ranks)  # however this rank ends: gloo's threads abort a process that keeps them to its end


def leave_ranks():
    if dist.is_initialized():
        dist.destroy_process_group()


def run_rank(main):
    """`exit_with_sentence(main)`, after which a rank of torchrun is gone at once: one that took itself apart
    around the threads of its process groups was seen to abort, once in some dozens of runs."""
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


def gathered(values):
    """The lists of all ranks, joined."""
    if not dist.is_initialized():
        return values
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]


@contextlib.contextmanager
def together():
    """A block that every rank runs: a BadInput on any of them is said once, by rank 0, and ends them all."""
    said = []
    try:
        yield
    except BadInput as error:
        if not dist.is_initialized():
            raise
        said = [str(error)]
    if said := gathered(said):
        print_once(said[0], sys.stderr)
        gathered([])  # torchrun ends the others as soon as one exits: not before it is said
        sys.exit(2)


def print_once(text, file=None):
    if rank_and_world()[0] == 0:
        print(text, file=file, flush=True)

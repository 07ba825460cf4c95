"""Sampling: one request in, one completion with its log-probabilities out.

    sample = await engine.sample(prompt_token_ids, seed=..., max_tokens=..., temperature=..., top_p=..., adapter=None)

Three engines answer it: `VLLMEngine` (vllm.py), vLLM's continuous batching (App. B.4, C.5); `ServedEngine` (served.py),
a server elsewhere; `HFEngine` (hf.py), a small one over transformers for machines without vLLM. What they share is in
base.py; their settings and flags are here.

All return the log-probability that a token was really drawn with, that is after temperature and top-p: mu of Eq. 3.

torch and transformers are loaded by the functions that need them: --help and a mistyped flag need neither.
"""
import dataclasses
import os
import pathlib
import sys
import time
from dataclasses import dataclass

# Before torch is loaded: threads that spin while they wait take the cores from the graders beside the engine.
# Measured on two busy cores: 7,070 tokens/s against 460.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from common.errors import BadInput
from common.flags import above_zero, positive_int
from common.journal import read_json, write_json
from common.outputs import load_json
from engines.base import load

# App. B.4 and C.1 of the paper: prompt family, decoding, response limits (`lcb`: there), and N of the FLOPs formula.
# shape: type, layers and width in config.json, by which a copy in a folder is known.
MODELS = {
    "Qwen/Qwen3-8B": dict(
        family="qwen3", temperature=1.0, top_p=1.0, max_tokens=8192, lcb=8192, parameters=8.19e9,
        shape=("qwen3", 36, 4096)),
    "allenai/Olmo-3-7B-Instruct": dict(
        family="olmo3", temperature=0.6, top_p=0.95, max_tokens=8192, lcb=16384, parameters=7.30e9,
        shape=("olmo3", 32, 4096)),
}
DEFAULT_MODEL = "Qwen/Qwen3-8B"
MADE_FROM = "made_from.json"  # beside the weights that `distill.py --merge` writes


@dataclass(frozen=True)
class Settings:
    """What a run samples with, resolved from the command line, the model and the bench."""
    model: str
    family: str            # "qwen3" | "olmo3": whose prompt texts
    engine: str            # "vllm" | "hf" | "served"
    dtype: str             # "bfloat16" | "float32"
    temperature: float
    top_p: float
    max_tokens: int        # response limit, tokens
    gpu_memory: float | None  # share of the GPU's memory that the engine takes; None: what the trainer leaves
    max_model_len: int | None
    tensor_parallel: int
    data_parallel: int
    servers: tuple = ()    # URLs, with "served"
    patience: float = 1800.0
    known_as: str | None = None  # the one of MODELS that it is, or was made from
    known_by: str = ""           # how that is known, for a reader
    async_scheduling: bool = True  # vLLM's
    rests: bool = False    # whether vLLM gives back the memory of its cache during updates

    def kept(self):
        """What the files of a run keep: it may go on with other servers, other memory, no asynchronous scheduling."""
        values = dataclasses.asdict(self)
        for name in ("servers", "patience", "known_as", "known_by", "async_scheduling", "gpu_memory", "rests"):
            del values[name]
        return values


def settings(args, bench, adapters=False, trains=False):
    """Resolve the flags of `add_arguments` for `bench`; errors: BadInput. Prints nothing: `describe` does.

    adapters: as for `start`; trains: whether this process trains beside the engine.
    """
    import torch
    from transformers import AutoConfig
    cuda = torch.cuda.is_available()
    if (args.engine == "served") != bool(args.server):
        raise BadInput("--engine served and --server URL go together: give both, or neither.")
    if args.model is None and not cuda and args.engine != "served":
        raise BadInput(f"there is no CUDA device here, and the default model {DEFAULT_MODEL} needs one: name a small "
                       "model with --model, or run `python tiny.py`, which makes one.")
    model = args.model or DEFAULT_MODEL
    config = load(AutoConfig, model)  # whatever the flags: a mistyped --model is said before anything is fetched
    known_as, known_by, known = what_is_known(model, config)
    dtype = args.dtype or default_dtype(known_as, config)
    engine = engine_for(args, dtype, adapters)
    rests = trains and cuda and engine == "vllm" and not args.keep_cache
    share = (None if rests else 0.4) if trains else 0.9
    resolved = Settings(
        model=model, family=args.family or known.get("family", "qwen3"), engine=engine,
        dtype=dtype,
        temperature=known.get("temperature", 1.0) if args.temperature is None else args.temperature,
        top_p=known.get("top_p", 1.0) if args.top_p is None else args.top_p,
        max_tokens=args.max_tokens or known.get("lcb" if bench == "lcb" else "max_tokens") or known.get(
            "max_tokens", 8192),
        gpu_memory=args.gpu_memory or share, max_model_len=args.max_model_len,
        tensor_parallel=args.tensor_parallel, data_parallel=args.data_parallel, servers=tuple(args.server),
        patience=args.patience, known_as=known_as, known_by=known_by,
        async_scheduling=not args.no_async_scheduling, rests=rests)
    share = args.gpu_memory or 1
    if not 0 <= resolved.temperature < float("inf") or not 0 < resolved.top_p <= 1 or not 0 < share <= 1:
        raise BadInput("--temperature must be at least 0, --top-p and --gpu-memory above 0 and at most 1.")
    return resolved


def engine_for(args, dtype, adapters):
    """Settings.engine, for the flags. Errors: BadInput."""
    import torch
    cuda, parallel = torch.cuda.is_available(), args.tensor_parallel * args.data_parallel > 1
    engine = args.engine
    if engine == "auto":
        engine = "vllm" if cuda else "hf"
    # vLLM's kernels for LoRA on CUDA assert 16 bits a number.
    if engine == "vllm" and cuda and adapters and dtype == "float32":
        if args.engine == "vllm" or parallel:
            raise BadInput("on a GPU vLLM has adapters in bfloat16 alone: take --dtype bfloat16, or --engine hf on one "
                           "GPU.")
        engine = "hf"
    if engine == "hf" and parallel:
        raise BadInput("--tensor-parallel and --data-parallel are vLLM's: add --engine vllm, or leave them out.")
    return engine


def as_run(flags, run, path):
    """`flags`, a dict of those of `add_arguments`; where they are silent, model, family and decoding of a run.

    run: the settings of a run, or a line of its C+; what it does not know stays as it is. path: a file of the run, or
    its folder.
    """
    run = run | run.get("decoding", {})
    names = ("model", "family", "temperature", "top_p", "max_tokens")
    known = {name: run[name] for name in names if name in run}
    if "model" in known:
        known["model"] = model_near(known["model"], path)
    given = {name: value for name, value in flags.items() if value is not None}
    return flags | known | given


def model_near(model, path):
    """A model's Hub id, or its folder, which a run named from the folder that it was started in."""
    for folder in pathlib.Path(path).resolve().parents:
        near = folder / model
        if near.is_dir():
            # Another one of that name may be in the folder where we are: the run's counts.
            return model if os.path.isdir(model) and os.path.samefile(model, near) else str(near)
    return model


def weights_differ(model, other):
    """Whether two folders that are both here hold other weights: other files, or another beginning of one."""
    if not (os.path.isdir(model) and os.path.isdir(other)) or os.path.samefile(model, other):
        return False
    beginnings = [{}, {}]
    for folder, found in zip((model, other), beginnings):
        for path in pathlib.Path(folder).glob("*.safetensors"):
            with open(path, "rb") as file:
                found[path.name] = path.stat().st_size, file.read(1 << 20)
    return beginnings[0] != beginnings[1]


def adapter_run(adapter):
    """What is known of the run that made an adapter: its settings, or the model alone."""
    folder = os.path.abspath(adapter)
    if os.path.basename(folder).startswith("step_"):
        folder = os.path.dirname(folder)
    run, names = os.path.dirname(folder), ("distill.json", "sft.json", "explore.json")  # the last two of baselines/
    if os.path.basename(run) == "updates":
        run, names = os.path.dirname(run), ("explore.json",)
    paths = [os.path.join(run, name) for name in names if os.path.isfile(os.path.join(run, name))]
    if os.path.basename(folder) == "adapter" and paths:
        return read_json(paths[0])["settings"]
    config = load_json(os.path.join(adapter, "adapter_config.json"))
    model = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return {"model": model} if model else {}


def what_is_known(model, config):
    """-> (the one of MODELS that a model is or was made from, or None; how that is known; family, decoding, limits).

    By its Hub id; by what `distill.py --merge` wrote beside its weights; or by the shape in its config.json.
    """
    path = os.path.join(model, MADE_FROM)
    made = load_json(path) if os.path.isfile(path) else {}
    kinds = {"model": str, "family": str, "temperature": (int, float), "top_p": (int, float),
             "max_tokens": int}
    if not isinstance(made, dict) or not all(isinstance(made[name], kinds.get(name, object)) for name in made):
        raise BadInput(f"{path} is damaged: put it back, or delete it and give --family, --temperature, --top-p.")
    text = config.get_text_config()
    shape = tuple(getattr(text, name, None) for name in ("model_type", "num_hidden_layers", "hidden_size"))
    by_shape = next((name for name, known in MODELS.items() if known["shape"] == shape), None)
    known_as, known_by = model, ""
    if made:
        known_as, known_by = made.get("model"), f", made from {made.get('model')}"
    elif model not in MODELS:
        known_as, known_by = by_shape, f" as of {by_shape}, by its config.json" if by_shape else ""
    return (known_as, known_by, MODELS[known_as] | made) if known_as in MODELS else (None, known_by, made)


def write_made_from(settings, folder):
    """Beside merged weights: what they were made from, and how that samples."""
    values = {name: getattr(settings, name) for name in ("family", "temperature", "top_p")}
    # A known model has its limits in MODELS, by the bench.
    if not settings.known_as:
        values["max_tokens"] = settings.max_tokens
    write_json(os.path.join(folder, MADE_FROM), {"model": settings.known_as or settings.model} | values)


def default_dtype(known_as, config):
    """"bfloat16" or "float32": the paper's models run in bfloat16, others in their checkpoint's own numbers.

    Where the processor has no bfloat16, float32.
    """
    own_dtype = getattr(config, "dtype", None)
    if not has_bfloat16():
        return "float32"
    if not known_as and str(own_dtype) == "torch.float32":
        return "float32"
    return "bfloat16"


def has_bfloat16():
    """Whether products of bfloat16 numbers are made in hardware here, by a GPU or by the processor."""
    import torch
    if torch.cuda.is_available():
        return True
    # torch's names for the instructions, on x86 and on arm
    names = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in names)


def bfloat16_slowdown(size=256, repeats=3):
    """How many times longer a product of two [size, size] matrices takes in bfloat16 than in float32, here and now."""
    import torch
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(size, size, dtype=dtype)
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - begin)
        # The fastest: the first one prepares, and others may have the cores.
        seconds[dtype] = min(times)
    return seconds[torch.bfloat16] / seconds[torch.float32]


def describe(s):
    """One line for the reader of a run: what samples, and which defaults were taken."""
    family = s.family + ("" if s.known_as else " (prompt texts; --family names others)")
    return (f"model {s.model}{s.known_by}, family {family}, engine {s.engine}, {s.dtype}, "
            f"temperature {s.temperature:g}, top-p {s.top_p:g}, at most {s.max_tokens} tokens a response")


async def start(settings, adapters=False, folder="."):
    """The engine of `settings`, ready to sample.

    adapters: whether requests will name LoRA adapters. folder: the run's, for the log of vLLM.
    """
    if settings.dtype == "bfloat16" and settings.engine != "served" and not has_bfloat16():
        from common.ranks import print_once
        print_once(f"note: this processor has no bfloat16; a small product took {bfloat16_slowdown():.0f} times as "
                   "long as in float32, which --dtype float32 asks for.", sys.stderr)
    if settings.engine == "hf":
        note_float32(settings, adapters)
        from engines.hf import HFEngine
        engine = HFEngine(settings)
    elif settings.engine == "served":
        from engines.served import ServedEngine
        engine = await ServedEngine.start(settings)
    else:
        from engines.vllm import VLLMEngine
        engine = await VLLMEngine.start(settings, adapters, folder)
    engine.parameters = int(MODELS.get(settings.known_as, {}).get("parameters", engine.parameters))
    return engine


def note_float32(settings, adapters):
    """Say why a GPU samples with the hf engine, where that is why."""
    import torch
    from common.ranks import print_once
    if adapters and settings.dtype == "float32" and torch.cuda.is_available():
        print_once("note: adapters in float32 are sampled by the hf engine, as vLLM has them in bfloat16 alone on a "
                   "GPU; --dtype bfloat16 takes vLLM.", sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------
# Command line of every script that samples


def add_arguments(parser):
    """The flags of explore, distill and evaluate that say what samples, and how."""
    add = parser.add_argument_group("model and engine").add_argument
    add("--model", help=f"Hub id or checkpoint folder (default: {DEFAULT_MODEL}, where there is a GPU)")
    add("--family", choices=["qwen3", "olmo3"], help="whose prompt texts (default: the model's, else qwen3)")
    add("--engine", choices=["auto", "vllm", "hf", "served"], default="auto",
        help="auto: vllm with a GPU, but for adapters in float32, else hf; served: servers that run already")
    add("--server", action="append", default=[], metavar="URL",
        help="of OpenAI's API, the part before /v1; several share the requests (with --engine served)")
    add("--patience", type=above_zero, default=1800.0, metavar="SECONDS",
        help="end the run when no server has answered for so long")
    add("--dtype", choices=["bfloat16", "float32"],
        help="default: bfloat16 for the paper's models, else the checkpoint's own; float32 on a processor that "
             "has no bfloat16")
    add("--max-tokens", type=positive_int, help="response limit in tokens (default: the model's, App. B.4)")
    add("--temperature", type=float, help="default: the model's, App. B.4")
    add("--top-p", type=float, help="default: the model's, App. B.4")
    add("--gpu-memory", type=float, 
        help="share of the GPU that the engine takes (default: 0.9; beside updates what the trainer leaves, or 0.4 "
             "with --keep-cache or without vLLM)")
    add("--keep-cache", action="store_true", help="vLLM keeps the memory of its keys and values during updates")
    add("--max-model-len", type=positive_int, help="window in tokens (default: the model's)")
    add("--tensor-parallel", type=positive_int, default=1, help="GPUs that share one copy (vllm)")
    add("--data-parallel", type=positive_int, default=1, help="copies of the model (vllm)")
    add("--no-async-scheduling", action="store_true",
        help="each step of vLLM waits for the one before; VLLM_USE_V2_MODEL_RUNNER=0 takes its older model runner")

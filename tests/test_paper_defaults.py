"""The paper's numbers, each seen from outside: a statement, where the running program shows it, its value.

The paper's models are toys here, in folders that have their names: no flag says a number. The engine is recorded at its
border: requests that reach it, settings that it is started with; vLLM's module is a stand-in that keeps its arguments.
"""
import asyncio
import contextlib
import functools
import json
import math
import sys
import types

import pytest
import torch

import benches
import distill
import engines
import engines.check
import engines.hf
import engines.vllm
import evaluate
import explore
import prompts
import scripted_student
from benches import math500
from benches.files import file_sha256
from common.errors import read_jsonl
from conftest import CHATML, make_model, make_tokenizer
from engines.base import Engine, Sample
from report import measures
from test_data import lcb_row, math_rows, mbpp_rows, science_rows, write

QWEN, OLMO = "Qwen/Qwen3-8B", "allenai/Olmo-3-7B-Instruct"
# As in Qwen3's own template: the empty block of thoughts stands there where thinking is switched off.
NO_THOUGHTS = "<think>\n\n</think>\n\n"
TEMPLATE = CHATML.replace("assistant\n{% endif %}", (
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"))
LONG = "x" * 101 + "y" * 2000                      # 2,101 tokens: the tokenizer's are bytes
JUDGED = "a" * 3000 + "b" * 1000 + "c" * 9000      # characters


class Recorder(Engine):
    """In the place of HFEngine, with the tokenizer and the template of the model: notes what it is asked."""
    slots, started, says = 4, [], LONG

    def __init__(self, settings, *_):
        super().__init__(settings)
        self.parameters, self.requests = 1000, []
        Recorder.started.append(self)

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        if adapter is not None:
            raise Enough  # the second update begins
        prompt = self.tokenizer.decode(prompt_token_ids)
        is_judge = "expert grader" in prompt
        self.requests.append(types.SimpleNamespace(
            prompt=prompt, seed=seed, max_tokens=max_tokens, temperature=temperature, top_p=top_p, adapter=adapter,
            priority=priority, is_judge=is_judge))
        ids = self.tokenizer("no" if is_judge else Recorder.says)["input_ids"]
        # Far less likely than any token is to the policy: every weight is at its cap.
        return Sample(ids, self.tokenizer.decode(ids), [-60.0] * len(ids), "stop", len(prompt_token_ids))

    def close(self):
        pass


class Enough(Exception):
    """Ends a run: no script catches it."""


class FakeVLLM:
    """vLLM as far as engines/vllm.py knows it: keeps the arguments of the engine and of a request."""

    def __init__(self):
        self.engine = self.request = None

    def modules(self):
        names = ("vllm", "vllm.lora.request", "vllm.platforms", "vllm.sampling_params", "vllm.v1.engine.exceptions",
                 "vllm.v1.engine.async_llm")
        made = {name: types.ModuleType(name) for name in names}
        made["vllm"].SamplingParams = lambda **given: given
        made["vllm"].AsyncEngineArgs = lambda **given: given
        made["vllm.lora.request"].LoRARequest = None  # no request here has an adapter
        made["vllm.sampling_params"].RequestOutputKind = types.SimpleNamespace(FINAL_ONLY=0)
        made["vllm.platforms"].current_platform = types.SimpleNamespace(
            is_cpu=lambda: False, get_device_total_memory=lambda: 2**37)
        made["vllm.v1.engine.exceptions"].EngineDeadError = made["vllm.v1.engine.exceptions"].EngineGenerateError = Enough
        made["vllm.v1.engine.async_llm"].AsyncLLM = types.SimpleNamespace(from_engine_args=self.start)
        return made

    def start(self, given):
        self.engine = given
        return self

    async def generate(self, prompt, params, *_, **__):
        self.request = params
        times = dict.fromkeys(("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"), 0.0)
        completion = types.SimpleNamespace(token_ids=[1], logprobs=types.SimpleNamespace(logprobs=[0.0]), finish_reason="stop")
        yield types.SimpleNamespace(outputs=[completion], metrics=types.SimpleNamespace(**times))


class Seen:
    """What the programs did, each run made once; patch: a MonkeyPatch that lives as long."""

    def __init__(self, folder, patch):
        self.folder, self.patch = folder, patch
        patch.chdir(folder)
        patch.setattr(engines.hf, "HFEngine", Recorder)
        patch.setattr(engines.check, "check_engine", scripted_student.unchecked)
        patch.setattr(torch.optim, "AdamW", self.noted("optimizers", torch.optim.AdamW))
        patch.setattr(torch.nn.utils, "clip_grad_norm_", self.noted("clipped", torch.nn.utils.clip_grad_norm_))
        patch.setattr(distill, "distill_loss", self.noted("losses", distill.distill_loss))
        for name, architecture in ((QWEN, "qwen3"), (OLMO, "olmo3")):
            make_model(folder / name, window=40960, architecture=architecture)
            tokenizer = make_tokenizer()
            tokenizer.chat_template = TEMPLATE
            tokenizer.save_pretrained(folder / name)
        (folder / "lcb").mkdir()
        for n in range(2, 6):
            write(folder / "lcb" / f"test{n}.jsonl", [lcb_row(f"t{n}", "2024-06-01", n=7)])
        days = ("2025-01-31", "2025-02-01", "2025-04-30", "2025-05-01")
        write(folder / "lcb" / "test6.jsonl", [lcb_row(day, day, n=7) for day in days])
        self.data = {"math500": write(folder / "math.jsonl", math_rows(3)), "lcb": str(folder / "lcb"),
                     "sciknoweval": write(folder / "science.jsonl", science_rows()[0])}

    def noted(self, name, function):
        """`function`, whose calls of the run at hand are kept in the list `name`: (result, args, kwargs)."""
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            getattr(self, name).append(types.SimpleNamespace(result=result, args=args, kwargs=kwargs))
            return result
        return call

    def run(self, script, *flags, says=LONG):
        """A script's main(). -> the engine, its requests, the update's calls; `out`: its folder or file."""
        self.optimizers, self.clipped, self.losses, Recorder.says = [], [], [], says
        with contextlib.suppress(Enough):
            script.main([*map(str, flags), "--engine", "hf", "--dtype", "float32"])
        engine = Recorder.started[-1]
        return types.SimpleNamespace(engine=engine, requests=engine.requests, optimizers=self.optimizers,
                                     clipped=self.clipped, losses=self.losses)

    @functools.cache
    def explored(self, model, bench, *flags, says=LONG):
        out = self.folder / f"explored{len(Recorder.started)}"
        seen = self.run(explore, "--bench", bench, "--model", model, "--data", self.data[bench], "--limit", 1,
                        *flags, "--out", out, says=says)
        kept = json.loads((out / "explore.json").read_text())
        seen.records, seen.settings, seen.result = read_jsonl(str(out / "rollouts.jsonl")), kept["settings"], kept["result"]
        seen.steps = {record["step"]: record for record in seen.records}
        seen.answers = [r for r in seen.requests if not r.is_judge]
        seen.judged = [r for r in seen.requests if r.is_judge]
        return seen

    @functools.cache
    def one(self, model, bench):
        """The first answer of an exploration, as it reaches the engine."""
        return self.explored(model, bench, "--calls", 1).answers[-1]

    @functools.cache
    def distilled(self, model, bench):
        """One update, on a C+ of two problems; the second ends at its first request."""
        out = self.folder / f"distilled{len(Recorder.started)}"
        explored = self.one(model, bench)
        turns = [prompts.user("x"), prompts.assistant("y"), prompts.user("z")]
        decoding = {name: getattr(explored, name) for name in ("temperature", "top_p", "max_tokens")}
        family = {QWEN: "qwen3", OLMO: "olmo3"}[model]
        lines = [{"problem": p, "bench": bench, "model": model, "family": family, "decoding": decoding,
                  "opening": turns[:1], "context": turns, "response": "r", "step": 2} for p in "ab"]
        batch = [] if bench == "math500" else ["--batch", 2]  # the default size, once
        cplus = write(self.folder / f"{out.name}.jsonl", lines)
        seen = self.run(distill, "--cplus", cplus, "--out", out, *batch, says="hi")
        seen.settings = json.loads((out / "distill.json").read_text())["settings"]
        seen.samples, (seen.metrics,) = read_jsonl(str(out / "samples.jsonl")), read_jsonl(str(out / "distill.jsonl"))
        seen.adapter = json.loads((out / "adapter" / "adapter_config.json").read_text())
        return seen

    @functools.cache
    def interleaved(self):
        # a right answer: the update has a context
        return self.explored(QWEN, "math500", "--calls", 1, "--update-every", 1,
                             says=f"\\boxed{{{self.problems('math500')[0].answer}}}")

    @functools.cache
    def tested(self, model, bench):
        out = self.folder / f"tested{len(Recorder.started)}.json"
        seen = self.run(evaluate, "--bench", bench, "--model", model, "--data", self.data[bench], "--limit", 1, "--out", out)
        seen.answers = [r for r in seen.requests if not r.is_judge]
        return seen

    @functools.cache
    def vllm(self, model, bench):
        """-> (arguments of the engine, of a request, the engine) with vLLM on a GPU."""
        fake = FakeVLLM()
        with pytest.MonkeyPatch.context() as patch:
            for name, module in fake.modules().items():
                patch.setitem(sys.modules, name, module)
            patch.setattr(engines.vllm, "start_watchdog", lambda: None)
            _, settings, _ = explore.parse(["--bench", bench, "--model", model, "--engine", "vllm"])

            async def sample():
                engine = await engines.start(settings, adapters=True, folder=str(self.folder))
                await engine.sample([1, 2], seed=3, max_tokens=settings.max_tokens, temperature=settings.temperature,
                                    top_p=settings.top_p)
                return engine
            engine = asyncio.run(sample())
        return types.SimpleNamespace(engine=fake.engine, request=fake.request, parameters=engine.parameters)

    @functools.cache
    def on_a_gpu(self):
        """Settings of a command without any flag of the engine, where there is a GPU."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            return explore.parse(["--bench", "math500"])[1]

    @functools.cache
    def problems(self, bench, split="test"):
        return benches.load(bench, split, self.data[bench])

    @functools.cache
    def math_training_set(self):
        """500 of 520 Level 5 problems, ten of which are in MATH-500, and an easier one."""
        folder = self.folder / "math"
        folder.mkdir()
        test = write(folder / "test.jsonl", math_rows(10))
        rows = [{"problem": f"What is {i} + 1?", "level": f"Level {4 + (i > 0)}", "solution": f"\\boxed{{{i + 1}}}"}
                for i in range(520)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(math500, "SHA256", file_sha256(test))
            patch.setattr(math500, "BYTES", len((folder / "test.jsonl").read_bytes()))
            return benches.load("math500", "train", write(folder / "train.jsonl", rows))

    def mbpp(self):
        (self.folder / "mbpp").mkdir(exist_ok=True)
        hub, plus = mbpp_rows(10)
        write(self.folder / "mbpp" / "bpp-hub.jsonl", hub)
        write(self.folder / "mbpp" / "bpp-plus.jsonl", plus)
        return benches.load("mbpp", path=str(self.folder / "mbpp"))[0]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Seen(tmp_path_factory.mktemp("paper"), patch)


# ---------------------------------------------------------------------------------------------------------------------
# Where a row looks


def leaf(s):
    return s.explored(QWEN, "math500")


def judge(s):
    return s.explored(QWEN, "sciknoweval", "--calls", 1, says=JUDGED).judged[0]


def update(s):
    return s.distilled(QWEN, "math500")


def group(run):
    """The only group of the optimizer that the run made."""
    (made,) = run.optimizers
    (one,) = made.result.param_groups
    return one


def shown(record):
    """What a context shows of the response before."""
    return record["context"][-2]["content"]


def compressed(s, how):
    return shown(s.explored(QWEN, "math500", "--calls", 2, "--compress", how).steps[2])


def count(problems, *words):
    return sum(all(word in problem.text for word in words) for problem in problems)


def records(steps, **fields):
    return {"p": {t: {"problem": "p", "step": t, "restart": False, **fields} for t in range(1, steps + 1)}}


EXPLORATION = [
    ("2.2: K = 24 verifier calls a problem", lambda s: len(leaf(s).records), 24),
    ("2.2: M = 5, a restart at steps 1, 6, ...",
     lambda s: [t for t, r in leaf(s).steps.items() if r["restart"]], [1, 6, 11, 16, 21]),
    ("2.2: a draft at each restart, beside the K calls", lambda s: len(leaf(s).requests), 24 + 5),
    ("2.2: L, the last 2,000 tokens of an answer", lambda s: shown(leaf(s).steps[2]), "y" * 2000),
    ("2.2: L, of a draft", lambda s: shown(leaf(s).steps[6]), "y" * 2000),
    ("2.2: a carry step shows the last answer alone", lambda s: len(leaf(s).steps[5]["context"]), 3),
    ("3.1.1: a cap of 5 GPU hours", lambda s: leaf(s).settings["gpu_hours"], 5.0),
    ("3.1.1: random sampling has K = 24 calls",
     lambda s: len(s.explored(QWEN, "math500", "--method", "random").requests), 24),
    ("3.1.1: random sampling has the plain prompt",
     lambda s: {r.prompt for r in s.explored(QWEN, "math500", "--method", "random").requests}, lambda s: {leaf(s).requests[0].prompt}),
    ("E: run seed s shifts every seed by (s - 1) 10^8",
     lambda s: s.explored(QWEN, "math500", "--calls", 1, "--seed", 3).answers[-1].seed - s.one(QWEN, "math500").seed, 2 * 10**8),
    ("E.4: K = 20 on LCB's training set", lambda s: len(s.explored(QWEN, "lcb", "--split", "train").records), 20),
    ("E.4: no cap on LCB's training set",
     lambda s: s.explored(QWEN, "lcb", "--split", "train").settings["gpu_hours"], None),
    ("E.4: K = 20 on SciKnowEval's training set",
     lambda s: len(s.explored(QWEN, "sciknoweval", "--split", "train").records), 20),
    ("E.4: no cap on SciKnowEval's training set",
     lambda s: s.explored(QWEN, "sciknoweval", "--split", "train").settings["gpu_hours"], None),
    ("E.4: K = 20 on MATH's training set",
     lambda s: explore.parse(["--bench", "math500", "--split", "train", "--model", QWEN])[0].calls, 20),
    ("G.2: head and tail, 1,000 tokens each",
     lambda s: compressed(s, "head-tail"), "x" * 101 + "y" * 899 + "\n...\n" + "y" * 1000),
    ("G.2: the 1,000 tokens of lowest probability", lambda s: len(compressed(s, "low-logprob")), 1000),
    ("G.2: no compression", lambda s: compressed(s, "none"), LONG),
    ("G.2: a summary of at most 1,000 tokens",
     lambda s: min(r.max_tokens for r in s.explored(QWEN, "math500", "--calls", 2, "--compress", "summary").requests), 1000),
]

MODELS = [row for model, family, temperature, top_p, lcb, parameters in (
    (QWEN, "a mathematics expert", 1.0, 1.0, 8192, 8.19e9), (OLMO, "in LaTex format", 0.6, 0.95, 16384, 7.30e9)) for row in (
        (f"B.3: the prompts of {model}", lambda s, m=model, f=family: f in s.one(m, "math500").prompt, True),
        (f"3.1.1: temperature of {model}", lambda s, m=model: s.one(m, "math500").temperature, temperature),
        (f"3.1.1: top-p of {model}", lambda s, m=model: s.one(m, "math500").top_p, top_p),
        (f"3.1.1: response limit of {model}, MATH-500", lambda s, m=model: s.one(m, "math500").max_tokens, 8192),
        (f"3.1.1: response limit of {model}, SciKnowEval", lambda s, m=model: s.one(m, "sciknoweval").max_tokens, 8192),
        (f"3.1.1: response limit of {model}, MBPP+", lambda s, m=model: s.vllm(m, "mbpp").request["max_tokens"], 8192),
        (f"3.1.1: response limit of {model}, LCB", lambda s, m=model: s.one(m, "lcb").max_tokens, lcb),
        (f"E.1: response limit of {model}, LCB's update",
         lambda s, m=model: s.distilled(m, "lcb").requests[0].max_tokens, lcb),
        (f"E.2: response limit of {model}, LCB's test",
         lambda s, m=model: s.tested(m, "lcb").answers[0].max_tokens, lcb),
        (f"B.4: the update of {model} samples at its temperature",
         lambda s, m=model: s.distilled(m, "lcb").requests[0].temperature, temperature),
        (f"B.4: the update of {model} divides the logits by it",
         lambda s, m=model: s.distilled(m, "lcb").losses[0].kwargs["temperature"], temperature),
        (f"E.2: temperature of {model}, tests",
         lambda s, m=model: s.tested(m, "lcb").answers[0].temperature, temperature),
        (f"E.2: top-p of {model}, tests", lambda s, m=model: s.tested(m, "lcb").answers[0].top_p, top_p),
        (f"E.5: parameters of {model}",
         lambda s, m=model: s.explored(m, "math500", "--calls", 1).result["parameters"], parameters),
        (f"E.5: parameters of {model}, with vLLM", lambda s, m=model: s.vllm(m, "mbpp").parameters, parameters))]

THINKING = [(f"3.1.1: no thinking in {what}", lambda s, f=prompt: f(s).endswith("assistant\n" + NO_THOUGHTS), True) for what, prompt in (
    ("a draft", lambda s: leaf(s).requests[0].prompt), ("a restart", lambda s: leaf(s).requests[1].prompt),
    ("a carry step", lambda s: leaf(s).requests[-1].prompt), ("the judge's prompt", lambda s: judge(s).prompt),
    ("the student's prompt", lambda s: update(s).requests[0].prompt),
    ("a test", lambda s: s.tested(QWEN, "math500").requests[0].prompt))] + [
    # two more turns than the student's, each of a role, a letter and the marks around them
    ("3.1.1: no thinking in the teacher's context",
     lambda s: update(s).samples[0]["context_tokens"] - update(s).samples[0]["prompt_tokens"],
     lambda s: len(make_tokenizer()("<|im_start|>assistant\ny<|im_end|>\n<|im_start|>user\nz<|im_end|>\n")["input_ids"]))]

ENGINE = [
    ("C.5: vLLM takes 0.9 of the GPU", lambda s: s.vllm(QWEN, "math500").engine["gpu_memory_utilization"], 0.9),
    ("C.5: 16,384 batched tokens", lambda s: s.vllm(QWEN, "math500").engine["max_num_batched_tokens"], 16384),
    ("C.5: prefix caching", lambda s: s.vllm(QWEN, "math500").engine["enable_prefix_caching"], True),
    ("C.5: chunked prefill", lambda s: s.vllm(QWEN, "math500").engine["enable_chunked_prefill"], True),
    ("B.4: no top-k", lambda s: s.vllm(QWEN, "math500").request["top_k"], 0),
    ("B.4: no min-p", lambda s: s.vllm(QWEN, "math500").request["min_p"], 0.0),
    ("B.4: nothing from the model's generation_config.json",
     lambda s: s.vllm(QWEN, "math500").engine["generation_config"], "vllm"),
    ("B.4: mu is after temperature and top-p",
     lambda s: s.vllm(QWEN, "math500").engine["logprobs_mode"], "processed_logprobs"),
    ("B.4: vLLM holds adapters of rank 64", lambda s: s.vllm(QWEN, "math500").engine["max_lora_rank"], 64),
    ("3.1.1: Qwen3-8B, where nothing is said", lambda s: s.on_a_gpu().model, QWEN),
    ("B.4: bfloat16, where nothing is said", lambda s: s.on_a_gpu().dtype, "bfloat16"),
    ("B.4: vLLM, where nothing is said", lambda s: s.on_a_gpu().engine, "vllm"),
]

UPDATE = [
    ("2.3: S = 20 steps", lambda s: update(s).settings["steps"], 20),
    ("2.3: 128 problems a step", lambda s: len(update(s).samples), 128),
    ("B.4: AdamW with lr 1e-5", lambda s: group(update(s))["lr"], 1e-5),
    ("B.4: AdamW's betas", lambda s: group(update(s))["betas"], (0.9, 0.999)),
    ("B.4: AdamW's weight decay", lambda s: group(update(s))["weight_decay"], 0.01),
    ("B.4: gradient norm of at most 1", lambda s: [(*c.args, *c.kwargs.values())[1] for c in update(s).clipped], [1.0]),
    ("B.4: one optimizer step a step",
     lambda s: {float(v["step"]) for v in update(s).optimizers[0].result.state.values()}, {1.0}),
    ("B.4: LoRA rank", lambda s: update(s).adapter["r"], 64),
    ("B.4: LoRA alpha", lambda s: update(s).adapter["lora_alpha"], 64),
    ("B.4: LoRA dropout", lambda s: update(s).adapter["lora_dropout"], 0.0),
    ("B.4: LoRA on all linear layers but the head",
     lambda s: sorted({name.rpartition(".")[2] for name in update(s).adapter["target_modules"]}),
     ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
    ("B.4: no bias is trained", lambda s: update(s).adapter["bias"], "none"),
    # the toy has two layers, each with seven linear ones, each with A and B
    ("B.4: the backbone is frozen", lambda s: len(group(update(s))["params"]), 2 * 7 * 2),
    ("2.3: reverse KL", lambda s: update(s).losses[0].kwargs["kind"], "reverse_kl"),
    ("2.3: tau = 1e-3 on MATH", lambda s: update(s).losses[0].kwargs["tau"], 1e-3),
    ("2.3: no cap on LCB", lambda s: s.distilled(QWEN, "lcb").losses[0].kwargs["tau"], math.inf),
    ("2.3: no cap on SciKnowEval", lambda s: s.distilled(QWEN, "sciknoweval").losses[0].kwargs["tau"], math.inf),
    ("B.4: weights of at most 2", lambda s: update(s).metrics["mean_w"], 2.0),
    ("ours: the engine beside the update takes 0.4 of the GPU", lambda s: update(s).engine.settings.gpu_memory, 0.4),
    ("G.3: lr 1e-6 of an update between the steps", lambda s: group(s.interleaved())["lr"], 1e-6),
    ("G.3: its weight decay", lambda s: group(s.interleaved())["weight_decay"], 0.01),
    ("G.3: its tau on MATH", lambda s: s.interleaved().losses[0].kwargs["tau"], 1e-3),
    ("ours: the engine beside updates between the steps takes 0.4 of the GPU",
     lambda s: s.interleaved().engine.settings.gpu_memory, 0.4),
]

TESTS = [
    ("E.2: avg@4, four responses a problem", lambda s: len({r.seed for r in s.tested(QWEN, "math500").requests}), 4),
    ("C.3: the judge decodes greedily", lambda s: judge(s).temperature, 0.0),
    ("C.3: the judge has 512 new tokens", lambda s: judge(s).max_tokens, 512),
    ("C.3: the judge is the model without adapter", lambda s: judge(s).adapter, None),
    ("C.3: the judge reads the first 3,000 and the last 9,000 of over 12,000 characters",
     lambda s: (judge(s).prompt.count("aaa"), judge(s).prompt.count("bbb"), judge(s).prompt.count("ccc")), (1000, 0, 3000)),
    ("A: repeats are counted over 24 steps",
     lambda s: measures.repeats(records(30, reward=0, signature="e")), (24, 23)),
    ("G.4: self-correction is counted over 10 steps",
     lambda s: measures.self_correction(records(10, correct=0) | {"q": {11: {"problem": "q", "step": 11, "restart": False, "correct": 1}}},
                                        lambda r: None)["mean"], 0.0),
    ("A: an interval of 95%", lambda s: measures.bootstrap_interval([0] * 50 + [1] * 50), (0.4, 0.6)),
]

DATA = [
    ("C.1: SciKnowEval has 400 problems", lambda s: len(s.problems("sciknoweval")), 400),
    ("C.1: 75 of L2 a domain", lambda s: count(s.problems("sciknoweval"), "Physics", "L2"), 75),
    ("C.1: 25 of L5 a domain", lambda s: count(s.problems("sciknoweval"), "Physics", "L5"), 25),
    ("E.1: SciKnowEval's training set has 400", lambda s: len(s.problems("sciknoweval", "train")), 400),
    ("E.1: 100 of L5 a domain", lambda s: count(s.problems("sciknoweval", "train"), "Physics", "L5"), 100),
    ("E.1: no problem is in both",
     lambda s: {p.id for p in s.problems("sciknoweval")} & {p.id for p in s.problems("sciknoweval", "train")}, set()),
    ("E.1: MATH's training set has 500 of Level 5", lambda s: len(s.math_training_set()), 500),
    ("E.1: none of them is in MATH-500", lambda s: min(int(p.text.split()[2]) for p in s.math_training_set()), 10),
    ("C.1: LCB's contests from 2025-02-01 to 2025-04-30",
     lambda s: {p.id for p in s.problems("lcb")}, {"2025-02-01", "2025-04-30"}),
    ("C.2: half of LCB's tests are public",
     lambda s: [len(s.problems("lcb")[0].tests[part]) for part in ("public", "private")], [3, 4]),
    ("E.1: LCB's training set is release v5 without v1",
     lambda s: {p.id for p in s.problems("lcb", "train")}, {"t2", "t3", "t4", "t5"}),
    ("E.1: all tests of a training problem are public",
     lambda s: len(s.problems("lcb", "train")[0].tests["public"]), 7),
    ("E.1: the first that fails ends them",
     lambda s: s.problems("lcb", "train")[0].tests["stop_at_first_failure"], True),
    ("LiveCodeBench: 6 s a test", lambda s: s.problems("lcb")[0].tests["time_limit"], 6),
    ("C.2: 30 s an assert of MBPP+", lambda s: s.mbpp().tests["time_limit"], 30),
]

ROWS = EXPLORATION + MODELS + THINKING + ENGINE + UPDATE + TESTS + DATA


def test_no_statement_stands_there_twice():
    assert len({statement for statement, *_ in ROWS}) == len(ROWS) >= 60


@pytest.mark.parametrize("statement,look,value", ROWS, ids=[row[0] for row in ROWS])
def test_the_paper_says(seen, statement, look, value):
    expected = value(seen) if callable(value) else value
    assert look(seen) == expected

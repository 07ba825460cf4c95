"""What the engines do on a GPU, as far as a machine without one can tell: by a faked CUDA, Hub or vLLM."""
import asyncio
import concurrent.futures
import os
import sys
import types

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import DryRunError
from huggingface_hub.utils import are_progress_bars_disabled

import distill
import engines
import evaluate
import explore
from baselines import grpo, online
from common.errors import BadInput
from conftest import make_model
from engines import base, hf, vllm
from test_data import write
from test_engine import ROUNDING, hf_settings, parsed, requests, sample_all
from test_paper_defaults import FakeVLLM


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


# ---------------------------------------------------------------------------------------------------------------------
# float32 with adapters


def engine(model, *flags, adapters=True):
    return engines.settings(parsed("--model", model, *flags), "own", adapters=adapters).engine


def test_float32_with_adapters_on_a_gpu(toy_model, cuda):
    assert engine(toy_model) == "hf"
    assert engine(toy_model, adapters=False) == engine(toy_model, "--dtype", "bfloat16") == "vllm"
    assert engine(toy_model, "--engine", "vllm", adapters=False) == "vllm"
    for flags in (["--engine", "vllm"], ["--tensor-parallel", "2"], ["--data-parallel", "2"]):
        with pytest.raises(BadInput, match="take --dtype bfloat16, or --engine hf"):
            engine(toy_model, *flags)
    with pytest.raises(BadInput, match="are vLLM's"):
        engine(toy_model, "--engine", "hf", "--tensor-parallel", "2")


def test_float32_with_adapters_without_a_gpu(toy_model):
    assert engine(toy_model) == "hf" and engine(toy_model, "--engine", "vllm") == "vllm"
    with pytest.raises(BadInput, match="are vLLM's"):
        engine(toy_model, "--tensor-parallel", "2")


def test_every_script_says_whether_it_has_adapters(toy_model, tmp_path, cuda):
    """All on a float32 model, without --engine."""
    bench = ["--bench", "arithmetic", "--model", toy_model]
    assert explore.parse(bench)[1].engine == "vllm"
    assert explore.parse([*bench, "--update-every", "1"])[1].engine == "hf"
    assert online.parse(grpo.GRPO, bench, "")[2].engine == "hf"
    line = {"problem": "p", "bench": "own", "model": toy_model, "family": "qwen3", "opening": [], "context": [],
            "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8}, "response": "r", "step": 1}
    assert distill.parse(["--cplus", write(tmp_path / "cplus.jsonl", [line])])[0].settings.engine == "hf"
    flags = vars(parsed("--model", toy_model))
    assert evaluate.engine_settings(flags, "own", "adapter").engine == "hf"
    assert evaluate.engine_settings(flags, "own", None).engine == "vllm"


def test_the_hf_engine_is_said_in_one_line(toy_model, monkeypatch, capsys, cuda):
    class Silent:
        parameters = 1

        def __init__(self, settings):
            pass
    monkeypatch.setattr(hf, "HFEngine", Silent)
    for dtype, adapters, lines in (("float32", True, 1), ("float32", False, 0), ("bfloat16", True, 0)):
        asyncio.run(engines.start(hf_settings(toy_model, dtype=dtype), adapters))
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
        assert len(said) == lines and all("--dtype bfloat16 takes vLLM" in line for line in said)


def test_the_hf_engine_with_the_attention_that_it_has_on_a_gpu(toy_model, toy_adapters, monkeypatch, tmp_path):
    """transformers' own sdpa samples what the CPU's attention does, with a sliding window too."""
    olmo = make_model(tmp_path / "olmo", architecture="olmo3", sliding_window=16,
                      layer_types=["sliding_attention", "full_attention"])
    asked = []
    for model, adapter in ((toy_model, toy_adapters[0]), (olmo, None)):
        asked.append((hf_settings(model), requests(12, adapter=adapter, max_tokens=40)))
    wanted = [sample_all(*each, slots=5) for each in asked]
    load = hf.load
    monkeypatch.setattr(hf, "load", lambda *args, **options: load(*args, **options | {"attn_implementation": "sdpa"}))
    for each, samples in zip(asked, wanted):
        for found, sample in zip(sample_all(*each, slots=5), samples):
            assert found.token_ids == sample.token_ids
            torch.testing.assert_close(found.logprobs, sample.logprobs, rtol=0, atol=ROUNDING)


# ---------------------------------------------------------------------------------------------------------------------
# Downloads


class FakeHub:
    """snapshot_download as far as engines/base.py knows it, with a model of two files."""

    def __init__(self, cache, weights, size=3 * 2**29):
        self.folder, self.weights, self.size = cache / "snapshot", weights, size
        self.asked, self.offline, self.bars = [], False, []

    def __call__(self, model, allow_patterns, dry_run=False):
        if dry_run and self.offline:
            raise DryRunError
        wanted = [name for name in ("config.json", self.weights) if f"*{os.path.splitext(name)[1]}" in allow_patterns]
        missing = [name for name in wanted if not (self.folder / name).exists()]
        if dry_run:
            return [types.SimpleNamespace(file_size=self.size, will_download=name in missing) for name in wanted]
        self.folder.mkdir(exist_ok=True)
        for name in [] if self.offline else missing:
            self.asked.append(name)
            self.bars.append(not are_progress_bars_disabled())
            (self.folder / name).touch()
        return str(self.folder)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    def made(weights="model.safetensors"):
        fake = FakeHub(tmp_path, weights)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
        return fake
    return made


def test_weights_are_fetched_once_and_said(hub, tmp_path, capsys):
    """Two files of 1.5 GiB: their size, the place and a bar; the second time nothing."""
    fake = hub()
    assert base.fetch_weights("some/model") == str(fake.folder)
    said = capsys.readouterr().err
    assert said.startswith(f"downloading 3.00 GiB of some/model to {tmp_path} ") and said.count("\n") == 1
    assert fake.asked == ["config.json", "model.safetensors"] and fake.bars == [True, True]
    assert base.fetch_weights("some/model") == str(fake.folder)
    assert len(fake.asked) == 2 and capsys.readouterr().err == ""


def test_one_rank_fetches_and_the_others_wait(hub, capsys):
    fake = hub()
    with concurrent.futures.ThreadPoolExecutor(4) as ranks:
        folders = list(ranks.map(base.fetch_weights, ["some/model"] * 4))
    assert folders == [str(fake.folder)] * 4 and sorted(fake.asked) == ["config.json", "model.safetensors"]
    assert capsys.readouterr().err.count("downloading") == 1


def test_other_weights_none_and_no_hub(hub, capsys):
    fake = hub("pytorch_model.bin")
    assert base.fetch_weights("some/model") == str(fake.folder) and fake.asked == ["config.json", "pytorch_model.bin"]
    fake.offline = True
    assert base.fetch_weights("some/model") == str(fake.folder)
    os.remove(fake.folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match="--model some/model .*no weights.*Hub id"):
        base.fetch_weights("some/model")


def test_a_folder_is_no_model_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    assert base.fetch_weights(str(tmp_path)) == str(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# vLLM


@pytest.fixture
def fake_vllm(monkeypatch):
    fake = FakeVLLM()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm, "start_watchdog", lambda: None)
    return fake


def started(model, folder, **changes):
    settings = hf_settings(model, engine="vllm", dtype="bfloat16", **changes)
    return asyncio.run(vllm.VLLMEngine.start(settings, True, str(folder)))


def test_vllm_gets_the_folder_that_was_fetched(toy_model, monkeypatch, fake_vllm, tmp_path):
    """So its processes ask the Hub for nothing."""
    monkeypatch.setattr(vllm, "fetch_weights", {toy_model: "fetched"}.get)
    started(toy_model, tmp_path)
    assert fake_vllm.engine["model"] == "fetched"


def test_logits_are_float32(toy_model, fake_vllm, tmp_path):
    started(toy_model, tmp_path)
    assert fake_vllm.engine["hf_overrides"] == {"head_dtype": "float32"} and fake_vllm.engine["dtype"] == "bfloat16"


@pytest.mark.parametrize("flags,value", [([], None), (["--no-async-scheduling"], False)])
def test_async_scheduling(toy_model, fake_vllm, tmp_path, flags, value):
    """A run may go on without it, so its files do not keep it."""
    settings = engines.settings(parsed("--model", toy_model, "--engine", "vllm", *flags), "own")
    started(toy_model, tmp_path, async_scheduling=settings.async_scheduling)
    assert fake_vllm.engine["async_scheduling"] is value
    assert "async_scheduling" not in settings.kept()


def test_an_engine_that_dies_names_what_can_be_turned_off(toy_model, fake_vllm, monkeypatch, tmp_path):
    ways = "--no-async-scheduling, and VLLM_USE_V2_MODEL_RUNNER=0 in the environment"
    engine = started(toy_model, tmp_path)

    async def dies(*_, **__):
        raise engine.dead[0]("gone")
        yield
    monkeypatch.setattr(fake_vllm, "generate", dies)
    with pytest.raises(base.EngineDead, match=f"the same command goes on. {ways}"):
        asyncio.run(engine.sample([1, 2], seed=3, max_tokens=4, temperature=1.0, top_p=1.0))

    def fails(given):
        raise RuntimeError("no")
    monkeypatch.setattr(sys.modules["vllm.v1.engine.async_llm"].AsyncLLM, "from_engine_args", fails)
    with pytest.raises(BadInput, match=f"did not start .no.: .*vllm.log says more. {ways}"):
        started(toy_model, tmp_path)


@pytest.mark.parametrize("given,cache", [({}, "~/.cache/vllm"), ({"XDG_CACHE_HOME": "/c"}, "/c/vllm"),
                                         ({"XDG_CACHE_HOME": "/c", "VLLM_CACHE_ROOT": "/v"}, "/v")])
def test_each_rank_compiles_into_a_cache_of_its_own(monkeypatch, given, cache):
    """And the user's choice of the model runner reaches the engine's processes."""
    for name in ("RANK", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (given | {"VLLM_USE_V2_MODEL_RUNNER": "0"}).items():
        monkeypatch.setenv(name, value)
    for rank, wanted in ((None, given.get("VLLM_CACHE_ROOT")), ("0", f"{cache}/rank_0"), ("11", f"{cache}/rank_11")):
        if rank:
            monkeypatch.setenv("RANK", rank)
        before = dict(os.environ)
        with vllm.engine_environment(cpu=False):
            assert os.environ.get("VLLM_CACHE_ROOT") == wanted
            assert "RANK" not in os.environ and os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
        assert os.environ == before


# ---------------------------------------------------------------------------------------------------------------------
# Memory beside updates


def memory(model, *flags, trains=True):
    found = engines.settings(parsed("--model", model, "--engine", "vllm", *flags), "own", adapters=True, trains=trains)
    return found.gpu_memory, found.rests


def test_who_rests(tmp_path, monkeypatch):
    """vLLM in a process that trains, on a GPU; a run may go on with another choice."""
    model = make_model(tmp_path / "half", dtype=torch.bfloat16)
    assert memory(model, "--dtype", "bfloat16") == (0.4, False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert memory(model) == (None, True) and memory(model, "--gpu-memory", "0.3") == (0.3, True)
    assert memory(model, "--keep-cache") == (0.4, False) and memory(model, trains=False) == (0.9, False)
    assert memory(model, "--engine", "hf") == (0.4, False)
    assert not {"gpu_memory", "rests"} & set(hf_settings(model).kept())
    for share in ("-0.1", "1.1"):
        with pytest.raises(BadInput, match="--gpu-memory above 0 and at most 1"):
            memory(model, "--gpu-memory", share)


def test_an_engine_that_rests_takes_what_the_trainer_leaves(toy_model, fake_vllm, tmp_path):
    """Of 128 GiB: a tenth is free, CUDA has 2, and the toy takes less than 1/1000."""
    engine = started(toy_model, tmp_path, gpu_memory=None, rests=True)
    assert fake_vllm.engine["gpu_memory_utilization"] == engine.share == pytest.approx(0.9 - 2 / 128, abs=1e-3)
    assert fake_vllm.engine["enable_sleep_mode"] is True
    started(toy_model, tmp_path, gpu_memory=0.4)
    assert fake_vllm.engine["gpu_memory_utilization"] == 0.4 and fake_vllm.engine["enable_sleep_mode"] is False


def test_resting_asks_vllm_in_order(toy_model, fake_vllm, monkeypatch, tmp_path):
    """The cache alone goes, after what runs, and comes back after the trainer has given back what it can."""
    asked, answers = [], {"wake_up": True}

    def noted(name):
        async def call(*args, **options):
            asked.append((name, args, options))
            return answers.get(name)
        return call
    for name in ("pause_generation", "release_kv_cache_memory", "wake_up"):
        monkeypatch.setattr(fake_vllm, name, noted(name), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty_cache"))

    async def rest(engine):
        async with engine.resting():
            asked.append("update")
    asyncio.run(rest(started(toy_model, tmp_path)))
    assert asked == ["update"]
    asked.clear()
    resting = started(toy_model, tmp_path, rests=True)
    asyncio.run(rest(resting))
    assert asked == [("pause_generation", (), {"mode": "wait", "clear_cache": False}), ("release_kv_cache_memory", (), {}),
                     "update", "empty_cache", ("wake_up", (["kv_cache"],), {})]
    answers["wake_up"] = False
    with pytest.raises(base.EngineDead, match="did not take back its cache: .*--keep-cache"):
        asyncio.run(rest(resting))

"""Models of other families: engine and update give their own log-probabilities, or one sentence and no run."""
import argparse
import asyncio
import dataclasses
import shutil

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import distill
import engines
import policy as policies
from common.errors import BadInput
from conftest import make_model, make_tokenizer
from engines import Settings
from engines.base import stop_token_ids
from engines.check import check_engine, check_equal, own_logprobs
from engines.hf import HFEngine

# The window is shorter than the texts that are compared: a window that is left out shows.
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, bos_token_id=None, pad_token_id=None)
WINDOW = dict(sliding_window=5)
MAMBA = dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8)
RUN = {
    "Llama": {}, "Qwen2": {}, "Qwen3": dict(head_dim=8), "Olmo2": {}, "Olmo3": dict(sliding_window=5), "SmolLM3": {},
    "Mistral": WINDOW, "Phi3": WINDOW, "Starcoder2": WINDOW,
    "Qwen2 with a window": WINDOW | dict(use_sliding_window=True, max_window_layers=1),
    "Llama with dropout": dict(attention_dropout=0.5), "Starcoder2 with dropout": dict(residual_dropout=0.5, embedding_dropout=0.5),
    "GPTNeoX": dict(hidden_dropout=0.5, attention_dropout=0.5), "GPT2": dict(n_inner=48), "Gemma": dict(head_dim=8),
    "Gemma3Text": dict(head_dim=8, sliding_window=5), "Glm4": dict(head_dim=8), "Qwen3Moe": dict(
        head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "DeepseekV3": dict(num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4,
                       num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1),
}
REFUSED = {
    "Gemma2": (dict(head_dim=8), r"caps its logits \(final_logit_softcapping\)"),
    "Gemma2 without a cap": (dict(head_dim=8, final_logit_softcapping=None), r"caps its attention \(attn_logit_softcapping\)"),
    "Granite": (dict(logits_scaling=8.0), r"scales its logits \(logits_scaling\)"),
    "Cohere": (dict(logit_scale=0.0625), r"scales its logits \(logit_scale\)"),
    "Phi": ({}, "by the update differ"),  # a bias of the head, which config.json does not name
    "Lfm2": (dict(layer_types=["conv", "full_attention"]), "has layers of the kind conv"),
    "FalconH1": (MAMBA, "has layers of the kind hybrid"),
    "Mamba": ({}, "has layers of the kind linear_attention"),
}


def make(kind, folder, **changes):
    """Save a random model of transformers' class KINDForCausalLM; -> its folder."""
    tokenizer = make_tokenizer()
    config_class = getattr(transformers, f"{kind.split()[0]}Config")
    config = config_class(**{**SMALL, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # so that nothing is 0, as a fresh bias is
        if parameter.dim() > 1 or not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def settings_of(model):
    return Settings(model, "qwen3", "hf", "float32", 1.0, 1.0, 40, 0.5, None, 1, 1)


def sample(engine, prompt, seed):
    async def one():
        return await engine.sample(prompt, seed=seed, max_tokens=20, temperature=1.0, top_p=1.0)
    return asyncio.run(one())


@pytest.mark.parametrize("kind", RUN)
def test_log_probabilities_are_the_models_own(kind, tmp_path):
    settings = settings_of(make(kind, tmp_path, **RUN[kind]))
    engine = HFEngine(settings)
    prompt = engine.encode([{"role": "user", "content": "What is 1 + 1? Say it slowly."}])
    samples = [sample(engine, prompt, seed) for seed in (1, 2)]
    engine.close()
    policy = policies.load_policy(settings, None, 1, 0, torch.device("cpu"))
    with torch.no_grad():
        hidden = policy.hidden_states([prompt + y.token_ids for y in samples], [len(y.token_ids) for y in samples])
    trained = (hidden @ policy.head.T).log_softmax(-1).split([len(y.token_ids) for y in samples])
    for y, logprobs in zip(samples, trained):
        own = own_logprobs(policy.model.get_base_model(), prompt + y.token_ids)[len(prompt) - 1:-1]
        assert len(y.token_ids) > 5
        torch.testing.assert_close(logprobs, own, rtol=0, atol=1e-4)
        chosen = own.gather(1, torch.tensor(y.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(y.logprobs), chosen, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_known_is_refused(kind, tmp_path):
    changes, sentence = REFUSED[kind]
    settings = settings_of(make(kind, tmp_path, **changes))
    if kind == "Phi":  # the engine uses the head whole
        HFEngine(settings).close()
    else:
        with pytest.raises(BadInput, match=sentence):
            HFEngine(settings)
    if kind == "Gemma2 without a cap":  # at so small logits it is rounding: start_trainer reads config.json first
        return
    # Where config.json says nothing, what is computed does.
    with pytest.raises(BadInput, match="by the update differ|the update cannot run|cannot be loaded"):
        policies.load_policy(settings, None, 1, 0, torch.device("cpu"))


def test_the_difference_that_is_no_rounding():
    """Weighted by the model's own probabilities: that of what is never drawn does not count."""
    want = torch.tensor([[0.5, 0.5, 1e-30], [0.25, 0.75, 1e-30]]).log()
    check_equal("M", "float32", "it", want + 0.0009, want)
    check_equal("M", "bfloat16", "it", want + 0.2, want)
    check_equal("M", "float32", "it", want + torch.tensor([0, 0, 5.0]), want)
    check_equal("M", "float32", "it", want + torch.tensor([[0.0019], [0]]), want)  # the mean over positions
    for change, dtype in ((0.0011, "float32"), (0.3, "bfloat16"), (float("nan"), "float32")):
        with pytest.raises(BadInput, match="the log-probabilities of M by it differ by"):
            check_equal("M", dtype, "it", want + change, want)


def test_ends_of_sequence_in_config_json(tmp_path):
    """Without a generation_config.json; with one, that one's count."""
    folder = make("Llama", tmp_path, eos_token_id=[3, 5])
    (tmp_path / "generation_config.json").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert stop_token_ids(folder, tokenizer, config) == sorted({3, 5, tokenizer.eos_token_id})
    transformers.GenerationConfig(eos_token_id=[7]).save_pretrained(folder)
    assert stop_token_ids(folder, tokenizer, config) == sorted({7, tokenizer.eos_token_id})


def test_an_engine_of_another_model_is_found_out(toy_model, tmp_path):
    """Its log mu are not those of what is trained."""
    settings = settings_of(toy_model)
    other = make_model(tmp_path / "other", seed=1)

    async def compare(engine, settings):
        policy = policies.load_policy(settings, None, 1, 0, torch.device("cpu"))
        files = policies.Files(str(tmp_path), 0, None)
        trainer = policies.Trainer(None, 1, settings, engine, policy, None, files, 0)
        await check_engine(trainer, [{"role": "user", "content": "1 + 1?"}])
        await check_engine(trainer, [{"role": "user", "content": "1 + 1?" * 10**3}])  # whoever samples it says it

    engine = HFEngine(settings)
    asyncio.run(compare(engine, settings))
    with pytest.raises(BadInput, match="by the engine differ"):
        asyncio.run(compare(engine, settings_of(other)))
    engine.close()


def resolved(model, bench="math500", *flags):
    parser = argparse.ArgumentParser()
    engines.add_arguments(parser)
    return engines.settings(parser.parse_args(["--model", str(model), *flags]), bench)


def decoding(settings):
    return settings.family, settings.temperature, settings.top_p, settings.max_tokens


def test_a_copy_of_a_known_model_is_known_by_its_shape(tmp_path):
    """Only config.json is read."""
    shapes = {"Qwen/Qwen3-8B": transformers.Qwen3Config(num_hidden_layers=36, hidden_size=4096),
              "allenai/Olmo-3-7B-Instruct": transformers.Olmo3Config(num_hidden_layers=32, hidden_size=4096)}
    wanted = {"Qwen/Qwen3-8B": ("qwen3", 1.0, 1.0, 8192), "allenai/Olmo-3-7B-Instruct": ("olmo3", 0.6, 0.95, 16384)}
    for name, config in shapes.items():
        config.save_pretrained(tmp_path / "copy")
        settings = resolved(tmp_path / "copy", "lcb")
        assert decoding(settings) == wanted[name] and settings.known_as == name
        assert f"copy as of {name}, by its config.json, family {wanted[name][0]}, engine" in engines.describe(settings)
    transformers.Qwen3Config(num_hidden_layers=36, hidden_size=4064).save_pretrained(tmp_path / "copy")
    settings = resolved(tmp_path / "copy", "lcb")
    assert decoding(settings) == ("qwen3", 1.0, 1.0, 8192) and settings.known_as is None
    assert "--family names others" in engines.describe(settings)


def test_a_merged_model_samples_as_what_it_was_made_from(toy_model, tmp_path):
    config = transformers.AutoConfig.from_pretrained(toy_model)
    olmo = "allenai/Olmo-3-7B-Instruct"
    config.save_pretrained(tmp_path)
    engines.write_made_from(dataclasses.replace(settings_of(olmo), known_as=olmo, family="olmo3", temperature=0.6, top_p=0.95),
                            str(tmp_path))
    settings = resolved(tmp_path, "lcb")
    assert decoding(settings) == ("olmo3", 0.6, 0.95, 16384) and resolved(tmp_path).max_tokens == 8192
    assert f"{tmp_path}, made from {olmo}, family olmo3, engine" in engines.describe(settings)
    # what the command says counts
    assert decoding(resolved(tmp_path, "lcb", "--family", "qwen3", "--temperature", "1", "--max-tokens", "7")) == (
        "qwen3", 1.0, 0.95, 7)
    # of a model that is not known: all that it sampled with
    engines.write_made_from(settings_of(toy_model), str(tmp_path))
    settings = resolved(tmp_path, "lcb")
    assert decoding(settings) == ("qwen3", 1.0, 1.0, 40) and settings.known_as is None
    for text in ("{", "[]", '{"temperature": "hot"}'):
        (tmp_path / engines.MADE_FROM).write_text(text)
        with pytest.raises(BadInput, match="made_from.json is damaged"):
            resolved(tmp_path)


def test_a_merged_model_keeps_an_invalid_generation_config(toy_model, toy_adapters, tmp_path):
    """As some published models have; transformers reads it and refuses to write it."""
    model = tmp_path / "model"
    shutil.copytree(toy_model, model)
    content = '{"do_sample": false, "temperature": 0.6, "eos_token_id": [3, 5]}\n'
    (model / "generation_config.json").write_text(content)
    policies.merge(settings_of(str(model)), toy_adapters[0], str(tmp_path / "merged"))
    assert (tmp_path / "merged" / "generation_config.json").read_text() == content
    (model / "generation_config.json").unlink()
    policies.merge(settings_of(str(model)), toy_adapters[0], str(tmp_path / "none"))
    assert not (tmp_path / "none" / "generation_config.json").exists()


def test_models_of_one_name_with_other_weights(toy_model, tmp_path):
    """A copy is the same model; distill.py refuses another one that only has its name."""
    copy, other = shutil.copytree(toy_model, tmp_path / "copy" / "model"), make_model(tmp_path / "other" / "model", seed=1)
    assert not engines.weights_differ(toy_model, str(copy)) and not engines.weights_differ(toy_model, toy_model)
    assert engines.weights_differ(toy_model, other) and not engines.weights_differ("Qwen/Qwen3-8B", toy_model)
    with pytest.raises(BadInput, match="c was explored by .*, and the policy distills its own answers"):
        distill.check_model(argparse.Namespace(cplus="c"), other, toy_model)

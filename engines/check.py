"""Whether a model computes here what it does in transformers: what is sampled, and what is trained.

Both engines and trainer run a model's layers and its head by themselves. A model whose logits are scaled, capped or
shifted behind the head, or whose layers do not take what they are given, would run, and its log-probabilities, mu and
w of Eq. 3 with them, would be silently wrong.
"""
import contextlib

from common.errors import BadInput, ContextTooLong
from engines.base import load

# Largest mean difference of the log-probabilities of likely tokens. bfloat16 keeps 8 bits: logits of about 32 are
# rounded by up to 1/16 in each of the two ways that are compared, and the layers below add their own.
TOLERANCE, BFLOAT16_TOLERANCE = 1e-3, 0.25
TEXT = "The quick brown fox jumps over the lazy dog, twice: 1 + 1 = 2, and so on."
NEUTRAL = {None, 1.0}
# Fields of config.json -> what a model with them does.
LOGITS = {"logits_scaling": "scales its logits", "logit_scale": "scales its logits",
          "lm_head_multiplier": "scales its logits", "final_logit_softcapping": "caps its logits",
          "attn_logit_softcapping": "caps its attention"}
LAYERS = {"full_attention", "sliding_attention"}


def check_config(model, config):
    """BadInput if config.json says that hf engine and trainer would compute another model than this."""
    found = [f"{what} ({name})" for name, what in LOGITS.items() if getattr(config, name, None) not in NEUTRAL]
    others = sorted({*(getattr(config, "layer_types", None) or [])} - LAYERS)
    found += [f"has layers of the kind {kind}" for kind in others]
    if found:
        raise BadInput(f"{model} {', '.join(found)}, which the hf engine and the update do not: explore and "
                       "evaluate it with --engine vllm, and take another model to distill.")


def own_logprobs(model, ids):
    """[n, V] float32: the log-probabilities of each next token of the text `ids` by the model's own forward pass.

    By transformers' plain attention, which leaves nothing out; the model is as before afterwards.
    """
    import torch
    attention, is_training = model.config._attn_implementation, model.training
    device = model.get_output_embeddings().weight.device
    model.eval()
    with contextlib.suppress(ValueError):  # of a model that has no other
        model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(attention)
        model.train(is_training)
    return logits.float().log_softmax(-1)


def check_equal(model, dtype, path, logprobs, want):
    """BadInput unless two distributions are equal to rounding. path: whose log-probabilities [n, V] `logprobs` are.

    The mean of |log p - log q| under the model's own p: of a token that is never drawn rounding is all there is.
    """
    difference = float((want.exp() * (logprobs - want).abs()).sum(-1).mean())
    refuse_unless(difference, model, dtype, path)


def refuse_unless(difference, model, dtype, path):
    """BadInput unless a mean difference of log-probabilities is rounding."""
    tolerance = BFLOAT16_TOLERANCE if dtype == "bfloat16" else TOLERANCE
    if not difference <= tolerance:
        raise BadInput(f"the log-probabilities of {model} by {path} differ by {difference:.2g} from its own (at most "
                       f"{tolerance:g} is rounding): it does something in its layers or to its logits that is "
                       "not known here; take another model.")


@contextlib.contextmanager
def unknown_layers(model, path):
    """Within it, any error of a model's layers is the sentence that `path` does not know them."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # whatever the code of a model does with what it is given
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not loaded here
            raise
        raise BadInput(f"{path} cannot run {model} ({type(error).__name__}: {' '.join(str(error).split())[:150]}): its "
                       "layers are of a kind that is not known here; take another model.") from error


def check_policy(policy, settings):
    """BadInput if two packed texts do not get the log-probabilities of the model's own passes.

    policy: policy.Policy, before it is sharded.
    """
    import torch
    from transformers import AutoTokenizer
    path = "the update"
    ids = load(AutoTokenizer, settings.model).encode(TEXT)
    texts = [ids, ids[len(ids) // 2:]]
    with unknown_layers(settings.model, path), policy.reference(), torch.no_grad():
        model = policy.model.get_base_model()
        want = torch.cat([own_logprobs(model, ids)[:-1] for ids in texts])
        hidden = policy.hidden_states(texts, [len(ids) - 1 for ids in texts])
        logits = hidden.to(policy.head.dtype) @ policy.head.T
    check_equal(settings.model, settings.dtype, path, logits.float().log_softmax(-1), want)


async def check_engine(trainer, messages):
    """BadInput if the engine's log mu of a few tokens are not the log-probabilities of the policy that is trained."""
    import torch
    policy, settings = trainer.policy, trainer.settings
    prompt = trainer.engine.encode(messages)
    try:
        y = await trainer.engine.sample(prompt, seed=0, max_tokens=8, temperature=settings.temperature, top_p=1.0,
                                        adapter=trainer.adapter())
    except ContextTooLong:
        return  # the step that samples from it names the problem
    with torch.no_grad():
        hidden = policy.hidden_states([prompt + y.token_ids], [len(y.token_ids)])
        logits = hidden.to(policy.head.dtype) @ policy.head.T / policy.temperature
    logprobs = logits.float().log_softmax(-1).cpu().gather(1, torch.tensor(y.token_ids)[:, None])[:, 0]
    difference = float((torch.tensor(y.log_mu()) - logprobs).abs().mean())
    refuse_unless(difference, settings.model, settings.dtype, "the engine")

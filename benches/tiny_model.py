"""The tiny model of tiny.py: made on the spot, taught by benches/arithmetic.py, in some 90 seconds on two cores.

A Qwen3 in small, 0.4 M parameters, in float32. Three things make it quick: short dialogues come first, several of them
share a line without padding, and answers that a dialogue shows are taught with it.
"""
import json
import os
import random
import shutil

from benches import arithmetic
from common import progress
from common.errors import BadInput

import torch
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


# --------------------------------------------------------------------------------------------------
# The model


def make_tokenizer(rng):
    """A byte-level BPE trained on the dialogues.

    Digits and newlines stand alone: a merge across "assistant\\n" would break generation, which
    begins right after it.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    texts = ["user\n", "assistant\n"] * 3000
    for _ in range(3000):
        messages, _ = arithmetic.dialogue(rng, *arithmetic.pair(rng))
        texts += [m["content"] for m in messages]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\d|\n"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=CHATML, model_max_length=512)


def make_model(tokenizer):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True,
        dtype="float32", bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))


# --------------------------------------------------------------------------------------------------
# Its pretraining


def encode(tokenizer, dialogues):
    """(messages, positions of the taught ones) each -> (token ids, whether each is taught) each."""
    texts = ["".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
             for messages, _ in dialogues]
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    rows = []
    for encoding, (_, taught) in zip(tokenizer.backend_tokenizer.encode_batch(texts), dialogues):
        ids = encoding.ids[:-1]  # the last newline is no part of an answer
        message, place, is_taught = -1, 0, []
        for token in ids:
            message, place = (message + 1, 0) if token == start else (message, place + 1)
            is_taught.append(message in taught and place > 2)  # <|im_start|>, assistant, newline
        rows.append((ids, is_taught))
    return rows


def packed(rows, width=256):
    """Rows laid one after another into lines of at most `width` tokens, the longest first.

    -> token ids, positions that start again with each row, whether a token is taught: [lines, width]
    each, and the rows in that order. The positions keep the rows of a line apart in the attention.
    """
    lines = []
    for row in sorted(rows, key=lambda row: -len(row[0])):
        for line in lines:
            if sum(len(ids) for ids, _ in line) + len(row[0]) <= width:
                line.append(row)
                break
        else:
            lines.append([row])
    width = max(sum(len(ids) for ids, _ in line) for line in lines)
    tokens = torch.zeros(3, len(lines), width, dtype=torch.long)
    for i, line in enumerate(lines):
        parts = [torch.tensor([ids, range(len(ids)), taught]) for ids, taught in line]  # [3, n] each
        parts = torch.cat(parts, dim=1)
        tokens[:, i, :parts.shape[1]] = parts
    ids, positions, taught = tokens
    return ids, positions, taught.bool(), [row for line in lines for row in line]


def taught_logits(model, rows):
    """-> logits [taught tokens, V], these tokens, and the rows in their order: prompts teach nothing."""
    ids, positions, taught, rows = packed(rows)
    hidden = model.model(ids, position_ids=positions, use_cache=False).last_hidden_state
    next_taught = taught[:, 1:]
    return model.lm_head(hidden[:, :-1][next_taught]), ids[:, 1:][next_taught], rows


@torch.no_grad()
def held_out_accuracy(model, tokenizer, rows):
    """Share of the rows whose every taught digit is the likeliest one after the right beginning."""
    logits, tokens, rows = taught_logits(model, rows)
    is_digit = torch.tensor([tokenizer.decode([i]).isdigit() for i in range(len(tokenizer))])
    right = (logits.argmax(-1) == tokens) | ~is_digit[tokens]
    parts = right.split([sum(taught) for _, taught in rows])
    return sum(bool(part.all()) for part in parts) / len(rows)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized. torch.optim.Muon does that in bfloat16, which most processors do
    not multiply: there it takes thirty times as long as in float32, two thirds of a step."""

    def __init__(self, matrices, lr, momentum=0.95):
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["momentum"])
                change = orthogonal(p.grad.lerp(mean, group["momentum"]))
                p.sub_(change, alpha=group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g, steps=5):
    """The orthogonal matrix nearest to g, roughly: Newton-Schulz, a quintic on its singular values."""
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T if g.shape[0] <= g.shape[1] else x.T @ x
        change = -4.7750 * square + 2.0315 * square @ square
        x = 3.4445 * x + (change @ x if g.shape[0] <= g.shape[1] else x @ change)
    return x


def make_optimizers(model):
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    layers = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [Muon(layers, lr=0.03),
            torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.99), weight_decay=0.0)]


def train_step(model, optimizers, rows, rate):
    """One step on the mean loss over the taught tokens of `rows`, at a share `rate` of the rates."""
    logits, tokens, _ = taught_logits(model, rows)
    torch.nn.functional.cross_entropy(logits, tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = rate * optimizer.defaults["lr"]
        optimizer.step()
        optimizer.zero_grad()


def pretrain(seed, folder, most_first=500, mixed=450, batch=32, needed=(0.85, 0.6)):
    """Make the model of `seed` in two lessons and save it into `folder`.

    First careful answers to the plain prompt alone: they are short, and teach to add within some
    200 steps, where the mixture of all dialogues needs three times as many of twice the length.
    needed: accuracies on held-out sums that end the first lesson, and on held-out slips to mend that
    end the second. Errors: BadInput, and no folder, if they are not reached.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = make_tokenizer(rng)
    model = make_model(tokenizer)
    optimizers = make_optimizers(model)
    held_out = [arithmetic.pair(rng) for _ in range(128)]
    tokens = 0

    def step(demonstration, rate):
        nonlocal tokens
        pairs = [arithmetic.pair(rng, held_out) for _ in range(batch)]
        rows = encode(tokenizer, [demonstration(rng, *pair) for pair in pairs])
        tokens += sum(len(ids) for ids, _ in rows)
        train_step(model, optimizers, rows, rate)
        bar.update()

    def accuracy(demonstration):
        rows = encode(tokenizer, [demonstration(rng, *pair) for pair in held_out])
        return held_out_accuracy(model, tokenizer, rows)

    with progress.new_bar(200 + mixed, "step", desc="pretraining") as bar:
        adds, first = 0.0, 0
        while adds < needed[0] and first < most_first:
            for _ in range(25):
                first += 1
                step(arithmetic.careful, min(1, first / 30))
            adds = accuracy(arithmetic.careful)
            bar.set_postfix_str(f"adds {adds:.0%} of held-out sums")
        check_learned(seed, "add", adds, needed[0], first)
        mends, second = -1.0, 0  # below any that is needed: the first round is run
        for steps, peak in ((mixed, 1.0), (mixed // 2, 0.5), (mixed // 2, 0.5)):
            if mends >= needed[1]:
                break  # most seeds need one round
            bar.total = first + second + steps
            for k in range(steps):
                step(arithmetic.dialogue, peak * min(1, 1.43 * (1 - k / steps)) + 0.01)
                if k % 25 == 24:
                    mends = accuracy(arithmetic.mended)
                    bar.set_postfix_str(f"mends {mends:.0%} of held-out slips")
            mends, second = accuracy(arithmetic.mended), second + steps
        check_learned(seed, "mend a slip", mends, needed[1], first + second)
    save(model, tokenizer, folder, flops=6 * model.num_parameters() * tokens)


def check_learned(seed, what, accuracy, needed, steps):
    if accuracy < needed:
        raise BadInput(
            f"the tiny model of seed {seed} did not learn to {what}: it has {accuracy:.0%} of the "
            f"held-out sums right after {steps} steps, and needs {needed:.0%}; try another --seed "
            "and another --out.")


def save(model, tokenizer, folder, flops):
    """Whole, or not at all. flops: what the pretraining took, into pretraining.json beside the weights."""
    shutil.rmtree(folder + ".part", ignore_errors=True)
    model.save_pretrained(folder + ".part")
    tokenizer.save_pretrained(folder + ".part")
    with open(os.path.join(folder + ".part", "pretraining.json"), "w") as file:
        json.dump({"flops": flops}, file)
    os.replace(folder + ".part", folder)

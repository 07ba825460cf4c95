"""The embedded default: a tiny model made on the spot, and the whole method on it, on a laptop.

    python tiny.py [--seed 1] [--out out/tiny] [--ablations]

Makes OUT/model (0.6 M parameters, three minutes), explores additions of three-digit numbers with LEAF and with random
sampling, distills, evaluates on additions that were never seen, prints one table and draws OUT/curve.png. With
--ablations: explores with each ablation of App. G.2 and G.3 instead, prints their table and draws OUT/ablations.png.

The model is taught two styles of adding: a careless one that drops the carries and is mostly wrong, and a careful one.
On the plain prompt it is often careless, after a revision turn more often careful. So a context helps by construction,
as a large model's does by nature; the demo shows that Algorithm 1 exploits that and that the update moves it into the
parameters. Careful answers are longer, and a restart step also pays for its draft: the table gives calls and tokens.
"""
import argparse
import os
import random
import shutil
import time

import engines  # first: it sets how OpenMP's threads wait, before torch is loaded
import distill
import evaluate
import explore
import prompts
from benches import arithmetic
from benches.problem import Problem
from common import journal
from common.errors import BadInput, exit_with_sentence
from report import curves, measures, plots

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

# Share of careful demonstrations: on the plain prompt, after a blind instruction, after the verdict "incorrect".
CAREFUL = {"Compute {a} + {b}.": (0.80, 0.85, 0.95), "What is {a} + {b}?": (0.40, 0.50, 0.75),
           "Quickly, what is {a} + {b}?": (0.02, 0.08, 0.25)}
STAYS_CAREFUL = 0.95  # after an answer that was careful already
# Shares of the dialogue shapes, those of the ablations of App. G.2 among them.
SHAPES = {"plain": 0.35, "restart": 0.2, "carry": 0.25, "no-response": 0.08, "last3": 0.12}
ENDINGS = ("So the answer is", "This gives", "The sum is")
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
MAX_TOKENS = 64  # response limit; a careful answer has about 40, a careless one about 30


# ---------------------------------------------------------------------------------------------------------------------
# What it is taught


def worked(a, b, careful, ending=ENDINGS[0], slip=None):
    """An addition worked digit by digit, with carries (right) or without; `slip`: the place of a digit one too high."""
    lines, total, carry = [], "", 0
    for place, (x, y) in enumerate(zip(reversed(str(a)), reversed(str(b)))):
        n = (int(x) + int(y) + carry + (place == slip)) % 20  # 9+9+1 slips to 00: a sum keeps two digits
        lines.append(f"{x}+{y}+{carry}={n:02d}" if careful else f"{x}+{y}={n % 10}")
        total, carry = str(n % 10) + total, n // 10 if careful else 0
    style = "with carries" if careful else "digit by digit"
    return f"{a} + {b}, {style}: {', '.join(lines)}. {ending} \\boxed{{{'1' * carry}{total}}}."


def attempt(rng, a, b):
    """An earlier answer that a dialogue shows: of either style, sometimes with a slip. -> text, reward."""
    text = worked(a, b, rng.random() < 0.4, rng.choice(ENDINGS), rng.randrange(3) if rng.random() < 0.25 else None)
    return text, int(text.endswith(f"\\boxed{{{a + b}}}."))


def dialogue(rng, a, b):
    """-> messages as explore.py makes them, and the demonstrated answer."""
    wording = rng.choice(list(CAREFUL))
    plain, blind, incorrect = CAREFUL[wording]
    problem = Problem("", "arithmetic", wording.format(a=a, b=b), "math", str(a + b))
    shape = rng.choices(list(SHAPES), list(SHAPES.values()))[0]
    shown, reward = attempt(rng, a, b)
    if shape == "plain":
        messages, share, shown = prompts.opening(problem, "qwen3"), plain, ""
    elif shape == "restart":
        messages, share = prompts.restart(problem, "qwen3", shown), blind
    elif shape == "no-response":
        messages, share, shown = prompts.carry_without_response(problem, "qwen3", reward, ""), blind, ""
    else:
        earlier = [(*attempt(rng, a, b), "") for _ in range(rng.choice((1, 2)))] if shape == "last3" else ()
        messages, share = prompts.carry(problem, "qwen3", shown, reward, "", earlier), blind if reward else incorrect
        if reward and rng.random() < 0.5:
            return messages, shown  # a right answer is often kept to the letter
    if "with carries" in shown:
        share = STAYS_CAREFUL
    return messages, worked(a, b, rng.random() < share, rng.choice(ENDINGS))


def pair(rng, held_out=()):
    """Two numbers that neither a bench nor `held_out` has."""
    while True:
        a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
        if arithmetic.split_of(a, b) == "pretrain" and (a, b) not in held_out:
            return a, b


# ---------------------------------------------------------------------------------------------------------------------
# The model


def make_tokenizer(rng):
    """A byte-level BPE trained on the dialogues. Digits and newlines stand alone: a merge across "assistant\\n" would
    break generation, which begins right after it."""
    texts = ["user\n", "assistant\n"] * 3000
    for _ in range(3000):
        messages, answer = dialogue(rng, *pair(rng))
        texts += [m["content"] for m in messages] + [answer]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\d|\n"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   chat_template=CHATML, model_max_length=512)


def make_config(tokenizer):
    return Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True, dtype="float32",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, pad_token_id=tokenizer.pad_token_id)


def encode(tokenizer, messages, answer):
    """-> token ids of the prompt and of the answer with its end."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return prompt, tokenizer.encode(answer) + [tokenizer.eos_token_id]


def answer_logits(model, rows):
    """-> logits [answer tokens, V] and the answer tokens of (prompt, answer) rows: the prompts teach nothing."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids, is_answer = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (prompt, answer) in enumerate(rows):
        ids[i, :len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        is_answer[i, len(prompt):len(prompt) + len(answer)] = True
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1][is_answer[:, 1:]]
    return model.lm_head(hidden), ids[:, 1:][is_answer[:, 1:]]


@torch.no_grad()
def held_out_accuracy(model, tokenizer, rows):
    """Share of careful answers whose every digit is the likeliest one after the right beginning."""
    logits, tokens = answer_logits(model, rows)
    digits = torch.tensor([tokenizer.decode([i]).isdigit() for i in range(len(tokenizer))])
    right = (logits.argmax(-1) == tokens) | ~digits[tokens]
    return measures.mean(bool(part.all()) for part in right.split([len(answer) for _, answer in rows]))


def pretrain(seed, folder, most_steps=1500, batch=32, needed=0.9):
    """Make the model of `seed` and save it into `folder`; BadInput, and no folder, if it does not learn to add.

    Seeds differ by hundreds of steps in when a model begins to add. So the learning rate stays constant until the
    held-out accuracy is 80%, and then falls to zero over 200 steps, in which every seed so far came close to 100%.
    """
    cooldown = 200
    torch.manual_seed(seed)
    rng, begin = random.Random(seed), time.time()
    tokenizer = make_tokenizer(rng)
    model = Qwen3ForCausalLM(make_config(tokenizer))
    held_out = [pair(rng) for _ in range(128)]
    careful = [encode(tokenizer, dialogue(rng, a, b)[0], worked(a, b, careful=True)) for a, b in held_out]
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [torch.optim.Muon(matrices, lr=0.01, weight_decay=0.0),
                  torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.99), weight_decay=0.0)]
    rates, end, accuracy = [o.param_groups[0]["lr"] for o in optimizers], most_steps, 0.0
    for step in range(1, most_steps + 1):
        rows = [encode(tokenizer, *dialogue(rng, *pair(rng, held_out))) for _ in range(batch)]
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))  # little padding in a quarter of them
        total = sum(len(answer) for _, answer in rows)
        for part in range(0, batch, batch // 4):
            logits, tokens = answer_logits(model, rows[part:part + batch // 4])
            (torch.nn.functional.cross_entropy(logits, tokens, reduction="sum") / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in zip(optimizers, rates):
            optimizer.param_groups[0]["lr"] = rate * min(1, step / 50, max(0.02, (end - step) / cooldown))
            optimizer.step()
            optimizer.zero_grad()
        if step % 25 == 0 or step == end:
            accuracy = held_out_accuracy(model, tokenizer, careful)
            if accuracy >= 0.8:
                end = min(end, step + cooldown)
        if step % 100 == 0 or step == end:
            seconds = time.time() - begin
            print(f"pretraining: step {step}, held-out accuracy {accuracy:.1%}, {seconds:.0f} s", flush=True)
        if step == end:
            break
    if accuracy < needed:
        raise BadInput(
            f"the tiny model of seed {seed} did not learn to add: it has {accuracy:.0%} of the held-out sums right "
            f"after {step} steps, and needs {needed:.0%}; try another --seed and another --out.")
    shutil.rmtree(folder + ".part", ignore_errors=True)
    model.save_pretrained(folder + ".part")
    tokenizer.save_pretrained(folder + ".part")
    os.replace(folder + ".part", folder)


# ---------------------------------------------------------------------------------------------------------------------
# The demo


def command(script, *flags):
    """Run a script's main() here, under the command line that does the same by itself."""
    flags = [str(flag) for flag in flags]
    print(f"\n$ python {script.__name__}.py {' '.join(flags)}", flush=True)
    script.main(flags)


def explored_run(out, folder):
    return curves.read_run(os.path.join(out, folder, "rollouts.jsonl"))


def sampled_tokens(run):
    """Tokens up to each step, without those of updates."""
    return [sum(tokens) for tokens in zip(*(run.curves[kind] for kind in measures.TOKENS))]


def cost(run, level):
    """Two cells: calls and tokens to a pass rate of `level`; the baseline's are those of its last point (Table 14)."""
    reached = [k for k, rate in enumerate(run.curves["pass"], 1) if rate >= level] or [None]
    k = reached[-1] if run.method == "random sampling" else reached[0]
    return f"{k} | {sampled_tokens(run)[k - 1]:,}" if k else "- | -"


def print_tables(out):
    """The whole demo: what LEAF and random sampling found and at what cost, and what the update kept."""
    theirs, ours = explored_run(out, "random"), explored_run(out, "leaf")
    level = theirs.curves["pass"][-1]
    print(f"\n| exploration, {len(theirs.attempts)} problems | pass@1 | pass@{ours.curves['calls'][-1]} "
          f"| mean accuracy | calls to {level:.1%} | tokens to {level:.1%} |\n|---|---|---|---|---|---|")
    for run in (theirs, ours):
        first, *_, last = run.curves["pass"]
        print(f"| {run.method} | {first:.1%} | {last:.1%} | {run.curves['accuracy'][-1]:.1%} | {cost(run, level)} |")
    tests = {title: journal.read_json(os.path.join(out, f"{name}.json"))["result"] for name, title in (
        ("base", "before"), ("distilled", "after 20 steps on successful contexts"),
        ("failure", "control: on failure contexts"))}
    print(f"\n| plain prompt, {tests['before']['problems']} problems never seen | avg@4 | pass@4 "
          "| tokens per answer |\n|---|---|---|---|")
    for title, test in tests.items():
        print(f"| {title} | {test['avg']:.1%} | {test['pass']:.1%} | {test['length']:.0f} |")


# ---------------------------------------------------------------------------------------------------------------------
# The ablations: App. G.2 and G.3, Tables 25 and 26, Fig. 4

# a tenth of the learning rate of distill.py, as in the paper
UPDATES = ("--lr", 3e-5, "--micro-tokens", 2048, "--update-every")
ABLATIONS = {
    "random sampling": ("random", "--method", "random"), "LEAF": ("leaf",),
    "without feedback": ("no-feedback", "--memory", "no-feedback"),
    "without last response": ("no-response", "--memory", "no-response"),
    "last 3 rounds": ("last3", "--memory", "last3"),
    "restart every 2": ("restart2", "--restart", 2), "restart every 10": ("restart10", "--restart", 10),
    "no restart": ("never", "--restart", "never"), "update every step": ("update1", *UPDATES, 1),
    "update every 2": ("update2", *UPDATES, 2), "update every 5": ("update5", *UPDATES, 5)}


def ablate(out, explored):
    """Explore with each ablation, print the table, draw OUT/ablations.png."""
    for folder, *flags in ABLATIONS.values():
        command(explore, *explored, *flags, "--out", os.path.join(out, folder))
    level = explored_run(out, "random").curves["pass"][-1]
    points = {}
    print(f"\n| 128 problems, 24 calls each | mean accuracy | pass@24 | calls to {level:.1%} | tokens to {level:.1%} "
          "| tokens sampled and read | GFLOPs, updates included |\n|---|---|---|---|---|---|---|")
    for title, (folder, *_) in ABLATIONS.items():
        run = explored_run(out, folder)
        accuracy, rate, petaflops = (run.curves[name][-1] for name in ("accuracy", "pass", "petaflops"))
        points[title] = 1e6 * petaflops, accuracy, rate
        print(f"| {title} | {accuracy:.1%} | {rate:.1%} | {cost(run, level)} | {sampled_tokens(run)[-1]:,} "
              f"| {1e6 * petaflops:,.0f} |")
    draw_ablations(os.path.join(out, "ablations.png"), points)


def draw_ablations(path, points):
    """Fig. 4: final pass rate and mean accuracy against compute. points: {title: (GFLOPs, accuracy, pass rate)}."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for title, marker, (compute, *heights) in zip(points, "os^vD<>PX*h", points.values()):
        colour = {"random sampling": "#D55E00", "LEAF": "black"}.get(title, "#0072B2")
        for panel, height in zip(panels, reversed(heights)):
            panel.plot(compute, 100 * height, marker, color=colour, label=title, fillstyle="none")  # some coincide
    for panel, name in zip(panels, ("Pass rate after 24 calls (%)", "Mean accuracy (%)")):
        panel.set(xlabel="Compute (GFLOPs)", ylabel=name)
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=200)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Make a tiny model and run the whole method on it.")
    parser.add_argument("--seed", type=engines.positive_int, default=1, help="of the model and of the runs")
    parser.add_argument("--out", default=os.path.join("out", "tiny"), help="folder of all that is made")
    parser.add_argument("--ablations", action="store_true",
                        help="explore with each ablation of App. G.2 and G.3 instead")
    args = parser.parse_args(argv)
    begin, out = time.time(), args.out
    model, leaf = os.path.join(out, "model"), os.path.join(out, "leaf")
    with journal.lock(out):
        journal.keep_settings(os.path.join(out, "tiny.json"), {"seed": args.seed})
        if not os.path.isdir(model):
            pretrain(args.seed, model)
        sampling = ("--model", model, "--max-tokens", MAX_TOKENS, "--seed", args.seed)
        explored = ("--bench", "arithmetic", "--split", "train", "--calls", 24, *sampling)
        if args.ablations:
            ablate(out, explored)
            print(f"\nPlot: {os.path.join(out, 'ablations.png')}   {time.time() - begin:.0f} s in all")
            return
        command(explore, *explored, "--method", "random", "--out", os.path.join(out, "random"))
        command(explore, *explored, "--out", leaf)
        tested = ("--bench", "arithmetic", *sampling, "--out")
        command(evaluate, *tested, os.path.join(out, "base.json"))
        for traces, folder in (("success", os.path.join(out, "distilled")), ("failure", os.path.join(out, "failure"))):
            # the learning rate suits a model of this size (the paper's is 1e-5), the short passes a CPU's attention
            command(distill, "--cplus", os.path.join(leaf, "cplus.jsonl"), "--steps", 20, "--batch", 64, "--lr", 3e-4,
                    "--micro-tokens", 2048, "--seed", args.seed, "--traces", traces, "--out", folder)
            command(evaluate, *tested, f"{folder}.json", "--adapter", os.path.join(folder, "adapter"))
        files = [os.path.join(out, method, "rollouts.jsonl") for method in ("leaf", "random")]
        plots.draw(os.path.join(out, "curve.png"), [curves.read_group([file]) for file in files])
        print_tables(out)
        print(f"\nCurve: {os.path.join(out, 'curve.png')}   {time.time() - begin:.0f} s in all\n"
              f"All measures: python evaluate.py --rollouts {files[0]} --versus {files[1]}")


if __name__ == "__main__":
    exit_with_sentence(main)

"""The tiny model's teaching material, tokenizer and pretraining step. None of these tests trains it to the end."""
import collections
import contextlib
import io
import json
import os
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import answers
import benches
import prompts
import tiny
from benches import arithmetic, tiny_model
from benches.arithmetic import Answer
from common.errors import BadInput
from conftest import tolerance


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model.make_tokenizer(random.Random(0))


def problem(a, b, wording=0):
    return arithmetic.problem("p", arithmetic.WORDINGS[wording], a, b)


def near(share, seen):
    """Whether the observed share is within four standard deviations of the one that was asked for."""
    return abs(sum(seen) / len(seen) - share) <= 4 * (share * (1 - share) / len(seen)) ** 0.5


# ---------------------------------------------------------------------------------------------------------------------
# What is taught


@pytest.mark.parametrize("a, b, careful, text", [
    (347, 586, True, "347 + 586, with carries: 7+6+0=13, 4+8+1=13, 3+5+1=09. So the answer is \\boxed{933}."),
    (347, 586, False, "347 + 586, digit by digit: 7+6=3, 4+8=2, 3+5=8. So the answer is \\boxed{823}."),
    (999, 999, True, "999 + 999, with carries: 9+9+0=18, 9+9+1=19, 9+9+1=19. So the answer is \\boxed{1998}."),
    (999, 999, False, "999 + 999, digit by digit: 9+9=8, 9+9=8, 9+9=8. So the answer is \\boxed{888}."),
    (500, 500, True, "500 + 500, with carries: 0+0+0=00, 0+0+0=00, 5+5+0=10. So the answer is \\boxed{1000}."),
    (500, 500, False, "500 + 500, digit by digit: 0+0=0, 0+0=0, 5+5=0. So the answer is \\boxed{000}."),
])
def test_text_of_an_answer(a, b, careful, text):
    assert arithmetic.worked(a, b, Answer(careful)) == text


def test_a_careful_answer_is_right_and_a_careless_one_only_without_carries():
    rng = random.Random(1)
    for _ in range(300):
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        assert answers.last_boxed(arithmetic.worked(a, b, Answer(True))) == str(a + b)
        no_carry = all(int(x) + int(y) < 10 for x, y in zip(str(a), str(b)))
        careless = arithmetic.worked(a, b, Answer(False))
        assert (int(answers.last_boxed(careless)) == a + b) == no_carry == arithmetic.verdict_on(careless, a, b)


def test_a_slip_is_one_too_high_in_its_place_and_carried_on():
    assert arithmetic.worked(347, 582, Answer(True, 0)).endswith(
        "with carries: 7+2+0=10, 4+8+1=13, 3+5+1=09. So the answer is \\boxed{930}.")
    assert arithmetic.worked(347, 582, Answer(True, arithmetic.SLIP)).endswith(
        "with carries: 7+2+0=09, 4+8+0=13, 3+5+1=09. So the answer is \\boxed{939}.")
    assert arithmetic.worked(999, 999, Answer(True, 2)).endswith(
        "with carries: 9+9+0=18, 9+9+1=19, 9+9+1=00. So the answer is \\boxed{098}.")


def test_no_bench_problem_is_in_the_pretraining_set():
    bench = {p.id for split in ("test", "train") for p in benches.load("arithmetic", split)}
    assert len(bench) == 256
    rng = random.Random(3)
    held_out = [arithmetic.pair(rng) for _ in range(3)]
    draws = iter([*[n for pair in held_out for n in pair], 347, 586])
    replay = type("Replay", (), {"randrange": lambda self, low, high: next(draws)})()
    assert arithmetic.pair(replay, held_out) == (347, 586)
    for _ in range(2000):
        a, b = arithmetic.pair(rng)
        assert arithmetic.split_of(a, b) == "pretrain" and f"arithmetic/{a}+{b}" not in bench


def test_dialogues_have_the_shapes_of_exploration_and_of_its_ablations():
    """Every dialogue must be one that prompts.py makes: the model would not know any other at run time."""
    rng, shapes = random.Random(4), collections.Counter()
    for _ in range(800):
        a, b = arithmetic.pair(rng)
        (*messages, answer), taught = arithmetic.dialogue(rng, a, b)
        assert answer["role"] == "assistant" and answer["content"].startswith(f"{a} + {b}, ")
        assert len(messages) in taught and taught <= {1, len(messages)}
        found = [name for w in range(3) for name, expected in possible_contexts(problem(a, b, w), messages)
                 if expected == messages]
        assert len(found) == 1, messages
        shapes[found[0]] += 1
    assert set(shapes) == {"plain", "no response, 0", "no response, 1", "restart", "1 rounds", "2 rounds", "3 rounds"}
    assert min(shapes.values()) > 5


def possible_contexts(task, messages):
    if len(messages) == 1:
        return [("plain", prompts.opening(task, "qwen3"))] + [
            (f"no response, {r}", prompts.carry_without_response(task, "qwen3", r, "")) for r in (0, 1)]
    shown = [m["content"] for m in messages if m["role"] == "assistant"]
    rounds = [(text, int(answers.last_boxed(text) == task.answer), "") for text in shown]
    contexts = [("restart", prompts.restart(task, "qwen3", shown[0]))]
    for verdict in (0, 1):  # the newest may be false
        contexts.append((f"{len(rounds)} rounds", prompts.carry(
            task, "qwen3", shown[-1], verdict, "", earlier=rounds[:-1])))
    return contexts


def test_first_tries_have_the_shares_that_are_named():
    rng = random.Random(5)
    for shares in arithmetic.SHARES.values():
        drawn = [arithmetic.first_try(rng, shares.plain) for _ in range(4000)]
        assert near(shares.plain, [d.careful for d in drawn])
        assert near(arithmetic.SLIPS, [d.slip == arithmetic.SLIP for d in drawn if d.careful])
        assert {d.slip for d in drawn if not d.careful} == {None}


@pytest.mark.parametrize("shown, verdict, means, share", [
    (Answer(False), None, lambda new: new.careful, "anchored"),
    (Answer(False), 0, lambda new: new.careful, "anchored"),
    (Answer(True, 1), None, lambda new: new == Answer(True, 1), 0.96 * 0.95),      # a blind revision repeats the slip
    (Answer(True, 1), 0, lambda new: new == Answer(True), 0.96 * 0.95),            # a verdict mends it
    (Answer(True), None, lambda new: new == Answer(True), 0.96),
    (Answer(True), 0, lambda new: new == Answer(True, 1), 0.96 * 0.4),             # a false verdict is believed
    (Answer(True, 1), 1, lambda new: new == Answer(True, 1), 0.97 + 0.03 * 0.96 * 0.05),
    (Answer(False, None, 2), 1, lambda new: new == Answer(False, None, 2), None),
])
def test_a_revision_depends_on_what_is_shown_and_on_the_verdict(shown, verdict, means, share):
    rng, shares = random.Random(6), arithmetic.SHARES["Compute {a} + {b}."]
    seen = [means(arithmetic.revised(rng, shares, shown, verdict)) for _ in range(4000)]
    if share is None:
        assert sum(seen) / len(seen) > arithmetic.KEEPS - 0.02
    else:
        assert near(shares.anchored if share == "anchored" else share, seen)


def test_a_shown_answer_is_taught_only_where_the_plain_prompt_would_have_drawn_it(monkeypatch):
    """Of the shown answers that are taught, as many are careful as on the plain prompt; of the others more."""
    monkeypatch.setattr(arithmetic, "SHAPES", {"restart": 1.0})
    rng, careful = random.Random(7), {True: [], False: []}
    for _ in range(4000):
        messages, taught = arithmetic.dialogue(rng, 347, 586)
        careful[1 in taught].append("with carries" in messages[1]["content"])
    mean_share = sum(s.plain for s in arithmetic.SHARES.values()) / 3
    assert near(mean_share, careful[True]) and near(0.6, careful[False])
    assert near(0.5, [True] * len(careful[True]) + [False] * len(careful[False]))


def test_the_first_lesson_and_the_test_of_the_second():
    rng = random.Random(8)
    (opening, answer), taught = arithmetic.careful(rng, 347, 586)
    assert taught == {1} and answer["content"].startswith(arithmetic.worked(347, 586, Answer(True)).split(". ")[0])
    messages, taught = arithmetic.mended(rng, 347, 586)
    assert taught == {3} and messages[3]["content"] == arithmetic.worked(347, 586, Answer(True))
    assert messages[1]["content"] == arithmetic.worked(347, 586, Answer(True, arithmetic.SLIP))
    assert "judged incorrect" in messages[2]["content"]


# ---------------------------------------------------------------------------------------------------------------------
# The tokenizer


def test_tokenizer_keeps_every_text(tokenizer):
    rng = random.Random(6)
    texts = ["", " ", "a  b\n\n\tc ", "ünïcödé ∑ 数学 🙂", "\\boxed{12}  \\boxed{}", "<think>", "0123456789"]
    for _ in range(50):
        texts += [m["content"] for m in arithmetic.dialogue(rng, *arithmetic.pair(rng))[0]]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_and_newlines_are_tokens_of_their_own(tokenizer):
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        assert len(text) == 1 or not any(c.isdigit() or c == "\n" for c in text), text


def test_chat_template_is_chatml(tokenizer):
    messages = [{"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"}, {"role": "user", "content": "U2"}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, enable_thinking=False, tools=None) == (
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n")


def test_prompts_are_short(tokenizer):
    """A whole sentence of the prompts is one token; this is what makes the demo quick."""
    text = arithmetic.worked(347, 586, Answer(True))
    prompt = tokenizer.apply_chat_template(prompts.opening(problem(347, 586), "qwen3"), add_generation_prompt=True, return_dict=False)
    assert len(prompt) <= 25 and len(tokenizer.encode(text)) + 1 <= 45 < tiny.MAX_TOKENS
    rounds = [(text, 1, "")] * 3
    longest = prompts.carry(problem(347, 586), "qwen3", *rounds[-1], earlier=rounds[:-1])
    longest = tokenizer.apply_chat_template(longest, add_generation_prompt=True, return_dict=False)
    assert len(longest) + tiny.MAX_TOKENS < 512


def test_rows_have_the_tokens_of_a_run_and_teach_the_answers(tokenizer):
    """A prompt, and what is sampled after it, have the tokens with which they are taught; the end of a turn is taught,
    the line break after it is not."""
    rng = random.Random(7)
    for _ in range(60):
        messages, taught = arithmetic.dialogue(rng, *arithmetic.pair(rng))
        (ids, is_taught), = tiny_model.encode(tokenizer, [(messages, taught)])
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        answer = tokenizer.encode(messages[-1]["content"]) + [tokenizer.eos_token_id]
        assert ids == prompt + answer and is_taught[len(prompt):] == [True] * len(answer)
        expected = [messages[i]["content"] for i in sorted(taught)]
        learned = tokenizer.decode([t for t, taught_ in zip(ids, is_taught) if taught_]).split("<|im_end|>")
        assert [text.strip() for text in learned] == [*expected, ""]


# ---------------------------------------------------------------------------------------------------------------------
# Pretraining


def rows_of(tokenizer, count, seed=8):
    rng = random.Random(seed)
    return tiny_model.encode(tokenizer, [arithmetic.dialogue(rng, *arithmetic.pair(rng)) for _ in range(count)])


def test_packed_lines_hold_every_row_once_and_no_line_is_too_long(tokenizer):
    rows = rows_of(tokenizer, 40)
    ids, positions, taught, ordered = tiny_model.packed(rows)
    assert sorted(rows, key=str) == sorted(ordered, key=str) and ids.shape[1] <= 256
    starts = (positions == 0) & (ids == tokenizer.convert_tokens_to_ids("<|im_start|>"))
    assert starts.sum() == 40 and taught.sum() == sum(sum(t) for _, t in rows)
    assert ids.shape[0] < 40 and ids.numel() < 1.25 * sum(len(i) for i, _ in rows)  # little padding


def test_only_answers_are_learned_and_rows_of_a_line_do_not_see_each_other(tokenizer):
    torch.manual_seed(0)
    model = tiny_model.make_model(tokenizer)
    logits, tokens, rows = tiny_model.taught_logits(model, rows_of(tokenizer, 6))
    assert tokens.tolist() == [t for ids, taught in rows for t, is_taught in zip(ids, taught) if is_taught]
    assert logits.shape == (len(tokens), len(tokenizer)) and logits.dtype == torch.float32
    with torch.no_grad():  # the same row by row
        for (ids, taught), part in zip(rows, logits.split([sum(t) for _, t in rows])):
            alone = model(torch.tensor([ids])).logits[0, :-1][torch.tensor(taught[1:])]
            error = (part - alone).norm() / alone.norm()
            assert error < tolerance(torch.float32, 2000)


def test_held_out_accuracy_looks_at_digits_alone(tokenizer, monkeypatch):
    """Style and ending are a matter of taste, so another choice of them is no error; one wrong digit makes an answer wrong."""
    rng = random.Random(9)
    rows = tiny_model.encode(tokenizer, [arithmetic.careful(rng, a, 586) for a in (347, 348, 349)])
    tokens = torch.tensor([t for ids, taught in rows for t, is_taught in zip(ids, taught) if is_taught])
    first = sum(rows[0][1])
    predicted = tokens.clone()
    is_digit = torch.tensor([tokenizer.decode([token]).isdigit() for token in tokens.tolist()])
    word = next(i for i in range(first) if not is_digit[i])
    digit = next(i for i in range(2 * first, len(tokens)) if is_digit[i])

    def logits(model, given):
        return torch.nn.functional.one_hot(predicted, len(tokenizer)).float(), tokens, rows
    monkeypatch.setattr(tiny_model, "taught_logits", logits)
    assert tiny_model.held_out_accuracy(None, tokenizer, rows) == 1
    predicted[word] = tokenizer.eos_token_id
    assert tiny_model.held_out_accuracy(None, tokenizer, rows) == 1
    predicted[digit] = tokenizer.eos_token_id
    assert tiny_model.held_out_accuracy(None, tokenizer, rows) == pytest.approx(2 / 3)


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    """The quintic of Newton-Schulz leaves them within 0.3 of 1, in float32, whatever the shape."""
    g = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(tiny_model.orthogonal(g))
    assert 0.6 < values.min() and values.max() < 1.4
    assert tiny_model.orthogonal(g).dtype == torch.float32


def test_nothing_of_the_pretraining_is_in_bfloat16(tokenizer, monkeypatch):
    """Most processors do not multiply it."""
    torch.manual_seed(0)
    model, seen = tiny_model.make_model(tokenizer), set()

    class Dtypes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            seen.update(r.dtype for r in (result if isinstance(result, (tuple, list)) else [result])
                        if isinstance(r, torch.Tensor))
            return result
    with Dtypes():
        tiny_model.train_step(model, tiny_model.make_optimizers(model), rows_of(tokenizer, 4), 1.0)
    assert torch.float32 in seen and not seen & {torch.bfloat16, torch.float16}


def test_a_model_that_did_not_learn_is_said_and_not_kept(tmp_path):
    with pytest.raises(BadInput, match="seed 1 did not learn to add: it has 0% of the held-out sums right after 25 steps"):
        tiny_model.pretrain(seed=1, folder=str(tmp_path / "model"), most_first=25, batch=2)
    with pytest.raises(BadInput, match="seed 1 did not learn to mend a slip"):
        tiny_model.pretrain(seed=1, folder=str(tmp_path / "model"), mixed=1, batch=2, needed=(0, 1.1))
    assert not list(tmp_path.iterdir())


def test_a_few_steps_of_pretraining_save_a_model_that_is_the_same_again(tmp_path):
    for name in ("first", "second"):
        tiny_model.pretrain(seed=1, folder=str(tmp_path / name), mixed=3, batch=8, needed=(0, 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("first", "second"))
    assert first.dtype == torch.float32 and first.config.model_type == "qwen3" and 3e5 < first.num_parameters() < 5e5
    flops = json.loads((tmp_path / "first" / "pretraining.json").read_text())["flops"]
    assert flops % (6 * first.num_parameters()) == 0 and flops > 0
    for (name, a), b in zip(first.named_parameters(), second.parameters()):
        assert torch.equal(a, b), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.eos_token_id == first.config.eos_token_id == first.generation_config.eos_token_id
    assert len(tokenizer) == first.config.vocab_size and tokenizer.chat_template == tiny_model.CHATML


# ---------------------------------------------------------------------------------------------------------------------
# The demo's tables


def test_the_ablations_are_read_as_they_are_named(monkeypatch, tmp_path):
    """Each changes the one thing of its name; the table has a row for each, and is right about the calls it takes."""
    made = {}

    def command(script, *flags):
        args = dict(zip(map(str, flags[::2]), map(str, flags[1::2])))
        folder = args.pop("--out")
        made[folder.rpartition("/")[2]] = {k: v for k, v in args.items() if k in ("--method", "--memory", "--restart", "--update-every")}
        os.makedirs(folder)
        method, first = {"random": ("random", 2), "leaf": ("leaf", 2)}.get(folder.rpartition("/")[2], ("leaf", 3))
        lines = [{"problem": p, "bench": "arithmetic", "method": method, "step": t, "restart": t == 1, "reward": 1, "truncated": False,
                  "correct": int(t >= first), "prompt_tokens": 10, "completion_tokens": 5, "signature": None, "sample_seconds": 1.0, "draft": None, "response": ""}
                 for p in ("a", "b") for t in (1, 2, 3)]
        with open(os.path.join(folder, "rollouts.jsonl"), "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        with open(os.path.join(folder, "explore.json"), "w") as file:
            json.dump({"settings": {"calls": 3, "model": "tiny", "seed": 1, "gpu_hours": None,
                                    "update_every": int(args.get("--update-every", 0)) or None}, "result": {
                "problems": 2, "complete_steps": 3, "parameters": 500, "startup_seconds": 1, "wall_seconds": 2, "gpus": 1, "capped": False, "failed": {}}}, file)
        if "--update-every" in args:
            os.makedirs(os.path.join(folder, "updates"))
            with open(os.path.join(folder, "updates", "distill.jsonl"), "w") as file:
                json.dump({"step": 1, "student_tokens": 10**6, "teacher_tokens": 10**6, "sample_seconds": 0, "train_seconds": 0}, file)
                file.write("\n")
    monkeypatch.setattr(tiny, "command", command)
    (tmp_path / "model").mkdir()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        tiny.ablate(tiny.Demo(str(tmp_path), 1))
    assert made == {
        "random": {"--method": "random"}, "leaf": {}, "no-feedback": {"--memory": "no-feedback"},
        "no-response": {"--memory": "no-response"}, "last3": {"--memory": "last3"}, "restart2": {"--restart": "2"},
        "restart10": {"--restart": "10"}, "never": {"--restart": "never"}, "update1": {"--update-every": "1"},
        "update2": {"--update-every": "2"}, "update5": {"--update-every": "5"}}
    assert "| random sampling | 66.7% | 100.0% | 3 | 90 | 90 | 0 |" in shown.getvalue()  # the cost of its last point
    assert "| update every 2 | 33.3% | 100.0% | 3 | 90 | 90 | 5 |" in shown.getvalue()
    assert "| LEAF | 66.7% | 100.0% | 2 | 60 | 90 | 0 |" in shown.getvalue()
    assert "| no restart | 33.3% | 100.0% | 3 | 90 | 90 | 0 |" in shown.getvalue()
    assert (tmp_path / "ablations.png").stat().st_size > 10_000

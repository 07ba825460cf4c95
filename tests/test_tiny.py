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

import data
import prompts
import tiny
import verifiers
from conftest import tolerance


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.make_tokenizer(random.Random(0))


def problem(a, b, wording=0):
    return data.Problem("p", "arithmetic", data.ARITHMETIC_WORDINGS[wording].format(a=a, b=b), "math", answer=str(a + b))


@pytest.mark.parametrize("a, b, careful, text", [
    (347, 586, True, "347 + 586, with carries: 7+6+0=13, 4+8+1=13, 3+5+1=09. So the answer is \\boxed{933}."),
    (347, 586, False, "347 + 586, digit by digit: 7+6=3, 4+8=2, 3+5=8. So the answer is \\boxed{823}."),
    (999, 999, True, "999 + 999, with carries: 9+9+0=18, 9+9+1=19, 9+9+1=19. So the answer is \\boxed{1998}."),
    (999, 999, False, "999 + 999, digit by digit: 9+9=8, 9+9=8, 9+9=8. So the answer is \\boxed{888}."),
    (500, 500, True, "500 + 500, with carries: 0+0+0=00, 0+0+0=00, 5+5+0=10. So the answer is \\boxed{1000}."),
    (500, 500, False, "500 + 500, digit by digit: 0+0=0, 0+0=0, 5+5=0. So the answer is \\boxed{000}."),
])
def test_text_of_an_answer(a, b, careful, text):
    assert tiny.worked(a, b, careful) == text


def test_a_careful_answer_is_right_and_a_careless_one_only_without_carries():
    rng = random.Random(1)
    for _ in range(300):
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        assert verifiers.last_boxed(tiny.worked(a, b, True)) == str(a + b)
        no_carry = all(int(x) + int(y) < 10 for x, y in zip(str(a), str(b)))
        assert (int(verifiers.last_boxed(tiny.worked(a, b, False))) == a + b) == no_carry


def test_a_slip_is_one_too_high_in_its_place_and_carried_on():
    assert tiny.worked(347, 582, True, slip=0).endswith(
        "with carries: 7+2+0=10, 4+8+1=13, 3+5+1=09. So the answer is \\boxed{930}.")
    assert tiny.worked(347, 582, False, slip=1).endswith("digit by digit: 7+2=9, 4+8=3, 3+5=8. So the answer is \\boxed{839}.")
    assert tiny.worked(999, 999, True, slip=2).endswith("with carries: 9+9+0=18, 9+9+1=19, 9+9+1=00. So the answer is \\boxed{098}.")


def test_the_reward_of_an_attempt_is_the_truth():
    rng = random.Random(2)
    rewards = collections.Counter()
    for _ in range(300):
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        text, reward = tiny.attempt(rng, a, b)
        assert reward == (verifiers.last_boxed(text) == str(a + b))
        rewards[reward] += 1
    assert min(rewards[0], rewards[1]) > 60  # both verdicts are shown often


def test_no_bench_problem_is_in_the_pretraining_set():
    bench = {p.id for split in ("test", "train") for p in data.load("arithmetic", split)}
    assert len(bench) == 256
    rng = random.Random(3)
    held_out = [tiny.pair(rng) for _ in range(3)]
    draws = iter([*[n for pair in held_out for n in pair], 347, 586])
    replay = type("Replay", (), {"randrange": lambda self, low, high: next(draws)})()
    assert tiny.pair(replay, held_out) == (347, 586)
    for _ in range(2000):
        a, b = tiny.pair(rng)
        assert data.arithmetic_split(a, b) == "pretrain" and f"arithmetic/{a}+{b}" not in bench


def test_dialogues_have_the_shapes_of_exploration_and_of_its_ablations():
    """Every dialogue must be one that prompts.py makes: the model would not know any other at run time."""
    rng, shapes = random.Random(4), collections.Counter()
    for _ in range(600):
        a, b = tiny.pair(rng)
        messages, answer = tiny.dialogue(rng, a, b)
        assert answer.startswith(f"{a} + {b}, ")
        made = next(prompts.opening(p, "qwen3") for p in (problem(a, b, w) for w in range(3))
                    if messages[0]["content"].startswith(prompts.opening(p, "qwen3")[0]["content"]))
        task, last = next(p for p in (problem(a, b, w) for w in range(3)) if prompts.opening(p, "qwen3") == made), messages[-1]["content"]
        if len(messages) == 1:
            possible = {"plain": made} | {f"no response, {r}": prompts.carry_without_response(task, "qwen3", r, "") for r in (0, 1)}
        else:
            shown = [m["content"] for m in messages if m["role"] == "assistant"]
            rewards = [int(verifiers.last_boxed(text) == str(a + b)) for text in shown]
            rounds = [(text, reward, "") for text, reward in zip(shown, rewards)]
            possible = {"restart": prompts.restart(task, "qwen3", shown[0]),
                        f"{len(rounds)} rounds": prompts.carry(task, "qwen3", *rounds[-1], earlier=rounds[:-1])}
        found = [name for name, expected in possible.items() if expected == messages]
        assert len(found) == 1, last
        shapes[found[0]] += 1
    assert set(shapes) == {"plain", "no response, 0", "no response, 1", "restart", "1 rounds", "2 rounds", "3 rounds"}
    assert all(count > 5 for count in shapes.values())


def test_shares_of_careful_demonstrations(monkeypatch):
    """On the plain prompt the wording sets the share; after a careful attempt it is the same for all wordings."""
    rng = random.Random(5)
    monkeypatch.setattr(tiny, "SHAPES", {"plain": 1.0})
    counts = collections.defaultdict(list)
    for _ in range(3000):
        messages, answer = tiny.dialogue(rng, 347, 586)
        counts[next(w for w in data.ARITHMETIC_WORDINGS if w.format(a=347, b=586) == messages[0]["content"].split("\n\n")[1])].append(
            "with carries" in answer)
    for wording, seen in counts.items():
        share = tiny.CAREFUL[wording][0]
        assert abs(sum(seen) / len(seen) - share) < 4 * (share * (1 - share) / len(seen)) ** 0.5
    monkeypatch.setattr(tiny, "SHAPES", {"restart": 1.0})
    monkeypatch.setattr(tiny, "attempt", lambda rng, a, b: (tiny.worked(a, b, True), 1))
    seen = ["with carries" in tiny.dialogue(rng, 347, 586)[1] for _ in range(1000)]
    assert abs(sum(seen) / 1000 - tiny.STAYS_CAREFUL) < 4 * (0.95 * 0.05 / 1000) ** 0.5


def test_wordings_are_those_of_the_bench():
    assert list(tiny.CAREFUL) == list(data.ARITHMETIC_WORDINGS)


def test_tokenizer_keeps_every_text(tokenizer):
    rng = random.Random(6)
    texts = ["", " ", "a  b\n\n\tc ", "ünïcödé ∑ 数学 🙂", "\\boxed{12}  \\boxed{}", "<think>", "0123456789"]
    for _ in range(50):
        messages, answer = tiny.dialogue(rng, *tiny.pair(rng))
        texts += [answer, *(m["content"] for m in messages)]
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
    prompt, answer = tiny.encode(tokenizer, prompts.opening(problem(347, 586), "qwen3"), tiny.worked(347, 586, True))
    assert len(prompt) <= 25 and len(answer) <= 45 < tiny.MAX_TOKENS
    rounds = [(tiny.worked(347, 586, True), 1, "")] * 3
    longest, _ = tiny.encode(tokenizer, prompts.carry(problem(347, 586), "qwen3", *rounds[-1], earlier=rounds[:-1]), "")
    assert len(longest) + tiny.MAX_TOKENS < 512


def test_an_answer_in_a_context_has_the_tokens_it_was_sampled_with(tokenizer):
    """The end of a generation prompt and the answer never merge, so a prompt and its answer are the rendered dialogue."""
    rng = random.Random(7)
    for _ in range(30):
        messages, answer = tiny.dialogue(rng, *tiny.pair(rng))
        prompt, tokens = tiny.encode(tokenizer, messages, answer)
        whole = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], return_dict=False)
        assert prompt + tokens + tokenizer.encode("\n") == whole


def test_only_answers_are_learned(tokenizer):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.make_config(tokenizer))
    rng = random.Random(8)
    rows = [tiny.encode(tokenizer, *tiny.dialogue(rng, *tiny.pair(rng))) for _ in range(6)]
    logits, tokens = tiny.answer_logits(model, rows)
    assert tokens.tolist() == [token for _, answer in rows for token in answer]
    assert logits.shape == (len(tokens), len(tokenizer)) and logits.dtype == torch.float32
    with torch.no_grad():  # padding and the other rows change nothing: the same row by row
        for (prompt, answer), part in zip(rows, logits.split([len(answer) for _, answer in rows])):
            alone = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:-1]
            most = tolerance(torch.float32, 2_500) * float(alone.abs().max())  # 1,200 operations a layer, 128 in the head
            torch.testing.assert_close(part.detach(), alone, atol=most, rtol=0)


def test_held_out_accuracy_looks_at_digits_alone(tokenizer, monkeypatch):
    """Style and ending are a matter of taste, so another choice of them is no error; one wrong digit makes an answer wrong."""
    rows = [tiny.encode(tokenizer, prompts.opening(problem(a, 586), "qwen3"), tiny.worked(a, 586, True)) for a in (347, 348, 349)]
    tokens = torch.tensor([token for _, answer in rows for token in answer])
    predicted = tokens.clone()
    first = len(rows[0][1])
    is_digit = torch.tensor([tokenizer.decode([token]).isdigit() for token in tokens.tolist()])
    word = next(i for i in range(first) if not is_digit[i])
    digit = next(i for i in range(2 * first, len(tokens)) if is_digit[i])
    monkeypatch.setattr(tiny, "answer_logits", lambda model, rows: (torch.nn.functional.one_hot(predicted, len(tokenizer)).float(), tokens))
    assert tiny.held_out_accuracy(None, tokenizer, rows) == 1
    predicted[word] = tokenizer.eos_token_id
    assert tiny.held_out_accuracy(None, tokenizer, rows) == 1
    predicted[digit] = tokenizer.eos_token_id
    assert tiny.held_out_accuracy(None, tokenizer, rows) == pytest.approx(2 / 3)


def test_a_model_that_did_not_learn_is_said_and_not_kept(tmp_path):
    with pytest.raises(data.BadInput, match="seed 1 did not learn to add: it has 0% of the held-out sums right after 1 steps"):
        tiny.pretrain(seed=1, folder=str(tmp_path / "model"), most_steps=1, batch=4)
    assert not list(tmp_path.iterdir())


def test_three_steps_of_pretraining_save_a_model_that_is_the_same_again(tmp_path):
    for name in ("first", "second"):
        tiny.pretrain(seed=1, folder=str(tmp_path / name), most_steps=3, batch=8, needed=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("first", "second"))
    assert first.dtype == torch.float32 and first.config.model_type == "qwen3" and 5e5 < first.num_parameters() < 7e5
    for (name, a), b in zip(first.named_parameters(), second.parameters()):
        assert torch.equal(a, b), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.eos_token_id == first.config.eos_token_id == first.generation_config.eos_token_id
    assert len(tokenizer) == first.config.vocab_size and tokenizer.chat_template == tiny.CHATML


def test_the_ablations_are_read_as_they_are_named(monkeypatch, tmp_path):
    """Each changes the one thing of its name; the table has a row for each, and is right about the calls it takes."""
    made = {}

    def command(script, *flags):
        args = dict(zip(map(str, flags[::2]), map(str, flags[1::2])))
        folder = args.pop("--out")
        made[folder.rpartition("/")[2]] = {k: v for k, v in args.items() if k not in ("--bench", "--lr", "--micro-tokens")}
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
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        tiny.ablate(str(tmp_path), ("--bench", "arithmetic"))
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

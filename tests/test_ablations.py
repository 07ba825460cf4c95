"""The compressions of Table 24 and the interleaved updates of App. G.3, on a scripted engine."""
import os
import shutil

import pytest

import ablations
import benches
import distill
import engines
import explore
import loss
import verifiers
from benches.problem import Problem
from common import flags
from common.errors import BadInput, ContextTooLong, read_jsonl
from conftest import make_tokenizer
from engines.base import Sample, request_seed
from scripted_student import ScriptedStudent
from test_explore import BLIND, OPENING, RIGHT, WRONG, PlainGraders, assistant, by_step, comparable, run, user, write_bench


def numbers(problem, step, kind):
    """Answers and drafts of 20 tokens; step 3 is short and right. A summary of 6."""
    if kind == "summary":
        return f"sum {step:02d}"
    if kind == "draft":
        return f"draft {step} 0123456789AB"
    return "\\boxed{1}" if step == 3 else f"{step} 01234567 \\boxed{{9}}"


SUMMARIZE = ("Summarize your answer above in at most 6 tokens, so that you can revise it later without seeing it. Keep the approach, "
             "the intermediate results that matter, and the complete final answer.")
ASK = ("After your complete answer, end with a summary of it between <summary> and </summary>, in at most 500 tokens: "
       "the approach, the intermediate results that matter, and what you are unsure of.")
SHOWN = {  # L = 12: what calls 2, 5, 6 and 7 show of steps 1 and 4, of the draft, and of step 6
    "none": ["1 01234567 \\boxed{9}", "4 01234567 \\boxed{9}", "draft 6 0123456789AB", "6 01234567 \\boxed{9}"],
    "head-tail": ["1 0123\n...\nxed{9}", "4 0123\n...\nxed{9}", "draft \n...\n6789AB", "6 0123\n...\nxed{9}"],
    "summary": ["sum 02", "sum 05", "sum 06", "sum 07"],
    "low-logprob": ["1147be", "4147be", "df6147", "6147be"]}  # every third token, the first six of them


def test_shapes():
    """Of 20 tokens, L = 12: the rule of each compression counted by hand; a response of 12 tokens is shown whole."""
    tokenizer, problem = make_tokenizer(), Problem("p", "own", "?", "math", "1")
    logprobs = [-1.0 - i % 2 for i in range(20)]  # the odd places are the unlikely ones
    sample = Sample(tokenizer("0123456789abcdefghij")["input_ids"], "0123456789abcdefghij", logprobs, "stop", 5)
    short = Sample(sample.token_ids[:12], "0123456789ab", logprobs[:12], "stop", 5)
    shapes = {how: ablations.shortened(problem, sample, how, 12, tokenizer)
              for how in ("tail", "none", "head-tail", "summary", "block", "low-logprob")}
    assert shapes == {"tail": "89abcdefghij", "none": None, "head-tail": "012345\n...\nefghij", "summary": None,
                      "block": "89abcdefghij", "low-logprob": "13579b"}
    assert not any(ablations.shortened(problem, short, how, 12, tokenizer) for how in shapes)


@pytest.mark.parametrize("verifier,response,shown", [
    ("math", "So \\boxed{4}. <summary>added</summary>", "<summary>\nadded\n</summary>\n\n\\boxed{4}"),
    ("math", "no box <summary> added \\boxed{5} </summary>", "<summary>\nadded \\boxed{5}\n</summary>"),
    ("math", "\\boxed{4} <summary>" + 21 * "s" + "</summary>", "<summary>\n" + 20 * "s" + "\n</summary>\n\n\\boxed{4}"),
    ("math", "\\boxed{4} <summary>old</summary> <summary>new</summary>", "<summary>\nnew\n</summary>\n\n\\boxed{4}"),
    ("math", "\\boxed{4} <summary>cut off", None), ("math", "\\boxed{4}", None), ("math", "\\boxed{4} added</summary>", None),
    ("code", "```python\nprint(1)\n```\n<summary>one</summary>", "<summary>\none\n</summary>\n\n```python\nprint(1)\n```"),
    ("judge", "I think.\nFinal answer: sky\n<summary>blue</summary>", "<summary>\nblue\n</summary>\n\nFinal answer: sky"),
    ("judge", "I think so. <summary>blue</summary>", "<summary>\nblue\n</summary>")])
def test_summary_blocks(verifier, response, shown):
    problem = Problem("p", "own", "?", verifier)
    assert ablations.summary_block(problem, response, 20, make_tokenizer()) == shown


@pytest.mark.parametrize("how", SHOWN)
def test_contexts_of_calls_2_5_6_and_7(monkeypatch, tmp_path, how):
    """Long responses are compressed, the draft too; step 3 is short, so call 4 shows it as it is."""
    scripted, records, _ = run(monkeypatch, tmp_path, numbers, "--compress", how, "--tail", 12, n=1,
                               logprob=lambda place: -float(place % 3 == 0))
    steps = by_step(records, "p0")
    assert [steps[t]["context"] for t in (2, 5, 6, 7)] == [
        [user(OPENING), assistant(shown), user(BLIND if t == 6 else WRONG)] for t, shown in zip((2, 5, 6, 7), SHOWN[how])]
    assert steps[4]["context"] == [user(OPENING), assistant("\\boxed{1}"), user(RIGHT)]
    assert len(scripted.asked) == 7 + 2 + (6 if how == "summary" else 0)


def test_summaries_are_a_further_turn_and_are_counted(monkeypatch, tmp_path):
    scripted, records, _ = run(monkeypatch, tmp_path, numbers, "--compress", "summary", "--tail", 12, n=1)
    steps, asked = by_step(records, "p0"), dict(scripted.asked)
    conversation = [*steps[1]["context"], assistant(steps[1]["response"]), user(SUMMARIZE)]
    prompt = scripted.encode(conversation)
    assert asked["p0", 2, "summary"] == scripted.tokenizer.decode(prompt)
    draft = [user(OPENING), assistant("draft 6 0123456789AB"), user(SUMMARIZE)]
    assert asked["p0", 6, "summary"] == scripted.tokenizer.decode(scripted.encode(draft))
    assert (steps[2]["summary"], steps[2]["summary_tokens"], steps[2]["summary_prompt_tokens"]) == ("sum 02", 6, len(prompt))
    assert (steps[4]["summary"], steps[4]["summary_tokens"], steps[4]["summary_prompt_tokens"]) == (None, 0, 0)


def test_a_block_is_asked_for_in_every_turn(monkeypatch, tmp_path):
    """The opening changes too, in the draft's request and in C+; the block stands for a response of any length."""
    def script(problem, step, kind):
        return f"\\boxed{{{1 if step == 2 else 9}}}\n<summary>{kind} {step}</summary>"
    def ask(text):
        return user(text + "\n\n" + ASK)
    def block(text, box):
        return assistant(f"<summary>\n{text}\n</summary>\n\n\\boxed{{{box}}}")
    scripted, records, kept = run(monkeypatch, tmp_path, script, "--compress", "block", n=1)
    steps = by_step(records, "p0")
    assert [steps[t]["context"] for t in (2, 3, 5, 6, 7)] == [
        [ask(OPENING), block("answer 1", 9), ask(WRONG)], [ask(OPENING), block("answer 2", 1), ask(RIGHT)],
        [ask(OPENING), block("answer 4", 9), ask(WRONG)], [ask(OPENING), block("draft 6", 9), ask(BLIND)],
        [ask(OPENING), block("answer 6", 9), ask(WRONG)]]
    assert dict(scripted.asked)["p0", 1, "draft"] == scripted.tokenizer.decode(scripted.encode([ask(OPENING)]))
    assert [line["opening"] for line in kept] == [[ask(OPENING)]]


@pytest.mark.parametrize("how", ["none", "head-tail", "summary", "block", "low-logprob"])
@pytest.mark.parametrize("fail_at", [4, 9])
def test_each_compression_is_resumed(monkeypatch, tmp_path, how, fail_at):
    flags = ("--compress", how, "--tail", 12)
    options = dict(n=1, logprob=lambda place: -float(place % 3))
    _, whole, _ = run(monkeypatch, tmp_path, numbers, *flags, out="whole", **options)
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, numbers, *flags, fail_at=fail_at, **options)
    _, records, _ = run(monkeypatch, tmp_path, numbers, *flags, **options)
    assert len(records) == 7 and comparable(records) == comparable(whole)


@pytest.mark.parametrize("flags,sentence", [
    (["--compress", "none", "--memory", "last3"], "two ablations of one thing"),
    (["--method", "random", "--compress", "none"], "leave out --method random"),
    (["--method", "random", "--update-every", "1"], "leave out --method random"),
    (["--compress", "summary", "--tail", "3"], "give 4 or more"),
    (["--compress", "head-tail", "--tail", "1"], "give 4 or more"),
    (["--lr", "1e-4"], "--lr is for updates between the steps"), (["--grad-checkpoint-every", "0"], "--grad-checkpoint-every is")])
def test_flags_that_do_not_go_together(monkeypatch, tmp_path, flags, sentence):
    with pytest.raises(BadInput, match=sentence):
        run(monkeypatch, tmp_path, numbers, *flags, n=1)


def test_divergences_of_the_flags():
    """common.flags names them a second time, as loss.py loads torch."""
    assert flags.DIVERGENCES == loss.DIVERGENCES


# ---------------------------------------------------------------------------------------------------------------------
# Updates between the steps


class ScriptedExplorer(ScriptedStudent):
    """Right from step 2 on for p0, from step 4 on for p1, never for p2; other requests (students') have random tokens."""

    def __init__(self, problems, calls, fail_at):
        super().__init__()
        self.fail_at, self.names = fail_at, {
            request_seed(1, p.id, t, kind): (p, t, kind)
            for p in problems for t in range(1, calls + 1) for kind in ("answer", "draft")}

    async def sample(self, prompt_token_ids, *, seed, **options):
        if len(self.asked) + 1 == self.fail_at:
            raise SystemExit("fail point")
        if seed not in self.names:
            return await super().sample(prompt_token_ids, seed=seed, **options)
        problem, step, kind = self.names[seed]
        self.asked.append(((problem.id, step, kind), options["adapter"]))
        right = step >= {"p0": 2, "p1": 4, "p2": 99}[problem.id]
        text = f"{kind} {step}: \\boxed{{{problem.answer if right else 99}}}"
        ids = self.tokenizer(text)["input_ids"]
        return Sample(ids, text, [-1.0] * len(ids), "stop", len(prompt_token_ids))


def interleaved(monkeypatch, folder, model, *flags, calls=6, fail_at=None):
    """explore.main with updates on a toy model. -> the engine."""
    bench = str(folder / "bench.jsonl")
    os.makedirs(folder, exist_ok=True)
    write_bench(folder / "bench.jsonl", 3)
    scripted = ScriptedExplorer(benches.load(bench), calls, fail_at)

    async def start(settings, adapters=False, folder="."):
        assert adapters and settings.gpu_memory == 0.4
        return scripted
    monkeypatch.setattr(engines, "start", start)
    monkeypatch.setattr(verifiers, "Graders", lambda strict: PlainGraders())
    try:
        explore.main(["--bench", bench, "--calls", str(calls), "--model", model, "--max-tokens", "40", "--out", str(folder),
                      "--lr", "1e-3", *map(str, flags)])
    finally:
        scripted.updates = [path.removeprefix(str(folder)) for path in sorted(map(str, folder.glob("updates/adapter/step_*")))]
    return scripted


def test_updates_between_the_steps(monkeypatch, tmp_path, toy_model):
    """N = 2: after steps 2, 4 and 6, on the problems with a right answer so far; what follows uses the new adapter."""
    folder = tmp_path / "out"
    scripted = interleaved(monkeypatch, folder, toy_model, "--update-every", 2)
    samples = read_jsonl(str(folder / "updates" / "samples.jsonl"))
    assert [(line["step"], line["problem"]) for line in samples] == [(1, "p0"), (2, "p0"), (2, "p1"), (3, "p0"), (3, "p1")]
    cplus = {(line["problem"], line["step"]): line for line in read_jsonl(str(folder / "cplus.jsonl"))}
    assert sorted(cplus) == [("p0", t) for t in range(2, 7)] + [("p1", t) for t in (4, 5, 6)]
    for line in samples:  # drawn from C+ as it stood then
        then = [cplus[key] for key in sorted(cplus) if key[0] == line["problem"] and key[1] <= 2 * line["step"]]
        assert line["context_step"] == distill.draw_context(then, 1, line["step"], line["problem"])["step"]
    records = read_jsonl(str(folder / "rollouts.jsonl"))
    assert [r["step"] for r in records] == [t for t in range(1, 7) for _ in range(3)]  # step by step
    assert all(r["updates"] == (r["step"] - 1) // 2 for r in records)
    used = {name: adapter for name, adapter in scripted.asked if isinstance(name, tuple)}
    for (_, step, _), adapter in used.items():
        assert adapter == (str(folder / "updates" / "adapter" / f"step_{(step - 1) // 2}") if step > 2 else None)
    assert scripted.updates == ["/updates/adapter/step_2", "/updates/adapter/step_3"]  # the last two
    assert [line["step"] for line in read_jsonl(str(folder / "updates" / "distill.jsonl"))] == [1, 2, 3]


def test_an_update_stands_on_answers_that_are_on_the_disk(monkeypatch, tmp_path, toy_model):
    """Else a machine that goes down could leave an adapter whose answers are lost, and the run could not go on."""
    path, synced, fsync, train = tmp_path / "rollouts.jsonl", {}, os.fsync, distill.train_on_all

    def noted(fd):
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size
        fsync(fd)

    async def checked(*args):
        assert synced[os.stat(path).st_ino] == os.path.getsize(path) > 0
        await train(*args)
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(distill, "train_on_all", checked)
    interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2)


@pytest.mark.parametrize("every,fail_at", [(2, 5), (2, 9), (2, 18), (2, 20), (1, 10)])
def test_updates_are_resumed(monkeypatch, tmp_path, toy_model, every, fail_at):
    """Stopped within steps and (18) within an update: the same records, samples and adapter; a larger --calls goes on.

    With N = 1, step 1 is right nowhere: its update is left out, also when the run goes on with step 2 there already.
    """
    import torch
    from safetensors.torch import load_file
    interleaved(monkeypatch, tmp_path / "whole", toy_model, "--update-every", every)
    with pytest.raises(SystemExit):
        interleaved(monkeypatch, tmp_path / "out", toy_model, "--update-every", every, calls=5, fail_at=fail_at)
    interleaved(monkeypatch, tmp_path / "out", toy_model, "--update-every", every)
    for name in ("rollouts.jsonl", "updates/samples.jsonl"):
        pair = [read_jsonl(str(tmp_path / out / name)) for out in ("whole", "out")]
        if name == "rollouts.jsonl":
            pair = [comparable(records) for records in pair]
        assert pair[0] == pair[1]
    weights = [load_file(str(tmp_path / out / "updates" / "adapter" / "adapter_model.safetensors")) for out in ("whole", "out")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(BadInput, match=f"update_every = {every}, not 3"):
        interleaved(monkeypatch, tmp_path / "out", toy_model, "--update-every", 3)
    with pytest.raises(BadInput, match="no limit, not limit = 1"):
        interleaved(monkeypatch, tmp_path / "out", toy_model, "--update-every", every, "--limit", 1)
    os.remove(tmp_path / "out" / "rollouts.jsonl")
    with pytest.raises(BadInput, match="which is not that of rollouts.jsonl"):
        interleaved(monkeypatch, tmp_path / "out", toy_model, "--update-every", every)


def test_the_newest_adapter_is_published_again(monkeypatch, tmp_path, toy_model):
    """A crash between the last checkpoint and its copy: the same command makes it. Without checkpoints: refused."""
    interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2)
    adapters, file = tmp_path / "updates" / "adapter", "adapter_model.safetensors"
    (adapters / file).write_bytes((adapters / "step_2" / file).read_bytes())
    interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2)
    assert (adapters / file).read_bytes() == (adapters / "step_3" / file).read_bytes()
    shutil.rmtree(adapters)
    with pytest.raises(BadInput, match="holds update 0, which is not that of rollouts.jsonl"):
        interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2)


def test_a_segment_that_cannot_go_on_is_left(monkeypatch, tmp_path, toy_model):
    """p0's first context is too long: its draft is sampled once, not at each step of the segment; 6 is a restart."""
    plain, drafts = ScriptedExplorer.sample, []

    async def sample(self, prompt_token_ids, *, seed, **options):
        problem, step, kind = self.names.get(seed, (None, None, "student"))
        if problem and (problem.id, step, kind) == ("p0", 1, "answer"):
            raise ContextTooLong("its context is too long")
        if problem and problem.id == "p0" and kind == "draft":
            drafts.append(step)
        return await plain(self, prompt_token_ids, seed=seed, **options)
    monkeypatch.setattr(ScriptedExplorer, "sample", sample)
    with pytest.raises(BadInput, match="1 of 3 problems have contexts longer than the model's window"):
        interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2)
    assert drafts == [1, 6]
    records = read_jsonl(str(tmp_path / "rollouts.jsonl"))
    assert [r["step"] for r in records if r["problem"] == "p0"] == [6] and len(records) == 13
    monkeypatch.setattr(ScriptedExplorer, "sample", plain)  # it would fit now: the newer policy's draft is another one
    with pytest.raises(BadInput, match="1 of 3 problems"):
        interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2)
    assert read_jsonl(str(tmp_path / "rollouts.jsonl")) == records


def test_updates_need_a_temperature(monkeypatch, tmp_path, toy_model):
    with pytest.raises(BadInput, match="--temperature 0 leaves no distribution"):
        interleaved(monkeypatch, tmp_path, toy_model, "--update-every", 2, "--temperature", 0)

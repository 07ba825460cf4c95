"""Algorithm 1, lines 1-12, walked by an engine that answers from a table."""
import asyncio
import dataclasses
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import types

import pytest

import answers
import benches
import engines
import explore
import verifiers
from benches.problem import Problem
from common import clock, journal
from common.errors import BadInput, ContextTooLong, exit_with_sentence, read_jsonl
from conftest import make_tokenizer
from engines.base import Sample, request_seed

MODEL = "toy"  # the scripted engine reads no weights


class ScriptedEngine:
    """Answers (problem, step, kind) from `script(problem id, step, kind)`; the seed says which request it is.

    Time stands still but for the start, and 1 s while each request is handed in; a completion took 0.01 s a token.
    """
    startup_seconds, parameters, gpus, slots, window = 0.5, 1000, 1, 4, 10**6

    def __init__(self, script, problems, calls, seed=1, max_tokens=100, fail_at=None, turns=lambda problem, step: 1,
                 logprob=lambda place: 0.0):
        self.tokenizer, self.script, self.max_tokens, self.fail_at, self.turns = make_tokenizer(), script, max_tokens, fail_at, turns
        self.logprob = logprob
        self.names = {request_seed(seed, p.id, t, kind): (p.id, t, kind)
                      for p in problems for t in range(1, calls + 1) for kind in ("answer", "draft", "summary")}
        self.asked, self.now, self.is_closed = [], 0.0, False

    def encode(self, messages):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        name = self.names[seed]
        self.asked.append((name, self.tokenizer.decode(prompt_token_ids)))
        self.now += 1.0
        if len(self.asked) == self.fail_at:
            raise SystemExit("fail point")  # nothing that explore.py would catch
        for _ in range(self.turns(*name[:2])):  # of the event loop: an order that no clock decides
            await asyncio.sleep(0)
        text = self.script(*name)
        if isinstance(text, Exception):
            raise text
        ids = self.tokenizer(text)["input_ids"][:max_tokens]
        finish = "stop" if len(ids) < max_tokens else "length"
        return Sample(ids, self.tokenizer.decode(ids), [self.logprob(i) for i in range(len(ids))], finish, len(prompt_token_ids), 0.01 * len(ids))

    def close(self):
        self.is_closed = True


class PlainGraders:
    """Compares the last box with the reference; math-verify has tests of its own and takes a second to start."""

    async def grade(self, problem, response, truncated=False):
        box = answers.last_boxed(response)
        return verifiers.Verdict(int(box == problem.answer), int(box == problem.answer), "", box)

    grade_public = grade

    def close(self):
        pass


def write_bench(path, n=2):
    rows = [{"id": f"p{i}", "problem": f"What is {i} + 1?", "verifier": "math", "answer": str(i + 1)} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class PrivateGraders(PlainGraders):
    """Private tests that an answer passes with a full stop at its end, and that take 10 s. None is graded before
    `ready(engine)`; then the last that came is graded first."""

    def __init__(self, engine, ready=lambda engine: True):
        self.engine, self.ready, self.stack = engine, ready, []

    async def grade_public(self, problem, response, truncated=False):
        verdict = await self.grade(problem, response)
        return verdict if verdict.reward == 0 else dataclasses.replace(verdict, correct=None)

    async def grade_private(self, problem, response):
        self.stack.append(response)
        turns = 0
        while not self.ready(self.engine) or self.stack[-1] is not response:
            turns += 1
            assert turns < 10_000, "a request waits for private tests"
            await asyncio.sleep(0)
        self.stack.pop()
        self.engine.now += 10
        return int(response.endswith(".")), None


def run(monkeypatch, tmp_path, script, *flags, n=2, calls=7, out="out", graders=lambda engine: PlainGraders(),
        **engine_options):
    """Run explore.main with a scripted engine. -> (engine, records in the order of the file, C+ lines)."""
    bench = str(tmp_path / "bench.jsonl")
    if not os.path.exists(bench):
        write_bench(tmp_path / "bench.jsonl", n)
    scripted = ScriptedEngine(script, benches.load(bench), calls, **engine_options)

    async def start(settings, adapters=False, folder="."):
        scripted.now += scripted.startup_seconds
        return scripted
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(time=lambda: scripted.now))
    settings = engines.Settings(MODEL, "qwen3", "hf", "float32", 1.0, 1.0, scripted.max_tokens, 0.9, None, 1, 1)
    monkeypatch.setattr(engines, "start", start)
    monkeypatch.setattr(engines, "settings", lambda *_, **__: settings)
    monkeypatch.setattr(verifiers, "Graders", lambda **_: graders(scripted))
    folder = tmp_path / out
    argv = ["--bench", bench, "--calls", str(calls), "--out", str(folder), *map(str, flags)]
    try:
        explore.main(argv)
    finally:
        records = read_jsonl(str(folder / "rollouts.jsonl"), torn_ok=True) if (folder / "rollouts.jsonl").exists() else []
    return scripted, records, read_jsonl(str(folder / "cplus.jsonl"))


def by_step(records, problem):
    return {r["step"]: r for r in records if r["problem"] == problem}


def number_script(problem, step, kind):
    """p0 is right at steps 3, 4 (the same text) and 7; p1 never; drafts have their own words."""
    if kind == "draft":
        return f"draft {step} of {problem}"
    right = problem == "p0" and step in (3, 4, 7)
    return f"It is \\boxed{{{1 if right else 100 + step}}}" + ("." if step == 7 else "")


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


OPENING = ("You are a mathematics expert. You will be given a competition mathematics problem. Solve it and give the final answer. "
           "You may start by outlining your thought process. In the end, please put the final answer inside \\boxed{}.\n\nWhat is 0 + 1?")
BLIND = ("Review your previous answer carefully for errors in reasoning, algebra, arithmetic, and the handling of special or boundary "
         "cases. Then produce a corrected complete answer to the original problem. Do not assume that any external correctness signal "
         "is available.")
WRONG, RIGHT = ("Your previous answer was checked against the reference. Your previous answer was judged " + word + ".\n\nUse this outcome to "
                "improve your answer. Re-check the original problem yourself and produce a corrected complete answer."
                for word in ("incorrect", "correct"))


def test_contexts_of_calls_1_to_7(monkeypatch, tmp_path):
    """Restart at 1 and 6; carry steps hold the newest answer and its verdict, nothing older."""
    scripted, records, _ = run(monkeypatch, tmp_path, number_script)
    steps = by_step(records, "p0")
    assert [steps[t]["context"] for t in range(1, 8)] == [
        [user(OPENING), assistant("draft 1 of p0"), user(BLIND)],
        [user(OPENING), assistant("It is \\boxed{101}"), user(WRONG)],
        [user(OPENING), assistant("It is \\boxed{102}"), user(WRONG)],
        [user(OPENING), assistant("It is \\boxed{1}"), user(RIGHT)],
        [user(OPENING), assistant("It is \\boxed{1}"), user(RIGHT)],
        [user(OPENING), assistant("draft 6 of p0"), user(BLIND)],
        [user(OPENING), assistant("It is \\boxed{106}"), user(WRONG)]]
    assert [steps[t]["restart"] for t in range(1, 8)] == [True, False, False, False, False, True, False]
    assert [steps[t]["reward"] for t in range(1, 8)] == [0, 0, 1, 1, 0, 0, 1]
    assert all(text.endswith("<|im_start|>assistant\n") for _, text in scripted.asked)
    assert len(records) == 14 and len(scripted.asked) == 14 + 4  # four drafts are sampled, never graded


def test_cplus_leaves_out_repeats_and_truncated_answers(monkeypatch, tmp_path):
    """Step 4 repeats step 3 to the letter; step 7 has the same answer in another text, so it stays."""
    _, records, kept = run(monkeypatch, tmp_path, number_script)
    assert [(c["problem"], c["step"]) for c in kept] == [("p0", 3), ("p0", 7)]
    assert kept[0]["context"] == by_step(records, "p0")[3]["context"] and kept[0]["opening"] == [user(OPENING)]
    assert kept[0]["decoding"] == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 100} and kept[0]["model"] == MODEL
    # a right answer that ends at the limit, whatever the reason it stopped, is no context and hides none
    _, _, kept = run(monkeypatch, tmp_path, number_script, out="short", max_tokens=len("It is \\boxed{1}"))
    assert kept == []
    _, _, kept = run(monkeypatch, tmp_path, number_script, out="longer", max_tokens=len("It is \\boxed{1}") + 1)
    assert [(c["problem"], c["step"]) for c in kept] == [("p0", 3)]


def test_the_smaller_step_wins_whatever_finishes_first(monkeypatch, tmp_path):
    """Steps 6 and 7 are done long before steps 1 to 5, and step 6 has the text of step 3."""
    def script(problem, step, kind):
        return "draft" if kind == "draft" else "\\boxed{1}" if step in (3, 6) else "\\boxed{9}"
    _, records, kept = run(monkeypatch, tmp_path, script, n=1, turns=lambda problem, step: 100 if step < 6 else 1)
    assert [r["step"] for r in records][:2] == [6, 7]
    assert [c["step"] for c in kept] == [3]


def test_tokens_and_seeds(monkeypatch, tmp_path):
    _, records, _ = run(monkeypatch, tmp_path, number_script, n=1)
    steps = by_step(records, "p0")
    def tokens(messages):  # the toy tokenizer has a token a byte; a turn is <|im_start|>role\ncontent<|im_end|>\n
        return sum(2 + len(m["role"]) + 1 + len(m["content"]) + 1 for m in messages) + 1 + len("assistant\n")
    assert steps[1]["draft_tokens"] == len("draft 1 of p0") and steps[1]["draft_prompt_tokens"] == tokens([user(OPENING)])
    assert all(r["prompt_tokens"] == tokens(r["context"]) for r in records)
    assert steps[2]["draft_tokens"] == steps[2]["draft_prompt_tokens"] == 0
    assert steps[1]["completion_tokens"] == len("It is \\boxed{101}")
    assert steps[2]["seed"] == request_seed(1, "p0", 2, "answer")
    assert len({r["seed"] for r in records}) == len(records)


def test_tail_of_long_answers(monkeypatch, tmp_path):
    """tail_L counts tokens: exactly L are shown whole, L + 1 lose the first."""
    def script(problem, step, kind):
        return "abcdefghij" if step == 1 else "0123456789x"
    _, records, _ = run(monkeypatch, tmp_path, script, "--tail", 10, n=1, calls=3)
    steps = by_step(records, "p0")
    assert steps[1]["tail"] is None and steps[1]["context"][1] == assistant("abcdefghij")
    assert steps[2]["tail"] == "123456789x" and steps[3]["context"][1] == assistant("123456789x")
    assert steps[2]["response"] == "0123456789x"


def test_tail_of_special_tokens():
    """What has L tokens is the response as it is; what is cut shows no special token."""
    tokenizer = make_tokenizer()
    end = tokenizer.eos_token_id
    ids = tokenizer("abc")["input_ids"] + [end]
    assert explore.tail(Sample(ids, "abc, verbatim", [], "stop", 1), 4, tokenizer) == "abc, verbatim"
    assert explore.tail(Sample(ids, "abc", [], "stop", 1), 3, tokenizer) == "bc"


def test_verifying_is_timed(monkeypatch, tmp_path):
    class SlowGraders(PlainGraders):
        def __init__(self, engine):
            self.engine = engine

        async def grade_public(self, problem, response, truncated=False):
            self.engine.now += 3
            # the time of this answer alone: no other one begins meanwhile
            return await self.grade(problem, response)

    def graders(engine):
        monkeypatch.setattr(explore, "time", types.SimpleNamespace(time=lambda: engine.now))
        return SlowGraders(engine)
    _, records, _ = run(monkeypatch, tmp_path, number_script, n=1, calls=3, graders=graders)
    assert [r["verify_seconds"] for r in records] == [3.0] * 3


def test_random_sampling_has_no_memory(monkeypatch, tmp_path):
    scripted, records, _ = run(monkeypatch, tmp_path, number_script, "--method", "random", n=1)
    assert [r["context"] for r in records] == [[user(OPENING)]] * 7
    assert len(scripted.asked) == 7 and not any(r["restart"] or r["draft"] for r in records)


def test_memory_ablations(monkeypatch, tmp_path):
    """App. G.2 at calls 2, 5, 6 and 7."""
    answers = {t: assistant(f"It is \\boxed{{{1 if t in (3, 4) else 100 + t}}}") for t in range(1, 7)}
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--memory", "no-response", n=1, out="a")
    steps = by_step(records, "p0")
    assert steps[2]["context"] == [user(OPENING + "\n\n" + WRONG)] and steps[5]["context"] == [user(OPENING + "\n\n" + RIGHT)]
    assert steps[6]["context"] == [user(OPENING), assistant("draft 6 of p0"), user(BLIND)]
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--memory", "no-feedback", n=1, out="b")
    assert [by_step(records, "p0")[t]["context"] for t in (2, 5, 7)] == [[user(OPENING), answers[t], user(BLIND)] for t in (1, 4, 6)]
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--memory", "last3", n=1, out="c")
    steps, wrong, right = by_step(records, "p0"), user(WRONG.split("\n\n")[0]), user(RIGHT.split("\n\n")[0])
    assert steps[2]["context"] == [user(OPENING), answers[1], user(WRONG)]
    assert steps[5]["context"] == [user(OPENING), answers[2], wrong, answers[3], right, answers[4], user(RIGHT)]
    assert steps[6]["context"] == [user(OPENING), assistant("draft 6 of p0"), user(BLIND)]
    assert steps[7]["context"] == [user(OPENING), answers[6], user(WRONG)]  # never across a restart


@pytest.mark.parametrize("restart,starts", [("2", [1, 3, 5, 7]), ("5", [1, 6]), ("10", [1]), ("never", [1])])
def test_restart_intervals(monkeypatch, tmp_path, restart, starts):
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--restart", restart, n=1)
    assert [t for t, r in sorted(by_step(records, "p0").items()) if r["restart"]] == starts


def comparable(records):
    return {(r["problem"], r["step"]): {k: v for k, v in r.items() if not k.endswith("seconds")} for r in records}


@pytest.mark.parametrize("fail_at", [1, 2, 5, 9, 13, 17, 18])
def test_killed_and_resumed(monkeypatch, tmp_path, fail_at):
    """Stopped at any request, with a line torn besides: the same command ends in the same records and the same C+."""
    _, whole, kept = run(monkeypatch, tmp_path, number_script, out="whole")
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, number_script, fail_at=fail_at)
    with open(tmp_path / "out" / "rollouts.jsonl", "a") as file:
        file.write('{"problem": "p1", "st')
    _, records, kept_again = run(monkeypatch, tmp_path, number_script)
    assert len(records) == len(whole) == 14 and comparable(records) == comparable(whole) and kept == kept_again


def test_a_torn_line_at_every_byte(monkeypatch, tmp_path):
    _, whole, _ = run(monkeypatch, tmp_path, number_script, n=1, calls=2)
    path = tmp_path / "out" / "rollouts.jsonl"
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for cut in range(first, len(content)):
        path.write_bytes(content[:cut])
        lines, file = journal.open_journal(str(path))
        file.close()
        assert lines == whole[:1] and path.read_bytes() == content[:first]


def test_more_calls_and_problems_extend_a_run(monkeypatch, tmp_path):
    _, first, _ = run(monkeypatch, tmp_path, number_script, "--limit", 1, calls=4)
    scripted, records, _ = run(monkeypatch, tmp_path, number_script, calls=7)
    assert len(first) == 4 and len(records) == 14
    assert not {(name[0], name[1]) for name, _ in scripted.asked} & {("p0", t) for t in range(1, 5)}
    _, whole, _ = run(monkeypatch, tmp_path, number_script, out="whole")
    assert comparable(records) == comparable(whole)


@pytest.mark.parametrize("flags,sentence", [
    (["--seed", 2], "holds a run with seed = 1, not 2"), (["--tail", 10], "tail = 2000, not 10"),
    (["--method", "random"], "method = leaf"), (["--restart", "never"], "restart = 5"), (["--memory", "last3"], "memory = leaf"),
    (["--limit", 1], "no limit, not limit = 1")])
def test_changed_settings_are_refused(monkeypatch, tmp_path, flags, sentence):
    run(monkeypatch, tmp_path, number_script)
    before = (tmp_path / "out" / "rollouts.jsonl").read_bytes()
    with pytest.raises(BadInput, match=sentence):
        run(monkeypatch, tmp_path, number_script, *flags)
    assert (tmp_path / "out" / "rollouts.jsonl").read_bytes() == before


def test_fewer_calls_and_another_problem_are_refused(monkeypatch, tmp_path):
    run(monkeypatch, tmp_path, number_script)
    with pytest.raises(BadInput, match="calls = 7, not 6"):
        run(monkeypatch, tmp_path, number_script, calls=6)
    text = (tmp_path / "bench.jsonl").read_text()
    (tmp_path / "bench.jsonl").write_text(text.replace("What is 0", "What was 0"))
    with pytest.raises(BadInput, match="problem p0 is another one"):
        run(monkeypatch, tmp_path, number_script)


def test_settings_that_are_gone_are_refused(monkeypatch, tmp_path):
    run(monkeypatch, tmp_path, number_script)
    (tmp_path / "out" / "explore.json").write_text("{}")
    with pytest.raises(BadInput, match="holds a run with no bench, not bench"):
        run(monkeypatch, tmp_path, number_script)


def test_a_problem_that_is_gone_is_refused(monkeypatch, tmp_path):
    run(monkeypatch, tmp_path, number_script)
    write_bench(tmp_path / "bench.jsonl", 1)
    with pytest.raises(BadInput, match="problem p1 is another one than in the run .* or is gone"):
        run(monkeypatch, tmp_path, number_script)


def test_a_problem_with_complex_numbers_has_its_hash(tmp_path):
    """As two tasks of MBPP+ have."""
    problems = [Problem("p", "mbpp", "?", "code", tests={"plus": {"inputs": [[number]]}}) for number in (1j, 2j)]
    journal.keep_problems(str(tmp_path), problems[:1], empty=True)
    journal.keep_problems(str(tmp_path), problems[:1], empty=False)
    with pytest.raises(BadInput, match="problem p is another one"):
        journal.keep_problems(str(tmp_path), problems[1:], empty=False)


def test_settings_may_change_while_nothing_is_graded(monkeypatch, tmp_path):
    """A first command that failed (a wrong model, say) does not block its folder."""
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, number_script, fail_at=1)
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--seed", 2, seed=2)
    assert len(records) == 14


def test_a_context_that_does_not_fit_stops_its_problem_alone(monkeypatch, tmp_path, capsys):
    def script(problem, step, kind):
        if problem == "p0" and step == 3:
            return ContextTooLong("its context of 9 tokens does not fit.")
        return number_script(problem, step, kind)
    with pytest.raises(BadInput, match="1 of 2 problems"):
        run(monkeypatch, tmp_path, script)
    said = capsys.readouterr()
    assert "Problem p0 cannot go on: its context of 9 tokens" in said.err
    records = read_jsonl(str(tmp_path / "out" / "rollouts.jsonl"))
    assert sorted(by_step(records, "p0")) == [1, 2, 6, 7] and sorted(by_step(records, "p1")) == list(range(1, 8))
    counted, every = ([r["correct"] for r in records if r["step"] <= last] for last in (2, 7))
    assert f"mean accuracy {sum(counted) / 4:.1%}, 11 answers" in said.out and sum(counted) / 4 != sum(every) / 11
    assert (tmp_path / "out" / "cplus.jsonl").exists()
    _, records, _ = run(monkeypatch, tmp_path, number_script)
    assert len(records) == 14


def test_the_cap_ends_a_run_in_good_order(monkeypatch, tmp_path, capsys):
    """0.5 s of start-up are more than the cap: nothing is sampled; without the cap the run goes on."""
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--gpu-hours", 0.0001)
    assert records == [] and "The cap of 0.0001 GPU hours ended the run" in capsys.readouterr().out
    _, records, _ = run(monkeypatch, tmp_path, number_script, "--gpu-hours", 1)
    assert len(records) == 14


def test_one_run_holds_the_folder(monkeypatch, tmp_path):
    with journal.lock(str(tmp_path / "out")), pytest.raises(BadInput, match="another run holds the folder"):
        journal.lock(str(tmp_path / "out")).__enter__()
    run(monkeypatch, tmp_path, number_script)


def test_earlier_steps_are_admitted_first(monkeypatch, tmp_path):
    """All are handed in at once, the first segments of all problems before any second one."""
    scripted, _, _ = run(monkeypatch, tmp_path, number_script, n=12, turns=lambda problem, step: 5)
    firsts = [name for name, _ in scripted.asked if name[1] in (1, 6) and name[2] == "draft"]
    assert [step for _, step, _ in firsts] == [1] * 12 + [6] * 12


def result(tmp_path, out="out"):
    return journal.read_json(str(tmp_path / out / "explore.json"))["result"]


def test_the_seconds_of_a_step_and_the_parts_of_a_job(monkeypatch, tmp_path):
    """18 requests (14 answers, 4 drafts) of a second each after half a second of start-up; none while a line waits."""
    _, records, _ = run(monkeypatch, tmp_path, number_script)
    for record in records:  # of the draft and the answer, in the engine (App. C.4)
        assert record["sample_seconds"] == pytest.approx(0.01 * (record["draft_tokens"] + record["completion_tokens"]))
    assert max(r["elapsed_seconds"] for r in records) == 18.5  # the wall's
    assert result(tmp_path)["seconds"] == {"earlier": 0, "startup": 0.5, "sampling": 18, "saving": 0, "grading": 0}
    assert (result(tmp_path)["startup_seconds"], result(tmp_path)["wall_seconds"]) == (0.5, 18)


def test_the_seconds_of_a_run_that_goes_on(monkeypatch, tmp_path):
    """Killed at request 9, the first session counts to its last answer; the second samples the rest of 18."""
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, number_script, fail_at=9)
    kept = read_jsonl(str(tmp_path / "out" / "rollouts.jsonl"))
    earlier = max(r["elapsed_seconds"] for r in kept)
    assert 1.5 < earlier <= 8.5
    scripted, _, _ = run(monkeypatch, tmp_path, number_script)
    sampling = len(scripted.asked)
    assert result(tmp_path)["seconds"] == {
        "earlier": earlier, "startup": 0.5, "sampling": sampling, "saving": 0, "grading": 0}
    assert result(tmp_path)["wall_seconds"] == earlier + sampling


def test_private_tests_are_graded_beside_the_run(monkeypatch, tmp_path):
    """No step waits for them, they are in no timed part, and a problem's lines are in order: App. C.2.

    p0 passes its public tests at steps 3, 4 and 7, the private ones at step 7 alone.
    """
    graders = functools.partial(PrivateGraders, ready=lambda engine: engine.is_closed)
    _, records, kept = run(monkeypatch, tmp_path, number_script, graders=graders)
    _, _, kept_plain = run(monkeypatch, tmp_path, number_script, out="plain")
    assert kept == kept_plain  # C+ is of what the policy may see
    steps = by_step(records, "p0")
    assert len(records) == 14 and [steps[t]["reward"] for t in range(1, 8)] == [0, 0, 1, 1, 0, 0, 1]
    assert [steps[t]["correct"] for t in range(1, 8)] == [0, 0, 0, 0, 0, 0, 1]
    for segment in (range(1, 6), range(6, 8)):
        assert [r["step"] for r in records if r["problem"] == "p0" and r["step"] in segment] == list(segment)
    seconds = result(tmp_path)["seconds"]
    assert seconds["sampling"] == 18 == result(tmp_path)["wall_seconds"] and seconds["grading"] == 30
    assert max(r["elapsed_seconds"] for r in records) == 18.5


@pytest.mark.parametrize("wait", [0, 10, 19])
@pytest.mark.parametrize("fail_at", [5, 9, 13, 16, 18])
def test_killed_while_private_tests_are_graded(monkeypatch, tmp_path, fail_at, wait):
    """What has no line yet is sampled again, with what its segment remembered: the same records in the end."""
    _, whole, kept = run(monkeypatch, tmp_path, number_script, out="whole", graders=PrivateGraders)
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, number_script, fail_at=fail_at,
            graders=functools.partial(PrivateGraders, ready=lambda engine: len(engine.asked) >= wait))
    lines = read_jsonl(str(tmp_path / "out" / "rollouts.jsonl"))
    for segment in (range(1, 6), range(6, 8)):  # no later line without the earlier ones
        steps = [r["step"] for r in lines if r["problem"] == "p0" and r["step"] in segment]
        assert steps == list(segment)[:len(steps)] and None not in [r["correct"] for r in lines]
    _, records, kept_again = run(monkeypatch, tmp_path, number_script, graders=PrivateGraders)
    assert len(records) == len(whole) == 14 and comparable(records) == comparable(whole) and kept == kept_again


def test_the_cap_leaves_time_for_private_tests(monkeypatch, tmp_path):
    """Sampling ends at the cap, here in step 3; what had its public tests by then is graded whole, and counts."""
    async def cut(coroutines, seconds):
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        while len(graders[0].engine.asked) < 4:
            await asyncio.sleep(0)
        return bool([task.cancel() for task in tasks])
    graders = []

    def make(engine):
        graders.append(PrivateGraders(engine, ready=lambda engine: engine.is_closed))
        return graders[0]
    monkeypatch.setattr(explore, "side_by_side", cut)
    _, records, _ = run(monkeypatch, tmp_path, lambda *name: "\\boxed{1}", n=1, calls=4, graders=make)
    assert [(r["step"], r["correct"]) for r in records] == [(1, 0), (2, 0)] and result(tmp_path)["capped"]


def test_a_disk_that_is_full_when_private_tests_end(monkeypatch, tmp_path):
    """The error of a line that is written beside the run ends the run."""
    def full(file, *records):
        raise BadInput("no room")
    monkeypatch.setattr(journal, "append", full)
    with pytest.raises(BadInput, match="no room"):
        run(monkeypatch, tmp_path, lambda *name: "\\boxed{1}", n=1, graders=PrivateGraders)


def test_public_and_private_tests_of_programs(monkeypatch, tmp_path):
    """As LiveCodeBench has them: right; wrong on the private tests alone; wrong on the public ones."""
    row = {"id": "p0", "problem": "Print the square.", "verifier": "code",
           "tests": {"type": "stdin", "public": [["2", "4"]], "private": [["3", "9"]], "time_limit": 10}}
    (tmp_path / "bench.jsonl").write_text(json.dumps(row) + "\n")
    programs = {1: "print(int(input()) ** 2)", 2: "print(2 * int(input()))", 3: "print(5)"}
    graders = verifiers.Graders
    _, records, kept = run(monkeypatch, tmp_path, lambda problem, step, kind: f"```python\n{programs[step]}\n```", calls=3,
                           graders=lambda engine: graders())
    steps = by_step(records, "p0")
    assert [(steps[t]["reward"], steps[t]["correct"]) for t in (1, 2, 3)] == [(1, 1), (1, 0), (0, 0)]
    assert [line["step"] for line in kept] == [1, 2] and "Wrong Answer" in steps[3]["feedback"]


@pytest.mark.parametrize("room", [0, 100, 700, 5_000, 15_000])
def test_a_full_disk(monkeypatch, tmp_path, capsys, room):
    """No file may grow beyond `room` bytes, as on a disk that is full: a sentence, and what is there is gone on with."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    write_bench(tmp_path / "bench.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(SystemExit) as stop:
            exit_with_sentence(lambda: run(monkeypatch, tmp_path, number_script))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert stop.value.code == 2 and "make room, then the same command goes on" in capsys.readouterr().err.replace("\n", " ")
    _, records, _ = run(monkeypatch, tmp_path, number_script)
    assert len(records) == 14 == len({(r["problem"], r["step"]) for r in records})


def test_real_kills(toy_model, tmp_path):
    """The script itself, killed three times (kill -9) and stopped once (Ctrl-C) in the middle: every (problem, step) once."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, os.path.join(root, "explore.py"), "--bench", write_bench(tmp_path / "bench.jsonl", 12), "--model", toy_model,
               "--engine", "hf", "--max-tokens", "150", "--out", str(tmp_path / "out")]
    path, lines = tmp_path / "out" / "rollouts.jsonl", 0
    for stop in (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < lines + 20):
            time.sleep(0.01)
        process.send_signal(stop)
        errors = process.communicate()[1]
        lines = path.read_bytes().count(b"\n")
        assert 20 <= lines < 288 and "Traceback" not in errors
    assert process.returncode == 130 and "the same command goes on" in errors
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and f"{lines} answers are there already" in result.stdout
    records = read_jsonl(str(path))
    assert len(records) == 288 == len({(r["problem"], r["step"]) for r in records})

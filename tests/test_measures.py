"""Every measure against a value counted by hand on a toy of a few rollouts."""
import math
import random

import pytest

from common.errors import BadInput
from report import curves, measures


def run(answers, restart=5, **changes):
    """Attempts from {problem: "x x y R ..."}: R is correct, P passes the public tests only, - is wrong without a
    signature, anything else is the signature of a wrong answer, and a dot is a step that is not there."""
    records = []
    for problem, line in answers.items():
        for t, mark in enumerate(line.split(), 1):
            if mark != ".":
                records.append({
                    "problem": problem, "step": t, "restart": bool(restart) and (t - 1) % restart == 0,
                    "correct": int(mark == "R"), "reward": int(mark in "RP"),
                    "signature": None if mark in "RP-" else mark, "prompt_tokens": 10, "completion_tokens": 3,
                    "draft_prompt_tokens": 0, "draft_tokens": 0, "judge_prompt_tokens": 0, "judge_tokens": 0,
                    "sample_seconds": 1.0, **changes})
    return measures.by_problem(records)


LEAF = run({"a": "x x y R x x x", "b": "- z R R R R z", "c": "R R R R R R R"})
INDEPENDENT = run({"a": "x x y R", "b": "R R z R", "d": "q q - -"}, restart=None)


def test_a_step_that_is_recorded_twice_is_refused():
    record = {"problem": "a", "step": 3}
    with pytest.raises(BadInput, match="step 3 of problem a"):
        measures.by_problem([record, {"problem": "a", "step": 4}, record])


def test_pass_and_accuracy_curves():
    assert measures.pass_curve(LEAF, 7) == pytest.approx([1 / 3, 1 / 3, 2 / 3, 1, 1, 1, 1])
    assert measures.per_answer_curve(LEAF, 7, "correct") == pytest.approx([1 / 3, 2 / 6, 4 / 9, 7 / 12, 9 / 15, 11 / 18, 12 / 21])


def test_what_passes_only_the_public_tests_is_not_correct():
    attempts = run({"a": "P R", "b": "P P"})
    assert measures.pass_curve(attempts, 2) == [0, 0.5]
    assert measures.per_answer_curve(attempts, 2, "correct") == [0, 0.25]


def test_a_run_counts_up_to_the_last_step_that_every_problem_has():
    cut = run({"a": " ".join(["x"] * 16), "b": " ".join(["x"] * 20 + ["."] * 2 + ["R"] * 2)})
    assert measures.complete_steps(cut) == 16
    assert measures.pass_curve(cut, 16)[-1] == 0  # b's answer at step 23 does not count
    assert measures.complete_steps(run({"a": "x R", "b": ". R"})) == 0
    assert measures.complete_steps({}) == 0


def test_avg_and_pass_of_test_samples():
    outcomes = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]
    assert (measures.avg_at_k(outcomes), measures.pass_at_k(outcomes)[-1]) == (7 / 16, 3 / 4)
    assert measures.pass_at_k(outcomes) == [2 / 4, 3 / 4, 3 / 4, 3 / 4]  # cumulative, in the order of the samples


def test_tokens_count_drafts_and_judge_in_full():
    tokens = {"draft_prompt_tokens": 7, "draft_tokens": 5, "judge_prompt_tokens": 20, "judge_tokens": 2}
    attempts = run({"a": "R R", "b": "R R"}, **tokens)
    assert measures.token_curves(attempts, 2) == {
        "prompt": [34, 68], "completion": [6, 12], "draft": [10, 20], "summary": [0, 0], "judge": [44, 88],
        "all": [94, 188]}
    attempts["b"][2] |= {"summary_prompt_tokens": 100, "summary_tokens": 9}       # --compress summary: one more call
    found = measures.token_curves(attempts, 2)
    assert (found["prompt"], found["summary"], found["all"]) == ([34, 168], [0, 9], [94, 297])


def test_length_is_completion_tokens_per_graded_answer():
    attempts = run({"a": "R R", "b": "R R"}, draft_tokens=100)
    attempts["a"][2]["completion_tokens"] = 13
    assert measures.per_answer_curve(attempts, 2, "completion_tokens") == [3, 22 / 4]


def test_flops_are_2n_a_forward_token_and_6n_a_trained_one():
    assert measures.petaflops(8.19e9, 12_150_000) == pytest.approx(199, abs=0.1)  # Table 13: Qwen3-8B, MATH-500, 12.1 M
    assert measures.petaflops(1e9, 1e6, 2e6) == pytest.approx(2 + 12)
    assert measures.petaflops(5e14, 1) == 1.0  # exactly: 2 x 5e14 = 1e15


def test_tokens_of_an_update_in_both_accountings():
    """Two student sequences of 10 + 5 and 12 + 3 tokens, teachers with contexts of 30 and 12."""
    updates = [{"student_tokens": 15 + 15, "teacher_tokens": 35 + 15}]
    assert measures.update_tokens(updates) == (30 + 50, 60 + 50, 30)


def test_interleaved_updates_count_from_the_step_they_follow():
    updates = [{"step": j, "student_tokens": 10 * j, "teacher_tokens": j, "sample_seconds": 2.0, "train_seconds": 1.0}
               for j in (1, 2, 3)]  # after steps 2, 4 and 6
    assert measures.update_curves(updates, every=2, last=5) == [
        [0, 11, 11, 33, 33], [0, 10, 10, 30, 30], [0, 3, 3, 6, 6]]
    assert measures.update_curves(updates[1:], every=2, last=4) == [[0, 0, 0, 22], [0, 0, 0, 20], [0, 0, 0, 3]]
    assert measures.update_curves([], every=1, last=2) == [[0, 0]] * 3


def test_gpu_hours_are_allotted_by_sampling_time():
    attempts = run({"a": "R R R", "b": "R R ."})
    attempts["b"][2]["sample_seconds"] = 5.0  # the steps took 2, 6 and 1 of 9 seconds in all
    hours = measures.hour_curve(attempts, 2, startup_seconds=360, wall_seconds=3600, gpus=2)
    assert hours == pytest.approx([2 * (0.1 + 2 / 9), 2 * (0.1 + 8 / 9)])
    updated = measures.hour_curve(attempts, 2, startup_seconds=360, wall_seconds=3600, update_seconds=[0, 1800])
    assert updated == pytest.approx([0.1 + 0.5 * 2 / 9, 0.1 + 0.5 * 8 / 9 + 0.5])
    attempts["a"][1]["completion_tokens"] += 30  # of random sampling: by the tokens of an answer (App. C.4)
    tokens = [sum(steps[t]["completion_tokens"] for steps in attempts.values() if t in steps) for t in (1, 2, 3)]
    by_tokens = measures.hour_curve(attempts, 2, startup_seconds=360, wall_seconds=3600, by="completion_tokens")
    assert by_tokens == pytest.approx([0.1 + tokens[0] / sum(tokens), 0.1 + sum(tokens[:2]) / sum(tokens)])
    at_once = run({"a": "R R"}, sample_seconds=0.0)  # the times of rollouts.jsonl are rounded
    assert measures.hour_curve(at_once, 2, startup_seconds=360, wall_seconds=3600) == pytest.approx([1.1, 1.1])


def test_repeats_among_independent_samples():
    assert measures.repeats(INDEPENDENT) == (3 + 1 + 4, 1 + 0 + 1)
    assert measures.repeats(run({"a": "R R"})) == (0, 0)
    assert measures.repeats(run({"a": "x P x -"})) == (3, 1)                                # public tests decide
    assert measures.repeats(run({"a": "x " * 30})) == (24, 23)                              # the first 24 only


def test_transitions_skip_restarts_and_answers_without_signature():
    assert measures.transitions(LEAF) == {
        "a": [("x", True, False), ("x", False, False), ("y", False, True), ("x", True, False)],
        "b": [("z", False, True)]}
    assert measures.transitions(run({"a": "R R R", "b": "- x"})) == {}                # nothing wrong, or unseen
    assert measures.transitions(run({"a": "x . x"})) == {}                            # the step before is not there
    assert measures.transitions(run({"a": "x P"})) == {"a": [("x", False, True)]}     # fixed, as far as the policy sees
    assert len(measures.transitions(run({"a": "x " * 30}, restart=None))["a"]) == 23  # the first 24 steps only
    assert measures.transitions(run({"a": "x R"}), run({"a": "y y", "b": "z R"})) == {                # two seeds
        "a": [("x", False, True), ("y", True, False)], "b": [("z", False, True)]}


def test_paired_rates_average_problems_that_both_runs_have():
    other = measures.transitions(run({"a": "x R x x x", "d": "q q"}))  # a: fix, repeat, repeat; d is in this run only
    rates = measures.paired_rates(measures.transitions(LEAF), other)
    assert rates["problems"] == 1
    assert rates["repeat"][:3] == pytest.approx((2 / 4, 2 / 3, 2 / 4 - 2 / 3))
    assert rates["fix"][:3] == pytest.approx((1 / 4, 1 / 3, 1 / 4 - 1 / 3))
    assert rates["repeat"][3] == pytest.approx((-1 / 6, -1 / 6))          # one problem: every resample is the same
    nothing = measures.paired_rates(measures.transitions(LEAF), {})
    assert nothing == {"problems": 0, "repeat": None, "fix": None}


def test_bootstrap_interval_of_two_values():
    """Of two problems with differences 0 and 1 the resampled mean is 0, 1/2 or 1, each end with probability 1/4."""
    assert measures.bootstrap_interval([0, 1]) == (0, 1)
    low, high = measures.bootstrap_interval([0] * 50 + [1] * 50)
    assert low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.011) and high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.011)
    odd = [k**0.5 for k in range(20)]  # hardly two means are equal: one draw more, or another seed, gives another interval
    assert measures.bootstrap_interval(odd) == measures.bootstrap_interval(odd, draws=10_000, seed=0)


def test_tests_are_compared_problem_by_problem():
    ours, theirs = {"a": [1, 0], "b": [1, 1]}, {"a": [0, 0], "b": [1, 0]}
    assert measures.test_intervals(ours) == {"avg": (0.5, 1), "pass": (1, 1)}
    assert measures.paired_tests(ours, theirs) == {"avg": (0.75, 0.25, 0.5, (0.5, 0.5)), "pass": (1, 0.5, 0.5, (0, 1))}


def test_pooled_rates_against_the_base_frequency():
    rates = measures.pooled_rates(measures.transitions(LEAF), INDEPENDENT)
    assert rates == {"transitions": 5, "repeat": 2 / 5, "base": (0.5 + 0.5 + 0.25 + 0.5 + 0.25) / 5, "ratio": 2 / 2}
    only_b = measures.pooled_rates(measures.transitions(LEAF), {"b": INDEPENDENT["b"]})  # a has no independent samples
    assert only_b == {"transitions": 1, "repeat": 0, "base": 0.25, "ratio": 0}
    more = {"a": INDEPENDENT["a"], "b": run({"b": "R " * 18 + "z " * 12}, restart=None)["b"]}  # of 24 samples, 6 are z
    assert measures.pooled_rates(measures.transitions({"b": LEAF["b"]}), more)["base"] == 6 / 24
    never = measures.pooled_rates({"a": [("w", True, False)]}, INDEPENDENT)              # none of them errs that way
    assert never == {"transitions": 1, "repeat": 1, "base": 0, "ratio": None}
    assert measures.pooled_rates({}, INDEPENDENT) == {"transitions": 0, "repeat": None, "base": None, "ratio": None}


def test_self_correction():
    """Pairs in two segments. a: x>x x>y y>R R>x, then x>x; b: ->z z>R R>R R>R, then R>z; step 11 is too late. The
    repeats: x>x, x>y (the same but for white space), x>x; two answers that are missing do not repeat each other."""
    attempts = run({"a": "x x y R x x x", "b": "- z R R R R z . . . z"})
    answers = {"x": " 1 2", "y": "12", "z": None, None: None}
    rates = measures.self_correction(attempts, lambda record: answers[record["signature"]])
    assert rates == {"wrong_to_right": 2 / 6, "right_to_wrong": 2 / 4,
                     "repeat": 3 / 6, "restart": 1 / 4, "mean": 5 / 14}
    assert measures.self_correction(run({"a": "R R"}), lambda record: None)["wrong_to_right"] is None
    assert measures.self_correction(run({"a": "R R R x"}), lambda record: None)["right_to_wrong"] == 1 / 3


def test_relative_gain_is_the_papers():
    assert measures.relative_gain(42.35, 58.31, 72.64) == pytest.approx(0.5269, abs=5e-5)  # Table 32, Qwen3-8B, LCB
    assert measures.relative_gain(0.5, 0.6, 0.5) is None


def test_speed_up_interpolates_on_the_faster_curve():
    calls = [1, 2, 3, 4]
    assert measures.first_reach(calls, [0.2, 0.6, 0.6, 0.8], 0.5) == pytest.approx(1.75)
    assert measures.first_reach(calls, [0.2, 0.6, 0.6, 0.8], 0.6) == 2
    assert measures.first_reach(calls, [0.2, 0.6, 0.6, 0.8], 0.1) == 1       # reached with the first point
    assert measures.first_reach(calls, [0.2, 0.6, 0.6, 0.8], 0.9) is None
    assert measures.first_reach([1, 2], [0.1, 0.3 + 0.2 + 0.1], 0.1 + 0.2 + 0.3) == pytest.approx(2)  # but for rounding
    assert measures.speed_up(calls, [0.2, 0.6, 0.6, 0.8], calls, [0.1, 0.2, 0.3, 0.5]) == pytest.approx(4 / 1.75)
    assert measures.speed_up(calls, [0.2, 0.3, 0.3, 0.4], calls, [0.1, 0.2, 0.3, 0.5]) is None
    assert measures.speed_up(calls, [0.0, 0.3, 0.3, 0.4], calls, [0.0, 0.0, 0.0, 0.0]) is None
    assert measures.speed_up(calls, [0.0, 0.4, 0.4, 0.4], calls, [0.0, 0.0, 0.0, 0.4]) == 4 / 2  # it solved none at first


def test_mean_curve_ends_with_the_shortest():
    parts = [{"pass": [0.0, 0.5, 1.0], "hours": [1, 2, 3]}, {"pass": [1.0, 1.0]}]
    assert curves.mean_curves(parts) == {"pass": [0.5, 0.75]}


def test_mean_and_sample_deviation_over_seeds():
    mean, deviation = measures.over_seeds([78.52, 78.85, 78.57])     # Table 12, Qwen3-8B, SCoRe: 78.65 and 0.18
    assert (round(mean, 2), round(deviation, 2)) == (78.65, 0.18)
    assert measures.over_seeds([3.0]) == 3.0
    assert measures.over_seeds([3.0, None]) is None
    assert measures.over_seeds([0.5], 100) == 50 and measures.over_seeds([0.2, 0.4], 10) == pytest.approx((3, 2 ** 0.5))


def test_pass_curve_against_a_loop():
    """Eq. 1 written out, on random attempts."""
    rng = random.Random(0)
    attempts = run({str(i): " ".join(rng.choice("xyR-P") for _ in range(12)) for i in range(30)})
    for k, value in enumerate(measures.pass_curve(attempts, 12), 1):
        assert math.isclose(value, sum(max(attempts[p][t]["correct"] for t in range(1, k + 1)) for p in attempts) / 30)

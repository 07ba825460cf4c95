"""What the demo must show, read from out/tiny: half the margins that the mean of five models must have.

These are 3 and 10 points for LEAF above random sampling, 20 for the update and 10 for it above the control. Needs `python tiny.py` to have run here, and the second half `python tiny.py --ablations`.
"""
import os
import pathlib

import pytest

import tiny

OUT = pathlib.Path(__file__).parents[1] / "out" / "tiny"


@pytest.fixture(scope="module")
def demo():
    if not (OUT / "failure.json").exists():
        pytest.skip("run `python tiny.py` first")
    return tiny.Demo(os.fspath(OUT), 1)


@pytest.fixture(scope="module")
def leaf(demo):
    return last_point(demo, "leaf")


def last_point(demo, folder):
    """(pass@24, mean accuracy) of an exploration."""
    if not (OUT / folder / "cplus.jsonl").exists():
        pytest.skip("run `python tiny.py --ablations` first")
    curves = demo.explored(folder).curves
    assert len(curves["pass"]) == 24
    return curves["pass"][-1], curves["accuracy"][-1]


def test_leaf_solves_more_than_random_sampling(demo, leaf):
    rate, accuracy = last_point(demo, "random")
    assert leaf[0] >= rate + 0.015 and leaf[1] >= accuracy + 0.05


def test_successful_contexts_teach_best_and_failures_worst(demo):
    success, random, failure = map(demo.teacher_accuracy, ("success", "random", "failure"))
    assert success > random > failure


def test_the_update_keeps_what_successful_contexts_gave(demo):
    base, distilled, control = (demo.test_result(name)["avg"] for name in ("base", "distilled", "failure"))
    assert distilled >= base + 0.10 and distilled >= control + 0.05


def test_restarts_pay(demo, leaf):
    """Without them fewer problems are solved; with too many the accuracy falls."""
    assert leaf[0] > last_point(demo, "never")[0]
    assert leaf[1] > last_point(demo, "restart2")[1]


@pytest.mark.parametrize("folder", ["no-feedback", "no-response"])
def test_feedback_and_last_response_each_carry_a_part(demo, leaf, folder):
    rate, accuracy = last_point(demo, folder)
    assert leaf[0] > rate and leaf[1] > accuracy

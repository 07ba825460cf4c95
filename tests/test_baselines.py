"""The baselines: each loss by hand in float64 and against TRL's, bandits that it must solve, runs that survive stops."""
import asyncio
import json
import math
import os
import shutil
from types import SimpleNamespace as Namespace

import pytest

import scripted_student  # noqa: I001 (first: a rank of torchrun finds the project by it)
import engines
import evaluate
import explore
import loss
import policy as policies
import prompts
import verifiers
from baselines import grpo, online, score, sdpo, seed, sft
from benches.problem import Problem
from common import checkpoints, journal, ranks
from common.errors import BadInput, read_jsonl
from conftest import TOY_TERMS, make_model, tolerance
from engines.base import Sample
from report import curves, tests
from scripted_student import Gradients, toy_policy
from test_distill import torchrun

import torch
from safetensors.torch import load_file

DOUBLE, ROUNDING = tolerance(torch.float64, TOY_TERMS, 10), tolerance(torch.float32, TOY_TERMS)
T, D, V = 7, 6, 11


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("baselines") / "toy", tie_word_embeddings=False)


# ---------------------------------------------------------------------------------------------------------------------
# Losses on a head alone, in float64


class Fake:
    """A policy without a decoder: the states that predict the tokens are given. `ref`: those of the reference."""

    def __init__(self, hidden, head, temperature=1.0, teacher=None, ref=None):
        self.head, self.temperature = head, temperature
        self.student, self.teacher, self.ref, self.is_reference = hidden, teacher, ref, False

    def hidden_states(self, sequences, lengths):
        if self.is_reference:
            return self.ref
        teaches = any(sequence[0] == 1 for sequence in sequences)       # a teacher's prompt is [1]
        return self.teacher if teaches else self.student[:sum(lengths)]

    def parameters(self):
        return []

    def reference(self):
        import contextlib

        @contextlib.contextmanager
        def block():
            self.is_reference = True
            yield
            self.is_reference = False
        return block()


def answers(lengths=(2, 1, 3, 1), c=None, generator=None, **values):
    """Items with drawn tokens and float64-exact log mu."""
    generator = generator or torch.Generator().manual_seed(3)
    items = []
    for length in lengths:
        tokens = torch.randint(V, (length,), generator=generator).tolist()
        log_mu = (-torch.rand(length, generator=generator, dtype=torch.float64) * 3 - 1).float().tolist()
        items.append(online.Item([0], Sample(tokens, "", log_mu, "stop", 1), {}, c=c, **values))
    return items


def tensors(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def parts(items):
    """(y, log mu) of all tokens."""
    return (torch.tensor([t for i in items for t in i.y.token_ids]),
            torch.tensor([v for i in items for v in i.y.logprobs], dtype=torch.float64))


def same(found, expected, rel=DOUBLE):
    assert (found - expected).norm() <= rel * (expected.norm() + 1e-300)


def hand(hidden, head, items, temperature=1.0):
    """(log p of every token of the vocabulary [T, V], log p_y, w) the plain way."""
    y, log_mu = parts(items)
    logp = (hidden @ head.T / temperature).log_softmax(-1)
    log_p_y = logp[torch.arange(len(y)), y]
    return logp, log_p_y, (log_p_y.detach() - log_mu).exp().clamp(max=2)


@pytest.mark.parametrize("chunk", [1, 4, T, 100])
def test_chunked_is_the_plain_form(chunk):
    hidden, head, slope = tensors((T, D), (V, D), (T, V))
    head.requires_grad_()
    values = []
    for plain in (True, False):
        h = hidden.clone().requires_grad_()
        if plain:
            value = (slope * (h @ head.detach().T / 0.7).log_softmax(-1) ** 2).sum()
        else:
            value = loss.chunked(h, head, 0.7, lambda logp, c: (slope[c] * logp ** 2).sum(), chunk)
        (3 * value).backward()
        values.append((value.detach(), h.grad))
    assert head.grad is None
    same(values[1][0], values[0][0])
    same(values[1][1], values[0][1])


def test_chunked_of_nothing_and_of_bfloat16():
    empty = torch.zeros(0, D, requires_grad=True)
    value = loss.chunked(empty, torch.ones(V, D), 1.0, lambda logp, c: logp.sum())
    value.backward()
    assert value == 0 and empty.grad.shape == (0, D)
    hidden = torch.ones(T, D, dtype=torch.bfloat16, requires_grad=True)
    value = loss.chunked(hidden, torch.ones(V, D, dtype=torch.bfloat16), 1.0, lambda logp, c: logp.sum())
    value.backward()
    assert value.dtype == torch.float32 and hidden.grad.dtype == torch.bfloat16
    with torch.no_grad():
        assert loss.chunked(hidden, torch.ones(V, D), 1.0, lambda logp, c: logp.sum()).grad_fn is None


def test_weights_keep_float64():
    p, mu = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.0 - 1e-12], dtype=torch.float64)
    assert loss.importance_weights(p, mu).item() == pytest.approx(math.exp(1e-12), abs=1e-16)
    assert loss.importance_weights(p.float(), mu.float()).dtype == torch.float32


# ---------------------------------------------------------------------------------------------------------------------
# GRPO


def test_advantages():
    assert online.advantages([1, 0, 0, 1]) == pytest.approx([x / (math.sqrt(1 / 3) + 1e-6) for x in (.5, -.5, -.5, .5)])
    assert online.advantages([1, 0, 0], "mean") == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert online.advantages([1, 1, 1]) == [0, 0, 0] and online.advantages([1]) == [0]


def grpo_items():
    """Two groups of three answers."""
    items = answers((2, 1, 3, 1, 4, 2))
    for item, a in zip(items, online.advantages([1, 0, 0]) + online.advantages([1, 1, 0])):
        item.advantage = a
    return items


def of_policy(items, hidden, head, **options):
    h = hidden.clone().requires_grad_()
    value, sums = online.policy_loss(Fake(h, head, 0.7, ref=options.pop("ref", None)), items, **options)
    value.backward()
    return value.detach(), h.grad, sums


def test_grpo_by_hand():
    """And rho = 1: the gradient is REINFORCE's."""
    items = grpo_items()
    hidden, head = tensors((13, D), (V, D))
    advantage = torch.tensor([i.advantage for i in items for _ in i.y.token_ids], dtype=torch.float64)
    h = hidden.clone().requires_grad_()
    _, log_p_y, w = hand(h, head, items, 0.7)
    (-(w * advantage * log_p_y).sum()).backward()
    value, grad, sums = of_policy(items, hidden, head)
    same(value, -(w * advantage).sum().detach())
    same(grad, h.grad)
    assert sums["mean_w"] == pytest.approx(float(w.sum()), rel=1e-6) and sums["loss"] == pytest.approx(float(value))


def test_equal_rewards_teach_nothing():
    hidden, head = tensors((7, D), (V, D))
    _, grad, _ = of_policy(answers(), hidden, head)
    assert grad.abs().max() == 0


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_grpo_is_trls(beta):
    """TRL's own loss, loss_type dapo with vLLM's correction, on the same log-probabilities and advantages."""
    trl = pytest.importorskip("trl")
    items = grpo_items()
    for item in items:
        item.beta = beta
    hidden, head, noise = tensors((13, D), (V, D), (13, D))
    ref = hidden + 0.1 * noise         # near: TRL does not clamp its k3
    value, grad, _ = of_policy(items, hidden, head, ref=ref, with_reference=True)
    h = hidden.clone().requires_grad_()
    _, log_p_y, w = hand(h, head, items, 0.7)
    _, log_ref, _ = hand(ref, head, items, 0.7)
    lengths = [len(i.y.token_ids) for i in items]
    pad = lambda flat: torch.nn.utils.rnn.pad_sequence(list(flat.split(lengths)), batch_first=True)  # noqa: E731
    mask = pad(torch.ones(13, dtype=torch.long))
    inputs = {"prompt_ids": torch.zeros(6, 1, dtype=torch.long), "prompt_mask": torch.ones(6, 1, dtype=torch.long),
              "completion_ids": pad(parts(items)[0]), "completion_mask": mask, "ref_per_token_logps": pad(log_ref),
              "advantages": torch.tensor([i.advantage for i in items], dtype=torch.float64),
              "importance_sampling_ratio": pad(w), "num_items_in_batch": torch.tensor(1)}
    stub = Trl(pad(log_p_y), beta)
    found = trl.GRPOTrainer._compute_loss(stub, None, inputs)
    found.backward()
    same(found.detach(), value, rel=1e-6)
    same(h.grad, grad, rel=1e-6)


class Trl:
    """What GRPOTrainer._compute_loss asks of its trainer."""

    def __init__(self, log_p_y, beta):
        from collections import defaultdict
        self.log_p_y, self.beta = log_p_y, beta
        self.epsilon_low, self.epsilon_high = 0.2, 0.28
        self.args = Namespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
        self.accelerator = Namespace(num_processes=1, gather=lambda x: x, reduce=lambda x, *args, **kwargs: x)
        self.model = Namespace(training=True)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.loss_type, self.importance_sampling_level = "dapo", "token"
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.use_vllm = self.vllm_importance_sampling_correction = True
        self.use_liger_kernel = self.use_liger_loss = False
        self.current_gradient_accumulation_steps = 1
        self.tools = self.environments = None

    def __getattr__(self, name):
        return None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return self.log_p_y, torch.zeros_like(self.log_p_y), None


# ---------------------------------------------------------------------------------------------------------------------
# SDPO


def test_sdpo_by_hand():
    """V = 5, the two likeliest and the rest."""
    p, q = torch.tensor([[[.5, .2, .1, .15, .05]], [[.1, .3, .3, .2, .1]]], dtype=torch.float64)
    expected = .5 * math.log(.5 / .1) + .2 * math.log(.2 / .3) + .3 * math.log(.3 / .6)
    assert sdpo.divergence(p.log(), q.log(), top=2).item() == pytest.approx(expected, rel=DOUBLE)
    backward = .1 * math.log(.1 / .5) + .3 * math.log(.3 / .2) + .6 * math.log(.6 / .3)
    assert sdpo.divergence(p.log(), q.log(), alpha=0, top=2).item() == pytest.approx(backward, rel=DOUBLE)


def test_sdpos_loss_by_hand():
    """The sum of w D over the tokens; no gradient through w, nor to the teacher."""
    items = answers(c=[1])
    hidden, head, noise = (x / 2 for x in tensors((T, D), (V, D), (T, D)))  # no tail below the clamp's 1e-7
    taught, h, h2 = hidden + noise, hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    policy = Fake(h, head, 0.7, teacher=taught)
    run = Namespace(trainer=Namespace(policy=policy), teacher=[], options=Namespace(alpha=1.0))
    value, sums = sdpo.loss(run, items)
    value.backward()
    logp, _, w = hand(h2, head, items, 0.7)
    log_q, _, _ = hand(taught, head, items, 0.7)
    expected = (w * (logp.exp() * (logp - log_q)).sum(-1)).sum()    # 11 tokens: the likeliest ten and a tail of one
    expected.backward()
    same(value.detach(), expected.detach())
    same(h.grad, h2.grad)
    assert sums["mean_w"] == pytest.approx(float(w.sum()), rel=1e-6) and sums["capped_w"] == (w == 2).sum()


def test_sdpo_on_all_tokens_is_the_reverse_kl_and_a_lower_bound_on_fewer():
    student, teacher = tensors((T, V), (T, V))
    full = loss.token_divergence(student, teacher)
    found = [sdpo.divergence(student.log_softmax(-1), teacher.log_softmax(-1), top=k) for k in (V - 1, 3)]
    same(found[0], full)
    assert (found[1] <= full + DOUBLE).all()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_sdpo_is_trls(alpha):
    """Value and gradient of TRL's top-k loss with its tail."""
    pytest.importorskip("trl")
    from trl.experimental.sdpo.loss_utils import compute_topk_self_distillation_loss
    logits, teacher = tensors((T, V), (T, V))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = sdpo.divergence(ours.log_softmax(-1), teacher.log_softmax(-1), alpha, top=3)
    expected = compute_topk_self_distillation_loss(theirs, teacher, distillation_topk=3, distillation_alpha=alpha,
                                                   distillation_add_tail=True)
    found.sum().backward()
    expected.sum().backward()
    same(found.detach(), expected.detach())
    same(ours.grad, theirs.grad)


@pytest.mark.parametrize("rewards", [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)])
def test_who_gets_a_teacher(rewards):
    """The first right answer of the others, and the feedback on a failed one."""
    items = [online.Item([], Sample([], f"<think>t</think>\nanswer {i}", [], "stop", 0), {"reward": r, "feedback": "f" * i})
             for i, r in enumerate(rewards)]
    for i, item in enumerate(items):
        others = [j for j in range(3) if j != i and rewards[j]]
        solution = f"answer {others[0]}" if others else None
        feedback = "f" * i if not rewards[i] and i else None        # the first answer has an empty one
        assert sdpo.lesson(items, item, "both") == (solution, feedback)
        assert sdpo.lesson(items, item, "without-solution") == (solution, None if solution else feedback)


@pytest.mark.parametrize("rate", [0.0, 1.0, 0.25])
def test_the_moving_average(toy, rate):
    policy = toy_policy(toy)
    teacher = sdpo.first_teacher(Namespace(policy=policy, more=None))
    start = [p.detach().clone() for p in policy.parameters()]
    with torch.no_grad():
        for p in policy.parameters():
            p += 1
    own = [p.detach().clone() for p in policy.parameters()]
    sdpo.follow(teacher, policy, rate)
    for q, p in zip(teacher, start):
        assert torch.allclose(q, p + rate, atol=1e-6)
    with sdpo.teaching(policy, teacher):
        assert all(torch.equal(p, q) for p, q in zip(policy.parameters(), teacher))
    assert all(torch.equal(p, q) for p, q in zip(policy.parameters(), own))
    more = {str(i): q.clone() for i, q in enumerate(teacher)}
    again = sdpo.first_teacher(Namespace(policy=policy, more=more))
    assert all(torch.equal(p, q) for p, q in zip(again, teacher))


def test_a_long_demonstration_loses_its_beginning(monkeypatch):
    student = scripted_student.ScriptedStudent()
    monkeypatch.setattr(sdpo, "PROMPT_TOKENS", 200)
    ids = sdpo.prompt(student, [{"role": "user", "content": "x?"}], "a" * 300 + "END", None)
    text = student.tokenizer.decode(ids)
    assert len(ids) == 200 and "aEND\n\nCorrectly solve" in text and text.endswith("assistant\n")


# ---------------------------------------------------------------------------------------------------------------------
# SCoRe


def test_k3_by_hand_and_its_gradient():
    """By enumeration: the expected gradient of k3 as a loss is that of KL(ref || policy)."""
    logits, ref = (x / 3 for x in tensors((V,), (V,)))  # near enough that no clamp acts
    logits.requires_grad_()
    log_ref, p = ref.log_softmax(-1), logits.softmax(-1).detach()
    (p * online.k3(logits.log_softmax(-1), log_ref)).sum().backward()
    found, logits.grad = logits.grad, None
    (log_ref.exp() * (log_ref - logits.log_softmax(-1))).sum().backward()
    same(found, logits.grad)
    assert online.k3(torch.tensor(0.0), torch.tensor(1.0)).item() == pytest.approx(math.e - 2)
    assert online.k3(torch.tensor(0.0), torch.tensor(9.0)) == 10


def test_score_by_hand():
    """A penalty on some answers: value and gradient of the formula; at the reference nothing is left of it."""
    items = grpo_items()
    for i, item in enumerate(items):
        item.beta = 0.26 if i % 2 else 0.01
    hidden, head, noise = tensors((13, D), (V, D), (13, D))
    ref = hidden + 0.3 * noise
    value, grad, _ = of_policy(items, hidden, head, ref=ref, with_reference=True, high=0.2)
    h = hidden.clone().requires_grad_()
    _, log_p_y, w = hand(h, head, items, 0.7)
    _, log_ref, _ = hand(ref, head, items, 0.7)
    advantage, beta = (torch.tensor([getattr(i, name) for i in items for _ in i.y.token_ids], dtype=torch.float64)
                       for name in ("advantage", "beta"))
    d = log_ref - log_p_y
    penalty = (beta * (d.exp() - d - 1)).sum()
    (penalty - (w * advantage * log_p_y).sum()).backward()
    same(value, (penalty - (w * advantage).sum()).detach())
    same(grad, h.grad)
    plain = of_policy(items, hidden, head)
    at_reference = of_policy(items, hidden, head, ref=hidden, with_reference=True)
    same(at_reference[0], plain[0])
    same(at_reference[1], plain[1])


def test_score_without_bonus_and_penalty_is_grpo():
    """alpha = beta = 0: GRPO on two prompts, with the lower clip that never acts; bit by bit."""
    plain = Namespace(bonus=0.0, credit="turn")
    pairs = [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert [score.rewards(*pair, 2, plain) for pair in pairs] == pairs
    items = grpo_items()
    hidden, head, noise = tensors((13, D), (V, D), (13, D))
    found = of_policy(items, hidden, head, ref=hidden + noise, with_reference=True, high=0.2)
    expected = of_policy(items, hidden, head)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_rewards_of_the_stages():
    by_turn, by_trajectory = (Namespace(bonus=10.0, credit=credit) for credit in ("turn", "trajectory"))
    assert [score.rewards(1, 0, stage, by_turn) for stage in (1, 2)] == [(0, 0), (1, -10)]
    assert [score.rewards(0, 1, stage, by_turn) for stage in (1, 2)] == [(0, 1), (0, 11)]
    assert score.rewards(1, 1, 2, by_turn) == (1, 1) and score.rewards(0, 1, 2, by_trajectory) == (11, 11)
    assert [score.stage_1(u) for u in (47, 13, 36, 38, 38, 40, 32)] == [11, 3, 9, 9, 9, 10, 8]


# ---------------------------------------------------------------------------------------------------------------------
# SEED and SFT


def seed_case():
    items = grpo_items()
    for item in items[::2]:
        item.c = [1]
    hidden, head, noise = tensors((13, D), (V, D), (13, D))
    chosen = torch.tensor([i.c is not None for i in items for _ in i.y.token_ids])
    return items, hidden, head, hidden + 0.3 * noise, chosen


def test_seed_by_hand():
    """No gradient through the gate or l_skill; an answer without a skill has GRPO's alone."""
    items, hidden, head, taught, chosen = seed_case()
    h, h2 = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    policy = Fake(h, head, 0.7, teacher=taught[chosen], ref=hidden)
    value, _ = seed.skill_loss(policy, items, 0.5)
    value.backward()
    _, log_p_y, w = hand(h2, head, items, 0.7)
    _, l_skill, _ = hand(taught, head, items, 0.7)
    advantage = torch.tensor([i.advantage for i in items for _ in i.y.token_ids], dtype=torch.float64)
    gate = 1 / (1 + (-5 * (l_skill - log_p_y.detach())).exp())
    (-(w * advantage * log_p_y).sum() - 0.5 * (gate * log_p_y)[chosen].sum()).backward()
    same(h.grad, h2.grad)
    expected = -(w * advantage).sum() + 0.5 * (gate * (l_skill - log_p_y))[chosen].sum()
    same(value.detach(), expected.detach())


def test_seed_without_its_term_is_grpo():
    items, hidden, head, taught, chosen = seed_case()
    h = hidden.clone().requires_grad_()
    seed.skill_loss(Fake(h, head, 0.7, teacher=taught[chosen], ref=hidden), items, 0.0)[0].backward()
    assert torch.equal(h.grad, of_policy(items, hidden, head)[1])


def test_the_gate_at_no_difference_is_a_half():
    l = torch.tensor([-1.0, -2.0], requires_grad=True)
    seed.opd(l, l.detach()).sum().backward()
    assert l.grad.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("text,skill", [
    ('{"summary": "s", "skill": " do it "}', "do it"), ('```json\n{"summary": "s", "skill": "a {b}"}\n```', "a {b}"),
    ('{"summary": "s", "skill": "torn', None), ('{"skill": "alone"}', None), ('{"summary": 1, "skill": "x"}', None),
    ('{"summary": "s", "skill": ["x"]}', None), ("no JSON", None), ("[1]", None), ('{"summary": "s", "skill": ""}', None)])
def test_skills_are_read(text, skill):
    assert seed.skill_of(text) == skill


@pytest.mark.parametrize("text,skill", [('{"summary": "s", "skill": "' + 'a' * 600 + '"}', "a" * 500), ("torn", None)])
def test_a_long_skill_is_cut(text, skill):
    """At 500 tokens; the analysis is one request at temperature 0, without the adapter where there is none."""
    asked = []

    class Student(scripted_student.ScriptedStudent):
        async def sample(self, ids, **options):
            asked.append(options)
            return Sample(self.tokenizer.encode(text), text, [], "stop", len(ids))

    record = {"problem": "a", "step": 1, "response": "y", "reward": 0, "feedback": "f"}
    run = Namespace(engine=Student(), settings=Namespace(family="qwen3"), args=Namespace(seed=1))
    item = online.Item([], Sample([], "y", [], "stop", 0), record)
    asyncio.run(seed.analysed(run, Problem("a", "math500", "X?", "math", answer="4"), item, None))
    assert record["analysis"] == text and record["skill"] == skill
    assert asked[0] == {"seed": asked[0]["seed"], "max_tokens": 2048, "temperature": 0.0, "top_p": 1.0, "adapter": None}


def test_the_collected_updates_of_the_paper():
    assert [seed.collected(u) for u in (47, 13, 36, 38, 29, 30, 24)] == [8, 2, 6, 6, 5, 5, 4]


def turns(*contents):
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 3, contents)]


def test_the_request_for_a_rewriting():
    """Word by word, with its session and without; labels and endings."""
    x = Problem("a", "math500", "X?", "math", answer="4")
    context = prompts.carry(x, "qwen3", "old", 0, "")
    verdict = context[2]["content"]
    system = [{"role": "system", "content": "S"}]
    *kept, asked = prompts.rewrite(x, system + turns("PLAIN"), context, "so \\boxed{4}", "4")
    assert kept == system and asked["content"] == (
        "PLAIN\n\nBelow is an earlier solving session for this problem: earlier attempts, the feedback on them, and a final "
        "solution that was verified to be correct.\n\n<session>\n[Earlier attempt]\nold\n\n[Feedback]\n" + verdict +
        "\n</session>\n\n<correct_solution>\nso \\boxed{4}\n</correct_solution>\n\nRewrite the correct solution into a "
        "complete, self-contained solution to the problem, written as if you were solving it for the first time. Remove the "
        "wrong attempts, the invalid derivations, the wrong intermediate results and every reference to earlier attempts, "
        "feedback, checking or corrections. Present the correct reasoning in a logical order, keeping its intermediate "
        "results. The final answer must be exactly the same as in the correct solution: end with \\boxed{4}.\nOutput only "
        "the rewritten solution.")
    (short,) = prompts.rewrite(x, turns("PLAIN"), turns("PLAIN"), "y", "4")
    assert short["content"].startswith("PLAIN\n\nBelow is a solution to this problem that was verified to be correct.\n\n<corr")
    (blind,) = prompts.rewrite(x, turns("PLAIN"), prompts.restart(x, "qwen3", "draft"), "y", "4")
    assert "[Earlier attempt]\ndraft\n\n[Problem prompt]\nReview your" in blind["content"]
    for verifier, ending in (("code", "in a single ```python code block.\nOutput"),
                             ("judge", 'end with "Final answer:" followed by it.\nOutput')):
        other = Problem("a", "b", "X?", verifier, tests={"type": "stdin"})
        assert ending in prompts.rewrite(other, turns("PLAIN"), turns("PLAIN"), "y", None)[0]["content"]


def test_the_prompts_of_teachers():
    (both,) = prompts.sdpo_teacher(turns("X"), "Y", "F")
    assert both["content"] == ("X\nCorrect solution:\n\nY\nThe following is feedback from your unsuccessful earlier "
                               "attempt:\n\nF\n\nCorrectly solve the original question.")
    assert prompts.sdpo_teacher(turns("X"), None, None)[0]["content"] == "X\n\nCorrectly solve the original question."
    analysis = prompts.analyze(turns("X"), "Y {skill}", 0, "F")[0]["content"]
    assert "it is incorrect.\nF\n\n" in analysis and '{"summary": ' in analysis and "Y {skill}" in analysis
    assert prompts.with_skill(turns("X"), "K")[0]["content"].endswith("\nK")


def test_sft_is_the_cross_entropy():
    items = answers()
    hidden, head = tensors((T, D), (V, D))
    h, h2 = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    value, _ = sft.loss(Fake(h, head, 0.7), items)
    value.backward()
    expected = torch.nn.functional.cross_entropy(h2 @ head.T, parts(items)[0], reduction="sum")
    expected.backward()
    same(value.detach(), expected.detach())
    same(h.grad, h2.grad)


# ---------------------------------------------------------------------------------------------------------------------
# Bandits: answers of one token, sampled from the policy itself among a few arms


ARMS = [65, 66]


def arm_probabilities(policy, prompt):
    with torch.no_grad():
        logits = policy.hidden_states([[*prompt, 0]], [1]) @ policy.head.T
    return (logits[0, ARMS] / policy.temperature).softmax(-1)


def pull(p, prompt, generator):
    """An answer of one token -> Sample; p: the arms' probabilities, mu."""
    arm = int(torch.multinomial(p, 1, generator=generator))
    return Sample([ARMS[arm]], str(arm), [float(p[arm].log())], "stop", len(prompt))


def train_bandit(policy, batch_of, loss_of_batch, updates=30, lr=1e-2):
    """batch_of(generator) -> Items."""
    optimizer, generator = policies.adam(policy, lr), torch.Generator().manual_seed(1)
    args = online.flags.UpdateArgs(lr, math.inf, "reverse_kl", 10**6, 0)
    for _ in range(updates):
        online.distill.optimizer_step(policy, optimizer, batch_of(generator), loss_of_batch, args)


PROMPT = [5, 6, 7]


def test_grpo_solves_a_bandit(toy):
    policy = toy_policy(toy)

    def batch(generator):
        items, p = [], arm_probabilities(policy, PROMPT)
        for _ in range(4):
            group = [pull(p, PROMPT, generator) for _ in range(4)]
            values = online.advantages([int(y.text) for y in group])
            items += [online.Item(PROMPT, y, {}, a) for y, a in zip(group, values)]
        return items

    train_bandit(policy, batch, lambda rows: online.policy_loss(policy, rows))
    assert arm_probabilities(policy, PROMPT)[1] > 0.95


def second_prompt(arm):
    """Turn 2 sees turn 1."""
    return [*PROMPT, ARMS[arm], 9]


def score_batch(policy, generator, stage):
    """Four groups of four trajectories; right is the second arm."""
    options, items = Namespace(bonus=10.0, credit="turn"), []
    p, *second = (arm_probabilities(policy, x) for x in (PROMPT, second_prompt(0), second_prompt(1)))
    for _ in range(4):
        pairs = []
        for _ in range(4):
            y1 = pull(p, PROMPT, generator)
            x2 = second_prompt(int(y1.text))
            pairs.append((y1, x2, pull(second[int(y1.text)], x2, generator)))
        paid = [score.rewards(int(y1.text), int(y2.text), stage, options) for y1, _, y2 in pairs]
        for turn in (0, 1):
            beta = 0.01 + (0.25 if (stage, turn) == (1, 0) else 0)
            values = online.advantages([reward[turn] for reward in paid])
            for (y1, x2, y2), a in zip(pairs, values):
                items.append(online.Item((PROMPT, x2)[turn], (y1, y2)[turn], {}, a, beta=beta))
    return items


def test_score_solves_a_bandit_of_two_turns(toy):
    """Stage 1 raises the second turn and leaves the first about where it was; stage 2 mends what is wrong."""
    policy = toy_policy(toy)
    with torch.no_grad():          # the start is the reference, as in a run
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    loss_of_batch = lambda rows: online.policy_loss(policy, rows, high=0.2, with_reference=True)  # noqa: E731
    second_turn = lambda: [float(arm_probabilities(policy, second_prompt(arm))[1]) for arm in (0, 1)]  # noqa: E731
    start, before = arm_probabilities(policy, PROMPT), second_turn()
    train_bandit(policy, lambda g: score_batch(policy, g, 1), loss_of_batch, updates=40, lr=1e-3)
    now, after = arm_probabilities(policy, PROMPT), second_turn()
    assert (now * (now / start).log()).sum() < 0.05
    assert now @ torch.tensor(after) > start @ torch.tensor(before)
    train_bandit(policy, lambda g: score_batch(policy, g, 2), loss_of_batch, updates=40, lr=1e-3)
    assert second_turn()[0] > 0.95 > after[0]


def test_sdpo_solves_a_bandit_whose_teacher_names_the_arm(toy):
    """The teacher is scripted: its states are those that predict the right arm. A silent one, the policy, moves nothing."""
    policy = toy_policy(toy)
    start = [p.detach().clone() for p in policy.parameters()]
    run = Namespace(trainer=Namespace(policy=policy), teacher=start, options=Namespace(alpha=1.0))

    def batch(generator):
        p = arm_probabilities(policy, PROMPT)
        return [online.Item(PROMPT, pull(p, PROMPT, generator), {}, c=PROMPT) for _ in range(8)]

    found = gradient(policy, batch(torch.Generator().manual_seed(1)), lambda rows: sdpo.loss(run, rows), 10**6)
    assert max(g.abs().max() for g in found.values()) < 1e-6       # teacher and student are the same
    right = [*PROMPT, ARMS[1]]
    with torch.no_grad():                                          # the state whose likeliest token is the right arm
        taught = 20 * policy.head[ARMS[1]] / policy.head[ARMS[1]].norm()
    with pytest.MonkeyPatch.context() as patch:
        states = online.states
        patch.setattr(online, "states", lambda p, rows, prompts_: taught.expand(len(rows), -1)
                      if rows and prompts_[0] == right else states(p, rows, prompts_))
        named = lambda generator: [online.Item(PROMPT, i.y, {}, c=right) for i in batch(generator)]  # noqa: E731
        train_bandit(policy, named, lambda rows: sdpo.loss(run, rows))
    assert arm_probabilities(policy, PROMPT)[1] > 0.95


# ---------------------------------------------------------------------------------------------------------------------
# One gradient however it is cut


def toy_answers():
    items = []
    for row in scripted_student.toy_items():
        items.append(online.Item(row.x, row.y, {}, advantage=(-1) ** len(items) * 0.7, c=row.c, beta=0.2))
    return items


def gradient(policy, items, loss_of_batch, budget):
    optimizer = Gradients(policy)
    args = online.flags.UpdateArgs(1e-5, math.inf, "reverse_kl", budget, 0, float("inf"))
    online.distill.optimizer_step(policy, optimizer, items, loss_of_batch, args)
    return optimizer.kept


def methods():
    """{name: loss(policy, rows)} of every method."""
    return {"grpo": lambda policy, rows: online.policy_loss(policy, rows),
            "reference": lambda policy, rows: online.policy_loss(policy, rows, with_reference=True),
            "sdpo": lambda policy, rows: sdpo.loss(sdpo_run(policy), rows),
            "seed": lambda policy, rows: seed.skill_loss(policy, rows, 0.5),
            "sft": sft.loss}


def sdpo_run(policy, alpha=1.0):
    """What SDPO's loss asks of a run; the teacher's parameters are half of the policy's."""
    teacher = [p.detach() / 2 for p in policy.parameters()]
    return Namespace(trainer=Namespace(policy=policy, more=None), teacher=teacher, options=Namespace(alpha=alpha))


def close(found, expected):
    a, b = (torch.cat([grads[name].flatten().double() for name in expected]) for grads in (found, expected))
    assert (a - b).norm() <= ROUNDING * b.norm() and b.norm() > 0


@pytest.mark.parametrize("name", methods())
def test_any_cut_into_micro_batches(toy, name):
    found = [gradient(policy, toy_answers(), lambda rows: methods()[name](policy, rows), budget)
             for budget in (1, 80, 10**9) for policy in [toy_policy(toy)]]
    close(found[0], found[2])
    close(found[1], found[2])


def test_two_ranks_are_one(scripted, undisturbed, toy, tmp_path, monkeypatch):
    """One rank has a single answer, so it makes empty passes."""
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, policies, "save_checkpoint", 2, False)
        sdpo.main(flags(toy, tmp_path / "run"))
    result = torchrun(2, os.path.abspath(__file__), toy, tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    for name, method in methods().items():
        policy = toy_policy(toy)
        expected = gradient(policy, toy_answers(), lambda rows: method(policy, rows), 10**9)
        close(torch.load(tmp_path / f"{name}.pt"), expected)
    # A run that one rank began; and one with a group an update, which leaves rank 1 without any.
    monkeypatch.setattr(seed, "skill_of", lambda text: text.strip() or None)
    seed.main(flags(toy, tmp_path / "seed_1", "--batch", "1"))
    for name, one, two in (("sdpo", undisturbed("sdpo"), tmp_path / "run"), ("seed", tmp_path / "seed_1", tmp_path / "seed_2")):
        assert untimed(two / "rollouts.jsonl") == untimed(one / "rollouts.jsonl")
        for line, other in zip(untimed(two / f"{name}.jsonl"), untimed(one / f"{name}.jsonl"), strict=True):
            assert line == {key: pytest.approx(value, rel=1e-3) for key, value in other.items()}
        assert json.loads((two / "explore.json").read_text())["result"]["gpus"] == 2


def rank_main():
    import sys
    _, model, out = sys.argv
    ranks.init_ranks()
    rank, _ = ranks.rank_and_world()
    mine = [toy_answers()[i] for i in ((0, 1, 2, 3, 4), (5,))[rank]]
    for name, method in methods().items():
        policy = toy_policy(model)
        found = gradient(policy, mine, lambda rows: method(policy, rows), 60)
        if rank == 0:
            torch.save(found, os.path.join(out, f"{name}.pt"))
    engines.start, verifiers.grade = scripted_student.start, by_length
    seed.skill_of = lambda text: text.strip() or None
    sdpo.main(flags(model, os.path.join(out, "run")))
    seed.main(flags(model, os.path.join(out, "seed_2"), "--batch", "1"))


# ---------------------------------------------------------------------------------------------------------------------
# Runs


def flags(model, out, *more):
    return ["--bench", "arithmetic", "--split", "train", "--limit", "3", "--calls", "6", "--group", "4", "--batch", "2",
            "--model", str(model), "--max-tokens", "20", "--lr", "1e-2", "--micro-tokens", "900", "--out", str(out), *more]


@pytest.fixture
def scripted(monkeypatch):
    """The scripted student, graded by its text alone."""
    monkeypatch.setattr(engines, "start", scripted_student.start)
    monkeypatch.setattr(verifiers, "grade", by_length)


async def by_length(problem, response, *args, **kwargs):
    """Half of the answers are right."""
    reward = len(response) % 2
    return verifiers.Verdict(reward, reward, "", None), None


TIMES = ("elapsed_seconds", "step_seconds", "sample_seconds", "train_seconds", "verify_seconds", "private_seconds")


def untimed(path):
    return [{name: value for name, value in line.items() if name not in TIMES} for line in read_jsonl(str(path))]


def contents(out, name):
    """What a run leaves, times apart; resume.pt by its values."""
    adapter = out / "adapter"
    steps = sorted(path.name for path in adapter.iterdir() if path.is_dir())
    resumed = {step: torch.load(adapter / step / "resume.pt") for step in steps}
    return (untimed(out / "rollouts.jsonl"), untimed(out / f"{name}.jsonl"), steps,
            (adapter / "adapter_model.safetensors").read_bytes(), flat(resumed))


def flat(value):
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


class Crash(BaseException):
    pass


def crash_points(name):
    """(owner, attribute, call at which it crashes, whether it is done first), one stop each; the loop is one for all."""
    own = {"sdpo": [(sdpo, "follow", 2, True)], "seed": [(policies, "save_checkpoint", 2, False)],
           "score": [(policies.Trainer, "write_lines", 3, False)]}
    return own[name] if name in own else [
            (online, "step", 2, False), (policies.Trainer, "write_lines", 2, False), (journal, "append", 4, False),
            (journal, "append", 4, True), (policies, "save_checkpoint", 2, False), (checkpoints, "update_latest", 2, False),
            (policies, "save_checkpoint", 2, True)]  # grpo


def crash_at(monkeypatch, owner, attribute, number, after):
    original, calls = getattr(owner, attribute), []

    def crashing(*args, **kwargs):
        calls.append(0)
        if len(calls) == number:
            if after:
                original(*args, **kwargs)
            raise Crash
        return original(*args, **kwargs)
    monkeypatch.setattr(owner, attribute, crashing)


METHODS = {"grpo": grpo, "sdpo": sdpo, "score": score, "seed": seed}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, toy):
    """{method: the folder of a whole run}, made when asked for."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "out"
            METHODS[name].main(flags(toy, made[name]))
        return made[name]
    return make


@pytest.mark.parametrize("name", METHODS)
def test_a_run_survives_every_stop(scripted, undisturbed, toy, tmp_path, monkeypatch, name):
    expected = contents(undisturbed(name), name)
    for number, point in enumerate(crash_points(name)):
        out = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, *point)
            METHODS[name].main(flags(toy, out))
        METHODS[name].main(flags(toy, out))
        found = contents(out, name)
        assert [a == b for a, b in zip(found, expected)] == [True] * 5, point


@pytest.mark.parametrize("name", METHODS)
def test_the_answers_of_a_run(scripted, undisturbed, name):
    """K * problems answers, the batch cut at ceil(K * problems / group) groups, read as LEAF's."""
    records = read_jsonl(str(undisturbed(name) / "rollouts.jsonl"))
    assert len(records) == 4 * math.ceil(6 * 3 / 4) == 20 and {r["method"] for r in records} == {name}
    steps = {}
    for record in records:
        steps.setdefault(record["problem"], []).append(record["step"])
    assert sorted(map(len, steps.values())) == [4, 8, 8] and all(s == sorted(s) for s in steps.values())
    assert [r["updates"] for r in records] == [0] * 8 + [1] * 8 + [2] * 4
    run = curves.read_run(str(undisturbed(name) / "rollouts.jsonl"))
    assert run.curves["calls"] == [1, 2, 3, 4] and str(run.method).lower() == name
    trained = sum(r["trained_tokens"] for r in records if r["step"] <= 4)
    assert run.curves["trained"][-1] == trained and run.curves["hours"] == sorted(run.curves["hours"])


def test_another_run_in_the_folder_is_left_alone(scripted, undisturbed, toy, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(undisturbed("grpo"), out)
    before = (out / "rollouts.jsonl").read_bytes()
    with pytest.raises(BadInput, match="lr = 0.01, not 0.1"):
        grpo.main(flags(toy, out, "--lr", "1e-1"))
    shutil.rmtree(out / "adapter")
    content = json.loads((out / "explore.json").read_text())
    content["settings"]["method"] = "leaf"
    (out / "explore.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match="method = leaf"):
        grpo.main(flags(toy, out))
    assert (out / "rollouts.jsonl").read_bytes() == before


def test_the_cap_ends_a_run_between_updates(scripted, toy, tmp_path):
    grpo.main(flags(toy, tmp_path / "out", "--gpu-hours", "1e-9"))
    assert not (tmp_path / "out" / "adapter").exists()
    grpo.main(flags(toy, tmp_path / "out", "--gpu-hours", "1"))
    assert checkpoints.newest_step(str(tmp_path / "out" / "adapter")) == 3


def test_a_group_has_whole_trajectories(toy, tmp_path):
    with pytest.raises(BadInput, match="--group 3 would cut a trajectory of 2 answers"):
        score.main(flags(toy, tmp_path / "out", "--group", "3"))
    assert not (tmp_path / "out").exists()


def test_a_bench_of_one_problem(scripted, toy, tmp_path):
    """Its groups are of several epochs of one; K is no multiple of the group's size."""
    grpo.main(flags(toy, tmp_path / "out", "--limit", "1"))
    assert [r["step"] for r in read_jsonl(str(tmp_path / "out" / "rollouts.jsonl"))] == [*range(1, 9)]
    assert len(read_jsonl(str(tmp_path / "out" / "grpo.jsonl"))) == 1


def test_an_update_without_teachers_is_skipped(scripted, toy, tmp_path, monkeypatch):
    """No success and no feedback: the update counts, the adapter stays, and nothing is trained."""
    async def wrong(*args, **kwargs):
        return verifiers.Verdict(0, 0, "", None), None
    monkeypatch.setattr(verifiers, "grade", wrong)
    sdpo.main(flags(toy, tmp_path / "out", "--calls", "2"))
    lines = read_jsonl(str(tmp_path / "out" / "sdpo.jsonl"))
    assert [(line["tokens"], line["trained_tokens"], line["paper_forward_tokens"]) for line in lines] == [(0, 0, 0)]
    weights = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert all(not weight.any() for name, weight in weights.items() if "lora_B" in name)
    assert checkpoints.newest_step(str(tmp_path / "out" / "adapter")) == 1


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_a_folder_of_something_else_is_left_alone(scripted, explored, toy, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{name}.jsonl").write_text("mine\n")
    with pytest.raises(BadInput, match=f"--out leads to .*{name}.jsonl, and without its"):
        {"grpo": lambda: grpo.main(flags(toy, out)), "sft": lambda: sft.main(sft_flags(explored, out))}[name]()
    assert (out / f"{name}.jsonl").read_text() == "mine\n"


def test_evaluate_reads_the_runs(scripted, undisturbed, tmp_path, capsys):
    """Tables, a plot and a page, as LEAF's; a last line that a crash tore off is left out."""
    torn = tmp_path / "torn"
    shutil.copytree(undisturbed("grpo"), torn)
    with open(torn / "rollouts.jsonl", "a") as file:
        file.write('{"problem": "arith')
    paths = [str(folder / "rollouts.jsonl") for folder in (torn, undisturbed("sdpo"))]
    plot, page = str(tmp_path / "a.png"), str(tmp_path / "a.html")
    evaluate.main(["--rollouts", paths[0], "--versus", paths[1], "--plot", plot, "--html", page])
    output = capsys.readouterr()
    assert "| GRPO |" in output.out and "| SDPO |" in output.out and "is damaged and left out" in output.err
    assert os.path.getsize(plot) > 0 and os.path.getsize(page) > 0


def test_what_a_run_cost(scripted, undisturbed, capsys):
    """Table 19's columns: all answers, also those beyond the last step that all problems have; nothing twice."""
    folder = undisturbed("score")
    evaluate.main(["--update", str(folder)])
    here, papers = [row.split(" | ") for row in capsys.readouterr().out.splitlines() if "| score" in row]
    records = read_jsonl(str(folder / "rollouts.jsonl"))
    length = sum(r["prompt_tokens"] + r["completion_tokens"] for r in records)
    # Every answer is read once more by the reference, and by the paper's old policy, and is trained on.
    assert [row[3:5] for row in (here, papers)] == [[f"{2 * length:,}", f"{length:,}"], [f"{3 * length:,}", f"{length:,}"]]
    with pytest.raises(BadInput, match="leave it out"):
        evaluate.main(["--update", str(folder), "--internalization"])


def test_what_sft_cost(scripted, undisturbed, tmp_path, capsys):
    """Exploration, rewriting and training; N = 1000."""
    settings = {"cplus": str(undisturbed("grpo") / "cplus.jsonl")}
    result = {"gpus": 2, "seconds": {"rewriting": 3600.0}}
    (tmp_path / "sft.json").write_text(json.dumps({"settings": settings, "result": result}))
    (tmp_path / "rewrites.jsonl").write_text('{"prompt_tokens": 1000000000000, "completion_tokens": 500000000000}\n')
    (tmp_path / "sft.jsonl").write_text('{"trained_tokens": 2000000000000, "train_seconds": 900}\n')
    evaluate.main(["--update", str(tmp_path)])
    rows = [row.split(" | ")[2:] for row in capsys.readouterr().out.splitlines() if row.startswith("| toy")]
    assert [row[0] for row in rows] == ["exploration", "rewriting", "sft"]
    assert rows[1][1:] == ["1,500,000,000,000", "0", "3.00", "2.00 |"]
    assert rows[2][1:] == ["0", "2,000,000,000,000", "12.00", "0.50 |"]


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_an_adapter_says_its_method(name, tmp_path):
    """And how its run sampled: what evaluate.py --bench takes where the flags are silent."""
    kept = {"model": "m", "temperature": 0.5}
    (tmp_path / "adapter" / "step_2").mkdir(parents=True)
    own = {"grpo": ("explore.json", {"method": "grpo"}), "sft": ("sft.json", {"rewrite": 5})}[name]
    (tmp_path / own[0]).write_text(json.dumps({"settings": kept | own[1]}))
    for adapter in ("adapter", "adapter/step_2"):
        assert engines.adapter_run(str(tmp_path / adapter)) == kept | own[1]
        assert tests.policy(str(tmp_path / adapter)) == name
    (tmp_path / "distill.json").write_text(json.dumps({"settings": kept}))
    assert tests.policy(str(tmp_path / "adapter")) == "adapter" and tests.policy(None) == "base model"


def test_leaf_against_a_baseline_that_ended_earlier(scripted, undisturbed, toy, tmp_path, capsys):
    """LEAF has six calls of each problem, GRPO's last update left four: both are compared there."""
    explore.main(["--bench", "arithmetic", "--split", "train", "--limit", "3", "--calls", "6", "--model", toy, "--max-tokens",
                  "20", "--out", str(tmp_path)])
    evaluate.main(["--rollouts", str(tmp_path / "rollouts.jsonl"), "--versus", str(undisturbed("grpo") / "rollouts.jsonl")])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[3] for row in rows if "LEAF" in row[2:3]][0] == "6" and [row[3] for row in rows if "GRPO" in row[2:3]][0] == "4"


@pytest.mark.parametrize("problems,calls,updates", [
    (500, 24, 47), (131, 24, 13), (378, 24, 36), (400, 24, 38), (478, 20, 38), (500, 20, 40), (400, 20, 32)])
def test_the_updates_of_the_paper(problems, calls, updates):
    assert math.ceil(online.groups(problems, calls, 8) / 32) == updates


def test_seeds_collection_ends_with_its_sft(scripted, toy, tmp_path, monkeypatch):
    """Two of eleven batches teach nothing but the skills; a crash within the SFT repeats it."""
    monkeypatch.setattr(seed, "skill_of", lambda text: text.strip() or None)
    more = "--calls", "7", "--group", "2", "--batch", "1"
    seed.main(flags(toy, tmp_path / "whole", *more))
    lines = untimed(tmp_path / "whole" / "seed.jsonl")
    assert [line["tokens"] == 0 for line in lines] == [True] * 2 + [False] * 9
    assert lines[1]["analyses"] > 0 and lines[0]["trained_tokens"] == 0 < lines[1]["trained_tokens"]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, sft, "loss", 2, False)
        seed.main(flags(toy, tmp_path / "torn", *more))
    assert checkpoints.newest_step(str(tmp_path / "torn" / "adapter")) == 1
    seed.main(flags(toy, tmp_path / "torn", *more))
    found, expected = (contents(tmp_path / name, "seed") for name in ("torn", "whole"))
    assert [a == b for a, b in zip(found, expected)] == [True] * 5


# ---------------------------------------------------------------------------------------------------------------------
# SFT's runs


@pytest.fixture
def explored(toy, tmp_path):
    """The folder of an exploration of three problems, two pairs each."""
    folder = tmp_path / "leaf"
    folder.mkdir()
    problems = [x.id for x in online.benches.load("arithmetic", "train", None, 3)]
    lines = [{"problem": p, "bench": "arithmetic", "model": toy, "family": "qwen3", "step": step, "response": f"\\boxed{{{step}}}",
              "decoding": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 20},
              "opening": [{"role": "user", "content": p}], "context": [{"role": "user", "content": p}]}
             for p in problems for step in (1, 2)]
    (folder / "cplus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "explore.json").write_text(json.dumps({"settings": {"bench": "arithmetic", "split": "train", "data": None}}))
    return str(folder / "cplus.jsonl")


def sft_flags(cplus, out, *more):
    return ["--cplus", cplus, "--out", str(out), "--steps", "3", "--batch", "4", "--lr", "1e-2", *more]


def test_rewriting_stops_when_it_is_right_and_survives_a_crash(scripted, explored, tmp_path, monkeypatch):
    sft.main(sft_flags(explored, tmp_path / "whole"))
    lines = untimed(tmp_path / "whole" / "rewrites.jsonl")
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    rounds = {}
    for line in lines:
        rounds.setdefault((line["problem"], line["step"]), []).append(line)
    for found in rounds.values():
        is_right = [line["correct"] == 1 and not line["truncated"] for line in found]
        assert [line["round"] for line in found] == list(range(1, len(found) + 1)) and not any(is_right[:-1])
        assert is_right[-1] or len(found) == 5
    assert len(rounds) == 6 and any(len(found) > 1 for found in rounds.values())
    out = tmp_path / "torn"
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, journal, "append", 4, True)
        sft.main(sft_flags(explored, out))
    sft.main(sft_flags(explored, out))
    key = lambda line: (line["problem"], line["step"], line["round"])  # noqa: E731
    torn = [{k: v for k, v in line.items() if k != "seconds"} for line in untimed(out / "rewrites.jsonl")]
    assert sorted(torn, key=key) == sorted(lines, key=key)
    assert untimed(out / "sft.jsonl") == untimed(tmp_path / "whole" / "sft.jsonl") and len(untimed(out / "sft.jsonl")) == 3
    weights = [(folder / "adapter" / "adapter_model.safetensors").read_bytes() for folder in (out, tmp_path / "whole")]
    assert weights[0] == weights[1]
    result = json.loads((out / "sft.json").read_text())["result"]
    kept = sum(found[-1]["correct"] == 1 and not found[-1]["truncated"] for found in rounds.values())
    assert (result["method"], result["pairs"], result["kept"], result["gpus"]) == ("sft", 6, kept, 1)
    assert set(result["seconds"]) == {"startup", "rewriting", "update", "saving"}


def test_the_examples_of_the_paper(explored):
    """2,560 in 20 steps, at most five rounds."""
    args, pairs = sft.parse(["--cplus", explored])
    assert args.steps * args.batch == 2560 and (args.steps, args.lr, args.rewrite) == (20, 1e-5, 5) and len(pairs) == 6


def test_nothing_right_is_said(scripted, explored, tmp_path, monkeypatch):
    async def wrong(*args, **kwargs):
        return verifiers.Verdict(0, 0, "", None), None
    monkeypatch.setattr(verifiers, "grade", wrong)
    with pytest.raises(BadInput, match="no rewriting was right"):
        sft.main(sft_flags(explored, tmp_path / "out"))


if __name__ == "__main__":
    ranks.run_rank(rank_main)

"""What a context teaches, token by token: Eq. 2 on the responses of distill.py's first step (evaluate.py --tokens).

The policy of that step is the base model. So its numbers here are those that the step was made of: the mean of w D
over its tokens is the loss that distill.jsonl has for it. The same tokens are read once more by the last adapter.
"""
import math
import os
from dataclasses import dataclass, fields

import engines
import ablations
from common import journal
from common.errors import BadInput, read_jsonl
from common.updates import read_cplus
from engines.base import Engine
from report import page

STRONGEST = 5  # tokens of a response that show their entries of the vocabulary, and entries that each shows
CHUNK = 256  # tokens whose logits [CHUNK, V] are there at the same time


@dataclass
class Response:
    """What p and q are asked about: token ids, but for the dialogues."""
    problem: str
    source: str              # what the page calls it
    plain: list              # x, a dialogue
    context: list            # c
    y: list
    log_mu: list | None      # None: not known


def write_page(path, out, problem=None, limit=None, tau=None):
    """Write the page of the distill.py run in the folder `out`; -> the sentence on its sum. Errors: BadInput.

    problem: only that one; limit: only the first responses; tau: another cap than the run's.
    """
    run = read_run(out)
    if tau is not None:
        run["settings"]["tau"] = tau
    names = {field.name for field in fields(engines.Settings)} & run["settings"].keys()
    # A run does not keep the engine's share of the GPU, and here none samples.
    settings = engines.Settings(**{"gpu_memory": None} | {name: run["settings"][name] for name in names})
    engine = Engine(settings)
    responses = read_responses(out, run, engine.tokenizer, problem)[:limit]
    items = [new_item(response) for response in responses]
    for name, adapter in ("before", None), ("after", os.path.join(out, "adapter")):
        policy = load(settings, adapter, run["settings"]["seed"])
        for item, response in zip(items, responses):
            item[name] = token_numbers(policy, engine, response, run["settings"])
    sentence = sum_sentence(items, out)
    facts = {"divergence": run["settings"]["divergence"], "tau": str(run["settings"]["tau"])}

    def data_of(share):
        kept = items[:math.ceil(share * len(items))]
        note = "" if share == 1 else f" The page has room for {len(kept)} of {len(items)} responses."
        return {"kind": "tokens", **facts, "sentence": sentence + note, "items": kept}

    page.write(path, data_of)
    return sentence


def read_run(out):
    path = os.path.join(out, "distill.json")
    if not os.path.isfile(path):
        raise BadInput(f"{out} holds no run of distill.py: name the folder that has its distill.json.")
    return journal.read_json(path)


def read_responses(out, run, tokenizer, problem):
    """The responses of the first step, and to each problem an answer of C+: what its context led to."""
    from distill import draw_context
    settings = run["settings"]
    problems = read_cplus(settings["cplus"])
    rollouts = [] if settings["traces"] == "success" else ablations.read_rollouts(settings["cplus"])
    draws = ablations.teacher_draws(problems, settings["traces"], rollouts)
    responses = []
    for line in read_jsonl(os.path.join(out, "samples.jsonl"), torn_ok=True):
        name = line["problem"]
        if line["step"] != 1 or problem not in (None, name):
            continue
        if "token_ids" not in line:
            raise BadInput(f"the samples.jsonl of {out} has no token ids, as an older distill.py wrote it: distill "
                           "again into another --out.")
        draw = draw_context(draws[name], settings["seed"], 1, name, line["occurrence"])
        plain = problems[name][0]["opening"]
        responses.append(Response(
            name, "the student's response", plain, draw["context"], line["token_ids"], line["logprobs"]))
        if problem and settings["traces"] == "success":
            answer = next(success["response"] for success in problems[name] if success["step"] == draw["step"])
            ids = tokenizer.encode(answer, add_special_tokens=False) + [tokenizer.eos_token_id]
            responses.append(Response(name, "the answer in C+", plain, draw["context"], ids, None))
    if not responses:
        raise BadInput(f"the first step of {out} has no response to {problem or 'any problem'}: name a problem of its "
                       "samples.jsonl.")
    return responses


def new_item(response):
    """What page.html shows of a response, but for its tokens."""
    turns = {name: [[turn["role"], turn["content"]] for turn in getattr(response, name)]
             for name in ("plain", "context")}
    return {"problem": response.problem, "source": response.source, **turns, "known": response.log_mu is not None}


def load(settings, adapter, seed):
    import torch
    import policy
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # A new adapter changes nothing yet: that is the base model.
    return policy.load_policy(settings, adapter, seed, 0, device)


def token_numbers(policy, engine, response, settings):
    """[{"text", "D", "log_p", "log_q", "w", "entries"}] of a response, token by token: numbers of loss.py alone."""
    import torch
    y, tokens = response.y, []
    with torch.no_grad():
        p = policy.hidden_states([engine.encode(response.plain) + y], [len(y)])          # [T, d]
        q = policy.hidden_states([engine.encode(response.context) + y], [len(y)])        # [T, d]
        for start in range(0, len(y), CHUNK):
            part = slice(start, start + CHUNK)
            log_mu = response.log_mu and response.log_mu[part]
            tokens += chunk_numbers(policy, p[part], q[part], y[part], log_mu, settings)
    strongest = sorted(range(len(y)), key=lambda i: -abs(tokens[i]["D"]))[:STRONGEST]
    for i, token in enumerate(tokens):
        token["text"] = engine.tokenizer.decode([y[i]])
        entries = token.pop("entries")
        if i in strongest:
            token["entries"] = [[engine.tokenizer.decode([v]), *numbers] for v, *numbers in entries]
    return tokens


def chunk_numbers(policy, p, q, y, log_mu, settings):
    """p, q: hidden states [n, d]; y, log_mu: n of each. -> the numbers of n tokens."""
    import torch
    import loss
    kind, tau = settings["divergence"], float(settings["tau"])
    head = policy.head.float()
    student = p.float() @ head.T / policy.temperature                                    # [n, V]
    teacher = q.float() @ head.T / policy.temperature                                    # [n, V]
    D = loss.token_divergence(student, teacher, kind, tau)                               # Eq. 2
    g = loss.divergence_terms(student, teacher, kind)                                    # [n, V]
    log_p, log_q = student.log_softmax(-1), teacher.log_softmax(-1)                      # [n, V]
    own = torch.tensor(y, device=p.device)[:, None]
    log_p_y, log_q_y = log_p.gather(1, own)[:, 0], log_q.gather(1, own)[:, 0]            # [n]
    w = [None] * len(y)
    if log_mu is not None:
        w = loss.importance_weights(log_p_y, torch.tensor(log_mu, device=p.device)).tolist()
    strongest = g.abs().topk(min(STRONGEST, g.shape[1])).indices                         # [n, 5]
    entries = torch.stack([log_p.exp(), log_q.exp(), g, g.clamp(max=tau)])               # [4, n, V]
    entries = entries.gather(2, strongest.expand(4, -1, -1)).permute(1, 2, 0).tolist()   # [n, 5, 4]
    return [{"D": values[0], "log_p": values[1], "log_q": values[2], "w": weight,
             "entries": [[v, *numbers] for v, numbers in zip(ids, own_entries)]}
            for values, weight, ids, own_entries in zip(
                torch.stack([D, log_p_y, log_q_y], 1).tolist(), w, strongest.tolist(), entries)]


def sum_sentence(items, out):
    """Eq. 3 over the responses whose mu is known, beside the loss of the step."""
    tokens = [token for item in items if item["known"] for token in item["before"]]
    mean = math.fsum(token["w"] * token["D"] for token in tokens) / len(tokens)
    first = read_jsonl(os.path.join(out, "distill.jsonl"), torn_ok=True)[0]
    ours = f"The mean of w D over the {len(tokens):,} tokens of the responses here, before the update: {mean:.7f}."
    if len(tokens) < first["response_tokens"]:
        return f"{ours} (They are not all of step 1.)"
    return f"{ours} The loss of step 1 in distill.jsonl: {first['loss']:.7f}."

"""Open problems of SciKnowEval v2, which the judge grades (App. C.1, E.1)."""
import collections
import json
import sys
import tarfile

from benches.files import check_copy, checked_rows, from_web, sha256, shuffled
from benches.problem import Problem
from common.errors import BadInput, open_file, rows

URL = "https://github.com/HICAI-ZJU/SciKnowEval/archive/53addee640092d667439e9a8901bf55f2d92c9ed.tar.gz"
SHA256 = "b6a285dc6710b6896eff49c5a686ffae8e03be284ae563f34071883ce493861d"  # of the sums of its open problems
FIELDS = dict.fromkeys(
    ("prompt.default", "question", "answer", "type", "domain", "details.level", "details.subtask"), str)
CRITERIA = {  # subtask: criterion of the judge, of all others final_result; the paper names the criteria alone
    "compound_disease_relation_extraction": "relation_set", "drug_drug_relation_extraction": "relation_set",
    "extract_doping": "relation_set", "material_component_extraction": "composition", "text_summary": "summary",
    "material_text_summary": "summary", "physics_text_summary": "summary", "procedure_generation": "key_content",
    "reagent_generation": "key_content", "Electromagnetic_Derivation": "derivation",
    "General_Physics_Derivation": "derivation", "Quantum_Mechanics_Derivation": "derivation"}


def load(split, path):
    """Open problems of SciKnowEval v2, per domain 75 of L2 and 25 of L5 (App. C.1), or 100 others of L5 (App. E.1).

    path: its rows in JSON lines, or the repository's .tar.gz.
    """
    path = path or from_web(URL, "SciKnowEval-v2.tar.gz")
    pool = list(checked_rows(open_rows(path), FIELDS))
    digests = sorted(sha256(text_of(row) + row["answer"]) for row in pool)
    check_copy(path, sha256("".join(digests)), SHA256)
    copies = collections.Counter(map(text_of, pool))
    wanted = {("test", "L2"): range(75), ("test", "L5"): range(25), ("train", "L5"): range(25, 125)}
    problems, ranks = [], collections.Counter()
    for row in shuffled([row for row in pool if copies[text_of(row)] == 1], text_of):
        level = row["details"]["level"]
        if ranks[row["domain"], level] in wanted.get((split, level), ()):
            problems.append(problem_of(row))
        ranks[row["domain"], level] += 1
    print(f"sciknoweval {split}: {len(problems)} of {len(pool)} problems, {len(pool) - ranks.total()} repeated ones "
          "dropped.", file=sys.stderr)
    return problems


def problem_of(row):
    text = text_of(row)
    criterion = CRITERIA.get(row["details"]["subtask"], "final_result")
    return Problem(f"sciknoweval/{sha256(text)[:12]}", "sciknoweval", text, "judge", reference=row["answer"],
                   criterion=criterion)


def text_of(row):
    return row["prompt"]["default"] + "\n\n" + row["question"]


def open_rows(path):
    """-> [(where, row)] of the open problems of levels L2 and L5 in JSON lines or in the repository's archive."""
    if not str(path).endswith(".tar.gz"):
        return [(where, row) for where, row in rows(path) if is_open(row)]
    numbered = []
    try:
        with tarfile.open(fileobj=open_file(path)) as archive:
            for member in archive:
                if "/raw_data/" in member.name and member.name.endswith(".jsonl"):
                    for row in map(json.loads, archive.extractfile(member)):
                        if is_open(row):
                            numbered.append((member.name, row))
    except (tarfile.TarError, ValueError, AttributeError):  # the last: a line that is no JSON object
        raise BadInput(f"{path} is damaged: delete it and try again.") from None
    return numbered


def is_open(row):
    # by the label, not by the folder: one L5 file lies in an L3 folder
    if row.get("type") not in ("open-ended-qa", "relation_extraction"):
        return False
    details = row.get("details")
    return isinstance(details, dict) and details.get("level") in ("L2", "L5")

"""The training problems of a run, for teacher accuracy and for what stays without context (App. G.4, G.5)."""
import argparse
from dataclasses import dataclass

import ablations
import benches
import engines
from common.errors import BadInput
from common.updates import read_cplus
from report.curves import bench_name, model_name, read_beside


@dataclass(frozen=True)
class Training:
    """The training problems of the run that wrote a cplus.jsonl."""
    name: list         # [model, bench], as the tables have them
    lines: dict        # {problem id: its lines of cplus.jsonl}
    problems: dict     # {problem id: Problem}
    rollouts: list     # the records of the rollouts.jsonl beside it
    settings: engines.Settings

    def contexts(self, traces):
        """{problem id: the contexts that its teacher is conditioned on}."""
        return ablations.teacher_contexts(self.lines, traces, self.rollouts)

    def draw(self, contexts, seed, k, problem):
        """The one of `contexts` that the trainer draws for a problem at step k."""
        from distill import draw_context
        return draw_context(contexts, seed, k, problem)


def read_training(options, cplus):
    """-> Training, of the file `cplus` and what lies beside it; errors: BadInput."""
    lines = dict(list(read_cplus(cplus).items())[:options.limit])
    first = next(iter(lines.values()))[0]
    problems, bench = explored_problems(cplus, lines, options.data)
    flags = engines.as_run(options.engine_flags, first, cplus)
    settings = engine_settings(flags, first["bench"], options.adapter)
    name = [model_name(settings.model), bench_name(first["bench"], bench["split"])]
    return Training(name, lines, problems, ablations.read_rollouts(cplus), settings)


def explored_problems(cplus, names, data=None):
    """({id: Problem}, the settings) of the run that wrote the file `cplus`, which names `names`.

    data: see --data. Errors: BadInput.
    """
    explored = read_beside(cplus, "explore.json")
    if not explored:
        raise BadInput(f"there is no explore.json beside {cplus} to say what its bench is: name "
                       "the cplus.jsonl in the folder of its run.")
    bench = explored["settings"]
    loaded = benches.load(bench["bench"], bench["split"], data or bench["data"])
    problems = {problem.id: problem for problem in loaded}
    missing = [problem for problem in names if problem not in problems]
    if missing:
        raise BadInput(f"{bench['bench']} has no problem {missing[0]}, which {cplus} names: "
                       "restore the file of problems.")
    return problems, bench


def engine_settings(flags, bench, adapter):
    args = argparse.Namespace(**flags)
    return engines.settings(args, bench, adapters=adapter is not None)

"""flsel itself, as it chooses clients and batches by default; argv: settings, backend."""

import sys
from dataclasses import replace

from workload import Gate

sys.path.insert(0, sys.argv[3])
from cases import config_of

from flsel.execution.on_ray.workers import workers
from flsel.runner.build import build

gate = Gate()
config = config_of(sys.argv[1], sys.argv[2])
config = replace(config, local=replace(config.local, workers=int(sys.argv[4])))
with workers() as processes:
    built = build(config, workers=processes)
    server = built.server
    examples = config.clients_per_round * int((built.program.batches(0, 0) >= 0).sum())

    def parameters():
        return server.params

    gate.ready(parameters)
    while not server.finished:
        server.step()
        gate.done(parameters, examples)

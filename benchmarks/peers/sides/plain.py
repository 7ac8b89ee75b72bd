"""FedAvg as one writes it by hand in PyTorch."""

import sys

import torch
from workload import LR, Gate, Workload

work, gate = Workload(sys.argv[1]), Gate()
model, criterion = work.model(), torch.nn.CrossEntropyLoss()
params = {name: value.clone() for name, value in model.state_dict().items()}
gate.ready(params.copy)
for round, cohort in enumerate(work.cohorts):
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for client in cohort:
        model.load_state_dict(params)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for x, y in work.batches(round, client):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            total[name].add_(value, alpha=1 / len(cohort))
    params.update(total)
    gate.done(params.copy, len(cohort) * work.examples)

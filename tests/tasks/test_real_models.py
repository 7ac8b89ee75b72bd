"""Models of transformers, peft, timm and torchvision with random weights, beside FedAvg by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import built, settings
from test_task_kinds import Rows, check_round, normal, whole
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flsel
from flsel.config import RunConfig
from flsel.config.groups import LocalConfig, OutputConfig
from flsel.data.data_config import DataConfig
from flsel.models.texts import lora_causal
from flsel.partition import IID, FromFlower
from flsel.selectors import AFL, PowD, Uniform

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
SIZE, CLIENTS = 60, 4
IDS, MASK, LABELS = whole(30, SIZE, 8), torch.ones(SIZE, 8, dtype=torch.int64), whole(3, SIZE)
MASK[::2, 5:] = 0
PICTURES, PIXELS = normal(SIZE, 3, 32, 32), whole(3, SIZE, 32, 32)


def config(folder: Path, data: Any, model: Any, **changes: Any) -> Any:
    given = {
        "data": DataConfig(name=data, validation=0.0, server=0.1, test=0.2), "partition": IID(),
        "clients": CLIENTS, "clients_per_round": CLIENTS, "model": model, "rounds": 2,
        "local": LocalConfig(batch_size=5, epochs=1),
    }  # fmt: skip
    return settings(folder, **{**given, **changes})


def bert(num_classes: int = 3) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            num_labels=num_classes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


class Segmenter(nn.Module):
    """The output of a network of torchvision that returns a mapping."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        from torchvision.models.segmentation import lraspp_mobilenet_v3_large

        self.net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)["out"]


def sentences() -> Rows:
    return Rows(lambda n: {"input_ids": IDS[n], "attention_mask": MASK[n], "labels": int(LABELS[n])})


@pytest.mark.parametrize("backend", ["auto", "lightning"])
def test_bert(backend, tmp_path):
    run = config(tmp_path, sentences(), bert(), local=LocalConfig(batch_size=5, epochs=1, backend=backend))
    check_round(run, lambda net, n: net(IDS[n], MASK[n], labels=LABELS[n]).loss)


@pytest.mark.parametrize("selector", [AFL(), PowD(d=4), Uniform()], ids=lambda made: type(made).__name__)
def test_bert_under_selectors_that_ask(selector, tmp_path):
    result = flsel.run(config(tmp_path, sentences(), bert(), selector=selector, clients_per_round=2))
    assert result.counts.sum() == 4
    assert 0 <= result.final["test/accuracy"] <= 1


def test_a_data_set_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"input_ids": IDS.tolist(), "attention_mask": MASK.tolist(), "label": LABELS.tolist(),
         "text": ["left out"] * SIZE}
    )  # fmt: skip
    run = config(tmp_path, rows, bert())
    check_round(run, lambda net, n: cross_entropy(net(IDS[n], MASK[n]).logits, LABELS[n]))


def test_lora_sends_its_factors_alone(tmp_path):
    pytest.importorskip("peft")
    net = lora_causal()
    rows = Rows(lambda n: {"input_ids": IDS[n], "attention_mask": MASK[n], "labels": IDS[n]})
    run = config(tmp_path, rows, net)
    check_round(run, lambda net, n: net(input_ids=IDS[n], attention_mask=MASK[n], labels=IDS[n]).loss)
    sent = built(run).server.params
    assert sent.keys() == {name for name, p in net.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in sent)


def test_the_shipped_lora_config(tmp_path):
    pytest.importorskip("peft")
    shipped = RunConfig.from_file(Path(__file__).parents[2] / "configs/runs/lora.yaml")
    result = flsel.run(replace(shipped, rounds=8, quiet=True, output=OutputConfig(dir=str(tmp_path))))
    losses = result.history["test/loss"]
    assert losses[-1] < losses[0] - 0.3


def test_a_network_of_timm(tmp_path):
    timm = pytest.importorskip("timm")
    net = timm.create_model("test_vit", num_classes=3, img_size=32)
    rows = Rows(lambda n: (PICTURES[n], LABELS[n]))
    check_round(config(tmp_path, rows, net), lambda net, n: cross_entropy(net(PICTURES[n]), LABELS[n]))


def test_segmentation_by_torchvision(tmp_path):
    rows = Rows(lambda n: (PICTURES[n], PIXELS[n]))
    run = config(tmp_path, rows, Segmenter, loss=nn.CrossEntropyLoss, rounds=1, clients_per_round=2)
    result = flsel.run(run)
    assert result.final["test/loss"] > 0
    assert "test/accuracy" not in result.history


def test_partitioners_of_flower_deal_a_data_set(tmp_path):
    pytest.importorskip("flwr_datasets")
    deals = FromFlower("PathologicalPartitioner", {"num_classes_per_partition": 1})
    rows = Rows(lambda n: (PICTURES[n], LABELS[n]))
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    made = built(config(tmp_path, rows, net, partition=deals, clients=3, clients_per_round=3))
    counts = made.data.population.label_counts()
    assert (counts > 0).sum(dim=1).tolist() == [1, 1, 1]

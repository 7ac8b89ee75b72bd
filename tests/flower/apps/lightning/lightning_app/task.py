"""Model, data and training."""

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(lightning.LightningModule):
    """Compresses eight features to two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 2), nn.Linear(2, 8)

    def losses(self, x: Tensor) -> Tensor:
        """Return the loss of each example [n]."""
        return mse_loss(self.decoder(self.encoder(x)), x, reduction="none").mean(dim=1)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.losses(batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def load_data(partition_id: int) -> tuple[Tensor, Tensor]:
    """Return the examples [n, 8] and labels [n] of a client."""
    found = torch.Generator().manual_seed(partition_id)
    latent = torch.randn(40 + partition_id, 2, generator=found)
    x = latent @ torch.randn(2, 8, generator=torch.Generator().manual_seed(99))
    return x, (latent[:, 0] > 0).long()


def train(net: AutoEncoder, x: Tensor) -> None:
    """Train a model for three epochs with Lightning's Trainer."""
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, barebones=True)
    trainer.fit(net, DataLoader(TensorDataset(x), batch_size=10))

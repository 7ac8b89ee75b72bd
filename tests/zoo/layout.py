"""What hangs on memory and on sizes: strides, contiguity, the length of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.registry import WIDTH, Around, part

layout = part("layout and shape")
image = part("layout and shape", "image")


@layout
class Strided(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.as_strided(h.contiguous(), (len(h), WIDTH), (1, 1))


@layout
class StridedWindows(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        h = h.contiguous()
        windows = h.as_strided((len(h), WIDTH - 2, 3), (h.stride(0), h.stride(1), h.stride(1)))
        return torch.cat([windows.mean(-1), h[:, :2]], dim=1)


@layout
class Unfolds(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([h.unfold(1, 3, 1).mean(-1), h[:, :2]], dim=1)


@layout
class WeightContiguous(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (2.0 if self.dense.weight.is_contiguous() else 1.0)


@layout
class WeightStrided(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (2.0 if self.dense.weight.stride() == (WIDTH, 1) else 1.0)


@layout
class InputStrided(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (1.0 + h.stride(0))


@layout
class WeightMemory(Around):
    """Reads its weight as it lies."""

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) + self.dense.weight.as_strided((WIDTH,), (1,))


@layout
class AsksOffset(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (1.0 + float(self.dense.weight.storage_offset() > 0))


@layout
class AsksStorage(Around):
    def forward(self, h: Tensor) -> Tensor:
        size = self.dense.weight.untyped_storage().nbytes() // self.dense.weight.element_size()
        return self.dense(h) * (1.0 if size == WIDTH * WIDTH else 2.0)


@layout
class OtherHeadBelowThree(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) if len(h) >= 3 else h


@layout
class OtherHeadForOne(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) if h.shape[0] > 1 else h * 2.0


@layout
class OddBatches(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (1.5 if h.size(0) % 2 else 1.0)


@layout
class FullBatches(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (1.5 if h.numel() >= 8 * WIDTH else 1.0)


@layout
class ManyBatches(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h if len(h) > 5 else h.tanh()


@layout
class SplitByBatch(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        half = len(h) // 2
        return torch.cat([h[:half] * 2.0, h[half:]])


@layout
class Ranked(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * h.dim()


@layout
class AsksDevice(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (2.0 if h.is_cuda else 1.0) * (1.0 if h.is_floating_point() else 3.0)


@image
class ImagesContiguous(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (2.0 if h.is_contiguous() else 1.0)


@image
class ImagesLast(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (2.0 if h.is_contiguous(memory_format=torch.channels_last) else 1.0)


@image
class ImagesStrided(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        flat = torch.as_strided(h.clone(), (len(h), 24), (24, 1))
        return h + 0.1 * flat.view(h.shape).cumsum(1)


@image
class ImagesViewed(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.reshape(len(h), -1).cumsum(1).reshape(h.shape) * 0.2


@image
class ImagesPermuted(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        z = h.permute(0, 2, 3, 1).contiguous()
        return (z / (1 + z.norm(dim=-1, keepdim=True))).permute(0, 3, 1, 2)

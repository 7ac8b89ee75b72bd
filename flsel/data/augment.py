"""Random transforms of images, drawn anew for each example of each local step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flsel.data.trees import Tree, described
from flsel.errors import UserError, users_code
from flsel.rng import repeatable


class Augment:
    """Transform the raw inputs of a batch, example by example, in the order of the batch.

    Args:
        transforms: Map an image ``[C, H, W]``, or another input, to one of the same shape, as those of
            torchvision's v2. Classes of pixels ``[H, W]`` go through them with their image.
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self._transforms = tuple(transforms)

    def __call__(self, x: Tree, y: Tree, seed: int) -> tuple[Tree, Tree]:
        """Return the transformed inputs, and targets.

        Args:
            x: Inputs ``[B, ...]``.
            y: Targets ``[B, ...]``.
            seed: Of what the transforms draw.

        Raises:
            UserError: If inputs are not one tensor, or a transform fails or changes their shape.
        """
        if not isinstance(x, Tensor):
            raise UserError(f"data.augment must be empty for inputs that are not one tensor: {described(x)}.")
        pixels = isinstance(y, Tensor) and x.ndim == 4 and y.shape[1:] == x.shape[2:]
        with repeatable(seed):
            pairs = [self._one(x[at], y[at] if pixels else None) for at in range(len(x))]
        return torch.stack([image for image, _ in pairs]), torch.stack([m for _, m in pairs]) if pixels else y

    def _one(self, image: Tensor, mask: Tensor | None) -> tuple[Tensor, Any]:
        shape, dtype = image.shape, image.dtype
        for transform in self._transforms:
            with users_code(f"data.augment {type(transform).__name__} failed"):
                if mask is None:
                    image = transform(image)
                else:
                    from torchvision.tv_tensors import Image, Mask

                    image, mask = (part.as_subclass(Tensor) for part in transform(Image(image), Mask(mask)))
        if not isinstance(image, Tensor) or image.shape != shape or image.dtype != dtype:
            got = described(image[None]) if isinstance(image, Tensor) else type(image).__name__
            raise UserError(
                f"data.augment must keep the shape and type of an input, {list(shape)} {dtype}, got {got}."
            )
        return image, mask

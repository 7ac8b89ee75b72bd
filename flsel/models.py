"""The networks of the papers, layer by layer, with torch's default initialisation.

Every constructor takes ``num_classes`` and ``input_shape`` (of one example, without the batch); a run fills
them in from the data. ``forward`` maps floating-point inputs ``[B, *input_shape]`` to logits
``[B, num_classes]``. All can train vectorised but ``HiCSPublishedCNN`` and ``FedGenCNN``, which have batch
normalisation.

Papers: HiCS-FL (Chen, Vikalo, arXiv:2310.00198), FedCor (Tang et al., CVPR 2022), FedCat (Hu et al., 2022),
FedGS (Wang et al., AAAI 2023), FedPNS (Wu, Wang, IEEE TNSE 2022), FedGen (Zhu, Hong, Zhou, ICML 2021);
parameter counts are for ten classes and the papers' input shapes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from flsel.errors import UserError


class LogisticRegression(nn.Sequential):
    """Multinomial logistic regression on the flattened input (FedPNS "MLR" 7,850; FedGS Synthetic 610)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes)
        super().__init__(OrderedDict(classifier=_dense(math.prod(shape), [], classes)))


class MLP(nn.Sequential):
    """Fully connected network on the flattened input (FedCor Fashion-MNIST 784-64-30-10: 52,500).

    Args:
        num_classes: C.
        input_shape: Shape of one example.
        hidden: Width of each hidden layer, >= 1.
        dropout: Share of a hidden layer's units that is dropped, before the ReLU, in [0, 1); the paper has
            none, its reference code 0.5.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        input_shape: tuple[int, ...] | None = None,
        hidden: Sequence[int] = (64, 30),
        dropout: float = 0.0,
    ) -> None:
        shape, classes = _known(input_shape, num_classes)
        if any(width < 1 for width in hidden):
            raise UserError(f"hidden must be widths of at least 1, got {list(hidden)}.")
        drop = _share("dropout", dropout)
        super().__init__(OrderedDict(classifier=_dense(math.prod(shape), hidden, classes, dropout=drop)))


class FedCorCNN(nn.Sequential):
    """FedCor's network for CIFAR-10: three 3x3 convolutions (32, 64, 64), hidden layer of 64 (122,570)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        features = nn.Sequential(
            *_conv(shape[0], 32, 3, pool=2), *_conv(32, 64, 3, pool=2), *_conv(64, 64, 3)
        )
        super().__init__(_image_net(features, shape, [64], classes))


class McMahanCNN(nn.Sequential):
    """McMahan et al.'s (AISTATS 2017) network for MNIST: two padded 5x5 convolutions (32, 64), hidden 512.

    Used by FedGS for Fashion-MNIST and by FedCat for MNIST (1,663,370) and FEMNIST (62 classes: 1,690,046).
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        features = nn.Sequential(
            *_conv(shape[0], 32, 5, padding=2, pool=2), *_conv(32, 64, 5, padding=2, pool=2)
        )
        super().__init__(_image_net(features, shape, [512], classes))


class FedGSCifarCNN(nn.Sequential):
    """FedGS's network for CIFAR-10: two 5x5 convolutions (64, 64), hidden layers of 384 and 192 (797,962)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        features = nn.Sequential(*_conv(shape[0], 64, 5, pool=2), *_conv(64, 64, 5, pool=2))
        super().__init__(_image_net(features, shape, [384, 192], classes))


class FedCatCifarCNN(nn.Sequential):
    """FedCat's network for CIFAR: the TensorFlow tutorial's, as in McMahan et al. (1,068,298).

    Two padded 5x5 convolutions (64, 64) with overlapping 3x3 pooling and local response normalisation,
    hidden layers of 384 and 192.

    Args:
        num_classes: C.
        input_shape: Shape of one example.
        crop: Side of the central square of the image that the network sees, >= 1 and at most the image's;
            the tutorial's is 24. None means the whole image.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        input_shape: tuple[int, ...] | None = None,
        crop: int | None = 24,
    ) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        if crop is not None and not 1 <= crop <= min(shape[1:]):
            raise UserError(f"crop must be between 1 and the image's side {min(shape[1:])}, got {crop}.")
        norm = nn.LocalResponseNorm(9, alpha=0.001)  # TensorFlow's depth radius 4 and alpha 0.001 / 9.
        features = nn.Sequential(
            *([] if crop is None else [_centre_crop(shape, crop)]),
            nn.Conv2d(shape[0], 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            norm,
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            norm,
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        super().__init__(_image_net(features, shape, [384, 192], classes))


class FedGenCNN(nn.Sequential):
    """FedGen's network for MNIST by its code (26,434).

    Two 3x3 convolutions with stride 2 (6, 16), each with batch normalisation and ReLU, 32 features without
    activation, and the output layer.
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        layers: list[nn.Module] = []
        for before, after in ((shape[0], 6), (6, 16)):
            conv = nn.Conv2d(before, after, 3, stride=2, padding=1)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        net = _image_net(nn.Sequential(*layers), shape, [], 32)
        super().__init__(OrderedDict(**net, output=nn.Linear(32, classes)))


class FedPNSCNN(nn.Sequential):
    """FedPNS's "CNN-M" for MNIST: two 5x5 convolutions (10, 20), hidden layer of 50 (21,840).

    Args:
        num_classes: C.
        input_shape: Shape of one example.
        dropout: Share of the second convolution's channels that is dropped, in [0, 1).
        hidden_dropout: Share of the hidden layer's units that is dropped, in [0, 1); the paper has none, its
            reference code 0.5.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        input_shape: tuple[int, ...] | None = None,
        dropout: float = 0.5,
        hidden_dropout: float = 0.0,
    ) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        features = nn.Sequential(
            *_conv(shape[0], 10, 5, pool=2),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(_share("dropout", dropout)),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        drop = _share("hidden_dropout", hidden_dropout)
        super().__init__(_image_net(features, shape, [50], classes, dropout=drop))


class LeNet(nn.Sequential):
    """FedPNS's "CNN-C" for CIFAR-10: two 5x5 convolutions (6, 16), hidden layers of 120 and 84 (62,006)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        features = nn.Sequential(*_conv(shape[0], 6, 5, pool=2), *_conv(6, 16, 5, pool=2))
        super().__init__(_image_net(features, shape, [120, 84], classes))


class HiCSFashionCNN(nn.Sequential):
    """HiCS-FL's network for Fashion-MNIST: two 5x5 convolutions and one fully connected layer (31,594).

    The paper names neither widths nor activation; the widths (32, 32) are its reference code's, whose batch
    normalisation, PReLU and dropout are not in the paper and not here.
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        features = nn.Sequential(*_conv(shape[0], 32, 5, pool=2), *_conv(32, 32, 5, pool=2))
        super().__init__(_image_net(features, shape, [], classes))


class HiCSPublishedCNN(nn.Sequential):
    """The network that HiCS-FL's published code trains on Fashion-MNIST (229,709).

    Three padded 3x3 convolutions (32, 32, 64; the first without bias), each followed by PReLU and batch
    normalisation, max-pooling after the second and the third, a hidden layer of 64; weights drawn by
    Xavier's uniform rule.
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        layers: list[nn.Module] = []
        for before, after in ((shape[0], 32), (32, 32), (32, 64)):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=bool(layers))
            layers += [conv, nn.PReLU(), nn.BatchNorm2d(after)] + [nn.MaxPool2d(2)] * bool(layers)
        super().__init__(_image_net(nn.Sequential(*layers), shape, [64], classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)


class HiCSCifarCNN(nn.Sequential):
    """HiCS-FL's network for CIFAR: three 3x3 convolutions, two poolings, two fully connected (122,570).

    The paper does not name the convolutions' widths; (32, 64, 64) are its reference code's, which has no
    ReLU after the third.

    Args:
        num_classes: C.
        input_shape: Shape of one example.
        hidden: Width of the hidden layer, >= 1; 64 in the paper, 256 in its code for CIFAR-100.
        dropout: Share of each convolution's outputs that is dropped, in [0, 1); the paper has none, its
            code 0.2.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        input_shape: tuple[int, ...] | None = None,
        hidden: int = 64,
        dropout: float = 0.0,
    ) -> None:
        shape, classes = _known(input_shape, num_classes, image=True)
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, got {hidden}.")
        drop = _share("dropout", dropout)
        features = nn.Sequential(
            *_conv(shape[0], 32, 3, pool=2, dropout=drop),
            *_conv(32, 64, 3, pool=2, dropout=drop),
            *_conv(64, 64, 3, dropout=drop),
        )
        super().__init__(_image_net(features, shape, [hidden], classes))


def _centre_crop(shape: tuple[int, ...], side: int) -> nn.Module:
    """Return what cuts the central square of ``side`` pixels out of images: padding below zero."""
    (left, right), (top, bottom) = (((n - side) // 2, (n - side + 1) // 2) for n in (shape[2], shape[1]))
    return nn.ZeroPad2d((-left, -right, -top, -bottom))


def _known(
    input_shape: tuple[int, ...] | None, num_classes: int | None, *, image: bool = False
) -> tuple[tuple[int, ...], int]:
    if num_classes is None or num_classes < 1:
        raise UserError(f"num_classes must be at least 1 (a run takes it from the data), got {num_classes}.")
    if input_shape is None or not input_shape or min(input_shape) < 1:
        raise UserError(
            f"input_shape must be the shape of one example (a run takes it from the data), got {input_shape}."
        )
    if image and len(input_shape) != 3:
        raise UserError(f"input_shape must be (channels, height, width), got {tuple(input_shape)}.")
    return tuple(input_shape), num_classes


def _share(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise UserError(f"{name} must be in [0, 1), got {value}.")
    return value


def _conv(
    channels: int, filters: int, kernel: int, *, padding: int = 0, pool: int = 1, dropout: float = 0.0
) -> list[nn.Module]:
    """Return a convolution, max-pooling, ReLU and dropout (pooling first: same numbers, less to rectify)."""
    pooling = [nn.MaxPool2d(pool)] if pool > 1 else []
    dropping = [nn.Dropout(dropout)] if dropout > 0 else []
    return [nn.Conv2d(channels, filters, kernel, padding=padding), *pooling, nn.ReLU(), *dropping]


def _dense(inputs: int, hidden: Sequence[int], outputs: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Return fully connected layers on the flattened input, with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers.append(nn.Linear(inputs, width))
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        layers.append(nn.ReLU())
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _image_net(
    features: nn.Sequential,
    input_shape: tuple[int, ...],
    hidden: Sequence[int],
    num_classes: int,
    *,
    dropout: float = 0.0,
) -> OrderedDict[str, nn.Module]:
    """Return ``features`` followed by fully connected layers of the width that they need."""
    try:
        with torch.no_grad():
            width: int = features.eval()(torch.zeros(1, *input_shape)).numel()
    except RuntimeError as error:
        raise UserError(
            f"input_shape {input_shape} is too small for this network's convolutions and poolings."
        ) from error
    classifier = _dense(width, hidden, num_classes, dropout=dropout)
    return OrderedDict(features=features.train(), classifier=classifier)

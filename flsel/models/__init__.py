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

from torch import nn

from flsel.errors import UserError
from flsel.models._layers import centre_crop, conv, dense, image_net, known_shape, share


class LogisticRegression(nn.Sequential):
    """Multinomial logistic regression on the flattened input (FedPNS "MLR" 7,850; FedGS Synthetic 610)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes)
        super().__init__(OrderedDict(classifier=dense(math.prod(shape), [], classes)))


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
        shape, classes = known_shape(input_shape, num_classes)
        if any(width < 1 for width in hidden):
            raise UserError(f"hidden must be widths of at least 1, got {list(hidden)}.")
        drop = share("dropout", dropout)
        super().__init__(OrderedDict(classifier=dense(math.prod(shape), hidden, classes, dropout=drop)))


class FedCorCNN(nn.Sequential):
    """FedCor's network for CIFAR-10: three 3x3 convolutions (32, 64, 64), hidden layer of 64 (122,570)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        features = nn.Sequential(*conv(shape[0], 32, 3, pool=2), *conv(32, 64, 3, pool=2), *conv(64, 64, 3))
        super().__init__(image_net(features, shape, [64], classes))


class McMahanCNN(nn.Sequential):
    """McMahan et al.'s (AISTATS 2017) network for MNIST: two padded 5x5 convolutions (32, 64), hidden 512.

    Used by FedGS for Fashion-MNIST and by FedCat for MNIST (1,663,370) and FEMNIST (62 classes: 1,690,046).
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        features = nn.Sequential(
            *conv(shape[0], 32, 5, padding=2, pool=2), *conv(32, 64, 5, padding=2, pool=2)
        )
        super().__init__(image_net(features, shape, [512], classes))


class FedGSCifarCNN(nn.Sequential):
    """FedGS's network for CIFAR-10: two 5x5 convolutions (64, 64), hidden layers of 384 and 192 (797,962)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        features = nn.Sequential(*conv(shape[0], 64, 5, pool=2), *conv(64, 64, 5, pool=2))
        super().__init__(image_net(features, shape, [384, 192], classes))


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
        shape, classes = known_shape(input_shape, num_classes, image=True)
        if crop is not None and not 1 <= crop <= min(shape[1:]):
            raise UserError(f"crop must be between 1 and the image's side {min(shape[1:])}, got {crop}.")
        norm = nn.LocalResponseNorm(9, alpha=0.001)  # TensorFlow's depth radius 4 and alpha 0.001 / 9.
        features = nn.Sequential(
            *([] if crop is None else [centre_crop(shape, crop)]),
            nn.Conv2d(shape[0], 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            norm,
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            norm,
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        super().__init__(image_net(features, shape, [384, 192], classes))


class FedGenCNN(nn.Sequential):
    """FedGen's network for MNIST by its code (26,434).

    Two 3x3 convolutions with stride 2 (6, 16), each with batch normalisation and ReLU, 32 features without
    activation, and the output layer.
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        layers: list[nn.Module] = []
        for before, after in ((shape[0], 6), (6, 16)):
            conv = nn.Conv2d(before, after, 3, stride=2, padding=1)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        net = image_net(nn.Sequential(*layers), shape, [], 32)
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
        shape, classes = known_shape(input_shape, num_classes, image=True)
        features = nn.Sequential(
            *conv(shape[0], 10, 5, pool=2),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(share("dropout", dropout)),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        drop = share("hidden_dropout", hidden_dropout)
        super().__init__(image_net(features, shape, [50], classes, dropout=drop))


class LeNet(nn.Sequential):
    """FedPNS's "CNN-C" for CIFAR-10: two 5x5 convolutions (6, 16), hidden layers of 120 and 84 (62,006)."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        features = nn.Sequential(*conv(shape[0], 6, 5, pool=2), *conv(6, 16, 5, pool=2))
        super().__init__(image_net(features, shape, [120, 84], classes))


class HiCSFashionCNN(nn.Sequential):
    """HiCS-FL's network for Fashion-MNIST: two 5x5 convolutions and one fully connected layer (31,594).

    The paper names neither widths nor activation; the widths (32, 32) are its reference code's, whose batch
    normalisation, PReLU and dropout are not in the paper and not here.
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        features = nn.Sequential(*conv(shape[0], 32, 5, pool=2), *conv(32, 32, 5, pool=2))
        super().__init__(image_net(features, shape, [], classes))


class HiCSPublishedCNN(nn.Sequential):
    """The network that HiCS-FL's published code trains on Fashion-MNIST (229,709).

    Three padded 3x3 convolutions (32, 32, 64; the first without bias), each followed by PReLU and batch
    normalisation, max-pooling after the second and the third, a hidden layer of 64; weights drawn by
    Xavier's uniform rule.
    """

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        shape, classes = known_shape(input_shape, num_classes, image=True)
        layers: list[nn.Module] = []
        for before, after in ((shape[0], 32), (32, 32), (32, 64)):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=bool(layers))
            layers += [conv, nn.PReLU(), nn.BatchNorm2d(after)] + [nn.MaxPool2d(2)] * bool(layers)
        super().__init__(image_net(nn.Sequential(*layers), shape, [64], classes))
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
        shape, classes = known_shape(input_shape, num_classes, image=True)
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, got {hidden}.")
        drop = share("dropout", dropout)
        features = nn.Sequential(
            *conv(shape[0], 32, 3, pool=2, dropout=drop),
            *conv(32, 64, 3, pool=2, dropout=drop),
            *conv(64, 64, 3, dropout=drop),
        )
        super().__init__(image_net(features, shape, [hidden], classes))

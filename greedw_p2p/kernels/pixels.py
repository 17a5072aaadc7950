"""From stored bytes to a batch of floats."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.kernels.compiled import compiled

Bytes = NDArray[np.uint8]
Order = NDArray[np.int64]
"""Numbers of samples, each within the data set. Kernels do not check it."""


def gather_reference(
    images: Bytes, labels: Bytes, order: Order, inputs: Floats, targets: Bytes
) -> None:
    """Write the samples that ``order`` names: pixels / 255 to ``inputs``, labels to ``targets``.

    Shapes: images (samples, pixels), labels (samples,), order (n,), inputs (n, pixels), targets
    (n,).
    """
    np.divide(images[order], np.float32(255), out=inputs, dtype=np.float32)
    targets[...] = labels[order]


def _gather(images: Bytes, labels: Bytes, order: Order, inputs: Floats, targets: Bytes) -> None:
    scale = np.float32(255)
    for row in range(order.shape[0]):
        sample = order[row]
        targets[row] = labels[sample]
        for column in range(images.shape[1]):
            inputs[row, column] = np.float32(images[sample, column]) / scale


gather: Final = compiled(_gather)
"""Compiled twin of :func:`gather_reference`; the same bits."""

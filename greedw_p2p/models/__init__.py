"""Models in numpy: parameters in one flat vector, gradients as sums over samples."""

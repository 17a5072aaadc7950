"""How every kernel is compiled: one set of numba flags."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def compiled(function: FunctionT) -> FunctionT:
    """Return the compiled twin of a plain function: same arguments, same result.

    It compiles at its first call, and later processes load the machine code from numba's cache.
    """
    try:
        return _compiled(function, cache=True)
    except RuntimeError:
        # numba found no folder to cache in: a read-only installation and no writable home. That
        # costs a compilation in each process, and must not cost the job.
        return _compiled(function, cache=False)


def _compiled(function: FunctionT, *, cache: bool) -> FunctionT:
    # No fastmath flag is set: LLVM may then neither reorder sums nor fuse a product and a sum, so
    # that hosts with different instruction sets compute the same bits.
    decorate = numba.njit(cache=cache, nogil=True, fastmath=False, error_model="numpy")
    return cast("Callable[[FunctionT], FunctionT]", decorate)(function)

"""Arrays that users pass."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError


def array(given: Any, name: str) -> np.ndarray:
    """``given`` in NumPy; a UserError if it cannot be read as an array. JAX's shorter floats become float32.

    >>> array([1, 2], "obs")
    array([1, 2])
    """
    try:
        found = np.asarray(given)
    except (TypeError, ValueError) as error:  # lists of different lengths, random keys, values inside jit
        raise UserError(f"{name} cannot be read as an array: {str(error).splitlines()[0]}") from error
    short = found.dtype.kind == "V" and jnp.issubdtype(found.dtype, jnp.floating)
    return found.astype(np.float32) if short else found

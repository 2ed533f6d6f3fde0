"""Lengths in words: metres where the scale of a map or scene is known, else units of its own."""


def in_metres(length: float, *, scale_is_known: bool = True, digits: int = 2) -> str:
    """A length in metres, or in as many units.

    Example:
        >>> in_metres(1.5), in_metres(1.5, scale_is_known=False)
        ('1.50 m', '1.50 units')
    """
    return f"{length:.{digits}f} {'m' if scale_is_known else 'units'}"


def in_centimetres(length: float, *, scale_is_known: bool = True, digits: int = 1) -> str:
    """A length below a metre in centimetres, or in a fraction of a unit.

    Example:
        >>> in_centimetres(0.0321), in_centimetres(0.0321, scale_is_known=False)
        ('3.2 cm', '0.032 units')
    """
    return f"{100 * length:.{digits}f} cm" if scale_is_known else f"{length:.{digits + 2}f} units"

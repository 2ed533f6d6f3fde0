"""How commands print: what a file is called is shown, never obeyed."""


def printable(text: str) -> str:
    r"""The text on one line; a line break or a terminal's escape sequence in it is shown as Python would write it.

    Example:
        >>> print(printable("kitchen\n\x1b[31m"))
        kitchen\n\x1b[31m
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def counted(number: int, thing: str) -> str:
    """A number of things in words.

    Example:
        >>> counted(1, "frame"), counted(2100, "frame")
        ('1 frame', '2,100 frames')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"

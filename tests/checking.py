"""The checker of types and shapes that every test runs with."""

from beartype import BeartypeConf, beartype

# An int may stand where a float is asked for, as everywhere in the language.
check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))

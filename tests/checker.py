"""The checker of annotations in tests: an int is a float, as everywhere in Python."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

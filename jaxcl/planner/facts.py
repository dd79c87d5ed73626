"""What is taken for granted of data, a tokenizer and a teacher that need not be there to plan for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jaxcl import methods
from jaxcl.blueprint import Facts
from jaxcl.config import Config
from jaxcl.teacher import TeacherRun, find_teacher, imagined_teacher

CLIP_VOCAB = 49_408 + 3  # of CLIP's tokenizer, and the three tokens that are ours
GREY = "mnist"  # in the name of a set whose images have one channel


def expected_facts(config: Config) -> tuple[Facts, list[str]]:
    """What a run's data will be like, from the names in its config.

    Args:
        config: the run.

    Returns:
        The facts, and a sentence for each that is a guess.

    Raises:
        ConfigError: `data.name` is of no kind that there is.

    >>> expected_facts(Config())[0].channels
    3
    """
    from jaxcl.data import check_name, make_tokenizer  # here: what reads images need not be there to plan without them

    name, notes = config.data.name, []
    check_name(name)
    kind = name.partition(":")[0]
    channels = 1 if GREY in name and kind != "folder" else 3  # a folder is read in colour
    if kind == "tfds":
        notes.append(f"images of data.name = {name!r} are taken to have {channels} channel{'s' * (channels > 1)}")
    captions = methods.traits(config.method).captions
    vocab = length = None
    if captions:
        path = Path(config.text.tokenizer).expanduser()
        if config.text.tokenizer in ("bytes", "words") or path.is_file():
            tokenizer = make_tokenizer(config.text)
            vocab, length = tokenizer.vocab, tokenizer.length
        else:
            vocab, length = CLIP_VOCAB, config.text.length
            notes.append(f"text.tokenizer = {config.text.tokenizer!r} is not there: taken to have {vocab} tokens")
    return Facts(channels, labels=True, captions=captions, vocab=vocab, length=length), notes


def expected_teacher(config: Config) -> tuple[Callable[..., TeacherRun], list[str]]:
    """How to find the teacher of a run.

    Args:
        config: the run.

    Returns:
        What `jaxcl.blueprint.draw` takes, and a sentence where the teacher is imagined.
    """
    folder = config.distill.teacher
    if folder is None or Path(folder).expanduser().is_dir():
        return find_teacher, []
    return imagined_teacher, [f"distill.teacher = {folder!r} is not there: taken to be as large as its student"]


def assumptions(config: Config) -> list[str]:
    """What a plan takes for granted, a sentence each.

    Args:
        config: the run.

    Returns:
        Sentences; of data, tokenizer and teacher.

    >>> assumptions(Config())
    []
    """
    return [*expected_facts(config)[1], *expected_teacher(config)[1]]

"""SimCLR with a streaming top-k InfoNCE and a float16 queue on 1,519 emoji, on any laptop."""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    c = base_config()
    c.data.name = "emoji"
    return with_variant(c, variant, smoke={"steps": 30})

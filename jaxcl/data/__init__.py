"""Data sources and the batches made of them."""

from jaxcl.data.bad import BadImages, check_readable
from jaxcl.data.evaluation import EVAL_EPOCH, EvalImages, EvalViews, eval_batches, eval_images, eval_views
from jaxcl.data.folder import open_images
from jaxcl.data.pipeline import Loader, make_loader
from jaxcl.data.record import BadImage, Record, Source, Splits
from jaxcl.data.sources import open_source
from jaxcl.data.spoken import caption_line
from jaxcl.data.tokens import Tokenizer, make_tokenizer

__all__ = [
    "EVAL_EPOCH",
    "BadImage",
    "BadImages",
    "EvalImages",
    "EvalViews",
    "Loader",
    "Record",
    "Source",
    "Splits",
    "Tokenizer",
    "caption_line",
    "check_readable",
    "eval_batches",
    "eval_images",
    "eval_views",
    "make_loader",
    "make_tokenizer",
    "open_images",
    "open_source",
]

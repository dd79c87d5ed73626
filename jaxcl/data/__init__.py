"""Data sources and the batches made of them."""

from jaxcl.data.bad import BadImages, check_readable
from jaxcl.data.evaluation import EVAL_EPOCH, EvalImages, EvalViews, eval_batches, eval_images, eval_views
from jaxcl.data.folder import open_images
from jaxcl.data.loader import Loader
from jaxcl.data.pipeline import make_loader
from jaxcl.data.record import BadImage, Record, Source, Splits
from jaxcl.data.sources import check_name, open_source
from jaxcl.data.spoken import caption_line
from jaxcl.data.tokens import Tokenizer, make_tokenizer
from jaxcl.data.twice import LoaderOfMicroBatches, Twice

__all__ = [
    "EVAL_EPOCH",
    "BadImage",
    "BadImages",
    "EvalImages",
    "EvalViews",
    "Loader",
    "LoaderOfMicroBatches",
    "Record",
    "Source",
    "Splits",
    "Tokenizer",
    "Twice",
    "caption_line",
    "check_name",
    "check_readable",
    "eval_batches",
    "eval_images",
    "eval_views",
    "make_loader",
    "make_tokenizer",
    "open_images",
    "open_source",
]

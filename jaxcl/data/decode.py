"""Bytes of an image file to uint8 RGB: an allow-list of formats by content, and a pixel limit before decoding."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from jaxcl.data.record import BadImage

HEAD_BYTES = 16
# P1 to P3 are digits, white space and comments throughout; P4 to P6 begin with width and height. Text may start so too.
_PLAIN_PPM = re.compile(rb"P[1-3]\s+(?:#.*|\d[\d\s]*(?:#.*)?)", re.DOTALL)
_RAW_PPM = re.compile(rb"P[4-6]\s+(?:#|\d+\s+(?:#|\d+(?:\s|$)|$))")


def image_format(head: bytes) -> str | None:
    """The image format that a file's first 16 bytes announce, by Pillow's name; None if it is not on the allow-list.

    >>> image_format(b"GIF89a..........")
    'GIF'
    """
    starts = (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"GIF87a", "GIF"),
        (b"GIF89a", "GIF"),
        (b"II*\x00", "TIFF"),
        (b"MM\x00*", "TIFF"),
    )
    for magic, name in starts:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:2] == b"BM" and head[6:10] == bytes(4):  # the reserved bytes keep out text that starts with BM
        return "BMP"
    return "PPM" if _PLAIN_PPM.fullmatch(head) or _RAW_PPM.match(head) else None


def decode_image(data: bytes | Path, name: str, *, max_pixels: int, alpha: bool = False) -> UInt8[np.ndarray, "h w c"]:
    """One image as uint8 RGB: upright (EXIF), its transparent parts white, 16 bits scaled to 8, the first frame only.

    Args:
        data: the file's bytes, or its path.
        name: what to call it in an error.
        max_pixels: width times height above which it is not decoded, read from the header.
        alpha: keep the transparency as a fourth channel instead of compositing on white.

    Returns:
        `[height, width, 3]`, or 4 channels with `alpha`.

    Raises:
        BadImage: for anything that cannot be decoded, with the reason.
    """
    try:
        with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:
            return _decode(file, name, max_pixels, alpha)
    except BadImage:
        raise
    except Exception as error:  # Pillow's plug-ins raise almost anything on hostile bytes
        raise BadImage(name, _one_line(error)) from error


def on_white(rgba: UInt8[np.ndarray, "h w 4"]) -> UInt8[np.ndarray, "h w 3"]:
    """An image with transparency, composited on white."""
    return on_colour(rgba, np.full(3, 255, np.uint8))


def on_colour(rgba: UInt8[np.ndarray, "... 4"], colour: UInt8[np.ndarray, " 3"]) -> UInt8[np.ndarray, "... 3"]:
    """Images with transparency, composited on one colour, rounded to the nearest.

    >>> on_colour(np.array([[[10, 20, 30, 0]]], np.uint8), np.array([1, 2, 3], np.uint8)).tolist()
    [[[1, 2, 3]]]
    """
    cover = rgba[..., 3:].astype(np.uint32)
    mixed = rgba[..., :3] * cover + colour.astype(np.uint32) * (255 - cover)
    return ((mixed + 127) // 255).astype(np.uint8)


def to_grey(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 1"]:
    """An image in grey, as bright as it was (ITU-R BT.601).

    >>> to_grey(np.array([[[0, 255, 0]]], np.uint8)).tolist()
    [[[150]]]
    """
    return np.array(Image.fromarray(image).convert("L"))[..., None]


def _decode(file: io.BytesIO | io.BufferedReader, name: str, max_pixels: int, alpha: bool) -> np.ndarray:
    """Check what the header says, then decode."""
    head = file.read(HEAD_BYTES)
    if not head:
        raise BadImage(name, "the file is empty")
    kind = image_format(head)
    if kind is None:
        raise BadImage(name, "not an image (JPEG, PNG, GIF, BMP, WebP, TIFF or PPM)")
    file.seek(0)
    Image.init()
    # The plug-in itself rather than Image.open, whose own pixel limit warns, or raises, at a number nobody has set.
    image = Image.OPEN[kind][0](file, name)
    pixels = image.width * image.height
    if pixels > max_pixels:
        raise BadImage(name, f"{image.width} x {image.height} = {pixels:,} pixels exceed data.max_pixels={max_pixels}")
    return _pixels(_upright(image), name, alpha)


def _upright(image: Image.Image) -> Image.Image:
    """Turn the image as its EXIF orientation says; an EXIF block that cannot be read turns nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken metadata; pixels that are broken too will raise again when they are converted
        return image


def _pixels(image: Image.Image, name: str, alpha: bool) -> np.ndarray:
    """Any of Pillow's modes to uint8 RGB or RGBA."""
    if image.mode.startswith("I"):
        image = Image.fromarray(_eight_bits(np.asarray(image), name))
    elif image.mode == "F":
        raise BadImage(name, "floating-point pixels have no agreed range")
    if alpha:
        return np.array(image.convert("RGBA"))
    if image.has_transparency_data:
        return on_white(np.array(image.convert("RGBA")))
    return np.array(image.convert("RGB"))


def _eight_bits(values: np.ndarray, name: str) -> np.ndarray:
    """16-bit gray to 8 bits, rounded to the nearest."""
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= 65535:
        raise BadImage(name, f"pixels from {values.min()} to {values.max()} are not 16-bit")
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _one_line(error: Exception) -> str:
    """An exception as one line of text."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text or type(error).__name__

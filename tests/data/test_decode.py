import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from jaxcl.data.decode import decode_image, image_format, on_colour
from jaxcl.data.record import BadImage

RNG = np.random.default_rng(0)
SMOOTH = np.asarray(Image.fromarray(RNG.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((32, 24), 3))


def encoded(image, kind, **options):
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(data, **options):
    return decode_image(data, "x", **{"max_pixels": 10**6, **options})


def png_of_zeros(width, height):
    """A black RGB PNG that costs width·height·3 bytes to decode and a thousandth of it on disk."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer, rows = zlib.compressobj(9), bytes(1 + 3 * width)
    body = b"".join(packer.compress(rows) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "JPEG", "WEBP"])
def test_every_format_on_the_list_is_known_by_its_content(kind):
    data = encoded(Image.fromarray(SMOOTH), kind)
    assert image_format(data[:16]) == kind
    image = read(data)
    assert image.shape == (24, 32, 3)
    assert image.dtype == np.uint8
    tolerance = {"GIF": 60, "JPEG": 30, "WEBP": 30}.get(kind, 0)
    assert np.abs(image.astype(int) - SMOOTH).max() <= tolerance


def test_text_that_starts_like_a_bitmap_is_no_image():
    assert image_format(b"BMW and other car") is None
    assert image_format(b"P7 is no PPM here") is None
    assert image_format(b"") is None


def test_gray_and_cmyk_become_rgb():
    gray = Image.fromarray(SMOOTH).convert("L")
    assert (read(encoded(gray, "PNG")) == np.asarray(gray)[..., None]).all()
    cmyk = Image.fromarray(SMOOTH).convert("CMYK")
    assert np.abs(read(encoded(cmyk, "JPEG", quality=98)).astype(int) - SMOOTH).mean() < 5


def test_transparent_parts_become_white():
    rgba = np.dstack([SMOOTH, np.full(SMOOTH.shape[:2], 255, np.uint8)])
    rgba[:5, :, 3] = 0
    for mode in ("RGBA", "LA"):
        image = read(encoded(Image.fromarray(rgba).convert(mode), "PNG"))
        assert (image[:5] == 255).all()
        assert image[5:].min() < 200
    assert (read(encoded(Image.fromarray(rgba), "PNG"))[5:] == SMOOTH[5:]).all()


def test_a_palette_with_a_transparent_entry_becomes_white_there():
    palette = Image.fromarray(np.repeat(np.arange(4, dtype=np.uint8), 8).reshape(4, 8), "P")
    palette.putpalette([9, 9, 9, 50, 60, 70, 80, 90, 100, 1, 2, 3])
    image = read(encoded(palette, "PNG", transparency=0))
    assert image[:, 0].tolist() == [[255, 255, 255], [50, 60, 70], [80, 90, 100], [1, 2, 3]]


def test_alpha_is_kept_where_it_is_asked_for():
    assert read(encoded(Image.fromarray(SMOOTH), "PNG"), alpha=True).shape == (24, 32, 4)


def test_sixteen_bits_are_scaled_not_cut():
    values = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    image = read(encoded(Image.fromarray(values), "PNG"))
    assert image[0, :, 0].tolist() == [0, 1, 128, 255]


def test_exif_turns_the_image_upright():
    sideways = Image.fromarray(SMOOTH)
    exif = sideways.getexif()
    exif[0x0112] = 6  # a quarter turn clockwise is needed
    image = read(encoded(sideways, "PNG", exif=exif))
    assert (image == np.rot90(SMOOTH, -1)).all()


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    image = read(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert (image == [255, 0, 0]).all()


def test_bytes_after_the_end_do_no_harm():
    data = encoded(Image.fromarray(SMOOTH), "JPEG")
    assert (read(data + b"\x07" * 200) == read(data)).all()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"just some words, no picture at all", "not an image"),
        (encoded(Image.fromarray(SMOOTH), "JPEG")[:300], "[Tt]runcated"),
        (encoded(Image.fromarray(SMOOTH), "PNG")[:200], "truncated"),
        (b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, "."),
        (b"\xff\xd8\xff\xe0" + b"\x00" * 40, "."),
        (b"RIFF\x00\x00\x00\x00WEBP" + b"\x00" * 40, "."),
        (encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "floating-point"),
        (encoded(Image.fromarray(np.full((4, 4), 70000, np.int32)), "TIFF"), "not 16-bit"),
    ],
)
def test_what_cannot_be_decoded_says_why_in_one_line(data, reason):
    with pytest.raises(BadImage, match=reason) as error:
        read(data)
    assert error.value.name == "x"
    assert error.value.reason
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")
def test_no_corruption_of_a_real_file_escapes_as_anything_but_a_bad_image():
    rng = np.random.default_rng(1)
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        whole = np.frombuffer(encoded(Image.fromarray(SMOOTH), kind), np.uint8)
        for _ in range(40):
            damaged = whole.copy()
            damaged[rng.integers(0, len(whole), 8)] = rng.integers(0, 256, 8)
            try:
                image = read(damaged.tobytes())
            except BadImage:
                continue
            assert image.dtype == np.uint8
            assert image.shape[-1] == 3


@pytest.mark.parametrize("side", [1500, 30000])
def test_a_bomb_is_refused_by_its_header_without_a_warning(side, recwarn):
    data = png_of_zeros(side, 20 if side > 2000 else side)
    if side > 2000:  # the header lies about the height, as a hostile file may
        data = data[:20] + struct.pack(">I", side) + data[24:]
        data = data[:29] + struct.pack(">I", zlib.crc32(data[12:29])) + data[33:]
    with pytest.raises(BadImage, match=r"pixels exceed data.max_pixels=1000000"):
        read(data)
    assert not recwarn.list


def test_the_pixel_limit_is_the_setting_and_nothing_else(recwarn):
    assert read(png_of_zeros(1200, 900), max_pixels=1200 * 900).shape == (900, 1200, 3)
    with pytest.raises(BadImage, match="1200 x 900 = 1,080,000"):
        read(png_of_zeros(1200, 900), max_pixels=1200 * 900 - 1)
    assert not recwarn.list


def test_a_file_is_read_like_its_bytes(tmp_path):
    data = encoded(Image.fromarray(SMOOTH), "PNG")
    (tmp_path / "x").write_bytes(data)
    assert (read(tmp_path / "x") == read(data)).all()
    with pytest.raises(BadImage, match="No such file"):
        read(tmp_path / "y")


def test_compositing_equals_the_formula_rounded():
    rgba = RNG.integers(0, 256, (9, 7, 4), dtype=np.uint8)
    colour = np.array([10, 200, 90], np.uint8)
    cover = rgba[..., 3:] / 255
    expected = np.round(rgba[..., :3] * cover + colour * (1 - cover))
    assert (on_colour(rgba, colour) == expected).all()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"P1 is the urgent", None),
        (b"P1 12 priorities", None),
        (b"P3 2026 budgets.", None),
        (b"P6 2026 budgets.", None),
        (b"P5\nof the list...", None),
        (b"P1\n2 2\n0 1\n1 0\n", "PPM"),
        (b"P2\n# by hand\n2 2\n", "PPM"),
        (b"P3 12 8 255 0 0 ", "PPM"),
        (b"P4\n8 1\n\xf0", "PPM"),
        (b"P5\n# made by GIMP", "PPM"),
        (b"P6\n12000 12000\n2", "PPM"),
    ],
)
def test_a_portable_pixmap_has_numbers_behind_its_first_letters(head, kind):
    assert image_format(head) == kind

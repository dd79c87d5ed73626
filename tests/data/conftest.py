import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def image_folder(tmp_path):
    """Makes a folder of small distinct images: `image_folder({"cats": 3, "dogs/old": 2})` → its path."""

    def make(counts, root="images", size=(12, 10)):
        folder = tmp_path / root
        rng = np.random.default_rng(len(counts))
        for name, count in counts.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{i:03}.png")
        return folder

    return make

"""Writes the files in `fixtures/`: tiny random originals and what they say of the inputs in `originals.py`.

    pip install torch transformers timm onnx && python tests/pretrained/make_fixtures.py

Last run with torch 2.13.0, transformers 5.24.0, timm 1.0.31 and onnx 1.23.2.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from originals import ORIGINALS, OTHER_SIDE, SIDE, hf_dinov2, images, make

FOLDER = Path(__file__).parent / "fixtures"


def write(name):
    with tempfile.TemporaryDirectory() as folder:
        outputs = make(name, Path(folder) / "weights.safetensors")
        shutil.copy(Path(folder) / "weights.safetensors", FOLDER / f"{name}.safetensors")
    np.savez_compressed(FOLDER / f"{name}_outputs.npz", **{str(key): value for key, value in outputs.items()})


def write_onnx():
    """The same DINOv2 as `hf_dinov2`, as the exporter of TorchScript writes it below a root, for images of any size."""
    import torch

    class Rooted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = hf_dinov2()[0].float()
            self.decoder = torch.nn.Linear(8, 3)

        def forward(self, x):
            return self.decoder(self.backbone(x).pooler_output)

    size = {"x": {0: "n", 2: "h", 3: "w"}}
    x = torch.tensor(np.moveaxis(images(OTHER_SIDE), -1, 1))
    torch.onnx.export(Rooted().eval(), (x,), FOLDER / "dinov2.onnx", input_names=["x"], dynamic_axes=size, dynamo=False)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in ORIGINALS:
        write(each)
    write_onnx()
    print({file.name: file.stat().st_size for file in sorted(FOLDER.iterdir())}, SIDE)

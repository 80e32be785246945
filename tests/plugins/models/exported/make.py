#!/usr/bin/env python3
"""Makes the exported programs beside this file, with the torch that runs it:

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.15.0 numpy
    /tmp/torch/bin/python tests/plugins/models/exported/make.py

torch.export.save writes them. To keep them small, the archive is then packed again: the same
entries, compressed, without the bytes of weights and of the example's inputs, and without the stack
traces in the graph.
"""
import io
import json
import os
import sys
import zipfile

import torch

HERE = os.path.dirname(os.path.realpath(__file__))
# Entries without which the graph is complete, unless they are JSON.
DATA = ("/data/", "serialized_state_dict", "serialized_constants", "serialized_example_inputs")


class Residual(torch.nn.Module):
    """A convolution with batch normalisation, added to its input, and a linear layer; several
    outputs."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
        self.act = torch.nn.ReLU(inplace=True)
        self.head = torch.nn.Linear(4 * 8 * 8, 10)

    def forward(self, image):
        block = self.act(self.norm(self.conv(image))) + image
        left, right = torch.split(block, 2, dim=1)
        scores = self.head(torch.cat([right, left], 1).flatten(1))
        values, places = torch.topk(scores, 3)
        return values, places


class Words(torch.nn.Module):
    """The embedding is also the last layer's weight; a layer is frozen; a buffer and a constant; a
    size that is arithmetic."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.mix = torch.nn.Linear(16, 16)
        self.last = torch.nn.Linear(16, 50, bias=False)
        self.last.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(16))
        self.shift = torch.zeros(16)

    def forward(self, words):
        at = self.mix(self.frozen(self.embedding(words) * self.scale + self.shift))
        return self.last(torch.cat([at, at]))


def packed(archive: bytes) -> bytes:
    result = io.BytesIO()
    with (zipfile.ZipFile(io.BytesIO(archive)) as whole,
          zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as small):
        for entry in whole.infolist():
            is_data = any(part in entry.filename for part in DATA)
            needless = is_data and not entry.filename.endswith(".json")
            data = b"" if needless else whole.read(entry)
            if b'"graph_module"' in data:
                program = json.loads(data)
                for node in program["graph_module"]["graph"]["nodes"]:
                    node["metadata"].pop("stack_trace", None)
                data = json.dumps(program).encode()
            again = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
            small.writestr(again, data, zipfile.ZIP_DEFLATED)
    return result.getvalue()


def write(name: str, model: torch.nn.Module, example: torch.Tensor, dimensions: dict):
    program = torch.export.export(model.eval(), (example,), dynamic_shapes=(dimensions,))
    whole = io.BytesIO()
    torch.export.save(program, whole)
    path = os.path.join(HERE, f"{name}-{torch.__version__.split('+')[0]}.pt2")
    with open(path, "wb") as file:
        file.write(packed(whole.getvalue()))
    print(path, os.path.getsize(path), "bytes")


def main():
    torch.manual_seed(0)
    write("residual", Residual(), torch.randn(2, 4, 8, 8),
          {0: torch.export.Dim("batch", max=512)})
    write("words", Words(), torch.zeros(2, 6, dtype=torch.int64),
          {0: torch.export.Dim("batch", max=512)})
    return 0


if __name__ == "__main__":
    sys.exit(main())

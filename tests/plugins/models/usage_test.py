#!/usr/bin/env python3
"""convert.py's own command line: what it needs, what does not fit together, and files that are not
there."""
import os
import subprocess
import sys

import conversion
from conversion import command

EXPORTED = conversion.pathlib.Path(__file__).resolve().parent / "exported"
PROGRAM = str(EXPORTED / "words-2.5.1.pt2")


class Usage(conversion.ConversionTest):
    def test_bad_usage_is_told_with_an_example(self):
        training = ("m.onnx", "--as", "training")
        pipeline = ("m.onnx", "--as", "pipeline")
        for arguments, words in (
                ((), "MODEL"),
                (("m.onnx",), "--as"),
                (("m.onnx", "--as", "poem"), "'poem'"),
                (pipeline, "needs --stages"),
                ((*pipeline, "--stages", "0"), "from 1 to 4096"),
                ((*pipeline, "--stages", "2", "--workers", "3"), "--workers has no meaning"),
                ((*training, "--stages", "3"), "--stages has no meaning"),
                ((*training, "--dim", "b=3"), "--dim has no meaning"),
                ((*training, "--workers", "2049"), "from 1 to 2048"),
                ((*training, "--compute-us", "nan"), "no number"),
                ((*pipeline, "--stages", "1", "--dim", "batch"), "not NAME=VALUE"),
                ((*pipeline, "--stages", "1", "--dim", "batch=0"), "from 1 to"),
                ((*training, "--host-names", "a,,b"), "empty name"),
                ((*training, "--hosts", "--host-names", "a"), "not allowed with")):
            said = self.convert(*arguments, expect=2)
            self.assertIn(words, said)
            self.assertIn("; for example: convert.py model.onnx", said)

    def test_files_that_cannot_be_read_are_told(self):
        self.assertIn("/nowhere.onnx cannot be read (No such file",
                      self.convert("/nowhere.onnx", "--as", "training", expect=1))
        self.assertIn("cannot be read (Is a directory)",
                      self.convert(self.folder, "--as", "training", expect=1))
        for placement, words in (("/nowhere", "/nowhere cannot be read"),
                                 (command.BINARY, "is no text")):
            said = self.convert(PROGRAM, "--as", "pipeline", "--stages", "1", "--dim", "s0=4",
                                "--placement", placement, expect=1)
            self.assertIn(words, said)

    def test_a_reader_that_has_enough_is_no_error_of_ours(self):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as broken:
            done = subprocess.run([sys.executable, "-B", conversion.CONVERT, PROGRAM,
                                   "--as", "training", "--workers", "99"],
                                  stdout=broken, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, ""))

    def test_help_is_whole(self):
        said = self.convert("--help")
        for words in ("training:", "pipeline:", "--placement FILE", "Exit code"):
            self.assertIn(words, said)


if __name__ == "__main__":
    sys.exit(command.main())

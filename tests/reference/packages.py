"""Import this for `additive_client`, whose PyTorch models are the reference of these programs too."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "clients" / "python"))

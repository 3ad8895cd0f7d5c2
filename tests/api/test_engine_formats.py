"""Data folders of every released format are opened by today's build, and their contents are unchanged."""

import json
import pathlib
import shutil

import pytest

from engine_client import Daemon

FOLDERS = pathlib.Path(__file__).parents[1] / "data" / "folders"


@pytest.mark.parametrize("version", sorted(f.parent.name for f in FOLDERS.glob("*/expected.json")))
def test_a_session_of_an_older_version_continues_with_the_same_tokens(tmp_path, version):
    shutil.copytree(FOLDERS / version, tmp_path / "data")
    expected = json.loads((FOLDERS / version / "expected.json").read_text())
    with Daemon(tmp_path / "data", "--data-must-exist") as daemon, daemon.connect() as engine:
        assert expected["model"] in [m["id"] for m in engine.call("model.list")["data"]]
        assert engine.call("session.get", {"id": expected["session"]})["durable"]
        text = engine.generate({"id": expected["session"], **expected["ask"]}, "session.generate")[0]
        assert text == expected["text"] and text
    assert not any(path.is_file() for path in (tmp_path / "data" / "lost").rglob("*"))


def test_there_is_a_folder_of_version_1():
    assert (FOLDERS / "1" / "ledger.sqlite").stat().st_size > 0

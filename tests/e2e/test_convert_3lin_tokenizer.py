"""clients/convert: tokenizer files that 3Lin's programs wrote, as tokenizer.json: the ids that the programs gave, and the texts back."""

import json
import pathlib
import struct
import subprocess
import sys

import pytest

from conftest import BIN

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data" / "3lin" / "tokenizers"
sys.path[:0] = [str(ROOT / "tests" / "reference"), str(ROOT / "clients" / "convert")]

import convert_3lin  # noqa: E402
import tokenizer_3lin  # noqa: E402
from test_convert_3lin import header, integers, matrices, matrix, vector  # noqa: E402

CASES = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))
# The source has no token for a word's prefix that is not a word itself; here its letters are the tokens.
NO_WORD = {"é": [195, 169], "sess": list(b"sess"), "sessi": list(b"sessi")}


def model_file(vocab):
    """Return a model file of the source with this number of tokens."""
    embed, attentions, final = matrices(labels=vocab + 2)
    final = matrices(labels=vocab)[0]
    out = header("seed", labels=vocab + 2, VocabSize=vocab)
    table = [matrix(m) + struct.pack("<f", 0) + vector([0] * len(m)) for m in (embed, final)]
    out += table[0] + integers(2)
    for attention in attentions:
        out += integers(1) + b"".join(matrix(m) for m in attention)
    return out + table[1] + vector([0] * vocab)


def push(service, tmp_path, kind, name):
    """A model with the tokenizer of a file, under a name."""
    file = DATA / f"{kind}.bin"
    vocab = tokenizer_3lin.read(file.read_bytes())["TokenCount"]
    (tmp_path / "model.bin").write_bytes(model_file(vocab))
    convert_3lin.main([str(tmp_path / "model.bin"), str(tmp_path / "model"), "--profile", "seed", "--tokenizer", str(file)])
    done = subprocess.run([BIN / "additive", "--url", service.url, "models", "push", tmp_path / "model", name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return name


@pytest.mark.parametrize("kind", CASES)
def test_texts_have_the_ids_that_the_sources_program_gives_them_and_come_back(service, tmp_path, kind):
    model = push(service, tmp_path, kind, kind)
    for case in CASES[kind]:
        expected = []
        words = [word for word in case["text"].split(" ") if word in NO_WORD]
        for token in case["ids"]:
            expected += NO_WORD[words.pop(0)] if token < 0 else [token]
        found = service.ok("POST", "/v1/tokenize", {"model": model, "text": case["text"]})["tokens"]
        assert found == expected, case["text"]
        assert service.ok("POST", "/v1/detokenize", {"model": model, "tokens": found})["text"] == case["text"]


def test_the_start_of_a_document_ends_the_one_before_it(service, tmp_path):
    model = push(service, tmp_path, "tk_greedy", "documents")
    assert service.ok("POST", "/v1/detokenize", {"model": model, "tokens": [257, 256, 97]})["text"] == "аa"
    json_file = json.loads((tmp_path / "model" / "tokenizer.json").read_text(encoding="utf-8"))
    assert [(t["id"], t["content"], t["special"]) for t in json_file["added_tokens"]] == [(256, "<|endoftext|>", True)]


def changed(kind, **members):
    """The bytes of a file with other members."""
    x = tokenizer_3lin.read((DATA / f"{kind}.bin").read_bytes()) | members
    out = struct.pack("<iq", x["TokenizerType"] if isinstance(x["TokenizerType"], int) else tokenizer_3lin.KINDS.index(x["TokenizerType"]), x["TokenCount"])
    out += struct.pack(f"<q{len(x['Letters'])}i", len(x["Letters"]), *x["Letters"])
    strings = [b"".join([struct.pack("<q", len(x[name])), *(struct.pack("<i", len(w)) + w for w in x[name])]) for name in ("Word2Id", "Words")]
    values = struct.pack(f"<{len(x['Word2Id'])}i", *x["Word2Id"].values())
    return strings, out + strings[0] + values + strings[1] + struct.pack("<ii", x["DocStartToken"], x["CapitalWordToken"])


def test_a_file_is_read_as_it_is_written():
    for kind in CASES:
        assert changed(kind)[1] == (DATA / f"{kind}.bin").read_bytes()


def other(kind, name, at, value):
    members = tokenizer_3lin.read((DATA / f"{kind}.bin").read_bytes())
    copy = dict(members[name]) if isinstance(members[name], dict) else list(members[name])
    copy[at] = value
    return changed(kind, **{name: copy})[1]


WRONG = {
    "TokenizerType: 7": lambda: changed("tk_word", TokenizerType=7)[1], "TokenCount": lambda: changed("tk_word", TokenCount=9)[1],
    "Letters: 3, not one": lambda: changed("tk_word", Letters=[0, 1, 2])[1], "Letters[5]: 6": lambda: other("tk_word", "Letters", 5, 6),
    "Letters[5]: -1; TK_GREEDY": lambda: other("tk_greedy", "Letters", 5, -1), "Word2Id[b'the']: 3": lambda: other("tk_word", "Word2Id", b"the", 3),
    "DocStartToken: 3": lambda: changed("tk_word", DocStartToken=3)[1], "CapitalWordToken: -1 with": lambda: changed("tk_word_capital", CapitalWordToken=-1)[1],
    "CapitalWordToken: 256 with TK_WORD": lambda: changed("tk_word", CapitalWordToken=256, DocStartToken=-1)[1],
    "Words[256]: is empty": lambda: changed("tk_word", DocStartToken=-1)[1],
    "Words[300]: b'ab\\xff'": lambda: unreadable(), "bytes are left over": lambda: changed("tk_word")[1] + b"x", "Words: 1, TokenCount": lambda: changed("tk_word", Words=[b"a"], Word2Id={})[1],
    "the file ends": lambda: changed("tk_word")[1][:1000], "VocabSize is 347": lambda: (DATA / "tk_char.bin").read_bytes(),
}


def unreadable():
    x = tokenizer_3lin.read((DATA / "tk_word.bin").read_bytes())
    old, new = x["Words"][300], b"ab\xff"
    words = [new if w == old else w for w in x["Words"]]
    return changed("tk_word", Words=words, Word2Id={(new if w == old else w): i for w, i in x["Word2Id"].items()})[1]


@pytest.mark.parametrize("problem", WRONG)
def test_a_tokenizer_that_is_none_or_does_not_fit_the_model_is_refused_by_name(tmp_path, problem):
    blob = WRONG[problem]()
    kind = tokenizer_3lin.KINDS[min(struct.unpack("<i", blob[:4])[0], 4)]
    vocab = tokenizer_3lin.read((DATA / f"{kind.lower()}.bin").read_bytes())["TokenCount"]
    if "VocabSize" in problem:
        vocab = 347
    (tmp_path / "model.bin").write_bytes(model_file(vocab))
    (tmp_path / "tokenizer.bin").write_bytes(blob)
    with pytest.raises(SystemExit) as refusal:
        convert_3lin.main([str(tmp_path / "model.bin"), str(tmp_path / "model"), "--profile", "seed", "--tokenizer", str(tmp_path / "tokenizer.bin")])
    assert problem in str(refusal.value) and "tokenizer.bin" in str(refusal.value) and not (tmp_path / "model").exists()


def test_a_tokenizer_that_is_cut_anywhere_is_refused(tmp_path):
    whole = (DATA / "tk_greedy_capital.bin").read_bytes()
    for size in range(0, len(whole), 61):
        with pytest.raises(tokenizer_3lin.Refused):
            tokenizer_3lin.read(whole[:size])

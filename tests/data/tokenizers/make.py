"""Makes the SentencePiece models of this folder and what the library gives for them (pip install sentencepiece protobuf).

    python make.py        # reads the README files of this repository
"""
import json
import pathlib
import random

import sentencepiece

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
# A table of a few rules instead of nmt_nfkc's 240 KB: spaces, a ligature, a composition, what vanishes, what grows.
RULES = {"\u00a0": " ", "\t": " ", "\n": " ", "\u3000": " ", "\ufb01": "fi", "e\u0301": "\u00e9", "\u200b": "",
         "\u00bd": "1/2", "\u00b4": " \u0301", "\u3300": "\u30a2\u30d1\u30fc\u30c8"}
MODELS = {
    "unigram": dict(model_type="unigram", vocab_size=900, normalization_rule_tsv=str(HERE / "rules.tsv"), pad_id=0, eos_id=1,
                    unk_id=2, bos_id=-1, user_defined_symbols=["<user>", "==="], control_symbols=["<control>"]),
    "bpe": dict(model_type="bpe", vocab_size=1100, normalization_rule_name="identity", remove_extra_whitespaces=False,
                byte_fallback=True, user_defined_symbols=["<user>", "    "], control_symbols=["<control>"]),
    "char": dict(model_type="char", vocab_size=80, normalization_rule_name="identity", add_dummy_prefix=False),
    "word": dict(model_type="word", vocab_size=300, normalization_rule_name="identity", byte_fallback=True),
    "suffix": dict(model_type="unigram", vocab_size=300, normalization_rule_name="identity", treat_whitespace_as_suffix=True),
}
ALPHABET = ["a", "b", "the ", "The model", " ", "  ", "    ", "\n", "\t", "e\u0301", "é", "ﬁ", "½", "´", "㌀", "漢字", "👩\u200d👧", "▁", "=",
            "===", "...", "\u00a0", "\u3000", "\u200b", "<user>", "<control>", "<s>", "</s>", "<unk>", "<0x41>", "tokenizer", "क़", "\x01", "1", "23"]


def texts(corpus):
    draw = random.Random(1)
    yield from ["", " ", "   ", "a", " a ", "x" + " " * 50 + "y", "=" * 61, "a" * 100]
    for _ in range(45):
        yield "".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 12)))
    for _ in range(3):
        at = draw.randrange(len(corpus) - 400)
        yield corpus[at:at + draw.randint(50, 200)]


def cases(model, corpus):
    draw = random.Random(2)
    for text in texts(corpus):
        out = model.encode(text, return_type="proto")
        spans = [[p.begin, p.end - p.begin] for p in out.pieces]
        ids = [p.id for p in out.pieces]
        yield {"text": text, "ids": ids, "spans": spans, "back": model.decode(ids)}
    for _ in range(25):  # what a model may generate: any ids
        ids = [draw.randrange(min(model.vocab_size(), draw.choice([300, 2000]))) for _ in range(draw.randint(1, 12))]
        yield {"ids": ids, "back": model.decode(ids)}


def main():
    corpus = "\n".join(p.read_text() for p in sorted(ROOT.glob("*/README.md")) + sorted(ROOT.glob("*/*/README.md")))
    (HERE / "rules.tsv").write_text("".join(
        " ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in RULES.items()))
    found = {}
    for name, options in MODELS.items():
        (HERE / name).mkdir(exist_ok=True)
        with open(HERE / name / "tokenizer.model", "wb") as file:
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus.split("\n")), model_writer=file, minloglevel=2,
                                                     num_threads=1, **options)
        model = sentencepiece.SentencePieceProcessor(model_file=str(HERE / name / "tokenizer.model"))
        found[name] = list(cases(model, corpus))
    lines = ",\n".join(f'"{n}": [\n' + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cs) + "]"
                       for n, cs in found.items())
    (HERE / "sentencepiece.json").write_text("{" + lines + "}\n")
    (HERE / "rules.tsv").unlink()


main()

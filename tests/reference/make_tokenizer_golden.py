"""Write tests/data/tokenizers: small tokenizer.json files in the forms that model families publish, and texts that the
library `tokenizers` has encoded with them.

    python3 tests/reference/make_tokenizer_golden.py tests/data/tokenizers [FAMILY …]

Needs `tokenizers` (0.20 or newer) and `numpy`, for t5 also `sentencepiece` and `protobuf`. Each folder has tokenizer.json and cases.json: a list of
{"text", "plain", "trusted", "wrapped", "decoded"}: ids with names of special tokens as text, as tokens, with the template;
and the text of "trusted" without special tokens. The vocabularies are learned from this repository's documents."""

import json
import os
import random
import re
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "clients", "convert"))

import tokenizer_3lin  # noqa: E402

DOCUMENTS = ["README.md", "proto/PROTOCOL.md", "engine/README.md", "engine/tensor/README.md", "engine/serve/README.md"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
VOCABULARY = 700
TEXTS = [
    "", " ", "  ", "\n", " \n \n", "\t\tx", "a", " a", "a ", "  two  spaces  ", "Hello world", "the state of a session",
    "It's, they'LL and WE'RE; I'd 've", "12345678 3.14 ٣٤ ½ Ⅷ", "x = {\n    \"key\": [1, 2],\n}\n", "e\u0301 é n\u0303 ﬁ ﬀ Å ℌ",
    "ſ's K'ſ 'ſ", "Привет, мир! Ёлка", "Ελληνικά ΣΑΣ ς", "שלום עולם", "नमस्ते दुनिया", "ไทย ภาษา", "日本語とカタカナ", "한국어 각 각",
    "中文，标点。", "🙂👩‍👩‍👧‍👦🇫🇷", "a\u0300\u0316\u0301b", "\u0301\u0316 alone", "\u00a0nbsp\u2003em\u3000wide\u180emvs\u200bzw", "\r\nline\r\n\r\n",
    "<s>", "<|endoftext|>", "a<|endoftext|>b", "<s> a</s>", " <s> x </s> ", "<|im_start|>user\nhi<|im_end|>", "<|endoftext", "<<s>>",
    "<tool_call>{}</tool_call>", " <mask> y", "▁", "▁▁a ▁", "a▁b", "     five", "snake_case camelCase HTTPServer2x", "(…) — “quotes” ‘x’",
    "http://a.b/c?d=e&f=%20#g", "\x00\x01\x7f\x85", "İstanbul ISSIZ", "\U0001d400\U0001d7d8\U00010400", "ﷺ", "\ufeffbom", "..." * 9, "=" * 40, "ab" * 40,
]


def documents():
    out = []
    for name in DOCUMENTS:
        with open(os.path.join(HERE, "..", "..", name), encoding="utf-8") as file:
            out += file.read().split("\n")
    return out + [text.replace("\x00", "") for text in TEXTS]  # a NUL in a name is not supported


def random_texts(count):
    """Return random texts of characters that were in Unicode long before any version in use here."""
    source = random.Random(17)
    ranges = [(32, 127), (32, 127), (0, 32), (0xA0, 0x180), (0x300, 0x340), (0x391, 0x3A1), (0x410, 0x450), (0x5D0, 0x5EB), (0x905, 0x93A),
              (0x1100, 0x1113), (0x1161, 0x1176), (0x2000, 0x200B), (0x3041, 0x3097), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFF01, 0xFF5F), (0x1F600, 0x1F640)]
    words = [" the", "  ", "\n\n", "'ll", "2048", " state", "<s>", "<|endoftext|>", "▁"]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(source.randint(1, 8)):
            low, high = source.choice(ranges)
            some = "".join(chr(source.randrange(low, high)) for _ in range(source.randint(1, 5)))
            parts.append(source.choice(words) if source.random() < 0.4 else some)
        texts.append("".join(parts))
    return texts


def special(*names, **more):
    return [AddedToken(name, special=True, normalized=False, **more) for name in names]


def begins_with(t, name):
    return processors.TemplateProcessing(single=f"{name} $A", pair=f"{name} $A {name}:1 $B:1", special_tokens=[(name, t.token_to_id(name))])


def byte_level(pre, specials, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(documents(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(specials)
    return t


def split_then_bytes(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special("<|endoftext|>"))


def llama3():
    t = byte_level(split_then_bytes(LLAMA3), special("<s>", "</s>", "<|im_end|>"), ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begins_with(t, "<s>")])
    return t


def qwen2():
    t = byte_level(split_then_bytes(QWEN2), special("<|endoftext|>", "<|im_start|>", "<|im_end|>"), normalizers.NFC())
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def o200k():
    return byte_level(split_then_bytes(O200K, "removed", True), special("<|endoftext|>"))


def neox():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special("<|endoftext|>"), normalizers.NFC())
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
    return t


def roberta():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), special("<s>", "</s>"))
    t.add_special_tokens(special("<mask>", lstrip=True))
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def digits():
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)]), special("<|endoftext|>"))


def metaspace_vocabulary(fallback):
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    names = ["<unk>", "<s>", "</s>"] + ([f"<0x{i:02X}>" for i in range(256)] if fallback else [])
    t.train_from_iterator(documents(), trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=names, limit_alphabet=150))
    model = json.loads(t.to_str())["model"]
    vocabulary, merges = model["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    run = "▁"
    for _ in range(3):
        vocabulary.setdefault(run + run, len(vocabulary))
        merges.append((run, run))
        run += run
    return vocabulary, merges


def metaspace(normalizer, pre, decoder, fallback=True, fuse=True):
    vocabulary, merges = metaspace_vocabulary(fallback)
    t = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    if decoder:
        t.decoder = decoder
    t.add_special_tokens(special("<unk>", "<s>", "</s>"))
    t.post_processor = begins_with(t, "<s>")
    return t


def fallback_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def llama2():
    return metaspace(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None, fallback_decoder())


def mistral():
    return metaspace(None, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False), fallback_decoder())


def gemma():
    return metaspace(normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
                     decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))


def nfkc():
    return metaspace(normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]),
                     pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"), decoders.Metaspace(replacement="▁", prepend_scheme="always"),
                     fallback=False)


def nfd():
    return metaspace(normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]),
                     pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")]), None,
                     fallback=False, fuse=False)


def unigram_of(pre, normalizer, decoder, fallback=False, end=None):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    names = ["<pad>", "</s>", "<unk>"] + ([f"<0x{i:02X}>" for i in range(256)] if fallback else [])
    t.train_from_iterator(documents(), trainers.UnigramTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=names, unk_token="<unk>"))
    vocabulary = [(name, score) for name, score in json.loads(t.to_str())["model"]["vocab"]]
    t = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=fallback))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
    t.add_special_tokens(special("<pad>", "</s>", "<unk>", *([f"<extra_id_{i}>" for i in range(4)] if end else [])))
    if end:
        t.post_processor = processors.TemplateProcessing(single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, t.token_to_id(end))])
    return t


def sentencepiece_rules(path):
    from sentencepiece import sentencepiece_model_pb2  # from the package sentencepiece

    model = sentencepiece_model_pb2.ModelProto()
    with open(path, "rb") as file:
        model.ParseFromString(file.read())
    return model.normalizer_spec.precompiled_charsmap


def t5():
    """As transformers writes T5's; the rules are those of a SentencePiece model."""
    rules = sentencepiece_rules(os.path.join(HERE, "..", "data", "tokenizers", "unigram", "tokenizer.model"))
    metaspace_always = {"replacement": "▁", "prepend_scheme": "always"}
    return unigram_of(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace_always)]),
                      normalizers.Precompiled(rules), decoders.Metaspace(**metaspace_always), end="</s>")


def unigram_bytes():
    return unigram_of(pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False), normalizers.NFC(), fallback_decoder(), fallback=True)


def trained():
    """By the library's trainer on the texts of the cases, for our trainer to compare with."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXTS + random_texts(60), trainers.BpeTrainer(
        vocab_size=480, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def wordpiece():
    """As BERT's model, of what the library's steps leave of a text."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    t.train_from_iterator(documents(), trainers.WordPieceTrainer(vocab_size=VOCABULARY, show_progress=False, limit_alphabet=100, special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    return t


def bert():
    """With BERT's own steps; added tokens that are found within words, and one that is not."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(documents(), trainers.WordPieceTrainer(vocab_size=VOCABULARY, show_progress=False, limit_alphabet=100, special_tokens=names))
    t.add_tokens([AddedToken("ession", normalized=True), AddedToken("stat", single_word=True), AddedToken("##ello", normalized=False)])
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def words():
    """As most tutorials build one."""
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(documents(), trainers.WordLevelTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["[UNK]"]))
    t.enable_truncation(5)
    t.enable_padding()
    return t


def cased():
    """BERT's steps one by one, and further ways of cutting."""
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.BertNormalizer(strip_accents=False, lowercase=False), normalizers.Nmt()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("_"), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.FixedLength(4)])
    t.train_from_iterator(documents(), trainers.WordLevelTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["[UNK]"]))
    return t


def strips():
    """Added tokens that take white space, beside others that are white space."""
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special("<|endoftext|>"))
    t.add_special_tokens([AddedToken("<s>", rstrip=True), AddedToken("</s>", lstrip=True, rstrip=True), AddedToken("<mask>", lstrip=True)])
    t.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("  ", normalized=True), AddedToken("\t", normalized=False)])
    return t


def clip():
    """As CLIP's: bytes, and a suffix on the last token of each word."""
    t = Tokenizer(models.BPE(unk_token="<|endoftext|>", continuing_subword_prefix="", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = split_then_bytes(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", True)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(documents(), trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, end_of_word_suffix="</w>",
                                                           special_tokens=["<|startoftext|>", "<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def gpt1():
    """As GPT's first: characters with a suffix, BERT's steps."""
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.BPEDecoder(suffix="</w>")
    t.train_from_iterator(documents(), trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["<unk>"],
                                                           end_of_word_suffix="</w>", limit_alphabet=120))
    return t


def continued():
    """Merges of tokens with a prefix, of characters that a normalizer spells bytes with."""
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    t.normalizer = normalizers.ByteLevel()
    t.pre_tokenizer = pre_tokenizers.Split(Regex("\u0120"), "merged_with_next")
    t.decoder = decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.ByteLevel()])
    t.train_from_iterator(documents(), trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["<unk>"],
                                                           continuing_subword_prefix="##", limit_alphabet=90))
    return t


def of_3lin(kind):
    """Return a tokenizer as clients/convert builds it, from words and their prefixes."""
    words = []
    for text in documents():
        words += re.findall("[a-zа-я]{2,}", text.lower())
    words += [word[:n] for word in set(words) for n in range(2, len(word)) if n % 3 != 1] + list("абвгдежзийклмнопрсту") + ["été", "日本"]
    common = sorted(set(words), key=lambda w: (-words.count(w), w))[:400] + ["été", "日本"]
    kept = [bytes([i]) for i in range(256)] + [b"", b""] + [w.encode() for w in dict.fromkeys([*common, *"абвгдежзийклмнопрсту"])]
    found = {w: i for i, w in enumerate(kept) if len(w) > 1}
    x = {"TokenizerType": kind, "Words": kept, "DocStartToken": 256, "CapitalWordToken": 257, "Letters": list(range(256)), "Word2Id": found, "TokenCount": len(kept)}
    tokenizer_3lin.check(x, len(kept))
    return Tokenizer.from_str(json.dumps(tokenizer_3lin.tokenizer_json(x)))


def capital_pieces():
    return of_3lin("TK_GREEDY_CAPITAL")


def capital_words():
    return of_3lin("TK_WORD_CAPITAL")


FAMILIES = [gpt2, llama3, qwen2, o200k, neox, roberta, digits, llama2, mistral, gemma, nfkc, nfd, trained, t5, unigram_bytes, wordpiece, capital_pieces, capital_words,
            bert, words, cased, strips, clip, gpt1, continued]
MORE = {"strips": ["x<s>\n\ny", "x<s>\n\n  y", "<s> \n\n\n\n z", "a </s>\n\n</s> b", "a\n\n</s>\n\n<mask> \t x", "<s>  <mask>  y", "<s>\t\t</s>", "q <s>   \n\n"],
        "bert": ["session sessions", "stat state stat-", "a##ello ##ello", "中文abc中", "don't do not we've they're , . ! ?", "x\u200dy\u00ady", "Ünïcödé ÀÉ", "\u0085a\ue000b"],
        "words": ["the state, of (a) session!!", "naïve café Å", "[UNK]"], "cased": ["snake_case__x", "a\u200bb\ufeffc\u2581d", "\x01\x0b\x8fx"]}


def is_unigram(t):
    return isinstance(t.model, models.Unigram)


def without_special_names(t):
    """Return the tokenizer with special tokens that no text spells, since the library's Unigram reads "</s>" as one
    at any place."""
    file = json.loads(t.to_str())
    if is_unigram(t):
        for token in file["added_tokens"]:
            token["content"] = chr(0xE000 + token["id"]) * 9
            if token["id"] < len(file["model"]["vocab"]):
                file["model"]["vocab"][token["id"]][0] = token["content"]
        file["post_processor"] = None
    return Tokenizer.from_str(json.dumps(file))


def decode(t, ids):
    """The text; a stream of BPEDecoder cannot drop the space after the last word, so for it the result is that of a
    longer text."""
    if not isinstance(t.decoder, decoders.BPEDecoder):
        return t.decode(ids)
    return t.decode(ids + [t.token_to_id("the</w>")]).removesuffix("the")


def cases(t, more):
    t.no_truncation()
    t.no_padding()
    texts = TEXTS + more + random_texts(60) + (["".join("".join(documents()).split())[:9000]] if is_unigram(t) else [])  # more than it reads at once
    trusted = t.encode_batch(texts, add_special_tokens=False)
    wrapped = t.encode_batch(texts[:12])
    decoded = [decode(t, e.ids) for e in trusted]
    t = without_special_names(t)
    t.encode_special_tokens = True
    plain = t.encode_batch(texts, add_special_tokens=False)
    out = []
    for i, text in enumerate(texts):
        case = {"text": text, "trusted": trusted[i].ids, "decoded": decoded[i]}
        if plain[i].ids != trusted[i].ids:
            case["plain"] = plain[i].ids
        if i < len(wrapped):
            case["wrapped"] = wrapped[i].ids
        out.append(case)
    return out


def main():
    for family in [f for f in FAMILIES if f.__name__ in sys.argv[2:] or len(sys.argv) == 2]:
        folder = os.path.join(sys.argv[1], family.__name__)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "tokenizer.json")
        family().save(path, pretty=False)
        t = Tokenizer.from_file(path)
        with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as file:
            file.write("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases(t, MORE.get(family.__name__, []))) + "]\n")


if __name__ == "__main__":
    main()

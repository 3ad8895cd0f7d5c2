"""The tokenizer file of 3Lin's programs as a tokenizer.json.

A string is its length (i32) and its bytes. A file has, in this order:

    i32 TokenizerType, i64 TokenCount
    Letters: vector of i32, the token of each byte, or -1
    Word2Id: i64 count, the strings, then their tokens as i32; -1: words begin so, but this is no word
    Words: vector of strings, the text of each token
    i32 DocStartToken, i32 CapitalWordToken (-1: none)

Text is divided into runs of Latin letters and of everything beyond ASCII, and single other characters.

    type                              tokens of a run                                           in tokenizer.json
    0 TK_CHAR                         its bytes, or characters that have a token                BPE without merges, byte_fallback
    1 TK_WORD, 2 TK_WORD_CAPITAL      the run, or as above                                      the same with ignore_merges
    3 TK_GREEDY, 4 TK_GREEDY_CAPITAL  the longest at each place; bytes of characters without    WordPiece after ByteLevel

With CAPITAL, a run in which only the first letter is a capital (Latin or Russian) is read in small letters after CapitalWordToken. In
the file a Replace for each letter puts U+10FFFE there, and another after Fuse takes it back. DocStartToken separates documents and has
no text. It becomes <|endoftext|>, the end of a text.

The source's programs cannot encode some texts, which have tokens here. With TK_WORD they give -1 for the letters of a run that begins
a word but is none. With TK_CHAR they encode nothing. Hugging Face's library reads these files to the same ids. Refused are members that
contradict each other, another number of tokens than the model's, and words that are not UTF-8 or occur twice."""

from binary_file import Reader, Refused, need

KINDS = ["TK_CHAR", "TK_WORD", "TK_WORD_CAPITAL", "TK_GREEDY", "TK_GREEDY_CAPITAL"]
CAPITAL, GREEDY = {"TK_WORD_CAPITAL", "TK_GREEDY_CAPITAL"}, {"TK_GREEDY", "TK_GREEDY_CAPITAL"}
MAX_TOKENS, MAX_BYTES = 1 << 24, 1 << 20
START = "<|endoftext|>"  # separates documents
MARK = "\U0010FFFE"  # the token for a capital; no text has this code point
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "АБВГДЕЁЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"  # the capitals that the source knows
OTHERS = r"\x00-@\[-`{-\x7F"  # characters that are words of their own; letters and all beyond ASCII are joined
PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that spell themselves
SPELLING = {byte: chr(byte) for byte in PLAIN} | {byte: chr(0x100 + i) for i, byte in enumerate(b for b in range(256) if b not in PLAIN)}


def read_string(file, name):
    count = int(file.array("<i4", 1, name)[0])
    need(0 <= count <= MAX_BYTES, name, f"{count} bytes")
    return file.array("u1", count, name).tobytes()


def read(data):
    """Its members by the source's names."""
    file = Reader(data)
    kind = int(file.array("<i4", 1, "TokenizerType")[0])
    need(0 <= kind < len(KINDS), "TokenizerType", f"{kind}, not from 0 to {len(KINDS) - 1}; is this a tokenizer?")

    def count(name, most=MAX_TOKENS):
        return file.integer(name, 0, most, "; is this a tokenizer?")

    x = {"TokenizerType": KINDS[kind], "TokenCount": count("TokenCount"), "Letters": file.array("<i4", count("Letters"), "Letters").tolist()}
    words = [read_string(file, f"Word2Id[{i}]") for i in range(count("Word2Id"))]
    x["Word2Id"] = dict(zip(words, file.array("<i4", len(words), "Word2Id").tolist()))
    x["Words"] = [read_string(file, f"Words[{i}]") for i in range(count("Words"))]
    x |= {name: int(file.array("<i4", 1, name)[0]) for name in ("DocStartToken", "CapitalWordToken")}
    file.end()
    return x


def check(x, vocab):
    """That its members agree, and a tokenizer.json can say what it does."""
    kind, words = x["TokenizerType"], x["Words"]
    need(x["TokenCount"] == vocab, "TokenCount", f"{x['TokenCount']}, the model's VocabSize is {vocab}")
    need(len(words) == vocab, "Words", f"{len(words)}, TokenCount is {vocab}")
    need(len(x["Letters"]) == 256, "Letters", f"{len(x['Letters'])}, not one for each byte")
    for byte, token in enumerate(x["Letters"]):
        need(token == -1 or 0 <= token < vocab and words[token] == bytes([byte]), f"Letters[{byte}]", f"{token} is not the token of this byte")
        need(kind not in GREEDY or token == byte, f"Letters[{byte}]", f"{token}; {kind} takes the byte itself")
    for word, token in x["Word2Id"].items():
        need(token == -1 or 0 <= token < vocab and words[token] == word, f"Word2Id[{word!r}]", f"{token} is not the token of this word")
    for name in ("DocStartToken", "CapitalWordToken"):
        need(x[name] == -1 or 0 <= x[name] < vocab and words[x[name]] == b"", name, f"{x[name]} is not a token without text")
    need((kind in CAPITAL) == (x["CapitalWordToken"] >= 0), "CapitalWordToken", f"{x['CapitalWordToken']} with {kind}")


def spell(text):
    """Bytes in the characters of byte-level vocabularies."""
    return "".join(SPELLING[byte] for byte in text)


def is_reached(x, word):
    """True if the source finds the word: it stops at a first character that is not a token of its own."""
    first = next(n for n in range(1, 5) if n == len(word) or word[n] & 0xC0 != 0x80)
    return word[0] < 0x80 or len(word) == 1 or x["Word2Id"].get(word[:first], -1) >= 0


def name_of(x, token):
    """A byte that is no character is <0xNN> where characters are tokens; a word that is never found has a name that no text has."""
    word, greedy = x["Words"][token], x["TokenizerType"] in GREEDY
    if token == x["DocStartToken"]:
        return START
    if token == x["CapitalWordToken"]:
        return spell(MARK.encode()) if greedy else MARK
    need(word, f"Words[{token}]", "is empty, and neither the start of a document nor of a word with a capital")
    try:
        text = word.decode() if len(word) > 1 or word[0] < 0x80 else None
    except UnicodeDecodeError:
        raise Refused(f"Words[{token}]: {word!r} is no UTF-8") from None
    if greedy:
        return spell(word) if is_reached(x, word) else f"<not found: {text}>"
    return f"<0x{word[0]:02X}>" if text is None or text == "\0" else text


def names_of(x):
    names = {}
    for token, word in enumerate(x["Words"]):
        name = name_of(x, token)
        need(name not in names, f"Words[{token}]", f"{word!r} is the token {names.get(name)} already")
        names[name] = token
    return names


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def lowered():
    """A word whose first letter alone is a capital becomes the mark and the word in small letters."""
    letter = f"[^{OTHERS}]"
    return [replace({"Regex": f"(?<!{letter}){upper}(?!{letter}*[{UPPER}])"}, MARK + upper.lower()) for upper in UPPER]


def model_of(x):
    names, kind = names_of(x), x["TokenizerType"]
    if kind in GREEDY:
        return {"type": "WordPiece", "unk_token": START, "continuing_subword_prefix": "", "max_input_chars_per_word": 1 << 30, "vocab": names}
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": True, "ignore_merges": kind != "TK_CHAR", "vocab": names, "merges": []}


def tokenizer_json(x):
    """The tokenizer.json of a checked file."""
    greedy, capital, start = x["TokenizerType"] in GREEDY, x["TokenizerType"] in CAPITAL, x["DocStartToken"]
    added = {"id": start, "content": START, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    words = (f"{MARK}|[^{OTHERS}{MARK}]+" if capital else f"[^{OTHERS}]+") + f"|[{OTHERS}]"
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    spelled = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    raised = [replace({"String": MARK + upper.lower()}, upper) for upper in UPPER] if capital else []
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added] if start >= 0 else [],
        "normalizer": {"type": "Sequence", "normalizers": lowered()} if capital else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, spelled]} if greedy else split,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [spelled if greedy else {"type": "ByteFallback"}, {"type": "Fuse"}, *raised]},
        "model": model_of(x),
    }


def convert(path, vocab):
    """The tokenizer.json of the source's file for a model whose vocabulary has that size."""
    try:
        x = read(path.read_bytes())
        check(x, vocab)
        return tokenizer_json(x)
    except Refused as problem:
        raise Refused(f"{path}: {problem}") from None

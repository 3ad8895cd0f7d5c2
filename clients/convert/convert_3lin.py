#!/usr/bin/env python3
"""Convert a model that 3Lin's own programs saved, and its tokenizer, to a model folder. Needs numpy and safetensors.

The layout was found in the source and in files that it wrote (tests/data/3lin). There is no magic number and no version.
Numbers are little-endian and not aligned: i64, u64, f32. A vector is its length (i64) and its elements. A matrix is its columns
and rows (i64 each) and its f32 row by row.

    profile seed                                  profile head
    Dim, QDim, TTDim, LabelCount, VocabSize       Dim, QDim, TTDim, HeadCount, LabelCount, VocabSize     i64
                                                  AttentionWidthArr: vector of i64
    Layers: vector of vectors of                  Layers: vector of vectors of
      f32 slope, f32 hyper, u8 wide, 3 bytes        f32 slope, f32 hyper, i64 number of the window
    u64 Flags, u64 DocStartToken                  u64 Flags, u64 DocStartToken
    i64 Window.Limit, i64 Window.LimitWide
    i64 FragLen                                   i64 FragLen

After this header a saved file has LabelEmbed (matrix, f32 SumWeight, vector RowDisp); LayerArr, a vector of layers, each a vector of
attentions of five matrices (QK, QV, K, V, Combiner); FinalLayer, like LabelEmbed; and the vector Bias.

A packed file begins with an f32, the weight of the model among others. After the header it has Bias and the matrices in the same
order, without sizes. A row is its f32 RMS and the quotients by it as f16, or the RMS alone if that is 0. RowDisp [rows] and SumWeight
of LabelEmbed and of FinalLayer follow, f32.

PPM becomes "match_window", MLM_BERT "bidirectional", FragLen "trained_length". TAIL_LOSS is ignored: it decides only what the source's
evaluations count. Bias is log2 of the counts of tokens plus 1/2 in both. With 8 bits the source has one step for all labels, the
folder one for each table.
"""

import argparse
import json
import pathlib
import sys

import numpy
import safetensors.numpy

import tokenizer_3lin
from binary_file import Reader, Refused, need

TAPS = 16  # a combiner's inputs are TAPS times the width of values
MATRICES = (("query", "QK"), ("key", "QV"), ("gate", "K"), ("value", "V"), ("combiner", "Combiner"))  # ours, theirs; in a file's order
MAX_SIZE, MAX_ATTENTIONS, HASHED_ROWS = 1 << 24, 256, 2048
ROW_DECAY = float(numpy.float32(0.99))  # a statistic decays by this at each update
MEASURES = {"seed": "norm", "head": "rms"}  # a row's statistic: the squared norm of its gradient, or the mean square of its numbers
TUNE_FINAL, TUNE_EMBED, TAIL_LOSS, COMBINE, POSITIONS = "TUNE_FINAL_LAYER", "TUNE_EMBED", "TAIL_LOSS", "COMBINE_LAYERS", "ABS_POSITIONS"
DOCUMENTS, ANSWERS, HASHED, MATCHES, BOTH_WAYS = "USE_DOC_START_TOKEN", "GROK_BINARY_OP", "HASHED_EMBED", "PPM", "MLM_BERT"
MATCH_WINDOW = 4096  # tokens in which the source looks for a match
BITS = {"SIM_QUANT_2BIT": 2, "SIM_QUANT_4BIT": 4}
FLAGS = {1: HASHED, 2: MATCHES, 4: DOCUMENTS, 8: TUNE_FINAL, 0x10: TUNE_EMBED, 0x20: TAIL_LOSS, 0x40: "SIM_QUANT_2BIT"}
PROFILE_FLAGS = {"seed": {0x80: ANSWERS},
                 "head": {0x80: "SIM_QUANT_4BIT", 0x100: ANSWERS, 0x200: COMBINE, 0x400: BOTH_WAYS, 0x800: POSITIONS}}
FORGETTING = {DOCUMENTS, ANSWERS}  # these change what is before a token that begins a document
READ = {HASHED, TUNE_FINAL, TUNE_EMBED, TAIL_LOSS, COMBINE, POSITIONS, MATCHES, BOTH_WAYS, *BITS}
ATTENTION = {"seed": numpy.dtype([("slope", "<f4"), ("hyper", "<f4"), ("wide", "u1"), ("padding", "V3")]),
             "head": numpy.dtype([("slope", "<f4"), ("hyper", "<f4"), ("width", "<i8")])}


def read_flags(word, profile, one_document):
    names = FLAGS | PROFILE_FLAGS[profile]
    need(word < 2 * max(names), "Flags", f"{word:#x} has unknown bits")
    flags = {name for bit, name in names.items() if word & bit}
    for name in sorted(flags - READ - (FORGETTING if one_document else set())):
        raise Refused(f"Flags: a model with {name} is not built here" + (" (--one-document reads texts as one each)" if name in FORGETTING else ""))
    for pair in (BITS.keys(), {HASHED, POSITIONS}, {HASHED, BOTH_WAYS}, {MATCHES, BOTH_WAYS}):
        need(not flags >= pair, "Flags", f"a model with both {' and '.join(sorted(pair))} is not built here")
    return flags


def read_layers(file, profile, widths):
    """[(slope, hyper, number of the window)] of each layer."""
    layers, total = [], 0
    for number in range(file.integer("Layers", 1, MAX_ATTENTIONS)):
        count = file.integer(f"Layers[{number}]", 1, MAX_ATTENTIONS - total)
        total += count
        found = file.array(ATTENTION[profile], count, f"Layers[{number}]")
        layers.append([(float(a["slope"]), float(a["hyper"]), int(a["wide"] != 0) if profile == "seed" else int(a["width"])) for a in found])
        need(all(0 <= a[2] < widths for a in layers[-1]), f"Layers[{number}].AttentionWidthId", f"there are {widths} widths")
    return layers


def places_of(x):
    """Rows of positions in E."""
    return max(x["windows"]) if x["Flags"] & {POSITIONS, BOTH_WAYS} else 0


def read_header(file, profile, one_document):
    """Its sizes by the source's names, and "Layers": [[(slope, hyper, window)]], "Flags": a set of names."""
    x = {name: file.integer(name, 1, MAX_SIZE) for name in ("Dim", "QDim", "TTDim")}
    x["HeadCount"] = file.integer("HeadCount", 1, x["QDim"]) if profile == "head" else 1
    x |= {name: file.integer(name, 1, MAX_SIZE) for name in ("LabelCount", "VocabSize")}
    windows = []
    if profile == "head":
        windows = [file.integer("AttentionWidthArr", 1, MAX_SIZE) for _ in range(file.integer("AttentionWidthArr", 1, MAX_ATTENTIONS))]
    layers = read_layers(file, profile, len(windows) or 2)
    x["Flags"] = read_flags(int(file.array("<u8", 1, "Flags")[0]), profile, one_document)
    file.array("<u8", 1, "DocStartToken")
    if profile == "seed":
        windows = [file.integer(name, 2, MAX_SIZE) for name in ("Window.Limit", "Window.LimitWide")]
    x |= {"FragLen": file.integer("FragLen", 0, MAX_SIZE), "windows": windows,
          "Layers": [[(slope, hyper, windows[width]) for slope, hyper, width in layer] for layer in layers]}
    need(x["QDim"] % x["HeadCount"] == 0, "QDim", f"{x['QDim']} is no multiple of {x['HeadCount']} heads")
    need(x["TTDim"] % (TAPS * x["HeadCount"]) == 0, "TTDim", f"{x['TTDim']} is no multiple of {TAPS} for each of {x['HeadCount']} heads")
    labels = HASHED_ROWS if HASHED in x["Flags"] else 1 + places_of(x) + (1 + x["VocabSize"]) * (2 if MATCHES in x["Flags"] else 1)
    need(x["LabelCount"] == labels, "LabelCount", f"{x['LabelCount']}; VocabSize and Flags make it {labels}")
    need(BOTH_WAYS not in x["Flags"] or not any(slope or hyper for layer in layers for slope, hyper, _ in layer), "Layers", f"a model with {BOTH_WAYS} has no slope and no hyper")
    return x


def attention_names(x):
    return [f"LayerArr[{l}][{a}]" for l, layer in enumerate(x["Layers"]) for a in range(len(layer))]


def shape_of(x, name):
    """[rows, columns] of a matrix of an attention, or of a table."""
    d, q, t = x["Dim"], x["QDim"], x["TTDim"]
    return {"LabelEmbed": (x["LabelCount"], d), "FinalLayer": (x["VocabSize"], d), "Combiner": (d, TAPS * t),
            "QK": (q, d), "QV": (q, d), "K": (t, d), "V": (t, d)}[name.rsplit(".")[-1]]


def expect(file, name, count):
    found = file.integer(name, 0, MAX_SIZE)
    need(found == count, name, f"{found} in the file, {count} by its header")


def read_vector(file, name, count):
    expect(file, name, count)
    return file.array("<f4", count, name)


def read_matrix(file, x, name):
    rows, columns = shape_of(x, name)
    expect(file, f"columns of {name}", columns)
    expect(file, f"rows of {name}", rows)
    return file.array("<f4", rows * columns, name).reshape(rows, columns)


def read_table(file, x, name):
    """It and its statistics, by name."""
    table = read_matrix(file, x, name)
    total = file.array("<f4", 1, f"{name}.SumWeight")
    return {name: table, f"{name}.SumWeight": total, f"{name}.RowDisp": read_vector(file, f"{name}.RowDisp", len(table))}


def read_saved(file, x):
    arrays = read_table(file, x, "LabelEmbed")
    expect(file, "LayerArr", len(x["Layers"]))
    for l, layer in enumerate(x["Layers"]):
        expect(file, f"LayerArr[{l}]", len(layer))
        for a in range(len(layer)):
            arrays |= {name: read_matrix(file, x, name) for name in (f"LayerArr[{l}][{a}].{theirs}" for _, theirs in MATRICES)}
    return arrays | read_table(file, x, "FinalLayer") | {"Bias": read_vector(file, "Bias", x["VocabSize"])}


def read_packed(file, x):
    arrays = {"Bias": read_vector(file, "Bias", x["VocabSize"])}
    for name in ("LabelEmbed", *(f"{at}.{theirs}" for at in attention_names(x) for _, theirs in MATRICES), "FinalLayer"):
        arrays[name] = numpy.zeros(shape_of(x, name), "<f4")
        for row in arrays[name]:
            rms = file.array("<f4", 1, name)[0]
            if rms != 0:
                row[:] = file.array("<f2", len(row), name).astype("<f4") * rms
    for name in ("LabelEmbed", "FinalLayer"):
        arrays[f"{name}.RowDisp"] = file.array("<f4", len(arrays[name]), f"{name}.RowDisp")
        arrays[f"{name}.SumWeight"] = file.array("<f4", 1, f"{name}.SumWeight")
    return arrays


def tables(x, embed):
    """The rows of E as our tables. E has the rows of the start, positions, the unknown token and tokens, then the last two again for matches. A hashed E has one row per hash."""
    if HASHED in x["Flags"]:
        return {"words.weight": embed}
    ends = numpy.cumsum([1, places_of(x), 1, x["VocabSize"], 1])
    start, places, unknown, words, no_match, matches = numpy.split(embed, ends) if MATCHES in x["Flags"] else [*numpy.split(embed, ends[:3]), None, None]
    out = {"words.weight": numpy.concatenate([words, unknown, start])}
    if MATCHES in x["Flags"]:
        out["matches.weight"] = numpy.concatenate([matches, no_match])
    if len(places):
        out["positions.weight"] = places
    return out


def tensors(x, arrays):
    """Under our names."""
    out = tables(x, arrays["LabelEmbed"]) | {"head.weight": arrays["FinalLayer"], "head.bias": arrays["Bias"]}
    for number, at in enumerate(attention_names(x)):
        out |= {f"attentions.{number}.{ours}.weight": arrays[f"{at}.{theirs}"] for ours, theirs in MATRICES}
    return {name: numpy.ascontiguousarray(array, numpy.float32) for name, array in out.items()}


def gradient_unit(args, x, name):
    """The source's gradient of a table, over that of the mean loss of a token: it is of the sum, and leaves factors out.

    Checked with a file of weights and statistics after one of ten updates (profile seed, CPU program). A job of nine more ends within
    1e-6 of the source's weights, and without statistics 0.1 apart. The CPU program of head moves gradients in 8 bits. There tables
    differ by 0.004 after three steps of 0.05, and without statistics by 0.07. The factors of GPUs are read from the source's code."""
    unit = args.step_tokens * {"seed": 1 / 4, "head": 2.0**-12}[args.profile]
    bare = args.trained_on == "gpu" or (args.profile == "head" and name == "FinalLayer")  # without the factor of the product
    return unit * x["Dim"] ** 0.5 if bare else unit


def statistics(args, x, arrays):
    """(row_squares as the engine's optimiser lays it out, the updates that were made), or None where there were none.

    The number of updates is the one whose weights 0.99, 0.99², … add up to SumWeight. A job uses them if it has normalized_sgd and the
    profile's step_size; without them it begins with none."""
    trained = [name for name, flag in (("LabelEmbed", TUNE_EMBED), ("FinalLayer", TUNE_FINAL)) if flag in x["Flags"]]
    totals = {name: float(arrays[f"{name}.SumWeight"][0]) for name in trained}
    for name, total in totals.items():
        need(0 <= total < 101, f"{name}.SumWeight", f"{total}, where the sum of weights is from 0 to 100")
        squares = arrays[f"{name}.RowDisp"]
        need(numpy.isfinite(squares).all() and (squares >= 0).all(), f"{name}.RowDisp", "has numbers that are negative or not finite")
    if not any(totals.values()):
        return None
    left = max(1e-6, 1 - (1 - ROW_DECAY) * max(totals.values()))  # the weights would add up to 1 after infinitely many updates
    updates = round(numpy.log(left) / numpy.log(ROW_DECAY))
    ours = (1 - ROW_DECAY**updates) / (1 - ROW_DECAY)
    rows = {name: arrays[f"{name}.RowDisp"] * (ours / totals[name] / gradient_unit(args, x, name) ** 2) for name in trained if totals[name]}
    parts = list(tables(x, rows.get("LabelEmbed", numpy.zeros(x["LabelCount"]))).values()) if TUNE_EMBED in x["Flags"] else []
    matrices = sum(shape_of(x, f"{at}.{theirs}")[0] for at in attention_names(x) for _, theirs in MATRICES)
    parts.append(numpy.zeros(matrices))
    if TUNE_FINAL in x["Flags"]:
        parts.append(rows.get("FinalLayer", numpy.zeros(x["VocabSize"])))
    return numpy.concatenate(parts).astype(numpy.float32), updates


def save_statistics(args, row_squares, updates):
    about = {"optimizer": "normalized_sgd", "updates": str(updates), "measure": MEASURES[args.profile]}
    safetensors.numpy.save_file({"row_squares": row_squares}, args.folder / "optimizer.safetensors", about)


def config(x, profile, weight_bits, vector_bits):
    flags = x["Flags"]
    bits = next((bits for name, bits in BITS.items() if name in flags), 8)
    need(bits == 8 or not weight_bits, "--weight-bits", f"the file's flags make it {bits}")
    length = min(x["FragLen"], places_of(x) or MAX_SIZE) or None
    out = {"model_type": "trilinear", "profile": profile, "hidden_size": x["Dim"], "key_size": x["QDim"], "value_size": x["TTDim"],
           "n_heads": x["HeadCount"], "vocab_size": x["VocabSize"], "weight_bits": weight_bits or bits, "vector_bits": vector_bits,
           "input": "hashed" if HASHED in flags else "tokens", "train_embeddings": TUNE_EMBED in flags, "train_head": TUNE_FINAL in flags, "n_positions": length, "trained_length": length,
           "attentions": [[{"slope": slope, "hyper": hyper, "window": window} for slope, hyper, window in layer] for layer in x["Layers"]]}
    if places_of(x):
        out |= {"position_embedding": "learned", "n_positions": places_of(x), "bidirectional": BOTH_WAYS in flags}
    if MATCHES in flags:
        out["match_window"] = MATCH_WINDOW
    return {key: value for key, value in out.items() if value is not None}


def convert(args):
    file = Reader(args.file.read_bytes())
    if args.packed:
        need(args.profile == "head", "--packed", "the profile \"seed\" has no such files")
        file.array("<f4", 1, "weight")
    x = read_header(file, args.profile, args.one_document)
    arrays = (read_packed if args.packed else read_saved)(file, x)
    file.end()
    out = config(x, args.profile, args.weight_bits, args.vector_bits)
    kept = statistics(args, x, arrays) if args.step_tokens else None
    tokenizer = tokenizer_3lin.convert(args.tokenizer, x["VocabSize"]) if args.tokenizer else None
    args.folder.mkdir(parents=True, exist_ok=True)
    with open(args.folder / "config.json", "x", encoding="utf-8") as text:
        json.dump(out, text, indent=2)
    safetensors.numpy.save_file(tensors(x, arrays), args.folder / "model.safetensors")
    if kept:
        save_statistics(args, *kept)
    if tokenizer:
        with open(args.folder / "tokenizer.json", "x", encoding="utf-8") as text:
            json.dump(tokenizer, text, ensure_ascii=False)


def positive(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of tokens")
    return int(text)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Convert a model that 3Lin's own programs saved, and its tokenizer, to a model folder.")
    parser.add_argument("file", type=pathlib.Path, help="eden_gpt_*.bin, or with --packed what load_fed_model16 reads")
    parser.add_argument("folder", type=pathlib.Path, help="where config.json and model.safetensors are written")
    parser.add_argument("--profile", required=True, choices=("seed", "head"), help="the source's version: of May 2024 or of 7 August 2024")
    parser.add_argument("--packed", action="store_true", help="rows are an RMS and halves, behind a weight")
    parser.add_argument("--one-document", action="store_true", help="read a model that forgets at document starts, and never forget")
    parser.add_argument("--weight-bits", type=int, choices=(8, 32), help="of weights in products: codes, as the source trains with (default), or the file's own numbers")
    parser.add_argument("--vector-bits", type=int, choices=(8, 32), default=32, help="of vectors in products: 8 as on the source's GPUs, or not rounded (default)")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FILE", help="the source's tokenizer, to become tokenizer.json")
    parser.add_argument("--step-tokens", type=positive, metavar="N", help="tokens that one update of the source learned from: with it, the optimiser's statistics are converted too")
    parser.add_argument("--trained-on", choices=("gpu", "cpu"), default="gpu", help="which of the source's programs made them (default gpu)")
    args = parser.parse_args(argv)
    try:
        convert(args)
    except (Refused, OSError) as problem:
        sys.exit(f"convert_3lin.py: {args.file}: {problem}")


if __name__ == "__main__":
    main()

"""Regular expressions, grammars and listed texts, compared with other judges; and hostile ones, which are bounded."""

import json
import random
import re
import resource
import subprocess

import pytest

from http_support import BIN
from random_grammars import ALPHABET, Grammar, changed, regex

PROGRAM = BIN.parent / "tests" / "grammar_texts"
CPU_SECONDS, MEMORY, STACK = 120, 1 << 30, 2 << 20


class Grammars:
    def __init__(self, bounded=False):
        def bound():
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=bound if bounded else None)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended: {json.dumps(question)[:200]}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def grammars():
    grammars = Grammars()
    yield grammars
    grammars.close()


def test_texts_of_regular_expressions_are_those_that_python_matches(grammars):
    made = matched = missed = 0
    for seed in range(400):
        draws = random.Random(seed)
        pattern = regex(draws)
        judge = re.compile(pattern)
        said = grammars.ask(regex=pattern, draw=8, seed=seed, longest=40)
        if "refused" in said:
            assert said["refused"] == "too_large" or "no text fits" in said["message"], (pattern, said)
            continue
        made += 1
        for text in said["drawn"]:
            assert judge.fullmatch(text), (pattern, text)
        texts = [changed(draws, t) for t in said["drawn"]] + ["".join(draws.choices("abcxyz019_ é日", k=draws.randrange(5))) for _ in range(10)]
        for text, fits in zip(texts, grammars.ask(regex=pattern, texts=texts)["fits"]):
            found = bool(judge.fullmatch(text))
            assert found or not fits, (pattern, text)
            # Negated classes and those of digits, words and white space leave out what dialects disagree about.
            if text.isascii() and not re.search(r"\[\^|\\[sS]|\.", pattern):
                assert fits == found, (pattern, text)
            matched, missed = matched + fits, missed + (not found)
    assert made >= 200 and matched >= 200 and missed >= 200


def test_texts_of_grammars_are_those_that_an_earley_recogniser_accepts(grammars):
    made = drawn = rejected = refused = 0
    for seed in range(300):
        draws = random.Random(seed)
        g = Grammar(draws)
        gbnf, accepts = g.text(), g.recogniser()
        said = grammars.ask(grammar=gbnf, draw=6, seed=seed, longest=100)
        if g.is_left_recursive():
            assert said["refused"] == "invalid_request" and "begins with itself" in said["message"], (gbnf, said)
            refused += 1
            continue
        if not g.has_texts():
            assert said["refused"] == "invalid_request" and "no text fits" in said["message"], (gbnf, said)
            continue
        assert "drawn" in said, (gbnf, said)
        made += 1
        for text in said["drawn"]:
            assert accepts(text), (gbnf, text)
        drawn += len(said["drawn"])
        texts = [t for t in (g.sentence() for _ in range(6)) if t is not None]
        texts += [changed(draws, t) for t in texts + said["drawn"]] + ["", draws.choice(ALPHABET)]
        for text, fits in zip(texts, grammars.ask(grammar=gbnf, texts=texts)["fits"]):
            assert fits == accepts(text), (gbnf, text)
            rejected += not fits
    assert made >= 100 and drawn >= 300 and rejected >= 300 and refused >= 10


def test_listed_texts_are_the_only_ones(grammars):
    for seed in range(50):
        draws = random.Random(seed)
        texts = ["".join(draws.choices(ALPHABET, k=draws.randrange(6))) for _ in range(draws.randint(1, 40))]
        said = grammars.ask(choice=texts, draw=20, seed=seed)
        assert said["drawn"] and set(said["drawn"]) <= set(texts)
        others = [changed(draws, t) for t in texts]
        assert grammars.ask(choice=texts, texts=texts + others)["fits"] == [True] * len(texts) + [t in texts for t in others]


# llama.cpp's own examples of what the notation can say, and texts of them.
EXAMPLES = [
    ('root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | "(" ws expr ")" ws\n'
     'ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*', ["a=1\n", "(a1+2 )*x = 3\n", "1 +2=3\n4=5\n"], ["a=1", "=1\n", "A=1\n"]),
    ('root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+\n'
     'move ::= (pawn | nonpawn | castle) [+#]?\nnonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\n'
     'pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\ncastle ::= "O-O" "-O"?', ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 dxe5\n12. O-O-O Qxh8#\n"], ["1. e4 e5\n", "1. e9 e5\n2. a1 a1\n"]),
    ('root ::= object\nvalue ::= object | array | string | number | ("true" | "false" | "null") ws\n'
     'object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws\n'
     'array ::= "[" ws ( value ("," ws value)* )? "]" ws\n'
     'string ::= "\\"" ( [^"\\\\\\x7F\\x00-\\x1F] | "\\\\" (["\\\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\\"" ws\n'
     'number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\nws ::= | " " | "\\n" [ \\t]{0,20}',
     ['{}', '{"a": [1, 2.5e-3, "x\\u00e9日", {"b": null}]}', '{"a":\n  true}'], ['[]', '{"a" 1}', '{"a": 01}', '{"a": "\n"}']),
    ('root ::= jp-char+ ([ \\t\\n] jp-char+)*\njp-char ::= hiragana | katakana | punctuation | cjk\nhiragana ::= [ぁ-ゟ]\nkatakana ::= [ァ-ヿ]\n'
     'punctuation ::= [、-〾]\ncjk ::= [一-鿿]', ["日本語 カナ", "ひらがな、"], ["", "a", "日 "]),
    ('root ::= ([ \\t\\n] root)?', ["", " ", "\n\t "], ["x"]),
]


def test_known_grammars(grammars):
    for gbnf, good, bad in EXAMPLES:
        said = grammars.ask(grammar=gbnf, texts=good + bad)
        assert said.get("fits") == [True] * len(good) + [False] * len(bad), (gbnf, said)


WRONG = [
    ("", "no rule root"), ("a ::= \"x\"", "no rule root"), ("root ::= b", "line 1: the rule b is not defined"), ("root = \"x\"", "line 1: ::="),
    ("root ::= \"x", "line 1: a text has no closing"), ("root ::= \"\\q\"", "line 1: an escape is none of"), ("root ::= \"\\ud800\"", "no Unicode character"),
    ("root ::= \"\\x4\"", "hexadecimal"), ("root ::= [a", "has no ]"), ("root ::= []", "is empty"), ("root ::= [b-a]", "wrong order"),
    ("root ::= (\"a\"", "a ( has no )"), ("root ::= \"a\")", "a ) has no ("), ("root ::= *", "is expected"), ("root ::= \"a\"{2,1}", "wrong order"),
    ("root ::= \"a\"{,2}", "a number is expected"), ("root ::= \"a\"{x}", "a number is expected"), ("root ::= \"a\"{1", "a { has no }"),
    ("root ::= \"a\"\n\nroot ::= \"b\"", "line 3: a rule is defined twice"), ("root ::= <think>", "tokens as symbols"),
    ("root ::= root \"a\" | \"b\"", "line 1: the rule root begins with itself"), ("root ::= a\na ::= \"\" b\nb ::= [x]* root", "begins with itself"),
    ("root ::= \"a\" root", "no text fits"), ("root ::= \"a\"{100001}", "more than 100000 times"),
]


def test_wrong_grammars_are_refused_with_the_line(grammars):
    for gbnf, words in WRONG:
        said = grammars.ask(grammar=gbnf)
        assert "refused" in said and words in said["message"] and not said["param"], (gbnf, said)


def hostile():
    """Questions, each with True if it must be refused."""
    for depth in [50, 100, 101, 1000, 5000, 8000]:
        yield {"regex": "(" * depth + "a" + ")" * depth}, depth > 100
        yield {"regex": "(" * depth + "a" + ")*" * depth}, depth > 100
        yield {"grammar": "root ::= " + "(" * depth + '"a"' + ")" * depth}, depth > 100
        yield {"grammar": "root ::= " + "(" * depth + '"a"' + ")?" * depth}, depth > 100
        yield {"grammar": "root ::= " + '"a"' + "*" * depth}, depth > 100
    for n in [10, 15, 20, 25, 100, 1000, 10000]:
        yield {"regex": "[ab]*a[ab]{%d}" % n}, n >= 15
        yield {"regex": "(a|b|ab)*c(a|b|ab){%d}" % n}, None
        yield {"regex": "(a?){%d}a{%d}" % (n, n)}, None
        yield {"grammar": "root ::= [ab]* \"a\" [ab]{%d}" % n}, False
        yield {"grammar": "root ::= (\"a\"?){%d} \"a\"{%d}" % (n, n)}, False
        yield {"grammar": "root ::= (\"a\" | \"ab\" | \"abb\")* (\"b\"? \"a\"?){%d}" % n}, False
    for n in [100, 1000, 100000]:
        yield {"regex": "a{%d}{%d}" % (n, n)}, True
        yield {"regex": "(a{%d}){%d}" % (n, n)}, n * n > 1 << 15
        yield {"regex": "((a{%d}){%d}){%d}" % (n, n, n)}, True
        yield {"regex": "((a{0}){%d}){%d}" % (n, n)}, False
        yield {"grammar": 'root ::= "a"{%d}{%d}' % (n, n)}, False
        yield {"grammar": 'root ::= (("a"{%d}){%d}){%d}' % (n, n, n)}, False
        yield {"grammar": 'root ::= ((""{%d}){%d}){%d}' % (n, n, n)}, False
        yield {"grammar": 'root ::= ("a"{0,%d} "b"?){0,%d}' % (n, n)}, False
    yield {"regex": "a{100001}"}, True
    yield {"regex": "a" * 16385}, True
    yield {"regex": "a" * 16384}, False
    yield {"regex": "|".join(["a"] * 8000)}, False
    yield {"regex": "|".join(chr(0x4e00 + i) for i in range(4000))}, True
    yield {"regex": "[" + "".join(chr(0x4e00 + 2 * i) for i in range(4000)) + "]"}, True
    yield {"regex": "(.*){50}" * 50}, None
    yield {"regex": "(.{0,100}a){100}"}, True
    for n in [2, 20, 30, 100, 1000, 1023]:
        doubled = [f'r{i} ::= r{i + 1} r{i + 1}' for i in range(n)]
        yield {"grammar": "\n".join(["root ::= r0", *doubled[:n - 1], f'r{n - 1} ::= "a"'])}, n > 62  # no text is that long
        yield {"grammar": "\n".join(["root ::= r0", *doubled[:n - 1], f'r{n - 1} ::= ""'])}, False
        yield {"grammar": "\n".join(["root ::= r0", *doubled[:n - 1], f'r{n - 1} ::= "a" | ""'])}, False
        chain = [f'r{i} ::= r{i + 1} | r{i + 1}' for i in range(n - 1)]
        yield {"grammar": "\n".join(["root ::= r0", *chain, f'r{n - 1} ::= "a" root? "b"?'])}, False
        yield {"grammar": "\n".join(["root ::= r0", *[f'r{i} ::= r{i + 1} "x"' for i in range(n - 1)], f'r{n - 1} ::= root'])}, True
    yield {"grammar": "\n".join(["root ::= r0"] + [f"r{i} ::= r{i + 1}" for i in range(2000)])}, True
    yield {"grammar": 'root ::= "' + "a" * 65500 + '"'}, False
    yield {"grammar": 'root ::= "' + "a" * 65536 + '"'}, True
    yield {"grammar": "root ::= " + "[a]?" * 16000}, None
    yield {"grammar": "root ::= " + '"a" | ' * 10000 + '"b"'}, False
    yield {"grammar": "root ::= " + "".join(f"[{chr(0x4e00 + i)}]" for i in range(2000))}, True
    yield {"grammar": "root ::= [" + "".join(chr(0x4e00 + 2 * i) for i in range(300)) + "]"}, True
    yield {"grammar": "root ::= " + "[^a]" * 8000 + ' root?'}, None
    yield {"grammar": 'root ::= "a" root? root? "b"?'}, False
    yield {"grammar": 'root ::= "a" (root "x"? | root "y"?)?'}, False
    yield {"grammar": "#" * 65000}, True
    yield {"grammar": "\n" * 65000 + 'root ::= "a"'}, False
    # Steps that read no character, between the subsets of an automaton and in it.
    yield {"regex": "(?:(?:||||){12000}[ab])*a[ab]{13}"}, True
    yield {"regex": "(?:" + "()" * 8000 + "a){60000}"}, True
    # Attempts at an automaton that fail late: the last character is one too many.
    letters = "".join(chr(0x400 + i) for i in range(924)) + "".join(chr(33 + i) for i in range(90) if chr(33 + i) not in '"\\')
    yield {"grammar": 't ::= "' + letters + letters[-80:] * 75 + "".join(chr(0x100 + i) for i in range(20)) + '"\nroot ::= ' + "|".join(['(t"a")'] * 2048)}, False
    # Hundreds of rounds over what is nested deep.
    rules = "\n".join(["aa ::= ab0", *[f"ab{i} ::= ab{i + 1}" for i in range(600)], 'ab600 ::= "a"'])
    yield {"grammar": "root ::= " + "(" * 100 + "|".join("." * 24000) + ')"b"' * 100 + "|aa\n" + rules}, True
    # Nodes within each other across rules, with and without a use.
    deep = "\n".join([*[f"r{i} ::= r{i + 1}" + "?" * 48 for i in range(1000)], 'r1000 ::= "a"'])
    yield {"grammar": 'root ::= r0{0} "xy"\n' + deep}, False
    yield {"grammar": 'root ::= r990 "x"\n' + deep}, False
    yield {"grammar": 'root ::= r0 "x"\n' + deep}, None
    yield {"grammar": "root ::= " + "(" * 100 + '"a"' + (")" + "?" * 100) * 100}, True
    yield {"choice": ["a" * 40000]}, True
    yield {"choice": ["%05d" % i for i in range(100000)]}, True
    yield {"choice": ["%04d" % i for i in range(10000)]}, False
    yield {"choice": ["a" * i for i in range(1000)]}, False


def test_hostile_questions_are_bounded():
    grammars = Grammars(bounded=True)
    count = refused = 0
    for question, must in hostile():
        said = grammars.ask(**question)
        words = json.dumps(question)[:100]
        assert must is None or ("refused" in said) == must, (words, said)
        assert "refused" not in said or (said["refused"] in ("too_large", "invalid_request") and said["message"]), (words, said)
        count, refused = count + 1, refused + ("refused" in said)
    grammars.close()
    assert count >= 100 and refused >= 30

"""Each rule of tests/lint_words has texts that it finds and texts that it lets pass."""

import importlib.machinery
import importlib.util
import pathlib

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[1] / "lint_words"
loader = importlib.machinery.SourceFileLoader("lint_words", str(TOOL))
lint = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint_words", loader))
loader.exec_module(lint)

LONG = " ".join(["word"] * 31)


def rules(text, file="engine/base/rows.c"):
    tree = lint.Tree({file: text}, ["row.c", "file.c"])
    return [f.rule for f in lint.check(tree, file, text)]


@pytest.mark.parametrize("rule, bad, good", [
    ("first word", "/* Of one text: its tokens. */", "/* Build a dataset from the tokens of one text. */"),
    ("first word", "/* Is a slot free? */", "/* True if a slot is free. */"),
    ("first word", "/* Has n a place? */", "/* Has a place for n rows. */"),
    ("first word", "/* row.c - of rows\n */", "/* row.c - rows\n */"),
    ("place", "/* The bytes\n * behind the codes. */", "/* The bytes that follow the codes. */"),
    ("place", "/* Set in\n * front of rows. */", "/* Run it behind a reverse proxy. */"),
    ("stand", "/* The row stands in the log. */", "/* The row is in the log, a stand-in. */"),
    ("dated", "/* Start the\n * job anew. */", "/* Start the job again. */"),
    ("person", "/* Nobody reads it. */", "/* No thread reads it. */"),
    ("long", f"/* {LONG}. */", f"/* {LONG[5:]}. {LONG[5:]}. */"),
    ("no such file", "/* See masked.c. */", "/* See file.c and NAME.c. */"),
    ("no such name", "/* Free with text_free(). */\nint text_new;", "/* Free with text_free(). */\nint text_free;"),
    ("no such name", "/* Example:\n *\n *   row_new();\n */", "/* Example:\n *\n *   uv_run();\n */"),
    ("identifier", "int why;", "/* why */ int err = text(\"why\");"),
])
def test_a_rule_finds_its_text_and_passes_the_other(rule, bad, good):
    assert rules(bad) == [rule]
    assert rules(good) == []


def test_an_example_in_a_comment_is_not_prose():
    assert rules("/* Use:\n *\n *   so many behind;\n */") == []
    assert rules("/* Use so many behind. */") == ["place", "dated"]


def test_names_inside_quotes_are_not_words():
    assert rules("/* The message \"stands behind\" is `anew`. */") == []


@pytest.mark.parametrize("file, text", [
    ("a.py", '"""Nobody reads."""\n'),
    ("a.py", "# Nobody reads,\n# ever.\n"),
    ("a.py", "x = 1  # nobody reads\n"),
    ("a.js", "const x = 'nobody'; // nobody reads\n"),
    ("a.cu", "int x; // nobody reads\n"),
    ("a.sh", "ls # nobody reads\n"),
    ("Makefile", "# nobody reads\nall:\n\techo '# nobody'\n"),
    ("a.md", "# Nobody\n\nText that\nnobody reads.\n\n```\nnobody\n```\n"),
    ("a.yaml", "x:\n  description: |\n    A text that\n    nobody reads.\n  enum: [nobody]\n"),
    ("b.md", "| a row | that nobody reads |\n"),
    ("b.yaml", "x: {type: string, description: nobody reads}\n"),
])
def test_each_language_has_its_comments_read(file, text):
    assert rules(text, file) == ["person"]


def test_a_finding_names_the_line_of_the_word():
    text = "/* The first line,\n * the second stands here. */\n"
    assert [f.line for f in lint.check(lint.Tree({"a.c": text}), "a.c", text)] == [2]


def test_a_name_of_static_functions_in_many_files_is_found():
    text = "static __attribute__((always_inline)) int run(int a,\n               int b)\n{\n}\n\nstatic int run_all(void);\n"
    files = [f"engine/base/{name}.c" for name in "abcd"]
    assert [(f.file, f.line) for f in lint.repeated_names(lint.Tree(dict.fromkeys(files, text), []))] == [("engine/base/a.c", 1)]
    assert not list(lint.repeated_names(lint.Tree(dict.fromkeys(files[1:], text), [])))


def test_exceptions_are_few_and_have_reasons():
    assert len(lint.EXCEPTIONS) <= 20
    assert all(reason for _, _, reason in lint.EXCEPTIONS)

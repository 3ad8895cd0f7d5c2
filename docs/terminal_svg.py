#!/usr/bin/python3
"""Coloured terminal text on stdin, as `CLICOLOR_FORCE=1 additive explain` writes it, to an SVG on stdout."""
import re
import sys
from xml.sax.saxutils import escape

COLUMN, LINE, MARGIN = 8.4, 19, 14  # of a monospaced font of 14 px
PIECE = re.compile(r"\x1b\[38;5;16;48;5;(\d+)m(.*?)\x1b\[0m|([^\x1b]+)")
LEVELS = (0, 95, 135, 175, 215, 255)


def colour(index):
    """Of the 6 x 6 x 6 cube of the 256 colours."""
    index -= 16
    return "#%02x%02x%02x" % (LEVELS[index // 36], LEVELS[index // 6 % 6], LEVELS[index % 6])


def main():
    lines = sys.stdin.read().rstrip("\n").split("\n")
    boxes, texts, width = [], [], 0
    for number, line in enumerate(lines):
        column, y = 0, MARGIN + LINE * number
        for background, marked, plain in PIECE.findall(line):
            if background:
                boxes.append(f'<rect x="{MARGIN + column * COLUMN:.1f}" y="{y}" width="{len(marked) * COLUMN:.1f}" height="{LINE}" '
                             f'fill="{colour(int(background))}"/>')
            column += len(marked or plain)
        shown = "".join(marked or plain for _, marked, plain in PIECE.findall(line))
        at = [(i, c) for i, c in enumerate(shown) if c != " "]
        if at:  # a place for every character: whatever font a viewer has, it stands in its column
            places = " ".join(f"{MARGIN + i * COLUMN:.1f}" for i, _ in at)
            texts.append(f'<text x="{places}" y="{y + 14}">{escape("".join(c for _, c in at))}</text>')
        width = max(width, column)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * COLUMN + 2 * MARGIN:.0f}" height="{LINE * len(lines) + 2 * MARGIN}" '
          'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">\n'
          '<rect width="100%" height="100%" rx="6" fill="#fff" stroke="#ddd"/>\n' + "\n".join(boxes + texts) + "\n</svg>")


main()

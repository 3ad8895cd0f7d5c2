#!/usr/bin/env python3
"""List the work of the emulated device and its traffic, from the file of ADDITIVE_EMULATOR_COUNT.

A table by kernel: launches, bytes requested, the least bytes that memory has to move (each byte counted once per
launch), and the ratio of the two. Further columns are the share of the moved sectors' bytes that warps requested, and
the kernel's share of all bytes. With the device's rates there is also the time. It sums, over all work, the longer of
bytes / bandwidth and FLOP / rate, and for each launch the cost of one. Copies to and from the host are listed, but are
not part of the sums.

The checked build counts bytes; the plain one only launches.

    traffic.py FILE --per TOKENS --bandwidth 4.3e12 --launch 1.3e-6 --flops 790e12
"""

import argparse
import json
from collections import defaultdict

FIELDS = ("read", "written", "read_once", "written_once", "moved", "used", "flop")


def by_name(works, sizes):
    """Sums of records: {name: {count, early, FIELDS...}}."""
    rows = defaultdict(lambda: dict.fromkeys(("count", "early", *FIELDS), 0))
    for w in works:
        name = w["name"]
        if w["kind"] == "product" and sizes:
            name += " {}x{}x{}".format(*w["grid"]) + (f" x{w['threads']}" if w["threads"] > 1 else "")
        row = rows[name]
        row["count"] += 1
        row["early"] += w["early"]
        for field in FIELDS:
            row[field] += w[field]
    return rows


def with_host(work):
    return work["kind"] == "copy" and work["name"] != "copy"


def table(rows, per, unit):
    total = sum(r["read_once"] + r["written_once"] for r in rows.values()) or 1
    lines = [f"{'launches':>9} {'early':>6} {'once ' + unit:>12} {'asked':>12} {'read once':>12} {'written once':>12} "
             f"{'over':>5} {'sectors':>7} {'share':>6}  name"]
    for name, r in sorted(rows.items(), key=lambda i: -i[1]["read_once"] - i[1]["written_once"]):
        once, asked = r["read_once"] + r["written_once"], r["read"] + r["written"]
        used = f"{100 * r['used'] / r['moved']:6.1f}%" if r["moved"] else "      -"
        lines.append(f"{r['count']:9} {r['early']:6} {once / per:12.1f} {asked / per:12.1f} {r['read_once'] / per:12.1f} "
                     f"{r['written_once'] / per:12.1f} {asked / once if once else 0:5.2f} {used} {100 * once / total:5.1f}%  {name}")
    return lines


def seconds(works, a):
    """Return the time to move or multiply, whichever is longer for each piece of work, and the time of the launches."""
    moving = sum(max((w["read_once"] + w["written_once"]) / a.bandwidth, w["flop"] / a.flops) for w in works)
    return moving, len(works) * a.launch


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file")
    p.add_argument("--per", type=float, default=1, metavar="N", help="divide all bytes and times by N, for example tokens")
    p.add_argument("--sizes", action="store_true", help="list products of different sizes separately")
    p.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N pieces of work")
    p.add_argument("--bandwidth", type=float, metavar="B", help="bandwidth of memory, bytes per second; needed for times")
    p.add_argument("--launch", type=float, default=0, metavar="S", help="seconds per launch")
    p.add_argument("--flops", type=float, default=float("inf"), metavar="F", help="FLOP per second of products")
    a = p.parse_args()
    with open(a.file) as f:
        works = [json.loads(line) for line in f][a.skip:]
    host, device = [w for w in works if with_host(w)], [w for w in works if not with_host(w)]
    print("\n".join(table(by_name(device, a.sizes), a.per, "/ N" if a.per != 1 else "")))
    for kind in ("kernel", "product", "copy", "set"):
        mine = [w for w in device if w["kind"] == kind]
        once = sum(w["read_once"] + w["written_once"] for w in mine)
        print(f"{kind + ':':9} {len(mine):8} launches, {once / a.per:14.1f} bytes once, "
              f"{sum(w['flop'] for w in mine) / a.per:16.1f} FLOP")
    for name, r in by_name(host, False).items():
        print(f"{name}: {r['count']}, {(r['read'] + r['written']) / a.per:.1f} bytes")
    if a.bandwidth:
        moving, launching = seconds(device, a)
        print(f"time: {1e6 * moving / a.per:.4f} us moving and multiplying + {1e6 * launching / a.per:.4f} us launching = "
              f"{1e6 * (moving + launching) / a.per:.4f} us")


if __name__ == "__main__":
    main()

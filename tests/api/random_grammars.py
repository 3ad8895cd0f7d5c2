"""Random regular expressions and GBNF grammars, with judges that know nothing of the engine's.

A regular expression is judged by Python's `re`. A grammar is a tree here, from which both its GBNF text and the productions
of an Earley recogniser are made."""

import re

ALPHABET = list("abcxyz019 _-.\"\\[]\n\té日😀")


# --- regular expressions ------------------------------------------------------------------------------

def regex(random, depth=3):
    def character():
        c = random.choice("abcxyz019_ é日😀-./")
        return re.escape(c)

    def atom(depth):
        kind = random.randrange(8 if depth else 5)
        if kind < 3:
            return character()
        if kind == 3:
            return random.choice([r"\d", r"\w", r"\s", ".", r"\D", r"\W", r"\S", r"\n", r"\.", r"\x41", r"\u65e5"])
        if kind == 4:
            low, high = sorted(random.sample("abcdefxyz", 2))
            return "[" + random.choice(["", "^"]) + f"{low}-{high}" + random.choice(["", r"\d", "é", "日-本", r"\]"]) + "]"
        return random.choice(["(", "(?:", "(?P<n%d>" % random.randrange(10 ** 9)]) + either(depth - 1) + ")"

    def repeat(depth):
        text = atom(depth)
        least = random.randrange(3)
        suffix = random.choice(["", "", "", "*", "+", "?", "{%d}" % least, "{%d,}" % least, "{%d,%d}" % (least, least + random.randrange(3))])
        if re.search(r"[*+?}]", text):
            suffix = random.choice(["", "?"])  # Python takes exponential time for repetitions of repetitions
        return text + suffix + (random.choice(["", "?"]) if suffix else "")

    def sequence(depth):
        return "".join(repeat(depth) for _ in range(random.randint(0 if depth < 3 else 1, 4)))

    def either(depth):
        return "|".join(sequence(depth) for _ in range(random.choice([1, 1, 2, 3])))

    return random.choice(["", "", "^"]) + either(depth)


# --- grammars -------------------------------------------------------------------------------------------

def literal(text):
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'


def in_class(random, c):
    if c in '\\[]"-^\n\t' or random.random() < 0.1:
        return "\\U%08x" % ord(c) if ord(c) > 0xffff else "\\u%04X" % ord(c) if ord(c) > 0xff or random.random() < 0.5 else "\\x%02x" % ord(c)
    return c


class Grammar:
    """`rules`: name to tree; a tree is ("text", T), ("set", negated, [(first, last)…]), ("rule", NAME), ("all", [TREE…]), ("any", [TREE…])
    or ("repeat", TREE, min, max or None)."""

    def __init__(self, random):
        self.random = random
        self.names = ["root"] + ["r-%d" % i for i in range(random.randint(0, 5))]
        self.rules = {name: self.tree(3) for name in self.names}

    def tree(self, depth):
        random = self.random
        kind = random.randrange(10 if depth else 5)
        if kind < 2:
            return ("text", "".join(random.choice(ALPHABET) for _ in range(random.choice([0, 1, 1, 2, 4]))))
        if kind == 2:
            ranges = [tuple(sorted(random.choices(ALPHABET, k=2))) if random.random() < 0.5 else (random.choice(ALPHABET),) * 2 for _ in range(random.randint(1, 3))]
            return ("set", random.random() < 0.3, ranges)
        if kind == 3:
            return ("set", True, [])  # any character
        if kind == 4:
            return ("rule", random.choice(self.names))
        if kind < 7:
            return ("all", [self.tree(depth - 1) for _ in range(random.randint(0, 4))])
        if kind == 7:
            return ("any", [self.tree(depth - 1) for _ in range(random.randint(1, 4))])
        least = random.randrange(3)
        return ("repeat", self.tree(depth - 1), least, random.choice([None, least, least + 1, least + 3]))

    def written(self, tree, top=False):
        random = self.random
        kind = tree[0]
        if kind == "text":
            return literal(tree[1])
        if kind == "set":
            if tree[1:] == (True, []):
                return "."
            members = [in_class(random, a) + ("" if a == b else "-" + in_class(random, b)) for a, b in tree[2]]
            return "[" + ("^" if tree[1] else "") + "".join(members) + "]"
        if kind == "rule":
            return tree[1]
        if kind == "repeat":
            least, most = tree[2:]
            marks = {(0, None): ["*", "{0,}"], (1, None): ["+", "{1,}"], (0, 1): ["?", "{0,1}"]}.get((least, most))
            mark = random.choice(marks) if marks else "{%d,}" % least if most is None else "{%d}" % least if least == most else "{%d, %d}" % (least, most)
            return "(" + self.written(tree[1]) + ")" + mark
        parts = [self.written(t) for t in tree[1]]
        if kind == "all":
            return "(" + random.choice([" ", "  ", "\n ", " # a comment\n"]).join(["", *parts, ""]) + ")"
        return "(" + random.choice([" | ", "|", " |\n  "]).join(parts) + ")"

    def text(self):
        lines = [f"{name} ::= {self.written(tree)}" for name, tree in self.rules.items()]
        self.random.shuffle(lines)
        return "# made at random\n" + "\n\n".join(lines) + self.random.choice(["", "\n", " # end"])

    # --- the judge ----------------------------------------------------------------------------------

    def productions(self):
        """Name to a list of bodies: a body is a tuple of names and of predicates on characters."""
        made, count = {}, [0]

        def fresh(bodies):
            count[0] += 1
            name = f"#{count[0]}"
            made[name] = bodies
            return name

        def symbols(tree):
            kind = tree[0]
            if kind == "text":
                return tuple((lambda c, x=x: c == x) for x in tree[1])
            if kind == "set":
                return ((lambda c: any(a <= c <= b for a, b in tree[2]) != tree[1]),)
            if kind == "rule":
                return (tree[1],)
            if kind == "all":
                return tuple(s for t in tree[1] for s in symbols(t))
            if kind == "any":
                return (fresh([symbols(t) for t in tree[1]]),)
            one = symbols(tree[1])
            if tree[3] is None:
                rest = fresh([])
                made[rest] += [(), (*one, rest)]
                return one * tree[2] + (rest,)
            rest = ()
            for _ in range(tree[3] - tree[2]):
                rest = (fresh([(), one + rest]),)
            return one * tree[2] + rest

        for name, tree in self.rules.items():
            made[name] = [symbols(tree)]
        return made

    @staticmethod
    def grow(made, holds):
        """The names for which a property of bodies holds, from the least such set."""
        known = set()
        while True:
            more = {n for n, bodies in made.items() if n not in known and any(all(holds(s, known) for s in body) for body in bodies)}
            if not more:
                return known
            known |= more

    def is_left_recursive(self):
        made = self.productions()
        empty = self.grow(made, lambda s, known: s in known)
        begins = {n: set() for n in made}
        for name, bodies in made.items():
            for body in bodies:
                for s in body:
                    if callable(s):
                        break
                    begins[name].add(s)
                    if s not in empty:
                        break
        for name in self.rules:
            seen, waiting = set(), list(begins[name])
            while waiting:
                one = waiting.pop()
                if one not in seen:
                    seen.add(one)
                    waiting += begins[one]
            if name in seen:
                return True
        return False

    def has_texts(self):
        return "root" in self.grow(self.productions(), lambda s, known: callable(s) or s in known)

    def recogniser(self):
        made = self.productions()
        empty = self.grow(made, lambda s, known: s in known)

        def accepts(text):
            columns = [set() for _ in range(len(text) + 1)]  # (name, body's index, dot, origin)
            columns[0] = {("root", i, 0, 0) for i in range(len(made["root"]))}
            for at in range(len(text) + 1):
                waiting = list(columns[at])

                def add(item, to):
                    if item not in columns[to]:
                        columns[to].add(item)
                        if to == at:
                            waiting.append(item)

                while waiting:
                    name, i, dot, origin = waiting.pop()
                    body = made[name][i]
                    if dot == len(body):
                        for other, k, d, o in list(columns[origin]):
                            if d < len(made[other][k]) and made[other][k][d] == name:
                                add((other, k, d + 1, o), at)
                    elif callable(body[dot]):
                        if at < len(text) and body[dot](text[at]):
                            add((name, i, dot + 1, origin), at + 1)
                    else:
                        for k in range(len(made[body[dot]])):
                            add((body[dot], k, 0, at), at)
                        if body[dot] in empty:
                            add((name, i, dot + 1, origin), at)
            return any(("root", i, len(b), 0) in columns[-1] for i, b in enumerate(made["root"]))

        return accepts

    def sentence(self, longest=60):
        """A text of the grammar; None: none was found in time."""
        random = self.random
        steps = [0]

        class TooLong(Exception):
            pass

        def write(tree, depth):
            steps[0] += 1
            if steps[0] > 400 or depth > 40:
                raise TooLong
            kind = tree[0]
            if kind == "text":
                return tree[1]
            if kind == "set":
                inside = [c for c in ALPHABET + ["Z", "~", "ü"] if any(a <= c <= b for a, b in tree[2]) != tree[1]]
                return random.choice(inside or [chr(0x10fff0)])
            if kind == "rule":
                return write(self.rules[tree[1]], depth + 1)
            if kind == "all":
                return "".join(write(t, depth + 1) for t in tree[1])
            if kind == "any":
                return write(random.choice(tree[1]), depth + 1)
            most = tree[2] + 2 if tree[3] is None else tree[3]
            return "".join(write(tree[1], depth + 1) for _ in range(random.randint(tree[2], most)))

        for _ in range(5):
            steps[0] = 0
            try:
                text = write(self.rules["root"], 0)
            except TooLong:
                continue
            if len(text) <= longest:
                return text
        return None


def changed(random, text):
    """The text with one character inserted, removed or replaced."""
    at = random.randint(0, len(text))
    return random.choice([text[:at] + random.choice(ALPHABET) + text[at:], text[:at] + text[at + 1:], text[:at] + random.choice(ALPHABET) + text[at + 1:]])

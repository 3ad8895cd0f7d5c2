
// The server has drawn the first view; this draws all others from the same data. Nothing here reads a token as markup:
// texts go into text nodes and attributes.
const $ = id => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const tokens = data.tokens || [], n = tokens.length, all = data.position === 'all';
const rows = Array.isArray(data.weights) ? data.weights : [];
// The signed numbers of one prediction, or of a span of them by their positions.
const span = data.span && data.span.rows && data.span.rows.length ? new Map(data.span.rows.map(row => [row.position, row])) : null;
const single = data.contributions || data.attribution || null, signs = single || span, method = (single || data.span || {}).method;
const spans = [...$('text').children], sourceTokens = (data.source || {}).tokens || [], sourceSpans = [...$('source').children];
const TOP = 20, BINS = 64;
const SPECIAL = /[\u0000-\u0008\u000b-\u001f]/g;

const state = {kind: $('main').dataset.kind, view: 0, position: all ? n - 1 : span ? [...span.keys()].pop() : data.position, focus: -1};

// --- texts -------------------------------------------------------------------------------------------

const visible = text => !text ? '\u00b7' : text.replaceAll('\n', '\u21b5\n').replace(SPECIAL, c => String.fromCharCode(0x2400 + c.charCodeAt(0)));
const logits = x => (x < 0 ? '' : '+') + Number(x).toPrecision(4);
const percent = x => (100 * x).toFixed(2) + ' %';
const number = x => state.kind === 'contributions' ? logits(x) : percent(x);
const called = (list, i) => 'token ' + i + ' \u201c' + visible(list[i].text).replace('\n', '') + '\u201d';
const named = i => called(tokens, i);

// --- numbers -----------------------------------------------------------------------------------------
// A view is {name, read(p), readers(p)}. read: the share of each token in what p has read. readers: if all positions are
// available, the share of p in what each later token has read.

const zeros = () => new Float64Array(n);
const heaviest = values => values.reduce((b, w, i) => w > values[b] ? i : b, 0);

function read(row, p) {
	const out = zeros();
	if (row.alpha) row.alpha.forEach((w, i) => { out[row.window[0] + i] = w; });
	else for (let j = Math.max(0, p - (row.window_size || n) + 1); j <= p; j++) out[j] = Math.exp(row.score[j] - row.log_normalizer[p]);
	return out;
}

function readers(row, p) {
	const out = zeros();
	if (row.score) for (let i = p + 1; i < Math.min(n, p + (row.window_size || n)); i++) out[i] = Math.exp(row.score[p] - row.log_normalizer[i]);
	return out;
}

function mean(of, p) {
	const out = zeros();
	for (const row of rows) of(row, p).forEach((w, i) => { out[i] += w / rows.length; });
	return out;
}

const rowName = row => 'layer ' + row.layer + ', head ' + row.head + ', ' + row.round;
// Heads that forget have a half-life in tokens; null: they forget nothing.
const forgets = row => row.half_life !== undefined, halfLife = row => row.half_life === null ? '\u221e' : String(Number(row.half_life.toPrecision(2)));
const rowTitle = row => rowName(row) + (forgets(row) ? ', half-life ' + halfLife(row) + ' tokens' : '');
const views = rows.map(row => ({name: rowTitle(row), read: p => read(row, p), readers: p => readers(row, p)}));
if (rows.length > 1) views.unshift({name: 'mean of these ' + rows.length + ' rows', read: p => mean(read, p), readers: p => mean(readers, p)});
if (data.aggregate) views.unshift({name: data.aggregate.method, aggregate: true, read: () => Float64Array.from({length: n}, (_, i) => data.aggregate.alpha[i] || 0), readers: zeros});
const firstRow = views.length - rows.length;

const partsAt = p => span ? span.get(p) : single;

function signed(parts) {
	const out = zeros();
	if (parts.top) {
		for (const [i, x] of parts.top) out[i] = x;
		if (parts.sums && parts.sums.reader) out[parts.position] = parts.sums.reader;
	} else parts.tokens.forEach((x, i) => { out[i] = x; });
	return out;
}

// The token at the position is apart where it reads the others; of classes the last one.
function readerOf(parts) {
	const reads = parts.sums ? parts.sums.reader !== 0 : 'text' in parts.target.token;
	const reader = 'label' in parts.target.token ? parts.tokens.length - 1 : parts.position ?? data.position;
	return reads && signed(parts)[reader] !== 0 ? reader : -1; // 0: it is not among the largest
}

// True if the numbers follow the selected token.
const follows = () => state.kind === 'contributions' ? span !== null : all;

// {values, after}: after, the tokens whose numbers are what they have read of the position.
function current() {
	if (state.kind === 'contributions') {
		const values = signed(partsAt(state.position));
		if (!span) return {values, after: n};
		for (const [p, parts] of span) if (p > state.position) values[p] = signed(parts)[state.position];
		return {values, after: state.position + 1};
	}
	const view = views[state.view], values = view.read(state.position);
	if (!all) return {values, after: n};
	view.readers(state.position).forEach((w, i) => { if (i > state.position) values[i] = w; });
	return {values, after: state.position + 1};
}

// The numbers of the source's tokens. A row of weights has its counterpart in the attention to the source of the same number.
function ofSource() {
	const out = new Float64Array(sourceTokens.length), put = row => { ((row || {}).alpha || []).forEach((w, i) => { out[row.window ? row.window[0] + i : i] += w; }); };
	const given = (data.source || {}).weights || [], view = views[state.view];
	if (state.kind === 'contributions') {
		const parts = partsAt(state.position).source || {};
		if (parts.top) parts.top.forEach(([i, x]) => { out[i] = x; });
		else (parts.tokens || []).forEach((x, i) => { out[i] = x; });
	} else if (state.view < firstRow && view.aggregate) put((data.source || {}).aggregate);
	else if (state.view < firstRow) {
		given.forEach(put);
		return out.map(x => x / Math.max(1, given.length));
	} else put(given.find(row => row.layer === rows[state.view - firstRow].layer && row.head === rows[state.view - firstRow].head));
	return out;
}

// --- drawing -----------------------------------------------------------------------------------------

function draw() {
	const is = state.kind === 'contributions', {values, after} = current(), apart = is ? readerOf(partsAt(state.position)) : -1, source = ofSource();
	const max = Math.max(source.reduce((m, x) => Math.max(m, Math.abs(x)), 0), values.reduce((m, x, i) => i === apart ? m : Math.max(m, Math.abs(x)), 0));
	$('main').dataset.kind = state.kind;
	const colour = (box, i, x, text, names) => {
		box.style.setProperty('--w', max > 0 ? Math.min(1, Math.abs(x) / max).toFixed(4) : 0);
		box.title = 'token ' + i + ': ' + text;
		box.setAttribute('aria-label', called(names, i) + ', ' + text);
		box.className = is ? (x < 0 ? 'minus' : 'plus') : '';
	};
	spans.forEach((box, i) => {
		colour(box, i, values[i], number(values[i]) + (i < after ? '' : is ? ' of its prediction' : ' of what it read'), tokens);
		if (!is && i >= after) box.className = 'minus';
		if (i === state.position) box.className += ' here';
	});
	sourceSpans.forEach((box, i) => { colour(box, i, source[i], number(source[i]), sourceTokens); });
	$('min').textContent = is ? logits(-max) : '0 %';
	$('max').textContent = number(max);
	$('after').hidden = after >= n;
	if (!is) $('title').textContent = 'weights \u03b1: ' + views[state.view].name;
	else drawScore(partsAt(state.position));
	list($('rows'), values, tokens, i => i !== apart && i < after);
	list($('source_rows'), source, sourceTokens, () => true);
	if (!is) drawGrid();
}

// The largest numbers of those that belong there.
function list(body, values, names, belongs) {
	const best = [...values.keys()].filter(i => belongs(i) && values[i] !== 0).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b);
	body.replaceChildren(...best.slice(0, TOP).map(i => cells('td', [i, visible(names[i].text), number(values[i])])));
}

// As the server writes it for the first view.
function drawScore(parts) {
	const target = parts.target, sums = parts.sums || {}, reader = readerOf(parts), quoted = x => '\u201c' + visible('label' in x ? x.label : x.text).replaceAll('\n', '') + '\u201d';
	const other = target.kind === 'difference' ? ' and not ' + quoted(target.other) : target.kind === 'logit' ? '' : ', against all other options';
	$('title').textContent = (target.kind === 'logit' ? 'the logit of ' : 'why ') + quoted(target.token) + other + (method && method !== 'contributions' ? ' (' + method + ')' : '');
	$('target').textContent = 'Its logit is ' + Number(target.logit).toPrecision(4) + ', its probability ' + (100 * Math.exp(target.log_probability)).toPrecision(3) + ' %.';
	const lines = [['tokens' + (reader < 0 ? '' : ' but the reader'), sums.tokens]];
	if (reader >= 0) lines.push(['reader, ' + named(reader), signed(parts)[reader]]);
	lines.push(['tokens of the source', sums.source]);
	lines.push(['positions', sums.positions], ['biases', sums.biases], ['rounding', sums.rounding], ['difference from the baseline', parts.difference],
		['completeness error', parts.completeness_error], ['score', parts.score]);
	$('sums').replaceChildren(...lines.filter(line => line[1] !== undefined).map(([name, x]) => {
		const tr = cells('th', [name]);
		tr.append(...cells('td', [logits(x)]).children);
		return tr;
	}));
}

function cells(name, texts) {
	const tr = document.createElement('tr');
	for (const text of texts) {
		const cell = document.createElement(name);
		cell.textContent = text;
		tr.append(cell);
	}
	return tr;
}

let waiting = 0;
function drawSoon() {
	waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); });
}

// --- the grid: small multiples -----------------------------------------------------------------------

const buttons = [];

function makeGrid() {
	const columns = [...new Set(rows.map(r => r.round + ' ' + r.head))];
	const layers = new Map();
	$('columns').replaceChildren(...cells('th', ['layer', ...columns]).children);
	rows.forEach((row, k) => {
		if (!layers.has(row.layer)) layers.set(row.layer, cells('th', [row.layer, ...columns.map(() => '')]));
		const button = document.createElement('button');
		button.type = 'button';
		button.append($('spark').content.cloneNode(true));
		button.addEventListener('click', () => { choose(firstRow + k); });
		const cell = layers.get(row.layer).children[1 + columns.indexOf(row.round + ' ' + row.head)];
		cell.append(button);
		if (forgets(row)) cell.append(Object.assign(document.createElement('small'), {textContent: '\u00bd ' + halfLife(row)}));
		buttons.push(button);
	});
	$('layers').replaceChildren(...layers.values());
	$('half').hidden = !rows.some(forgets);
}

// A curve over the text: of each of at most 64 stretches of tokens the largest weight.
function spark(values) {
	const bins = new Float64Array(Math.min(BINS, n));
	values.forEach((w, i) => { const b = Math.floor(i * bins.length / n); bins[b] = Math.max(bins[b], w); });
	const top = bins.reduce((a, b) => Math.max(a, b), 1e-30), width = BINS / bins.length;
	return 'M0 16' + [...bins].map((w, i) => 'L' + (i * width).toFixed(1) + ' ' + (16 - 15 * w / top).toFixed(1) + 'h' + width.toFixed(1)).join('') + 'L64 16z';
}

function drawGrid() {
	$('grid').hidden = rows.length < 2;
	buttons.forEach((button, k) => {
		const values = views[firstRow + k].read(state.position), top = heaviest(values);
		button.querySelector('path').setAttribute('d', spark(values));
		button.title = rowTitle(rows[k]) + ': most of ' + named(top) + ', ' + percent(values[top]);
		button.setAttribute('aria-label', button.title);
		button.setAttribute('aria-pressed', state.view === firstRow + k);
	});
}

// --- the reader's choices ----------------------------------------------------------------------------

function choose(view) {
	state.view = view;
	$('view').value = view;
	draw();
}

// Describe the selected token.
function describe(i) {
	const {values, after} = current();
	let text = named(i) + ': ' + number(values[i]);
	if (state.kind === 'contributions') {
		const parts = partsAt(state.position);
		if (parts.positions && i < parts.positions.length) text += ' (its position ' + logits(parts.positions[i]) + ', biases ' + logits(parts.biases[i]) + ')';
	} else if (all) {
		const most = heaviest(values.subarray(0, after)), by = heaviest(values.subarray(after));
		text = named(i) + ' read most of ' + named(most) + ', ' + percent(values[most]);
		if (after < n) text += '; read most by ' + named(after + by) + ', ' + percent(values[after + by]);
	}
	$('readout').textContent = text;
}

function take(i) {
	if (i === state.focus) return;
	state.focus = i;
	if (follows() && (!span || span.has(i))) {
		state.position = i;
		$('position').value = i;
		drawSoon();
	}
	describe(i);
}

// --- a picture of what is shown, for papers ----------------------------------------------------------

function picture() {
	const box = $('text').getBoundingClientRect(), pieces = [], escape = t => t.replace(/[&<>"]/g, c => '&#' + c.charCodeAt(0) + ';');
	spans.forEach((token, i) => {
		const fill = token.classList.contains('minus') ? '#1a6fc4' : '#e66100', rects = [...token.getClientRects()];
		rects.forEach((r, k) => {
			const x = (r.left - box.left).toFixed(1), y = r.top - box.top, w = r.width.toFixed(1), at = ' x="' + x + '" y="' + y.toFixed(1) + '" width="' + w + '" height="' + r.height.toFixed(1) + '"';
			pieces.push('<rect' + at + ' fill="' + fill + '" fill-opacity="' + 0.75 * token.style.getPropertyValue('--w') + '"/>');
			if (i === state.position) pieces.push('<rect' + at + ' fill="none" stroke="#000"/>');
			if (k === 0) pieces.push('<text x="' + x + '" y="' + (y + 0.75 * r.height).toFixed(1) + '" xml:space="preserve"><title>' + escape(token.title) + '</title>' + escape(token.textContent.replaceAll('\n', '')) + '</text>');
		});
	});
	return '<svg xmlns="http://www.w3.org/2000/svg" width="' + box.width + '" height="' + (box.height + 24) + '" font-family="monospace" font-size="' + getComputedStyle($('text')).fontSize + '">\n' +
		'<rect width="100%" height="100%" fill="#fff"/>\n' + pieces.join('\n') +
		'\n<text x="12" y="' + (box.height + 16) + '">' + escape($('title').textContent + ' (' + $('min').textContent + ' to ' + $('max').textContent + ')') + '</text>\n</svg>\n';
}

// --- begin -------------------------------------------------------------------------------------------

function begin() {
	views.forEach((view, i) => { $('view').append(new Option(view.name, i)); });
	$('kinds').hidden = !signs || !views.length;
	if (method) $('signed').textContent = method;
	$('place').hidden = !all && !span;
	$('position').max = $('position').value = state.position;
	for (const input of document.querySelectorAll('[name=kind]')) {
		input.checked = input.value === state.kind;
		input.addEventListener('change', () => { state.kind = input.value; draw(); });
	}
	$('view').addEventListener('input', () => { choose(Number($('view').value)); });
	$('position').addEventListener('input', () => { reach(Math.min(n - 1, Math.max(0, $('position').valueAsNumber || 0))); });
	$('choose').addEventListener('submit', event => { event.preventDefault(); });
	$('picture').addEventListener('click', () => { $('picture').href = URL.createObjectURL(new Blob([picture()], {type: 'image/svg+xml'})); });
	$('picture').href = '#';
	$('text').setAttribute('aria-label', 'Tokens with their numbers; arrow keys move');
	const reach = strip($('text'), spans, Math.min(n - 1, state.position), take);
	makeGrid();
	$('choose').hidden = false;
	draw();
}

if (n && (signs || views.length)) begin();

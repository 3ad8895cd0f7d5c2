/* An explanation as the service answers it: which tokens argued for the prediction and which against it, or what
 * attention read. */
import {element, oncePerFrame, quoted, replace, save, svg, tokenCell, visible, visibleToken} from './dom.js';
import {logits, percent, significant} from './format.js';
import {colour, strip} from './strip.js';

const TOP = 20, BINS = 64;

export const quotedToken = token => quoted('label' in token ? visible(token.label) : visibleToken(token.text));

/* --- numbers -------------------------------------------------------------------------------------------------------- */

const heaviest = values => values.reduce((best, x, i) => x > values[best] ? i : best, 0);
const largest = (values, skip) => values.reduce((most, x, i) => i === skip ? most : Math.max(most, Math.abs(x)), 0);

/* The signed numbers of one prediction; of long texts the service names only the largest. */
function signed(parts, n) {
	const out = new Float64Array(n);
	if (parts.top) {
		for (const [i, x] of parts.top) out[i] = x;
		if (parts.sums && parts.sums.reader) out[parts.position] = parts.sums.reader;
	} else (parts.tokens || []).forEach((x, i) => { out[i] = x; });
	return out;
}

/** Index of the reader: the last token read. Much of the score comes through its own path, so it is listed apart and
 * does not set the scale of colours. -1: none is apart. */
export function readerOf(explanation, parts, values) {
	const classes = 'label' in parts.target.token, reads = parts.sums ? parts.sums.reader !== 0 : !classes;
	const reader = classes ? values.length - 1 : parts.position ?? explanation.position;
	return reads && values[reader] !== 0 ? reader : -1;
}

/* The share of each token in what position p has read. */
function read(row, p, n) {
	const out = new Float64Array(n);
	if (row.alpha) row.alpha.forEach((w, i) => { out[row.window[0] + i] = w; });
	else for (let j = Math.max(0, p - (row.window_size || n) + 1); j <= p; j++) out[j] = Math.exp(row.score[j] - row.log_normalizer[p]);
	return out;
}

/* The share of position p in what each later token has read, if all positions are available. */
function readers(row, p, n) {
	const out = new Float64Array(n);
	if (row.score) for (let i = p + 1; i < Math.min(n, p + (row.window_size || n)); i++) out[i] = Math.exp(row.score[p] - row.log_normalizer[i]);
	return out;
}

const rowName = row => `layer ${row.layer}, head ${row.head}, ${row.round}${row.half_life === undefined ? '' : `, half-life ${row.half_life === null ? '\u221e' : String(Number(row.half_life.toPrecision(2)))} tokens`}`;

/* The weights of the source's tokens that belong to these rows: a row's counterpart has its layer and head. */
function sourceWeights(source, rows, n) {
	const out = new Float64Array(n), found = (source.weights || []).filter(row => rows.some(each => each.layer === row.layer && each.head === row.head));
	for (const row of found) row.alpha.forEach((w, i) => { out[row.window[0] + i] += w / found.length; });
	return out;
}

function weightView(name, rows, explanation, chosen) {
	const n = explanation.tokens.length, source = explanation.source || {}, m = (source.tokens || []).length, all = explanation.position === 'all';
	return {name, chosen, follows: all, at(p) {
		const values = new Float64Array(n), add = x => { for (let i = 0; i < n; i++) values[i] += x[i] / rows.length; };
		for (const row of rows) add(read(row, p, n));
		if (all) for (const row of rows) add(readers(row, p, n));
		return {values, after: all ? p + 1 : n, source: sourceWeights(source, rows, m)};
	}};
}

/** The sets of numbers of an explanation. A view is {name, follows, at(p)}; follows: p may be chosen. at(p) is
 * {values, after, source, parts}: a number for each token, those of the source's tokens, and for signed numbers the
 * parts of the score. From token `after` on, a value is what that later token read of p. */
export function views(explanation) {
	const n = explanation.tokens.length, source = explanation.source || {}, m = (source.tokens || []).length, out = [];
	const rows = Array.isArray(explanation.weights) ? explanation.weights : [], parts = explanation.contributions || explanation.attribution;
	const span = explanation.span && explanation.span.rows && explanation.span.rows.length ? new Map(explanation.span.rows.map(row => [row.position, row])) : null;
	const name = (parts || explanation.span || {}).method || 'contributions';
	if (parts || span) out.push({name, signed: true, follows: !!span, positions: span && [...span.keys()], at(p) {
		const of = span ? span.get(p) : parts, values = signed(of, n);
		if (span) for (const [later, row] of span) if (later > p) values[later] = signed(row, n)[p];
		return {values, after: span ? p + 1 : n, source: signed(of.source || {}, m), parts: of};
	}});
	if (explanation.aggregate) out.push({name: explanation.aggregate.method, at: () => ({after: n, values: Float64Array.from({length: n}, (_, i) => explanation.aggregate.alpha[i] || 0),
		source: Float64Array.from({length: m}, (_, i) => (source.aggregate && source.aggregate.alpha[i]) || 0)})});
	if (rows.length > 1) out.push(weightView(`mean of these ${rows.length} rows`, rows, explanation));
	rows.forEach((row, k) => out.push(weightView(rowName(row), [row], explanation, k)));
	return out;
}

/** The sentence above the numbers of a view. */
export function titleOf(view, parts) {
	if (!parts) return `Weights \u03b1: ${view.name}`;
	const {target} = parts, other = target.kind === 'difference' ? ` and not ${quotedToken(target.other)}` : target.kind === 'logit' ? '' : ', against all other options';
	return `${target.kind === 'logit' ? 'The logit of ' : 'Why '}${quotedToken(target.token)}${other}${view.name === 'contributions' ? '' : ` (${view.name})`}`;
}

export function likelihoodOf(parts) {
	if (!parts) return null;
	const {target} = parts, rival = target.automatic && target.kind === 'difference' ? ' It is nearly certain, so it is compared with its strongest rival.' : '';
	return `Its logit is ${significant(target.logit)}, its probability ${percent(Math.min(1, Math.exp(target.log_probability)))}.${rival}`;
}

/** Names and values of the parts of a score, the score last. */
export function sumsOf(parts, reader) {
	const sums = parts.sums || {};
	return [[reader < 0 ? 'tokens' : 'tokens but the reader', sums.tokens], ['reader', reader < 0 ? undefined : sums.reader], ['tokens of the source', sums.source], ['positions', sums.positions], ['biases', sums.biases],
		['rounding', sums.rounding], ['difference from the baseline', parts.difference], ['completeness error', parts.completeness_error], ['score', parts.score]].filter(([, x]) => x !== undefined);
}

/* --- layers by heads: small multiples --------------------------------------------------------------------------------- */

/* A curve over the text: the largest weight of each of at most 64 stretches of tokens. */
function spark(values) {
	const bins = new Float64Array(Math.min(BINS, values.length)), width = BINS / bins.length;
	values.forEach((w, i) => { const b = Math.floor(i * bins.length / values.length); bins[b] = Math.max(bins[b], w); });
	const top = bins.reduce((a, b) => Math.max(a, b), 1e-30);
	return `M0 16${[...bins].map((w, i) => `L${(i * width).toFixed(1)} ${(16 - 15 * w / top).toFixed(1)}h${width.toFixed(1)}`).join('')}L64 16z`;
}

function grid(explanation, rowViews, choose) {
	const rows = explanation.weights, heads = [...new Set(rows.map(row => `${row.round} ${row.head}`))], layers = new Map(), buttons = [];
	rows.forEach((row, k) => {
		const path = svg('path', {}), picture = svg('svg', {viewBox: '0 0 64 16', preserveAspectRatio: 'none'}, path);
		const button = element('button', {type: 'button', onclick: () => choose(rowViews[k])}, picture);
		buttons.push({button, path, view: rowViews[k]});
		if (!layers.has(row.layer)) layers.set(row.layer, heads.map(() => null));
		layers.get(row.layer)[heads.indexOf(`${row.round} ${row.head}`)] = [button, row.half_life === undefined ? null : element('small', {}, `\u00bd ${row.half_life === null ? '\u221e' : String(Number(row.half_life.toPrecision(2)))}`)];
	});
	const node = element('div', {class: 'scroll'}, element('table', {class: 'grid'}, element('caption', {}, `Layers by rounds and heads${rows.some(row => row.half_life !== undefined) ? '; \u00bd: half-life in tokens' : ''}`),
		element('thead', {}, element('tr', {}, element('th', {scope: 'col'}, 'layer'), heads.map(head => element('th', {scope: 'col'}, head)))),
		element('tbody', {}, [...layers].map(([layer, cells]) => element('tr', {}, element('th', {scope: 'row'}, layer), cells.map(cell => element('td', {}, cell)))))));
	function draw(shown, position) {
		for (const {button, path, view} of buttons) {
			const {values, after} = view.at(position), top = heaviest(values.subarray(0, after));
			path.setAttribute('d', spark(values));
			button.title = `${view.name}: most of token ${top} ${quotedToken(explanation.tokens[top])}, ${percent(values[top])}`;
			button.setAttribute('aria-label', button.title);
			button.setAttribute('aria-pressed', String(view === shown));
		}
	}
	return {node, draw};
}

/* --- the whole ---------------------------------------------------------------------------------------------------------- */

/* A spreadsheet runs a cell that begins with one of these characters as a formula, unless it is the whole cell. Such a
 * token follows an apostrophe, which spreadsheets take as the mark of a text. */
const FORMULA = /^[=+\-@\t\r]./s;

function asCSV(explanation, values) {
	const cell = text => `"${FORMULA.test(text) ? "'" : ''}${text.replaceAll('"', '""')}"`;
	return `position,token,value\n${explanation.tokens.map((token, i) => `${i},${cell(token.text)},${values[i]}\n`).join('')}`;
}

function topTable(caption, tokens, values, belongs, number) {
	const best = [...values.keys()].filter(i => belongs(i) && values[i] !== 0).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b).slice(0, TOP);
	return element('table', {class: 'top'}, element('caption', {}, caption), element('thead', {}, element('tr', {}, element('th', {scope: 'col', class: 'number'}, 'Position'), element('th', {scope: 'col'}, 'Token'), element('th', {scope: 'col', class: 'number'}, 'Number'))),
		element('tbody', {}, best.map(i => element('tr', {}, element('td', {class: 'number'}, i), tokenCell(tokens[i].text), element('td', {class: 'number'}, number(values[i]))))));
}

/** The key to the colours. */
export function legend(isSigned) {
	return element('p', {class: 'note'}, isSigned ? [element('b', {class: 'minus key'}, 'Blue'), ' argues against it, ', element('b', {class: 'plus key'}, 'orange'), ' for it, in logits.'] : [element('b', {class: 'plus key'}, 'Orange'), ' is a share of what attention summed.']);
}

/** Draw an explanation into node. tools: further buttons. */
export function drawExplanation(node, explanation, tools) {
	const all = views(explanation), n = explanation.tokens.length, rowViews = all.filter(view => view.chosen !== undefined), head = element('div'), tables = element('div', {class: 'columns'}), readout = element('p', {class: 'note readout', role: 'status'}, '\u00a0');
	if (!all.length || !n) {
		replace(node, element('p', {}, 'This explanation has no numbers for the tokens.'));
		return;
	}
	const sourceTokens = (explanation.source || {}).tokens || [];
	let shown = all[0], position = explanation.position === 'all' ? n - 1 : all[0].positions ? all[0].positions[all[0].positions.length - 1] : explanation.position, now = null, scale = 1;
	const number = x => shown.signed ? logits(x) : percent(x);
	const choose = view => {
		shown = view;
		select.value = all.indexOf(view);
		draw();
	};
	const select = element('select', {'aria-label': 'Numbers', onchange: () => choose(all[select.value])}, all.map((view, i) => element('option', {value: i}, view.name)));
	const place = element('input', {type: 'number', min: 0, max: n - 1, value: String(position), oninput: () => move(Math.min(n - 1, Math.max(0, place.valueAsNumber || 0)))});
	const text = strip({label: 'Tokens with their numbers; arrow keys move', current: describe, made: paint}), source = strip({label: 'Tokens of the source with their numbers', made: paintSource});
	const small = rowViews.length > 1 ? grid(explanation, rowViews, choose) : null;

	const drawSoon = oncePerFrame(() => draw());

	function move(i) {
		if (!shown.follows || i === position || (shown.positions && !shown.positions.includes(i))) return;
		position = i;
		place.value = i;
		drawSoon();
	}

	function describe(i) {
		move(i);
		const x = now.values[i], later = i >= now.after, parts = now.parts;
		readout.textContent = `Token ${i} ${quotedToken(explanation.tokens[i])}: ${number(x)}${later ? shown.signed ? ' of its prediction' : ' of what it read' : ''}${parts && parts.positions && i < parts.positions.length ? ` (its position ${logits(parts.positions[i])}, biases ${logits(parts.biases[i])})` : ''}`;
	}

	function paint(i, box) {
		colour(box, (!shown.signed && i >= now.after ? -1 : 1) * now.values[i] / scale);
		box.classList.toggle('here', i === position);
	}

	function paintSource(i, box) {
		colour(box, now.source[i] / scale);
	}

	function draw() {
		now = shown.at(position);
		const {values, after, parts} = now, reader = parts ? readerOf(explanation, parts, values) : -1;
		scale = Math.max(largest(values, reader), largest(now.source, -1)) || 1;
		text.boxes.forEach((box, i) => paint(i, box));
		source.boxes.forEach((box, i) => paintSource(i, box));
		replace(head, element('h2', {}, titleOf(shown, parts)), element('p', {}, likelihoodOf(parts)), legend(shown.signed), after < n ? element('p', {class: 'note'}, 'After the outlined token: its part in what each later one has read or predicts.') : null);
		replace(tables, parts ? element('table', {class: 'sums'}, element('caption', {}, 'The score and its parts, in logits'), element('tbody', {}, sumsOf(parts, reader).map(([name, x]) => element('tr', {}, element('th', {scope: 'row'}, name === 'reader' ? `reader, token ${reader} ${quotedToken(explanation.tokens[reader])}` : name), element('td', {class: 'number'}, logits(x)))))) : null,
			topTable('The tokens with the largest numbers', explanation.tokens, values, i => i !== reader && i < after, number), sourceTokens.length ? topTable('The tokens of the source with the largest numbers', sourceTokens, now.source, () => true, number) : null);
		if (small) {
			small.node.hidden = shown.signed;
			if (!shown.signed) small.draw(shown, position);
		}
	}

	replace(node, element('p', {class: 'buttons'}, all.length > 1 ? select : null, all.some(view => view.follows) ? element('label', {}, 'Position ', place) : null, tools,
		element('button', {type: 'button', class: 'quiet', onclick: () => save('explanation.json', 'application/json', JSON.stringify(explanation))}, 'Save JSON'),
		element('button', {type: 'button', class: 'quiet', onclick: () => save('explanation.csv', 'text/csv', asCSV(explanation, now.values))}, 'Save CSV')),
	head, sourceTokens.length ? [element('h3', {}, 'The source'), source.node, element('h3', {}, 'The text')] : null, text.node, readout, tables, small ? small.node : null);
	draw();
	text.set(0, explanation.tokens);
	source.set(0, sourceTokens);
}

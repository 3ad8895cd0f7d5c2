/* An explanation as the service answers it: which token argued for the prediction, and which against it. */
import {element, replace, save, visible} from './dom.js';
import {logits, percent, significant} from './format.js';
import {colour, strip} from './strip.js';

const TOP = 20;
const quoted = token => `\u201c${visible(token.label ?? token.text).replaceAll('\n', '')}\u201d`;

/* Parts of all tokens; of long texts the service names only the largest. */
function signed(parts, n) {
	const out = new Float64Array(n);
	if (parts.top) for (const [i, x] of parts.top) out[i] = x;
	else parts.tokens.forEach((x, i) => { out[i] = x; });
	return out;
}

const zero = n => new Float64Array(n);

/* The weights of a row: the share of each token in what the position has read. */
function weightsOf(row, n) {
	const out = zero(n);
	(row.alpha || []).forEach((w, i) => { out[row.window[0] + i] = w; });
	return out;
}

function meanWeights(rows, n) {
	const out = zero(n);
	for (const row of rows) weightsOf(row, n).forEach((w, i) => { out[i] += w / rows.length; });
	return out;
}

/** The views of an explanation: {name, values, signed, parts}. */
export function views(explanation) {
	const n = explanation.tokens.length, out = [], parts = explanation.contributions || explanation.attribution, rows = (explanation.weights || []).filter(row => row.alpha);
	if (parts) out.push({name: explanation.contributions ? 'Contributions' : parts.method, values: signed(parts, n), signed: true, parts});
	if (explanation.aggregate) out.push({name: `Weights: ${explanation.aggregate.method}`, values: Float64Array.from({length: n}, (_, i) => explanation.aggregate.alpha[i] || 0)});
	if (rows.length > 1) out.push({name: `Weights: mean of ${rows.length} rows`, values: meanWeights(rows, n)});
	for (const row of rows)
		out.push({name: `Layer ${row.layer}, head ${row.head}, ${row.round}${row.half_life ? `, half-life ${significant(row.half_life, 2)} tokens` : ''}`, values: weightsOf(row, n)});
	return out;
}

function title(explanation, view) {
	const target = view.parts && view.parts.target;
	if (!target) return view.name;
	return `Why ${quoted(target.token)}${target.kind === 'difference' ? ` and not ${quoted(target.other)}` : target.kind === 'logit' ? '' : ', against all other options'}?`;
}

/* The reader is the last token read: much of the score comes through its own path, so it does not set the scale. */
const readerOf = (explanation, view) => view.parts && view.parts.sums && view.parts.sums.reader ? explanation.position : -1;

function sums(explanation, view) {
	const parts = view.parts, given = parts.sums || {}, reader = readerOf(explanation, view);
	const rows = [[reader < 0 ? 'Tokens' : 'Tokens but the reader', given.tokens], [reader < 0 ? null : `Reader, token ${reader} ${quoted(explanation.tokens[reader])}`, given.reader], ['Tokens of the source', given.source],
		['Positions', given.positions], ['Biases', given.biases], ['Rounding', given.rounding], ['Score', parts.score]];
	return element('table', {class: 'sums'}, element('caption', {}, 'The score and its parts, in logits'), element('tbody', {}, rows.filter(([name, x]) => name && x !== undefined && x !== 0)
		.map(([name, x]) => element('tr', {}, element('th', {scope: 'row'}, name), element('td', {class: 'number'}, logits(x))))));
}

function asCSV(explanation, view) {
	const cell = text => `"${text.replaceAll('"', '""')}"`;
	return ['position,token,value', ...explanation.tokens.map((token, i) => `${i},${cell(token.text)},${view.values[i] || 0}`)].join('\n') + '\n';
}

/** Draw an explanation into node. */
export function drawExplanation(node, explanation) {
	const all = views(explanation), readout = element('p', {class: 'note', role: 'status'}, '\u00a0'), body = element('div');
	const select = element('select', {'aria-label': 'Numbers', onchange: () => draw(all[select.value])}, all.map((view, i) => element('option', {value: i}, view.name)));
	let shown = all[0];
	const text = strip({label: 'Tokens with their numbers; arrow keys move', current: i => {
		const x = shown.values[i] || 0;
		readout.textContent = `Token ${i} ${quoted(explanation.tokens[i])}: ${shown.signed ? `${logits(x)} logits` : percent(x)}`;
	}});
	explanation.tokens.forEach(token => text.add(token.text));

	function draw(view) {
		shown = view;
		const reader = readerOf(explanation, view), scale = view.values.reduce((m, x, i) => i === reader ? m : Math.max(m, Math.abs(x)), 0) || 1;
		text.boxes.forEach((box, i) => colour(box, (view.values[i] || 0) / scale));
		text.boxes.forEach((box, i) => box.classList.toggle('here', i === explanation.position));
		const best = [...view.values.keys()].filter(i => i !== reader && view.values[i] !== 0).sort((a, b) => Math.abs(view.values[b]) - Math.abs(view.values[a]) || a - b).slice(0, TOP);
		const likelihood = view.parts && view.parts.target;
		replace(body, element('h2', {}, title(explanation, view)),
			likelihood ? element('p', {}, `Its logit is ${significant(likelihood.logit)}, its probability ${percent(Math.exp(likelihood.log_probability))}. `, view.signed ? [element('b', {class: 'minus key'}, 'Blue'), ' argues against it, ', element('b', {class: 'plus key'}, 'orange'), ' for it.'] : null) : null,
			text.node, readout, element('div', {class: 'columns'}, view.parts ? sums(explanation, view) : null,
				element('table', {}, element('caption', {}, 'The largest numbers'), element('tbody', {}, best.map(i => element('tr', {}, element('td', {class: 'number'}, i), element('td', {class: 'token'}, visible(explanation.tokens[i].text)),
					element('td', {class: 'number'}, view.signed ? logits(view.values[i]) : percent(view.values[i]))))))));
	}

	replace(node, element('p', {class: 'buttons'}, all.length > 1 ? select : null,
		element('button', {type: 'button', class: 'quiet', onclick: () => save('explanation.json', 'application/json', JSON.stringify(explanation, null, 1))}, 'Save JSON'),
		element('button', {type: 'button', class: 'quiet', onclick: () => save('explanation.csv', 'text/csv', asCSV(explanation, shown))}, 'Save CSV')), body);
	if (all.length) draw(all[0]);
	else replace(body, element('p', {}, 'This explanation has no numbers for the tokens.'));
}

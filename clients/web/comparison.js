/* Two explanations side by side: an explanation whose member `compare` is the second one. Tokens that both texts have
 * in the same order share a column, and their numbers have a difference. */
import {element, replace, tokenCell, visibleToken} from './dom.js';
import {logits, percent} from './format.js';
import {legend, likelihoodOf, quotedToken, readerOf, sumsOf, titleOf, views} from './explanation.js';
import {colour} from './strip.js';

const TOP = 20;

/* One side: its first view at its position. */
function sideOf(explanation) {
	const [view] = views(explanation), n = explanation.tokens.length, now = view ? view.at(explanation.position === 'all' ? n - 1 : explanation.position) : {values: new Float64Array(n)};
	return {explanation, view, ...now, tokens: explanation.tokens, reader: now.parts ? readerOf(explanation, now.parts, now.values) : -1};
}

/** Columns from left to right: {first, second, difference}. An index is null where a side has no token; the difference
 * is null where the tokens differ or their numbers cannot be compared. */
export function columnsOf(a, b, pairs) {
	const out = [];
	let i = 0, j = 0;
	const fill = (toI, toJ) => { while (i < toI || j < toJ) out.push({first: i < toI ? i++ : null, second: j < toJ ? j++ : null, difference: null}); };
	for (const [p, q, difference] of pairs || []) {
		fill(p, q);
		out.push({first: i++, second: j++, difference});
	}
	fill(a.tokens.length, b.tokens.length);
	return out;
}

const box = (side, i, scale) => {
	const made = element('span', {}, i === null ? '' : visibleToken(side.tokens[i].text));
	if (i !== null) colour(made, side.values[i] / scale);
	return made;
};

const cell = (side, i, number) => i === null ? [element('td', {}, 'none'), element('td')] : [tokenCell(side.tokens[i].text, i === side.reader ? ' (reader)' : null), element('td', {class: 'number'}, number(side.values[i]))];

function sumsTable(a, b) {
	const one = new Map(sumsOf(a.parts, a.reader)), two = new Map(sumsOf(b.parts, b.reader)), names = [...new Set([...one.keys(), ...two.keys()])].filter(name => name !== 'score');
	return element('table', {class: 'sums'}, element('caption', {}, 'The two scores and their parts, in logits'), element('thead', {}, element('tr', {}, element('td'), ['First', 'Second', 'Difference'].map(title => element('th', {scope: 'col', class: 'number'}, title)))),
		element('tbody', {}, [...names, 'score'].map(name => {
			const x = one.get(name) || 0, y = two.get(name) || 0;
			return element('tr', {}, element('th', {scope: 'row'}, name), [x, y, y - x].map(value => element('td', {class: 'number'}, logits(value))));
		})));
}

/** Draw a comparison into node. */
export function drawComparison(node, answer, tools) {
	const a = sideOf(answer), b = sideOf(answer.compare), comparable = a.view && b.view && !a.parts === !b.parts, columns = columnsOf(a, b, comparable ? answer.compare.same_tokens : []);
	const number = a.parts ? logits : percent, scale = [a, b].reduce((most, side) => side.values.reduce((m, x, i) => i === side.reader ? m : Math.max(m, Math.abs(x)), most), 0) || 1;
	const sameTarget = a.parts && b.parts && ['kind', 'token', 'other'].every(key => JSON.stringify(a.parts.target[key]) === JSON.stringify(b.parts.target[key]));
	const readout = element('p', {class: 'note readout', role: 'status'}, '\u00a0');
	const text = element('div', {class: 'strip compared'}, columns.map(column => {
		const {first, second, difference} = column, line = element('i', {}, difference === null || Math.abs(difference) < 0.1 * scale ? '' : difference < 0 ? '\u2212' : '+');
		if (difference !== null) colour(line, difference / scale);
		const said = (side, i) => i === null ? 'none' : `token ${i} ${quotedToken(side.tokens[i])} ${number(side.values[i])}`;
		const show = () => { readout.textContent = `First: ${said(a, first)}; second: ${said(b, second)}${difference === null ? '' : `; difference ${number(difference)}`}`; };
		return [element('span', {class: 'column', tabindex: 0, onfocus: show, onpointerover: show}, box(a, first, scale), box(b, second, scale), line), /\n$/.test((first !== null ? a.tokens[first].text : '') || '') ? element('br') : null];
	}));
	const best = columns.filter(column => column.difference && column.first !== a.reader).sort((x, y) => Math.abs(y.difference) - Math.abs(x.difference)).slice(0, TOP);
	const size = (side, i) => i === null ? 0 : Math.abs(side.values[i]);
	const others = comparable ? columns.filter(column => column.difference === null).sort((x, y) => Math.max(size(a, y.first), size(b, y.second)) - Math.max(size(a, x.first), size(b, x.second))).slice(0, TOP) : [];
	replace(node, tools ? element('p', {class: 'buttons'}, tools) : null, [['First', a], ['Second', b]].map(([name, side]) => element('p', {}, `${name}: `, element('b', {}, `${side.explanation.model}: ${side.view ? titleOf(side.view, side.parts) : 'no numbers'}`), ' ', likelihoodOf(side.parts))),
		!comparable ? element('p', {}, 'One has contributions and the other weights: they have no differences.') : a.parts && !sameTarget ? element('p', {}, 'The two explain different outputs; ', element('code', {}, 'target'), ' asks both for one.') : null,
		legend(!!a.parts), element('p', {class: 'note'}, 'Above the first, below the second; the lowest line is their difference, on the same scale.'), text, readout, element('div', {class: 'columns'}, a.parts && b.parts ? sumsTable(a, b) : null,
			best.length ? element('table', {class: 'top'}, element('caption', {}, 'The same tokens with the largest differences'), element('thead', {}, element('tr', {}, ['Positions', 'Token', 'First', 'Second', 'Difference'].map((title, i) => element('th', {scope: 'col', class: i > 1 ? 'number' : null}, title)))),
				element('tbody', {}, best.map(column => element('tr', {}, element('td', {}, `${column.first}, ${column.second}`), tokenCell(a.tokens[column.first].text), [a.values[column.first], b.values[column.second], column.difference].map(x => element('td', {class: 'number'}, number(x))))))) : null,
			others.length ? element('table', {class: 'top'}, element('caption', {}, 'The tokens that differ, the largest numbers first'), element('thead', {}, element('tr', {}, ['First', 'Its number', 'Second', 'Its number'].map(title => element('th', {scope: 'col'}, title)))),
				element('tbody', {}, others.map(column => element('tr', {}, cell(a, column.first, number), cell(b, column.second, number))))) : null));
}

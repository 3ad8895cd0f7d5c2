/* The report of an evaluation of a model: its means, its loss by position, the tokens with the highest losses. */
import {element, facts, quoted, scrollBox, tokenCell, visible} from './dom.js';
import {count, percent, significant} from './format.js';

const table = (caption, titles, rows) => scrollBox(caption, element('table', {}, element('caption', {}, caption),
	element('thead', {}, element('tr', {}, titles.map(title => element('th', {scope: 'col'}, title)))), element('tbody', {}, rows)));
const number = text => element('td', {class: 'number'}, text);

/** The elements of a report. */
export function drawEvaluation({tokens, bytes, nats_per_token, perplexity, bits_per_byte, accuracy, positions, rows}) {
	return [facts([['Loss', `${significant(nats_per_token)} nats per token`], ['Perplexity', significant(perplexity)], ['Bits per byte', significant(bits_per_byte)], ['Accuracy', percent(accuracy)], ['Tokens scored', count(tokens)], ['Their bytes', count(bytes)]]),
		element('h2', {}, 'Loss by position'), table('Tokens with this many tokens before them in their context', ['Before them', 'Tokens', 'Loss', 'Perplexity', 'Accuracy'], positions.map(each => element('tr', {},
			element('th', {scope: 'row'}, each.from === each.to ? count(each.from) : `${count(each.from)} to ${count(each.to)}`), number(count(each.tokens)), number(significant(each.nats_per_token)), number(significant(each.perplexity)), number(percent(each.accuracy))))),
		rows.length ? [element('h2', {}, 'Highest losses'), table('The tokens with the highest losses, the highest first', ['Token', 'Likeliest', 'Loss', 'Index', 'The text before it'], rows.map(row => element('tr', {},
			tokenCell(row.token.text), tokenCell(row.likeliest.text), number(significant(row.nats)), number(count(row.index)), element('td', {class: 'token'}, quoted(visible(row.before).replaceAll('\n', ''))))))] : null];
}

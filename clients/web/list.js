/* Long lists: pages are loaded in turn, rows are drawn only where they can be seen. */
import {element, oncePerFrame, replace} from './dom.js';
import {pages, remove} from './api.js';
import {ask, explainEmpty, message} from './notice.js';
import {count} from './format.js';

const ROW = 36, BEYOND = 10; /* pixels of a row; rows drawn above and below the window */

/** A table of fixed rows. columns: [{title, cell: row => text or node, number, wide}]. Returns {node, set(rows)}. */
export function rowTable(columns, signal) {
	const body = element('tbody'), top = element('tr', {'aria-hidden': true}), bottom = element('tr', {'aria-hidden': true});
	const node = element('table', {class: 'rows'}, element('thead', {}, element('tr', {},
		columns.map(column => element('th', {scope: 'col', class: column.number ? 'number' : null}, column.title)))), body);
	const drawn = new Map(); /* elements by row; an element stays, so that its controls keep the focus */
	let rows = [], from = -1, to = -1;

	const rowOf = row => element('tr', {}, columns.map(column =>
		element('td', {class: column.number ? 'number' : column.wide ? 'wide' : null, 'data-title': column.title}, column.cell(row))));

	function draw(force) {
		const above = -body.getBoundingClientRect().top, first = Math.max(0, Math.floor(above / ROW) - BEYOND);
		const last = Math.min(rows.length, Math.ceil((above + innerHeight) / ROW) + BEYOND);
		if (!force && first === from && last === to) return;
		[from, to] = [first, Math.max(first, last)];
		top.style.height = `${from * ROW}px`;
		bottom.style.height = `${(rows.length - to) * ROW}px`;
		const wanted = rows.slice(from, to), kept = new Set(wanted);
		for (const [row, node] of drawn) {
			if (kept.has(row)) continue;
			node.remove();
			drawn.delete(row);
		}
		let next = top.nextSibling;
		for (const row of wanted) {
			if (!drawn.has(row)) drawn.set(row, body.insertBefore(rowOf(row), next));
			else next = drawn.get(row).nextSibling;
		}
	}

	body.append(top, bottom);
	const soon = oncePerFrame(() => draw(false));
	addEventListener('scroll', soon, {signal, passive: true});
	addEventListener('resize', soon, {signal});
	return {node, set(list) { rows = list; node.setAttribute('aria-rowcount', list.length + 1); draw(true); }};
}

/** Show a list of the service with a search field.
 * options: title, path, query, columns, words: row => searched text, empty: nodes, actions: nodes beside the title.
 * forget(row), the second argument of a column's cell(), takes a row out of the list. */
export async function showList(main, {signal}, options) {
	const forget = row => { all.splice(all.indexOf(row), 1); draw(); };
	const table = rowTable(options.columns.map(column => ({...column, cell: row => column.cell(row, forget)})), signal), all = [], note = element('p', {class: 'note', role: 'status'});
	const search = element('input', {type: 'search', placeholder: 'Search', 'aria-label': `Search ${options.title}`, oninput: () => draw()});
	const draw = () => {
		const text = search.value.trim().toLowerCase(), found = text ? all.filter(row => options.words(row).toLowerCase().includes(text)) : all;
		table.set(found);
		note.textContent = text ? `${count(found.length)} of ${count(all.length)}` : `${count(all.length)} in all`;
	};
	replace(main, element('div', {class: 'title'}, element('h1', {}, options.title), options.actions, search), note, table.node);
	for await (const page of pages(options.path, options.query, signal)) {
		if (signal.aborted) return;
		all.push(...page);
		draw();
	}
	if (!all.length) replace(main, element('div', {class: 'title'}, element('h1', {}, options.title), options.actions), explainEmpty(`No ${options.title.toLowerCase()} yet`, options.empty));
}

/** A button that deletes an object after a question. what: "the model x"; done is called afterwards. */
export function deleteButton(what, path, consequence, done) {
	return element('button', {type: 'button', class: 'quiet', 'aria-label': `Delete ${what}`, onclick: async event => {
		const button = event.currentTarget;
		if (!await ask(`Delete ${what}?`, 'Delete', element('p', {}, consequence), true)) return;
		button.disabled = true;
		try {
			await remove(path);
			done();
		} catch (error) {
			button.disabled = false;
			ask('Not deleted', 'Close', message(error));
		}
	}}, 'Delete');
}

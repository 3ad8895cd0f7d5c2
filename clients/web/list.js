/* Long lists: pages are loaded in turn, rows are drawn only where they can be seen. */
import {element, oncePerFrame, replace} from './dom.js';
import {pages, remove} from './api.js';
import {ask, explainEmpty, explainError, message} from './notice.js';
import {count} from './format.js';

const ROW = 36, BEYOND = 10; /* pixels of a row; rows drawn above and below the window */

/** A table of fixed rows. columns: [{title, cell: row => text or node, number, wide}]. Returns {node, set(rows)}. */
export function rowTable(columns, signal) {
	const body = element('tbody'), top = element('tr', {'aria-hidden': true}), bottom = element('tr', {'aria-hidden': true});
	const node = element('table', {class: 'rows'}, element('thead', {}, element('tr', {},
		columns.map(column => element('th', {scope: 'col', class: column.number ? 'number' : null}, column.title)))), body);
	let rows = [], from = -1, to = -1;

	function draw(force) {
		const above = -body.getBoundingClientRect().top, first = Math.max(0, Math.floor(above / ROW) - BEYOND);
		const last = Math.min(rows.length, Math.ceil((above + innerHeight) / ROW) + BEYOND);
		if (!force && first === from && last === to) return;
		[from, to] = [first, Math.max(first, last)];
		top.style.height = `${from * ROW}px`;
		bottom.style.height = `${(rows.length - to) * ROW}px`;
		replace(body, top, rows.slice(from, to).map(row => element('tr', {}, columns.map(column =>
			element('td', {class: column.number ? 'number' : column.wide ? 'wide' : null, 'data-title': column.title}, column.cell(row))))), bottom);
	}

	const soon = oncePerFrame(() => draw(false));
	addEventListener('scroll', soon, {signal, passive: true});
	addEventListener('resize', soon, {signal});
	return {node, set(list) { rows = list; node.setAttribute('aria-rowcount', list.length + 1); draw(true); }};
}

/** Show a list of the service with a search field.
 * options: title, path, query, columns, words: row => searched text, empty: nodes, actions: nodes beside the title. */
export async function showList(main, {signal}, options) {
	const table = rowTable(options.columns, signal), all = [], note = element('p', {class: 'note', role: 'status'});
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
	return {forget(row) { all.splice(all.indexOf(row), 1); draw(); }};
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

export {explainError};

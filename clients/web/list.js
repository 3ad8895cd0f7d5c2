/* Long lists: pages are loaded in turn, rows are drawn only where they can be seen. */
import {element, oncePerFrame, replace, scrollBox} from './dom.js';
import {pages, post, remove, repeat} from './api.js';
import {ask, explainEmpty, tell} from './notice.js';
import {count} from './format.js';

const ROW = 36, BEYOND = 10; /* pixels of a row; rows drawn above and below the window */
const CHANGING = ['queued', 'running', 'validating', 'in_progress', 'finalizing', 'cancelling'];

/** True while the status of a job, an evaluation or a batch changes by itself. */
export function changes(row) {
	return CHANGING.includes(row.status);
}

export function status(row) {
	return element('span', {class: `status ${row.status}`}, row.status.replaceAll('_', ' '));
}

/** A table of fixed rows. columns: [{title, cell: row => text or node, number, wide}]. Returns {node, set(rows), renew(row)}:
 * renew() draws the cells of a changed row whose text is another one. */
export function rowTable(columns, signal) {
	const body = element('tbody'), top = element('tr', {'aria-hidden': true}), bottom = element('tr', {'aria-hidden': true});
	const node = element('table', {class: 'rows'}, element('thead', {}, element('tr', {},
		columns.map(column => element('th', {scope: 'col', class: column.number ? 'number' : null}, column.title)))), body);
	const drawn = new Map(); /* elements by row; an element stays, so that its controls keep the focus */
	let rows = [], from = -1, to = -1;

	const cellOf = (column, row) => element('td', {class: column.number ? 'number' : column.wide ? 'wide' : null, 'data-title': column.title}, column.cell(row));
	const rowOf = row => element('tr', {}, columns.map(column => cellOf(column, row)));

	function renew(row) {
		const shown = drawn.get(row);
		if (shown) columns.forEach((column, i) => {
			const old = shown.cells[i], cell = cellOf(column, row), focused = old.contains(document.activeElement);
			if (cell.textContent === old.textContent) return;
			old.replaceWith(cell);
			if (focused && cell.querySelector('a, button')) cell.querySelector('a, button').focus();
		});
	}

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
	return {node, renew, set(list) { rows = list; node.setAttribute('aria-rowcount', list.length + 1); draw(true); }};
}

/** Show a list of the service with a search field. Rows that change by themselves are read again until they have ended.
 * options: title, path, query, columns, words: row => searched text, empty: nodes, actions: nodes beside the title.
 * Further arguments of a column's cell(): forget(row) takes a row out of the list, renew(row, fresh) changes it. */
export async function showList(main, {signal}, options) {
	const forget = row => { if (all.includes(row)) all.splice(all.indexOf(row), 1); draw(); };
	const renew = (row, fresh) => { table.renew(Object.assign(row, fresh)); draw(); };
	const table = rowTable(options.columns.map(column => ({...column, cell: row => column.cell(row, forget, renew)})), signal), all = [], note = element('p', {class: 'note', role: 'status'});
	const search = element('input', {type: 'search', placeholder: 'Search', 'aria-label': `Search ${options.title}`, oninput: () => draw()});
	const draw = () => {
		const text = search.value.trim().toLowerCase(), found = text ? all.filter(row => options.words(row).toLowerCase().includes(text)) : all;
		table.set(found);
		const said = text ? `${count(found.length)} of ${count(all.length)}` : `${count(all.length)} in all`;
		if (note.textContent !== said) note.textContent = said;
	};

	/* The row at which a page ended was deleted before the next page was read: true. */
	const again = error => {
		if (error.status === 404 && error.param === 'after') return true;
		throw error;
	};

	/* Read pages until every changing row was seen. Remove rows that no page has. */
	async function refresh() {
		const left = new Map(all.filter(changes).map(row => [row.id, row]));
		for await (const page of pages(options.path, options.query, signal)) {
			for (const fresh of page.filter(each => left.has(each.id))) {
				table.renew(Object.assign(left.get(fresh.id), fresh));
				left.delete(fresh.id);
			}
			if (!left.size) break;
		}
		left.forEach(forget);
		draw();
		return table.node.isConnected && all.some(changes);
	}

	replace(main, element('div', {class: 'title'}, element('h1', {}, options.title), options.actions, search), note, scrollBox(options.title, table.node));
	for await (const page of pages(options.path, options.query, signal)) {
		if (signal.aborted) return;
		all.push(...page);
		draw();
	}
	if (!all.length) replace(main, element('div', {class: 'title'}, element('h1', {}, options.title), options.actions), explainEmpty(`No ${options.title.toLowerCase()} yet`, options.empty));
	else if (all.some(changes)) repeat(() => refresh().catch(again), signal);
}

/** A button that asks before it acts. done gets the answer of call(). harmless: nothing is lost. */
export function decideButton(verb, what, consequence, call, done, harmless) {
	return element('button', {type: 'button', class: 'quiet', 'aria-label': `${verb} ${what}`, onclick: async event => {
		const button = event.currentTarget;
		if (!await ask(`${verb} ${what}?`, verb, element('p', {}, consequence), !harmless)) return;
		button.disabled = true;
		try {
			await done(await call());
		} catch (error) {
			button.disabled = false;
			if (error.name !== 'AbortError') tell(error);
		}
	}}, verb);
}

/** A button that deletes an object after a question. what: "the model x"; done is called afterwards. */
export function deleteButton(what, path, consequence, done) {
	return decideButton('Delete', what, consequence, () => remove(path), done);
}

/** Likewise, a button that cancels a job, an evaluation or a batch; done gets the object. */
export function stopButton(what, path, consequence, done) {
	return decideButton('Stop', what, consequence, () => post(`${path}/cancel`), done);
}

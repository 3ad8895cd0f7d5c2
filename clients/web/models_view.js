/* Models: a list, and one model with its files, its weights' type and what can be done with it. */
import {element, facts, replace, save} from './dom.js';
import {address, get, getKey, path, post, send} from './api.js';
import {deleteButton, showList} from './list.js';
import {act} from './notice.js';
import {count, NONE, short, size, time} from './format.js';

const link = id => element('a', {href: `#/models/${encodeURIComponent(id)}`}, id);

function showAll(main, route) {
	return showList(main, route, {
		title: 'Models', path: 'v1/models', words: row => `${row.id} ${row.additive.architecture || ''}`,
		columns: [
			{title: 'Name', wide: true, cell: row => link(row.id)},
			{title: 'Architecture', cell: row => row.additive.damaged ? element('strong', {class: 'bad'}, 'damaged') : row.additive.architecture},
			{title: 'Parameters', number: true, cell: row => short(row.additive.parameters)},
			{title: 'State of a session', number: true, cell: row => size(row.additive.state_bytes)},
			{title: 'Loaded', cell: row => row.additive.loaded ? row.additive.dtype : NONE},
			{title: 'Created', cell: row => time(row.created)},
			{title: '', cell: (row, forget) => deleteButton(`the model ${row.id}`, path('v1/models', row.id), 'Its weights are removed from the disk. While a session uses it, it cannot be deleted.', () => forget(row))},
		],
		empty: element('p', {}, element('a', {class: 'button primary', href: '#/jobs/new'}, 'Train one'), ' or import a folder with ', element('code', {}, 'additive models push'), '.'),
	});
}

/* Files are fetched with the key, which a link cannot carry. */
async function download(model, name) {
	const where = path('v1/models', model, 'files', name);
	if (!getKey()) {
		element('a', {href: address(where), download: name}).click();
		return;
	}
	save(name, '', await (await send('GET', where)).blob());
}

async function showOne(main, route, id) {
	const where = path('v1/models', id);
	const [model, files] = await Promise.all([get(where, null, route), get(`${where}/files`, null, route)]), about = model.additive;
	const again = () => showOne(main, route, id).catch(() => {});
	const dtype = element('select', {'aria-label': 'Type of the weights'}, ['fp32', 'bf16', 'int8'].map(name => element('option', {selected: name === about.dtype}, name)));
	const rows = [['Architecture', about.architecture], ['Parameters', count(about.parameters)], ['Tokenizer', about.tokenizer && `${about.tokenizer.type}, ${count(about.tokenizer.vocab_size)} tokens`],
		['Positions', about.n_positions === null ? 'no limit' : count(about.n_positions)], ['State of a session', size(about.state_bytes)], ['Weights in use', about.loaded ? `${about.dtype} on ${about.backend}` : 'not loaded'],
		['Project', about.project || 'default'], ['Created', time(model.created)]];
	replace(main, element('div', {class: 'title'}, element('h1', {}, id),
		element('a', {class: 'button primary', href: `#/play?model=${encodeURIComponent(id)}`}, 'Talk to it'),
		element('a', {class: 'button', href: `#/explain?model=${encodeURIComponent(id)}`}, 'Explain it'),
		element('a', {class: 'button', href: `#/jobs/new?model=${encodeURIComponent(id)}`}, 'Train it further')),
	facts(rows),
	element('p', {class: 'buttons'}, dtype,
		element('button', {type: 'button', onclick: event => act(event.currentTarget, () => post(`${where}/load`, {dtype: dtype.value}).then(again))}, about.loaded ? 'Load as this type' : 'Load'),
		about.loaded ? element('button', {type: 'button', onclick: event => act(event.currentTarget, () => post(`${where}/unload`).then(again))}, 'Unload') : null,
		deleteButton(`the model ${id}`, where, 'Its weights are removed from the disk. While a session uses it, it cannot be deleted.', () => { location.hash = '#/models'; })),
	element('h2', {}, 'Files'), element('table', {}, element('thead', {}, element('tr', {}, element('th', {scope: 'col'}, 'Name'), element('th', {scope: 'col', class: 'number'}, 'Size'), element('th', {}))),
		element('tbody', {}, files.data.map(file => element('tr', {}, element('td', {}, file.name), element('td', {class: 'number'}, size(file.bytes)),
			element('td', {}, element('button', {type: 'button', class: 'quiet', 'aria-label': `Save ${file.name}`, onclick: event => act(event.currentTarget, () => download(id, file.name))}, 'Save')))))),
	element('details', {}, element('summary', {}, 'Configuration'), element('pre', {}, JSON.stringify(about.config, null, 2))));
}

export function show(main, route) {
	return route.parts.length ? showOne(main, route, route.parts[0]) : showAll(main, route);
}

/* Models: a list, the import of one, and one model with its files, its weights' type and what can be done with it. */
import {element, facts, goTo, replace, scrollBox} from './dom.js';
import {get, path, post, upload} from './api.js';
import {fields, openapi} from './form.js';
import {deleteButton, showList} from './list.js';
import {act, explainError, message} from './notice.js';
import {rights} from './rights.js';
import {fileField, saveButton, sent} from './transfer.js';
import {count, NONE, short, size, time} from './format.js';

const link = id => element('a', {href: `#/models/${encodeURIComponent(id)}`}, id);

async function showAll(main, route) {
	const may = await rights(), deletes = may('delete', '/v1/models/{id}');
	await showList(main, route, {
		title: 'Models', path: 'v1/models', words: row => `${row.id} ${row.additive.architecture || ''}`,
		actions: may('post', '/v1/models') && element('a', {class: 'button', href: '#/models?import=1'}, 'Import'),
		columns: [
			{title: 'Name', wide: true, cell: row => link(row.id)},
			{title: 'Architecture', cell: row => row.additive.damaged ? element('strong', {class: 'bad'}, 'damaged') : row.additive.architecture},
			{title: 'Parameters', number: true, cell: row => short(row.additive.parameters)},
			{title: 'State of a session', number: true, cell: row => size(row.additive.state_bytes)},
			{title: 'Loaded', cell: row => row.additive.loaded ? row.additive.dtype : NONE},
			{title: 'Created', cell: row => time(row.created)},
			{title: '', cell: (row, forget) => deletes && deleteButton(`the model ${row.id}`, path('v1/models', row.id), 'Its weights are removed from the disk. While a session uses it, it cannot be deleted.', () => forget(row))},
		],
		empty: element('p', {}, element('a', {class: 'button primary', href: '#/jobs/new'}, 'Train one'), ' or import the folder of one.'),
	});
}

/* Weights in several files, their index and checksums: an import takes them besides the names that an export has. */
const SHARDS = /\.safetensors(\.index\.json)?$|^SHA256SUMS$/;

async function showImport(main, route) {
	const {paths} = await openapi(), names = paths['/v1/models/{id}/files/{name}'].parameters.find(each => each.name === 'name').schema.enum;
	const form = fields(paths['/v1/models'].post.requestBody.content['multipart/form-data'].schema, ['id'], 'import'), id = form.node.querySelector('input');
	const start = element('button', {class: 'primary', disabled: true}, 'Import'), stop = element('button', {type: 'button', hidden: true, onclick: () => stopped.abort()}, 'Stop');
	const belongs = file => names.includes(file.name) || SHARDS.test(file.name);
	let chosen = [], archive = false, stopped = null;

	/* A single file of another name is an archive, or the service says what it is. */
	const drop = fileField({label: 'Files of the model', several: true, hint: 'Drop the folder of a model, its files or a tar archive of them here, or choose the files.', take: async (files, folder) => {
		archive = files.length === 1 && !belongs(files[0]);
		chosen = archive ? files : files.filter(belongs);
		start.disabled = !chosen.length;
		if (!chosen.length) throw new Error('None of these files belongs to a model.');
		id.value ||= (folder || (archive ? files[0].name.replace(/\.tar$/, '') : '')).slice(0, id.maxLength);
		const rest = files.filter(file => !chosen.includes(file));
		drop.say(`${chosen.map(file => file.name).join(', ')}: ${size(chosen.reduce((sum, file) => sum + file.size, 0))}.`, rest.length ? ` Left out: ${rest.map(file => file.name).join(', ')}.` : null);
	}});

	async function run() {
		const body = new FormData(), about = chosen.length === 1 ? chosen[0].name : `${chosen.length} files`;
		body.append('id', id.value);
		for (const file of chosen) body.append(archive ? 'archive' : 'file', file);
		stopped = new AbortController();
		stop.hidden = false;
		drop.input.disabled = true;
		try {
			const made = await upload('v1/models', body, {signal: stopped.signal, progress: (bytes, total) => drop.say(sent(about, bytes, total))});
			goTo(route, `#/models/${encodeURIComponent(made.id)}`);
		} catch (error) {
			drop.say(stopped.signal.aborted ? 'Stopped. Nothing was kept.' : form.refuse(error) ? `${about}: not imported.` : message(error));
		} finally {
			stop.hidden = true;
			drop.input.disabled = false;
		}
	}

	replace(main, element('div', {class: 'title'}, element('h1', {}, 'Import a model'), element('a', {class: 'button', href: '#/models'}, 'All models')),
		element('form', {onsubmit: event => { event.preventDefault(); act(start, run, form); }}, form.node, drop.node, element('p', {class: 'buttons'}, start, stop)));
}

async function drawFiles(node, where, route) {
	try {
		const files = await get(`${where}/files`, null, route);
		replace(node, element('h2', {}, 'Files'), scrollBox('Files', element('table', {}, element('thead', {}, element('tr', {}, element('th', {scope: 'col'}, 'Name'), element('th', {scope: 'col', class: 'number'}, 'Size'), element('th', {}))),
			element('tbody', {}, files.data.map(file => element('tr', {}, element('td', {}, file.name), element('td', {class: 'number'}, size(file.bytes)), element('td', {}, saveButton('Save', path(`${where}/files`, file.name), file.name))))))));
	} catch (error) {
		if (!route.signal.aborted) replace(node, element('h2', {}, 'Files'), explainError(error, () => drawFiles(node, where, route)));
	}
}

async function showOne(main, route, id) {
	const where = path('v1/models', id), files = element('section', {}, element('h2', {}, 'Files'), element('p', {class: 'loading'}, 'Loading\u2026'));
	const [model, may] = await Promise.all([get(where, null, route), rights()]), about = model.additive, loads = may('post', '/v1/models/{id}/load'), exports = may('get', '/v1/models/{id}/files'), deletes = may('delete', '/v1/models/{id}');
	const again = () => showOne(main, route, id).catch(() => {});
	const dtype = element('select', {'aria-label': 'Type of the weights'}, ['fp32', 'bf16', 'int8'].map(name => element('option', {selected: name === about.dtype}, name)));
	const rows = [['Architecture', about.architecture], ['Parameters', count(about.parameters)], ['Tokenizer', about.tokenizer && `${about.tokenizer.type}, ${count(about.tokenizer.vocab_size)} tokens`],
		['Positions', about.n_positions === null ? 'no limit' : count(about.n_positions)], ['State of a session', size(about.state_bytes)], ['Weights in use', about.loaded ? `${about.dtype} on ${about.backend}` : 'not loaded'],
		['Project', about.project || 'default'], ['Created', time(model.created)]];
	replace(main, element('div', {class: 'title'}, element('h1', {}, id),
		element('a', {class: 'button primary', href: `#/play?model=${encodeURIComponent(id)}`}, 'Talk to it'),
		element('a', {class: 'button', href: `#/explain?model=${encodeURIComponent(id)}`}, 'Explain it'),
		may('post', '/v1/fine_tuning/jobs') && element('a', {class: 'button', href: `#/jobs/new?model=${encodeURIComponent(id)}`}, 'Train it further'),
		may('post', '/v1/evaluations') && element('a', {class: 'button', href: `#/evaluations?model=${encodeURIComponent(id)}`}, 'Evaluate it')),
	facts(rows),
	element('p', {class: 'buttons'}, loads && [dtype,
		element('button', {type: 'button', onclick: event => act(event.currentTarget, () => post(`${where}/load`, {dtype: dtype.value}).then(again))}, about.loaded ? 'Load as this type' : 'Load'),
		about.loaded ? element('button', {type: 'button', onclick: event => act(event.currentTarget, () => post(`${where}/unload`).then(again))}, 'Unload') : null],
		deletes && deleteButton(`the model ${id}`, where, 'Its weights are removed from the disk. While a session uses it, it cannot be deleted.', () => goTo(route, '#/models')),
		loads && deletes ? null : element('span', {class: 'note'}, `The key in use may not ${loads ? '' : 'load, export or '}delete models.`)),
	exports ? files : null, element('details', {}, element('summary', {}, 'Configuration'), element('pre', {}, JSON.stringify(about.config, null, 2))));
	if (exports) drawFiles(files, where, route);
}

export function show(main, route) {
	return route.parts.length ? showOne(main, route, route.parts[0]) : route.query.has('import') ? showImport(main, route) : showAll(main, route);
}

/* Batches: a list, a form for a new one, and one batch as it runs. */
import {changing, element, facts, goTo, replace} from './dom.js';
import {all, get, path, post, repeat} from './api.js';
import {fields, schema} from './form.js';
import {fileChoice} from './files_view.js';
import {changes, deleteButton, showList, status, stopButton} from './list.js';
import {act, message} from './notice.js';
import {saveButton} from './transfer.js';
import {count, NONE, percent, time} from './format.js';

const WINDOW = '24h'; /* unless the reader says otherwise */

const outputs = row => [['Results', 'output'], ['Errors', 'error']].map(([title, kind]) => row[`${kind}_file_id`] && saveButton(title, path('v1/files', row[`${kind}_file_id`], 'content'), `${row.id}_${kind}.jsonl`));
const end = (row, deleted, stopped) => row.status === 'cancelling' ? null : changes(row) ? stopButton(`the batch ${row.id}`, path('v1/batches', row.id), 'Requests that have not run get no answer. The results so far are kept.', stopped)
	: deleteButton(`the batch ${row.id}`, path('v1/batches', row.id), 'Its files are kept.', deleted);

function showAll(main, route) {
	return showList(main, route, {
		title: 'Batches', path: 'v1/batches', words: row => `${row.id} ${row.endpoint} ${row.status}`, actions: element('a', {class: 'button primary', href: '#/batches/new'}, 'New batch'),
		columns: [
			{title: 'Batch', wide: true, cell: row => element('a', {href: `#/batches/${encodeURIComponent(row.id)}`}, row.id)},
			{title: 'Endpoint', cell: row => row.endpoint},
			{title: 'Status', cell: status},
			{title: 'Done', number: true, cell: ({request_counts: n}) => n.total ? percent((n.completed + n.failed) / n.total) : NONE},
			{title: 'Failed', number: true, cell: row => count(row.request_counts.failed)},
			{title: 'Created', cell: row => time(row.created_at)},
			{title: 'Files', cell: outputs},
			{title: '', cell: (row, forget, renew) => end(row, () => forget(row), fresh => renew(row, fresh))},
		],
		empty: element('p', {}, 'A batch runs the requests of a file while no other request does. ', element('a', {class: 'button primary', href: '#/batches/new'}, 'New batch')),
	});
}

async function showNew(main, route) {
	const [request, files] = await Promise.all([schema('BatchRequest'), all('v1/files', null, route.signal)]), {properties} = request;
	const form = fields({...request, properties: {...properties, completion_window: {...properties.completion_window, 'x-default': WINDOW}}}, ['endpoint', 'completion_window'], 'batch');
	const file = fileChoice('Input file', 'batch', files, route.query.get('file')), start = element('button', {class: 'primary'}, 'Run');
	file.select.required = true;
	replace(main, element('div', {class: 'title'}, element('h1', {}, 'New batch'), element('a', {class: 'button', href: '#/batches'}, 'All batches')), element('form', {class: 'spaced', onsubmit: event => {
		event.preventDefault();
		act(start, async () => {
			const made = await post('v1/batches', {input_file_id: file.select.value, completion_window: WINDOW, ...form.values()});
			goTo(route, `#/batches/${encodeURIComponent(made.id)}`);
		}, form);
	}}, element('div', {}, file.node), file.drop, element('p', {class: 'note'}, 'Each line of the file is a request: {"custom_id", "method": "POST", "url", "body"}.'), form.node, element('p', {class: 'buttons'}, start)));
}

async function showOne(main, route, id) {
	const where = path('v1/batches', id), change = changing(['title', 'state']);
	async function draw() {
		const row = await get(where, null, route), {total, completed, failed} = row.request_counts, {error} = row.additive;
		change('title', [row.status, row.output_file_id, row.error_file_id], () => element('div', {class: 'title'}, element('h1', {}, id), status(row), outputs(row), end(row, () => goTo(route, '#/batches'), draw)));
		change('state', row, () => [element('progress', {max: 1, value: total ? (completed + failed) / total : 0, 'aria-label': 'Requests done'}),
			facts([['Endpoint', row.endpoint], ['Requests', total ? count(total) : NONE], ['With a result', count(completed)], ['Failed', count(failed)], ['Input file', row.input_file_id],
				['Created', time(row.created_at)], [changes(row) ? 'Runs until' : 'Window', changes(row) ? time(row.expires_at) : row.completion_window]]),
			row.errors ? row.errors.data.map(each => element('p', {class: 'error'}, each.line ? `Line ${each.line}: ` : null, each.message)) : error ? message(error) : null]);
		return changes(row);
	}
	if (await draw()) repeat(draw, route.signal);
	replace(main, Object.values(change.parts));
}

export function show(main, route) {
	const [name] = route.parts;
	return name === undefined ? showAll(main, route) : name === 'new' ? showNew(main, route) : showOne(main, route, name);
}

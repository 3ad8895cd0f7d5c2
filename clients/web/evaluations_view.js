/* Evaluations: start one, and the list with its results. */
import {element} from './dom.js';
import {all, path, post} from './api.js';
import {choice} from './form.js';
import {deleteButton, showList} from './list.js';
import {act} from './notice.js';
import {NONE, percent, significant, time} from './format.js';

export async function show(main, route) {
	const [models, files] = await Promise.all([all('v1/models', null, route.signal), all('v1/files', null, route.signal)]);
	const model = choice('Model', models, null, row => row.id), file = choice('File', files, null, row => row.filename);
	const form = element('form', {class: 'buttons', onsubmit: event => {
		event.preventDefault();
		act(event.submitter, () => post('v1/evaluations', {model: model.select.value, file: file.select.value}).then(() => show(main, route)));
	}}, model.node, file.node, element('button', {class: 'primary', disabled: !models.length || !files.length}, 'Evaluate'));
	await showList(main, route, {
		title: 'Evaluations', path: 'v1/evaluations', words: row => `${row.model} ${row.file} ${row.status}`, actions: form,
		columns: [
			{title: 'Model', wide: true, cell: row => row.model},
			{title: 'File', cell: row => (files.find(f => f.id === row.file) || {filename: row.file}).filename},
			{title: 'Status', cell: row => element('span', {class: `status ${row.status}`}, row.status)},
			{title: 'Done', number: true, cell: row => row.progress.total_tokens ? percent(row.progress.tokens / row.progress.total_tokens) : NONE},
			{title: 'Perplexity', number: true, cell: row => significant(row.result && row.result.perplexity)},
			{title: 'Created', cell: row => time(row.created_at)},
			{title: '', cell: (row, forget) => deleteButton('this evaluation', path('v1/evaluations', row.id), 'Its report is lost.', () => forget(row))},
		],
		empty: element('p', {}, 'An evaluation measures a model on every token of a file.'),
	});
}

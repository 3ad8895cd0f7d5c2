/* Files: upload, list, delete, train on one; one file with its statistics. */
import {element, facts, goTo, replace, scrollBox} from './dom.js';
import {all, get, path, upload} from './api.js';
import {choice} from './form.js';
import {deleteButton, showList} from './list.js';
import {explainError} from './notice.js';
import {fileField, saveButton, sent} from './transfer.js';
import {count, percent, size, time} from './format.js';

/* A field that takes a file by choice or by drop, and uploads it. done(file) gets the service's object. */
function dropField(purpose, done) {
	const field = fileField({label: 'File to upload', hint: 'Drop a file here, or choose one.', take: async ([file]) => {
		const form = new FormData();
		form.append('purpose', purpose);
		form.append('file', file);
		const made = await upload('v1/files', form, {progress: (bytes, total) => field.say(sent(file.name, bytes, total))});
		field.say(`${made.filename} is uploaded.`);
		done(made);
	}});
	return field.node;
}

/** A choice of one of the `files` with this purpose, and a field that uploads another one and chooses it; changed() is called
 * then. Returns {node, select, drop}. */
export function fileChoice(label, purpose, files, chosen, changed) {
	const {node, select} = choice(label, files.filter(row => row.purpose === purpose), chosen, row => `${row.filename} (${time(row.created_at)})`, 'choose, or drop one below');
	const drop = dropField(purpose, made => {
		select.append(element('option', {value: made.id}, made.filename));
		select.value = made.id;
		if (changed) changed();
	});
	return {node, select, drop};
}

/* The next step with a file of this purpose. */
const use = row => row.purpose === 'fine-tune' ? element('a', {href: `#/jobs/new?file=${encodeURIComponent(row.id)}`}, 'Train on it')
	: row.purpose === 'batch' ? element('a', {href: `#/batches/new?file=${encodeURIComponent(row.id)}`}, 'Run it') : null;

const saves = row => saveButton('Save', path('v1/files', row.id, 'content'), row.filename);
const deletes = (row, done) => deleteButton(`the file ${row.filename}`, path('v1/files', row.id), 'A file that a job still reads cannot be deleted.', done);

async function showAll(main, route) {
	const again = () => route.signal.aborted || showAll(main, route);
	await showList(main, route, {
		title: 'Files', path: 'v1/files', words: row => `${row.filename} ${row.id} ${row.purpose}`,
		actions: dropField('fine-tune', again),
		columns: [
			{title: 'Name', wide: true, cell: row => element('a', {href: `#/files/${encodeURIComponent(row.id)}`}, row.filename)},
			{title: 'Purpose', cell: row => row.purpose},
			{title: 'Size', number: true, cell: row => size(row.bytes)},
			{title: 'Uploaded', cell: row => time(row.created_at)},
			{title: '', cell: (row, forget) => [use(row), saves(row), deletes(row, () => forget(row))]},
		],
		empty: element('p', {}, 'Plain text, JSON lines with messages or prompts, labelled texts: the service recognises what it is.'),
	});
}

const PARTS = [['min', 'Shortest'], ['p50', '50 %'], ['p90', '90 %'], ['p99', '99 %'], ['max', 'Longest']];
const heads = titles => element('thead', {}, element('tr', {}, titles.map((title, i) => element('th', {scope: 'col', class: i ? 'number' : null}, title))));
const line = (name, values) => element('tr', {}, element('td', {}, name), values.map(value => element('td', {class: 'number'}, value)));

function statistics(s) {
	const lengths = name => line(`Length in ${name}`, PARTS.map(([part]) => count(s.lengths[name] && s.lengths[name][part])));
	return [facts([['Kind', s.kind], ['Documents', count(s.documents)], ['Characters', count(s.characters)], [`Tokens (${s.tokenizer})`, count(s.tokens)],
		['Duplicates', `${s.duplicates.estimated ? 'about ' : ''}${count(s.duplicates.count)}`], ['Lines that are not UTF-8', count(s.invalid_utf8_lines)]]),
	scrollBox('Lengths and scripts', element('table', {}, heads(['Documents', ...PARTS.map(([, title]) => title)]), element('tbody', {}, lengths('characters'), lengths('tokens'))),
		element('table', {}, heads(['Script', 'Characters', 'Share']), element('tbody', {}, s.scripts.map(each => line(each.script, [count(each.characters), percent(each.share)])))))];
}

/* The statistics of a file, and a choice of the model whose tokenizer counts, which the address names. */
async function drawStatistics(node, where, route) {
	const models = await all('v1/models', null, route.signal), out = element('div'), model = choice('Tokenizer of', models, route.query.get('model'), row => row.id, 'no model: tokens are bytes');
	let asked = 0;
	async function draw() {
		const mine = ++asked; /* an answer for an earlier choice is not shown */
		let drawn;
		replace(out, element('p', {class: 'loading'}, 'The service reads the file\u2026'));
		try {
			drawn = statistics(await get(`${where}/statistics`, {model: model.select.value}, {signal: route.signal}));
		} catch (error) {
			drawn = explainError(error, draw);
		}
		if (!route.signal.aborted && mine === asked) replace(out, drawn);
	}
	model.select.addEventListener('change', () => {
		history.replaceState(null, '', `#/files/${encodeURIComponent(route.parts[0])}${model.select.value ? `?model=${encodeURIComponent(model.select.value)}` : ''}`);
		draw();
	});
	replace(node, element('h2', {}, 'Statistics'), model.node, out);
	await draw();
}

async function showOne(main, route, id) {
	const where = path('v1/files', id), row = await get(where, null, route), node = element('section');
	replace(main, element('div', {class: 'title'}, element('h1', {}, row.filename), use(row), saves(row), deletes(row, () => goTo(route, '#/files'))),
		facts([['Purpose', row.purpose], ['Size', size(row.bytes)], ['Uploaded', time(row.created_at)]]), node);
	if (row.purpose === 'fine-tune') await drawStatistics(node, where, route);
}

export function show(main, route) {
	return route.parts.length ? showOne(main, route, route.parts[0]) : showAll(main, route);
}

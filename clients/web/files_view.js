/* Files: upload, list, delete, train on one. */
import {element} from './dom.js';
import {path, upload} from './api.js';
import {choice} from './form.js';
import {deleteButton, showList} from './list.js';
import {fileField, saveButton, sent} from './transfer.js';
import {size, time} from './format.js';

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

export async function show(main, route) {
	const again = () => route.signal.aborted || show(main, route);
	await showList(main, route, {
		title: 'Files', path: 'v1/files', words: row => `${row.filename} ${row.id} ${row.purpose}`,
		actions: dropField('fine-tune', again),
		columns: [
			{title: 'Name', wide: true, cell: row => row.filename},
			{title: 'Purpose', cell: row => row.purpose},
			{title: 'Size', number: true, cell: row => size(row.bytes)},
			{title: 'Uploaded', cell: row => time(row.created_at)},
			{title: '', cell: (row, forget) => [use(row), saveButton('Save', path('v1/files', row.id, 'content'), row.filename),
				deleteButton(`the file ${row.filename}`, path('v1/files', row.id), 'A file that a job still reads cannot be deleted.', () => forget(row))]},
		],
		empty: element('p', {}, 'Plain text, JSON lines with messages or prompts, labelled texts: the service recognises what it is.'),
	});
}

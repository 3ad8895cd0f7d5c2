/* Files: upload, list, delete, train on one. */
import {element} from './dom.js';
import {path, upload} from './api.js';
import {deleteButton, showList} from './list.js';
import {message} from './notice.js';
import {percent, size, time} from './format.js';

/** A field that takes a file by choice or by drop, and uploads it. done(file) gets the service's object. */
export function dropField(purpose, done) {
	const note = element('span', {role: 'status'}, 'Drop a file here, or choose one.');
	const input = element('input', {type: 'file', class: 'hidden-input', 'aria-label': 'File to upload', onchange: () => take(input.files[0])});
	const field = element('label', {class: 'drop', ondragover: event => { event.preventDefault(); field.classList.add('over'); },
		ondragleave: () => field.classList.remove('over'),
		ondrop: event => { event.preventDefault(); field.classList.remove('over'); take(event.dataTransfer.files[0]); }}, input, note);

	async function take(file) {
		if (!file) return;
		input.disabled = true;
		try {
			const made = await upload(file, {purpose}, share => { note.textContent = `${file.name}: ${percent(share)} of ${size(file.size)}`; });
			note.textContent = `${made.filename} is uploaded.`;
			done(made);
		} catch (error) {
			note.replaceChildren(message(error));
		} finally {
			input.disabled = false;
			input.value = '';
		}
	}
	return field;
}

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
			{title: '', cell: (row, forget) => [element('a', {href: `#/jobs/new?file=${encodeURIComponent(row.id)}`}, 'Train on it'), ' ',
				deleteButton(`the file ${row.filename}`, path('v1/files', row.id), 'A file that a job still reads cannot be deleted.', () => forget(row))]},
		],
		empty: element('p', {}, 'Plain text, JSON lines with messages or prompts, labelled texts: the service recognises what it is.'),
	});
}

/* Upload and download files. The browser reads and writes them; no script holds their content. */
import {element, replace, save} from './dom.js';
import {address, getKey, send} from './api.js';
import {message, tell} from './notice.js';
import {size} from './format.js';

/* The files of a drop. For a folder: the files directly in it, and its name. */
async function filesOf(transfer) {
	const folder = [...transfer.items].map(item => item.webkitGetAsEntry()).find(entry => entry && entry.isDirectory);
	if (!folder) return {files: [...transfer.files], folder: ''};
	const reader = folder.createReader(), found = [];
	for (let some; !some || some.length;) {
		some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
		found.push(...some.filter(entry => entry.isFile));
	}
	return {files: await Promise.all(found.map(entry => new Promise((resolve, reject) => { entry.file(resolve, reject); }))), folder: folder.name};
}

/** A field that takes a file by choice or by drop, or several files and a folder. take(files, folder's name)
 * returns a promise: the field takes nothing more until its end, and shows its error. Returns {node, input, say(...content)}. */
export function fileField({label, hint, several, take}) {
	const note = element('span', {role: 'status'}, hint), say = (...content) => replace(note, content);
	const input = element('input', {type: 'file', class: 'hidden-input', multiple: several, 'aria-label': label, onchange: () => begin({files: [...input.files], folder: ''})});
	const node = element('label', {class: 'drop', ondragover: event => { event.preventDefault(); node.classList.add('over'); },
		ondragleave: () => node.classList.remove('over'),
		ondrop: event => { event.preventDefault(); node.classList.remove('over'); begin(filesOf(event.dataTransfer)); }}, input, note);

	async function begin(source) {
		try {
			const {files, folder} = await source;
			if (input.disabled || (!files.length && !folder)) return;
			if (!several && (folder || files.length > 1)) throw new Error('One file at a time.');
			input.disabled = true;
			await take(files, folder).finally(() => { input.disabled = false; input.value = ''; });
		} catch (error) {
			say(message(error));
		}
	}
	return {node, input, say};
}

/** Text about an upload, for its progress. */
export function sent(name, bytes, total) {
	return bytes < total ? `${name}: ${size(bytes)} of ${size(total)}` : `${name} is sent. The service reads it\u2026`;
}

/* A link cannot carry the key. Without one it lets the browser write a file of any size as it comes, but shows no error. */
async function download(where, name, small) {
	if (!getKey() && !small) element('a', {href: address(where), download: name}).click();
	else save(name, '', await (await send('GET', where)).blob());
}

/** A button that saves what GET of this path answers. small: an error is shown on the page, with a key or without. */
export function saveButton(title, where, name, {small, kind = 'quiet'} = {}) {
	return element('button', {type: 'button', class: kind, 'aria-label': `Save ${name}`, onclick: async event => {
		const button = event.currentTarget;
		button.disabled = true;
		await download(where, name, small).catch(tell);
		button.disabled = false;
	}}, title);
}

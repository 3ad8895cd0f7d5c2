/* Sessions: a list, the import of one, and one session with its tree of forks and snapshots. */
import {element, facts, goTo, replace} from './dom.js';
import {all, get, path, post, upload} from './api.js';
import {choice} from './form.js';
import {decideButton, deleteButton, showList} from './list.js';
import {act} from './notice.js';
import {fileField, saveButton, sent} from './transfer.js';
import {count, duration, NONE, plural, size, time} from './format.js';

const link = id => element('a', {href: `#/sessions/${encodeURIComponent(id)}`}, id);

async function showAll(main, route) {
	await showList(main, route, {
		title: 'Sessions', path: 'v1/sessions', words: row => `${row.id} ${row.model}`, actions: element('a', {class: 'button', href: '#/sessions?import=1'}, 'Import'),
		columns: [
			{title: 'Session', wide: true, cell: row => link(row.id)},
			{title: 'Model', wide: true, cell: row => row.model},
			{title: 'Tokens', number: true, cell: row => count(row.tokens)},
			{title: 'State', number: true, cell: row => row.damaged ? element('strong', {class: 'bad'}, 'damaged') : size(row.state_bytes)},
			{title: 'Kept', cell: row => row.durable ? 'on disk' : 'in memory'},
			{title: 'Created', cell: row => time(row.created)},
			{title: '', cell: (row, forget) => deleteButton(`the session ${row.id}`, path('v1/sessions', row.id), 'Its state and its snapshots are lost.', () => forget(row))},
		],
		empty: element('p', {}, element('a', {class: 'button primary', href: '#/play'}, 'Start a conversation'), ' in the playground.'),
	});
}

async function showImport(main, route) {
	const model = choice('Model', await all('v1/models', null, route.signal), null, row => row.id);
	const drop = fileField({label: 'State of a session', hint: 'Drop the saved state of a session here, or choose it. It belongs to the model that it was made with.', take: async ([file]) => {
		const made = await upload('v1/sessions', file, {query: {model: model.select.value}, progress: (bytes, total) => drop.say(sent(file.name, bytes, total))});
		goTo(route, `#/sessions/${encodeURIComponent(made.id)}`);
	}});
	replace(main, element('div', {class: 'title'}, element('h1', {}, 'Import a session'), element('a', {class: 'button', href: '#/sessions'}, 'All sessions')), model.node, drop.node);
}

/* A fork may have read on since: parent.tokens is where it was made, and that is a snapshot's place if it began at one. */
const origin = ({snapshot, tokens}) => snapshot ? `forked at the snapshot of ${plural(tokens, 'token')}` : `forked after ${plural(tokens, 'token')}`;

function drawBranch(branch, children, session, again) {
	const marks = branch.snapshots.map(snapshot => element('li', {}, element('span', {class: 'mark'}, snapshot.name || snapshot.id), ` at ${plural(snapshot.tokens, 'token')}, ${time(snapshot.created_at)} `,
		branch.id === session ? decideButton('Roll back', `to ${snapshot.name || snapshot.id}`, 'What the session has read since then is lost, unless a later snapshot has it.', () => post(path('v1/sessions', session, 'rollback'), {snapshot: snapshot.id}), again) : null, ' ',
		element('button', {type: 'button', class: 'quiet', onclick: event => act(event.currentTarget, () => post(path('v1/sessions', branch.id, 'fork'), {snapshot: snapshot.id}).then(again))}, 'Fork here')));
	return element('li', {}, branch.id === session ? element('strong', {}, branch.id) : link(branch.id), `, ${plural(branch.tokens, 'token')}`,
		branch.parent ? ` (${origin(branch.parent)})` : null,
		element('ul', {class: 'tree'}, marks, children.filter(child => child.parent && child.parent.session === branch.id).map(child => drawBranch(child, children, session, again))));
}

async function showOne(main, route, id) {
	const where = path('v1/sessions', id), again = () => showOne(main, route, id).catch(() => {});
	const [session, tree] = await Promise.all([get(where, null, route), get(`${where}/tree`, null, route)]), root = tree.data.find(branch => branch.id === id);
	const name = element('input', {placeholder: 'Name', 'aria-label': 'Name of the snapshot', maxlength: 64});
	replace(main, element('div', {class: 'title'}, element('h1', {}, id), element('a', {class: 'button primary', href: `#/play?session=${encodeURIComponent(id)}`}, 'Continue')),
		facts([['Model', session.model], ['Tokens read', count(session.tokens)], ['State', size(session.state_bytes)], ['Kept', session.durable ? 'on disk' : 'in memory'],
			['Ends', session.expires_at ? `in ${duration(session.expires_at - Date.now() / 1000)}` : NONE]]),
		element('form', {class: 'buttons', onsubmit: event => { event.preventDefault(); act(event.submitter, () => post(`${where}/snapshots`, name.value ? {name: name.value} : {}).then(again)); }}, name, element('button', {}, 'Take a snapshot'),
			element('button', {type: 'button', onclick: event => act(event.currentTarget, () => post(`${where}/fork`, {}).then(again))}, 'Fork'),
			saveButton('Save its state', `${where}/state`, `${id}.state`, {small: true, kind: null}),
			deleteButton(`the session ${id}`, where, 'Its state and its snapshots are lost.', () => goTo(route, '#/sessions'))),
		element('h2', {}, 'Tree'), element('ul', {class: 'tree'}, root ? drawBranch(root, tree.data, id, again) : element('li', {}, NONE)),
		tree.has_more ? element('p', {class: 'note'}, 'The tree has more branches than are shown.') : null);
}

export function show(main, route) {
	return route.parts.length ? showOne(main, route, route.parts[0]) : route.query.has('import') ? showImport(main, route) : showAll(main, route);
}

/* Operate: the disk, the keys, the service's metrics. Parts that the key in use may not see say so. */
import {copyText, element, facts, replace, scrollBox} from './dom.js';
import {all, get, getKey, path, post, send, setKey} from './api.js';
import {fields, schema} from './form.js';
import {deleteButton} from './list.js';
import {act, explainError} from './notice.js';
import {count, NONE, size, time} from './format.js';

async function storage(route) {
	const s = await get('v1/storage', null, route);
	return [facts([['In the data folder', size(s.data_bytes)], ['Limit', s.budget_bytes ? size(s.budget_bytes) : 'none'], ['Free on the disk', size(s.disk_free_bytes)]]),
		element('table', {}, element('thead', {}, element('tr', {}, element('th', {scope: 'col'}, 'Kind'), element('th', {scope: 'col', class: 'number'}, 'Number'), element('th', {scope: 'col', class: 'number'}, 'Size'))),
			element('tbody', {}, s.kinds.map(kind => element('tr', {}, element('td', {}, kind.kind), element('td', {class: 'number'}, count(kind.count)), element('td', {class: 'number'}, size(kind.bytes)))))),
		[...s.damaged.map(x => `${x.kind} ${x.id}: ${x.problem}`), ...s.lost.map(x => `${x.kind} ${x.name} belongs to nothing, ${size(x.bytes)}`)].map(text => element('p', {class: 'error'}, text))];
}

async function keys(route, again) {
	const form = fields(await schema('KeyCreateRequest'), ['name', 'role', 'project', 'requests_per_minute', 'tokens_per_minute', 'max_sessions', 'max_jobs', 'weight'], 'key'), rows = await all('v1/keys', null, route.signal);
	const first = !rows.length && !getKey(); /* each request after it needs a key */
	if (!rows.length) form.node.querySelector('#key-role').value = 'admin'; /* no other can be the first */
	const take = secret => { if (first) setKey(secret, false); return again(); };
	const shown = element('div', {role: 'status'}); /* stays until the reader has the key */
	const create = event => {
		event.preventDefault();
		act(event.submitter, async () => {
			const made = await post('v1/keys', form.values());
			replace(shown, element('p', {}, 'The new key. It is shown only now.', first ? ' The service now answers only requests with a key; \u201cI have it\u201d lets this page use this one until its tab is closed.' : null), element('pre', {}, made.secret), element('p', {class: 'buttons'},
				element('button', {type: 'button', onclick: event => act(event.currentTarget, () => copyText(made.secret))}, 'Copy it'),
				element('button', {type: 'button', onclick: () => take(made.secret)}, 'I have it')));
		});
	};
	return [scrollBox('Keys', element('table', {}, element('thead', {}, element('tr', {}, ['Name', 'Role', 'Project', 'Created', 'Last used', 'State', ''].map(title => element('th', {scope: 'col'}, title)))),
		element('tbody', {}, rows.map(key => element('tr', {}, [key.name, key.role, key.project, time(key.created_at), time(key.last_used_at), key.revoked_at ? 'revoked' : key.expires_at ? `until ${time(key.expires_at)}` : 'valid',
			key.revoked_at ? NONE : deleteButton(`the key ${key.name || key.id}`, path('v1/keys', key.id), 'Whoever uses it is refused from now on.', again)].map(cell => element('td', {}, cell))))))),
	element('details', {}, element('summary', {}, 'New key'), element('form', {onsubmit: create}, form.node, element('p', {class: 'buttons'}, element('button', {class: 'primary'}, 'Create'))), shown)];
}

/* Samples of the text format without histograms, largest groups first as they come. */
async function metrics(route) {
	const text = await (await send('GET', 'metrics', route)).text(), help = new Map(), rows = [];
	for (const line of text.split('\n')) {
		const said = line.match(/^# HELP (\S+) (.*)$/), sample = line.match(/^(additive_[a-z0-9_]+)(\{.*\})? (\S+)$/);
		if (said) help.set(said[1], said[2]);
		else if (sample && !/_bucket$|quantile=/.test(sample[1] + (sample[2] || ''))) rows.push(sample);
	}
	return element('details', {}, element('summary', {}, `${count(rows.length)} values`), element('table', {}, element('tbody', {}, rows.map(([, name, labels, value]) =>
		element('tr', {title: help.get(name) || ''}, element('td', {}, name, labels ? element('small', {}, ` ${labels}`) : null), element('td', {class: 'number'}, value))))));
}

export async function show(main, route) {
	const part = async (title, make) => {
		const node = element('section', {}, element('h2', {}, title), element('p', {class: 'loading'}, 'Loading\u2026'));
		main.append(node);
		const draw = async () => {
			try {
				replace(node, element('h2', {}, title), await make(route, draw));
			} catch (error) {
				if (!route.signal.aborted) replace(node, element('h2', {}, title), explainError(error, draw));
			}
		};
		await draw();
	};
	replace(main, element('h1', {}, 'Operate'));
	await Promise.all([part('Storage', storage), part('Keys', keys), part('Metrics', metrics)]);
}

/* The playground: branches of a conversation side by side. Each generated token is coloured by its probability or by
 * what it read, shows its alternatives, and can be explained or forked at. */
import {element, oncePerFrame, quoted, replace, tokenCell, visibleToken} from './dom.js';
import {all, events, get, path, post} from './api.js';
import {forkBefore, isRenewable, makeBranch, questionFor, readBranch, renew, runTurn, scoreBranch, settleLate} from './branch.js';
import {choice, fields, schema} from './form.js';
import {drawExplanation} from './explanation.js';
import {explainAddress} from './explain_view.js';
import {act, explainEmpty, explainError, message} from './notice.js';
import {colour, strip} from './strip.js';
import {percent} from './format.js';

const SAMPLING = ['max_tokens', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'seed'];
const TOKENS = 200; /* generated in a turn unless the reader says otherwise */
const SCORED = 4096; /* longest text of an existing session that gets probabilities, which costs a forward pass over it */

/* Steps of probability; each has a colour and a line below the token. */
const LEVELS = [[0.5, 'p0'], [0.2, 'p1'], [0.05, 'p2'], [0.01, 'p3'], [0, 'p4']];
const kindOf = token => token.logprob === undefined || token.logprob === null ? 'given' : LEVELS.find(([least]) => Math.exp(token.logprob) >= least)[1];

export async function show(main, route) {
	const {query} = route, models = (await all('v1/models', null, route.signal)).filter(row => !row.additive.damaged);
	if (!models.length) {
		replace(main, element('h1', {}, 'Playground'), explainEmpty('There is no model yet', element('p', {}, 'Train one on a text of yours; a small one takes a minute.'), element('p', {}, element('a', {class: 'button primary', href: '#/jobs/new'}, 'Train a model'))));
		return;
	}
	const session = query.get('session') ? await get(path('v1/sessions', query.get('session')), null, route) : null;
	const model = choice('Model', models, session ? session.model : query.get('model'), row => row.id), {properties} = await schema('SessionGenerateRequest');
	const sampling = fields({properties: {...properties, max_tokens: {...properties.max_tokens, 'x-default': TOKENS}}}, SAMPLING, 'play');
	const mode = element('select', {'aria-label': 'What the prompt is', onchange: () => label()}, element('option', {value: 'text'}, 'Text'), element('option', {value: 'chat'}, 'Chat'));
	const colours = element('select', {'aria-label': 'Colours', onchange: () => columns.forEach(column => column.paint())}, element('option', {value: 'probability'}, 'Colour: probability'), element('option', {value: 'weights'}, 'Colour: what a token read'), element('option', {value: 'none'}, 'No colours'));
	const prompt = element('textarea', {rows: 3, 'aria-label': 'Prompt'}), go = element('button', {class: 'primary'}, 'Generate');
	const stop = element('button', {type: 'button', hidden: true, onclick: () => active.branch.running && active.branch.running.abort()}, 'Stop'), fresh = element('button', {type: 'button', onclick: () => beginAgain()}, 'New session');
	const detail = element('aside', {class: 'detail', 'aria-label': 'The token'}), area = element('div', {class: 'branches'}), note = element('p', {class: 'note', role: 'status'}, '\u00a0');
	const form = element('form', {class: 'prompt-form', onsubmit: event => { event.preventDefault(); run(); }}, prompt, element('p', {class: 'buttons'}, go, stop, fresh, mode, colours), element('details', {}, element('summary', {}, 'Sampling'), sampling.node));
	const shaded = [];
	let columns = [], active = null, pinned = false, asked = 0; /* pinned: what is beside the text stays while the pointer moves over tokens. asked: counts what was shown there; an answer to an earlier question is not */

	function label() {
		prompt.placeholder = mode.value === 'chat' ? 'Write a message. Ctrl+Enter sends it.' : 'Write a beginning. Ctrl+Enter generates.';
		go.textContent = mode.value === 'chat' ? 'Send' : 'Generate';
	}

	/* --- a branch as a column ----------------------------------------------------------------------------------------- */

	function addColumn(branch) {
		const head = element('p', {class: 'branch-head'}), column = {branch, paint: () => {}};
		const text = strip({label: 'The text; arrow keys move, Enter explains a token', current: (i, pointed) => {
			if (pinned && pointed) return;
			pinned = false;
			activate(column);
			showToken(column, i);
		}, chosen: i => explainToken(column, i)});
		column.text = text;
		column.node = element('section', {class: 'branch', 'aria-label': 'A branch', onpointerdown: () => activate(column)}, head, element('div', {class: 'transcript'}, text.node));
		column.drawHead = () => replace(head, branch.session ? ['Session ', element('a', {href: `#/sessions/${encodeURIComponent(branch.session)}`}, branch.session)] : 'A new session',
			columns.length > 1 ? element('button', {type: 'button', class: 'quiet', onclick: () => close(column)}, 'Close') : null);
		column.shown = token => ({text: token.text, kind: colours.value === 'probability' ? kindOf(token) : kindOf(token) === 'given' ? 'given' : null});
		column.paint = () => {
			unshade();
			text.set(0, branch.tokens.map(column.shown));
		};
		column.settled = from => {
			if (!columns.includes(column)) return;
			text.set(from, branch.tokens.slice(from).map(column.shown));
			note.textContent = `${branch.tokens.length} tokens`;
		};
		columns.push(column);
		area.append(column.node);
		column.paint();
		columns.forEach(each => each.drawHead());
		activate(column);
		return column;
	}

	function activate(column) {
		active = column;
		columns.forEach(each => each.node.classList.toggle('active', each === column && columns.length > 1));
		go.disabled = !!column.branch.running;
		stop.hidden = !column.branch.running;
		if (column.branch.session && !route.signal.aborted) history.replaceState(null, '', `#/play?session=${encodeURIComponent(column.branch.session)}`);
	}

	function close(column) {
		if (column.branch.running) column.branch.running.abort();
		columns = columns.filter(each => each !== column);
		column.node.remove();
		note.textContent = '\u00a0';
		columns.forEach(each => each.drawHead());
		activate(columns[columns.length - 1]);
	}

	function restart() {
		columns.forEach(column => column.branch.running && column.branch.running.abort());
		columns = [];
		replace(area);
		note.textContent = '\u00a0';
		unpin();
		addColumn(makeBranch(model.select.value));
	}

	/* The address names the session, so a link, a reload or Back shows it. */
	function beginAgain() {
		history.replaceState(null, '', `#/play?model=${encodeURIComponent(model.select.value)}`);
		restart();
	}

	/* --- one token ------------------------------------------------------------------------------------------------------ */

	function unshade() {
		for (const box of shaded.splice(0)) colour(box, 0);
	}

	/* Shade what this token read: the tokens with the largest weights of its step. Tokens without a text of their own have
	 * the offset of the next one. */
	function shade({branch, text}, token) {
		unshade();
		const most = token.alpha && token.alpha[0] ? token.alpha[0].weight : 1;
		for (const {token: read, weight} of token.alpha || []) {
			const box = text.boxes[branch.tokens.findLastIndex(each => each.offset === read.offset && each.id === read.id)];
			if (!box) continue;
			colour(box, weight / most);
			shaded.push(box);
		}
	}

	function showToken(column, i) {
		const token = column.branch.tokens[i];
		asked++;
		if (colours.value === 'weights') shade(column, token);
		if (kindOf(token) === 'given') return;
		const best = Object.entries(token.top || {}).sort((a, b) => b[1] - a[1]), settled = token.position !== undefined;
		replace(detail, element('h2', {}, quoted(visibleToken(token.text))), element('p', {}, `Probability ${percent(Math.exp(token.logprob))}`),
			element('table', {}, element('caption', {}, 'The likeliest'), element('tbody', {}, best.map(([name, x]) => element('tr', {class: name === token.name ? 'chosen' : null}, tokenCell(name), element('td', {class: 'number'}, percent(Math.exp(x))),
				element('td', {}, element('meter', {min: 0, max: 1, value: Math.exp(x), 'aria-hidden': true})),
				element('td', {}, settled && name !== token.name && !name.startsWith('bytes:') ? element('button', {type: 'button', class: 'quiet', 'aria-label': `Why not ${quoted(visibleToken(name))}`, onclick: () => explainToken(column, i, name)}, 'Why not?') : null))))),
			settled ? element('p', {class: 'buttons'}, element('button', {type: 'button', onclick: () => explainToken(column, i)}, 'Explain'),
				token.turn && token.turn.snapshot ? element('button', {type: 'button', onclick: event => fork(event.currentTarget, column, i)}, 'Fork before it') : null) : null);
	}

	function unpin() {
		pinned = false;
		asked++;
		replace(detail, element('p', {class: 'note'}, 'Point at a token for its alternatives. Click it for its explanation.'));
	}

	async function explainToken(column, i, other) {
		const {branch} = column, token = branch.tokens[i];
		if (kindOf(token) === 'given' || token.position === undefined) return;
		pinned = true;
		const mine = ++asked;
		replace(detail, element('p', {class: 'loading'}, 'Reading\u2026'));
		try {
			const drawn = element('div'), explanation = await post('v1/explain', questionFor(branch, i, other), {signal: route.signal});
			if (mine !== asked) return;
			drawExplanation(drawn, explanation);
			const address = explainAddress({session: branch.session, position: String(token.position - 1), token_id: String(token.id), other});
			replace(detail, element('p', {class: 'buttons'}, element('a', {href: address}, 'Open as a page'), element('button', {type: 'button', onclick: () => showToken(column, i)}, 'Alternatives'), element('button', {type: 'button', class: 'quiet', onclick: unpin}, 'Close')), drawn);
		} catch (error) {
			if (!route.signal.aborted && mine === asked) replace(detail, explainError(error, () => explainToken(column, i, other)));
		}
	}

	async function fork(button, column, i) {
		button.disabled = true;
		try {
			addColumn(await forkBefore(column.branch, i));
			note.textContent = `A fork of ${i} tokens. What is generated there does not change the other branch.`;
			prompt.focus();
		} catch (error) {
			button.after(message(error));
		}
	}

	/* --- a turn --------------------------------------------------------------------------------------------------------- */

	async function run() {
		const column = active, {branch, text} = column, typed = prompt.value;
		if (branch.running) return;
		if (!typed && (!branch.tokens.length || mode.value === 'chat')) {
			replace(note, message(new Error(mode.value === 'chat' ? 'Write a message first.' : 'Write a beginning first.')));
			return;
		}
		const input = !typed ? {} : mode.value === 'chat' ? {messages: [{role: 'user', content: typed}]} : {prompt: typed}, started = performance.now();
		let made = 0;
		const count = oncePerFrame(() => {
			if (branch.running && made) note.textContent = `${made} tokens, ${Math.round(made / (performance.now() - started) * 1000)} tokens/s`;
		});
		note.textContent = 'Reading\u2026';
		const done = runTurn(branch, input, {typed, shown: mode.value === 'chat' && typed ? `\n${typed}\n` : typed}, {max_tokens: TOKENS, ...sampling.values()}, {
			put(token) {
				if (prompt.value === typed) prompt.value = '';
				if (token.turn) made++;
				text.add(column.shown(token));
				count();
			},
			settled: column.settled});
		activate(column);
		column.drawHead();
		try {
			await done;
		} catch (error) {
			if (error.name !== 'AbortError') explainTurn(column, error);
			if (branch.unsettled) await settleAgain(column);
		} finally {
			column.drawHead();
			if (active === column) activate(column);
		}
	}

	/* Say why a turn failed. A session that is gone can be replaced by one that reads the same text. */
	function explainTurn(column, error) {
		const {branch} = column, gone = error.status === 404 && branch.session;
		if (!columns.includes(column)) return;
		replace(note, message(gone ? new Error('The session is gone: the engine was started again, or the session was deleted.') : error),
			gone && isRenewable(branch) ? element('button', {type: 'button', onclick: event => act(event.currentTarget, async () => {
				const typed = await renew(branch);
				prompt.value ||= typed;
				column.settled(0);
				column.drawHead();
				prompt.focus();
			})}, 'Continue in a new session') : null);
	}

	/* A turn whose end was lost is settled as soon as the service answers. */
	async function settleAgain(column) {
		if (column.branch.running) return;
		await settleLate(column.branch, from => {
			column.settled(from);
			if (!columns.includes(column)) return;
			note.textContent = `The turn was cut off. The session has read ${column.branch.tokens.length} tokens.`;
		}).catch(error => error.away || explainTurn(column, error));
	}

	/* --- begin ---------------------------------------------------------------------------------------------------------- */

	replace(main, element('div', {class: 'title'}, element('h1', {}, 'Playground'), model.node), element('div', {class: 'play'}, element('div', {}, area, note, form), detail));
	prompt.addEventListener('keydown', event => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); } });
	model.select.addEventListener('change', beginAgain);
	events.addEventListener('returned', () => columns.forEach(settleAgain), {signal: route.signal});
	route.signal.addEventListener('abort', () => columns.forEach(column => column.branch.running && column.branch.running.abort()), {once: true});
	label();
	restart();
	if (session) {
		const branch = makeBranch(session.model, session.id), known = await readBranch(branch, session);
		columns = [];
		replace(area);
		const column = addColumn(branch);
		if (branch.tokens.length && branch.tokens.length <= SCORED) scoreBranch(branch, route.signal).then(column.paint).catch(() => {}); /* the text stays without them */
		if (!known) note.textContent = `${session.tokens} tokens were read before. They are not shown: the session was opened without "explain".`;
	}
	prompt.focus();
}

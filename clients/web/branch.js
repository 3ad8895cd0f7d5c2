/* One branch of a conversation: a session with its text, token by token. The session keeps what an explanation needs,
 * so each token can be explained, and a snapshot before each turn, so a fork can begin at any token. */
import {generate, get, path, post, remove, ServiceError} from './api.js';

/* A token of the text: {text, id, offset, position, name, logprob, top, alpha, turn, k}. The session says its id, offset
 * and position after the turn. Its name among the likeliest ones, its log-probability and the likeliest tokens are those of a
 * generated token or of scoreBranch(). Only a generated token has those with the largest weights, its turn, its number in it. A turn is
 * {start, session, snapshot, typed}: the index of its first token, the snapshot before it, what the reader typed. */

const BUSY = 250, TRIES = 40; /* ms between two attempts to read a session that another request uses; attempts */

/** Make a branch; no session exists before the first turn. session: an existing one to continue. unsettled: the turn, and
 * the `end` of placeOf(), whose text could not be read yet. late: the promise of settle() while it reads that text. */
export function makeBranch(model, session = null) {
	return {model, session, tokens: [], running: null, refused: new Set(), unsettled: null, late: null};
}

async function tokensOf(session) {
	for (let left = TRIES;; left--) {
		try {
			return (await get(path('v1/sessions', session, 'alpha'), {layers: 0, heads: 0})).tokens;
		} catch (error) {
			if (error.code !== 'session_busy' || !left) throw error;
			await new Promise(resolve => { setTimeout(resolve, BUSY); });
		}
	}
}

const asRead = (token, position) => ({text: token.text, id: token.id, offset: token.offset, position});

/** Read the text of an existing session again: {id, tokens, explain}. False: it was opened without `explain`, and its
 * text is not known. */
export async function readBranch(branch, session) {
	if (!session.explain) branch.refused.add('alpha');
	else if (session.tokens) branch.tokens = (await tokensOf(session.id)).map(asRead);
	return session.explain || !session.tokens;
}

/* True if a token that the session read can be the one that was received. The bytes of a character are a text only
 * together with the others. */
const same = (read, made) => read.text === made.name || made.name.startsWith('bytes:') || read.text.includes('\ufffd');
/* A special token has a name, but no text. */
const similar = (read, made) => same(read, made) || !read.text;

/** Give tokens that were read before their log-probabilities, as the model has them for this text from its beginning. */
export async function scoreBranch(branch, signal) {
	const ids = branch.tokens.map(token => token.id), {choices: [{logprobs}]} = await post('v1/completions', {model: branch.model, prompt: ids, max_tokens: 0, echo: true, logprobs: 5}, {signal});
	branch.tokens.slice(0, ids.length).forEach((token, i) => {
		if (token.id === ids[i] && token.logprob === undefined) Object.assign(token, {name: logprobs.tokens[i], logprob: logprobs.token_logprobs[i], top: logprobs.top_logprobs[i]});
	});
}

/* The index in `read` of the first of the tokens that were received. They follow the prompt, whose tokens, with those of
 * a chat's template, are known only afterwards. end: tokens that the session had read after the turn, 0 if its end was
 * not received; then the session may have read more than was received. -1: they are not there. */
function placeOf(made, read, turn, end) {
	const fits = (first, alike) => first >= turn.start && first + made.length <= read.length && made.every((token, k) => alike(read[first + k], token));
	if (end && fits(end - made.length, similar)) return end - made.length;
	let text = '', first = turn.start;
	while (first < read.length && (text.length < turn.typed.length || !text.includes(turn.typed))) text += read[first++].text;
	if (!text.includes(turn.typed)) first = turn.start;
	for (const alike of [same, similar])
		for (let i = first; i < read.length; i++) if (fits(i, alike)) return i;
	return -1;
}

/* After a turn the service knows each token that was read, those of the prompt and of a chat's template among them.
 * Returns the index of the first token whose text is another one than before. */
async function settle(branch) {
	const {turn, end} = branch.unsettled, read = await tokensOf(branch.session).catch(error => {
		/* its text cannot be read, as that of a session without `explain` */
		if (error.status >= 400 && error.status < 500 && ![401, 403, 404, 429].includes(error.status) && error.code !== 'session_busy') branch.unsettled = null;
		throw error;
	});
	branch.unsettled = null;
	const made = branch.tokens.slice(turn.start).filter(token => token.turn === turn);
	const before = branch.tokens, first = placeOf(made, read, turn, end);
	branch.tokens = read.map((token, i) => {
		const known = i < turn.start ? before[i] : first < 0 ? null : made[i - first];
		return {...known, ...asRead(token, i)};
	});
	const other = branch.tokens.findIndex((token, i) => i >= turn.start || token.text !== before[i].text);
	return other < 0 ? read.length : other;
}

/** Settle the unsettled turn, if there is one. Calls at the same time share one settle(), so none places an old turn in a
 * newer text. */
export async function settleLate(branch, settled) {
	if (branch.unsettled) settled(await (branch.late ||= settle(branch).finally(() => { branch.late = null; })));
}

/* The tokens that the session has read for certain. */
const knownOf = ({tokens, unsettled}) => unsettled ? tokens.slice(0, unsettled.turn.start) : tokens;

/** True if the text can be read again in another session. */
export function isRenewable(branch) {
	return knownOf(branch).every(token => token.id !== undefined);
}

/* Read these tokens in a new session, which is removed if that fails. */
async function append(session, tokens) {
	try {
		if (tokens.length) await post(path('v1/sessions', session, 'append'), {text: tokens.map(token => token.id), add_special_tokens: false});
	} catch (error) {
		await remove(path('v1/sessions', session)).catch(() => {});
		throw error;
	}
}

/** Read the text again in a new session, as the one that the branch had is gone. A turn that was not settled is left out.
 * Returns what the reader typed in it. */
export async function renew(branch) {
	const known = knownOf(branch), {unsettled} = branch, session = await open(branch);
	await append(session, known);
	Object.assign(branch, {session, unsettled: null, tokens: known.map(token => ({...token, turn: null}))}); /* the snapshots are gone, too */
	return unsettled ? unsettled.turn.typed : '';
}

/* True if a refused request can be sent without what was refused. Few architectures have weights to send with tokens; a
 * session has a limited number of snapshots. */
function leaveOut(branch, error) {
	const what = error.param && error.param.startsWith('alpha') ? 'alpha' : error.code === 'too_many_snapshots' ? 'snapshot' : null;
	if (!(error instanceof ServiceError) || !what || branch.refused.has(what)) return false;
	branch.refused.add(what);
	return true;
}

async function* chunksOf(branch, body, signal) {
	let begun = false;
	for (;;) {
		const more = {alpha: {top: 8}, snapshot: true};
		for (const name of branch.refused) delete more[name];
		try {
			for await (const chunk of generate(path('v1/sessions', branch.session, 'generate'), {...body, ...more}, signal)) {
				begun = true;
				yield chunk;
			}
			return;
		} catch (error) {
			if (begun || !leaveOut(branch, error)) throw error;
		}
	}
}

async function open(branch, signal) {
	const make = explain => post('v1/sessions', {model: branch.model, explain, ttl_seconds: 86400}, {signal});
	try {
		return (await make(true)).id;
	} catch (error) {
		if (error.param !== 'explain') throw error;
		branch.refused.add('alpha');
		return (await make(false)).id;
	}
}

/** Run a turn: read `input` ({prompt} or {messages}, or neither) and generate. typed: its text, shown: as it is shown
 * until the session says what it read. put(token) is called for each new token, settled(from) once the turn's text is
 * complete: the tokens from there on are other ones. */
export async function runTurn(branch, input, {typed, shown}, settings, {put, settled}) {
	const add = token => { branch.tokens.push(token); put(token); }, {signal} = branch.running = new AbortController();
	let turn = null, k = 0, end = 0;
	try {
		await settleLate(branch, settled).catch(error => { if (branch.unsettled) throw error; });
		turn = {start: branch.tokens.length, session: null, snapshot: null, typed};
		branch.session ||= await open(branch, signal);
		turn.session = branch.session;
		for await (const chunk of chunksOf(branch, {...input, ...settings, logprobs: 5}, signal)) {
			const [choice] = chunk.choices;
			if (shown && branch.tokens.length === turn.start) add({text: shown});
			for (const [i, text] of ((choice && choice.logprobs && choice.logprobs.tokens) || []).entries())
				add({text, name: text, logprob: choice.logprobs.token_logprobs[i], top: choice.logprobs.top_logprobs && choice.logprobs.top_logprobs[i], alpha: choice.alpha, turn, k: k++});
			if (chunk.session) {
				turn.snapshot = chunk.session.snapshot || null;
				end = chunk.session.tokens;
			}
		}
	} finally {
		branch.running = null;
		if (turn && branch.session && (end || branch.tokens.length > turn.start)) {
			branch.unsettled = {turn, end};
			await settleLate(branch, settled).catch(() => settled(turn.start));
		}
	}
}

/** Fork before token i. The fork begins at the snapshot of the token's turn, in the session that has it, and reads the
 * turn's tokens again up to this one. */
export async function forkBefore(branch, i) {
	const {turn} = branch.tokens[i], kept = branch.tokens.slice(0, i);
	const made = await post(path('v1/sessions', turn.session, 'fork'), {snapshot: turn.snapshot});
	await append(made.id, kept.slice(turn.start));
	const read = i ? await tokensOf(made.id) : [];
	if (read.length !== i || read.some((token, k) => token.id !== kept[k].id)) {
		await remove(path('v1/sessions', made.id));
		throw new Error('The session has read other tokens since then. Fork it under Sessions.');
	}
	return {...makeBranch(branch.model, made.id), tokens: kept};
}

/** The question that explains token i: why it was written, and, with `other`, not that one. A part of a character has no
 * text of its own, so the token is named by its id. */
export function questionFor(branch, i, other) {
	return {session: branch.session, position: branch.tokens[i].position - 1, target: {token: branch.tokens[i].id, ...(other ? {kind: 'difference', other} : {})}};
}

/* One branch of a conversation: a session with its text, token by token. The session keeps what an explanation needs,
 * so each token can be explained, and a snapshot before each turn, so a fork can begin at any token. */
import {generate, get, path, post, remove} from './api.js';

/* A token of the text: {text, position, logprob, top, alpha, turn, k}. The last five only for a generated one: its
 * log-probability, the likeliest tokens, the tokens with the largest weights, its turn and its number in the turn. A
 * turn is {start, snapshot, end}: the index of its first token, the snapshot before it, tokens read after it. */

/** Make a branch; no session exists before the first turn. session: an existing one to continue. */
export function makeBranch(model, session = null) {
	return {model, session, tokens: [], running: null};
}

const tokensOf = (branch, signal) => get(path('v1/sessions', branch.session, 'alpha'), {layers: 0, heads: 0}, {signal}).then(log => log.tokens);

/** Read the text of an existing session again. False: it was opened without `explain`, and its text is not known. */
export async function readBranch(branch, signal) {
	try {
		branch.tokens = (await tokensOf(branch, signal)).map((token, i) => ({text: token.text, offset: token.offset, position: i}));
		return true;
	} catch (error) {
		if (error.status !== 400 && error.status !== 409) throw error;
		return false;
	}
}

/* After a turn the service knows each token that was read, those of the prompt and of a chat's template among them. */
async function settle(branch, turn, signal) {
	const read = await tokensOf(branch, signal), made = branch.tokens.slice(turn.start).filter(token => token.turn === turn), first = read.length - made.length;
	branch.tokens = branch.tokens.slice(0, turn.start);
	for (let i = turn.start; i < read.length; i++) branch.tokens.push({...(i >= first ? made[i - first] : {}), text: read[i].text, offset: read[i].offset, position: i});
}

/** Run a turn: read `input` ({prompt} or {messages}, or neither) and generate. put(token) is called for each new token,
 * settled() once the turn's text is complete. */
export async function runTurn(branch, input, shown, settings, {put, settled}) {
	const turn = {start: branch.tokens.length, snapshot: null}, add = token => { branch.tokens.push(token); put(token); };
	const control = branch.running = new AbortController(), {signal} = control;
	let k = 0;
	try {
		if (!branch.session) branch.session = (await post('v1/sessions', {model: branch.model, explain: true, ttl_seconds: 86400}, {signal})).id;
		const body = {...input, ...settings, logprobs: 5, alpha: {top: 8}, snapshot: true};
		for await (const chunk of generate(path('v1/sessions', branch.session, 'generate'), body, signal)) {
			const [choice] = chunk.choices;
			if (shown && branch.tokens.length === turn.start) add({text: shown});
			for (const [i, text] of ((choice && choice.logprobs && choice.logprobs.tokens) || []).entries())
				add({text, logprob: choice.logprobs.token_logprobs[i], top: choice.logprobs.top_logprobs && choice.logprobs.top_logprobs[i], alpha: choice.alpha, turn, k: k++});
			if (chunk.session) turn.snapshot = chunk.session.snapshot || null;
		}
	} finally {
		branch.running = null;
		if (branch.session && branch.tokens.length > turn.start) {
			await settle(branch, turn).catch(() => {});
			settled(turn);
		}
	}
}

/** Fork before token i. The fork begins at the snapshot of the token's turn and reads the turn again up to the token. A
 * text that ends within a character cannot be read again. */
export async function forkBefore(branch, i) {
	const {turn} = branch.tokens[i], made = await post(path('v1/sessions', branch.session, 'fork'), {snapshot: turn.snapshot});
	const text = branch.tokens.slice(turn.start, i).map(token => token.text).join('');
	if (text) await post(path('v1/sessions', made.id, 'append'), {text, add_special_tokens: turn.start === 0});
	const kept = branch.tokens.slice(0, i).map(token => ({...token, turn: token.turn === turn ? null : token.turn})), read = await tokensOf({session: made.id});
	if (text.includes('\ufffd') || read.length !== i || read.some((token, k) => token.text !== kept[k].text)) {
		await remove(path('v1/sessions', made.id));
		throw new Error('The text before this token would be read as other tokens. Fork before another one.');
	}
	return {...makeBranch(branch.model, made.id), tokens: kept};
}

/** The question that explains token i: why it was written, and, with `other`, not that one. */
export function questionFor(branch, i, other) {
	return {session: branch.session, position: branch.tokens[i].position - 1, target: {token: branch.tokens[i].text, ...(other ? {kind: 'difference', other} : {})}};
}

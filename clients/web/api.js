/* Requests to the service: the key, errors, streams of events, lists page by page. Paths are relative to the page, so a
 * prefix that a proxy adds is part of every request. */

const KEY = 'additive-key';

/** An answer that is no success. status 0: no answer came. */
export class ServiceError extends Error {
	constructor(status, error) {
		super(error.message || `status ${status}`);
		this.status = status;
		this.code = error.code || null;
		this.param = error.param || null;
	}

	get away() {
		return this.status === 0 || this.status === 502 || this.status === 503;
	}
}

/** "answer": detail is null or the ServiceError of the latest request. "returned": the service answers again. */
export const events = new EventTarget();

export function getKey() {
	return sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || '';
}

/** keep: also for later visits. An empty key forgets it. */
export function setKey(key, keep) {
	sessionStorage.removeItem(KEY);
	localStorage.removeItem(KEY);
	if (key) (keep ? localStorage : sessionStorage).setItem(KEY, key);
}

export function address(path, query) {
	const url = new URL(path, document.baseURI);
	for (const [name, value] of Object.entries(query || {}))
		if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, value);
	return url;
}

function headers(more) {
	const key = getKey();
	return {...(key ? {Authorization: `Bearer ${key}`} : {}), ...more};
}

function report(error) {
	events.dispatchEvent(new CustomEvent('answer', {detail: error}));
}

function noAnswer(message = 'the service does not answer') {
	const away = new ServiceError(0, {message});
	report(away);
	return away;
}

async function failure(answer) {
	const document = await answer.json().catch(() => ({}));
	return new ServiceError(answer.status, document.error || {});
}

/** Return the Response of a success. body: an object to send as JSON, or a FormData. */
export async function send(method, path, {query, body, accept, signal, more} = {}) {
	const form = body instanceof FormData;
	let answer;
	try {
		answer = await fetch(address(path, query), {
			method, signal, cache: 'no-store', redirect: 'error',
			headers: headers({...(accept ? {Accept: accept} : {}), ...(body && !form ? {'Content-Type': 'application/json'} : {}), ...more}),
			body: body && !form ? JSON.stringify(body) : body});
	} catch (error) {
		if (signal && signal.aborted) throw error;
		throw noAnswer();
	}
	const error = answer.ok ? null : await failure(answer);
	report(error);
	if (error) throw error;
	return answer;
}

export async function get(path, query, options) {
	return (await send('GET', path, {query, ...options})).json();
}

export async function post(path, body, options) {
	return (await send('POST', path, {body, ...options})).json();
}

export async function remove(path) {
	return (await send('DELETE', path)).json();
}

/** The path of one object: path('v1/models', id, 'load'). A browser takes "." and ".." as steps of the path, also when
 * they are encoded, so no object can have these names. */
export function path(...parts) {
	const step = parts.find(part => part === '.' || part === '..');
	if (step) throw new ServiceError(404, {message: `"${step}" is not a valid name`});
	return parts.map((part, i) => i ? encodeURIComponent(part) : part).join('/');
}

/* Handle events for at most TURN ms, then let a frame be drawn. */
const TURN = 8;

/* Resolves in another task: frames and input come first. */
const nextTask = () => new Promise(resolve => {
	const {port1, port2} = new MessageChannel();
	port1.onmessage = () => { port1.close(); resolve(); };
	port2.postMessage(null);
});

const lost = () => new ServiceError(0, {message: 'the connection was lost'});

/** Yield {id, event, data} of a stream of server-sent events until "[DONE]". A stream that ends without it was cut off. */
export async function* readEvents(answer) {
	const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = '', item = {data: []}, began = performance.now();
	try {
		for (;;) {
			const {done, value} = await reader.read().catch(error => { throw error.name === 'AbortError' ? error : lost(); });
			if (done) throw lost();
			const lines = (rest + value).split('\n');
			rest = lines.pop();
			for (const line of lines) {
				if (line === '') {
					const data = item.data.join('\n');
					if (data === '[DONE]') return;
					if (data) yield {id: item.id, event: item.event, data: JSON.parse(data)};
					item = {data: []};
					if (performance.now() - began > TURN) {
						await nextTask();
						began = performance.now();
					}
				} else if (line[0] !== ':') {
					const colon = line.indexOf(':'), name = line.slice(0, colon), text = line.slice(colon + 1).replace(/^ /, '');
					if (name === 'data') item.data.push(text);
					else item[name] = text;
				}
			}
		}
	} finally {
		reader.cancel().catch(() => {});
	}
}

/** Yield the data of a generation's chunks. An error inside the stream is thrown. */
export async function* generate(path, body, signal) {
	const answer = await send('POST', path, {body: {...body, stream: true}, signal});
	for await (const {data} of readEvents(answer)) {
		if (data.error) throw new ServiceError(200, data.error);
		yield data;
	}
}

const wait = (ms, signal) => new Promise((resolve, reject) => {
	signal.throwIfAborted();
	const stop = () => { clearTimeout(timer); reject(signal.reason); };
	const timer = setTimeout(() => { signal.removeEventListener('abort', stop); resolve(); }, ms);
	signal.addEventListener('abort', stop, {once: true});
});

const PAUSE = 2000; /* ms between two reads of what changes by itself */

/** Call read() again and again while it returns true or fails for a reason of the service's own, until signal aborts. */
export async function repeat(read, signal) {
	for (let again = true; again && !signal.aborted;) {
		await wait(PAUSE, signal).catch(() => {});
		if (!signal.aborted) again = await read().catch(error => error.away || error.status === 429 || error.status >= 500);
	}
}

/** Yield the events of a job until it ends or signal aborts. A lost connection, to the service or from there to its
 * engine, is made again after the last event. */
export async function* follow(path, signal) {
	let last = null, pause = 500;
	for (;;) {
		try {
			const answer = await send('GET', path, {query: {stream: true}, signal, more: last ? {'Last-Event-ID': last} : {}});
			for await (const {id, data} of readEvents(answer)) {
				if (data.error) throw new ServiceError(0, data.error);
				last = id || last;
				pause = 500;
				yield data;
			}
			return;
		} catch (error) {
			if (signal.aborted) return;
			if (error instanceof ServiceError && !error.away) throw error;
		}
		await wait(pause, signal).catch(() => {});
		if (signal.aborted) return;
		pause = Math.min(2 * pause, 2000);
	}
}

/* Lists that the service gives as a whole. */
const WHOLE = ['v1/models'];

/** Yield the pages of a list: arrays of at most `limit` objects. */
export async function* pages(path, query, signal, limit = 100) {
	let after;
	for (;;) {
		const list = await get(path, WHOLE.includes(path) ? query : {...query, limit, after}, {signal});
		yield list.data;
		if (!list.has_more || !list.data.length) return;
		after = list.last_id || list.data[list.data.length - 1].id;
	}
}

/** All objects of a list. */
export async function all(path, query, signal) {
	const out = [];
	for await (const page of pages(path, query, signal)) out.push(...page);
	return out;
}

/** Send a FormData or a File, which the browser reads from the disk piece by piece. progress(sent, total) gets bytes. */
export function upload(path, body, {query, progress, signal} = {}) {
	return new Promise((resolve, reject) => {
		const request = new XMLHttpRequest();
		request.open('POST', address(path, query));
		for (const [name, value] of Object.entries(headers(body instanceof FormData ? {} : {'Content-Type': 'application/octet-stream'}))) request.setRequestHeader(name, value);
		request.responseType = 'json';
		request.upload.addEventListener('progress', event => { if (event.lengthComputable) progress(event.loaded, event.total); });
		request.addEventListener('load', () => {
			const error = request.status < 300 ? null : new ServiceError(request.status, (request.response || {}).error || {});
			report(error);
			if (error) reject(error);
			else resolve(request.response);
		});
		request.addEventListener('error', () => reject(noAnswer('the upload was interrupted: the service does not answer, or the file cannot be read')));
		if (signal) signal.addEventListener('abort', () => { request.abort(); reject(signal.reason); }, {once: true});
		request.send(body);
	});
}

/* The frame around the views: navigation, the service's state, the key. The part of the address after "#" selects the
 * view, so the page works below any path and a link to a view can be sent. */
import {element, replace} from './dom.js';
import {events, get, getKey, setKey} from './api.js';
import {ask, explainError} from './notice.js';

/* A view is a module with show(main, route). route.parts: the path after the view's name. route.query: URLSearchParams.
 * route.signal aborts when the view is left. */
const VIEWS = [
	['play', 'Playground', () => import('./play_view.js')],
	['jobs', 'Training', () => import('./jobs_view.js')],
	['explain', 'Explain', () => import('./explain_view.js')],
	['models', 'Models', () => import('./models_view.js')],
	['sessions', 'Sessions', () => import('./sessions_view.js')],
	['files', 'Files', () => import('./files_view.js')],
	['evaluations', 'Evaluations', () => import('./evaluations_view.js')],
	['batches', 'Batches', () => import('./batches_view.js')],
	['operate', 'Operate', () => import('./operate_view.js')],
];

const OUTDATED = 'This part of the page did not load: the service may be a newer one.';

const main = document.getElementById('main'), state = document.getElementById('state'), banner = document.getElementById('banner');
const links = VIEWS.map(([name, title]) => element('a', {href: `#/${name}`}, title));
let leave = new AbortController(), latest = null;

/* A part that is no encoded text is taken as it is. */
function decode(part) {
	try {
		return decodeURIComponent(part);
	} catch {
		return part;
	}
}

function readRoute() {
	const [path, query] = (location.hash.match(/^#\/(.*)$/s) || ['', ''])[1].split('?');
	const [name, ...parts] = path.split('/').map(decode);
	return {name: name || 'play', parts, query: new URLSearchParams(query || '')};
}

async function showRoute() {
	leave.abort();
	leave = new AbortController();
	const {signal} = leave, route = {...readRoute(), signal}, row = VIEWS.find(([name]) => name === route.name);
	links.forEach((link, i) => {
		if (VIEWS[i] === row) link.setAttribute('aria-current', 'page');
		else link.removeAttribute('aria-current');
	});
	document.title = row ? `${row[1]} \u2013 Additive` : 'Additive';
	replace(main, element('p', {class: 'loading'}, 'Loading\u2026'));
	try {
		if (!row) throw new Error(`There is no page "${route.name}".`);
		const view = await row[2]().catch(async () => {
			await get('readyz', null, {signal});
			throw new Error(OUTDATED);
		});
		if (!signal.aborted) await view.show(main, route);
	} catch (error) {
		if (signal.aborted) return;
		replace(main, error.message === OUTDATED ? explainError(error, () => location.reload(), 'Reload the page') : explainError(error, showRoute));
	}
}

/* --- the service's state: asked often while something is wrong --------------------------------------------------- */

const AGAIN = 2000; /* ms between two checks, at least, while something is wrong */

let timer = 0, checked = 0; /* checked: when the latest check began */

async function check() {
	clearTimeout(timer);
	checked = performance.now();
	let wrong = null;
	try {
		const ready = await get('readyz');
		replace(state, element('span', {class: 'dot good'}), ready.device || ready.backend || 'ready');
	} catch (error) {
		wrong = error;
		replace(state, element('span', {class: 'dot bad'}), error.status ? 'not ready' : 'no answer');
	}
	state.title = state.textContent;
	const returned = latest && !wrong;
	latest = wrong;
	banner.hidden = !wrong;
	if (wrong) banner.textContent = `${wrong.message}. Trying again every two seconds.`;
	if (returned) events.dispatchEvent(new Event('returned'));
	if (returned && main.querySelector(':scope > .card.failed')) showRoute();
	clearTimeout(timer);
	timer = setTimeout(check, wrong ? AGAIN : 5000);
}

events.addEventListener('answer', ({detail}) => {
	if (detail && detail.away && !latest) {
		latest = detail;
		clearTimeout(timer);
		timer = setTimeout(check, checked + AGAIN - performance.now()); /* A request sent on "returned" may fail again at once. */
	}
});

/* --- the key -------------------------------------------------------------------------------------------------------- */

async function askKey() {
	const input = element('input', {type: 'password', autocomplete: 'off', spellcheck: 'false', value: getKey(), 'aria-label': 'API key'});
	const keep = element('input', {type: 'checkbox', checked: localStorage.length > 0});
	const answer = await ask('The key of this service', 'Use it', [
		element('p', {}, 'A service with keys answers only requests that have one. Leave it empty for a service without keys.'), input,
		element('label', {class: 'check'}, keep, 'Keep it in this browser')]);
	if (!answer) return;
	setKey(input.value.trim(), keep.checked);
	await check();
	showRoute();
}

document.querySelector('nav').append(...links);
document.getElementById('key').addEventListener('click', askKey);
document.addEventListener('additive-key', askKey);
/* The link that skips the navigation names an element of this page, which is no view. */
document.querySelector('.skip').addEventListener('click', event => { event.preventDefault(); main.focus(); });
/* A file that is dropped beside its field would replace the page. */
for (const name of ['dragover', 'drop']) addEventListener(name, event => event.preventDefault());
addEventListener('hashchange', () => { if (/^(#\/|$)/.test(location.hash)) showRoute(); });
check();
showRoute();

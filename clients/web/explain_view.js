/* Explain one prediction. The address holds the whole question, so a link to it shows the same explanation. */
import {element, replace, save} from './dom.js';
import {all, post, send} from './api.js';
import {choice, fields, schema} from './form.js';
import {drawExplanation} from './explanation.js';
import {explainEmpty, explainError} from './notice.js';

const TEXTS = ['model', 'input', 'token', 'other', 'method', 'aggregate'];

/** The address of an explanation. */
export function explainAddress(question) {
	const query = new URLSearchParams(Object.entries(question).filter(([, text]) => text));
	return `#/explain?${query}`;
}

function body(query) {
	const token = query.get('token'), other = query.get('other'), target = {...(token ? {token} : {}), ...(other ? {other, kind: 'difference'} : {})};
	return {model: query.get('model'), input: query.get('input'), ...(query.get('method') ? {method: query.get('method')} : {}), ...(query.get('aggregate') ? {aggregate: query.get('aggregate')} : {}), ...(Object.keys(target).length ? {target} : {})};
}

export async function show(main, route) {
	const models = await all('v1/models', null, route.signal);
		if (!models.length) {
		replace(main, element('h1', {}, 'Explain'), explainEmpty('There is no model yet', element('p', {}, element('a', {class: 'button primary', href: '#/jobs/new'}, 'Train one'))));
		return;
	}
	const {query} = route, model = choice('Model', models, query.get('model'), row => row.id), asked = fields(await schema('ExplainRequest'), ['method', 'aggregate'], 'explain');
	const input = element('textarea', {rows: 3, 'aria-label': 'Text', placeholder: 'A text whose next token is explained', required: true}, query.get('input') || '');
	const token = element('input', {value: query.get('token') || '', placeholder: 'the likeliest', id: 'token'}), other = element('input', {value: query.get('other') || '', placeholder: 'all others', id: 'other'});
	const out = element('div', {role: 'region', 'aria-label': 'Explanation'});
	replace(main, element('h1', {}, 'Explain'), element('form', {onsubmit: event => {
		event.preventDefault();
		const next = explainAddress({model: model.select.value, input: input.value, token: token.value, other: other.value, ...asked.values()});
		if (next === location.hash) explain();
		else location.hash = next;
	}}, model.node, input, element('div', {class: 'fields'}, element('div', {class: 'field'}, element('label', {for: 'token'}, 'Why this token'), token), element('div', {class: 'field'}, element('label', {for: 'other'}, 'And not this one'), other)),
	element('details', {}, element('summary', {}, 'Method'), asked.node), element('p', {class: 'buttons'}, element('button', {class: 'primary'}, 'Explain'))), out);

	async function explain() {
		replace(out, element('p', {class: 'loading'}, 'Reading\u2026'));
		try {
			const question = body(query), explanation = await post('v1/explain', question, {signal: route.signal}), drawn = element('div');
			drawExplanation(drawn, explanation);
			replace(out, element('p', {class: 'buttons'}, element('button', {type: 'button', class: 'quiet', onclick: async () => save('explanation.svg', 'image/svg+xml', await (await send('POST', 'v1/explain', {body: question, accept: 'image/svg+xml'})).text())}, 'Save SVG')), drawn);
		} catch (error) {
			if (!route.signal.aborted) replace(out, explainError(error, explain));
		}
	}

	if (query.get('model') && query.get('input')) await explain();
}

/* Explain one prediction, or two side by side. The address holds the whole question, so a link to it shows the same
 * explanation. */
import {element, replace, save} from './dom.js';
import {all, post, send} from './api.js';
import {choice, fields, schema} from './form.js';
import {drawComparison} from './comparison.js';
import {drawExplanation} from './explanation.js';
import {drawFaithfulness} from './faithfulness.js';
import {explainEmpty, explainError} from './notice.js';
import {aboutNumbers} from './numbers.js';
import {rights} from './rights.js';

/** The address of an explanation. */
export function explainAddress(question) {
	return `#/explain?${new URLSearchParams(Object.entries(question).filter(([, text]) => text))}`;
}

const TARGETS = ['token', 'other', 'second_token', 'second_other'];

/* The request that an address asks for. `second_` members are those of the comparison. Tokens that have no text of their own
 * are named by ids: `token_id` and `other_id` for a token, `token_ids`, separated by commas, for a text. */
function requestOf(query) {
	const given = name => query.get(name) || undefined, token = name => given(name) ?? (given(`${name}_id`) && Number(given(`${name}_id`)));
	const text = prefix => given(`${prefix}token_ids`) ? given(`${prefix}token_ids`).split(',').map(Number) : given(`${prefix}input`);
	const target = prefix => {
		const one = token(`${prefix}token`), other = token(`${prefix}other`);
		return one !== undefined || other !== undefined ? {...(one !== undefined ? {token: one} : {}), ...(other !== undefined ? {other, kind: 'difference'} : {})} : undefined;
	};
	const second = {model: given('second_model'), input: text('second_'), target: target('second_')}, position = given('position');
	return {session: given('session'), model: given('model'), input: text(''), source: given('source'), method: given('method'), aggregate: given('aggregate'), position: position === undefined || position === 'all' ? position : Number(position), target: target(''),
		compare: Object.values(second).some(x => x !== undefined) ? second : undefined};
}

export async function show(main, route) {
	const models = await all('v1/models', null, route.signal);
	if (!models.length) {
		replace(main, element('h1', {}, 'Explain'), explainEmpty('There is no model yet', element('p', {}, element('a', {class: 'button primary', href: '#/jobs/new'}, 'Train one'))));
		return;
	}
	const {query} = route, may = await rights(), asked = fields(await schema('ExplainRequest'), ['method', 'aggregate'], 'explain'), out = element('div', {role: 'region', 'aria-label': 'Explanation'});
	const line = (name, label, hint, more) => {
		const id = query.get(`${name}_id`), input = element('input', {value: query.get(name) || '', placeholder: id ? `the token with the id ${id}` : hint, id: name, ...more});
		return {name, input, node: element('div', {class: 'field'}, element('label', {for: name}, label), input)};
	};
	const area = (name, label, hint) => {
		const input = element('textarea', {rows: 2, id: name, required: name === 'input' && !query.get('token_ids'), placeholder: hint, value: query.get(name) || ''});
		return {name, input, node: element('div', {class: 'field'}, element('label', {for: name}, label), input)};
	};
	const model = choice('Model', models, query.get('model'), row => row.id), second = choice('Model', models, query.get('second_model'), row => row.id, 'the same');
	const one = [line('token', 'Why this token', 'the likeliest'), line('other', 'And not this one', 'all others'), line('position', 'Position', 'the last; or all')], two = [area('second_input', 'Text', 'the same'), line('second_token', 'Why this token', 'the same'), line('second_other', 'And not this one', 'the same')];
	const input = area('input', 'Text', 'A text whose next token is explained'), source = area('source', 'Source', 'only for a model that reads one');
	const ids = line('token_ids', 'Token ids in place of the text', '12, 7, 300', {pattern: ' *[0-9]+( *, *[0-9]+)* *', oninput: event => { input.input.required = !event.target.value; }});
	two.push(line('second_token_ids', 'Token ids in place of the text', 'the same', {pattern: ids.input.pattern}));
	const lines = [...one, ...two], texts = [input, ids, source], session = query.get('session'), moved = () => one[2].input.value !== (query.get('position') || '');
	const idOf = name => lines.find(each => each.name === name).input.value || (moved() && !name.startsWith('second_')) ? '' : query.get(`${name}_id`);
	const question = () => Object.fromEntries([...(session ? [['session', session]] : [['model', model.select.value]]), ['second_model', second.select.value], ...(session ? lines : [...texts, ...lines]).map(each => [each.name, each.input.value]),
		...TARGETS.map(name => [`${name}_id`, idOf(name)]), ...Object.entries(asked.values())]);
	const go = path => {
		const next = explainAddress({...question(), ...path});
		if (next === location.hash) explain();
		else location.hash = next;
	};
	replace(main, element('h1', {}, 'Explain'), element('form', {class: 'spaced', onsubmit: event => { event.preventDefault(); go({}); }},
		session ? element('p', {}, 'In the session ', element('a', {href: `#/sessions/${encodeURIComponent(session)}`}, session)) : [model.node, input.node], element('div', {class: 'fields'}, one.map(each => each.node)),
		element('details', {open: [...query.keys()].some(name => name.startsWith('second_'))}, element('summary', {}, 'Compare with another model, text or token'), second.node, two[0].node, element('div', {class: 'fields'}, two.slice(1).map(each => each.node))),
		element('details', {open: ['method', 'aggregate', 'source', 'token_ids'].some(name => query.get(name))}, element('summary', {}, session ? 'Method' : 'Method, source and token ids'), asked.node, session ? null : [source.node, ids.node]),
		element('p', {class: 'buttons'}, element('button', {class: 'primary'}, 'Explain'), session || !may('post', '/v1/explain/evaluate') ? null : element('button', {type: 'button', onclick: event => event.currentTarget.form.reportValidity() && go({faithfulness: '1'})}, 'How faithful is it?'))), out);

	async function explain() {
		replace(out, element('p', {class: 'loading'}, 'Reading\u2026'));
		const request = requestOf(query), drawn = element('div');
		try {
			if (query.get('faithfulness')) {
				drawFaithfulness(drawn, await post('v1/explain/evaluate', {model: request.model, input: request.input}, {signal: route.signal}));
				replace(out, drawn, aboutNumbers('faithfulness'));
				return;
			}
			const answer = await post('v1/explain', request, {signal: route.signal}), saveAs = (name, type) => async () => save(name, type, await (await send('POST', 'v1/explain', {body: request, accept: type})).text());
			const tools = [element('button', {type: 'button', class: 'quiet', onclick: saveAs('explanation.svg', 'image/svg+xml')}, 'Save SVG'), element('button', {type: 'button', class: 'quiet', onclick: saveAs('explanation.html', 'text/html')}, 'Save page')];
			(answer.compare ? drawComparison : drawExplanation)(drawn, answer, tools);
			replace(out, drawn, aboutNumbers(answer.compare ? 'comparison' : 'explanation'));
		} catch (error) {
			if (!route.signal.aborted) replace(out, explainError(error, explain));
		}
	}

	if (session || (query.get('model') && (query.get('input') || query.get('token_ids')))) await explain();
}

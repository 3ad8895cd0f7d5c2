/* Evaluations of models and of their explanations: a form, a list and a report for each kind. */
import {changing, element, facts, goTo, replace, save} from './dom.js';
import {all, get, path, post, repeat, send} from './api.js';
import {choice, fields, labelOf, schema} from './form.js';
import {changes, deleteButton, showList, status, stopButton} from './list.js';
import {drawEvaluation} from './evaluation.js';
import {drawFaithfulness} from './faithfulness.js';
import {act, message} from './notice.js';
import {aboutNumbers} from './numbers.js';
import {duration, NONE, percent, significant, time} from './format.js';

const share = (done, total) => total ? percent(done / total) : NONE;

/* The progress, the settings and the result of an evaluation of a model. */
function reportOf(job) {
	const {tokens, total_tokens, eta_seconds, nats_per_token} = job.progress;
	return [element('progress', {max: 1, value: total_tokens ? tokens / total_tokens : 0, 'aria-label': 'Tokens done'}),
		facts([['Done', share(tokens, total_tokens)], ...(changes(job) ? [['Left', duration(eta_seconds)], ['Loss so far', significant(nats_per_token)]] : []), ['Model', element('a', {href: `#/models/${encodeURIComponent(job.model)}`}, job.model)],
			['File', element('a', {href: `#/files/${encodeURIComponent(job.file)}`}, job.file)], ['Created', time(job.created_at)], ['Ended', time(job.finished_at)]]),
		job.error ? message(job.error) : null, job.result ? drawEvaluation(job.result) : null,
		element('h2', {}, 'Settings'), facts(Object.entries(job.settings).map(([name, x]) => [labelOf(name), x === null ? NONE : String(x)]))];
}

function faithfulnessOf(job) {
	const drawn = element('div');
	drawFaithfulness(drawn, job);
	return drawn;
}

const savePage = (where, id) => element('button', {type: 'button', class: 'quiet', onclick: event => act(event.currentTarget, async () => save(`${id}.html`, 'text/html', await (await send('GET', where, {accept: 'text/html'})).text()))}, 'Save page');

/* create: the path that starts one. asked: the options in the form, of the schema `request`. heading, report: the title and
 * the elements of one. about: what the numbers are, and the page of its report can be saved. */
const KINDS = [
	{title: 'Evaluations', name: 'Of models', address: '#/evaluations', path: 'v1/evaluations', create: 'v1/evaluations', request: 'EvaluationRequest', asked: ['context', 'length', 'stride', 'reset_at_document', 'top'],
		says: 'An evaluation measures a model on every token of a file.', heading: job => `Evaluation of ${job.model}`, report: reportOf,
		done: row => share(row.progress.tokens, row.progress.total_tokens), columns: [{title: 'Loss', number: true, cell: row => significant(row.result && row.result.nats_per_token)}, {title: 'Perplexity', number: true, cell: row => significant(row.result && row.result.perplexity)}]},
	{title: 'Evaluations of explanations', name: 'Of explanations', address: '#/evaluations/explanations', path: 'v1/explain/evaluations', create: 'v1/explain/evaluate', request: 'ExplainEvaluateRequest', asked: ['texts', 'max_tokens', 'spread', 'far', 'soft', 'bootstrap', 'seed'],
		says: 'It measures how faithful the explanations of a model are, on the texts of a file.', heading: job => `How faithful the explanations of ${job.model} are`, report: faithfulnessOf, about: 'faithfulness',
		done: row => share(row.texts.done, row.texts.total), columns: []},
];

async function showAll(main, route, kind) {
	const [models, files, request] = await Promise.all([all('v1/models', null, route.signal), all('v1/files', null, route.signal), schema(kind.request)]);
	const chosen = route.query.get('model'), model = choice('Model', models, chosen, row => row.id), file = choice('File', files.filter(row => row.purpose === 'fine-tune'), null, row => row.filename), options = fields(request, kind.asked, 'evaluation');
	const kinds = element('span', {class: 'buttons'}, KINDS.map(each => element('a', {class: 'button', href: each.address + (chosen ? `?model=${encodeURIComponent(chosen)}` : ''), 'aria-current': each === kind ? 'page' : null}, each.name)));
	const start = element('button', {class: 'primary', disabled: !models.length || !file.select.length}, 'Evaluate');
	const form = element('form', {class: 'buttons', onsubmit: event => {
		event.preventDefault();
		act(start, () => post(kind.create, {model: model.select.value, file: file.select.value, ...options.values()}).then(() => show(main, route)), options);
	}}, model.node, file.node, start, element('details', {}, element('summary', {}, 'Options'), options.node));
	await showList(main, route, {
		title: kind.title, path: kind.path, words: row => `${row.id} ${row.model} ${row.file} ${row.status}`, actions: [kinds, form],
		columns: [
			{title: 'Model', wide: true, cell: row => element('a', {href: `${kind.address}/${encodeURIComponent(row.id)}`}, row.model)},
			{title: 'File', cell: row => (files.find(f => f.id === row.file) || {filename: row.file}).filename},
			{title: 'Status', cell: row => [status(row), row.error ? element('small', {class: 'reason', title: row.error.message}, ` ${row.error.message}`) : null]},
			{title: 'Done', number: true, cell: kind.done}, ...kind.columns,
			{title: 'Created', cell: row => time(row.created_at)},
			{title: '', cell: (row, forget, renew) => changes(row) ? stopButton('this evaluation', path(kind.path, row.id), 'What it has measured is lost.', fresh => renew(row, fresh))
				: deleteButton('this evaluation', path(kind.path, row.id), 'Its report is lost.', () => forget(row))},
		],
		empty: element('p', {}, kind.says),
	});
}

async function showReport(main, route, kind, id) {
	const where = path(kind.path, id), change = changing(['title', 'report']);
	async function draw() {
		const job = await get(where, null, route);
		change('title', [job.status, job.model], () => element('div', {class: 'title'}, element('h1', {}, kind.heading(job)), status(job), kind.about && !changes(job) ? savePage(where, id) : null,
			changes(job) ? stopButton('this evaluation', where, 'What it has measured is lost.', draw) : deleteButton('this evaluation', where, 'Its report is lost.', () => goTo(route, kind.address))));
		change('report', job, () => kind.report(job));
		return changes(job);
	}
	if (await draw()) repeat(draw, route.signal);
	replace(main, Object.values(change.parts), kind.about ? aboutNumbers(kind.about) : null);
}

export function show(main, route) {
	const second = route.parts[0] === 'explanations', kind = KINDS[second ? 1 : 0], id = route.parts[second ? 1 : 0];
	return id === undefined ? showAll(main, route, kind) : showReport(main, route, kind, id);
}

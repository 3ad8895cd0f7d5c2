/* Training jobs: a list with curves of several jobs in one plot, a form for a new one, and one job as it runs. */
import {changing, element, facts, goTo, oncePerFrame, replace} from './dom.js';
import {all, follow, get, path, post} from './api.js';
import {fields, refusals, schema} from './form.js';
import {fileChoice} from './files_view.js';
import {decideButton, deleteButton, showList, status, stopButton} from './list.js';
import {act, message} from './notice.js';
import {plot} from './plot.js';
import {count, duration, NONE, short, significant, time} from './format.js';

const ENDED = ['succeeded', 'failed', 'cancelled'];
const link = job => element('a', {href: `#/jobs/${encodeURIComponent(job.id)}`}, job.fine_tuned_model || job.id);

/* --- the list -------------------------------------------------------------------------------------------------------- */

async function showAll(main, route) {
	const chosen = new Set(), compare = element('a', {class: 'button', hidden: true}, 'Compare curves');
	const choose = id => {
		if (!chosen.delete(id)) chosen.add(id);
		compare.hidden = chosen.size < 2;
		compare.href = `#/jobs/compare?${[...chosen].map(x => `job=${encodeURIComponent(x)}`).join('&')}`;
	};
	await showList(main, route, {
		title: 'Training jobs', path: 'v1/fine_tuning/jobs', words: row => `${row.id} ${row.fine_tuned_model || ''} ${row.model} ${row.status}`,
		actions: [element('a', {class: 'button primary', href: '#/jobs/new'}, 'New job'), compare],
		columns: [
			{title: '', cell: row => element('input', {type: 'checkbox', checked: chosen.has(row.id), 'aria-label': `Compare ${row.id}`, onchange: () => choose(row.id)})},
			{title: 'Job', wide: true, cell: link},
			{title: 'Status', cell: status},
			{title: 'Step', number: true, cell: row => row.additive.total_steps ? `${count(row.additive.step)} / ${count(row.additive.total_steps)}` : NONE},
			{title: 'Loss', number: true, cell: row => significant(row.additive.train_loss)},
			{title: 'Validation', number: true, cell: row => significant(row.additive.valid_loss)},
			{title: 'From', cell: row => row.model},
			{title: 'Created', cell: row => time(row.created_at)},
		],
		empty: element('p', {}, 'A job trains a new model on a file, or trains a model further. ', element('a', {class: 'button primary', href: '#/jobs/new'}, 'New job')),
	});
}

/* --- a new job ------------------------------------------------------------------------------------------------------- */

const ARCHITECTURES = ['additive2', 'additive', 'gpt2', 'linear', 'rwkv', 'dilated', 'transformer'];
const SIZE = ['hidden', 'layers', 'heads', 'dropout'];
const FIRST = ['max_steps', 'n_epochs', 'sequence_length', 'batch_size', 'learning_rate'];
const MORE = ['schedule', 'warmup_steps', 'optimizer', 'weight_decay', 'clip', 'gradient_accumulation', 'eval_every', 'patience', 'keep_best', 'checkpoint_every', 'precision', 'recompute', 'carry_state', 'reset_at_document', 'loss_on', 'validation_fraction'];

const without = (object, names) => Object.fromEntries(Object.entries(object || {}).filter(([name]) => !names.includes(name)));

/* The settings of a request that the form has no fields for. */
function othersOf({model, training_file, suffix, seed, dry_run, hyperparameters, additive, ...top}) {
	const others = {top, hyperparameters: without(hyperparameters, ['n_epochs']), additive: without(additive, [...FIRST, ...MORE, 'size']), size: without(additive && additive.size, SIZE)};
	return {...others, names: Object.values(others).flatMap(Object.keys)};
}

/* The form begins with the settings of the job that the address names, if any. */
async function showNew(main, route) {
	const old = route.query.get('again'), [request, options, sizes, {properties: {n_epochs}}, files, models, job] = await Promise.all([schema('FineTuningJobRequest'), schema('TrainingOptions'), schema('ModelSize'), schema('Hyperparameters'),
		all('v1/files', null, route.signal), all('v1/models', null, route.signal), old ? get(path('v1/fine_tuning/jobs', old), null, route) : null]);
	const given = job ? {model: job.model, ...job.additive.recipe} : {model: route.query.get('model') || undefined, training_file: route.query.get('file')}, others = othersOf(given), ids = models.map(row => row.id);
	const from = element('select', {id: 'from', value: given.model}, element('optgroup', {label: 'A new model'}, ARCHITECTURES.map(name => element('option', {}, name))),
		element('optgroup', {label: 'Train further'}, ids.map(id => element('option', {}, id))), given.model && ![...ARCHITECTURES, ...ids].includes(given.model) ? element('option', {}, given.model) : null);
	const file = fileChoice('Training file', 'fine-tune', files, given.training_file, check);
	const size = fields(sizes, SIZE, 'size'), first = fields({properties: {...options.properties, n_epochs: {...n_epochs.anyOf.find(each => each.type === 'integer'), description: n_epochs.description}}}, FIRST, 'option', {n_epochs: 'Epochs'}), more = fields(options, MORE, 'option'), named = fields(request, ['suffix', 'seed'], 'job', {suffix: 'Name'});
	const forms = [size, first, more, named], refuse = refusals([{name: 'model', label: 'Model', input: from}, {name: 'training_file', label: 'Training file', input: file.select}, ...forms.flatMap(form => form.inputs)]);
	const keep = element('input', {type: 'checkbox', checked: true}), report = element('div', {role: 'status'}), start = element('button', {class: 'primary'}, 'Train'), sizeSet = element('fieldset', {}, element('legend', {}, 'Size of the new model'), size.node);
	let timer = 0, asked = 0;
	if (job) [[size, (given.additive || {}).size], [first, {...given.hyperparameters, ...given.additive}], [more, given.additive], [named, given]].forEach(([form, values]) => form.fill(values || {}));

	const body = () => {
		const {n_epochs: epochs, ...chosen} = first.values(), kept = keep.checked ? others : othersOf({}), sized = {...kept.size, ...size.values()}, fresh = !ids.includes(from.value) && Object.keys(sized).length;
		return {...kept.top, model: from.value, training_file: file.select.value || undefined, ...named.values(), hyperparameters: {...kept.hyperparameters, n_epochs: epochs}, additive: {...kept.additive, ...chosen, ...more.values(), ...(fresh ? {size: sized} : {})}};
	};

	/* A dry run says what the job would be, or which field is wrong, before it is started. */
	async function check() {
		sizeSet.hidden = ids.includes(from.value);
		start.disabled = true;
		const mine = ++asked; /* an answer to an earlier state of the form is not shown */
		try {
			const dry = await post('v1/fine_tuning/jobs', {...body(), dry_run: true}, {signal: route.signal}), resolved = dry.resolved;
			if (mine !== asked) return;
			refuse(null);
			[first, more].forEach(form => form.resolve(resolved));
			start.disabled = !file.select.value;
			replace(report, !resolved ? element('p', {class: 'note'}, 'Choose a file to see how long it will take.')
				: element('p', {class: 'note'}, `${short(resolved.parameters)} parameters, ${short(dry.tokens)} tokens in the file, ${count(resolved.max_steps)} steps of ${count(resolved.batch_size * resolved.sequence_length * (resolved.gradient_accumulation || 1))} tokens`,
					resolved.estimated_seconds ? `, about ${duration(resolved.estimated_seconds)} on this machine` : null, `. Objective: ${resolved.objective || 'next_token'}.`));
		} catch (error) {
			if (error.name !== 'AbortError' && mine === asked) replace(report, refuse(error, true) ? null : message(error));
		}
	}

	const soon = () => { clearTimeout(timer); timer = setTimeout(check, 300); };
	const form = element('form', {oninput: soon, onchange: soon, onsubmit: event => {
		event.preventDefault();
		act(start, async () => goTo(route, `#/jobs/${encodeURIComponent((await post('v1/fine_tuning/jobs', body())).id)}`), {refuse});
	}},
	element('fieldset', {}, element('legend', {}, 'What to train, and on what'), element('div', {class: 'fields'},
		element('div', {class: 'field'}, element('label', {for: 'from'}, 'Model'), from), element('div', {class: 'field'}, file.node)), file.drop, named.node), sizeSet,
	element('fieldset', {}, element('legend', {}, 'Training'), first.node, element('details', {}, element('summary', {}, 'More options'), more.node)),
	others.names.length ? element('p', {}, element('label', {class: 'check'}, keep, `Also as in that job: ${others.names.join(', ')}`)) : null, report, element('p', {class: 'buttons'}, start));
	replace(main, element('div', {class: 'title'}, element('h1', {}, 'New job')), form);
	check();
}

/* --- curves ----------------------------------------------------------------------------------------------------------- */

const MESSAGES = 50, LENGTH = 1000; /* messages shown of a job, the latest; characters of each */

/* Collects the metrics of a job's events; changed() is called after each. */
function watchJob(id, signal, changed) {
	const curves = {train: [], valid: [], rate: [], norm: [], preview: null, messages: []};
	const put = (list, step, value) => { if (value !== null && value !== undefined) list.push([step, value]); };
	const run = (async () => {
		for await (const event of follow(path('v1/fine_tuning/jobs', id, 'events'), signal)) {
			const data = event.data;
			if (event.type === 'metrics' && data) {
				put(curves.train, data.step, data.train_loss);
				put(curves.valid, data.step, data.valid_loss);
				put(curves.rate, data.step, data.learning_rate);
				put(curves.norm, data.step, data.gradient_norm);
				curves.preview = data.preview || curves.preview;
			} else curves.messages = [...curves.messages, {...event, message: event.message.slice(0, LENGTH)}].slice(-MESSAGES);
			changed(event);
		}
	})();
	return {curves, run};
}

/* Short names of jobs. Jobs of one name get the ends of their ids, too. */
function namesOf(jobs) {
	const names = jobs.map(job => (job.additive.recipe || {}).suffix || job.fine_tuned_model || job.id);
	return names.map((name, i) => names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (\u2026${jobs[i].id.slice(-6)})`);
}

async function showComparison(main, route) {
	const ids = route.query.getAll('job'), loss = plot({name: 'Training loss', xName: 'step', yName: 'nats per token'}), valid = plot({name: 'Validation loss', xName: 'step', yName: 'nats per token'});
	replace(main, element('div', {class: 'title'}, element('h1', {}, `${ids.length} jobs`), element('a', {class: 'button', href: '#/jobs'}, 'All jobs')), loss.node, valid.node);
	const jobs = await Promise.all(ids.map(id => get(path('v1/fine_tuning/jobs', id), null, route))), names = namesOf(jobs);
	const watched = jobs.map(({id}, i) => ({title: id, name: names[i], ...watchJob(id, route.signal, () => draw())}));
	const draw = oncePerFrame(() => {
		for (const [drawn, kind] of [[loss, 'train'], [valid, 'valid']]) drawn.set(watched.map(({name, title, curves}) => ({name, title, points: curves[kind]})));
	});
	await Promise.all(watched.map(w => w.run));
}

/* --- one job ---------------------------------------------------------------------------------------------------------- */

function buttons(job, where, route, again, begin) {
	const call = (title, action, kind) => element('button', {type: 'button', class: kind, onclick: event => act(event.currentTarget, () => post(`${where}/${action}`).then(again))}, title);
	const ended = ENDED.includes(job.status);
	return element('p', {class: 'buttons'}, job.status === 'succeeded' && job.fine_tuned_model ? element('a', {class: 'button primary', href: `#/play?model=${encodeURIComponent(job.fine_tuned_model)}`}, 'Talk to it') : null,
		job.status === 'running' || job.status === 'queued' ? call('Pause', 'pause') : null, job.status === 'paused' ? call('Resume', 'resume', 'primary') : null,
		ended && job.status !== 'succeeded' ? decideButton('Resume', 'this job', 'It continues from its newest checkpoint, under the same id.', () => post(`${where}/resume`), begin, true) : null,
		ended && job.additive.recipe ? element('a', {class: 'button', href: `#/jobs/new?again=${encodeURIComponent(job.id)}`}, 'Train again with these settings') : null,
		ended ? deleteButton('this job', where, 'Its curves and its checkpoints are lost. Its finished model is kept.', () => goTo(route, '#/jobs')) : stopButton('this job', where, 'It ends for good unless it is resumed from a checkpoint. Its checkpoints are kept.', again));
}

async function showOne(main, route, id) {
	const where = path('v1/fine_tuning/jobs', id), change = changing(['title', 'buttons', 'state', 'options', 'checkpoints']), preview = element('pre', {class: 'preview'}), log = element('ol', {class: 'log'});
	const loss = plot({name: 'Loss', xName: 'step', yName: 'nats per token'}), rate = plot({name: 'Learning rate', xName: 'step', yName: 'rate'}), norm = plot({name: 'Gradient norm', xName: 'step', yName: 'norm'});
	const samples = element('section', {hidden: true}, element('h2', {}, 'What it writes'), preview);

	async function drawHead() {
		const job = await get(where, null, route), a = job.additive, share = a.total_steps ? a.step / a.total_steps : 0;
		change('title', [job.id, job.fine_tuned_model, job.status], () => element('div', {class: 'title'}, element('h1', {}, job.fine_tuned_model || job.id), status(job)));
		change('buttons', [job.fine_tuned_model, job.status], () => buttons(job, where, route, drawHead, () => showOne(main, route, id)));
		change('state', job, () => [element('progress', {max: 1, value: share, 'aria-label': 'Steps done'}),
			facts([['Step', a.total_steps ? `${count(a.step || 0)} of ${count(a.total_steps)}` : NONE], ...(a.queue_position ? [['Place in the queue', count(a.queue_position)], ['Expected start', time(a.expected_start)]] : [['Left', ENDED.includes(job.status) ? NONE : duration(a.eta_seconds)]]), ['Tokens per second', short(a.tokens_per_second)],
				['Training loss', significant(a.train_loss)], ['Validation loss', significant(a.valid_loss)], ['Bits per byte', significant(a.bits_per_byte)], ['From', job.model], ['Created', time(job.created_at)]]),
			job.error && job.error.message ? message(job.error) : null, a.paused_reason ? message(a.paused_reason) : null]);
		change('options', a.resolved, () => a.resolved ? element('details', {}, element('summary', {}, 'Options'), element('pre', {}, JSON.stringify(a.resolved, null, 2))) : null);
		const list = await get(`${where}/checkpoints`, null, route);
		change('checkpoints', list.data, () => list.data.length ? [element('h2', {}, 'Checkpoints'), element('table', {}, element('tbody', {}, list.data.map(row => element('tr', {}, element('td', {class: 'number'}, `step ${count(row.step_number)}`),
			element('td', {}, element('a', {href: `#/play?model=${encodeURIComponent(row.fine_tuned_model_checkpoint)}`}, row.fine_tuned_model_checkpoint)), element('td', {class: 'number'}, significant(row.metrics.valid_loss))))))] : null);
		return job;
	}

	await drawHead();
	const {checkpoints, ...head} = change.parts;
	replace(main, Object.values(head), loss.node, samples, element('details', {}, element('summary', {}, 'Learning rate and gradient'), rate.node, norm.node), checkpoints, element('details', {}, element('summary', {}, 'Messages'), log));
	const draw = oncePerFrame(() => {
		loss.set([{name: 'training', points: curves.train}, {name: 'validation', points: curves.valid, dots: curves.valid.length < 40}]);
		rate.set([{name: 'rate', points: curves.rate}]);
		norm.set([{name: 'norm', points: curves.norm}]);
		const {preview: latest} = curves;
		samples.hidden = !latest;
		if (latest) replace(preview, element('span', {class: 'prompt'}, latest.prompt), latest.text);
		replace(log, curves.messages.map(event => element('li', {class: event.level}, element('time', {}, time(event.created_at)), ` ${event.message}`)));
	});
	const {curves, run} = watchJob(id, route.signal, () => draw());
	draw();
	const timer = setInterval(() => { drawHead().catch(() => {}); }, 2000);
	route.signal.addEventListener('abort', () => clearInterval(timer), {once: true});
	await run;
	clearInterval(timer);
	if (!route.signal.aborted) await drawHead();
}

export function show(main, route) {
	const [name] = route.parts;
	return name === undefined ? showAll(main, route) : name === 'new' ? showNew(main, route) : name === 'compare' ? showComparison(main, route) : showOne(main, route, name);
}

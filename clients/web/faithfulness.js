/* An evaluation of explanations: the means of all methods, their curves, then a chart and a table for each metric. */
import {element, facts, replace, svg} from './dom.js';
import {NONE, plural, significant} from './format.js';
import {plot} from './plot.js';

const METRICS = {
	comprehensiveness: ['Comprehensiveness', 'nats'], sufficiency: ['Sufficiency', 'nats'], deletion_auc: ['Deletion', 'mean log-probability, nats'], insertion_auc: ['Insertion', 'mean log-probability, nats'],
	normalised_aopc: ['Normalised AOPC', '0 to 1'], kendall_tau: ['Kendall\u2019s \u03c4 with leave-one-out', '\u22121 to 1'], soft_comprehensiveness: ['Soft comprehensiveness', 'nats'], soft_sufficiency: ['Soft sufficiency', 'nats'], far_drop: ['Far drop', 'nats']};
const WIDTH = 560, NAMES = 180, ROW = 22, BAR = 12;

const nameOf = metric => `${(METRICS[metric.metric] || [metric.metric])[0]}${metric.fraction === undefined ? '' : `, ${significant(100 * metric.fraction, 3)} %`}`;
const value = x => x === null || x === undefined ? NONE : (x > 0 ? '+' : '') + significant(x);
const estimate = numbers => !numbers ? NONE : `${value(numbers.mean)}${numbers.interval ? ` [${value(numbers.interval[0])}, ${value(numbers.interval[1])}]` : ''}`;

/* 1: better than recency by more than the interval, -1: worse. */
function verdict(method, metric, k) {
	const {interval} = method.numbers[k].less_recency || {}, side = !interval ? 0 : interval[0] > 0 ? 1 : interval[1] < 0 ? -1 : 0;
	return metric.better === 'lower' ? -side : side;
}

function overview({metrics, methods}) {
	return element('div', {class: 'scroll'}, element('table', {id: 'overview'}, element('caption', {}, '\u25b2 better and \u25bc worse than recency, where the interval of the difference does not contain 0'),
		element('thead', {}, element('tr', {}, element('td'), methods.map(method => element('th', {scope: 'col', class: 'number'}, method.method)))),
		element('tbody', {}, metrics.map((metric, k) => element('tr', {}, element('th', {scope: 'row'}, nameOf(metric)), methods.map(method => {
			const side = verdict(method, metric, k);
			return element('td', {class: 'number'}, value(method.numbers[k].mean), side > 0 ? element('abbr', {title: 'better than recency'}, ' \u25b2') : side < 0 ? element('abbr', {title: 'worse than recency'}, ' \u25bc') : null);
		}))))));
}

/* Bars of the means with their intervals; a ring marks the reversed order, baselines are pale. */
function bars(name, methods, k) {
	const rows = methods.map(method => method.numbers[k]), found = rows.flatMap(row => [row.mean, ...(row.interval || []), row.reverse && row.reverse.mean]).filter(Number.isFinite);
	const low = Math.min(0, ...found), high = Math.max(0, ...found, low + 1e-9), x = v => NAMES + (v - low) / (high - low) * (WIDTH - NAMES - 16), text = (at, y, anchor, said) => svg('text', {x: at, y, 'text-anchor': anchor, fill: 'currentColor'}, said);
	const picture = svg('svg', {viewBox: `0 0 ${WIDTH} ${rows.length * ROW + 24}`, class: 'plot', role: 'img', 'aria-label': name});
	rows.forEach((row, i) => {
		const y = i * ROW + ROW / 2;
		picture.append(text(NAMES - 8, y + 4, 'end', methods[i].method));
		if (!Number.isFinite(row.mean)) return;
		picture.append(svg('rect', {x: x(Math.min(0, row.mean)), y: y - BAR / 2, width: Math.abs(x(row.mean) - x(0)), height: BAR, fill: methods[i].baseline ? 'currentColor' : 'var(--series-1)', 'fill-opacity': methods[i].baseline ? 0.3 : 1}, svg('title', {}, `${methods[i].method} ${estimate(row)}`)));
		if (row.interval) picture.append(svg('path', {d: `M${x(row.interval[0])} ${y}H${x(row.interval[1])}`, stroke: 'currentColor', 'stroke-width': 1.5}));
		if (row.reverse && Number.isFinite(row.reverse.mean)) picture.append(svg('circle', {cx: x(row.reverse.mean), cy: y, r: 4, fill: 'none', stroke: 'currentColor', 'stroke-width': 1.5}));
	});
	picture.append(svg('path', {d: `M${x(0)} 0V${rows.length * ROW}`, stroke: 'currentColor', 'stroke-opacity': 0.6}), text(x(low), rows.length * ROW + 16, 'start', significant(low, 3)), text(x(high), rows.length * ROW + 16, 'end', significant(high, 3)));
	return element('figure', {}, picture, element('figcaption', {class: 'note'}, 'Bars: means, with intervals. \u25cb: the reversed order. Grey: baselines.'));
}

function section(metric, methods, k) {
	const unit = (METRICS[metric.metric] || ['', ''])[1];
	return element('section', {class: 'metric'}, element('h3', {}, nameOf(metric), element('small', {}, ` (${unit ? `${unit}; ` : ''}${metric.better} is better)`)), bars(nameOf(metric), methods, k),
		element('div', {class: 'scroll'}, element('table', {}, element('thead', {}, element('tr', {}, element('td'), ['Mean', 'Reversed', 'Less random', 'Less recency', 'Predictions'].map(title => element('th', {scope: 'col', class: 'number'}, title)))),
			element('tbody', {}, methods.map(method => element('tr', {}, element('th', {scope: 'row'}, method.method), ['', 'reverse', 'less_random', 'less_recency'].map(name => element('td', {class: 'number'}, estimate(name ? method.numbers[k][name] : method.numbers[k]))),
				element('td', {class: 'number'}, method.numbers[k].count)))))));
}

function curves(methods, which, says) {
	const made = plot({name: which === 'deletion' ? 'Deletion' : 'Insertion', xName: which === 'deletion' ? '% of the tokens removed' : '% of the tokens read', yName: 'log-probability, nats'});
	made.set(methods.map(({method, curve}) => ({name: method, points: curve.fractions.map((x, i) => [100 * x, curve[which][i]])})));
	return [made.node, element('p', {class: 'note'}, says)];
}

function drawResult(e) {
	const confidence = e.settings.confidence;
	return [element('p', {}, `${plural(e.positions, 'prediction')} of ${plural(e.texts, 'text')}${confidence ? `; intervals of ${significant(100 * confidence, 3)} % by a bootstrap over ${e.resampled}` : ''}. The mean log-probability of what is explained is ${significant(e.log_probability)}, and ${significant(e.empty)} without all tokens but the reader. ${plural(e.readings, 'reading')} of ${plural(e.tokens_read, 'token')} in all took ${significant(e.seconds)} s.`),
		element('h2', {}, 'Means of all methods'), overview(e), element('h2', {}, 'Curves'),
		curves(e.methods, 'deletion', 'The mean log-probability without the first part of the tokens, in the order of each method. A steep fall is better.'),
		curves(e.methods, 'insertion', 'The same with only the first part of the tokens. A steep rise is better.'),
		element('h2', {}, 'Each metric'), e.metrics.map((metric, k) => section(metric, e.methods, k))];
}

/** Draw an evaluation of explanations, or a job of one, into node. */
export function drawFaithfulness(node, answer) {
	const job = answer.status ? answer : null, result = job ? job.result : answer, settings = (result || job).settings;
	replace(node, job ? [facts([['Job', job.id], ['File', job.file], ['Status', job.status], ['Texts', `${job.texts.done}${job.texts.total === null ? '' : ` of ${job.texts.total}`}`]]), job.error ? element('p', {class: 'error'}, job.error.message) : null] : null,
		result ? drawResult(result) : null, element('h2', {}, 'Settings'), facts(Object.entries(settings).map(([name, x]) => [name, JSON.stringify(x)])));
}

/* Curves over steps: several series in one plot, with smoothing, a logarithmic axis and the values under the pointer.
 * An SVG, so a reader can save it as it is. */
import {element, oncePerFrame, save, svg, svgText} from './dom.js';
import {significant, short} from './format.js';

const HEIGHT = 300, LEFT = 56, RIGHT = 12, TOP = 12, BOTTOM = 36, POINTS = 600;
/* Each series has a colour and a dash of its own, so no colour has to be told from another. */
const DASHES = ['', '6 3', '2 3', '8 3 2 3', '12 4', '1 4'];

/** Round steps of an axis: about `n` values in [low, high]. */
export function ticks(low, high, n) {
	const raw = (high - low) / n || 1, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find(k => k * power >= raw) * power;
	const out = [];
	for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) out.push(Math.abs(x) < step * 1e-9 ? 0 : x);
	return out;
}

/** An exponential mean with the given weight of the past, without the bias of its start. */
export function smooth(values, weight) {
	let sum = 0, total = 0;
	return values.map(y => {
		sum = weight * sum + (1 - weight) * y;
		total = weight * total + (1 - weight);
		return sum / total;
	});
}

/* At most POINTS points: of each stretch the smallest and the largest value. */
function thin(points) {
	if (points.length <= POINTS) return points;
	const out = [], stretch = 2 * points.length / POINTS;
	for (let at = 0; at < points.length; at += stretch) {
		const part = points.slice(Math.floor(at), Math.floor(at + stretch));
		if (!part.length) continue;
		const low = part.reduce((a, b) => b[1] < a[1] ? b : a), high = part.reduce((a, b) => b[1] > a[1] ? b : a);
		out.push(...(low[0] < high[0] ? [low, high] : low === high ? [low] : [high, low]));
	}
	return out;
}

function nearest(points, x) {
	let low = 0, high = points.length - 1;
	while (high - low > 1) {
		const middle = (low + high) >> 1;
		if (points[middle][0] < x) low = middle;
		else high = middle;
	}
	return points[high] && points[low] && Math.abs(points[high][0] - x) < Math.abs(points[low][0] - x) ? points[high] : points[low];
}

/** Make a plot. xName, yName: names and units of the axes. Returns {node, set(series)}; a series is
 * {name, title, points: [[x, y], …] in the order of x, dots: true for single marks}; title: more about it in the legend. */
export function plot({name, xName, yName}) {
	const picture = svg('svg', {class: 'plot', role: 'img', 'aria-label': name, height: HEIGHT});
	const legend = element('ul', {class: 'legend'}), readout = element('p', {class: 'note', 'aria-live': 'off'}, '\u00a0');
	const smoothing = element('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: '0', oninput: () => draw()});
	const log = element('input', {type: 'checkbox', onchange: () => draw()});
	const node = element('figure', {class: 'plotted'}, element('div', {class: 'controls'}, element('strong', {}, name),
		element('label', {}, 'Smoothing ', smoothing), element('label', {class: 'check'}, log, 'Logarithmic'),
		element('button', {type: 'button', class: 'quiet', onclick: () => save(`${name}.svg`, 'image/svg+xml', svgText(picture))}, 'Save as SVG')),
	picture, legend, readout);
	let series = [], drawn = [], axis = null, width = 720;

	function scale(points) {
		const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
		const low = ys.reduce((a, b) => Math.min(a, b)), high = ys.reduce((a, b) => Math.max(a, b)), pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
		const y0 = log.checked ? Math.log10(low) - 0.02 : low - pad, y1 = log.checked ? Math.log10(high) + 0.02 : high + pad;
		const x0 = xs.reduce((a, b) => Math.min(a, b)), x1 = Math.max(x0 + 1, xs.reduce((a, b) => Math.max(a, b)));
		return {
			x0, x1, y0, y1,
			x: v => LEFT + (v - x0) / (x1 - x0) * (width - LEFT - RIGHT),
			y: v => TOP + (y1 - (log.checked ? Math.log10(v) : v)) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)};
	}

	function drawAxes() {
		const grid = [], line = (x1, y1, x2, y2) => svg('line', {x1, y1, x2, y2, stroke: 'currentColor', 'stroke-opacity': 0.15});
		for (const x of ticks(axis.x0, axis.x1, 6))
			grid.push(line(axis.x(x), TOP, axis.x(x), HEIGHT - BOTTOM), svg('text', {x: axis.x(x), y: HEIGHT - BOTTOM + 14, 'text-anchor': 'middle', fill: 'currentColor'}, short(x)));
		const values = log.checked ? ticks(axis.y0, axis.y1, 5).map(v => 10 ** v) : ticks(axis.y0, axis.y1, 5);
		for (const y of values)
			grid.push(line(LEFT, axis.y(y), width - RIGHT, axis.y(y)), svg('text', {x: LEFT - 6, y: axis.y(y) + 4, 'text-anchor': 'end', fill: 'currentColor'}, significant(y, 3)));
		grid.push(svg('text', {x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 4, 'text-anchor': 'middle', fill: 'currentColor'}, xName),
			svg('text', {x: 12, y: HEIGHT / 2, 'text-anchor': 'middle', transform: `rotate(-90 12 ${HEIGHT / 2})`, fill: 'currentColor'}, yName));
		return grid;
	}

	function draw() {
		const weight = Number(smoothing.value);
		width = picture.clientWidth || width;
		picture.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
		drawn = series.map(({points, ...rest}, i) => {
			const kept = points.filter(p => p.every(Number.isFinite) && (!log.checked || p[1] > 0)), ys = rest.dots ? kept.map(p => p[1]) : smooth(kept.map(p => p[1]), weight);
			return {...rest, colour: `var(--series-${i % 6})`, dash: DASHES[Math.floor(i / 6) % 6] || DASHES[i % 6], points: kept.map((p, k) => [p[0], ys[k]])};
		}).filter(s => s.points.length);
		legend.replaceChildren(...drawn.map(s => element('li', {title: s.title}, svg('svg', {width: 28, height: 10, 'aria-hidden': 'true'},
			s.dots ? svg('circle', {cx: 14, cy: 5, r: 3.5, fill: 'none', stroke: s.colour, 'stroke-width': 2}) : svg('line', {x1: 0, x2: 28, y1: 5, y2: 5, stroke: s.colour, 'stroke-width': 2.5, 'stroke-dasharray': s.dash})), s.name)));
		if (!drawn.length) {
			picture.replaceChildren(svg('text', {x: width / 2, y: HEIGHT / 2, 'text-anchor': 'middle', fill: 'currentColor'}, 'No values yet'));
			axis = null;
			return;
		}
		axis = scale(drawn.flatMap(s => s.points));
		picture.replaceChildren(...drawAxes(), ...drawn.flatMap(s => s.dots
			? s.points.map(p => svg('circle', {cx: axis.x(p[0]), cy: axis.y(p[1]), r: 3.5, fill: 'none', stroke: s.colour, 'stroke-width': 2}))
			: [svg('path', {d: 'M' + thin(s.points).map(p => `${axis.x(p[0]).toFixed(1)} ${axis.y(p[1]).toFixed(1)}`).join('L'), fill: 'none', stroke: s.colour, 'stroke-width': 1.8, 'stroke-dasharray': s.dash || null})]));
	}

	picture.addEventListener('pointermove', event => {
		if (!axis) return;
		const box = picture.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width, x = axis.x0 + (at - LEFT) / (width - LEFT - RIGHT) * (axis.x1 - axis.x0);
		const values = drawn.map(s => [s, nearest(s.points, x)]);
		readout.textContent = `${xName} ${Math.round(values[0][1][0])}: ` + values.map(([s, p]) => `${s.name} ${significant(p[1])}`).join(', ');
	});

	const soon = oncePerFrame(draw);
	new ResizeObserver(() => { if (picture.clientWidth !== width) soon(); }).observe(picture);
	return {node, set(next) { series = next; soon(); }};
}

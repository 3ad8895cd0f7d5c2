/* Numbers, sizes and times as text. */

const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
/* Making a format costs more than its use. */
const number = new Intl.NumberFormat('en'), moment = new Intl.DateTimeFormat(undefined, {dateStyle: 'medium', timeStyle: 'short'});

export const NONE = '\u2013';

export function count(n) {
	return n === null || n === undefined ? NONE : number.format(n);
}

/** "1 day", "1,234 days". */
export function plural(n, name) {
	return `${count(n)} ${name}${n === 1 ? '' : 's'}`;
}

/** 1,234 as "1.23 k", 1,300,000,000 as "1.30 G". */
export function short(n) {
	if (n === null || n === undefined) return NONE;
	let unit = 0;
	while (Math.abs(n) >= 1000 && unit < 4) {
		n /= 1000;
		unit++;
	}
	return unit ? `${n.toPrecision(3)} ${' kMGT'[unit]}` : String(Math.round(n));
}

export function size(bytes) {
	if (bytes === null || bytes === undefined) return NONE;
	let unit = 0;
	while (bytes >= 1024 && unit < UNITS.length - 1) {
		bytes /= 1024;
		unit++;
	}
	return unit ? `${bytes.toPrecision(3)} ${UNITS[unit]}` : plural(bytes, 'byte');
}

export function significant(x, digits = 4) {
	return x === null || x === undefined || !Number.isFinite(x) ? NONE : Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(digits - 2) : x.toPrecision(digits);
}

export function percent(x) {
	return x === null || x === undefined ? NONE : `${(100 * x).toFixed(x < 0.001 ? 3 : x < 0.1 ? 2 : 1)} %`;
}

export function logits(x) {
	const size = Math.abs(x);
	return (x < 0 ? '\u2212' : '+') + (size > 0 && size < 1e-4 ? size.toExponential(2) : size.toPrecision(4));
}

/** Seconds as "3 s", "4 min 5 s", "2 h 3 min", "1 day". */
export function duration(seconds) {
	if (seconds === null || seconds === undefined) return NONE;
	const s = Math.round(seconds);
	if (s < 60) return `${s} s`;
	if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
	if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
	return plural(Math.floor(s / 86400), 'day');
}

/** Unix seconds as local time. */
export function time(seconds) {
	return seconds ? moment.format(seconds * 1000) : NONE;
}

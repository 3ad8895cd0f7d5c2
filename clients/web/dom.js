/* Elements without markup: every text becomes a text node. */

/* Set last: a range clips its value, and a select has none without its options. */
const STATES = ['value', 'checked', 'selected'];

/** element('a', {href: '#/', class: 'x', onclick: f, hidden: true}, 'text', child, [children]). A property that is null,
 * undefined or false is left out; true is an empty attribute; "on…" is a listener; `dataset` and `style` are objects. */
export function element(name, properties, ...children) {
	const made = document.createElement(name);
	for (const [key, value] of Object.entries(properties || {})) {
		if (value === null || value === undefined || value === false) continue;
		if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
		else if (key === 'dataset') Object.assign(made.dataset, value);
		else if (key === 'style') for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
		else if (!STATES.includes(key)) made.setAttribute(key, value === true ? '' : value);
	}
	append(made, children);
	for (const key of STATES) if (properties && properties[key] !== undefined && properties[key] !== null) made[key] = properties[key];
	return made;
}

function append(parent, children) {
	for (const child of children.flat(Infinity))
		if (child !== null && child !== undefined && child !== false) parent.append(child);
}

export function replace(parent, ...children) {
	parent.replaceChildren();
	append(parent, children);
}

/** Control characters as pictures, line ends as an arrow and a line end, an empty text as a middle dot. */
export function visible(text) {
	return text ? text.replaceAll('\n', '\u21b5\n').replace(/[\u0000-\u0008\u000b-\u001f]/g, c => String.fromCharCode(0x2400 + c.charCodeAt(0))) : '\u00b7';
}

const SPACES = {'\t': '\u2409', '\u00a0': '\u237d'}; /* all others are an open box */

/** Likewise the text of one token outside its text, on one line, with a sign for each space. A text marks tokens of spaces
 * alone with the same sign (`data-blank` in style.css), so that it is copied as it is. */
export function visibleToken(text) {
	return visible(text).replaceAll('\n', '').replace(/\s/g, space => SPACES[space] || '\u2423');
}

/** The cell of a token in a table. */
export function tokenCell(text, ...more) {
	return element('td', {class: 'token'}, visibleToken(text), more);
}

/** A visible text in quotation marks, on one line. */
export function quoted(text) {
	return `\u201c${text.replaceAll('\n', '')}\u201d`;
}

/** Parts of a view that is drawn again and again. change(name, value, make) draws a part only if its value is another
 * one, so what the reader opened or focused stays. change.parts has their elements. */
export function changing(names) {
	const parts = Object.fromEntries(names.map(name => [name, element('div')])), seen = {};
	const change = (name, value, make) => {
		const text = JSON.stringify(value) || '';
		if (seen[name] === text) return;
		seen[name] = text;
		replace(parts[name], make());
	};
	change.parts = parts;
	return change;
}

/** A box in which a wide table scrolls sideways, so that the page does not. */
export function scrollBox(label, ...content) {
	return element('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, content);
}

/** A list of names and values: facts([['Step', '3 of 4'], …]). */
export function facts(rows) {
	return element('dl', {class: 'facts'}, rows.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value))));
}

const SVG = 'http://www.w3.org/2000/svg';

/** An element of a picture. */
export function svg(name, attributes, ...children) {
	const made = document.createElementNS(SVG, name);
	for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
	made.append(...children);
	return made;
}

/** A picture as a file, with the colours that it has now. */
export function svgText(picture) {
	const style = getComputedStyle(picture);
	return `<svg xmlns="${SVG}" font-family="sans-serif" font-size="12"${picture.outerHTML.slice(4).replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => style.getPropertyValue(name).trim()).replaceAll('currentColor', '#333')}`;
}

/** One call for all requests of an animation frame. */
export function oncePerFrame(call) {
	let requested = false;
	return () => {
		if (requested) return;
		requested = true;
		requestAnimationFrame(() => { requested = false; call(); });
	};
}

export function copyText(text) {
	return navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject(new Error('the browser gives no clipboard to pages without TLS'));
}

/** Show another view, unless the reader has left that of this route. */
export function goTo(route, hash) {
	if (!route.signal.aborted) location.hash = hash;
}

/** Let the reader save a file. */
export function save(name, type, ...parts) {
	const url = URL.createObjectURL(new Blob(parts, {type}));
	element('a', {href: url, download: name}).click();
	setTimeout(() => URL.revokeObjectURL(url), 60000);
}

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

/** A list of names and values: facts([['Step', '3 of 4'], …]). */
export function facts(rows) {
	return element('dl', {class: 'facts'}, rows.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value))));
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

/** Let the reader save a file. */
export function save(name, type, ...parts) {
	const url = URL.createObjectURL(new Blob(parts, {type}));
	element('a', {href: url, download: name}).click();
	setTimeout(() => URL.revokeObjectURL(url), 60000);
}

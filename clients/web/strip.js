/* A text as a row of tokens. One token is current: the pointer or the keyboard reached it last. Arrow keys, Home and
 * End move on from it. Tokens are in blocks, so that a new one costs the layout of its block and not that of the text. */
import {element, oncePerFrame, visible} from './dom.js';

/* A block ends with a line of the text once it has BLOCK tokens, or after LONGEST. At most PIECE elements are made in one
 * frame. */
const BLOCK = 200, LONGEST = 1000, PIECE = 400;

/** Make a strip. options: label; current(i, pointed) is called when token i becomes current, chosen(i) on a click or
 * Enter, made(i, box) when the element of token i was made. A token is {text, kind}; kind is a class or null.
 * Returns {node, boxes, add(token), set(from, tokens)}. boxes: the elements made so far, of the first tokens. set: the
 * tokens from index `from` on are these; elements of tokens that stay, before and after the change, stay. */
export function strip({label, current, chosen, made}) {
	const node = element('div', {class: 'strip', role: 'listbox', 'aria-label': label, 'aria-orientation': 'horizontal'}), boxes = [];
	let items = [], at = 0;

	const indexOf = event => event.target.closest('[role=option]') ? boxes.indexOf(event.target.closest('[role=option]')) : -1;

	function reach(i, pointed) {
		if (boxes[at]) boxes[at].tabIndex = -1;
		at = i;
		boxes[i].tabIndex = 0;
		if (current) current(i, pointed);
	}

	/* The nearest token of the line below (step 1) or above (-1). */
	function vertical(step) {
		const start = boxes[at].getBoundingClientRect();
		for (let i = at + step; i >= 0 && i < boxes.length; i += step) {
			const box = boxes[i].getBoundingClientRect();
			if (step * (box.top - start.top) > start.height / 2 && step * (box.left - start.left) >= 0) return i;
		}
		return at;
	}

	node.addEventListener('keydown', event => {
		const moves = {ArrowRight: () => at + 1, ArrowLeft: () => at - 1, ArrowDown: () => vertical(1), ArrowUp: () => vertical(-1), Home: () => 0, End: () => boxes.length - 1};
		if (event.ctrlKey || event.altKey || event.metaKey) return;
		if (event.key === 'Enter' && chosen) chosen(at);
		else if (moves[event.key]) boxes[Math.min(boxes.length - 1, Math.max(0, moves[event.key]()))].focus();
		else return;
		event.preventDefault();
	});
	node.addEventListener('focusin', event => { const i = indexOf(event); if (i >= 0) reach(i); });
	node.addEventListener('pointerover', event => { const i = indexOf(event); if (i >= 0 && i !== at) reach(i, true); });
	if (chosen) node.addEventListener('click', event => { const i = indexOf(event); if (i >= 0) chosen(i); });

	function makeBox(i) {
		const {text, kind} = items[i], shown = visible(text), blank = !shown.trim(), box = element('span', {role: 'option', class: kind, tabindex: -1, 'data-blank': blank, 'aria-label': blank ? 'white space' : null}, shown);
		if (made) made(i, box);
		return box;
	}

	const isFull = (block, last) => block.childElementCount >= LONGEST || (block.childElementCount >= BLOCK && last.text.endsWith('\n'));

	/* Make elements of the next tokens that have none. */
	function grow() {
		let block = node.lastChild;
		for (const end = Math.min(items.length, boxes.length + PIECE); boxes.length < end;) {
			const i = boxes.length;
			if (!block || isFull(block, items[i - 1])) node.append(block = element('span', {class: 'block'}));
			boxes.push(block.appendChild(makeBox(i)));
		}
		if (boxes[at]) boxes[at].tabIndex = 0;
		if (boxes.length < items.length) soon();
	}

	const soon = oncePerFrame(grow);

	function add(token) {
		items.push(token);
		soon();
	}

	function removeBoxes(first, n, ...instead) {
		for (const box of boxes.splice(first, n, ...instead)) {
			const block = box.parentNode;
			box.remove();
			if (!block.childElementCount) block.remove();
		}
	}

	function set(from, tokens) {
		const old = items, next = items.slice(0, from).concat(tokens), change = next.length - old.length, here = boxes[at];
		const same = (i, j) => old[i].text === next[j].text;
		let first = from, end = old.length; /* the old tokens from first to end are replaced */
		while (first < Math.min(old.length, next.length) && same(first, first)) first++;
		while (end > first && end + change > first && same(end - 1, end - 1 + change)) end--;
		items = next;
		if (end < boxes.length && end + change - first <= PIECE) {
			const after = boxes[end > first ? first : end], some = items.slice(first, end + change).map((_, k) => after.parentNode.insertBefore(makeBox(first + k), after));
			removeBoxes(first, end - first, ...some);
		} else if (first < boxes.length) removeBoxes(first, boxes.length - first);
		const renew = (i, before) => { if (boxes[i] && before.kind !== items[i].kind) boxes[i].className = items[i].kind || ''; };
		for (let i = from; i < first; i++) renew(i, old[i]);
		for (let i = end; i < old.length; i++) renew(i + change, old[i]);
		at = boxes.indexOf(here);
		if (at < 0) at = Math.max(0, Math.min(first, boxes.length - 1));
		grow();
	}

	return {node, boxes, add, set};
}

/** Colour a token by a share from -1 to 1: orange for, blue against; the line below says the sign without colour. */
export function colour(box, share) {
	box.style.setProperty('--w', Math.min(1, Math.abs(share)).toFixed(3));
	box.classList.toggle('minus', share < 0);
	box.classList.toggle('plus', share > 0);
}

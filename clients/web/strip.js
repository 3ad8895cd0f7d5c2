/* A text as a row of tokens. One token is current: the pointer or the keyboard reached it last. Arrow keys, Home and
 * End move on from it. Tokens are in blocks, so that no element has thousands of children. */
import {element, visible} from './dom.js';

const BLOCK = 200; /* tokens of a block */

/** Make a strip. options: label, current(i, pointed) called when token i becomes current, chosen(i) on a click or Enter.
 * Returns {node, boxes, add(text, class), cut(n): keep the first n tokens}. */
export function strip({label, current, chosen}) {
	const node = element('div', {class: 'strip', role: 'listbox', 'aria-label': label, 'aria-orientation': 'horizontal'}), boxes = [];
	let block = null, at = 0;

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

	function add(text, kind) {
		if (!block || block.childElementCount >= BLOCK) node.append(block = element('span', {class: 'block'}));
		const shown = visible(text), box = element('span', {role: 'option', class: kind, tabindex: boxes.length ? -1 : 0, 'aria-label': shown.trim() ? null : 'white space'}, shown);
		boxes.push(box);
		block.append(box);
		return box;
	}

	function cut(n) {
		for (const box of boxes.splice(n)) box.remove();
		while (node.lastChild && !node.lastChild.childElementCount) node.lastChild.remove();
		block = node.lastChild;
		at = Math.min(at, Math.max(0, n - 1));
		if (boxes[at]) boxes[at].tabIndex = 0;
	}

	return {node, boxes, add, cut};
}

/** Colour a token by a share from -1 to 1: orange for, blue against; the line below says the sign without colour. */
export function colour(box, share) {
	box.style.setProperty('--w', Math.min(1, Math.abs(share)).toFixed(3));
	box.classList.toggle('minus', share < 0);
	box.classList.toggle('plus', share > 0);
}

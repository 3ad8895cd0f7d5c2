// A list of boxes of which one is in hand: the one that the pointer or the keyboard has reached last. Arrow keys, Home and End move on from it.
// take(i) is called for each box that comes into hand. Returns the function that takes one in hand.
function strip(list, boxes, first, take) {
	let focus = first;

	function reach(i) {
		boxes[focus].tabIndex = -1;
		focus = i;
		boxes[i].tabIndex = 0;
		take(i);
	}

	// The nearest box of the line below (step 1) or above (-1).
	function vertical(from, step) {
		const start = boxes[from].getBoundingClientRect();
		for (let i = from + step; i >= 0 && i < boxes.length; i += step) {
			const box = boxes[i].getBoundingClientRect();
			if (step * (box.top - start.top) > start.height / 2 && step * (box.left - start.left) >= 0) return i;
		}
		return from;
	}

	function key(event) {
		const moves = {
			ArrowRight: () => focus + 1, ArrowLeft: () => focus - 1, ArrowDown: () => vertical(focus, 1), ArrowUp: () => vertical(focus, -1),
			Home: () => 0, End: () => boxes.length - 1};
		if (!moves[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
		event.preventDefault();
		boxes[Math.min(boxes.length - 1, Math.max(0, moves[event.key]()))].focus();
	}

	list.setAttribute('role', 'listbox');
	list.setAttribute('aria-orientation', 'horizontal');
	list.addEventListener('keydown', key);
	boxes.forEach((box, i) => {
		box.setAttribute('role', 'option');
		box.tabIndex = i === first ? 0 : -1;
		box.addEventListener('focus', () => { reach(i); });
		box.addEventListener('mouseenter', () => { reach(i); });
	});
	return reach;
}

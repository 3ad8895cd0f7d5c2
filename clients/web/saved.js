/* A page of its own that is saved and opened without the service: its data is in the page. */
import {element} from './dom.js';
import {drawComparison} from './comparison.js';
import {drawExplanation} from './explanation.js';
import {drawFaithfulness} from './faithfulness.js';
import {aboutNumbers} from './numbers.js';

function drawSaved() {
	const answer = JSON.parse(document.getElementById('data').textContent), main = document.getElementById('main'), body = element('div');
	const kind = answer.methods || answer.texts ? 'faithfulness' : answer.compare ? 'comparison' : 'explanation';
	const title = {faithfulness: `How faithful the explanations of ${answer.model} are`, comparison: 'Two explanations', explanation: `An explanation of ${answer.model}`}[kind];
	document.title = title;
	main.replaceChildren(element('h1', {}, title), body, aboutNumbers(kind));
	try {
		({faithfulness: drawFaithfulness, comparison: drawComparison, explanation: drawExplanation})[kind](body, answer);
	} catch (error) {
		body.append(element('p', {class: 'error'}, `This page cannot draw its data: ${error.message}`));
	}
	if (answer.status === 'queued' || answer.status === 'running') setTimeout(() => location.reload(), 5000);
}

drawSaved();

/* Questions, errors and empty states: each says what to do next. */
import {element} from './dom.js';
import {getKey, ServiceError} from './api.js';

function open(title, content, ...buttons) {
	return new Promise(resolve => {
		const dialog = element('dialog', {'aria-label': title, onclose: () => { dialog.remove(); resolve(dialog.returnValue === 'yes'); }},
			element('form', {method: 'dialog'}, element('h2', {}, title), content, element('p', {class: 'buttons'}, buttons)));
		document.body.append(dialog);
		dialog.showModal();
	});
}

/** Ask in a dialog. Resolves to true once the reader has chosen `action`. dangerous: the button is red. */
export function ask(title, action, content, dangerous) {
	return open(title, content, element('button', {value: 'yes', class: dangerous ? 'danger' : 'primary'}, action), element('button', {value: 'no', formnovalidate: true}, 'Cancel'));
}

/** Show an error in a dialog, for a button that has no room for it. */
export function tell(error) {
	return open('That did not work.', message(error), element('button', {value: 'no', class: 'primary'}, 'Close'));
}

const NEXT = {
	401: ['This service has keys.', 'Enter a key'],
	403: ['The key in use may not do this.', 'Use another key'],
};

const WRONG = ['The key in use is wrong, revoked or expired.', 'Enter another key'];

/** A card for an error. retry: called by its button, whose text is `name`. */
export function explainError(error, retry, name) {
	const [reason, action] = error instanceof ServiceError && (error.status === 401 && getKey() ? WRONG : NEXT[error.status]) || [null, null];
	const away = error instanceof ServiceError && error.away;
	return element('section', {class: 'card failed', role: 'alert'},
		element('h2', {}, reason || (away ? 'The service cannot answer now.' : 'That did not work.')),
		element('p', {}, error.message, error.param ? ` (field ${error.param})` : null),
		element('p', {class: 'buttons'},
			action ? element('button', {type: 'button', class: 'primary', onclick: () => document.dispatchEvent(new Event('additive-key'))}, action) : null,
			retry ? element('button', {type: 'button', onclick: retry}, name || (away ? 'Try now' : 'Try again')) : null));
}

/** A card for a list without objects. */
export function explainEmpty(title, ...content) {
	return element('section', {class: 'card'}, element('h2', {}, title), content);
}

/** A line below a form or button; role alert, so it is read aloud. */
export function message(error) {
	return element('p', {class: 'error', role: 'alert'}, error.param && !error.message.includes(error.param) ? `${error.param}: ` : null, error.message);
}

/** Run an action of a button, which is disabled meanwhile. An error is shown after the button, or in the one of `forms`
 * that has the field it names. */
export async function act(button, action, ...forms) {
	const next = button.nextElementSibling;
	if (next && next.classList.contains('error')) next.remove();
	forms.forEach(form => form.refuse(null));
	button.disabled = true;
	try {
		return await action();
	} catch (error) {
		if (error.name !== 'AbortError' && !forms.some(form => form.refuse(error))) button.after(message(error));
	} finally {
		button.disabled = false;
	}
}
